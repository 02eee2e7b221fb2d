//! The executor of a partition: one thread, one transaction at a time, no locks (paper §2).
//!
//! The life of a transaction:
//! 1. its request is taken from a batch, while the memory of those behind it is being prefetched;
//! 2. its procedure runs; what it changed is in the undo log;
//! 3. committed: a reader's reply goes out, a writer's waits for its command-log group (and a reader's, if it saw such a write);
//! 4. aborted by the procedure: rolled back, the reply says why;
//! 5. evicted tuples met: rolled back, the blocks are requested, the transaction waits; when the last block is merged it is ready and runs again;
//! 6. no memory for another tuple: rolled back, cold tuples are evicted, it runs again.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::anticache::AntiCache;
use crate::anticache::eviction::Room;
use crate::catalog::{Catalog, TableId};
use crate::config::{AntiCaching, Config, Log};
use crate::durability::command_log::CommandLog;
use crate::error::StartError;
use crate::io::files::{Files, KernelFiles};
use crate::io::ring::{Completion, IoRing};
use crate::net::frame::{RequestHead, Status, begin_reply, finish_reply, write_reply};
use crate::procedure::ProcedureSet;
use crate::stats::{Counters, Gauges};
use crate::storage::hash_index::hash_key;
use crate::storage::table::{MemoryMeter, Table};
use crate::storage::tuples::{TupleId, flag};
use crate::storage::undo::{Change, UndoLog};
use crate::txn::{Abort, Footprint, TxnContext, roll_back};

/// Requests whose memory is prefetched together.
const PREFETCH_WINDOW: usize = 16;
/// Cache lines of a tuple that are prefetched; the processor's own prefetcher follows a copy from there.
const PREFETCH_LINES: usize = 4;
/// The command-log group under construction is not let grow beyond this while the group before it is being written. The bound is far above what
/// a disk leaves behind and far below the group format's 4 GiB.
const MAX_GROUP_BYTES: usize = 64 << 20;
/// Times that a transaction is re-queued before it is given up: it needs more evicted tuples than memory can hold at once.
const MAX_RESTARTS: u32 = 100;

/// Where a reply goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// Connection number at the partition.
    pub connection: u32,
    /// Which user of that number, so that a late reply never reaches the next one.
    pub epoch: u32,
    /// The client's name for the request.
    pub token: u64,
}

/// Takes reply frames.
pub trait ReplySink {
    /// Buffer of a connection's outgoing frames. For a connection that is gone: any buffer, whose content is thrown away.
    fn buffer(&mut self, connection: u32, epoch: u32) -> &mut Vec<u8>;
}

/// What a tag of an I/O operation says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IoTag {
    /// A group of the command log.
    Log,
    /// A block that is fetched.
    Fetch(u32),
    /// An eviction's write, by its number.
    Evict(u32),
}

impl IoTag {
    pub(crate) fn pack(self) -> u64 {
        match self {
            Self::Log => 0,
            Self::Fetch(block_id) => 1 << 32 | u64::from(block_id),
            Self::Evict(number) => 2 << 32 | u64::from(number),
        }
    }

    fn unpack(tag: u64) -> Self {
        match tag >> 32 {
            0 => Self::Log,
            1 => Self::Fetch(tag as u32),
            _ => Self::Evict(tag as u32),
        }
    }
}

/// One execution of a transaction.
#[derive(Debug, Clone, Copy)]
struct Invocation<'params> {
    origin: Origin,
    procedure: u16,
    params: &'params [u8],
    /// Executions before this one.
    restarts: u32,
}

/// A transaction that waits for blocks, or is ready to run again.
#[derive(Debug)]
pub(crate) struct Waiting {
    origin: Origin,
    procedure: u16,
    params: Vec<u8>,
    /// Tuples that must stay in memory until it ran.
    pub(crate) pinned: Vec<(TableId, TupleId)>,
    /// Blocks not merged yet.
    pub(crate) blocks_pending: u32,
    /// Why a block of it cannot be had.
    pub(crate) problem: Option<String>,
    restarts: u32,
}

