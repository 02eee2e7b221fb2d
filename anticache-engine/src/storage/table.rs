//! One table at one partition: tuples, primary-key index, LRU chain and Evicted Table kept consistent with each other, and their memory
//! accounted to the partition's meter.
//!
//! Invariants, between any two calls:
//! 1. every tuple is live in exactly one place: its index entry refers either to a slot with [`flag::LIVE`], or to an Evicted Table entry;
//! 2. `index.len() = tuples.live() + evicted.live()`;
//! 3. the chain, where the table keeps one, links exactly the live slots.

use std::io;

use super::hash_index::{Handle, HashIndex, hash_key};
use super::tuples::{NO_TUPLE, TupleId, TupleMemory, flag};
use crate::anticache::chain::LruChain;
use crate::anticache::evicted_table::{EvictedId, EvictedTable, Location};
use crate::catalog::TableDef;

/// Marks a handle as a position in the Evicted Table.
const EVICTED_BIT: Handle = 1 << 31;

/// Bytes that the data may use at a partition, and how many it uses: chunks of tuples, index buckets, Evicted Table entries, and the
/// fixed reservation for buffers. Everything is counted when it is taken from the kernel, whether or not it is filled.
#[derive(Debug, Clone, Copy)]
pub struct MemoryMeter {
    budget_bytes: u64,
    used_bytes: u64,
    peak_bytes: u64,
}

impl MemoryMeter {
    /// A meter with `reserved_bytes` already used.
    pub fn new(budget_bytes: u64, reserved_bytes: u64) -> Self {
        Self { budget_bytes, used_bytes: reserved_bytes, peak_bytes: reserved_bytes }
    }

    /// Bytes that may be used.
    pub fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// Bytes in use.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// The most bytes that were in use.
    pub fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }

    /// Whether `bytes` more fit.
    #[inline]
    pub fn fits(&self, bytes: usize) -> bool {
        self.used_bytes + bytes as u64 <= self.budget_bytes
    }

    /// Whether more is used than allowed (indexes and the Evicted Table grow with every tuple, evicted or not).
    #[inline]
    pub fn is_over(&self) -> bool {
        self.used_bytes > self.budget_bytes
    }

    /// Counts bytes that are in use, whether or not they fit.
    pub fn take(&mut self, bytes: u64) {
        self.replace(0, bytes);
    }

    /// Counts bytes that are not in use any more.
    pub fn give_back(&mut self, bytes: u64) {
        self.replace(bytes, 0);
    }

    #[inline]
    fn replace(&mut self, before: u64, after: u64) {
        if before != after {
            self.used_bytes = self.used_bytes - before + after;
            self.peak_bytes = self.peak_bytes.max(self.used_bytes);
        }
    }
}

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
    fn of(handle: Handle) -> Self {
        if handle & EVICTED_BIT == 0 { Self::Resident(handle) } else { Self::Evicted(handle & !EVICTED_BIT) }
    }
}

/// The memory budget does not allow another tuple; something must be evicted first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NeedMemory;

/// One table's share at one partition.
#[derive(Debug)]
pub struct Table {
    def: TableDef,
    tuples: TupleMemory,
    index: HashIndex,
    evicted: EvictedTable,
    chain: Option<LruChain>,
    /// Tuples looked up since the last eviction; what the eviction shares are computed from (paper §3.2).
    pub accesses_since_eviction: u64,
    /// Blocks that the table owes to eviction, as a fraction: what rounding to whole blocks has left over.
    pub eviction_credit: f64,
    accounted_bytes: u64,
}

impl Table {
    /// An empty table. `keeps_chain` = anti-caching is on and the table is evictable.
    ///
    /// # Errors
    /// When address space cannot be reserved.
    pub fn new(def: TableDef, keeps_chain: bool, budget_bytes: u64, meter: &mut MemoryMeter) -> io::Result<Self> {
        let budget = usize::try_from(budget_bytes).unwrap_or(usize::MAX / 4);
        // Chunks are a hundredth of the budget, so that rounding to chunks costs little; at least 64 KiB, at most 2 MiB (a huge page).
        let chunk_bytes = (budget / 128).next_power_of_two().clamp(64 << 10, 2 << 20);
        let tuples = TupleMemory::new(def.row_bytes, chunk_bytes, budget)?;
        // Ids have 31 bits; an index entry costs at least 5 bytes, so the budget bounds the entries as well.
        let max_entries = (budget / 5).clamp(1 << 16, EVICTED_BIT as usize - 1);
        let mut table = Self {
            index: HashIndex::new(max_entries)?,
            evicted: EvictedTable::new(def.key_bytes, max_entries)?,
            chain: keeps_chain.then(LruChain::default),
            tuples,
            def,
            accesses_since_eviction: 0,
            eviction_credit: 0.0,
            accounted_bytes: 0,
        };
        table.account(meter);
        Ok(table)
    }

    /// Definition.
    pub fn def(&self) -> &TableDef {
        &self.def
    }

