//! One table at one partition: tuples, their variable-length data, indexes, LRU chain and Evicted Table kept consistent with each other, and their
//! memory accounted to the partition's meter.
//!
//! Invariants, between any two calls:
//! 1. every tuple is live in exactly one place: its index entries all refer either to a slot with [`flag::LIVE`](super::tuples::flag::LIVE), or to an Evicted Table entry;
//! 2. every index has `tuples.live() + evicted.live()` entries;
//! 3. the chain, where the table keeps one, links exactly the live slots;
//! 4. every cell of variable-length data is referred to by exactly one live or detached slot, or kept by the undo log.

use std::io;

use super::hash_index::{Handle, hash_key};
use super::index::{Columns, Index, reference};
use super::meter::MemoryMeter;
use super::tuples::{TupleId, TupleMemory};
use super::var_heap::{VarHeap, VarRef};
use crate::anticache::chain::LruChain;
use crate::anticache::evicted_table::{EvictedId, EvictedTable};
use crate::catalog::key::KeyBuf;
use crate::catalog::{IndexId, TableDef};
use capture::Capture;

pub mod capture;
mod change;
mod check;
mod residence;

/// Marks a handle as a position in the Evicted Table.
const EVICTED_BIT: Handle = 1 << 31;

/// A tuple's place as an index look-up finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// In memory.
    Resident(TupleId),
    /// In a block.
    Evicted(EvictedId),
}

impl Found {
    #[inline]
    pub(crate) fn of(handle: Handle) -> Self {
        if handle & EVICTED_BIT == 0 { Self::Resident(handle) } else { Self::Evicted(handle & !EVICTED_BIT) }
    }
}

/// What the memory budget does not allow before something is evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NeedMemory {
    /// Another tuple.
    Slot,
    /// A value of so many bytes.
    Value(usize),
}

/// Why a row was not stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// Something must be evicted first.
    NeedMemory,
    /// A unique index has its key already; the tuple that has it.
    Duplicate(Found),
    /// It is not a row of this table.
    Malformed(String),
}

/// One table's share at one partition.
#[derive(Debug)]
pub struct Table {
    def: TableDef,
    tuples: TupleMemory,
    /// Variable-length data, where the table has such columns.
    values: Option<VarHeap>,
    indexes: Vec<Index>,
    evicted: EvictedTable,
    chain: Option<LruChain>,
    /// Tuples looked up since the last block was chosen by the paper's rule (§3.2).
    pub accesses_since_eviction: u64,
    /// What a transaction has found no memory for. Room is made for all of it before the transaction runs again, and nothing of it is given away
    /// until the transaction has ended: otherwise two tables that it writes to could take the same memory from each other for ever.
    wants: Wants,
    accounted_bytes: u64,
    /// What an update of indexed columns has overwritten, until it is certain that the new key is free; or the indexed columns of a tuple on its way into
    /// the Evicted Table.
    scratch: Vec<u8>,
    /// What the snapshot under way has yet to save of the table.
    capture: Option<Box<Capture>>,
}

/// Memory that a table needs before a transaction can run again.
#[derive(Debug, Default)]
struct Wants {
    /// Free slots.
    slots: u64,
    /// Whether a tuple found no slot since the number of them was computed.
    lacks_slot: bool,
    /// Cells for values: a length, and how many of its size.
    values: Vec<(usize, u32)>,
}

/// Why a row was not placed.
enum NotPlaced {
    /// There is no memory.
    NeedMemory(NeedMemory),
    /// It is not a row of this table.
    Malformed(String),
}

impl From<NeedMemory> for NotPlaced {
    fn from(need: NeedMemory) -> Self {
        Self::NeedMemory(need)
    }
}

impl Wants {
    /// Remembers what was lacking.
    fn record(&mut self, reason: NotPlaced) -> Refused {
        match reason {
            NotPlaced::Malformed(what) => return Refused::Malformed(what),
            NotPlaced::NeedMemory(NeedMemory::Slot) => self.lacks_slot = true,
            NotPlaced::NeedMemory(NeedMemory::Value(bytes)) => self.value(bytes),
        }
        Refused::NeedMemory
    }