/// Position of a waiting transaction.
pub(crate) type WaitingId = usize;

/// Chooses the transactions that update the LRU chain: each with probability α, by a seeded xorshift generator.
#[derive(Debug)]
struct Sampler {
    state: u64,
    threshold: u64,
}

impl Sampler {
    fn new(alpha: f64, seed: u64) -> Self {
        // 2^32 · α, so that α = 1 is "always" and α = 0 "never" exactly.
        let threshold = (alpha * (1u64 << 32) as f64) as u64;
        Self { state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1, threshold }
    }

    #[inline]
    fn choose(&mut self) -> bool {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 32) < self.threshold
    }
}

/// One partition of the database.
pub struct Partition {
    id: u32,
    pub(crate) procedures: ProcedureSet,
    pub(crate) tables: Vec<Table>,
    pub(crate) meter: MemoryMeter,
    undo: UndoLog,
    footprint: Footprint,
    sampler: Sampler,
    updates_chain_often: bool,
    pub(crate) ring: IoRing,
    completions: Vec<Completion>,
    pub(crate) anticache: Option<AntiCache>,
    pub(crate) log: Option<CommandLog>,
    pub(crate) waiting: Vec<Option<Waiting>>,
    free_waiting: Vec<WaitingId>,
    pub(crate) ready: VecDeque<WaitingId>,
    /// How many waiting transactions keep a tuple in memory; the tuple's flag says where it matters that some do.
    pins: HashMap<(TableId, TupleId), u32>,
    pub(crate) counters: Counters,
    /// The first I/O error of the command log. It latches: nothing is acknowledged any more.
    failure: Option<String>,
}

impl Partition {
    /// An empty partition with its files in `directory`, on the kernel's files.
    ///
    /// # Errors
    /// When files, memory or io_uring cannot be had.
    pub fn create(
        id: u32,
        config: &Config,
        catalog: &Catalog,
        procedures: ProcedureSet,
        directory: &Path,
    ) -> Result<Self, StartError> {
        let files: Arc<dyn Files> = Arc::new(KernelFiles::new());
        Self::create_on(&files, id, config, catalog, procedures, directory)
    }

    /// As [`Partition::create`], on any files.
    ///
    /// # Errors
    /// As [`Partition::create`].
    pub fn create_on(
        files: &Arc<dyn Files>,
        id: u32,
        config: &Config,
        catalog: &Catalog,
        procedures: ProcedureSet,
        directory: &Path,
    ) -> Result<Self, StartError> {
        let anticaching = config.anticaching != AntiCaching::Off;
        let staging_bytes =
            if anticaching { (config.buffers_per_partition() * config.eviction_block_bytes) as u64 } else { 0 };
        let budget_bytes = config.partition_budget_bytes();
        let mut meter = MemoryMeter::new(budget_bytes, staging_bytes);
        let tables: io::Result<Vec<_>> = catalog
            .tables()
            .iter()
            .map(|def| Table::new(def.clone(), anticaching && def.evictable, budget_bytes, &mut meter))
            .collect();
        let tables = tables.map_err(StartError::system("reserve address space for tables"))?;
        let anticache = match config.anticaching {
            AntiCaching::Off => None,
            _ => Some(AntiCache::create(id, config, &**files, directory)?),
        };
        let log = match config.log {
            Log::Off => None,
            Log::Sync => {
                let interval = Duration::from_micros(config.log_group_interval_us);
                let log = CommandLog::create(files, directory, id, config.log_segment_bytes, procedures.names());
                let log = log.map_err(StartError::system("create the command log"))?;
                Some(log.grouped(interval, config.log_group_bytes))
            }
        };
        let ring = files.ring((config.buffers_per_partition() + 2) as u32);
        let ring = ring.map_err(StartError::system("set up disk I/O"))?;
        Ok(Self {
            id,
            procedures,
            tables,
            meter,
            undo: UndoLog::default(),
            footprint: Footprint::default(),
            sampler: Sampler::new(config.alpha(), config.seed ^ u64::from(id) << 32),
            updates_chain_often: config.alpha() >= 0.25,
            ring,
            completions: Vec::new(),
            anticache,
            log,
            waiting: Vec::new(),
            free_waiting: Vec::new(),
            ready: VecDeque::new(),
            pins: HashMap::new(),
            counters: Counters::default(),
            failure: None,
        })
    }

