//! Recovery (paper §3.6): the last durable snapshot, then the command log from there on, give exactly the state that was acknowledged.
//!
//! 1. Each partition reads its snapshot file from beginning to end (`load.rs`).
//! 2. The logs are looked through for multi-partition transactions that a crash has left in some of them only, and cut there ([`super::multi_recovery`]).
//! 3. Each partition runs the transactions of its command log from the snapshot's sequence on again, one after the other; one that needs evicted tuples
//!    waits for them before the next one runs; one on several partitions is run when it is next at all of them.
//! 4. Its command log goes on behind the last of them.
//!
//! All of this happens at the partitions side by side. Nothing that the snapshots or the logs consist of is overwritten meanwhile, so recovery can be
//! interrupted and started again at any point. The order of the LRU chains is not part of a snapshot: it is the order in which tuples are read.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::command_log::CommandLog;
use super::log_reader::{LogSummary, Record, read_log_from};
use super::manifest::Part;
use super::multi_recovery::{MultiRecord, cuts};
use super::snapshot::keeper::Keeper;
use crate::catalog::Catalog;
use crate::config::{Config, Log};
use crate::error::{RecoveryError, StartError};
use crate::io::files::Files;
use crate::partition::Partition;
use crate::partition::multi::{Coordinator, ReplayMeetings};
use crate::procedure::ProcedureSet;

mod load;

/// Transactions replayed between two looks at what is under way at the disk.
const REPLAYED_BETWEEN_POLLS: u64 = 16;

/// What the partitions of a site are opened with.
#[derive(Clone, Copy)]
pub struct Site<'a> {
    /// The disk.
    pub files: &'a Arc<dyn Files>,
    /// Configuration.
    pub config: &'a Config,
    /// Schema.
    pub catalog: &'a Catalog,
    /// Text of the schema.
    pub schema: &'a str,
    /// Procedures.
    pub procedures: &'a ProcedureSet,
}

/// A site that is ready to work.
pub struct Opened {
    /// The keeper of its data directory.
    pub keeper: Keeper,
    /// What its partitions have joined.
    pub coordinator: Arc<Coordinator>,
    /// Its partitions.
    pub partitions: Vec<Partition>,
}

/// What recovery keeps of the logs.
struct Kept {
    /// By partition, the sequence of the first record that is dropped.
    cuts: Vec<Option<u64>>,
    /// The lowest number that a multi-partition transaction may have from now on.
    next_transaction: u64,
}

/// Where the threads that replay logs meet.
struct Replays {
    coordinator: Coordinator,
    meetings: ReplayMeetings,
    /// What went wrong first; what the others say follows from it.
    problem: Mutex<Option<RecoveryError>>,
}

