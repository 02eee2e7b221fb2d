//! The executor of a partition: one thread, one transaction at a time, no locks (paper §2).
//!
//! The life of a transaction:
//! 1. its request is taken from a batch, while the memory of those behind it is being prefetched;
//! 2. its procedure runs; what it changed is in the undo log;
//! 3. committed: a reader's reply goes out, a writer's waits for its command-log group (and a reader's, if it saw such a write);
//! 4. aborted by the procedure: rolled back, the reply says why;
//! 5. evicted tuples met: rolled back, the blocks are requested, the transaction waits; when the last block is merged it is ready and runs again;
//! 6. no memory for another tuple: rolled back, cold tuples are evicted, it runs again.
//!
//! A transaction that touches other partitions too is queued with them instead ([`multi`]).

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::anticache::{AntiCache, NumberMap};
use crate::catalog::{Catalog, TableDef, TableId};
use crate::config::{AnswerReaders, AntiCaching, Config, Log, MAX_SECTOR_BUFFERS};
use crate::durability::command_log::{CommandLog, Gathering};
use crate::durability::snapshot::Snapshots;
use crate::error::StartError;
use crate::events::Events;
use crate::io::AlignedBuf;
use crate::io::files::{Files, KernelFiles};
use crate::io::ring::{Completion, IoRing};
use crate::net::frame::{RequestHead, Status, begin_reply, finish_reply, write_reply};
use crate::procedure::ProcedureSet;
use crate::stats::{Counters, PauseKind, Pauses};
use crate::storage::hash_index::hash_key;
use crate::storage::meter::MemoryMeter;
use crate::storage::table::Table;
use crate::storage::tuples::{TupleId, flag};
use crate::storage::undo::{Change, UndoLog};
use crate::txn::{Abort, Footprint, TxnContext, roll_back};

mod admission;
mod gauges;
pub mod multi;
mod replay;
mod room;
mod turn;
mod waiting;

pub(crate) use admission::Age;
use room::Refusal;
pub(crate) use turn::IoTag;
pub(crate) use waiting::{Waiting, WaitingId};

/// Requests whose memory is prefetched together.
const PREFETCH_WINDOW: usize = 16;
/// For a transaction of which no key is known beforehand.
const NO_KEY: (TableId, u64) = (TableId::MAX, 0);
/// Cache lines of a tuple that are prefetched; the processor's own prefetcher follows a copy from there.
const PREFETCH_LINES: usize = 4;
/// The command-log group under construction, and the replies that wait for it and for the one before, are not let grow beyond this while that
/// is being written. The bound is far above what
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

/// One execution of a transaction.
#[derive(Debug, Clone, Copy)]
struct Invocation<'params> {
    origin: Origin,
    procedure: u16,
    params: &'params [u8],
    /// Executions before this one.
    restarts: u32,
    age: Age,
}

/// From this α on the chain's neighbours of a tuple are prefetched with it.
const CHAIN_OFTEN: f64 = 0.25;

/// Chooses the transactions that update the LRU chain: each with probability α, by a seeded xorshift generator.
#[derive(Debug)]
struct Sampler {
    state: u64,
    threshold: u64,
}

impl Sampler {
    fn new(alpha: f64, seed: u64) -> Self {
        Self { state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1, threshold: Self::threshold(alpha) }
    }

