//! Anti-caching (paper §3): what is cold goes to disk in blocks, and comes back when a transaction asks for it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::catalog::TableId;
use crate::config::{Config, Merge};
use crate::error::StartError;
use crate::io::files::Files;
use crate::io::{AlignedBuf, aligned_buf};
use crate::partition::WaitingId;
use crate::storage::meter::MemoryMeter;

pub mod block;
pub mod block_table;
pub mod chain;
pub mod evicted_table;
pub mod eviction;
pub mod fetch;
pub mod scan;

use block_table::BlockTable;
use evicted_table::EvictedId;

/// How soon to look again at fetches that wait for room, when no completion will wake the event loop.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// Buffers of one block each, for evictions and fetches together. They are counted against the memory budget from the start and taken from
/// the kernel when first used.
#[derive(Debug)]
pub(crate) struct BufferPool {
    free: Vec<AlignedBuf>,
    not_made: usize,
    total: usize,
    block_bytes: usize,
}

impl BufferPool {
    fn new(total: usize, block_bytes: usize) -> Self {
        Self { free: Vec::new(), not_made: total, total, block_bytes }
    }

    fn available(&self) -> usize {
        self.free.len() + self.not_made
    }

    fn take(&mut self) -> Option<AlignedBuf> {
        if let Some(buffer) = self.free.pop() {
            return Some(buffer);
        }
        self.not_made = self.not_made.checked_sub(1)?;
        Some(aligned_buf(self.block_bytes))
    }

    fn give_back(&mut self, buffer: AlignedBuf) {
        debug_assert_eq!(buffer.len(), self.block_bytes);
        self.free.push(buffer);
    }
}

/// A block on its way from disk, with everything that waits for it.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub(crate) table: TableId,
    pub(crate) wanted: Vec<EvictedId>,
    pub(crate) waiters: Vec<WaitingId>,
}

/// The anti-cache of one partition.
pub(crate) struct AntiCache {
    partition: u32,
    pub(crate) blocks: BlockTable,
    buffers: BufferPool,
    /// Buffers that fetches leave to evictions, which must never wait for fetches: a fetch needs room, and only evictions make room.
    reserved_for_eviction: usize,
    blocks_per_eviction: usize,
    merge: Merge,
    hole_threshold: f64,
    /// By block id.
    fetches: HashMap<u32, Fetch>,
    /// Fetches that wait for a buffer.
    queue: VecDeque<u32>,
    /// Blocks that were read and wait for room in memory.
    backlog: VecDeque<(u32, AlignedBuf)>,
    /// Ids of the blocks of each write in flight, by its number.
    writes: HashMap<u32, Vec<u32>>,
    next_write: u32,
    last_created_us: u64,
    /// Blocks whose write failed, by id: their only copy.
    unwritten: HashMap<u32, AlignedBuf>,
    /// Blocks that a failed write has kept in memory, in `unwritten` or being written again. Fetches and evictions need their buffers, so the pool
    /// has others instead, and these count against the budget in addition.
    kept: HashSet<u32>,
    /// When to write the kept blocks again. While this is set, nothing is evicted.
    retry_writes_at: Option<Instant>,
    /// A serialized row on its way into a block.
    scratch: Vec<u8>,
}

impl AntiCache {
    pub(crate) fn create(
        partition: u32,
        config: &Config,
        files: &dyn Files,
        directory: &Path,
    ) -> Result<Self, StartError> {
        let path = directory.join(format!("blocks-{partition:04}.db"));
        let blocks = BlockTable::create(files, &path, config.eviction_block_bytes)
            .map_err(StartError::system(format!("create the block table {}", path.display())))?;
        let blocks_per_eviction = config.blocks_per_eviction();
        Ok(Self {
            partition,
            blocks,
            buffers: BufferPool::new(config.buffers_per_partition(), config.eviction_block_bytes),
            reserved_for_eviction: 2 * blocks_per_eviction,
            blocks_per_eviction,
            merge: config.merge,
            hole_threshold: config.hole_threshold,
            fetches: HashMap::new(),
            queue: VecDeque::new(),
            backlog: VecDeque::new(),
            writes: HashMap::new(),
            next_write: 0,
            last_created_us: 0,
            unwritten: HashMap::new(),
            kept: HashSet::new(),
            retry_writes_at: None,
            scratch: Vec::new(),
        })
    }

    pub(crate) fn staging_bytes(&self) -> u64 {
        ((self.buffers.total + self.kept.len()) * self.buffers.block_bytes) as u64
    }

    /// Deletes a block whose tuples are all in memory.
    fn remove_block(&mut self, block_id: u32, meter: &mut MemoryMeter) {
        self.blocks.remove(block_id);
        if let Some(buffer) = self.unwritten.remove(&block_id) {
            self.keep_or_give_back(block_id, buffer, false, meter);
        }
    }

    /// The buffer of a block that was to be written: kept when it is `needed` as the only copy, else given back.
    fn keep_or_give_back(&mut self, block_id: u32, buffer: AlignedBuf, needed: bool, meter: &mut MemoryMeter) {
        let bytes = buffer.len() as u64;
        if needed {
            if self.kept.insert(block_id) {
                meter.take(bytes);
                self.buffers.not_made += 1;
            }
            self.unwritten.insert(block_id, buffer);
        } else if self.kept.remove(&block_id) {
            meter.give_back(bytes);
        } else {
            self.buffers.give_back(buffer);
        }
    }

    /// How long nothing needs to be done about blocks, when no I/O completes; `None` = forever.
    pub(crate) fn idle_for(&self) -> Option<Duration> {
        let retry = self.retry_writes_at.map(|at| at.saturating_duration_since(Instant::now()).max(RETRY_INTERVAL));
        let fetches_wait = !self.queue.is_empty() || !self.backlog.is_empty();
        if fetches_wait { Some(RETRY_INTERVAL) } else { retry }
    }

    /// Creation time of a new block: the clock, but never twice the same.
    fn created_us(&mut self) -> u64 {
        let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        self.last_created_us = (since_1970.as_micros() as u64).max(self.last_created_us + 1);
        self.last_created_us
    }
}
