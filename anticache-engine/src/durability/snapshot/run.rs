//! One partition's part in a snapshot: begun between two transactions, carried on a step at a time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::format::{BLOCK_ITEM_BYTES, Beginning, EXTENT_HEADER_BYTES, Kind, Owner, TableSize, write_block};
use super::stream::{BUFFERS, Stream};
use crate::catalog::TableId;
use crate::config::{AntiCaching, Config, Log};
use crate::events::{Amounts, EventKind};
use crate::io::AlignedBuf;
use crate::io::files::DiskFile;
use crate::io::ring::Completion;
use crate::partition::{IoTag, Partition};
use crate::stats::PauseKind;
use crate::storage::table::Table;

/// Numbers of the operations of a snapshot, in their tags.
pub(super) const WRITE: u32 = 0;
const SYNC_SNAPSHOT: u32 = 1;
const SYNC_BLOCKS: u32 = 2;

/// Extents are a 64th of the budget, within these bounds: the lower one holds the longest row, the upper one is copied in a fraction of a millisecond.
const EXTENT_BYTES: std::ops::RangeInclusive<usize> = 16 << 10..=256 << 10;

/// Extents that may be saved ahead before transactions wait for the disk, besides a block.
const EXTENTS_AHEAD: usize = 2;

/// While transactions run, a snapshot leaves them this many times as long as its last step took before it takes the next one.
const PACE: u32 = 3;

/// What a partition has contributed to a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartSnapshot {
    /// The records of its command log below are contained.
    pub sequence: u64,
    /// The segment of its command log in which the following records begin, at the earliest; none without a log.
    pub first_segment: Option<u64>,
    /// Length of the snapshot file.
    pub bytes: u64,
    /// Above the number of every multi-partition transaction that it contains.
    pub next_transaction: u64,
}

/// A partition's part in a snapshot has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Which snapshot.
    pub generation: u64,
    /// What was written and synced, or why it was given up.
    pub result: Result<PartSnapshot, String>,
}

/// What became of a snapshot in which a partition took part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The manifest names it.
    Durable,
    /// It counts for nothing.
    Abandoned,
    /// The manifest could not be replaced, or nobody knows whether it was.
    InDoubt,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Tables are passed over; this one is next.
    Tables(usize),
    /// The Block Table is written, from this id on.
    Blocks(u32),
    /// The last extent is to be written.
    End,
    /// Everything is handed over; writes, blocks and log are awaited.
    Writes,
    /// So many syncs are awaited.
    Syncs(u32),
    /// It is given up; flags are taken away, from this table on.
    Discard(usize),
    /// Ended; the verdict is awaited.
    Ended,
}

/// A snapshot under way.
#[derive(Debug)]
struct Run {
    owner: Owner,
    sequence: u64,
    first_segment: Option<u64>,
    next_transaction: u64,
    stream: Stream,
    phase: Phase,
    tables: usize,
    /// Why it was given up.
    problem: Option<String>,
}

/// When the next step may be taken.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// Transactions executed when the last step ended: when there are no more, there is nobody to leave time to.
    executed: u64,
    next_at: Instant,
}

/// What a partition keeps for its snapshots.
#[derive(Debug)]
pub(crate) struct Snapshots {
    extent_bytes: usize,
    /// What may be saved ahead before transactions wait: all of a block that is evicted at once, and what transactions change while that is written.
    ahead_bytes: usize,
    /// Whether the budget has room set aside for the buffers all the time, because snapshots are taken from time to time.
    reserved: bool,
    buffers: Vec<AlignedBuf>,
    run: Option<Run>,
    ended: Option<Ended>,
    pace: Option<Pace>,
    /// Bytes of the command log when the last snapshot began.
    log_bytes_at_last: u64,
    /// Why no snapshot can be taken any more: the block file could not be synced, and what was written before never counts as durable.
    unsyncable: Option<String>,
}