    /// Tuple memory.
    #[inline]
    pub fn tuples(&self) -> &TupleMemory {
        &self.tuples
    }

    /// Tuple memory, to write rows and flags.
    #[inline]
    pub fn tuples_mut(&mut self) -> &mut TupleMemory {
        &mut self.tuples
    }

    /// Evicted Table.
    pub fn evicted(&self) -> &EvictedTable {
        &self.evicted
    }

    /// LRU chain, when the table keeps one.
    pub fn chain(&self) -> Option<&LruChain> {
        self.chain.as_ref()
    }

    /// Primary-key index.
    pub fn index(&self) -> &HashIndex {
        &self.index
    }

    #[inline]
    fn account(&mut self, meter: &mut MemoryMeter) {
        let bytes =
            (self.tuples.allocated_bytes() + self.index.allocated_bytes() + self.evicted.allocated_bytes()) as u64;
        meter.replace(self.accounted_bytes, bytes);
        self.accounted_bytes = bytes;
    }

    /// Finds a tuple by primary key.
    #[inline]
    pub fn find(&self, hash: u64, key: &[u8]) -> Option<Found> {
        let handle = self.index.find(hash, |handle| match Found::of(handle) {
            Found::Resident(id) => self.def.key(self.tuples.row(id)) == key,
            Found::Evicted(id) => self.evicted.key(id) == key,
        })?;
        Some(Found::of(handle))
    }

    /// First stage of prefetching for a coming [`Table::find`].
    #[inline]
    pub fn prefetch_bucket(&self, hash: u64) {
        self.index.prefetch(hash);
    }

    /// Second stage: the tuple that the bucket most probably leads to. Returns it when it is resident.
    #[inline]
    pub fn prefetch_tuple(&self, hash: u64, lines: usize) -> Option<TupleId> {
        match Found::of(self.index.guess(hash)?) {
            Found::Resident(id) => {
                self.tuples.prefetch(id, lines);
                self.tuples.prefetch_links(id);
                Some(id)
            }
            Found::Evicted(_) => None,
        }
    }

    /// Third stage, for transactions that will update the chain: the links of the neighbours. `id` is a guess of this moment.
    #[inline]
    pub fn prefetch_neighbours(&self, id: TupleId) {
        self.tuples.prefetch_links(self.tuples.next(id));
        self.tuples.prefetch_links(self.tuples.prev(id));
    }

    /// Makes a tuple the hottest.
    #[inline]
    pub fn touch(&mut self, id: TupleId) {
        if let Some(chain) = &mut self.chain {
            chain.touch(&mut self.tuples, id);
        }
    }

    /// A slot for one more tuple, within the budget: also a free slot is refused while more is used than allowed, because index and Evicted
    /// Table have grown and something must shrink before there can be more tuples.
    fn allocate(&mut self, meter: &mut MemoryMeter) -> Result<TupleId, NeedMemory> {
        if meter.is_over() {
            return Err(NeedMemory);
        }
        if let Some(id) = self.tuples.allocate() {
            return Ok(id);
        }
        if !meter.fits(self.tuples.next_chunk_bytes()) || !self.tuples.add_chunk() {
            return Err(NeedMemory);
        }
        self.account(meter);
        self.tuples.allocate().ok_or(NeedMemory)
    }

    /// Makes sure that `count` tuples can be added; false when the budget does not allow it before something is evicted.
    pub fn reserve(&mut self, count: u64, meter: &mut MemoryMeter) -> bool {
        if meter.is_over() {
            return false;
        }
        while self.tuples.free_slots() < count {
            if !meter.fits(self.tuples.next_chunk_bytes()) || !self.tuples.add_chunk() {
                return false;
            }
            self.account(meter);
        }
        true
    }

    /// Adds a tuple whose key is new, at the hot end.
    ///
    /// # Errors
    /// [`NeedMemory`].
    pub fn insert(&mut self, row: &[u8], meter: &mut MemoryMeter) -> Result<TupleId, NeedMemory> {
        let id = self.allocate(meter)?;
        self.tuples.row_mut(id).copy_from_slice(row);
        self.index_and_link(id, meter);
        Ok(id)
    }

    /// Enters a tuple in memory into the index, and into the chain at the hot end.
    fn index_and_link(&mut self, id: TupleId, meter: &mut MemoryMeter) {
        let (tuples, evicted, def) = (&self.tuples, &self.evicted, &self.def);
        self.index.insert(hash_key(def.key(tuples.row(id))), id, |handle| match Found::of(handle) {
            Found::Resident(id) => hash_key(def.key(tuples.row(id))),
            Found::Evicted(id) => hash_key(evicted.key(id)),
        });
        if let Some(chain) = &mut self.chain {
            chain.push_hot(&mut self.tuples, id);
        }
        self.account(meter);
    }

    /// Removes a resident tuple.
    pub fn remove(&mut self, id: TupleId) {
        self.detach(id);
        self.free_detached(id);
    }