    /// 2^32 · α, so that α = 1 is "always" and α = 0 "never" exactly.
    fn threshold(alpha: f64) -> u64 {
        (alpha * (1u64 << 32) as f64) as u64
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
    /// Partitions of the database.
    partitions: u32,
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
    /// Of the marks of what is not durable, those for which a transaction waits that has read such and written nothing: all or none.
    awaited_by_readers: u8,
    /// Records of the command log in the database's state at the start; what counts as its sequence while there is no log.
    first_sequence: u64,
    pub(crate) snapshots: Snapshots,
    pub(crate) waiting: Vec<Option<Waiting>>,
    free_waiting: Vec<WaitingId>,
    /// What they take of memory that no budget counts, and the most that they took.
    waiting_bytes: u64,
    waiting_peak_bytes: u64,
    /// The waiting transaction of this partition that runs again at this moment.
    running: Option<WaitingId>,
    pub(crate) ready: VecDeque<WaitingId>,
    /// Transactions that get memory only when `unresolved_group` is released.
    after_release: Vec<WaitingId>,
    /// Waiting transactions that keep nothing in memory until others have ended.
    held_back: Vec<WaitingId>,
    /// As many are let be under way as long as there are such.
    most_under_way: usize,
    /// Transactions that have gone well since this number was changed.
    went_well: usize,
    /// Transactions that got an age here.
    ages: u64,
    /// How many waiting transactions keep a tuple in memory; the tuple's flag says where it matters that some do.
    pins: NumberMap<(TableId, TupleId), u32>,
    pub(crate) counters: Counters,
    /// Transactions executed before the counters began anew.
    executed_before: u64,
    pub(crate) events: Events,
    /// Whether a table may want memory for a transaction that has not ended.
    pub(crate) hungry: bool,
    pub(crate) pauses: Pauses,
    /// The first I/O error of the command log. It latches: nothing is acknowledged any more.
    failure: Option<String>,
    /// The buffer of a log group that is durable and waits for other partitions.
    unresolved_group: Option<AlignedBuf>,
    /// Partitions of the site.
    site_partitions: u32,
    /// Its side of the multi-partition transactions, when it is one of several partitions.
    link: Option<Box<multi::Link>>,
    /// What a multi-partition transaction appends to its reply here.
    peer_reply: Vec<u8>,
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
        let anticache = match config.anticaching {
            AntiCaching::Off => None,
            _ => Some(AntiCache::create(id, config, &**files, directory)?),
        };
        let mut partition = Self::assemble(files, id, config, catalog, procedures, anticache)?;
        if config.log == Log::Sync {
            let (bytes, names) = (config.log_segment_bytes, partition.procedures.names());
            let log = CommandLog::create(files, directory, id, bytes, names);
            partition.set_log(&**files, config, log.map_err(StartError::system("create the command log"))?);
        }
        Ok(partition)
    }

    /// A partition with empty tables and without a command log.
    pub(crate) fn assemble(
        files: &Arc<dyn Files>,
        id: u32,
        config: &Config,
        catalog: &Catalog,
        procedures: ProcedureSet,
        anticache: Option<AntiCache>,
    ) -> Result<Self, StartError> {
        let mut anticache = anticache;
        if let Some(anticache) = &mut anticache {
            let evictable = catalog.tables().iter().filter(|table| table.evictable);
            anticache.expect_rows(evictable.map(TableDef::max_serialized_bytes).max().unwrap_or(0), config);
        }
        let snapshots = Snapshots::new(config, !files.is_simulated());
        let staging_bytes = anticache.as_ref().map_or(0, AntiCache::staging_bytes) + snapshots.reserved_bytes();
        let budget_bytes = config.partition_budget_bytes();
        let mut meter = MemoryMeter::new(budget_bytes, staging_bytes);
        let keeps_chain = |evictable| anticache.is_some() && evictable;
        let tables: io::Result<Vec<_>> = catalog
            .tables()
            .iter()
            .map(|def| Table::new(def.clone(), keeps_chain(def.evictable), budget_bytes, &mut meter))
            .collect();
        let tables = tables.map_err(StartError::system("reserve address space for tables"))?;
        if meter.is_over() {
            let partitions = u64::from(config.partitions);
            return Err(StartError::Value {
                key: "memory_budget_bytes",
                value: config.memory_budget_bytes.to_string(),
                allowed: format!(
                    "more than {}: the empty indexes of {} tables and the buffers of {partitions} partitions take that much",
                    meter.used_bytes() * partitions,
                    tables.len()
                ),
            });
        }
        let operations = config.buffers_per_partition() + MAX_SECTOR_BUFFERS + 2 + Snapshots::OPERATIONS;
        let ring = files.ring(operations as u32);
        let ring = ring.map_err(StartError::system("set up disk I/O"))?;
        Ok(Self {
            id,
            partitions: config.partitions,
            procedures,
            tables,
            meter,
            undo: UndoLog::default(),
            footprint: Footprint::default(),
            sampler: Sampler::new(config.alpha(), config.seed ^ u64::from(id) << 32),
            updates_chain_often: config.alpha() >= CHAIN_OFTEN,
            ring,
            completions: Vec::new(),
            anticache,
            log: None,
            awaited_by_readers: match config.answer_readers {
                AnswerReaders::Durable => flag::UNSYNCED,
                AnswerReaders::AtOnce => 0,
            },
            first_sequence: 0,
            snapshots,
            waiting: Vec::new(),
            free_waiting: Vec::new(),
            waiting_bytes: 0,
            waiting_peak_bytes: 0,
            running: None,
            ready: VecDeque::new(),
            after_release: Vec::new(),
            held_back: Vec::new(),
            most_under_way: usize::MAX,
            went_well: 0,
            ages: 0,
            pins: NumberMap::default(),
            counters: Counters::default(),
            executed_before: 0,
            events: Events::default(),
            hungry: false,
            pauses: Pauses::default(),
            failure: None,
            unresolved_group: None,
            site_partitions: 1,
            link: None,
            peer_reply: Vec::new(),
        })
    }

