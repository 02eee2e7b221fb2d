//! Tuple memory of one table at one partition.
//!
//! A tuple is addressed by a 4-byte id (its slot), as in the paper (§3.1, Fig. 4). Its header has the paper's fields and sizes, but lies in two
//! places: the flags before the row, the chain's ids in an array of their own, at the same position.
//!
//! ```text
//! slot   offset 0       1                  1 + row_bytes
//!               | flags | row (fixed part) | padding to 8 |
//! links  offset 0          4          8
//!               | next (4) | prev (4) |
//! ```
//!
//! An update of the chain writes the links of three tuples, two of which the transaction has no other business with. In the array, eight tuples
//! share a cache line and a hundred thousand a huge page; in the slots, each would cost a line and a page of its own.
//!
//! `next` and `prev` are the LRU chain's tuple ids; in a free slot `next` links the free list of its chunk. Slots come in chunks, which
//! are the unit in which memory is taken and given back, with their part of the array. New tuples go to the lowest chunk with a free slot, so
//! that the last chunks run empty and can be released.

use std::io;
use std::ops::Range;

use super::backing::Backer;
use super::region::{HUGE_PAGE_BYTES, LINE_BYTES, Region, backed_bytes, prefetch, prefetch_second_level};

/// Position of a tuple in its table's memory.
pub type TupleId = u32;

/// No tuple; ends chains and free lists.
pub const NO_TUPLE: TupleId = u32::MAX;

/// Most slots of a table at a partition: an index entry keeps the top bit of its handle for itself.
const MAX_SLOTS: usize = (1 << 31) - 1;
/// Bytes before a tuple's row: its flags.
const FLAGS_BYTES: usize = 1;
/// Bytes of a tuple's two 4-byte chain ids (paper, Fig. 4).
const LINKS_BYTES: usize = 8;

/// Most cache lines of some columns that are brought as near as can be: a field of 100 bytes has no more.
const NEAREST_LINES: usize = 3;
/// Most cache lines of some columns that are prefetched. Those behind the nearest come into the second level: the first has not the room for the rows of
/// all queued transactions.
const MOST_LINES: usize = 32;

/// Most bytes that are backed ahead of the slots in use.
const MOST_AHEAD_BYTES: usize = 64 << 20;

/// Tuple flags.
pub mod flag {
    /// The slot holds a tuple.
    pub const LIVE: u8 = 1;
    /// Written by a transaction of the command-log group with even number, not known to be durable.
    pub const UNSYNCED_EVEN: u8 = 2;
    /// The same for groups with odd number.
    pub const UNSYNCED_ODD: u8 = 4;
    /// Either of the two.
    pub const UNSYNCED: u8 = UNSYNCED_EVEN | UNSYNCED_ODD;
    /// A transaction that waits for blocks has found it in memory, or got it merged: it must not be evicted before that transaction ran.
    pub const PINNED: u8 = 8;
    /// The snapshot under way has saved it, or must not: it came after the snapshot's beginning. Only on slots that the snapshot has yet to pass.
    pub const SNAPSHOT_DONE: u8 = 16;
    /// The LRU chain has a mark at it, which tells its age. Only on linked tuples; the chain sets and takes it away.
    pub const MARKED: u8 = 32;
    /// It is on probation in the LRU chain. Set and taken away like [`MARKED`].
    pub const PROBATION: u8 = 64;
}

#[derive(Debug, Clone, Copy)]
struct Chunk {
    /// Slots used so far, counted from the chunk's first; those behind were never touched.
    touched: u32,
    /// First slot of the list of freed slots.
    free_head: TupleId,
    /// Slots that hold no tuple.
    free: u32,
}

/// The slots of one table.
#[derive(Debug)]
pub struct TupleMemory {
    slots: Region,
    links: Region,
    row_bytes: usize,
    stride_bytes: usize,
    slots_per_chunk: u32,
    /// Slots that the reserved address space has room for.
    max_slots: u32,
    chunks: Vec<Chunk>,
    /// Slots of all chunks: the bound of every access.
    slot_count: u32,
    /// No chunk before this one has a free slot.
    first_candidate: usize,
    live: u64,
    /// Bytes of `slots` that [`TupleMemory::back_ahead`] has asked for, from the beginning.
    backed_ahead_bytes: usize,
}