    /// A value of `bytes` found no memory: asks for one cell, then for two, four …
    fn value(&mut self, bytes: usize) {
        match self.values.iter_mut().find(|(other, _)| VarHeap::class_of(*other) == VarHeap::class_of(bytes)) {
            Some((_, cells)) => *cells = cells.saturating_mul(2),
            None => self.values.push((bytes, 1)),
        }
    }
}

/// Whom a handle leads to; apart from [`Table`], because indexes are changed while it is asked.
#[derive(Clone, Copy)]
struct Places<'a> {
    tuples: &'a TupleMemory,
    values: Option<&'a VarHeap>,
    evicted: &'a EvictedTable,
}

impl<'a> Places<'a> {
    #[inline]
    fn columns(self, handle: Handle) -> Columns<'a> {
        match Found::of(handle) {
            Found::Resident(id) => Columns::Resident(self.tuples.row(id), self.values),
            Found::Evicted(id) => Columns::Evicted(self.evicted.image(id)),
        }
    }
}

/// Borrows the places and the indexes of a table side by side.
macro_rules! side_by_side {
    ($table:expr) => {{
        let places = Places { tuples: &$table.tuples, values: $table.values.as_ref(), evicted: &$table.evicted };
        (places, &mut $table.indexes, &$table.def.indexes)
    }};
}
use side_by_side;

impl Table {
    /// An empty table, with a chain when anti-caching is on and the table is evictable.
    ///
    /// # Errors
    /// When address space cannot be reserved.
    pub fn new(def: TableDef, chain: Option<LruChain>, budget_bytes: u64, meter: &mut MemoryMeter) -> io::Result<Self> {
        let budget = usize::try_from(budget_bytes).unwrap_or(usize::MAX / 4);
        // Chunks are about a five-hundredth of the budget: a table holds one more than it fills, and the small ones of a schema together shall not keep
        // what the large ones need. At least 4 KiB, at most 2 MiB (a huge page).
        let chunk_bytes = (budget / 512).next_power_of_two().clamp(4 << 10, 2 << 20);
        let tuples = TupleMemory::new(def.row_bytes, chunk_bytes, budget)?;
        // Ids have 31 bits; an index entry costs at least 5 bytes, so the budget bounds the entries as well.
        let max_entries = (budget / 5).clamp(1 << 16, EVICTED_BIT as usize - 1);
        let indexes: io::Result<_> = def.indexes.iter().map(|index| Index::new(index, max_entries)).collect();
        let mut table = Self {
            indexes: indexes?,
            evicted: EvictedTable::new(def.image_bytes, max_entries)?,
            values: def.has_var().then(|| VarHeap::new(budget)).transpose()?,
            chain,
            tuples,
            def,
            accesses_since_eviction: 0,
            wants: Wants::default(),
            accounted_bytes: 0,
            scratch: Vec::new(),
            capture: None,
        };
        table.account(meter);
        Ok(table)
    }

    /// Definition.
    #[inline]
    pub fn def(&self) -> &TableDef {
        &self.def
    }

    /// Tuple memory.
    #[inline]
    pub fn tuples(&self) -> &TupleMemory {
        &self.tuples
    }

    /// Tuple memory, to write flags.
    #[inline]
    pub fn tuples_mut(&mut self) -> &mut TupleMemory {
        &mut self.tuples
    }

    /// Memory of variable-length data.
    #[inline]
    pub fn values(&self) -> Option<&VarHeap> {
        self.values.as_ref()
    }

    /// Evicted Table.
    pub fn evicted(&self) -> &EvictedTable {
        &self.evicted
    }

    /// LRU chain, when the table keeps one.
    pub fn chain(&self) -> Option<&LruChain> {
        self.chain.as_ref()
    }

