//! The Block Table: block id → block, ids in memory, blocks on disk past the page cache (paper §3.1).
//!
//! A block's id is its place in the file: block `n` is at byte `n × block_bytes`. Ids of deleted blocks are used again, lowest first, so
//! the file does not grow while the number of blocks does not.
//!
//! A snapshot does not copy blocks, which never change: it refers to them (paper §3.6, delta snapshots). So the id of a block that the last durable
//! snapshot or the one under way refers to stays taken after the block was deleted, until neither does.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::block::BlockIdentity;
use crate::io::files::{DiskFile, Files};
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

/// What keeps the id of a block taken, besides the block itself.
mod hold {
    /// The last durable snapshot refers to it, or one of which nobody knows whether it is durable.
    pub const DURABLE: u8 = 1;
    /// The snapshot under way refers to it.
    pub const UNDER_WAY: u8 = 2;
    /// Deleted while it was being written: two writes to one place may land in either order.
    pub const WRITING: u8 = 4;
    /// The snapshot under way refers to it, and it is not in the file yet.
    pub const AWAITED: u8 = 8;
}

/// How many blocks a snapshot refers to that the one before did not, and the other way round.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Delta {
    /// Blocks that were made since.
    pub added: u64,
    /// Blocks that were deleted since.
    pub removed: u64,
}

/// The blocks of one partition.
#[derive(Debug)]
pub struct BlockTable {
    file: Arc<dyn DiskFile>,
    block_bytes: usize,
    blocks: Vec<Option<BlockState>>,
    free: BTreeSet<u32>,
    /// What keeps each id taken, see [`hold`].
    holds: Vec<u8>,
    /// Deleted blocks that the snapshot under way refers to.
    deleted: BTreeMap<u32, BlockState>,
    live: usize,
    awaited: usize,
    /// A block that the snapshot under way refers to will not be in the file.
    spoiled: Option<u32>,
}

impl BlockTable {
    /// Creates the file.
    ///
    /// # Errors
    /// As [`Files::create`].
    pub fn create(files: &dyn Files, path: &Path, block_bytes: usize) -> io::Result<Self> {
        Ok(Self::of_file(files.create(path)?, block_bytes))
    }

    /// Opens the file that a snapshot refers to; the first `high_water` ids are taken until [`BlockTable::end_restore`].
    ///
    /// # Errors
    /// As [`Files::open`].
    pub fn open(files: &dyn Files, path: &Path, block_bytes: usize, high_water: usize) -> io::Result<Self> {
        let mut table = Self::of_file(files.open(path)?, block_bytes);
        table.blocks.resize(high_water, None);
        table.holds.resize(high_water, 0);
        Ok(table)
    }

    fn of_file(file: Arc<dyn DiskFile>, block_bytes: usize) -> Self {
        Self {
            file,
            block_bytes,
            blocks: Vec::new(),
            free: BTreeSet::new(),
            holds: Vec::new(),
            deleted: BTreeMap::new(),
            live: 0,
            awaited: 0,
            spoiled: None,
        }
    }

    /// Enters a block of the snapshot that is being recovered; false when its id is not below the high water or was entered before.
    pub fn restore(&mut self, state: BlockState) -> bool {
        let id = state.identity.block_id as usize;
        if id >= self.blocks.len() || self.blocks[id].is_some() {
            return false;
        }
        self.blocks[id] = Some(state);
        self.holds[id] = hold::DURABLE;
        self.live += 1;
        true
    }

    /// Ends recovery: sets the holes of the first blocks, given how many tuples of each are still evicted, and deletes those without any. Ids below
    /// `evicted.len()` that no block has can be taken. False when a block has more evicted tuples than it holds.
    pub fn end_restore(&mut self, evicted: &[u32]) -> bool {
        for (id, &count) in evicted.iter().enumerate() {
            match &mut self.blocks[id] {
                Some(state) if count > state.tuples => return false,
                Some(state) => state.holes = state.tuples - count,
                None => self.release(id as u32),
            }
            if count == 0 && self.blocks[id].is_some() {
                self.remove(id as u32);
            }
        }
        true
    }

