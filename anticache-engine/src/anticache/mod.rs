//! Anti-caching (paper §3): what is cold goes to disk in blocks, and comes back when a transaction asks for it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::BuildHasherDefault;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::catalog::TableId;
use crate::config::{Compaction, Config, EvictFrom, FetchUnit, Merge};
use crate::error::StartError;
use crate::io::files::Files;
use crate::io::{AlignedBuf, DIRECT_IO_ALIGN_BYTES, aligned_bufs};
use crate::partition::WaitingId;
use crate::storage::meter::MemoryMeter;

pub mod block;
pub mod block_table;
mod budget;
pub mod chain;
mod checksum;
mod compaction;
pub mod evicted_table;
pub mod eviction;
pub mod fetch;
pub mod scan;
pub mod shares;
pub mod single_chain;

pub(crate) use budget::Room;

use block::{BlockIdentity, TUPLE_PREFIX_BYTES};
use block_table::BlockTable;
use compaction::Compactor;
use evicted_table::{EvictedId, Location};
use eviction::Eviction;
use shares::Share;

/// How soon to look again at fetches that wait for room, when no completion will wake the event loop.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// A hash table for numbers that nobody chooses.
pub(crate) type NumberMap<K, V> = HashMap<K, V, BuildHasherDefault<rapidhash::fast::RapidHasher<'static>>>;

/// A list that seldom has more than one element, and then needs no memory of its own.
pub(crate) type Few<T> = SmallVec<[T; 1]>;

/// Buffers of one size. They are counted against the memory budget from the start and taken from the kernel when first used.
#[derive(Debug)]
pub(crate) struct BufferPool {
    free: Vec<AlignedBuf>,
    not_made: usize,
    total: usize,
    buffer_bytes: usize,
}

impl BufferPool {
    fn new(total: usize, buffer_bytes: usize) -> Self {
        Self { free: Vec::new(), not_made: total, total, buffer_bytes }
    }

    fn bytes(&self) -> usize {
        self.total * self.buffer_bytes
    }

    fn available(&self) -> usize {
        self.free.len() + self.not_made
    }

    fn take(&mut self) -> Option<AlignedBuf> {
        if let Some(buffer) = self.free.pop() {
            return Some(buffer);
        }
        if self.not_made > 0 {
            self.free = aligned_bufs(self.not_made, self.buffer_bytes);
            self.not_made -= self.free.len();
        }
        self.free.pop()
    }

    fn give_back(&mut self, buffer: AlignedBuf) {
        debug_assert_eq!(buffer.len(), self.buffer_bytes);
        self.free.push(buffer);
    }
}

/// The file of a partition's blocks.
pub(crate) fn block_file(partition: u32, directory: &Path) -> PathBuf {
    directory.join(format!("blocks-{partition:04}.db"))
}

/// What is read at once: a block, or some sectors of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FetchKey {
    block_id: u32,
    /// The sector in which the wanted tuples begin; none = the whole block.
    sector: Option<u16>,
}

impl FetchKey {
    fn whole(block_id: u32) -> Self {
        Self { block_id, sector: None }
    }

    fn sector_of(location: Location) -> Self {
        let sector = location.offset / DIRECT_IO_ALIGN_BYTES as u32;
        Self { block_id: location.block_id, sector: Some(sector as u16) }
    }

    /// Whether a tuple at this place is read with it.
    fn leads_to(self, location: Location) -> bool {
        self.block_id == location.block_id && self.sector.is_none_or(|_| self == Self::sector_of(location))
    }

    /// As a number of 48 bits.
    fn pack(self) -> u64 {
        u64::from(self.block_id) << 16 | self.sector.map_or(0, |sector| u64::from(sector) + 1)
    }

    fn unpack(packed: u64) -> Self {
        Self { block_id: (packed >> 16) as u32, sector: (packed as u16).checked_sub(1) }
    }
}

/// A block, or sectors of it, on the way from disk, with everything that waits for it.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub(crate) table: TableId,
    /// What each transaction that waits for it wants of the block.
    pub(crate) wanted: Few<(EvictedId, WaitingId)>,
    pub(crate) waiters: Few<WaitingId>,
    /// Which bytes of the block were asked for last, and when that block was made.
    read: Option<(Range<usize>, u64)>,
    /// Groups of the log that had been written when it first had to wait for memory.
    waits_since: Option<u64>,
}

impl Fetch {
    /// The tuples that are wanted, ascending, each once.
    fn entries(&self) -> Few<EvictedId> {
        let mut entries: Few<EvictedId> = self.wanted.iter().map(|&(entry, _)| entry).collect();
        entries.sort_unstable();
        entries.dedup();
        entries
    }

