//! The Block Table: block id → block, ids in memory, blocks on disk past the page cache (paper §3.1).
//!
//! A block's id is its place in the file: block `n` is at byte `n × block_bytes`. Ids of deleted blocks are used again, lowest first, so
//! the file does not grow while the number of blocks does not.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::block::BlockIdentity;
use crate::io::open_direct;
use crate::io::ring::OperationId;

/// Where a block's bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Still being written: read it from buffer `index` of write operation `operation`.
    Writing {
        /// The write.
        operation: OperationId,
        /// Which of its buffers.
        index: usize,
    },
    /// In the file.
    Stored,
    /// Not on disk: about to be written, or its write failed and the partition keeps the buffer.
    Unwritten,
}

/// What is known of a block without reading it.
#[derive(Debug, Clone, Copy)]
pub struct BlockState {
    /// Identity that the header must show.
    pub identity: BlockIdentity,
    /// Tuples put into it.
    pub tuples: u32,
    /// Tuples merged back since (stale entries).
    pub holes: u32,
    /// Bytes that header and tuples take, holes included.
    pub used_bytes: u32,
    /// Where it is.
    pub place: Place,
}

impl BlockState {
    /// Tuples that are still here and nowhere else.
    pub fn live(&self) -> u32 {
        self.tuples - self.holes
    }

    /// Bytes that they take, supposing that they are as long as the others.
    pub fn live_bytes(&self) -> u64 {
        let tuples_bytes = u64::from(self.used_bytes).saturating_sub(super::block::BLOCK_HEADER_BYTES as u64);
        (tuples_bytes * u64::from(self.live())).div_ceil(u64::from(self.tuples).max(1))
    }
}

/// The blocks of one partition.
#[derive(Debug)]
pub struct BlockTable {
    file: Arc<File>,
    block_bytes: usize,
    blocks: Vec<Option<BlockState>>,
    free: BTreeSet<u32>,
}

impl BlockTable {
    /// Creates the file.
    ///
    /// # Errors
    /// As [`open_direct`].
    pub fn create(path: &Path, block_bytes: usize) -> io::Result<Self> {
        Ok(Self { file: Arc::new(open_direct(path)?), block_bytes, blocks: Vec::new(), free: BTreeSet::new() })
    }

    /// The file, for reads and writes.
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Byte offset of a block in the file.
    pub fn file_offset(&self, block_id: u32) -> u64 {
        u64::from(block_id) * self.block_bytes as u64
    }

    /// Blocks that exist.
    pub fn live(&self) -> usize {
        self.blocks.len() - self.free.len()
    }

    /// Length that the file has reached, in blocks.
    pub fn high_water(&self) -> usize {
        self.blocks.len()
    }

    /// Takes `count` ids for new blocks, in ascending order; neighbouring ones where it can, so that they go out in one sequential write.
    pub fn take_ids(&mut self, count: usize) -> Vec<u32> {
        let ids = self.free_run(count).unwrap_or_else(|| {
            // Free ids without a run long enough: use them up only when they pile up, otherwise append a run at the end.
            let scattered: Vec<u32> =
                if self.free.len() >= 4 * count { self.free.iter().copied().take(count).collect() } else { Vec::new() };
            if scattered.len() == count {
                return scattered;
            }
            let first = self.blocks.len() as u32;
            self.blocks.resize(self.blocks.len() + count, None);
            let appended: Vec<u32> = (first..first + count as u32).collect();
            self.free.extend(&appended);
            appended
        });
        for id in &ids {
            self.free.remove(id);
        }
        ids
    }

    fn free_run(&self, count: usize) -> Option<Vec<u32>> {
        let mut run: Vec<u32> = Vec::with_capacity(count);
        for &id in &self.free {
            if run.last().is_some_and(|&last| last + 1 != id) {
                run.clear();
            }
            run.push(id);
            if run.len() == count {
                return Some(run);
            }
        }
        None
    }