    /// Takes a resident tuple out of index and chain; its slot keeps id, row and flags until the transaction ends, because changes that it
    /// made before refer to them.
    pub fn detach(&mut self, id: TupleId) {
        let removed = self.index.remove(hash_key(self.def.key(self.tuples.row(id))), id);
        debug_assert!(removed, "a live tuple has an index entry");
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
        self.index_and_link(id, meter);
    }

    /// Frees the slot of a detached tuple.
    pub fn free_detached(&mut self, id: TupleId) {
        self.tuples.free(id);
    }

    fn unlink_and_free(&mut self, id: TupleId) {
        if let Some(chain) = &mut self.chain {
            chain.remove(&mut self.tuples, id);
        }
        self.tuples.free(id);
    }

    /// Eviction's step for one tuple that was copied to `location`: an Evicted Table entry, the index pointed to it, the slot freed.
    pub fn evict(&mut self, id: TupleId, location: Location, meter: &mut MemoryMeter) {
        let key = self.def.key(self.tuples.row(id));
        let hash = hash_key(key);
        let evicted_id = self.evicted.insert(location, key);
        let replaced = self.index.replace(hash, id, evicted_id | EVICTED_BIT);
        debug_assert!(replaced, "a live tuple has an index entry");
        self.unlink_and_free(id);
        self.account(meter);
    }

    /// Un-eviction's step for one tuple: its row back into memory, the index pointed to it, its Evicted Table entry removed.
    ///
    /// # Errors
    /// [`NeedMemory`]; nothing is changed then.
    pub fn unevict(
        &mut self,
        evicted_id: EvictedId,
        row: &[u8],
        hot: bool,
        meter: &mut MemoryMeter,
    ) -> Result<TupleId, NeedMemory> {
        let id = self.allocate(meter)?;
        self.tuples.row_mut(id).copy_from_slice(row);
        let hash = hash_key(self.evicted.key(evicted_id));
        let replaced = self.index.replace(hash, evicted_id | EVICTED_BIT, id);
        debug_assert!(replaced, "an Evicted Table entry has an index entry");
        self.evicted.remove(evicted_id);
        if let Some(chain) = &mut self.chain {
            if hot {
                chain.push_hot(&mut self.tuples, id);
            } else {
                chain.push_cold(&mut self.tuples, id);
            }
        }
        Ok(id)
    }

    /// Gives the last chunk of tuple memory back, after moving its tuples to free slots of the others. `moved` is told the new ids of
    /// tuples with writes that are not known to be durable. False when fewer than `kept` free slots would be left, or a tuple is pinned.
    pub fn release_last_chunk(
        &mut self,
        kept: u64,
        meter: &mut MemoryMeter,
        mut moved: impl FnMut(TupleId, u8),
    ) -> bool {
        let live = self.tuples.live_in_last_chunk();
        let has_room =
            self.tuples.allocated_bytes() > 0 && self.tuples.free_before_last_chunk() >= live.len() as u64 + kept;
        if !has_room || live.iter().any(|&id| self.tuples.flags(id) & flag::PINNED != 0) {
            return false;
        }
        for old in live {
            let new = self.tuples.allocate().expect("free slots before the last chunk, counted above");
            let (flags, next, prev) = (self.tuples.flags(old), self.tuples.next(old), self.tuples.prev(old));
            let row = self.tuples.row(old).to_vec();
            self.tuples.row_mut(new).copy_from_slice(&row);
            self.tuples.set_flags(new, flags);
            self.tuples.set_links(new, next, prev);
            if let Some(chain) = &mut self.chain {
                chain.relocated(&mut self.tuples, old, new);
            }
            self.index.replace(hash_key(self.def.key(&row)), old, new);
            self.tuples.free(old);
            if flags & flag::UNSYNCED != 0 {
                moved(new, flags);
            }
        }
        self.tuples.release_last_chunk();
        self.account(meter);
        true
    }

    /// Whether the invariants at the top of this module hold; for tests and `--check`. Walks everything.
    ///
    /// # Errors
    /// What does not hold.
    pub fn check(&self) -> Result<(), String> {
        let (live, evicted, indexed) = (self.tuples.live(), self.evicted.live(), self.index.len());
        if indexed != live + evicted {
            return Err(format!("{indexed} index entries for {live} resident and {evicted} evicted tuples"));
        }
        let Some(chain) = &self.chain else {
            return Ok(());
        };
        let (mut count, mut at, mut last) = (0, chain.coldest().unwrap_or(NO_TUPLE), NO_TUPLE);
        while at != NO_TUPLE {
            if !self.tuples.is_live(at) || self.tuples.prev(at) != last {
                return Err(format!("the chain is broken at tuple {at}"));
            }
            let key = self.def.key(self.tuples.row(at));
            if self.find(hash_key(key), key) != Some(Found::Resident(at)) {
                return Err(format!("the index does not lead to tuple {at}"));
            }
            (last, at, count) = (at, self.tuples.next(at), count + 1);
        }
        if count != live || chain.len() != live {
            return Err(format!("the chain links {count} of {live} tuples"));
        }
        Ok(())
    }
}