    /// Number of the partition.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Tables, for tests and tools.
    pub fn tables(&self) -> &[Table] {
        &self.tables
    }

    /// Memory in use.
    pub fn meter(&self) -> &MemoryMeter {
        &self.meter
    }

    /// Disk I/O, for the event loop to wait on.
    pub fn ring(&self) -> &IoRing {
        &self.ring
    }

    /// Whether nothing is under way: no transaction waits and everything acknowledged is durable.
    pub fn is_idle(&self) -> bool {
        self.waiting.len() == self.free_waiting.len()
            && self.log.as_ref().is_none_or(CommandLog::is_idle)
            && self.ring.in_flight() == 0
    }

    /// Runs the requests found in `input`.
    pub fn execute_batch<S: ReplySink>(
        &mut self,
        connection: u32,
        epoch: u32,
        input: &[u8],
        requests: &[RequestHead],
        sink: &mut S,
    ) {
        for window in requests.chunks(PREFETCH_WINDOW) {
            self.bound_group(sink);
            self.prefetch(input, window);
            for request in window {
                let origin = Origin { connection, epoch, token: request.token };
                let params = request.params(input);
                self.run(Invocation { origin, procedure: request.procedure, params, restarts: 0 }, sink);
            }
        }
    }

    /// Brings index buckets, then tuples, then the neighbours in the chain near, for all requests of a window: the cache misses of different
    /// transactions overlap instead of following each other.
    fn prefetch(&self, input: &[u8], window: &[RequestHead]) {
        let mut keys: [(u16, u64); PREFETCH_WINDOW] = [(u16::MAX, 0); PREFETCH_WINDOW];
        for (request, slot) in window.iter().zip(&mut keys) {
            let Some(procedure) = self.procedures.get(request.procedure) else {
                continue;
            };
            if let Some((table, key)) = procedure.first_key(request.params(input)) {
                *slot = (table, hash_key(key));
                self.tables[usize::from(table)].prefetch_bucket(slot.1);
            }
        }
        let mut tuples = [None; PREFETCH_WINDOW];
        for (&(table, hash), tuple) in keys.iter().zip(&mut tuples) {
            if table != u16::MAX {
                *tuple = self.tables[usize::from(table)].prefetch_tuple(hash, PREFETCH_LINES);
            }
        }
        if self.updates_chain_often {
            for (&(table, _), tuple) in keys.iter().zip(&tuples) {
                if let Some(id) = tuple {
                    self.tables[usize::from(table)].prefetch_neighbours(*id);
                }
            }
        }
    }

    /// Answers with a status and a reason.
    fn refuse<S: ReplySink>(&mut self, origin: Origin, reason: &str, sink: &mut S) {
        self.counters.failed += 1;
        write_reply(sink.buffer(origin.connection, origin.epoch), origin.token, Status::Failed, reason.as_bytes());
    }

    /// Runs one transaction until it has ended or waits for blocks.
    #[inline]
    fn run<S: ReplySink>(&mut self, mut invocation: Invocation<'_>, sink: &mut S) {
        while let Some(table) = self.attempt(invocation, sink) {
            if let Err(reason) = self.make_room_to_rerun(usize::from(table), invocation.restarts, sink) {
                return self.refuse(invocation.origin, &reason, sink);
            }
            invocation.restarts += 1;
        }
    }

