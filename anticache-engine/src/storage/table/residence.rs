//! How a tuple changes its place: evicted and brought back, moved so that memory can be given back.

use smallvec::SmallVec;

use super::{EVICTED_BIT, Places, Refused, Table, side_by_side};
use crate::anticache::evicted_table::{EvictedId, Location};
use crate::catalog::key::KeyBuf;
use crate::storage::index::{Columns, Index, TOGETHER, reference};
use crate::storage::meter::MemoryMeter;
use crate::storage::tuples::TupleId;

impl Table {
    /// Eviction's first step for one tuple: an Evicted Table entry, whose number goes into the block. No index leads to it before
    /// [`Table::lead_to_evicted`]. What the entry takes is counted by [`Table::account`], once for many.
    pub fn enter_evicted(&mut self, id: TupleId, location: Location) -> EvictedId {
        self.before_change(id);
        let evicted_id = if self.def.has_var() {
            let mut image = std::mem::take(&mut self.scratch);
            self.image(id, &mut image);
            let evicted_id = self.evicted.insert(location, &image);
            self.scratch = image;
            evicted_id
        } else {
            self.evicted.insert(location, &self.tuples.row(id)[..self.def.indexed_bytes])
        };
        self.exempt_entry(evicted_id);
        evicted_id
    }

    /// Eviction's second step, for up to [`TOGETHER`] tuples with their entries: the indexes are pointed to these.
    pub fn lead_to_evicted(&mut self, evicted: &[(TupleId, EvictedId)]) {
        let mut moved: SmallVec<[_; TOGETHER]> = SmallVec::from_slice(evicted);
        moved.iter_mut().for_each(|(_, entry)| *entry |= EVICTED_BIT);
        let (places, indexes, defs) = side_by_side!(self);
        for (index, def) in indexes.iter_mut().zip(defs) {
            index.replace_all(def, &moved, |handle| places.columns(handle));
        }
    }

    /// Brings near where the first index has its entry of an evicted tuple, whose own entry is near.
    pub fn prefetch_entry_of(&self, id: EvictedId) {
        if let Some(Index::Hash(index)) = self.indexes.first() {
            index.prefetch(Columns::Evicted(self.evicted.image(id)).hash(&self.def.indexes[0]));
        }
    }

    /// Puts the indexed columns, as the Evicted Table keeps them, in place of what is in `image`.
    fn image(&self, id: TupleId, image: &mut Vec<u8>) {
        image.clear();
        image.extend_from_slice(&self.tuples.row(id)[..self.def.indexed_bytes]);
        for (var, offset) in self.def.var_image_offsets.iter().enumerate() {
            if offset.is_some() {
                let mut padded = KeyBuf::new();
                padded.push_var(self.value(id, var as u8), self.def.var_max_bytes[var] + 2);
                image.extend_from_slice(&padded);
            }
        }
    }

    /// Eviction's last step for one tuple, when it was copied into the block: its slot is freed.
    pub fn forget_evicted(&mut self, id: TupleId) {
        if let Some(chain) = &mut self.chain {
            chain.remove(&mut self.tuples, id);
            chain.refill_probation(&mut self.tuples);
        }
        self.free_slot(id);
    }

    /// Points an evicted tuple's entry to where compaction has put it.
    pub fn relocate_evicted(&mut self, id: EvictedId, location: Location) {
        self.before_entry_change(id);
        self.evicted.relocate(id, location);
    }

    /// Un-eviction's step for one tuple: its row back into memory, the indexes pointed to it, its Evicted Table entry removed.
    ///
    /// # Errors
    /// [`Refused::NeedMemory`], or [`Refused::Malformed`] when the bytes are not a row of the evicted tuple; nothing is changed then.
    pub fn unevict(
        &mut self,
        evicted_id: EvictedId,
        serialized: &[u8],
        wanted: bool,
        meter: &mut MemoryMeter,
    ) -> Result<TupleId, Refused> {
        if serialized.get(..self.def.indexed_bytes) != Some(&self.evicted.image(evicted_id)[..self.def.indexed_bytes]) {
            return Err(Refused::Malformed(format!("its indexed columns are not those of evicted tuple {evicted_id}")));
        }
        let id = self.place(serialized, meter).map_err(|reason| self.wants.record(reason))?;
        self.before_entry_change(evicted_id);
        let (places, indexes, defs) = side_by_side!(self);
        let columns = Columns::Evicted(places.evicted.image(evicted_id));
        for (index, def) in indexes.iter_mut().zip(defs) {
            index.replace(def, evicted_id | EVICTED_BIT, id, columns);
        }
        self.evicted.remove(evicted_id);
        if let Some(chain) = &mut self.chain {
            if wanted {
                chain.push_merged(&mut self.tuples, id);
            } else {
                chain.push_cold(&mut self.tuples, id);
            }
        }
        Ok(id)
    }

    /// Tuples, in memory or evicted.
    pub fn tuple_count(&self) -> u64 {
        self.tuples.live() + self.evicted.live()
    }