impl TupleMemory {
    /// Empty memory for rows of `row_bytes`, in chunks of about `chunk_bytes`, of at most `limit_bytes` altogether.
    ///
    /// # Errors
    /// As [`Region::reserve`].
    pub fn new(row_bytes: usize, chunk_bytes: usize, limit_bytes: usize) -> io::Result<Self> {
        let stride_bytes = (FLAGS_BYTES + row_bytes).next_multiple_of(8);
        let slots_per_chunk = (chunk_bytes / (stride_bytes + LINKS_BYTES)).max(1);
        let max_slots = (limit_bytes / (stride_bytes + LINKS_BYTES)).clamp(2 * slots_per_chunk, MAX_SLOTS);
        Ok(Self {
            slots: Region::reserve(max_slots * stride_bytes)?,
            links: Region::reserve(max_slots * LINKS_BYTES)?,
            row_bytes,
            stride_bytes,
            slots_per_chunk: u32::try_from(slots_per_chunk).map_err(io::Error::other)?,
            max_slots: max_slots as u32,
            chunks: Vec::new(),
            slot_count: 0,
            first_candidate: 0,
            live: 0,
            backed_ahead_bytes: 0,
        })
    }

    /// Bytes that another chunk would add to [`TupleMemory::allocated_bytes`].
    pub fn next_chunk_bytes(&self) -> usize {
        self.bytes_of(self.slot_count as usize + self.slots_per_chunk as usize) - self.allocated_bytes()
    }

    fn bytes_of(&self, slots: usize) -> usize {
        backed_bytes(slots * self.stride_bytes) + backed_bytes(slots * LINKS_BYTES)
    }

    /// Bytes that one tuple occupies, header and padding included.
    pub fn tuple_bytes(&self) -> usize {
        self.stride_bytes + LINKS_BYTES
    }

    /// Bytes of all chunks held.
    pub fn allocated_bytes(&self) -> usize {
        self.bytes_of(self.slot_count as usize)
    }

    /// Tuples held.
    pub fn live(&self) -> u64 {
        self.live
    }

    /// Slots of the chunks held that carry no tuple.
    pub fn free_slots(&self) -> u64 {
        self.chunks.len() as u64 * u64::from(self.slots_per_chunk) - self.live
    }

    /// Slots in a chunk.
    pub fn slots_per_chunk(&self) -> u32 {
        self.slots_per_chunk
    }

    /// Takes one more chunk; false when the table's address space is used up.
    pub fn add_chunk(&mut self) -> bool {
        if self.max_slots - self.slot_count < self.slots_per_chunk {
            return false;
        }
        self.slot_count += self.slots_per_chunk;
        self.tell_used();
        self.chunks.push(Chunk { touched: 0, free_head: NO_TUPLE, free: self.slots_per_chunk });
        true
    }

    fn tell_used(&mut self) {
        self.slots.set_used(self.slot_count as usize * self.stride_bytes);
        self.links.set_used(self.slot_count as usize * LINKS_BYTES);
    }

    /// Has the memory of the next slots backed while those before are filled: half as much as there is, but not more than `free_bytes`. It counts when
    /// it is used, and [`TupleMemory::release_ahead`] gives back what never was.
    pub fn back_ahead(&mut self, backer: &mut Backer, free_bytes: u64) {
        let used_bytes = self.slot_count as usize * self.stride_bytes;
        let ahead_bytes = (used_bytes / 2).min(MOST_AHEAD_BYTES).min(free_bytes as usize);
        let end = (used_bytes + ahead_bytes).min(self.slots.reserved_bytes()) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        let start = self.backed_ahead_bytes.max(used_bytes.next_multiple_of(HUGE_PAGE_BYTES));
        if end > start {
            backer.back(&self.slots, start, end - start);
            self.backed_ahead_bytes = end;
        }
    }

    /// Gives back what was backed and is not used, when nothing backs any more.
    pub fn release_ahead(&mut self) {
        let used_bytes = backed_bytes(self.slot_count as usize * self.stride_bytes);
        let ahead_bytes = std::mem::take(&mut self.backed_ahead_bytes).saturating_sub(used_bytes);
        if ahead_bytes > 0 {
            self.slots.release(used_bytes, ahead_bytes);
        }
    }

    /// The ids of the last chunk's slots that hold tuples, for a caller that wants to move them away.
    pub fn live_in_last_chunk(&self) -> Vec<TupleId> {
        let Some(index) = self.chunks.len().checked_sub(1) else {
            return Vec::new();
        };
        let first = index as u32 * self.slots_per_chunk;
        (first..first + self.chunks[index].touched).filter(|&id| self.is_live(id)).collect()
    }

