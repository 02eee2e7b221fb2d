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
use std::time::Duration;

use crate::anticache::chain::LruChain;
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
use crate::procedure::ProcedureSet;
use crate::stats::{Counters, Pauses};
use crate::storage::meter::MemoryMeter;
use crate::storage::table::Table;
use crate::storage::tuples::{TupleId, flag};
use crate::storage::undo::UndoLog;
use crate::txn::Footprint;

mod admission;
mod execute;
mod gauges;
pub mod multi;
mod replay;
mod room;
mod sampler;
mod turn;
mod waiting;

pub(crate) use admission::Age;
use execute::Invocation;
pub(crate) use replay::Replies;
use sampler::Sampler;
pub(crate) use turn::IoTag;
pub(crate) use waiting::{Waiting, WaitingId};

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
        let chain =
            |evictable| (anticache.is_some() && evictable).then(|| LruChain::with_probation(config.probation_share));
        let tables: io::Result<Vec<_>> = catalog
            .tables()
            .iter()
            .map(|def| Table::new(def.clone(), chain(def.evictable), budget_bytes, &mut meter))
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
        self.sampler.set_alpha(config.alpha());
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