impl Snapshots {
    /// `paced` = transactions get their share of the time; not where everything must happen in an order that a seed decides.
    pub(crate) fn new(config: &Config, paced: bool) -> Self {
        let part = usize::try_from(config.partition_budget_bytes() / 64).unwrap_or(usize::MAX / 4);
        let extent_bytes = part.next_power_of_two().clamp(*EXTENT_BYTES.start(), *EXTENT_BYTES.end());
        let block_bytes = if config.anticaching == AntiCaching::Off { 0 } else { config.eviction_block_bytes };
        let automatic = config.snapshot_interval_s > 0 || config.snapshot_log_bytes > 0;
        Self {
            extent_bytes,
            ahead_bytes: EXTENTS_AHEAD * extent_bytes + block_bytes,
            reserved: automatic && config.log != Log::Off,
            buffers: Vec::new(),
            run: None,
            ended: None,
            pace: paced.then(|| Pace { executed: 0, next_at: Instant::now() }),
            log_bytes_at_last: 0,
            unsyncable: None,
        }
    }

    /// Operations in flight at once.
    pub(crate) const OPERATIONS: usize = BUFFERS + 2;

    /// Bytes of the buffers, and of what may be saved ahead before transactions wait.
    pub(crate) fn staging_bytes(&self) -> u64 {
        (BUFFERS * self.extent_bytes + self.ahead_bytes) as u64
    }

    /// The part of the memory budget that is set aside all the time.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        if self.reserved { self.staging_bytes() } else { 0 }
    }

    /// What counts against the memory budget now.
    pub(crate) fn counted_bytes(&self) -> u64 {
        if self.reserved || self.run.is_some() { self.staging_bytes() } else { 0 }
    }

    /// How long until the next step can be taken, when transactions were `executed` so far; None when something else has to happen before.
    pub(crate) fn steps_in(&self, executed: u64) -> Option<Duration> {
        let pause = self.pace.filter(|pace| pace.executed != executed);
        let pause = pause.map_or(Duration::ZERO, |pace| pace.next_at.saturating_duration_since(Instant::now()));
        self.can_step().then_some(pause)
    }

    fn can_step(&self) -> bool {
        self.run.as_ref().is_some_and(|run| match run.phase {
            Phase::Tables(_) | Phase::Blocks(_) | Phase::End => run.stream.has_buffer(),
            Phase::Discard(at) => at < run.tables || run.stream.in_flight() == 0,
            Phase::Writes => run.stream.has_open(),
            Phase::Syncs(_) | Phase::Ended => false,
        })
    }
}

fn size(table: &Table) -> TableSize {
    TableSize { entries: table.evicted().len() as u32, tuples: table.tuple_count() as u32 }
}

impl Partition {
    /// Begins this partition's part in a snapshot: its state of this moment is written to `file`, an empty file. Must come between two transactions, and at
    /// all partitions at one point of the order of multi-partition transactions ([`crate::partition::multi::Coordinator::barrier`]).
    /// Afterwards [`Partition::poll`] carries it on, and [`Partition::snapshot_ended`] says when it has ended.
    pub fn begin_snapshot(&mut self, generation: u64, file: Arc<dyn DiskFile>) {
        let started = Instant::now();
        self.snapshots.log_bytes_at_last = self.log.as_ref().map_or(0, |log| log.bytes_written);
        if let Err(problem) = self.try_begin_snapshot(generation, file) {
            self.counters.snapshot_errors += 1;
            self.snapshots.ended = Some(Ended { generation, result: Err(problem) });
        }
        self.pauses.add(PauseKind::Snapshot, started);
        self.pauses.add(PauseKind::Turn, started);
    }

