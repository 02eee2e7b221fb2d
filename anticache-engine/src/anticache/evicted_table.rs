//! The Evicted Table: where each evicted tuple is (block id, offset), and its indexed columns, which the indexes need (paper §3.1).

use std::io;

use crate::storage::region::{RegionVec, prefetch};

/// Position of an entry.
pub type EvictedId = u32;

const NO_ENTRY: u32 = u32::MAX;
/// In place of the block id of an entry that is free.
const FREE: u32 = u32::MAX;
/// Set in an entry that the snapshot under way has saved, or must not save: it came after the snapshot's beginning. Offsets are far below.
const SNAPSHOT_DONE: u64 = 1 << 31;

/// Where an evicted tuple is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Location {
    /// Block.
    pub block_id: u32,
    /// Offset of the tuple in the block, in bytes.
    pub offset: u32,
}

/// Evicted tuples of one table at one partition: 8 bytes of location and the indexed columns (`TableDef::image_bytes`) for each.
#[derive(Debug)]
pub struct EvictedTable {
    /// Block id in the upper half, offset and [`SNAPSHOT_DONE`] in the lower; a free entry holds [`FREE`] and the number of the next free one.
    locations: RegionVec<u64>,
    images: RegionVec<u8>,
    image_bytes: usize,
    max_entries: usize,
    free_head: u32,
    live: u64,
}

fn pack(location: Location) -> u64 {
    u64::from(location.block_id) << 32 | u64::from(location.offset)
}

impl EvictedTable {
    /// An empty table with address space for `max_entries`.
    ///
    /// # Errors
    /// As [`crate::storage::region::Region::reserve`].
    pub fn new(image_bytes: usize, max_entries: usize) -> io::Result<Self> {
        Ok(Self {
            locations: RegionVec::with_reserved(max_entries)?,
            images: RegionVec::with_reserved(max_entries * image_bytes)?,
            image_bytes,
            max_entries,
            free_head: NO_ENTRY,
            live: 0,
        })
    }

    /// Evicted tuples.
    pub fn live(&self) -> u64 {
        self.live
    }

    /// Bytes held.
    pub fn allocated_bytes(&self) -> usize {
        self.locations.allocated_bytes() + self.images.allocated_bytes()
    }

    /// Adds an entry.
    pub fn insert(&mut self, location: Location, image: &[u8]) -> EvictedId {
        let id = if self.free_head == NO_ENTRY {
            self.locations.grow(1);
            self.images.grow(self.image_bytes);
            (self.locations.len() - 1) as u32
        } else {
            let id = self.free_head;
            self.free_head = self.locations.as_slice()[id as usize] as u32;
            id
        };
        self.locations.as_mut_slice()[id as usize] = pack(location);
        let start = id as usize * self.image_bytes;
        self.images.as_mut_slice()[start..start + self.image_bytes].copy_from_slice(image);
        self.live += 1;
        id
    }

    /// Whether there is an entry of this number.
    #[inline]
    pub fn is_live(&self, id: EvictedId) -> bool {
        self.locations.as_slice().get(id as usize).is_some_and(|packed| (packed >> 32) as u32 != FREE)
    }

    /// Numbers ever given out.
    pub fn len(&self) -> usize {
        self.locations.len()
    }

    /// Whether no entry was ever made.
    pub fn is_empty(&self) -> bool {
        self.locations.is_empty()
    }

    /// Where the tuple is.
    #[inline]
    pub fn location(&self, id: EvictedId) -> Location {
        let packed = self.locations.as_slice()[id as usize];
        Location { block_id: (packed >> 32) as u32, offset: (packed & !SNAPSHOT_DONE) as u32 }
    }

    /// Points an entry to where compaction has put its tuple.
    pub fn relocate(&mut self, id: EvictedId, location: Location) {
        let packed = &mut self.locations.as_mut_slice()[id as usize];
        *packed = pack(location) | (*packed & SNAPSHOT_DONE);
    }

    /// Whether the snapshot under way has nothing more to do with an entry.
    pub fn is_snapshot_done(&self, id: EvictedId) -> bool {
        self.locations.as_slice()[id as usize] & SNAPSHOT_DONE != 0
    }

    /// Marks an entry as one that the snapshot under way has nothing more to do with, or removes the mark.
    pub fn set_snapshot_done(&mut self, id: EvictedId, done: bool) {
        let packed = &mut self.locations.as_mut_slice()[id as usize];
        *packed = if done { *packed | SNAPSHOT_DONE } else { *packed & !SNAPSHOT_DONE };
    }

