//! Checks a data directory without changing anything: that every byte which recovery would read is there and right.
//!
//! Manifest, snapshot files with all their extents, every block that a snapshot refers to with every tuple in it, that each Evicted Table entry leads to
//! its tuple, and the command log from the snapshot on. Transactions are not run, so a log that is whole but does not commit again is not noticed.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;

use super::log_reader::read_log_from;
use super::manifest::{Manifest, Part};
use super::snapshot::format::{ExtentView, Kind, Owner, Totals, parse_block};
use super::snapshot::reader::SnapshotReader;
use crate::anticache::block::{BlockIdentity, BlockView};
use crate::anticache::block_file;
use crate::anticache::evicted_table::EvictedId;
use crate::catalog::{Catalog, TableId};
use crate::config::Log;
use crate::error::RecoveryError;
use crate::io::aligned_buf;
use crate::io::files::Files;
use crate::storage::table::capture::Item;

/// What was found at a partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Verified {
    /// Bytes of the snapshot file.
    pub snapshot_bytes: u64,
    /// Tuples, entries and blocks of the snapshot.
    pub totals: Totals,
    /// Transactions of the command log behind the snapshot.
    pub log_records: u64,
    /// Bytes of the command log.
    pub log_bytes: u64,
    /// Whether the log ends with a group that was being written.
    pub log_is_torn: bool,
}

/// An Evicted Table entry.
struct Entry {
    table: TableId,
    id: EvictedId,
    offset: u32,
}

/// Checks a data directory; by partition.
///
/// # Errors
/// The first thing that is missing or wrong, with its place.
pub fn verify(files: &dyn Files, directory: &Path) -> Result<(Manifest, Vec<Verified>), RecoveryError> {
    let manifest = Manifest::read(files, directory)?;
    let refuse = |problem: String| RecoveryError::Directory { directory: directory.to_owned(), problem };
    if !manifest.ready {
        return Err(refuse("the server that made it did not get ready; nothing was acknowledged".to_owned()));
    }
    let catalog = Catalog::from_sql(&manifest.schema).map_err(|error| refuse(error.to_string()))?;
    let partitions: Result<Vec<Verified>, RecoveryError> = (0u32..)
        .zip(&manifest.partitions)
        .map(|(id, part)| {
            let mut verified = Verified::default();
            if let Some(name) = &part.snapshot {
                let owner = Owner { partition: id, generation: manifest.generation };
                let snapshot = Snapshot::read(files, &directory.join(name), owner, part.bytes, &catalog)?;
                snapshot.verify_blocks(files, directory, id, manifest.block_bytes)?;
                (verified.snapshot_bytes, verified.totals) = (part.bytes, snapshot.totals);
            }
            if manifest.log == Log::Sync {
                verify_log(files, directory, id, part, &mut verified)?;
            }
            Ok(verified)
        })
        .collect();
    let partitions = partitions?;
    Ok((manifest, partitions))
}

fn verify_log(
    files: &dyn Files,
    directory: &Path,
    id: u32,
    part: &Part,
    verified: &mut Verified,
) -> Result<(), RecoveryError> {
    let summary = read_log_from(files, directory, id, part.sequence, |_| ControlFlow::Continue(()))?;
    if part.first_segment.is_some_and(|first| summary.last_segment.is_none_or(|last| last < first)) {
        let problem = format!("the command log of partition {id} is missing from segment {:?} on", part.first_segment);
        return Err(RecoveryError::Directory { directory: directory.to_owned(), problem });
    }
    (verified.log_records, verified.log_bytes, verified.log_is_torn) = (summary.records, summary.bytes, summary.torn);
    Ok(())
}

/// What of a snapshot has to agree with the block file.
#[derive(Default)]
struct Snapshot {
    totals: Totals,
    blocks: HashMap<u32, (BlockIdentity, u32)>,
    entries: HashMap<u32, Vec<Entry>>,
}

impl Snapshot {
    fn read(
        files: &dyn Files,
        path: &Path,
        owner: Owner,
        bytes: u64,
        catalog: &Catalog,
    ) -> Result<Self, RecoveryError> {
        let (mut reader, _) = SnapshotReader::open(files, path, owner, bytes)?;
        let mut snapshot = Self::default();
        loop {
            let extent = reader.next_extent()?;
            let kind = extent.kind;
            match snapshot.enter(&extent, owner.partition, catalog) {
                Ok(()) if kind == Kind::End => return Ok(snapshot),
                Ok(()) => {}
                Err(damage) => return Err(reader.damaged(damage)),
            }
        }
    }