    fn try_begin_snapshot(&mut self, generation: u64, file: Arc<dyn DiskFile>) -> Result<(), String> {
        if let Some(run) = &self.snapshots.run {
            return Err(format!("snapshot {} is under way", run.owner.generation));
        }
        if let Some(problem) = &self.snapshots.unsyncable {
            return Err(problem.clone());
        }
        // Blocks under construction are referred to: they are on their way to disk from now on.
        self.finish_eviction();
        let owner = Owner { partition: self.id(), generation };
        let sequence = self.log_sequence();
        let beginning = Beginning {
            sequence,
            begun_us: std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(0, |since| since.as_micros() as u64),
            extent_bytes: self.snapshots.extent_bytes as u32,
            block_bytes: self.anticache.as_ref().map_or(0, |anticache| anticache.blocks.block_bytes() as u32),
            block_ids: self.anticache.as_ref().map_or(0, |anticache| anticache.blocks.high_water() as u32),
            tables: self.tables.iter().map(size).collect(),
        };
        if EXTENT_HEADER_BYTES + beginning.bytes() > self.snapshots.extent_bytes {
            return Err(format!("{} tables do not fit in an extent", self.tables.len()));
        }
        let buffers = std::mem::take(&mut self.snapshots.buffers);
        let mut stream = Stream::new(file, owner, self.snapshots.extent_bytes, buffers);
        if !stream.begin(&mut self.ring, &beginning) {
            return Err("no operation can be started".to_owned());
        }
        if !self.snapshots.reserved {
            self.meter.take(self.snapshots.staging_bytes());
        }
        for (number, table) in self.tables.iter_mut().enumerate() {
            table.begin_capture(number as TableId);
        }
        if let Some(anticache) = &mut self.anticache {
            anticache.blocks.begin_snapshot();
        }
        self.events.add(EventKind::SnapshotBegin, Amounts::default());
        let first_segment = self.log.as_ref().map(|log| log.segment_holding(sequence));
        self.snapshots.run = Some(Run {
            owner,
            sequence,
            first_segment,
            next_transaction: self.next_transaction(),
            stream,
            phase: Phase::Tables(0),
            tables: self.tables.len(),
            problem: None,
        });
        Ok(())
    }

    /// That this partition's part in a snapshot has ended; told once.
    pub fn snapshot_ended(&mut self) -> Option<Ended> {
        self.snapshots.ended.take()
    }

    /// Bytes of the command log since the last snapshot began.
    pub fn log_bytes_since_snapshot(&self) -> u64 {
        self.log.as_ref().map_or(0, |log| log.bytes_written - self.snapshots.log_bytes_at_last)
    }

    /// Ends a snapshot for which all partitions have [ended](Partition::snapshot_ended): releases what it makes superfluous.
    pub fn end_snapshot(&mut self, generation: u64, verdict: Verdict) {
        let Some(run) = self.snapshots.run.take_if(|run| run.owner.generation == generation) else {
            return;
        };
        let started = Instant::now();
        debug_assert_eq!(run.phase, Phase::Ended);
        if let Some(anticache) = &mut self.anticache {
            match verdict {
                Verdict::Durable => {
                    let delta = anticache.blocks.snapshot_durable();
                    self.counters.snapshot_blocks_added += delta.added;
                    self.counters.snapshot_blocks_removed += delta.removed;
                }
                Verdict::Abandoned => anticache.blocks.snapshot_abandoned(false),
                Verdict::InDoubt => anticache.blocks.snapshot_abandoned(true),
            }
        }
        if verdict == Verdict::Durable {
            self.counters.snapshots += 1;
            self.counters.snapshot_bytes += run.stream.bytes;
            self.events.add(EventKind::SnapshotEnd, Amounts { bytes: run.stream.bytes, ..Amounts::default() });
            if let Some(log) = &mut self.log {
                log.truncate_before(run.sequence);
            }
        } else {
            self.counters.snapshot_errors += u64::from(run.problem.is_none());
        }
        if self.snapshots.reserved {
            self.snapshots.buffers = run.stream.into_buffers();
        } else {
            self.meter.give_back(self.snapshots.staging_bytes());
        }
        self.pauses.add(PauseKind::Snapshot, started);
        self.pauses.add(PauseKind::Turn, started);
    }

    /// Transactions executed so far, restarts included.
    pub(crate) fn executed(&self) -> u64 {
        self.counters.committed + self.counters.aborted + self.counters.restarted
    }