    /// Recovery's first step: `tuples` will come, and the Evicted Table will have its entries under numbers below `evicted_len`.
    ///
    /// # Errors
    /// When there cannot be as many.
    pub fn begin_restore(&mut self, tuples: u64, evicted_len: usize, meter: &mut MemoryMeter) -> Result<(), String> {
        let fits =
            self.evicted.begin_restore(evicted_len) && self.indexes.iter_mut().all(|index| index.reserve(tuples));
        if !fits {
            return Err(format!(
                "table {} had {tuples} tuples and {evicted_len} Evicted Table entries; the memory budget of {} bytes has no room for them",
                self.def.name,
                meter.budget_bytes()
            ));
        }
        self.account(meter);
        Ok(())
    }

    /// Enters an evicted tuple under the number that it had, and into the indexes.
    ///
    /// # Errors
    /// When it cannot be one of this table.
    pub fn restore_entry(
        &mut self,
        id: EvictedId,
        location: Location,
        image: &[u8],
        meter: &mut MemoryMeter,
    ) -> Result<(), String> {
        if !self.evicted.restore(id, location, image) {
            return Err(format!(
                "entry {id} of table {}, with {} bytes of indexed columns; expected is one below {} that did not come yet, with {}",
                self.def.name,
                image.len(),
                self.evicted.len(),
                self.def.image_bytes
            ));
        }
        let (places, indexes, defs) = side_by_side!(self);
        for (index, def) in indexes.iter_mut().zip(defs) {
            let entered = index.insert(def, id | EVICTED_BIT, |handle| places.columns(handle));
            debug_assert!(entered, "an ordered index's entries differ");
        }
        self.account(meter);
        Ok(())
    }

    /// Recovery's last step.
    pub fn end_restore(&mut self) {
        self.evicted.end_restore();
    }

    /// Bytes that giving memory back could gain: what is held and carries no tuple and no value.
    pub fn free_bytes(&self) -> u64 {
        let values = self.values.as_ref().map_or(0, |values| values.allocated_bytes() - values.used_bytes());
        self.tuples.free_slots() * self.tuples.tuple_bytes() as u64 + values as u64
    }

    /// Gives a slab of variable-length data back, after moving its cells. False when none can be spared by a size class that shall keep `kept`
    /// slabs' worth of free cells, and what a transaction wants, nor was one given back since the table was accounted for last.
    pub fn release_slab(&mut self, kept: u32, meter: &mut MemoryMeter) -> bool {
        let before = self.accounted_bytes;
        self.account(meter);
        if self.accounted_bytes < before {
            return true;
        }
        let (Some(values), tuples, def) = (&mut self.values, &mut self.tuples, &self.def) else {
            return false;
        };
        let released = values.release_one(kept, &self.wants.values, |owner, column, new| {
            let offset = def.var_offsets[usize::from(column)];
            tuples.row_mut(owner)[offset..offset + 4].copy_from_slice(&new.to_le_bytes());
        });
        self.account(meter);
        released > 0
    }

    /// Gives the last chunks of tuple memory back, as many as it takes to hold less, after moving their tuples to free slots of the others.
    /// `moved` is told old id, new id and flags of each of them. False, and nothing is changed, when fewer than `kept` free slots would be left.
    pub fn release_chunks(
        &mut self,
        kept: u64,
        meter: &mut MemoryMeter,
        mut moved: impl FnMut(TupleId, TupleId, u8),
    ) -> bool {
        let chunks = self.tuples.chunks_to_gain();
        let slots = chunks as u64 * u64::from(self.tuples.slots_per_chunk());
        if chunks == 0 || self.tuples.free_slots() < kept.saturating_add(slots) {
            return false;
        }
        for _ in 0..chunks {
            for together in self.tuples.live_in_last_chunk().chunks(TOGETHER) {
                self.move_tuples(together, &mut moved);
            }
            self.tuples.release_last_chunk();
        }
        self.account(meter);
        true
    }

    /// Moves tuples, [`TOGETHER`] at most, to the lowest free slots.
    fn move_tuples(&mut self, olds: &[TupleId], moved: &mut impl FnMut(TupleId, TupleId, u8)) {
        let mut pairs: SmallVec<[_; TOGETHER]> = SmallVec::new();
        for &old in olds {
            let (new, flags) = self.copy_tuple(old);
            moved(old, new, flags);
            pairs.push((old, new));
        }
        let (places, indexes, defs) = side_by_side!(self);
        for (index, def) in indexes.iter_mut().zip(defs) {
            index.replace_all(def, &pairs, |handle| places.columns(handle));
        }
        olds.iter().for_each(|&old| self.tuples.free(old));
    }

    /// Copies a tuple to the lowest free slot, where the chain and its values have it from now on. Returns its place and flags there.
    fn copy_tuple(&mut self, old: TupleId) -> (TupleId, u8) {
        let new = self.tuples.allocate().expect("free slots before the released chunks, counted by the caller");
        let flags = self.flags_after_move(old, new);
        let (next, prev) = (self.tuples.next(old), self.tuples.prev(old));
        self.tuples.copy_row(old, new);
        self.tuples.set_flags(new, flags);
        self.tuples.set_links(new, next, prev);
        if let Some(chain) = &mut self.chain {
            chain.relocated(&mut self.tuples, old, new);
        }
        if let Some(values) = &mut self.values {
            for &offset in &self.def.var_offsets {
                values.set_owner(reference(self.tuples.row(new), offset), new);
            }
        }
        (new, flags)
    }
}
