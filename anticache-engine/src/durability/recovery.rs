//! Recovery (paper §3.6): the last durable snapshot, then the command log from there on, give exactly the state that was acknowledged.
//!
//! 1. Each partition's snapshot file is read from beginning to end (`load.rs`).
//! 2. The transactions of the command logs from the snapshot's sequences on are run again (`replay.rs`), in each log one after the other; one that needs
//!    evicted tuples waits for them before the next one runs. What a crash has left of a multi-partition transaction in some logs and not in
//!    others, and what may depend on it, is not ([`super::multi_recovery`]).
//! 3. When all have been run, the command logs go on behind the last record that was; what is behind it is given up for good. A crash in between leaves
//!    some logs cut and others not; the next recovery finds the same cuts for the others, because what it misses in those cut is what was given up.
//!
//! The first two steps happen at the partitions side by side. Nothing that the snapshots or the logs consist of is overwritten meanwhile, so recovery can be
//! interrupted and started again at any point. The order of the LRU chains is not part of a snapshot: it is the order in which tuples are read.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::command_log::CommandLog;
use super::log_reader::LogSummary;
use super::replay::{Replayed, replay_logs};
use super::snapshot::keeper::Keeper;
use crate::catalog::Catalog;
use crate::config::{Config, Log};
use crate::error::StartError;
use crate::io::files::Files;
use crate::partition::Partition;
use crate::partition::multi::Coordinator;
use crate::procedure::ProcedureSet;
use crate::storage::table::Table;

mod load;

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

impl Site<'_> {
    /// All partitions of the database in the configuration's data directory: recovered from what an earlier server left there, or new.
    ///
    /// # Errors
    /// When the directory cannot be recovered, or the configuration not be served.
    pub fn open(self) -> Result<Opened, StartError> {
        let directory = &self.config.data_dir;
        let (mut keeper, recovers) = Keeper::open(self.files, directory, self.config, self.catalog, self.schema)?;
        let mut partitions = if recovers { self.recover(&mut keeper)? } else { self.create()? };
        keeper.ready(self.config, partitions.iter().map(Partition::first_segment))?;
        let coordinator = Coordinator::new(self.config.partitions, keeper.next_transaction());
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

    fn recover(self, keeper: &mut Keeper) -> Result<Vec<Partition>, StartError> {
        let started = Instant::now();
        let load = |id| load::load(self, id, keeper.part(id), keeper.generation());
        let ids = (0..self.config.partitions).collect();
        let partitions = self.each_partition(ids, load).into_iter().collect::<Result<Vec<_>, StartError>>()?;
        let live = |table: &Table| table.tuples().live() + table.evicted().live();
        let tuples: Vec<u64> = partitions.iter().map(|partition| partition.tables().iter().map(live).sum()).collect();
        let mut recovered = if self.config.log == Log::Sync {
            replay_logs(self, keeper, partitions)?
        } else {
            Replayed { logs: vec![LogSummary::default(); partitions.len()], partitions, next_transaction: 1 }
        };
        keeper.seen_below(recovered.next_transaction);
        for ((partition, log), tuples) in recovered.partitions.iter_mut().zip(recovered.logs).zip(tuples) {
            if self.config.log == Log::Sync {
                self.resume_log(partition, &log)?;
            }
            let beyond_budget = partition.counters.recovered_beyond_budget;
            partition.forget_counters();
            let snapshot_bytes = keeper.part(partition.id()).bytes;
            let counters = &mut partition.counters;
            counters.recovery_us = started.elapsed().as_micros() as u64;
            counters.recovered_snapshot_bytes = snapshot_bytes;
            counters.recovered_tuples = tuples;
            counters.recovered_log_records = log.records;
            counters.recovered_log_bytes = log.bytes;
            counters.recovered_beyond_budget = beyond_budget;
        }
        Ok(recovered.partitions)
    }

    /// Step 3.
    fn resume_log(self, partition: &mut Partition, log: &LogSummary) -> Result<(), StartError> {
        let (files, directory, id) = (self.files, &self.config.data_dir, partition.id());
        let (bytes, names) = (self.config.log_segment_bytes, self.procedures.names());
        let trimmed = CommandLog::trim(files, directory, id, log.end);
        trimmed.map_err(StartError::system("give back unused space of the command log"))?;
        let resumed = CommandLog::resume(files, directory, id, bytes, names, log.next_segment(), log.next_sequence);
        partition.set_log(&**files, self.config, resumed.map_err(StartError::system("continue the command log"))?);
        Ok(())
    }

    /// Does something for each partition: side by side, or one after the other where the order must be reproducible.
    pub(super) fn each_partition<T: Send, R: Send>(self, given: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
        if self.files.is_simulated() || given.len() == 1 {
            return given.into_iter().map(work).collect();
        }
        std::thread::scope(|scope| {
            let work = &work;
            let threads: Vec<_> = given.into_iter().map(|given| scope.spawn(move || work(given))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        })
    }
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