    fn enter(
        &mut self,
        extent: &ExtentView<'_>,
        partition: u32,
        catalog: &Catalog,
    ) -> Result<(), super::snapshot::format::Damage> {
        use super::snapshot::format::Damage;
        match extent.kind {
            Kind::Rows => extent.each(Item::parse_row, |item| {
                let Item::Row { table, row } = item else { return Ok(()) };
                self.totals.rows += 1;
                let def = catalog.tables().get(usize::from(table));
                let problem = def.map_or(Some(format!("table {table}")), |def| def.split(row).err());
                problem.map_or(Ok(()), |found| Err(Damage { expected: "a row of the schema".to_owned(), found }))
            }),
            Kind::Entries => extent.each(Item::parse_entry, |item| {
                let Item::Entry { table, id, location, .. } = item else { return Ok(()) };
                self.totals.entries += 1;
                let entry = Entry { table, id, offset: location.offset };
                self.entries.entry(location.block_id).or_default().push(entry);
                Ok(())
            }),
            Kind::Blocks => extent.each(
                |bytes| parse_block(partition, bytes),
                |(identity, tuples, _)| {
                    self.totals.blocks += 1;
                    match self.blocks.insert(identity.block_id, (identity, tuples)) {
                        None => Ok(()),
                        Some(_) => Err(Damage {
                            expected: "each block once".to_owned(),
                            found: format!("block {} again", identity.block_id),
                        }),
                    }
                },
            ),
            Kind::End => match Totals::parse(extent.payload) {
                Some(totals) if totals == self.totals => Ok(()),
                found => Err(Damage { expected: format!("{:?}", self.totals), found: format!("{found:?}") }),
            },
            Kind::Beginning => {
                Err(Damage { expected: "what follows a beginning".to_owned(), found: "another".to_owned() })
            }
        }
    }

    /// Reads every block, and looks for the tuple of every entry.
    fn verify_blocks(
        &self,
        files: &dyn Files,
        directory: &Path,
        partition: u32,
        block_bytes: usize,
    ) -> Result<(), RecoveryError> {
        let refuse = |problem: String| RecoveryError::Directory { directory: directory.to_owned(), problem };
        if let Some(block_id) = self.entries.keys().find(|block_id| !self.blocks.contains_key(block_id)) {
            return Err(refuse(format!(
                "partition {partition}: entries refer to block {block_id}, which is not there"
            )));
        }
        if self.blocks.is_empty() {
            return Ok(());
        }
        let path = block_file(partition, directory);
        let file = files.open(&path).map_err(RecoveryError::io(&path))?;
        let mut buffer = aligned_buf(block_bytes);
        for (identity, tuples) in self.blocks.values() {
            let block_id = identity.block_id;
            let offset = u64::from(block_id) * block_bytes as u64;
            let read = file.read_at(&mut buffer, offset).map_err(RecoveryError::io(&path))?;
            let verified = BlockView::open(*identity, &buffer[..read])
                .map_err(|error| error.to_string())
                .and_then(|view| self.verify_block(&view, block_id, *tuples));
            verified.map_err(|problem| refuse(format!("{}, byte {offset}: {problem}", path.display())))?;
        }
        Ok(())
    }

    fn verify_block(&self, view: &BlockView<'_>, block_id: u32, tuples: u32) -> Result<(), String> {
        let found: Result<Vec<_>, _> = view.all().collect();
        let found = found.map_err(|error| error.to_string())?;
        if found.len() != tuples as usize {
            return Err(format!("block {block_id} has {} tuples, expected {tuples}", found.len()));
        }
        for entry in self.entries.get(&block_id).into_iter().flatten() {
            if !found.iter().any(|tuple| tuple.offset == entry.offset && tuple.entry == entry.id) {
                return Err(format!(
                    "block {block_id} has no tuple of entry {} of table {} at {}",
                    entry.id, entry.table, entry.offset
                ));
            }
        }
        Ok(())
    }
}