    /// The fewest chunks at the end whose release makes [`TupleMemory::allocated_bytes`] less (it grows in steps of their own); 0 when there is
    /// no chunk.
    pub fn chunks_to_gain(&self) -> usize {
        let held_bytes = self.allocated_bytes();
        let slots_after = |chunks: usize| self.slot_count as usize - chunks * self.slots_per_chunk as usize;
        (1..=self.chunks.len()).find(|&chunks| self.bytes_of(slots_after(chunks)) < held_bytes).unwrap_or(0)
    }

    /// The ids of the slots of the last `chunks` that were ever used.
    pub fn ids_of_last(&self, chunks: usize) -> Range<TupleId> {
        let first = self.chunks.len() - chunks;
        let touched = self.chunks.last().map_or(0, |chunk| chunk.touched);
        first as u32 * self.slots_per_chunk..(self.slot_count + touched).saturating_sub(self.slots_per_chunk)
    }

    /// Gives the last chunk back to the kernel.
    ///
    /// # Panics
    /// If it still holds a tuple.
    pub fn release_last_chunk(&mut self) {
        let chunk = self.chunks.pop().expect("a chunk to release");
        assert_eq!(chunk.free, self.slots_per_chunk, "released a chunk that holds tuples");
        let end = self.slot_count as usize;
        self.slot_count -= self.slots_per_chunk;
        for (region, bytes) in [(&mut self.slots, self.stride_bytes), (&mut self.links, LINKS_BYTES)] {
            // The page in which the chunk before ends stays.
            let start = (self.slot_count as usize * bytes).next_multiple_of(4096);
            let end = (end * bytes).next_multiple_of(4096).min(region.reserved_bytes());
            region.release(start, end.saturating_sub(start));
        }
        self.tell_used();
        self.first_candidate = self.first_candidate.min(self.chunks.len());
    }

    /// A slot for a new tuple, from the lowest chunk that has one; its header is zero but for [`flag::LIVE`], its row is undefined.
    /// `None` when no chunk has a free slot.
    #[inline]
    pub fn allocate(&mut self) -> Option<TupleId> {
        while self.chunks.get(self.first_candidate)?.free == 0 {
            self.first_candidate += 1;
        }
        let mut chunk = self.chunks[self.first_candidate];
        chunk.free -= 1;
        let id = if chunk.free_head == NO_TUPLE {
            chunk.touched += 1;
            self.first_candidate as u32 * self.slots_per_chunk + chunk.touched - 1
        } else {
            let id = chunk.free_head;
            chunk.free_head = self.next(id);
            id
        };
        self.chunks[self.first_candidate] = chunk;
        self.live += 1;
        self.set_flags(id, flag::LIVE);
        self.set_links(id, NO_TUPLE, NO_TUPLE);
        Some(id)
    }

    /// Frees a slot.
    #[inline]
    pub fn free(&mut self, id: TupleId) {
        let index = (id / self.slots_per_chunk) as usize;
        let head = self.chunks[index].free_head;
        self.set_flags(id, 0);
        self.set_links(id, head, NO_TUPLE);
        let chunk = &mut self.chunks[index];
        chunk.free_head = id;
        chunk.free += 1;
        self.first_candidate = self.first_candidate.min(index);
        self.live -= 1;
    }

    /// Ids of all slots of the chunks held.
    pub fn ids(&self) -> Range<TupleId> {
        0..self.slot_count
    }

    /// Whether `id` is a slot of the chunks held and carries a tuple.
    #[inline]
    pub fn is_live(&self, id: TupleId) -> bool {
        id < self.slot_count && self.flags(id) & flag::LIVE != 0
    }

    /// Address of a slot.
    ///
    /// The assertion is the bound that every access below relies on: a slot of a chunk held lies wholly in the region.
    #[inline(always)]
    fn address(&self, id: TupleId) -> *mut u8 {
        assert!(id < self.slot_count, "tuple id {id} is outside its table");
        // SAFETY: id < slot_count <= max_slots, and max_slots * stride bytes are reserved.
        unsafe { self.slots.base().add(id as usize * self.stride_bytes) }
    }

    /// Flags of a tuple, see [`flag`].
    #[inline]
    pub fn flags(&self, id: TupleId) -> u8 {
        // SAFETY: `address` points at a slot, which begins with the flags.
        unsafe { *self.address(id) }
    }