    /// Goes on with other [`crate::config::LIVE_SETTINGS`]; the configuration is otherwise the one that it was made with.
    pub fn change_settings(&mut self, config: &Config) {
        self.sampler.threshold = Sampler::threshold(config.alpha());
        self.updates_chain_often = config.alpha() >= CHAIN_OFTEN;
        if let Some(anticache) = &mut self.anticache {
            anticache.change_settings(config, &mut self.meter);
        }
    }

    pub(crate) fn set_log(&mut self, files: &dyn Files, config: &Config, log: CommandLog) {
        self.log = Some(log.gathering(Gathering {
            interval: Duration::from_micros(config.log_group_interval_us),
            // How long a write took is up to the machine, and on a simulated disk everything must happen in an order that a seed decides.
            share: if files.is_simulated() { 0.0 } else { config.log_gathering_share },
            bytes: config.log_group_bytes,
        }));
    }

    /// The segment in which the command log goes on; none without a log.
    pub fn first_segment(&self) -> Option<u64> {
        self.log.as_ref().map(|log| log.segment_holding(log.sequence()))
    }

    /// Counts from now on: what recovery did is not what clients asked for.
    pub(crate) fn forget_counters(&mut self) {
        self.executed_before = self.clock();
        self.counters = Counters::default();
    }

    /// Transactions executed since the partition was made, those that recovery ran again included: the clock of the LRU chains, which must not go back.
    pub(crate) fn clock(&self) -> u64 {
        self.executed_before + self.executed()
    }

    /// The sequence of the next record, as long as there is no command log that knows it.
    pub(crate) fn set_first_sequence(&mut self, sequence: u64) {
        self.first_sequence = sequence;
    }

    /// Records of the command log that the state contains: the sequence of the next one.
    pub fn log_sequence(&self) -> u64 {
        self.log.as_ref().map_or(self.first_sequence, CommandLog::sequence)
    }

