//! How a table's contents change: tuples added, overwritten and removed, with everything that refers to them.

use std::ops::Range;

use super::{Found, Places, Refused, Table, side_by_side};
use crate::catalog::{IndexId, row};
use crate::storage::index::{Index, reference};
use crate::storage::meter::MemoryMeter;
use crate::storage::tuples::{TupleId, flag};
use crate::storage::var_heap::VarRef;

impl Table {
    /// The tuple that has the same key as this one in a unique index, if one has.
    fn duplicate_of(&self, id: TupleId, indexes: impl Iterator<Item = IndexId>) -> Option<Found> {
        let columns = self.columns(Found::Resident(id));
        indexes
            .filter(|&index| self.def.indexes[index].unique)
            .find_map(|index| self.find_in(index, &columns.hash_key(&self.def.indexes[index])))
    }

    /// Adds a tuple, at the hot end.
    ///
    /// # Errors
    /// [`Refused`]; nothing is changed then.
    pub fn insert(&mut self, serialized: &[u8], meter: &mut MemoryMeter) -> Result<TupleId, Refused> {
        let has_primary = self.def.key_bytes > 0;
        // An ordered index sees on the way that leads to a new entry whether there is one.
        let primary_tells = has_primary && matches!(self.indexes.first(), Some(Index::Ordered(_)));
        if has_primary
            && !primary_tells
            && let Some(found) = serialized.get(..self.def.key_bytes).and_then(|key| self.find(key))
        {
            return Err(Refused::Duplicate(found));
        }
        let id = self.place(serialized, meter).map_err(|reason| self.wants.record(reason))?;
        if primary_tells && !self.enter(0, id) {
            let found = self.find(self.def.key(self.tuples.row(id))).expect("the index has an entry with this key");
            self.free_slot(id);
            return Err(Refused::Duplicate(found));
        }
        // The primary key is new; a table without one may have other unique keys.
        if let Some(found) = self.duplicate_of(id, usize::from(has_primary)..self.indexes.len()) {
            if primary_tells {
                self.remove_from(&[0], id);
            }
            self.free_slot(id);
            return Err(Refused::Duplicate(found));
        }
        self.index_and_link(id, usize::from(primary_tells), meter);
        Ok(id)
    }

    /// Enters a tuple in memory into an index; false when an ordered one has its key.
    #[inline]
    fn enter(&mut self, index: IndexId, id: TupleId) -> bool {
        let (places, indexes, defs) = side_by_side!(self);
        indexes[index].insert(&defs[index], id, |handle| places.columns(handle))
    }

    /// Enters a tuple in memory into the indexes from `first` on, which do not have its keys, and into the chain at the hot end.
    pub(super) fn index_and_link(&mut self, id: TupleId, first: IndexId, meter: &mut MemoryMeter) {
        for index in first..self.indexes.len() {
            let entered = self.enter(index, id);
            debug_assert!(entered, "an ordered index's entries differ");
        }
        if let Some(chain) = &mut self.chain {
            chain.push_hot(&mut self.tuples, id);
        }
        self.account(meter);
    }

    /// Whether bytes of a row from `start` on belong to an index.
    #[inline]
    pub fn is_indexed(&self, start: usize) -> bool {
        start < self.def.indexed_bytes
    }

    /// Whether a VARCHAR column belongs to an index.
    #[inline]
    pub fn is_indexed_value(&self, var: u8) -> bool {
        self.def.var_image_offsets[usize::from(var)].is_some()
    }