    /// How many tuples are wanted.
    fn distinct(&self) -> u64 {
        if self.wanted.len() > 1 { self.entries().len() as u64 } else { self.wanted.len() as u64 }
    }
}

/// The anti-cache of one partition.
pub(crate) struct AntiCache {
    partition: u32,
    pub(crate) blocks: BlockTable,
    /// Of one block each, for evictions, compaction and fetches of whole blocks.
    buffers: BufferPool,
    /// For fetches of sectors; none as long as there are no such.
    sector_buffers: BufferPool,
    /// What the sectors may take in which a tuple lies, from the beginning of the first one.
    sector_span_bytes: usize,
    /// Buffers that fetches leave to evictions, which must never wait for fetches: a fetch needs room, and only evictions make room.
    reserved_for_eviction: usize,
    blocks_per_eviction: usize,
    evict_from: EvictFrom,
    /// What each table gives by the paper's rule, by its number.
    shares: Vec<Share>,
    /// The eviction whose blocks are being constructed.
    eviction: Option<Eviction>,
    /// When more than this is filled, a check evicts.
    limit_bytes: Option<u64>,
    /// Whether a check has found the limit exceeded, and it still is.
    lowering: bool,
    check_interval: Duration,
    next_check: Instant,
    /// Whether there was anything since the last check, so that another is needed.
    check_wanted: bool,
    /// Whether there is more to do at once, when transactions had their turn.
    again: bool,
    /// Tuples merged since the last turn.
    merged: u32,
    merge: Merge,
    fetch_unit: FetchUnit,
    /// Share of holes above which tuple-merge brings back a whole block.
    hole_threshold: f64,
    /// Background compaction, where it is configured.
    compactor: Option<Compactor>,
    fetches: NumberMap<FetchKey, Fetch>,
    /// Fetches that wait for a buffer.
    queue: VecDeque<FetchKey>,
    /// What was read and waits for room in memory.
    backlog: VecDeque<(FetchKey, AlignedBuf)>,
    /// Ids of the blocks of each eviction's write in flight, by its number.
    writes: HashMap<u32, Vec<u32>>,
    next_write: u32,
    last_created_us: u64,
    /// Blocks of the eviction under way, and those whose write failed, by id: their only copy.
    unwritten: HashMap<u32, AlignedBuf>,
    /// Blocks that a failed write has kept in memory, in `unwritten` or being written again. Fetches and evictions need their buffers, so the pool
    /// has others instead, and these count against the budget in addition.
    kept: HashSet<u32>,
    /// When to write the kept blocks again. While this is set, nothing is evicted.
    retry_writes_at: Option<Instant>,
    /// Why the last write failed, while that is set.
    pub(crate) write_problem: Option<String>,
    /// A serialized row on its way into a block.
    scratch: Vec<u8>,
}

impl AntiCache {
    /// With an empty Block Table.
    pub(crate) fn create(
        partition: u32,
        config: &Config,
        files: &dyn Files,
        directory: &Path,
    ) -> Result<Self, StartError> {
        let path = block_file(partition, directory);
        let blocks = BlockTable::create(files, &path, config.eviction_block_bytes)
            .map_err(StartError::system(format!("create the block table {}", path.display())))?;
        Ok(Self::new(partition, config, blocks))
    }

    pub(crate) fn new(partition: u32, config: &Config, blocks: BlockTable) -> Self {
        let blocks_per_eviction = config.blocks_per_eviction();
        Self {
            partition,
            blocks,
            buffers: BufferPool::new(config.buffers_per_partition(), config.eviction_block_bytes),
            sector_buffers: BufferPool::new(0, DIRECT_IO_ALIGN_BYTES),
            sector_span_bytes: DIRECT_IO_ALIGN_BYTES,
            reserved_for_eviction: 2 * blocks_per_eviction,
            blocks_per_eviction,
            evict_from: config.evict_from,
            shares: Vec::new(),
            eviction: None,
            limit_bytes: config.eviction_limit_bytes(),
            lowering: false,
            check_interval: Duration::from_micros(config.eviction_check_interval_us),
            next_check: Instant::now(),
            check_wanted: false,
            again: false,
            merged: 0,
            merge: config.merge,
            fetch_unit: config.fetch,
            hole_threshold: config.hole_threshold,
            compactor: (config.compaction == Compaction::Background).then(Compactor::default),
            fetches: NumberMap::default(),
            queue: VecDeque::new(),
            backlog: VecDeque::new(),
            writes: HashMap::new(),
            next_write: 0,
            last_created_us: 0,
            unwritten: HashMap::new(),
            kept: HashSet::new(),
            retry_writes_at: None,
            write_problem: None,
            scratch: Vec::new(),
        }
    }

