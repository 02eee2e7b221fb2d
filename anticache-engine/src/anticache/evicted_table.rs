//! The Evicted Table: where each evicted tuple is (block id, offset), and its key, which indexes need (paper §3.1).

use std::io;

use crate::storage::region::RegionVec;

/// Position of an entry.
pub type EvictedId = u32;

const NO_ENTRY: u32 = u32::MAX;

/// Where an evicted tuple is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Location {
    /// Block.
    pub block_id: u32,
    /// Offset of the tuple in the block, in bytes.
    pub offset: u32,
}

/// Evicted tuples of one table at one partition: 8 bytes of location and the key for each.
#[derive(Debug)]
pub struct EvictedTable {
    /// Block id in the upper half, offset in the lower; a free entry holds the number of the next free one.
    locations: RegionVec<u64>,
    keys: RegionVec<u8>,
    key_bytes: usize,
    free_head: u32,
    live: u64,
}

impl EvictedTable {
    /// An empty table with address space for `max_entries`.
    ///
    /// # Errors
    /// As [`crate::storage::region::Region::reserve`].
    pub fn new(key_bytes: usize, max_entries: usize) -> io::Result<Self> {
        Ok(Self {
            locations: RegionVec::with_reserved(max_entries)?,
            keys: RegionVec::with_reserved(max_entries * key_bytes)?,
            key_bytes,
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
        self.locations.allocated_bytes() + self.keys.allocated_bytes()
    }

    /// Adds an entry.
    pub fn insert(&mut self, location: Location, key: &[u8]) -> EvictedId {
        let id = if self.free_head == NO_ENTRY {
            self.locations.grow(1);
            self.keys.grow(self.key_bytes);
            (self.locations.len() - 1) as u32
        } else {
            let id = self.free_head;
            self.free_head = self.locations.as_slice()[id as usize] as u32;
            id
        };
        self.locations.as_mut_slice()[id as usize] = u64::from(location.block_id) << 32 | u64::from(location.offset);
        let start = id as usize * self.key_bytes;
        self.keys.as_mut_slice()[start..start + self.key_bytes].copy_from_slice(key);
        self.live += 1;
        id
    }

    /// Where the tuple is.
    #[inline]
    pub fn location(&self, id: EvictedId) -> Location {
        let packed = self.locations.as_slice()[id as usize];
        Location { block_id: (packed >> 32) as u32, offset: packed as u32 }
    }

    /// Its key.
    #[inline]
    pub fn key(&self, id: EvictedId) -> &[u8] {
        &self.keys.as_slice()[id as usize * self.key_bytes..][..self.key_bytes]
    }

    /// Removes an entry (its tuple is in memory again).
    pub fn remove(&mut self, id: EvictedId) {
        self.locations.as_mut_slice()[id as usize] = u64::from(self.free_head);
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
        let b = table.insert(location(u32::MAX), b"bbb".as_slice());
        assert_eq!((table.location(a), table.key(a)), (location(1), b"aaa".as_slice()));
        assert_eq!(table.location(b).block_id, u32::MAX);
        table.remove(a);
        assert_eq!((table.live(), table.insert(location(3), b"ccc")), (1, a));
        assert_eq!(table.key(a), b"ccc");
        assert_eq!(table.key(b), b"bbb");
    }
}