impl Site<'_> {
    /// All partitions of the database in the configuration's data directory: recovered from what an earlier server left there, or new.
    ///
    /// # Errors
    /// When the directory cannot be recovered, or the configuration not be served.
    pub fn open(self) -> Result<Opened, StartError> {
        let directory = &self.config.data_dir;
        let (mut keeper, recovers) = Keeper::open(self.files, directory, self.config, self.catalog, self.schema)?;
        let (mut partitions, next_transaction) = if recovers { self.recover(&keeper)? } else { (self.create()?, 1) };
        keeper.ready(self.config, partitions.iter().map(Partition::first_segment))?;
        let coordinator = Coordinator::new(self.config.partitions, next_transaction);
        let coordinator = Arc::new(coordinator.map_err(StartError::system("create eventfds"))?);
        partitions.iter_mut().for_each(|partition| partition.join(&coordinator));
        Ok(Opened { keeper, coordinator, partitions })
    }

    fn create(self) -> Result<Vec<Partition>, StartError> {
        let create = |id| {
            let (procedures, directory) = (self.procedures.clone(), &self.config.data_dir);
            Partition::create_on(self.files, id, self.config, self.catalog, procedures, directory)
        };
        (0..self.config.partitions).map(create).collect()
    }

    fn recover(self, keeper: &Keeper) -> Result<(Vec<Partition>, u64), StartError> {
        let ids = 0..self.config.partitions;
        let load = |id| {
            let started = Instant::now();
            let mut partition = load::load(self, id, keeper.part(id), keeper.generation())?;
            let tuples = partition.tables().iter().map(|table| table.tuples().live() + table.evicted().live()).sum();
            partition.forget_counters();
            partition.counters.recovered_tuples = tuples;
            partition.counters.recovered_snapshot_bytes = keeper.part(id).bytes;
            partition.counters.recovery_us = started.elapsed().as_micros() as u64;
            Ok(partition)
        };
        let partitions = side_by_side(ids.clone(), load).into_iter().collect::<Result<Vec<_>, StartError>>()?;
        if self.config.log == Log::Off {
            return Ok((partitions, 1));
        }
        let kept = self.what_is_kept(keeper)?;
        let coordinator = Coordinator::new(self.config.partitions, 1).map_err(StartError::system("create eventfds"))?;
        let replays = Replays { coordinator, meetings: ReplayMeetings::default(), problem: Mutex::default() };
        let replay = |partition: Partition| {
            let id = partition.id();
            self.replay_and_resume(partition, keeper.part(id), kept.cuts[id as usize], &replays)
        };
        let replayed = side_by_side(partitions.into_iter(), replay).into_iter().collect::<Result<Vec<_>, _>>();
        if let Some(problem) = replays.problem.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(problem.into());
        }
        Ok((replayed?, kept.next_transaction))
    }

    /// Step 2. A log of one partition alone is kept whole.
    fn what_is_kept(self, keeper: &Keeper) -> Result<Kept, RecoveryError> {
        let partitions = self.config.partitions;
        if partitions == 1 {
            return Ok(Kept { cuts: vec![None], next_transaction: 1 });
        }
        let read = |id| {
            let mut records = Vec::new();
            let from = keeper.part(id).sequence;
            read_log_from(&**self.files, &self.config.data_dir, id, from, |record| {
                let sequence = record.sequence;
                let multi = record.multi.map(|multi| (multi.transaction, multi.participants));
                let multi =
                    multi.map(|(transaction, participants)| MultiRecord { sequence, transaction, participants });
                records.extend(multi);
                ControlFlow::Continue(())
            })?;
            Ok(records)
        };
        let logs = side_by_side(0..partitions, read).into_iter().collect::<Result<Vec<_>, RecoveryError>>()?;
        let last = logs.iter().flatten().map(|record| record.transaction).max();
        Ok(Kept { cuts: cuts(&logs), next_transaction: last.map_or(1, |last| last + 1) })
    }

    /// Steps 3 and 4.
    fn replay_and_resume(
        self,
        partition: Partition,
        part: &Part,
        cut: Option<u64>,
        replays: &Replays,
    ) -> Result<Partition, StartError> {
        let (id, directory) = (partition.id(), &self.config.data_dir);
        let (started, mut counters) = (Instant::now(), *partition.counters());
        let mut seat = Seat { replays, id, stays: false };
        let (mut partition, log) = self.replay_log(partition, part, cut, replays).map_err(|problem| {
            let mut first = replays.problem.lock().unwrap_or_else(PoisonError::into_inner);
            let text = problem.to_string();
            first.get_or_insert(problem);
            RecoveryError::Load { partition: id, problem: text }
        })?;
        seat.stays = true;
        let (bytes, names) = (self.config.log_segment_bytes, self.procedures.names());
        let next_sequence = cut.unwrap_or(log.next_sequence);
        let resumed = CommandLog::resume(self.files, directory, id, bytes, names, log.next_segment(), next_sequence);
        partition.set_log(self.config, resumed.map_err(StartError::system("continue the command log"))?);
        partition.forget_counters();
        counters.recovery_us += started.elapsed().as_micros() as u64;
        counters.recovered_log_records = next_sequence - part.sequence;
        counters.recovered_log_bytes = log.bytes;
        partition.counters = counters;
        Ok(partition)
    }

    fn replay_log(
        self,
        partition: Partition,
        part: &Part,
        cut: Option<u64>,
        replays: &Replays,
    ) -> Result<(Partition, LogSummary), RecoveryError> {
        let (id, directory) = (partition.id(), &self.config.data_dir);
        let disk = partition.ring().event().try_clone_to_owned().map_err(RecoveryError::io(directory))?;
        let mut problem = None;
        // It is moved to whoever runs a transaction with several partitions, and comes back.
        let mut own = Some(Box::new(partition));
        let summary = read_log_from(&**self.files, directory, id, part.sequence, |record| {
            if cut.is_some_and(|cut| record.sequence >= cut) {
                return ControlFlow::Break(());
            }
            let outcome = replay_record(&mut own, &record, replays, std::os::fd::AsFd::as_fd(&disk));
            let Err(what) = outcome else { return ControlFlow::Continue(()) };
            let (sequence, procedure) = (record.sequence, record.procedure.to_owned());
            problem = Some(RecoveryError::Replay { partition: id, sequence, procedure, problem: what });
            ControlFlow::Break(())
        });
        if let Some(problem) = problem {
            return Err(problem);
        }
        let summary = summary?;
        if part.first_segment.is_some_and(|first| summary.last_segment.is_none_or(|last| last < first)) {
            let first = part.first_segment.unwrap_or(0);
            return Err(RecoveryError::Directory {
                directory: directory.clone(),
                problem: format!("segment {first} of the command log of partition {id} is missing, and all behind it"),
            });
        }
        let lost =
            || RecoveryError::Load { partition: id, problem: "it was lost with the thread of another".to_owned() };
        Ok((*own.ok_or_else(lost)?, summary))
    }
}