    /// Says how long the longest row is that it will get. Buffers for sectors are made where there may be fetches of them.
    pub(crate) fn expect_rows(&mut self, longest_bytes: usize, config: &Config) {
        let span_bytes = DIRECT_IO_ALIGN_BYTES - 1 + TUPLE_PREFIX_BYTES + longest_bytes;
        self.sector_span_bytes = span_bytes.next_multiple_of(DIRECT_IO_ALIGN_BYTES);
        self.provide_sector_buffers(config);
    }

    fn provide_sector_buffers(&mut self, config: &Config) {
        if config.fetch == FetchUnit::Sectors && self.sector_buffers.total == 0 {
            let count = config.sector_buffers_per_partition(self.sector_span_bytes);
            self.sector_buffers = BufferPool::new(count, self.sector_span_bytes);
        }
    }

    /// What [`Partition::change_settings`](crate::partition::Partition::change_settings) means here. An eviction under way ends as it began.
    pub(crate) fn change_settings(&mut self, config: &Config, meter: &mut MemoryMeter) {
        let before = self.staging_bytes();
        self.provide_sector_buffers(config);
        meter.take(self.staging_bytes() - before);
        self.blocks_per_eviction = config.blocks_per_eviction();
        self.reserved_for_eviction = 2 * self.blocks_per_eviction;
        self.check_interval = Duration::from_micros(config.eviction_check_interval_us);
        self.next_check = Instant::now();
        (self.merge, self.fetch_unit, self.hole_threshold) = (config.merge, config.fetch, config.hole_threshold);
    }

    /// Lets no block made from now on have this creation time or an earlier one.
    pub(crate) fn created_before(&mut self, created_us: u64) {
        self.last_created_us = self.last_created_us.max(created_us);
    }

    pub(crate) fn staging_bytes(&self) -> u64 {
        (self.buffers.bytes() + self.sector_buffers.bytes() + self.kept.len() * self.buffers.buffer_bytes) as u64
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

    /// Whether a check for evictions is due; the next one is then an interval away.
    fn check_is_due(&mut self, now: Instant) -> bool {
        let is_due = now >= self.next_check;
        if is_due {
            self.next_check = now + self.check_interval;
        }
        self.check_wanted = !is_due;
        is_due
    }

    /// A buffer for a fetch.
    fn take_for(&mut self, key: FetchKey) -> Option<AlignedBuf> {
        if key.sector.is_some() {
            return self.sector_buffers.take();
        }
        (self.buffers.available() > self.reserved_buffers()).then(|| self.buffers.take()).flatten()
    }

    fn give_back_of(&mut self, key: FetchKey, buffer: AlignedBuf) {
        let pool = if key.sector.is_some() { &mut self.sector_buffers } else { &mut self.buffers };
        pool.give_back(buffer);
    }

    /// Buffers that fetches leave to evictions and to compaction.
    fn reserved_buffers(&self) -> usize {
        self.reserved_for_eviction + self.compactor.as_ref().map_or(0, Compactor::buffers_missing)
    }

    /// Whether something is to be done at once, or an eviction or a compaction is under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.again || self.eviction.is_some() || self.compactor.as_ref().is_some_and(Compactor::is_running)
    }

    /// A new turn of everything between transactions begins.
    pub(crate) fn begin_turn(&mut self) {
        self.again = false;
        self.merged = 0;
    }

    /// How long nothing needs to be done about blocks, when no I/O completes; `None` = forever.
    pub(crate) fn idle_for(&self) -> Option<Duration> {
        if self.again {
            return Some(Duration::ZERO);
        }
        let fetches_wait = !self.queue.is_empty() || !self.backlog.is_empty();
        let until = |at: Instant| at.saturating_duration_since(Instant::now()).max(RETRY_INTERVAL);
        let retry = self.retry_writes_at.map(until);
        let check = self.check_wanted.then(|| until(self.next_check));
        let compaction = self.compactor.as_ref().and_then(Compactor::retry_at).map(until);
        [fetches_wait.then_some(RETRY_INTERVAL), retry, check, compaction].into_iter().flatten().min()
    }

    /// What a new block is known by.
    fn new_identity(&mut self, block_id: u32, table: TableId) -> BlockIdentity {
        BlockIdentity { partition: self.partition, block_id, table, created_us: self.created_us() }
    }

    /// Creation time of a new block: the clock, but never twice the same.
    fn created_us(&mut self) -> u64 {
        let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        self.last_created_us = (since_1970.as_micros() as u64).max(self.last_created_us + 1);
        self.last_created_us
    }
}