    /// Executes a transaction once (the steps at the top of this module). Returns the table that needs memory before it can be executed again,
    /// or `None` when that is not the executor's next step.
    fn attempt<S: ReplySink>(&mut self, invocation: Invocation<'_>, sink: &mut S) -> Option<TableId> {
        let origin = invocation.origin;
        if let Some(failure) = self.failure.clone() {
            self.refuse(origin, &failure, sink);
            return None;
        }
        let Some(procedure) = self.procedures.get(invocation.procedure) else {
            self.refuse(origin, &format!("no procedure has the number {}", invocation.procedure), sink);
            return None;
        };
        let sampled = self.sampler.choose();
        let out = sink.buffer(origin.connection, origin.epoch);
        let start = begin_reply(out, origin.token);
        self.footprint.clear();
        let mut txn = TxnContext {
            tables: &mut self.tables,
            meter: &mut self.meter,
            undo: &mut self.undo,
            footprint: &mut self.footprint,
            reply: &mut *out,
            sampled,
            unsynced_seen: 0,
            unsynced_deletes: self.log.as_ref().map_or(0, CommandLog::unsynced_deletes),
        };
        let outcome = procedure.execute(&mut txn, invocation.params);
        let unsynced_seen = txn.unsynced_seen;
        match outcome {
            Ok(()) => {
                self.counters.sampled += u64::from(sampled);
                self.commit(invocation, unsynced_seen, out, start);
            }
            Err(Abort::User(reason)) => {
                self.undo_changes();
                self.counters.aborted += 1;
                out.truncate(start);
                write_reply(out, origin.token, Status::Aborted, reason.as_bytes());
                if let Some(log) = self.log.as_mut().filter(|_| unsynced_seen != 0) {
                    log.hold(unsynced_seen, origin, &out[start..]);
                    out.truncate(start);
                }
            }
            Err(Abort::Evicted) => {
                out.truncate(start);
                self.undo_changes();
                self.end_pre_pass(invocation, sink);
            }
            Err(Abort::NeedMemory(table)) => {
                out.truncate(start);
                self.undo_changes();
                return Some(table);
            }
        }
        None
    }

    /// Step 3. Logs what wrote, marks its tuples, and sends or holds the reply.
    #[inline]
    fn commit(&mut self, invocation: Invocation<'_>, unsynced_seen: u8, out: &mut Vec<u8>, start: usize) {
        self.counters.committed += 1;
        finish_reply(out, start, Status::Committed);
        let wrote = !self.undo.is_empty();
        let Some(log) = self.log.as_mut().filter(|_| wrote || unsynced_seen != 0) else {
            return self.forget_changes();
        };
        if wrote {
            let mark = log.append(invocation.procedure, invocation.params);
            for change in self.undo.changes() {
                match *change {
                    Change::Update { table, tuple, .. } | Change::Insert { table, tuple } => {
                        let tuples = self.tables[usize::from(table)].tuples_mut();
                        // A tuple that the same transaction deleted later has no slot to mark.
                        if tuples.is_live(tuple) && tuples.flags(tuple) & mark == 0 {
                            let flags = tuples.flags(tuple) | mark;
                            tuples.set_flags(tuple, flags);
                            log.mark(table, tuple);
                        }
                    }
                    Change::Delete { .. } => log.mark_deleted(),
                }
            }
        }
        log.hold(if wrote { 0 } else { unsynced_seen }, invocation.origin, &out[start..]);
        out.truncate(start);
        self.forget_changes();
    }

    fn undo_changes(&mut self) {
        roll_back(&mut self.tables, &mut self.undo, &mut self.meter);
    }

    /// Ends the undo log of a transaction that committed: what it deleted is freed now.
    #[inline]
    fn forget_changes(&mut self) {
        for change in self.undo.changes() {
            if let Change::Delete { table, tuple } = *change {
                self.tables[usize::from(table)].free_detached(tuple);
            }
        }
        self.undo.clear();
    }