    /// Sets a tuple's flags. Callers that change one of them write it out: a method for that took 27 instructions more of each transaction with LRU
    /// (`make counts`).
    #[inline]
    pub fn set_flags(&mut self, id: TupleId, flags: u8) {
        // SAFETY: as in `flags`; `&mut self` makes it the only access.
        unsafe { *self.address(id) = flags }
    }

    /// `[next, prev]` of all slots of the chunks held.
    #[inline(always)]
    fn links(&self) -> &[[TupleId; 2]] {
        // SAFETY: slot_count <= max_slots, and max_slots * LINKS_BYTES are reserved, zero or written as ids; the region is page-aligned.
        unsafe { std::slice::from_raw_parts(self.links.base().cast(), self.slot_count as usize) }
    }

    #[inline(always)]
    fn links_mut(&mut self) -> &mut [[TupleId; 2]] {
        // SAFETY: as in `links`; `&mut self` makes it the only access.
        unsafe { std::slice::from_raw_parts_mut(self.links.base().cast(), self.slot_count as usize) }
    }

    /// The chain's next id (towards the hot end), or the next free slot.
    #[inline]
    pub fn next(&self, id: TupleId) -> TupleId {
        self.links()[id as usize][0]
    }

    /// The chain's previous id (towards the cold end).
    #[inline]
    pub fn prev(&self, id: TupleId) -> TupleId {
        self.links()[id as usize][1]
    }

    /// Sets `next`.
    #[inline]
    pub fn set_next(&mut self, id: TupleId, next: TupleId) {
        self.links_mut()[id as usize][0] = next;
    }

    /// Sets `prev`.
    #[inline]
    pub fn set_prev(&mut self, id: TupleId, prev: TupleId) {
        self.links_mut()[id as usize][1] = prev;
    }

    /// Moves a tuple behind the last one of its chain, which is another. Returns the links that it had: its neighbours, who are linked now.
    #[inline]
    pub fn move_behind(&mut self, id: TupleId, last: TupleId) -> [TupleId; 2] {
        let links = self.links_mut();
        let [next, prev] = std::mem::replace(&mut links[id as usize], [NO_TUPLE, last]);
        links[next as usize][1] = prev;
        if prev != NO_TUPLE {
            links[prev as usize][0] = next;
        }
        links[last as usize][0] = id;
        [next, prev]
    }

    /// Sets both links.
    #[inline]
    pub fn set_links(&mut self, id: TupleId, next: TupleId, prev: TupleId) {
        self.links_mut()[id as usize] = [next, prev];
    }

    /// The row (fixed part) of a tuple.
    #[inline]
    pub fn row(&self, id: TupleId) -> &[u8] {
        // SAFETY: flags and row lie in the slot.
        unsafe { std::slice::from_raw_parts(self.address(id).add(FLAGS_BYTES), self.row_bytes) }
    }

    /// The row of a tuple, to write.
    #[inline]
    pub fn row_mut(&mut self, id: TupleId) -> &mut [u8] {
        // SAFETY: as in `row`; `&mut self` makes it the only access.
        unsafe { std::slice::from_raw_parts_mut(self.address(id).add(FLAGS_BYTES), self.row_bytes) }
    }

    /// Gives a tuple the row of another.
    #[inline]
    pub fn copy_row(&mut self, from: TupleId, to: TupleId) {
        let (source, target) = (self.address(from), self.address(to));
        // SAFETY: as in `row_mut`; where the two are one slot, copying it onto itself changes nothing.
        unsafe { std::ptr::copy(source.add(FLAGS_BYTES), target.add(FLAGS_BYTES), self.row_bytes) }
    }

    /// Brings the beginning of a tuple near: its flags and, most probably, its key.
    #[inline]
    pub fn prefetch(&self, id: TupleId) {
        prefetch(self.slots.base().wrapping_add(id as usize * self.stride_bytes));
    }

    /// Brings the cache lines near in which some columns of a tuple lie, or the first of them. Without the line that [`TupleMemory::prefetch`] brings.
    ///
    /// All of them, though the processor's own prefetcher would follow a copy: it does so only once the copy has begun.
    #[inline]
    pub fn prefetch_columns(&self, id: TupleId, columns: &Range<usize>) {
        let slot = self.slots.base().wrapping_add(id as usize * self.stride_bytes);
        let row = slot.addr() + FLAGS_BYTES;
        let second_line = (slot.addr() / LINE_BYTES + 1) * LINE_BYTES;
        let (first, end) = ((row + columns.start).max(second_line), row + columns.end.min(self.row_bytes));
        let lines = (first / LINE_BYTES * LINE_BYTES..end).step_by(LINE_BYTES).take(MOST_LINES);
        for (number, line) in lines.enumerate() {
            let address = slot.with_addr(line);
            if number < NEAREST_LINES { prefetch(address) } else { prefetch_second_level(address) }
        }
    }