    /// Carries a snapshot on by one step, if it is time: at most one extent is copied.
    pub(crate) fn step_snapshot(&mut self) {
        let executed = self.executed();
        if self.snapshots.steps_in(executed).is_some_and(|pause| !pause.is_zero()) {
            return;
        }
        let Some(mut run) = self.snapshots.run.take() else {
            return;
        };
        let started = Instant::now();
        run.stream.quota_bytes = self.snapshots.extent_bytes;
        self.notice_problems(&mut run);
        let (stream, ring) = (&mut run.stream, &mut self.ring);
        if self.tables.iter_mut().all(|table| table.drain_capture(|item| stream.put_item(ring, item))) {
            self.advance(&mut run);
        }
        run.stream.quota_bytes = usize::MAX;
        self.snapshots.run = Some(run);
        let elapsed = started.elapsed();
        if let Some(pace) = &mut self.snapshots.pace {
            *pace = Pace { executed, next_at: Instant::now() + PACE * elapsed };
        }
        self.counters.snapshot_step_us_max = self.counters.snapshot_step_us_max.max(elapsed.as_micros() as u64);
        self.pauses.add_us(PauseKind::Snapshot, elapsed.as_micros() as u64);
    }

    fn notice_problems(&mut self, run: &mut Run) {
        let spoiled = self.anticache.as_ref().and_then(|anticache| anticache.blocks.snapshot_spoiled());
        if let Some(block_id) = spoiled {
            self.abandon_snapshot(run, format!("block {block_id} could not be written"));
        }
        if self.has_failed() {
            self.abandon_snapshot(run, "the command log has failed".to_owned());
        }
    }

    fn advance(&mut self, run: &mut Run) {
        match run.phase {
            Phase::Tables(at) => {
                let (stream, ring) = (&mut run.stream, &mut self.ring);
                match self.tables.get_mut(at).map(|table| table.capture(|item| stream.put_item(ring, item))) {
                    Some(true) => run.phase = Phase::Tables(at + 1),
                    None if stream.close_extents(ring) => run.phase = Phase::Blocks(0),
                    Some(false) | None => {}
                }
            }
            Phase::Blocks(from) => match self.snapshot_blocks(run, from) {
                Some(next) => run.phase = Phase::Blocks(next),
                None if run.stream.close_extents(&mut self.ring) => run.phase = Phase::End,
                None => run.phase = Phase::Blocks(u32::MAX),
            },
            Phase::End => {
                if run.stream.end(&mut self.ring) {
                    run.phase = Phase::Writes;
                }
            }
            Phase::Writes => {
                if run.stream.close_extents(&mut self.ring) && self.snapshot_is_written(run) {
                    self.sync_snapshot(run);
                }
            }
            Phase::Discard(at) => match self.tables.get_mut(at).map(|table| table.capture(|_| true)) {
                Some(true) => run.phase = Phase::Discard(at + 1),
                None if run.stream.in_flight() == 0 => {
                    let problem = run.problem.clone().unwrap_or_default();
                    self.snapshot_part_ended(run, Err(problem));
                }
                Some(false) | None => {}
            },
            Phase::Syncs(_) | Phase::Ended => {}
        }
    }

    fn snapshot_blocks(&mut self, run: &mut Run, from: u32) -> Option<u32> {
        let (stream, ring) = (&mut run.stream, &mut self.ring);
        self.anticache.as_ref()?.blocks.snapshot_blocks(from, |state| {
            let put = stream.put(ring, Kind::Blocks, BLOCK_ITEM_BYTES, |out| {
                write_block(&state.identity, state.tuples, state.used_bytes, out)
            });
            stream.totals.blocks += u64::from(put);
            put
        })
    }

    /// Whether everything that the snapshot relies on is in its file, and the transactions that it contains are durable.
    fn snapshot_is_written(&self, run: &Run) -> bool {
        run.stream.in_flight() == 0
            && self.anticache.as_ref().is_none_or(|anticache| anticache.blocks.snapshot_awaits() == 0)
            && self.log.as_ref().is_none_or(|log| log.durable_sequence() >= run.sequence)
            && self.ring.has_room()
    }