    /// Step 5. Makes what the pre-pass touched in memory the hottest and pins it, requests the blocks and lets the transaction wait.
    fn end_pre_pass<S: ReplySink>(&mut self, invocation: Invocation<'_>, sink: &mut S) {
        let Invocation { origin, procedure, params, restarts } = invocation;
        if self.footprint.evicted.is_empty() {
            return self.refuse(origin, "its procedure says that it met evicted tuples, but looked up none", sink);
        }
        if restarts >= MAX_RESTARTS {
            let reason = format!(
                "given up after {restarts} restarts: its evicted tuples do not stay in memory together; the budget is {} bytes",
                self.meter.budget_bytes()
            );
            return self.refuse(origin, &reason, sink);
        }
        self.counters.restarted += 1;
        let id = self.park(Waiting {
            origin,
            procedure,
            params: params.to_vec(),
            pinned: Vec::new(),
            blocks_pending: 0,
            problem: None,
            restarts: restarts + 1,
        });
        let footprint = std::mem::take(&mut self.footprint);
        for &(table, tuple) in &footprint.resident {
            if self.tables[usize::from(table)].tuples().is_live(tuple) {
                self.tables[usize::from(table)].touch(tuple);
                self.pin(id, table, tuple);
            }
        }
        self.request_fetches(id, &footprint.evicted);
        self.footprint = footprint;
    }

    fn park(&mut self, waiting: Waiting) -> WaitingId {
        if let Some(id) = self.free_waiting.pop() {
            self.waiting[id] = Some(waiting);
            return id;
        }
        self.waiting.push(Some(waiting));
        self.waiting.len() - 1
    }

    /// Keeps a tuple in memory until a waiting transaction ran.
    pub(crate) fn pin(&mut self, waiter: WaitingId, table: TableId, tuple: TupleId) {
        let Some(waiting) = &mut self.waiting[waiter] else { return };
        waiting.pinned.push((table, tuple));
        *self.pins.entry((table, tuple)).or_insert(0) += 1;
        let tuples = self.tables[usize::from(table)].tuples_mut();
        let flags = tuples.flags(tuple) | flag::PINNED;
        tuples.set_flags(tuple, flags);
    }

    fn unpin(&mut self, pinned: &[(TableId, TupleId)]) {
        for pin in pinned {
            let Some(count) = self.pins.get_mut(pin) else { continue };
            *count -= 1;
            if *count == 0 {
                self.pins.remove(pin);
                let tuples = self.tables[usize::from(pin.0)].tuples_mut();
                if tuples.is_live(pin.1) {
                    let flags = tuples.flags(pin.1) & !flag::PINNED;
                    tuples.set_flags(pin.1, flags);
                }
            }
        }
    }

    /// Gives up all pins, when they leave no room for a block that somebody waits for; false when there are none. Transactions whose tuples
    /// are evicted again are restarted again, which is bounded.
    pub(crate) fn unpin_all(&mut self) -> bool {
        let waiting = self.waiting.iter_mut().flatten();
        let all: Vec<_> = waiting.flat_map(|waiting| std::mem::take(&mut waiting.pinned)).collect();
        self.unpin(&all);
        !all.is_empty()
    }

    /// Step 6. Waits for the disk when every buffer is on its way to it, or the writes of all cold tuples are not durable yet.
    ///
    /// # Errors
    /// Why there is no room.
    fn make_room_to_rerun<S: ReplySink>(&mut self, table: usize, restarts: u32, sink: &mut S) -> Result<(), String> {
        // The slots that it had filled are free again: it needs more than those. Twice as many, so that a large transaction fits soon.
        let free = self.tables[table].tuples().free_slots();
        let reason = loop {
            if restarts >= MAX_RESTARTS {
                break "the transaction's own tuples do not fit";
            }
            match self.make_room(table, 2 * free + 1) {
                Room::Made => return Ok(()),
                Room::Nothing if self.tables[table].tuples().free_slots() > free => return Ok(()),
                Room::Nothing => break "nothing can be evicted",
                Room::Wait => {
                    let (waited_us, completed) = self.stall(sink);
                    self.counters.eviction_stalls += 1;
                    self.counters.eviction_stall_us += waited_us;
                    if completed == 0 && self.ring.in_flight() == 0 {
                        break "nothing can be evicted, nor is anything on its way to disk";
                    }
                }
            }
        };
        let budget_bytes = self.meter.budget_bytes();
        Err(format!("memory budget of {budget_bytes} bytes is used up and {reason}"))
    }