    /// Brings a tuple's links near.
    #[inline]
    pub fn prefetch_links(&self, id: TupleId) {
        prefetch(self.links.base().wrapping_add(id as usize * LINKS_BYTES));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_reused_lowest_chunk_first_and_chunks_are_given_back() {
        let mut memory = TupleMemory::new(23, 4096, 1 << 20).unwrap();
        assert_eq!(memory.tuple_bytes(), 32);
        assert_eq!(memory.slots_per_chunk(), 128);
        assert!(memory.allocate().is_none());
        assert!(memory.add_chunk() && memory.add_chunk());
        let ids: Vec<_> = (0..256).map(|_| memory.allocate().unwrap()).collect();
        assert_eq!(ids, (0..256).collect::<Vec<_>>());
        assert!(memory.allocate().is_none());
        for &id in &ids[..3] {
            memory.free(id);
        }
        memory.free(200);
        assert_eq!(memory.allocate(), Some(2));
        assert_eq!((memory.chunks_to_gain(), memory.ids_of_last(1)), (1, 128..256));
        for id in memory.live_in_last_chunk() {
            memory.free(id);
        }
        memory.release_last_chunk();
        assert_eq!(memory.slot_count, 128);
        assert_eq!(memory.free_slots(), 2);
        assert!(!memory.is_live(200));
    }

    #[test]
    fn what_was_backed_ahead_and_not_used_is_given_back() {
        let mut memory = TupleMemory::new(1000, 1 << 20, 256 << 20).unwrap();
        let mut backer = Backer::default();
        for _ in 0..40 {
            memory.add_chunk();
            memory.back_ahead(&mut backer, u64::MAX);
        }
        drop(backer);
        let used_bytes = backed_bytes(memory.slot_count as usize * memory.stride_bytes);
        let ahead_bytes = memory.slots.resident_bytes();
        assert!(ahead_bytes > used_bytes + used_bytes / 4, "{ahead_bytes} of {used_bytes}");
        memory.release_ahead();
        assert!(memory.slots.resident_bytes() <= used_bytes);
        let mut backer = Backer::default();
        memory.add_chunk();
        memory.back_ahead(&mut backer, 0);
        drop(backer);
        assert!(memory.slots.resident_bytes() <= used_bytes, "there is no more memory to take");
    }

    #[test]
    fn header_and_row_do_not_overlap() {
        let mut memory = TupleMemory::new(16, 4096, 1 << 20).unwrap();
        memory.add_chunk();
        let id = memory.allocate().unwrap();
        memory.row_mut(id).fill(0xAB);
        memory.set_links(id, 0x0102_0304, 0x0506_0708);
        assert_eq!(memory.flags(id), flag::LIVE);
        assert_eq!((memory.next(id), memory.prev(id)), (0x0102_0304, 0x0506_0708));
        assert!(memory.row(id).iter().all(|&b| b == 0xAB));
    }

    #[test]
    #[should_panic(expected = "outside its table")]
    fn an_id_beyond_the_chunks_is_refused() {
        let memory = TupleMemory::new(16, 4096, 1 << 20).unwrap();
        let _ = memory.row(5);
    }

    #[test]
    fn releasing_a_chunk_leaves_the_others_alone_for_any_row_size() {
        for row_bytes in (1..2000).step_by(7) {
            let mut memory = TupleMemory::new(row_bytes, 10_000, 1 << 20).unwrap();
            memory.add_chunk();
            memory.add_chunk();
            let ids: Vec<_> = std::iter::from_fn(|| memory.allocate()).collect();
            ids.iter().for_each(|&id| memory.row_mut(id).fill(1));
            memory.live_in_last_chunk().into_iter().for_each(|id| memory.free(id));
            memory.release_last_chunk();
            for &id in &ids[..ids.len() / 2] {
                assert!(memory.is_live(id) && memory.row(id).iter().all(|&b| b == 1), "row of {row_bytes} bytes");
            }
            memory.add_chunk();
            assert_eq!(std::iter::from_fn(|| memory.allocate()).count(), ids.len() / 2);
        }
    }
}