    /// The file, for reads and writes.
    pub fn file(&self) -> &Arc<dyn DiskFile> {
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
        self.live
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
            self.holds.resize(self.blocks.len(), 0);
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
        self.live += 1;
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

    /// A block, if it exists.
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
    /// ([`BlockTable::write_ended`]), and while a snapshot refers to it, later.
    pub fn remove(&mut self, block_id: u32) {
        let Some(state) = self.blocks[block_id as usize].take() else { return };
        self.live -= 1;
        let holds = &mut self.holds[block_id as usize];
        if matches!(state.place, Place::Writing { .. }) {
            *holds |= hold::WRITING;
        }
        if *holds & hold::UNDER_WAY != 0 {
            self.deleted.insert(block_id, state);
            if state.place == Place::Unwritten {
                self.spoiled = Some(block_id);
            }
        }
        self.release(block_id);
    }

    /// Lets an id be taken when no block has it and nothing holds it.
    fn release(&mut self, block_id: u32) {
        if self.blocks[block_id as usize].is_none() && self.holds[block_id as usize] == 0 {
            self.free.insert(block_id);
        }
    }

    /// The write of a block ended; false when the block was deleted meanwhile.
    pub fn write_ended(&mut self, block_id: u32, place: Place) -> bool {
        let holds = &mut self.holds[block_id as usize];
        *holds &= !hold::WRITING;
        if *holds & hold::AWAITED != 0 {
            if place == Place::Stored {
                *holds &= !hold::AWAITED;
                self.awaited -= 1;
            } else {
                self.spoiled = Some(block_id);
            }
        }
        match &mut self.blocks[block_id as usize] {
            Some(state) => {
                state.place = place;
                true
            }
            None => {
                self.release(block_id);
                false
            }
        }
    }

    /// A snapshot begins: it refers to every block that exists now.
    pub fn begin_snapshot(&mut self) {
        self.spoiled = None;
        for (state, holds) in self.blocks.iter().zip(&mut self.holds) {
            let Some(state) = state else { continue };
            *holds |= hold::UNDER_WAY;
            if state.place != Place::Stored {
                *holds |= hold::AWAITED;
                self.awaited += 1;
            }
        }
    }

    /// Hands out the blocks that the snapshot under way refers to, from an id on, until `put` takes no more. Returns the id to go on with; `None` at
    /// the end.
    pub fn snapshot_blocks(&self, from: u32, mut put: impl FnMut(&BlockState) -> bool) -> Option<u32> {
        let under_way = |id: &u32| self.holds[*id as usize] & hold::UNDER_WAY != 0;
        let mut ids = (from..self.holds.len() as u32).filter(under_way);
        ids.find(|id| {
            let state = self.blocks[*id as usize].as_ref().or_else(|| self.deleted.get(id));
            !state.is_some_and(&mut put)
        })
    }

    /// Blocks that the snapshot under way refers to and that are not in the file yet.
    pub fn snapshot_awaits(&self) -> usize {
        self.awaited
    }

    /// A block that the snapshot under way refers to and that could not be written.
    pub fn snapshot_spoiled(&self) -> Option<u32> {
        self.spoiled
    }

    /// The snapshot under way is the durable one now: what only the one before referred to is released.
    pub fn snapshot_durable(&mut self) -> Delta {
        let mut delta = Delta::default();
        for id in 0..self.holds.len() {
            let holds = self.holds[id];
            let (before, now) = (holds & hold::DURABLE != 0, holds & hold::UNDER_WAY != 0);
            delta.added += u64::from(now && !before);
            delta.removed += u64::from(before && !now);
            if before || now {
                self.holds[id] = holds & hold::WRITING | if now { hold::DURABLE } else { 0 };
                self.release(id as u32);
            }
        }
        self.forget_snapshot();
        delta
    }

    /// The snapshot under way was given up: nothing refers to what only it referred to. When it is not known whether it is `in_doubt`, durable or
    /// not, a crash may lead back to it or to the one before, so both keep their blocks.
    pub fn snapshot_abandoned(&mut self, in_doubt: bool) {
        for id in 0..self.holds.len() {
            if self.holds[id] & hold::UNDER_WAY != 0 {
                self.holds[id] &= !(hold::UNDER_WAY | hold::AWAITED);
                self.holds[id] |= if in_doubt { hold::DURABLE } else { 0 };
                self.release(id as u32);
            }
        }
        self.forget_snapshot();
    }

    fn forget_snapshot(&mut self) {
        self.awaited = 0;
        self.spoiled = None;
        self.deleted.clear();
    }

    /// Iterates over the blocks that exist.
    pub fn iter(&self) -> impl Iterator<Item = &BlockState> {
        self.blocks.iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::files::KernelFiles;

    fn state(block_id: u32) -> BlockState {
        let identity = BlockIdentity { partition: 0, block_id, table: 0, created_us: 1 };
        BlockState { identity, tuples: 1, holes: 0, used_bytes: 100, place: Place::Stored }
    }

    #[test]
    fn ids_are_reused_in_runs_and_the_file_stays_short() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let mut table = BlockTable::create(&KernelFiles::new(), &dir.path().join("blocks"), 4096).unwrap();
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
        assert_eq!((table.live(), table.high_water()), (2, 6), "ids taken for blocks to come are no blocks yet");
        assert_eq!(table.get(1).identity.block_id, 1);
    }

    #[test]
    fn an_id_is_not_reused_while_its_block_is_being_written() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let mut table = BlockTable::create(&KernelFiles::new(), &dir.path().join("blocks"), 4096).unwrap();
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
        let mut table = BlockTable::create(&KernelFiles::new(), &dir.path().join("blocks"), 4096).unwrap();
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