    /// Number of the partition.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The latest events.
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// How long transactions could not run.
    pub fn pauses(&self) -> &Pauses {
        &self.pauses
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
            && !self.anticache.as_ref().is_some_and(AntiCache::is_busy)
            && self.is_multi_idle()
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
            self.bound_snapshot(sink);
            self.prefetch(input, window);
            for request in window {
                let origin = Origin { connection, epoch, token: request.token };
                let params = request.params(input);
                let invocation =
                    Invocation { origin, procedure: request.procedure, params, restarts: 0, age: Age::NEW };
                if !self.divert(invocation, sink) {
                    self.run(invocation, sink);
                }
            }
        }
    }

    /// Brings index buckets, then tuples, then the neighbours in the chain near, for all requests of a window: the cache misses of different
    /// transactions overlap instead of following each other.
    fn prefetch(&self, input: &[u8], window: &[RequestHead]) {
        let mut keys = [NO_KEY; PREFETCH_WINDOW];
        for (request, slot) in window.iter().zip(&mut keys) {
            *slot = self.prefetch_first_key(request.procedure, request.params(input));
        }
        self.prefetch_tuples(&keys);
    }

    /// The first step for one transaction: table and hash of the key that it looks up first.
    #[inline]
    fn prefetch_first_key(&self, procedure: u16, params: &[u8]) -> (TableId, u64) {
        let Some((table, key)) = self.procedures.get(procedure).and_then(|procedure| procedure.first_key(params))
        else {
            return NO_KEY;
        };
        let hash = hash_key(key);
        self.tables[usize::from(table)].prefetch_bucket(hash);
        (table, hash)
    }

    /// The other steps.
    #[inline]
    fn prefetch_tuples(&self, keys: &[(TableId, u64); PREFETCH_WINDOW]) {
        let mut tuples = [None; PREFETCH_WINDOW];
        for (&(table, hash), tuple) in keys.iter().zip(&mut tuples) {
            if table != NO_KEY.0 {
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
        self.forget_wants();
        write_reply(sink.buffer(origin.connection, origin.epoch), origin.token, Status::Failed, reason.as_bytes());
    }

    /// Runs one transaction until it has ended or waits for blocks.
    #[inline]
    fn run<S: ReplySink>(&mut self, mut invocation: Invocation<'_>, sink: &mut S) {
        let restarts = invocation.restarts;
        while let Some(table) = self.attempt(invocation, sink) {
            let started = Instant::now();
            let room = self.make_room_to_rerun(usize::from(table), (invocation.restarts, invocation.age), sink);
            self.pauses.add(PauseKind::Turn, started);
            match room {
                Ok(()) => {}
                Err(Refusal::AfterRelease) => {
                    let age = self.settled_age(invocation.age);
                    // It counts if it got memory that did not suffice, not that it waits.
                    let restarts = invocation.restarts.min(restarts + 1);
                    let mut waiter = Invocation { restarts, ..invocation }.to_waiter();
                    waiter.forgive_restart();
                    self.forget_wants();
                    self.park_until_release(waiter, age);
                    return;
                }
                // What it got so far was not all that it needs, and it keeps nothing of it.
                Err(Refusal::AfterOthers) => return self.queue_behind(Invocation { restarts, ..invocation }),
                Err(Refusal::Never(reason)) => return self.refuse(invocation.origin, &reason, sink),
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
            partition: self.id as u16,
            partitions: self.partitions,
            peers: Vec::new(),
            tables: &mut self.tables,
            meter: &mut self.meter,
            undo: &mut self.undo,
            footprint: &mut self.footprint,
            reply: &mut *out,
            refused_for_memory: false,
            sampled,
            unsynced_seen: 0,
            unsynced_deletes: self.log.as_ref().map_or(0, CommandLog::unsynced_deletes),
        };
        let outcome = procedure.execute(&mut txn, invocation.params);
        let unsynced_seen = txn.unsynced_seen & self.awaited_by_readers;
        match outcome {
            Ok(()) => {
                self.counters.sampled += u64::from(sampled);
                self.commit(invocation, unsynced_seen, out, start);
                self.forget_wants();
            }
            Err(Abort::User(reason)) => {
                self.undo_changes();
                self.forget_wants();
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
            self.mark_changes(mark);
        }
        let Some(log) = &mut self.log else { return };
        log.hold(if wrote { 0 } else { unsynced_seen }, invocation.origin, &out[start..]);
        out.truncate(start);
        self.forget_changes();
    }

    /// Marks what the transaction has written with the flag of its log group.
    #[inline]
    fn mark_changes(&mut self, mark: u8) {
        let Some(log) = &mut self.log else { return };
        for change in self.undo.changes() {
            // Under the key that an update has taken away, a look-up finds nothing, as after a deletion.
            let takes_key = match *change {
                Change::Update { table, offset, .. } => self.tables[usize::from(table)].is_indexed(offset as usize),
                Change::Value { table, var, .. } => self.tables[usize::from(table)].is_indexed_value(var),
                Change::Number { .. } | Change::Insert { .. } | Change::Delete { .. } => false,
            };
            if takes_key {
                log.mark_deleted();
            }
            match *change {
                Change::Update { table, tuple, .. }
                | Change::Number { table, tuple, .. }
                | Change::Value { table, tuple, .. }
                | Change::Insert { table, tuple } => {
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

    /// The context of this partition for a transaction on several; the base partition's writes the `reply`.
    fn context<'run>(&'run mut self, reply: Option<&'run mut Vec<u8>>, sampled: bool) -> TxnContext<'run> {
        self.footprint.clear();
        TxnContext {
            partition: self.id as u16,
            partitions: self.partitions,
            peers: Vec::new(),
            tables: &mut self.tables,
            meter: &mut self.meter,
            undo: &mut self.undo,
            footprint: &mut self.footprint,
            reply: reply.unwrap_or(&mut self.peer_reply),
            refused_for_memory: false,
            sampled,
            unsynced_seen: 0,
            unsynced_deletes: self.log.as_ref().map_or(0, CommandLog::unsynced_deletes),
        }
    }

    fn undo_changes(&mut self) {
        roll_back(&mut self.tables, &mut self.undo, &mut self.meter);
    }

    /// Ends the undo log of a transaction that committed: what it deleted is freed now.
    #[inline]
    fn forget_changes(&mut self) {
        for change in self.undo.changes() {
            match *change {
                Change::Delete { table, tuple } => self.tables[usize::from(table)].free_detached(tuple),
                Change::Value { table, old, .. } => self.tables[usize::from(table)].free_value(old),
                Change::Update { .. } | Change::Number { .. } | Change::Insert { .. } => {}
            }
        }
        self.undo.clear();
    }

    /// Whether the replies to some of a connection's requests have yet to be written.
    pub fn owes_replies(&self, connection: u32, epoch: u32) -> bool {
        let of = |origin: &Origin| origin.connection == connection && origin.epoch == epoch;
        self.waiting.iter().flatten().filter_map(Waiting::origin).any(|origin| of(&origin))
            || self.owes_multi(connection, epoch)
            || self.log.as_ref().is_some_and(|log| log.held_origins().any(of))
    }

    /// Whether the command log has failed, and with it everything that wants to commit.
    pub(crate) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }
}
