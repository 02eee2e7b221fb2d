//! Recovery (paper §3.6): the last durable snapshot, then the command log from there on, give exactly the state that was acknowledged.
//!
//! 1. Each partition's snapshot file is read from beginning to end: Evicted Table entries and blocks come back under their numbers, tuples through the
//!    usual insert, so that what does not fit in memory is evicted, into blocks that the snapshot does not refer to.
//! 2. The transactions of the command logs from the snapshot's sequences on are run again ([`super::replay`]), in each log one after the other; one that
//!    needs evicted tuples waits for them before the next one runs. What a crash has left of a multi-partition transaction, and what may depend on it,
//!    is not.
//! 3. When all have been run, the command logs go on behind the last record that was; what is behind it is given up for good. A crash in between leaves
//!    some logs cut and others not; the next recovery finds the same cuts for the others, because what it misses in those cut is what was given up.
//!
//! Nothing that the snapshot or the log consists of is overwritten meanwhile, so recovery can be interrupted and started again at any point. The order of
//! the LRU chains is not part of a snapshot: it is the order in which tuples are read.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use super::command_log::CommandLog;
use super::log_reader::LogSummary;
use super::manifest::Part;
use super::replay::{Replayed, replay_logs};
use super::snapshot::format::{Beginning, Damage, ExtentView, Kind, Owner, Totals, parse_block};
use super::snapshot::keeper::Keeper;
use super::snapshot::reader::SnapshotReader;
use crate::anticache::block::BLOCK_HEADER_BYTES;
use crate::anticache::block_table::{BlockState, BlockTable, Place};
use crate::anticache::evicted_table::EvictedId;
use crate::anticache::{AntiCache, block_file};
use crate::catalog::Catalog;
use crate::config::{AntiCaching, Config, Log};
use crate::error::{RecoveryError, StartError};
use crate::io::files::Files;
use crate::partition::Partition;
use crate::procedure::ProcedureSet;
use crate::storage::table::capture::Item;
use crate::storage::table::{Refused, Table};

/// What every partition is opened with.
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

impl Site<'_> {
    /// All partitions of the database in the configuration's data directory, and the keeper of the directory: recovered from what an earlier server left
    /// there, in parallel, or new. Multi-partition transactions go on from [`Keeper::next_transaction`].
    ///
    /// # Errors
    /// When the directory cannot be recovered, or the configuration not be served.
    pub fn open(self) -> Result<(Keeper, Vec<Partition>), StartError> {
        let directory = &self.config.data_dir;
        let (mut keeper, recovers) = Keeper::open(self.files, directory, self.config, self.catalog, self.schema)?;
        let partitions = if recovers {
            self.recover(&mut keeper)?
        } else {
            let create = |id| {
                let procedures = self.procedures.clone();
                Partition::create_on(self.files, id, self.config, self.catalog, procedures, directory)
            };
            self.each_partition(self.ids(), create).into_iter().collect::<Result<_, _>>()?
        };
        keeper.ready(self.config, partitions.iter().map(Partition::first_segment))?;
        Ok((keeper, partitions))
    }

    fn ids(self) -> Vec<u32> {
        (0..self.config.partitions).collect()
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

    fn recover(self, keeper: &mut Keeper) -> Result<Vec<Partition>, StartError> {
        let started = Instant::now();
        let load = |id| Loader::load(self, id, keeper.part(id), keeper.generation());
        let partitions: Result<Vec<_>, StartError> = self.each_partition(self.ids(), load).into_iter().collect();
        let partitions = partitions?;
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
            partition.forget_counters();
            let snapshot_bytes = keeper.part(partition.id()).bytes;
            let counters = &mut partition.counters;
            counters.recovery_us = started.elapsed().as_micros() as u64;
            counters.recovered_snapshot_bytes = snapshot_bytes;
            counters.recovered_tuples = tuples;
            counters.recovered_log_records = log.records;
            counters.recovered_log_bytes = log.bytes;
        }
        Ok(recovered.partitions)
    }

    /// Step 3.
    fn resume_log(self, partition: &mut Partition, log: &LogSummary) -> Result<(), StartError> {
        let (files, directory, id) = (self.files, &self.config.data_dir, partition.id());
        let (bytes, names) = (self.config.log_segment_bytes, self.procedures.names());
        let resumed = CommandLog::resume(files, directory, id, bytes, names, log.next_segment(), log.next_sequence);
        partition.set_log(self.config, resumed.map_err(StartError::system("continue the command log"))?);
        Ok(())
    }
}

/// Step 1.
struct Loader {
    partition: Partition,
    beginning: Beginning,
    totals: Totals,
    block_file: PathBuf,
    block_file_bytes: u64,
    last_created_us: u64,
}