    /// Indexes, in the order of the definition.
    pub fn indexes(&self) -> &[Index] {
        &self.indexes
    }

    /// Bytes of all indexes.
    pub fn index_bytes(&self) -> usize {
        self.indexes.iter().map(Index::allocated_bytes).sum()
    }

    /// Whether a transaction waits for memory of this table.
    pub fn is_hungry(&self) -> bool {
        self.wants.slots > 0 || !self.wants.values.is_empty()
    }

    /// Whether what it waits for is memory for values.
    pub fn wants_value_memory(&self) -> bool {
        !self.wants.values.is_empty()
    }

    /// Free slots that it is to have.
    pub fn wanted_slots(&self) -> u64 {
        self.wants.slots
    }

    /// Asks for more free slots than a transaction has just found, if it lacked slots.
    pub fn want_more_slots(&mut self, meter: &MemoryMeter) {
        if std::mem::take(&mut self.wants.lacks_slot) {
            // When other structures have grown, free slots may pay for it. Otherwise, what the transaction had filled is free again: it needs more than
            // that; twice as many, so that a large one fits soon.
            let slots = if meter.is_over() { 1 } else { 2 * self.tuples.free_slots() + 1 };
            self.wants.slots = self.wants.slots.max(slots);
        }
    }

    /// The transaction has ended.
    pub fn forget_wants(&mut self) {
        self.wants.slots = 0;
        self.wants.lacks_slot = false;
        self.wants.values.clear();
    }

    /// Counts in the meter what the table holds now.
    #[inline]
    pub fn account(&mut self, meter: &mut MemoryMeter) {
        let values = self.values.as_ref().map_or(0, VarHeap::allocated_bytes);
        let bytes =
            (self.tuples.allocated_bytes() + values + self.index_bytes() + self.evicted.allocated_bytes()) as u64;
        meter.replace(self.accounted_bytes, bytes);
        self.accounted_bytes = bytes;
    }