    /// Enters a block under an id from [`BlockTable::take_ids`].
    pub fn insert(&mut self, block_id: u32, state: BlockState) {
        self.blocks[block_id as usize] = Some(state);
    }

    /// Gives an id back that was taken and not used.
    pub fn give_back(&mut self, block_id: u32) {
        self.free.insert(block_id);
    }

    /// A block.
    ///
    /// # Panics
    /// If it does not exist: the Evicted Table refers only to blocks that do.
    pub fn get(&self, block_id: u32) -> &BlockState {
        self.blocks[block_id as usize].as_ref().expect("a block that the Evicted Table refers to")
    }

    /// A block, if there is one of this id.
    pub fn find(&self, block_id: u32) -> Option<&BlockState> {
        self.blocks.get(block_id as usize)?.as_ref()
    }

    /// A block, to change its state.
    ///
    /// # Panics
    /// As [`BlockTable::get`].
    pub fn get_mut(&mut self, block_id: u32) -> &mut BlockState {
        self.blocks[block_id as usize].as_mut().expect("a block that the Evicted Table refers to")
    }

    /// Deletes a block; its id can be used again, at once or, while it is still being written, when the write ended
    /// ([`BlockTable::write_ended`]): two writes to one place may land in either order.
    pub fn remove(&mut self, block_id: u32) {
        let state = self.blocks[block_id as usize].take();
        if !state.is_some_and(|state| matches!(state.place, Place::Writing { .. })) {
            self.free.insert(block_id);
        }
    }

    /// The write of a block ended; false when the block was deleted meanwhile.
    pub fn write_ended(&mut self, block_id: u32, place: Place) -> bool {
        match &mut self.blocks[block_id as usize] {
            Some(state) => {
                state.place = place;
                true
            }
            None => {
                self.free.insert(block_id);
                false
            }
        }
    }

    /// Iterates over the blocks that exist.
    pub fn iter(&self) -> impl Iterator<Item = &BlockState> {
        self.blocks.iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(block_id: u32) -> BlockState {
        let identity = BlockIdentity { partition: 0, block_id, table: 0, created_us: 1 };
        BlockState { identity, tuples: 1, holes: 0, used_bytes: 100, place: Place::Stored }
    }

    #[test]
    fn ids_are_reused_in_runs_and_the_file_stays_short() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let mut table = BlockTable::create(&dir.path().join("blocks"), 4096).unwrap();
        assert_eq!(table.take_ids(4), [0, 1, 2, 3]);
        for id in 0..4 {
            table.insert(id, state(id));
        }
        table.remove(1);
        table.remove(2);
        assert_eq!(table.take_ids(2), [1, 2]);
        table.insert(1, state(1));
        table.insert(2, state(2));
        table.remove(0);
        table.remove(2);
        assert_eq!(table.take_ids(2), [4, 5], "no run of two among 0 and 2");
        assert_eq!((table.live(), table.high_water()), (4, 6));
        assert_eq!(table.get(1).identity.block_id, 1);
    }

    #[test]
    fn an_id_is_not_reused_while_its_block_is_being_written() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let mut table = BlockTable::create(&dir.path().join("blocks"), 4096).unwrap();
        let id = table.take_ids(1)[0];
        table.insert(id, BlockState { place: Place::Writing { operation: 0, index: 0 }, ..state(id) });
        table.remove(id);
        assert_eq!(table.take_ids(1), [1]);
        table.write_ended(id, Place::Stored);
        assert_eq!(table.take_ids(1), [id]);
    }

    #[test]
    fn scattered_ids_are_used_when_they_pile_up() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let mut table = BlockTable::create(&dir.path().join("blocks"), 4096).unwrap();
        for id in table.take_ids(20) {
            table.insert(id, state(id));
        }
        for id in (0..20).step_by(2) {
            table.remove(id);
        }
        assert_eq!(table.take_ids(2), [0, 2]);
        assert_eq!(table.high_water(), 20);
    }
}