impl Loader {
    fn load(site: Site<'_>, id: u32, part: &Part, generation: u64) -> Result<Partition, StartError> {
        let Site { files, config, catalog, procedures, .. } = site;
        let directory = &config.data_dir;
        let opened = match &part.snapshot {
            Some(name) => {
                let path = directory.join(name);
                let owner = Owner { partition: id, generation };
                let (reader, beginning) = SnapshotReader::open(&**files, &path, owner, part.bytes)?;
                check(&reader, &beginning, config, catalog, part)?;
                Some((reader, beginning))
            }
            None => None,
        };
        let block_file = block_file(id, directory);
        let mut block_file_bytes = 0;
        let block_ids = opened.as_ref().map_or(0, |(_, beginning)| beginning.block_ids as usize);
        let anticache = match config.anticaching {
            AntiCaching::Off => None,
            _ if block_ids == 0 => Some(AntiCache::create(id, config, &**files, directory)?),
            _ => {
                let blocks = BlockTable::open(&**files, &block_file, config.eviction_block_bytes, block_ids);
                let blocks = blocks.map_err(RecoveryError::io(&block_file))?;
                block_file_bytes = blocks.file().len().map_err(RecoveryError::io(&block_file))?;
                Some(AntiCache::new(id, config, blocks))
            }
        };
        let mut partition = Partition::assemble(files, id, config, catalog, procedures.clone(), anticache)?;
        partition.set_first_sequence(part.sequence);
        let Some((reader, beginning)) = opened else {
            return Ok(partition);
        };
        let totals = Totals::default();
        let loader = Self { partition, beginning, totals, block_file, block_file_bytes, last_created_us: 0 };
        Ok(loader.read(reader)?)
    }

    fn read(mut self, mut reader: SnapshotReader) -> Result<Partition, RecoveryError> {
        let id = self.partition.id();
        for (table, &entries) in self.partition.tables.iter_mut().zip(&self.beginning.entries) {
            let begun = table.begin_restore(entries as usize, &mut self.partition.meter);
            begun.map_err(|problem| RecoveryError::Load { partition: id, problem })?;
        }
        loop {
            let extent = reader.next_extent()?;
            let (kind, entered) = (extent.kind, self.enter(&extent));
            match entered {
                Ok(()) if kind == Kind::End => break,
                Ok(()) => {}
                Err(Refusal::Damage(damage)) => return Err(reader.damaged(damage)),
                Err(Refusal::Error(error)) => return Err(error),
            }
        }
        if !reader.is_at_end() {
            let damage = Damage { expected: "the end of the file".to_owned(), found: "more behind it".to_owned() };
            return Err(reader.damaged(damage));
        }
        match self.end() {
            Ok(partition) => Ok(partition),
            Err(damage) => Err(reader.damaged(damage)),
        }
    }

    fn enter(&mut self, extent: &ExtentView<'_>) -> Result<(), Refusal> {
        let mut error = None;
        let id = self.partition.id();
        let entered = match extent.kind {
            Kind::Rows => extent.each(Item::parse_row, |item| self.enter_row(&item, &mut error)),
            Kind::Entries => extent.each(Item::parse_entry, |item| self.enter_entry(&item)),
            Kind::Blocks => extent.each(
                |bytes| parse_block(id, bytes),
                |(identity, tuples, used_bytes)| {
                    let place = Place::Stored;
                    self.enter_block(BlockState { identity, tuples, used_bytes, holes: 0, place }, &mut error)
                },
            ),
            Kind::End => {
                let expected = format!("{:?}", self.totals);
                match Totals::parse(extent.payload) {
                    Some(totals) if totals == self.totals => Ok(()),
                    found => Err(Damage { expected, found: format!("{found:?}") }),
                }
            }
            Kind::Beginning => {
                Err(Damage { expected: "what follows a beginning".to_owned(), found: "another".to_owned() })
            }
        };
        entered.map_err(|damage| error.map_or(Refusal::Damage(damage), Refusal::Error))
    }

    fn enter_row(&mut self, item: &Item<'_>, error: &mut Option<RecoveryError>) -> Result<(), Damage> {
        let Item::Row { table, row } = *item else { return Ok(()) };
        let at = usize::from(table);
        let mut attempts = 0;
        loop {
            let partition = &mut self.partition;
            let Some(stored) = partition.tables.get_mut(at) else { return Err(unknown_table(table)) };
            let refused = match stored.insert(row, &mut partition.meter) {
                Ok(_) => break,
                Err(refused) => refused,
            };
            let name = stored.def().name.clone();
            let problem = match refused {
                Refused::NeedMemory => partition.make_room_quietly(at, attempts),
                Refused::Duplicate(found) => {
                    return Err(Damage {
                        expected: format!("a row of table {name} once"),
                        found: format!("another, {found:?}"),
                    });
                }
                Refused::Malformed(what) => {
                    return Err(Damage { expected: format!("a row of table {name}"), found: what });
                }
            };
            if let Err(problem) = problem {
                let problem = format!("the snapshot's tuples of table {name} do not fit: {problem}");
                let damage = Damage { expected: "room".to_owned(), found: problem.clone() };
                *error = Some(RecoveryError::Load { partition: self.partition.id(), problem });
                return Err(damage);
            }
            attempts += 1;
        }
        self.totals.rows += 1;
        Ok(())
    }