    #[inline]
    fn places(&self) -> Places<'_> {
        Places { tuples: &self.tuples, values: self.values.as_ref(), evicted: &self.evicted }
    }

    /// Finds a tuple by primary key.
    #[inline]
    pub fn find(&self, key: &[u8]) -> Option<Found> {
        if self.def.key_bytes == 0 { None } else { self.find_in(0, key) }
    }

    /// The same, where the hash of the key is known.
    #[inline]
    pub fn find_hashed(&self, hash: u64, key: &[u8]) -> Option<Found> {
        let (Some(Index::Hash(index)), Some(def)) = (self.indexes.first(), self.def.indexes.first()) else {
            return self.find(key);
        };
        debug_assert_eq!(hash, hash_key(key));
        let places = self.places();
        index.find(hash, |handle| places.columns(handle).has_key(def, key)).map(Found::of)
    }

    /// Finds a tuple by the key of an index.
    #[inline]
    pub fn find_in(&self, index: IndexId, key: &[u8]) -> Option<Found> {
        let places = self.places();
        self.indexes[index].find(&self.def.indexes[index], key, |handle| places.columns(handle)).map(Found::of)
    }

    /// Adds every tuple with the key of an index to `found`, in the order of their primary keys.
    pub fn find_all_in(&self, index: IndexId, key: &[u8], found: &mut Vec<Found>) {
        let start = found.len();
        let places = self.places();
        let def = &self.def.indexes[index];
        self.indexes[index].find_all(
            def,
            key,
            |handle| places.columns(handle),
            |handle| {
                found.push(Found::of(handle));
            },
        );
        if found.len() - start > 1 {
            let primary = &self.def.indexes[0];
            found[start..].sort_by_cached_key(|&found| self.columns(found).ordered_key::<KeyBuf>(primary).to_vec());
        }
    }

    /// The indexed columns of a tuple.
    #[inline]
    pub fn columns(&self, found: Found) -> Columns<'_> {
        match found {
            Found::Resident(id) => Columns::Resident(self.tuples.row(id), self.values.as_ref()),
            Found::Evicted(id) => Columns::Evicted(self.evicted.image(id)),
        }
    }

    /// First stage of prefetching for a coming [`Table::find`].
    #[inline]
    pub fn prefetch_bucket(&self, hash: u64) {
        if let Some(Index::Hash(index)) = self.indexes.first() {
            index.prefetch(hash);
        }
    }

    /// The same for a row that will be added.
    #[inline]
    pub fn prefetch_new(&self, serialized: &[u8]) {
        if self.def.key_bytes > 0
            && let Some(key) = serialized.get(..self.def.key_bytes)
        {
            self.prefetch_bucket(hash_key(key));
        }
    }

    /// Second stage: the beginning of the tuple that the bucket most probably leads to, or its Evicted Table entry. Returns it when it is resident.
    #[inline]
    pub fn prefetch_tuple(&self, hash: u64) -> Option<TupleId> {
        let Some(Index::Hash(index)) = self.indexes.first() else {
            return None;
        };
        let found = Found::of(index.guess(hash)?);
        self.prefetch(found);
        match found {
            Found::Resident(id) => Some(id),
            Found::Evicted(_) => None,
        }
    }

    /// Brings the beginning of a tuple near, or its Evicted Table entry.
    #[inline]
    pub fn prefetch(&self, found: Found) {
        match found {
            Found::Resident(id) => self.tuples.prefetch(id),
            Found::Evicted(id) => self.evicted.prefetch(id),
        }
    }

    /// Brings the beginning of a resident tuple's VARCHAR value near.
    #[inline]
    pub fn prefetch_value(&self, id: TupleId, var: u8) {
        if let Some(values) = &self.values {
            let var = usize::from(var);
            values.prefetch(reference(self.tuples.row(id), self.def.var_offsets[var]), self.def.var_max_bytes[var]);
        }
    }

    /// Third stage, for transactions that will update the chain: its links. `id` is a guess of this moment.
    #[inline]
    pub fn prefetch_links(&self, id: TupleId) {
        if self.chain.is_some() {
            self.tuples.prefetch_links(id);
        }
    }

    /// Fourth stage, for the same: the links of the neighbours.
    #[inline]
    pub fn prefetch_neighbours(&self, id: TupleId) {
        if self.chain.is_some() {
            self.tuples.prefetch_links(self.tuples.next(id));
            self.tuples.prefetch_links(self.tuples.prev(id));
        }
    }

    /// Makes a tuple the hottest.
    #[inline]
    pub fn touch(&mut self, id: TupleId) {
        if let Some(chain) = &mut self.chain {
            chain.touch(&mut self.tuples, id);
        }
    }

    /// Tells the chain the time, on any clock that never goes back.
    #[inline]
    pub fn tell_time(&mut self, now: u64) {
        if let Some(chain) = &mut self.chain {
            chain.tell_time(&mut self.tuples, now);
        }
    }

    /// A VARCHAR value of a resident tuple.
    #[inline]
    pub fn value(&self, id: TupleId, var: u8) -> &[u8] {
        let offset = self.def.var_offsets[usize::from(var)];
        self.values.as_ref().map_or(&[], |values| values.get(reference(self.tuples.row(id), offset)))
    }

    /// Appends a resident tuple's serialized row to `out`.
    pub fn serialize(&self, id: TupleId, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(self.tuples.row(id));
        for (var, &offset) in self.def.var_offsets.iter().enumerate() {
            out[start + offset..][..4].fill(0);
            let value = self.value(id, var as u8);
            out.extend_from_slice(&(value.len() as u16).to_le_bytes());
            out.extend_from_slice(value);
        }
    }

    /// A slot for one more tuple, within the budget: also a free slot is refused while more is used than allowed, because index and Evicted
    /// Table have grown and something must shrink before there can be more tuples.
    fn allocate(&mut self, meter: &mut MemoryMeter) -> Result<TupleId, NeedMemory> {
        if !meter.is_over() {
            let has_slot = self.tuples.free_slots() > 0;
            if has_slot || meter.fits(self.tuples.next_chunk_bytes()) && self.tuples.add_chunk() {
                if !has_slot {
                    self.account(meter);
                }
                let id = self.tuples.allocate().ok_or(NeedMemory::Slot)?;
                self.exempt(id);
                return Ok(id);
            }
        }
        Err(NeedMemory::Slot)
    }

    /// Makes sure that a value of `bytes` can be stored, within the budget.
    fn reserve_value(&mut self, bytes: usize, meter: &mut MemoryMeter) -> Result<(), NeedMemory> {
        if self.values.as_ref().is_none_or(|values| values.fits(bytes)) || self.add_slab(bytes, meter) {
            return Ok(());
        }
        Err(NeedMemory::Value(bytes))
    }

    /// Makes sure that `count` tuples can be added, and what transactions want; false when the budget does not allow it before something is
    /// evicted.
    pub fn reserve(&mut self, count: u64, meter: &mut MemoryMeter) -> bool {
        if meter.is_over() {
            return false;
        }
        while self.tuples.free_slots() < count.max(self.wants.slots) {
            if !meter.fits(self.tuples.next_chunk_bytes()) || !self.tuples.add_chunk() {
                return false;
            }
            self.account(meter);
        }
        for at in 0..self.wants.values.len() {
            let (bytes, cells) = self.wants.values[at];
            while self.values.as_ref().is_some_and(|values| values.free_cells(bytes) < cells) {
                if !self.add_slab(bytes, meter) {
                    return false;
                }
            }
        }
        true
    }

    /// Takes memory for values as long as `bytes`; false when the budget does not allow it.
    fn add_slab(&mut self, bytes: usize, meter: &mut MemoryMeter) -> bool {
        let added = self
            .values
            .as_mut()
            .is_some_and(|values| meter.fits(values.slab_bytes_for(bytes)) && values.add_slab_for(bytes));
        self.account(meter);
        added
    }

    /// Stores a value for a tuple.
    fn store_value(
        &mut self,
        id: TupleId,
        var: u8,
        value: &[u8],
        meter: &mut MemoryMeter,
    ) -> Result<VarRef, NeedMemory> {
        self.reserve_value(value.len(), meter)?;
        let stored = self.values.as_mut().and_then(|values| values.allocate(id, var, value));
        stored.ok_or(NeedMemory::Value(value.len()))
    }

    /// A slot filled with a serialized row; in no index and no chain yet.
    fn place(&mut self, serialized: &[u8], meter: &mut MemoryMeter) -> Result<TupleId, NotPlaced> {
        if !self.def.has_var() {
            if serialized.len() != self.def.row_bytes {
                return Err(NotPlaced::Malformed(self.def.split(serialized).err().unwrap_or_default()));
            }
            let id = self.allocate(meter)?;
            self.tuples.row_mut(id).copy_from_slice(serialized);
            return Ok(id);
        }
        let (fixed, vars) = self.def.split(serialized).map_err(NotPlaced::Malformed)?;
        let id = self.allocate(meter)?;
        let row = self.tuples.row_mut(id);
        row.copy_from_slice(fixed);
        for &offset in &self.def.var_offsets {
            row[offset..offset + 4].fill(0);
        }
        for (var, value) in vars.enumerate() {
            match self.store_value(id, var as u8, value, meter) {
                Ok(stored) => {
                    let offset = self.def.var_offsets[var];
                    self.tuples.row_mut(id)[offset..offset + 4].copy_from_slice(&stored.to_le_bytes());
                }
                Err(need) => {
                    self.free_slot(id);
                    return Err(need.into());
                }
            }
        }
        Ok(id)
    }

    /// Frees a slot and what it refers to.
    fn free_slot(&mut self, id: TupleId) {
        if let Some(values) = &mut self.values {
            for &offset in &self.def.var_offsets {
                values.free(reference(self.tuples.row(id), offset));
            }
        }
        self.tuples.free(id);
    }
}
