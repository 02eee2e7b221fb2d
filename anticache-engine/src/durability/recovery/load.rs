//! Reads a snapshot into a partition: Evicted Table entries and blocks come back under their numbers, tuples through the usual insert, so that what does
//! not fit in memory is evicted, into blocks that the snapshot does not refer to.

use std::path::PathBuf;

use super::Site;
use crate::anticache::block::BLOCK_HEADER_BYTES;
use crate::anticache::block_table::{BlockState, BlockTable, Place};
use crate::anticache::evicted_table::EvictedId;
use crate::anticache::{AntiCache, block_file};
use crate::catalog::Catalog;
use crate::config::{AntiCaching, Config};
use crate::durability::manifest::Part;
use crate::durability::snapshot::format::{Beginning, Damage, ExtentView, Kind, Owner, Totals, parse_block};
use crate::durability::snapshot::reader::SnapshotReader;
use crate::error::{RecoveryError, StartError};
use crate::partition::Partition;
use crate::storage::backing::Backer;
use crate::storage::table::capture::Item;
use crate::storage::table::{Refused, Table};

/// How many rows are known before the one that is entered: the misses of the cache that their index entries cost then overlap.
const ROWS_AHEAD: usize = 8;

/// Partition `id` as its snapshot says, or empty; without a command log.
///
/// # Errors
/// When the snapshot cannot be read, is damaged, or does not fit.
pub(super) fn load(site: Site<'_>, id: u32, part: &Part, generation: u64) -> Result<Partition, StartError> {
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
    let loader = Loader { partition, beginning, totals, block_file, block_file_bytes, last_created_us: 0 };
    Ok(loader.read(reader)?)
}

/// Reads one snapshot.
struct Loader {
    partition: Partition,
    beginning: Beginning,
    totals: Totals,
    block_file: PathBuf,
    block_file_bytes: u64,
    last_created_us: u64,
}

impl Loader {
    fn read(mut self, mut reader: SnapshotReader) -> Result<Partition, RecoveryError> {
        let id = self.partition.id();
        for (table, size) in self.partition.tables.iter_mut().zip(&self.beginning.tables) {
            let begun = table.begin_restore(u64::from(size.tuples), size.entries as usize, &mut self.partition.meter);
            begun.map_err(|problem| RecoveryError::Load { partition: id, problem })?;
        }
        let mut backer = Backer::default();
        loop {
            self.back_ahead(&mut backer);
            let extent = reader.next_extent()?;
            let (kind, entered) = (extent.kind, self.enter(&extent));
            match entered {
                Ok(()) if kind == Kind::End => break,
                Ok(()) => {}
                Err(Refusal::Damage(damage)) => return Err(reader.damaged(damage)),
                Err(Refusal::Error(error)) => return Err(error),
            }
        }
        drop(backer);
        self.partition.tables.iter_mut().for_each(|table| table.tuples_mut().release_ahead());
        if !reader.is_at_end() {
            let damage = Damage { expected: "the end of the file".to_owned(), found: "more behind it".to_owned() };
            return Err(reader.damaged(damage));
        }
        match self.end() {
            Ok(mut partition) => {
                partition.repay_memory();
                Ok(partition)
            }
            Err(damage) => Err(reader.damaged(damage)),
        }
    }

    fn back_ahead(&mut self, backer: &mut Backer) {
        let meter = &self.partition.meter;
        let free_bytes = meter.budget_bytes().saturating_sub(meter.used_bytes());
        // Together they must not take more than there is.
        let free_bytes = free_bytes / self.partition.tables.len().max(1) as u64;
        for table in &mut self.partition.tables {
            table.tuples_mut().back_ahead(backer, free_bytes);
        }
    }

    fn enter(&mut self, extent: &ExtentView<'_>) -> Result<(), Refusal> {
        let mut error = None;
        let id = self.partition.id();
        let entered = match extent.kind {
            Kind::Rows => {
                let mut ahead = extent.payload;
                (0..ROWS_AHEAD).for_each(|_| self.prefetch_row(&mut ahead));
                extent.each(Item::parse_row, |item| {
                    self.prefetch_row(&mut ahead);
                    self.enter_row(&item, &mut error)
                })
            }
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

    /// Fetches what entering the first of some rows looks at, and passes over that row.
    fn prefetch_row(&self, rows: &mut &[u8]) {
        let Some((Item::Row { table, row }, bytes)) = Item::parse_row(rows) else { return };
        *rows = &rows[bytes..];
        if let Some(table) = self.partition.tables.get(usize::from(table)) {
            table.prefetch_new(row);
        }
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
                if self.partition.borrow_memory() {
                    continue;
                }
                let problem = format!("the snapshot's tuples of table {name} do not fit: {problem}");
                let damage = Damage { expected: "room".to_owned(), found: problem.clone() };
                *error = Some(RecoveryError::Load { partition: self.partition.id(), problem });
                return Err(damage);
            }
            attempts += 1;
        }
        self.partition.forget_wants();
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
            for (table, (stored, size)) in partition.tables.iter().zip(&beginning.tables).enumerate() {
                for id in (0..size.entries as EvictedId).filter(|&id| stored.evicted().is_live(id)) {
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
    if beginning.tables.len() != catalog.tables().len() {
        return damaged(format!("{} tables", catalog.tables().len()), beginning.tables.len().to_string());
    }
    if ![0, config.eviction_block_bytes].contains(&(beginning.block_bytes as usize)) {
        return damaged(format!("blocks of {} bytes", config.eviction_block_bytes), beginning.block_bytes.to_string());
    }
    Ok(())
}