    /// Recovery's first step: reserves the numbers below `len`, which the entries to come will have. False when there cannot be as many.
    pub fn begin_restore(&mut self, len: usize) -> bool {
        if len > self.max_entries {
            return false;
        }
        self.locations.grow(len);
        self.images.grow(len * self.image_bytes);
        self.locations.as_mut_slice().fill(pack(Location { block_id: FREE, offset: NO_ENTRY }));
        true
    }

    /// Enters an entry under the number that it had; false when there is none of that number to enter, or the image has another length.
    pub fn restore(&mut self, id: EvictedId, location: Location, image: &[u8]) -> bool {
        if id as usize >= self.len() || self.is_live(id) || image.len() != self.image_bytes {
            return false;
        }
        self.locations.as_mut_slice()[id as usize] = pack(location);
        let start = id as usize * self.image_bytes;
        self.images.as_mut_slice()[start..start + self.image_bytes].copy_from_slice(image);
        self.live += 1;
        true
    }

    /// Recovery's last step: the numbers that no entry has can be given out.
    pub fn end_restore(&mut self) {
        self.free_head = NO_ENTRY;
        for id in (0..self.len() as EvictedId).rev() {
            if !self.is_live(id) {
                self.locations.as_mut_slice()[id as usize] = pack(Location { block_id: FREE, offset: self.free_head });
                self.free_head = id;
            }
        }
    }

    /// Its indexed columns.
    #[inline]
    pub fn image(&self, id: EvictedId) -> &[u8] {
        &self.images.as_slice()[id as usize * self.image_bytes..][..self.image_bytes]
    }

    /// Brings an entry near.
    #[inline]
    pub fn prefetch(&self, id: EvictedId) {
        prefetch(self.locations.as_slice().as_ptr().wrapping_add(id as usize).cast());
        prefetch(self.images.as_slice().as_ptr().wrapping_add(id as usize * self.image_bytes));
    }

    /// Removes an entry (its tuple is in memory again).
    pub fn remove(&mut self, id: EvictedId) {
        self.locations.as_mut_slice()[id as usize] = pack(Location { block_id: FREE, offset: self.free_head });
        self.free_head = id;
        self.live -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_and_reused() {
        let mut table = EvictedTable::new(3, 100).unwrap();
        let location = |n: u32| Location { block_id: n, offset: n.wrapping_mul(10) };
        let a = table.insert(location(1), b"aaa");
        let b = table.insert(location(u32::MAX - 1), b"bbb".as_slice());
        assert_eq!((table.location(a), table.image(a)), (location(1), b"aaa".as_slice()));
        assert_eq!(table.location(b).block_id, u32::MAX - 1);
        assert!(table.is_live(a) && table.is_live(b) && !table.is_live(2));
        table.remove(a);
        assert!(!table.is_live(a));
        assert_eq!((table.live(), table.insert(location(3), b"ccc")), (1, a));
        assert_eq!(table.image(a), b"ccc");
        assert_eq!(table.image(b), b"bbb");
        table.set_snapshot_done(b, true);
        table.relocate(b, location(7));
        assert_eq!((table.location(b), table.is_snapshot_done(b)), (location(7), true));
        table.set_snapshot_done(b, false);
        assert_eq!((table.location(b), table.is_snapshot_done(b)), (location(7), false));
    }

    #[test]
    fn entries_come_back_under_their_numbers() {
        let mut table = EvictedTable::new(3, 100).unwrap();
        let location = |n: u32| Location { block_id: n, offset: 64 };
        assert!(!table.begin_restore(101) && table.begin_restore(6));
        // Evictions during recovery do not take the numbers of entries that have yet to come.
        assert_eq!(table.insert(location(9), b"new"), 6);
        assert!(table.restore(4, location(4), b"ddd") && table.restore(1, location(1), b"aaa"));
        assert!(
            !table.restore(4, location(4), b"ddd")
                && !table.restore(7, location(4), b"ddd")
                && !table.restore(0, location(4), b"d")
        );
        table.end_restore();
        assert_eq!((0..8).filter(|&id| table.is_live(id)).collect::<Vec<_>>(), [1, 4, 6]);
        assert_eq!((table.image(4), table.location(1), table.live()), (b"ddd".as_slice(), location(1), 3));
        assert_eq!((0..5).map(|_| table.insert(location(2), b"xxx")).collect::<Vec<_>>(), [0, 2, 3, 5, 7]);
    }
}