    /// Waits until the log's group under construction is small enough to take more.
    fn bound_group<S: ReplySink>(&mut self, sink: &mut S) {
        while self.log.as_ref().is_some_and(|log| log.group_bytes() > MAX_GROUP_BYTES) {
            let (waited_us, _) = self.stall(sink);
            self.counters.log_stalls += 1;
            self.counters.log_stall_us += waited_us;
        }
    }

    /// Waits for the disk, in the middle of everything. Returns for how many microseconds, and how many operations completed.
    fn stall<S: ReplySink>(&mut self, sink: &mut S) -> (u64, usize) {
        let started = Instant::now();
        let flushed = self.flush_log(true);
        let mut completions = std::mem::take(&mut self.completions);
        if let Err(error) = flushed.and_then(|()| self.ring.wait(&mut completions)) {
            self.fail(format!("disk I/O: {error}"), sink);
        }
        let completed = completions.len();
        for completion in completions.drain(..) {
            self.complete(completion, sink);
        }
        self.completions = completions;
        (started.elapsed().as_micros() as u64, completed)
    }

    /// Writes the log's group under construction when it is due; with `now`, in any case.
    fn flush_log(&mut self, now: bool) -> io::Result<()> {
        let tag = IoTag::Log.pack();
        match &mut self.log {
            Some(log) if self.failure.is_none() && now => log.flush_now(&mut self.ring, tag),
            Some(log) if self.failure.is_none() => log.flush(&mut self.ring, tag),
            _ => Ok(()),
        }
    }

    /// Everything between transactions: completed I/O, merges, transactions that became ready, eviction, fetches, group commit. Never waits for
    /// the disk. Call it after each batch and whenever [`IoRing::event`] fires.
    pub fn poll<S: ReplySink>(&mut self, sink: &mut S) {
        let mut completions = std::mem::take(&mut self.completions);
        self.ring.reap(&mut completions);
        for completion in completions.drain(..) {
            self.complete(completion, sink);
        }
        self.completions = completions;
        self.retry_writes();
        self.retry_merges();
        self.run_ready(sink);
        self.keep_budget();
        self.start_fetches();
        if let Err(error) = self.flush_log(false).and_then(|()| self.ring.submit()) {
            self.fail(error.to_string(), sink);
        }
    }

    fn complete<S: ReplySink>(&mut self, completion: Completion, sink: &mut S) {
        match IoTag::unpack(completion.tag) {
            IoTag::Log => self.group_written(completion, sink),
            IoTag::Fetch(block_id) => self.block_read(block_id, completion),
            IoTag::Evict(number) => self.blocks_written(number, completion),
        }
    }

    fn group_written<S: ReplySink>(&mut self, mut completion: Completion, sink: &mut S) {
        if let Err(error) = completion.result {
            return self.fail(format!("command log: {error}"), sink);
        }
        let Some(log) = &mut self.log else { return };
        let Some((group, mark)) = completion.buffers.pop().and_then(|buffer| log.complete(buffer)) else {
            return;
        };
        for &(table, tuple) in &group.marked {
            let tuples = self.tables[usize::from(table)].tuples_mut();
            if tuples.is_live(tuple) {
                let flags = tuples.flags(tuple) & !mark;
                tuples.set_flags(tuple, flags);
            }
        }
        debug_assert_eq!(mark & !flag::UNSYNCED, 0);
        for (origin, frame) in group.replies() {
            sink.buffer(origin.connection, origin.epoch).extend_from_slice(frame);
        }
        log.recycle(group);
    }