fn replay_record(
    own: &mut Option<Box<Partition>>,
    record: &Record<'_>,
    replays: &Replays,
    disk: std::os::fd::BorrowedFd<'_>,
) -> Result<(), String> {
    let Some(mut partition) = own.take() else {
        return Err("the partition was lost with the thread of another".to_owned());
    };
    if record.multi.is_some() {
        let (back, outcome) = replays.meetings.replay(&replays.coordinator, partition, disk, record);
        *own = back;
        return outcome;
    }
    let outcome = match partition.procedures.number(record.procedure) {
        Some(procedure) => partition.replay(procedure, record.params),
        None => Err("the server has no procedure of this name".to_owned()),
    };
    if record.sequence.is_multiple_of(REPLAYED_BETWEEN_POLLS) {
        partition.poll_quietly();
    }
    *own = Some(partition);
    outcome
}

/// A thread's place at the meetings: who gives up, or panics, leaves it, and nobody waits for it.
struct Seat<'a> {
    replays: &'a Replays,
    id: u32,
    stays: bool,
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        if !self.stays {
            self.replays.coordinator.leave(self.id);
        }
    }
}

/// Does something for each partition at once; for one alone, in this thread.
fn side_by_side<In: Send, Out: Send>(
    partitions: impl ExactSizeIterator<Item = In>,
    work: impl Fn(In) -> Out + Sync,
) -> Vec<Out> {
    if partitions.len() == 1 {
        return partitions.map(work).collect();
    }
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = partitions.map(|partition| scope.spawn(move || work(partition))).collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended.map(|ended| ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

/// A line for whoever starts the server.
pub fn describe(partition: &Partition) -> String {
    let counters = partition.counters();
    format!(
        "partition {}: recovered in {:.3} s: snapshot of {} bytes with {} tuples, command log of {} bytes with {} transactions",
        partition.id(),
        counters.recovery_us as f64 / 1e6,
        counters.recovered_snapshot_bytes,
        counters.recovered_tuples,
        counters.recovered_log_bytes,
        counters.recovered_log_records
    )
}

/// Reads a schema's text, and what it says.
///
/// # Errors
/// When it cannot be read or served.
pub fn read_schema(path: &Path) -> Result<(String, Catalog), StartError> {
    let read = |source| crate::error::CatalogError::Read { path: path.to_owned(), source };
    let text = std::fs::read_to_string(path).map_err(read)?;
    let catalog = Catalog::from_sql(&text)?;
    Ok((text, catalog))
}