    fn enter_entry(&mut self, item: &Item<'_>) -> Result<(), Damage> {
        let Item::Entry { table, id, location, image } = *item else { return Ok(()) };
        let partition = &mut self.partition;
        let Some(stored) = partition.tables.get_mut(usize::from(table)) else { return Err(unknown_table(table)) };
        if stored.chain().is_none() {
            let found = format!("an evicted tuple of table {}", stored.def().name);
            let expected =
                "none: with `anticaching` = off, or a table that is not evictable, it cannot be brought back"
                    .to_owned();
            return Err(Damage { expected, found });
        }
        let entered = stored.restore_entry(id, location, image, &mut partition.meter);
        self.totals.entries += 1;
        entered.map_err(|found| Damage { expected: "an Evicted Table entry".to_owned(), found })
    }

    fn enter_block(&mut self, state: BlockState, error: &mut Option<RecoveryError>) -> Result<(), Damage> {
        self.totals.blocks += 1;
        let block_id = state.identity.block_id;
        self.last_created_us = self.last_created_us.max(state.identity.created_us);
        let Some(anticache) = &mut self.partition.anticache else {
            return Err(Damage {
                expected: "no block, with `anticaching` = off".to_owned(),
                found: format!("block {block_id}"),
            });
        };
        let end = anticache.blocks.file_offset(block_id) + anticache.blocks.block_bytes() as u64;
        if end > self.block_file_bytes {
            let damage = Damage {
                expected: format!("block {block_id}, which ends at byte {end}"),
                found: format!("a file of {} bytes", self.block_file_bytes),
            };
            let (path, offset) = (self.block_file.clone(), self.block_file_bytes);
            *error = Some(RecoveryError::Damaged { path, offset, damage: damage.clone() });
            return Err(damage);
        }
        if !anticache.blocks.restore(state) {
            let expected = format!("each block once, below {}", self.beginning.block_ids);
            return Err(Damage { expected, found: format!("block {block_id}") });
        }
        Ok(())
    }

    /// Everything came: counts which tuples of the blocks are still evicted.
    fn end(self) -> Result<Partition, Damage> {
        let Self { mut partition, beginning, last_created_us, .. } = self;
        let mut counts = vec![0; beginning.block_ids as usize];
        if let Some(anticache) = &mut partition.anticache {
            for (table, (stored, &entries)) in partition.tables.iter().zip(&beginning.entries).enumerate() {
                for id in (0..entries as EvictedId).filter(|&id| stored.evicted().is_live(id)) {
                    let location = stored.evicted().location(id);
                    let state = anticache.blocks.find(location.block_id);
                    let fits = state.is_some_and(|state| usize::from(state.identity.table) == table)
                        && (BLOCK_HEADER_BYTES..anticache.blocks.block_bytes()).contains(&(location.offset as usize));
                    if !fits {
                        let found = format!("entry {id} of table {}, which refers to {location:?}", stored.def().name);
                        return Err(Damage {
                            expected: "entries that refer to blocks of their table".to_owned(),
                            found,
                        });
                    }
                    counts[location.block_id as usize] += 1;
                }
            }
            if !anticache.blocks.end_restore(&counts) {
                let expected = "at most as many entries as a block has tuples".to_owned();
                return Err(Damage { expected, found: "more".to_owned() });
            }
            anticache.created_before(last_created_us);
        }
        partition.tables.iter_mut().for_each(Table::end_restore);
        Ok(partition)
    }
}

/// Why an extent is refused.
enum Refusal {
    /// It does not fit.
    Damage(Damage),
    /// Something else does not.
    Error(RecoveryError),
}

fn unknown_table(table: u16) -> Damage {
    Damage { expected: "a table of the schema".to_owned(), found: format!("table {table}") }
}

/// Whether a snapshot's beginning is what the manifest and the configuration expect.
fn check(
    reader: &SnapshotReader,
    beginning: &Beginning,
    config: &Config,
    catalog: &Catalog,
    part: &Part,
) -> Result<(), RecoveryError> {
    let damaged = |expected: String, found: String| Err(reader.damaged(Damage { expected, found }));
    if beginning.sequence != part.sequence {
        return damaged(format!("sequence {}", part.sequence), beginning.sequence.to_string());
    }
    if beginning.entries.len() != catalog.tables().len() {
        return damaged(format!("{} tables", catalog.tables().len()), beginning.entries.len().to_string());
    }
    if ![0, config.eviction_block_bytes].contains(&(beginning.block_bytes as usize)) {
        return damaged(format!("blocks of {} bytes", config.eviction_block_bytes), beginning.block_bytes.to_string());
    }
    Ok(())
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