    /// Overwrites bytes of a row's fixed part.
    ///
    /// # Errors
    /// The tuple that has the new key in a unique index; nothing is changed then.
    #[inline]
    pub fn overwrite(
        &mut self,
        id: TupleId,
        offset: usize,
        bytes: &[u8],
        meter: &mut MemoryMeter,
    ) -> Result<(), Found> {
        self.before_change(id);
        if self.is_indexed(offset) {
            return self.rewrite_indexed(id, offset, bytes, meter);
        }
        self.tuples.row_mut(id)[offset..offset + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    /// Sets a number that no index has.
    #[inline]
    pub fn set_number(&mut self, id: TupleId, columns: Range<usize>, value: i64) {
        debug_assert!(!self.is_indexed(columns.start));
        self.before_change(id);
        row::set_number(&mut self.tuples.row_mut(id)[columns], value);
    }

    /// Overwrites bytes that are part of a key, or a reference to a VARCHAR that is.
    fn rewrite_indexed(
        &mut self,
        id: TupleId,
        offset: usize,
        bytes: &[u8],
        meter: &mut MemoryMeter,
    ) -> Result<(), Found> {
        let end = offset + bytes.len();
        let touches = |def: &crate::catalog::key::IndexDef| {
            def.parts.iter().any(|part| {
                let column = &self.def.columns[part.column];
                column.offset < end && offset < column.offset + column.column_type.bytes()
            })
        };
        let touched: Vec<IndexId> =
            (0..self.indexes.len()).filter(|&index| touches(&self.def.indexes[index])).collect();
        // Only its beginning needs to be part of a key, so it may be longer than any.
        let mut before = std::mem::take(&mut self.scratch);
        before.clear();
        before.extend_from_slice(&self.tuples.row(id)[offset..end]);
        self.remove_from(&touched, id);
        self.tuples.row_mut(id)[offset..end].copy_from_slice(bytes);
        let duplicate = self.duplicate_of(id, touched.iter().copied());
        if duplicate.is_some() {
            self.tuples.row_mut(id)[offset..end].copy_from_slice(&before);
        }
        self.scratch = before;
        for &index in &touched {
            let entered = self.enter(index, id);
            debug_assert!(entered, "the key is free, or its own");
        }
        self.account(meter);
        duplicate.map_or(Ok(()), Err)
    }

    fn remove_from(&mut self, touched: &[IndexId], id: TupleId) {
        let (places, indexes, defs) = side_by_side!(self);
        for &index in touched {
            indexes[index].remove(&defs[index], id, places.columns(id));
        }
    }

    /// Gives a tuple another VARCHAR value. Returns the references before and after; the one before is still allocated.
    ///
    /// # Errors
    /// [`Refused`]; nothing is changed then.
    pub fn replace_value(
        &mut self,
        id: TupleId,
        var: u8,
        value: &[u8],
        meter: &mut MemoryMeter,
    ) -> Result<(VarRef, VarRef), Refused> {
        let offset = self.def.var_offsets[usize::from(var)];
        let old = reference(self.tuples.row(id), offset);
        let new = self.store_value(id, var, value, meter).map_err(|need| self.wants.record(need.into()))?;
        if let Err(found) = self.refer(id, var, new, meter) {
            self.free_value(new);
            return Err(Refused::Duplicate(found));
        }
        Ok((old, new))
    }

    /// Points a VARCHAR column to a cell.
    ///
    /// # Errors
    /// As [`Table::overwrite`].
    pub fn refer(&mut self, id: TupleId, var: u8, to: VarRef, meter: &mut MemoryMeter) -> Result<(), Found> {
        self.before_change(id);
        let offset = self.def.var_offsets[usize::from(var)];
        if self.is_indexed_value(var) {
            return self.rewrite_indexed(id, offset, &to.to_le_bytes(), meter);
        }
        self.tuples.row_mut(id)[offset..offset + 4].copy_from_slice(&to.to_le_bytes());
        Ok(())
    }

    /// Frees a cell that no tuple refers to any more.
    pub fn free_value(&mut self, value: VarRef) {
        if let Some(values) = &mut self.values {
            values.free(value);
        }
    }

    /// Removes a resident tuple.
    pub fn remove(&mut self, id: TupleId) {
        self.detach(id);
        self.free_detached(id);
    }

    /// Takes a resident tuple out of indexes and chain; its slot keeps id, row and flags until the transaction ends, because changes that it
    /// made before refer to them.
    pub fn detach(&mut self, id: TupleId) {
        self.before_change(id);
        let (places, indexes, defs) = side_by_side!(self);
        for (index, def) in indexes.iter_mut().zip(defs) {
            index.remove(def, id, places.columns(id));
        }
        if let Some(chain) = &mut self.chain {
            chain.remove(&mut self.tuples, id);
        }
        let flags = self.tuples.flags(id) & !flag::LIVE;
        self.tuples.set_flags(id, flags);
    }

    /// Undoes [`Table::detach`].
    pub fn reattach(&mut self, id: TupleId, meter: &mut MemoryMeter) {
        let flags = self.tuples.flags(id) | flag::LIVE;
        self.tuples.set_flags(id, flags);
        self.index_and_link(id, 0, meter);
    }

    /// Frees the slot of a detached tuple.
    pub fn free_detached(&mut self, id: TupleId) {
        self.free_slot(id);
    }
}