    fn sync_snapshot(&mut self, run: &mut Run) {
        let mut syncs = 1;
        self.ring.fsync(&run.stream.file, IoTag::Snapshot(SYNC_SNAPSHOT).pack());
        if let Some(anticache) = &self.anticache {
            // One place was found free; the second is among those that the ring has for snapshots.
            self.ring.fsync(anticache.blocks.file(), IoTag::Snapshot(SYNC_BLOCKS).pack());
            syncs += 1;
        }
        run.phase = Phase::Syncs(syncs);
    }

    fn snapshot_part_ended(&mut self, run: &mut Run, result: Result<PartSnapshot, String>) {
        run.phase = Phase::Ended;
        self.snapshots.ended = Some(Ended { generation: run.owner.generation, result });
    }

    fn abandon_snapshot(&mut self, run: &mut Run, problem: String) {
        if run.problem.is_some() || run.phase == Phase::Ended {
            return;
        }
        self.counters.snapshot_errors += 1;
        run.problem = Some(problem);
        run.phase = match run.phase {
            // Their completions come while flags are taken away; there are none left then.
            Phase::Syncs(left) => Phase::Syncs(left),
            _ => Phase::Discard(0),
        };
        self.tables.iter_mut().for_each(Table::discard_capture);
        run.stream.discard();
    }

    /// An operation of the snapshot under way ended.
    pub(crate) fn snapshot_io_ended(&mut self, number: u32, completion: Completion) {
        let Some(mut run) = self.snapshots.run.take() else {
            return;
        };
        let what = match number {
            WRITE => "writing the snapshot",
            SYNC_SNAPSHOT => "syncing the snapshot",
            _ => "syncing the block file",
        };
        let problem = completion.result.err().map(|error| format!("{what}: {error}"));
        if let Some(problem) = &problem {
            if number == SYNC_BLOCKS {
                self.snapshots.unsyncable =
                    Some(format!("{problem}; no block written before is certain to be on disk: restart the server"));
            }
            self.abandon_snapshot(&mut run, problem.clone());
        }
        if number == WRITE {
            run.stream.written(completion.buffers.into_vec());
        }
        if let Phase::Syncs(left) = run.phase
            && number != WRITE
        {
            run.phase = Phase::Syncs(left - 1);
            if left == 1 {
                let Run { sequence, first_segment, next_transaction, .. } = run;
                let bytes = run.stream.bytes;
                let part = PartSnapshot { sequence, first_segment, bytes, next_transaction };
                match &run.problem {
                    None => self.snapshot_part_ended(&mut run, Ok(part)),
                    Some(_) => run.phase = Phase::Discard(0),
                }
            }
        }
        self.snapshots.run = Some(run);
    }

    /// Bytes that were saved ahead of a snapshot and wait to be written out.
    pub(crate) fn snapshot_backlog_bytes(&self) -> usize {
        if self.snapshots.run.is_none() {
            return 0;
        }
        self.tables.iter().map(Table::captured_ahead_bytes).sum()
    }

    /// Whether so much was saved ahead that no block can be evicted, of which all has to be, before the disk has taken some of it.
    pub(crate) fn snapshot_delays_evictions(&mut self) -> bool {
        self.is_behind(self.snapshots.extent_bytes)
    }

    /// Whether so much was saved ahead that transactions have to wait until the disk has taken some of it.
    pub(crate) fn snapshot_delays_transactions(&mut self) -> bool {
        self.is_behind(self.snapshots.ahead_bytes)
    }

    /// Whether more than `most_bytes` are saved ahead that cannot be handed to the disk now.
    fn is_behind(&mut self, most_bytes: usize) -> bool {
        if self.snapshot_backlog_bytes() > most_bytes {
            self.drain_snapshot();
        }
        self.snapshot_backlog_bytes() > most_bytes
    }

    /// Writes out what was saved ahead, as far as there are buffers.
    fn drain_snapshot(&mut self) {
        let Some(run) = &mut self.snapshots.run else {
            return;
        };
        let (stream, ring) = (&mut run.stream, &mut self.ring);
        for table in &mut self.tables {
            if !table.drain_capture(|item| stream.put_item(ring, item)) {
                return;
            }
        }
    }
}