    /// The command log cannot be written: whatever waits for it fails, and so does everything after it.
    fn fail<S: ReplySink>(&mut self, reason: String, sink: &mut S) {
        if let Some(log) = &mut self.log {
            for origin in log.abandon() {
                self.counters.failed += 1;
                write_reply(
                    sink.buffer(origin.connection, origin.epoch),
                    origin.token,
                    Status::Failed,
                    reason.as_bytes(),
                );
            }
        }
        self.failure.get_or_insert(reason);
    }

    fn run_ready<S: ReplySink>(&mut self, sink: &mut S) {
        // Only those ready now: one that is re-queued on the way waits for the next round.
        for _ in 0..self.ready.len() {
            let Some(id) = self.ready.pop_front() else {
                break;
            };
            let Some(waiting) = self.waiting[id].take() else {
                continue;
            };
            self.free_waiting.push(id);
            self.unpin(&waiting.pinned);
            let Waiting { origin, procedure, ref params, restarts, .. } = waiting;
            self.bound_group(sink);
            match &waiting.problem {
                None => self.run(Invocation { origin, procedure, params, restarts }, sink),
                Some(problem) => self.refuse(origin, problem, sink),
            }
        }
    }

    /// When to call [`Partition::poll`] next although nothing arrives and [`IoRing::event`] does not fire.
    pub fn poll_after(&self) -> Option<Duration> {
        if !self.ready.is_empty() {
            return Some(Duration::ZERO);
        }
        let group_due = self.log.as_ref().and_then(|log| log.due(Instant::now()));
        let blocks_due = self.anticache.as_ref().and_then(AntiCache::idle_for);
        group_due.into_iter().chain(blocks_due).min()
    }

    /// Whether the replies to some of a connection's requests have yet to be written.
    pub fn owes_replies(&self, connection: u32, epoch: u32) -> bool {
        let of = |origin: &Origin| origin.connection == connection && origin.epoch == epoch;
        self.waiting.iter().flatten().any(|waiting| of(&waiting.origin))
            || self.log.as_ref().is_some_and(|log| log.held_origins().any(of))
    }

    /// Whether the command log has failed, and with it everything that wants to commit.
    pub(crate) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Gauges now.
    pub fn gauges(&self) -> Gauges {
        let sum = |each: fn(&Table) -> usize| self.tables.iter().map(|table| each(table) as u64).sum();
        let blocks = self.anticache.as_ref().map(|anticache| &anticache.blocks);
        let staging = self.anticache.as_ref().map_or(0, AntiCache::staging_bytes);
        Gauges {
            tuples_resident: self.tables.iter().map(|table| table.tuples().live()).sum(),
            tuples_evicted: self.tables.iter().map(|table| table.evicted().live()).sum(),
            blocks_live: blocks.map_or(0, |blocks| blocks.live() as u64),
            blocks_high_water: blocks.map_or(0, |blocks| blocks.high_water() as u64),
            block_holes: blocks.map_or(0, |blocks| blocks.iter().map(|block| u64::from(block.holes)).sum()),
            waiting: (self.waiting.len() - self.free_waiting.len()) as u64,
            log_groups: self.log.as_ref().map_or(0, |log| log.groups_written),
            log_bytes: self.log.as_ref().map_or(0, |log| log.bytes_written),
            memory_tuples_bytes: sum(|table| table.tuples().allocated_bytes()),
            memory_index_bytes: sum(|table| table.index().allocated_bytes()),
            memory_evicted_table_bytes: sum(|table| table.evicted().allocated_bytes()),
            memory_staging_bytes: staging,
            memory_total_bytes: self.meter.used_bytes(),
            memory_peak_bytes: self.meter.peak_bytes(),
            memory_budget_bytes: self.meter.budget_bytes(),
        }
    }

    /// Counters and gauges as one JSON object.
    pub fn stats(&self) -> serde_json::Map<String, serde_json::Value> {
        let mut all = serde_json::Map::new();
        for part in [serde_json::to_value(self.counters), serde_json::to_value(self.gauges())] {
            if let Ok(serde_json::Value::Object(part)) = part {
                all.extend(part);
            }
        }
        all
    }
}
