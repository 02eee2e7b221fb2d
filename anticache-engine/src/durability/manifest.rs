//! The manifest: which snapshot of each partition counts, and what the data directory was written with.
//!
//! `MANIFEST` is text: one line of JSON, then one line `crc32c 0a1b2c3d` with the checksum of the first, newline included, in hexadecimal:
//!
//! ```text
//! {"format":1,"ready":true,"generation":3,"next_transaction":815,"block_bytes":1048576,"log":"sync","schema":"CREATE TABLE …","partitions":[
//!   {"snapshot":"snapshot-0000-00000003.db","bytes":123,"sequence":4711,"first_segment":2}, …]}
//! ```
//!
//! It is replaced in one step ([`replace_file`]), so a crash leaves the old one or the new one. `ready` is false while a new database's files are made:
//! until then nothing was acknowledged, and a start that finds it so begins anew. Generation 0 is the empty database, without snapshot files.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::snapshot::format::Damage;
use crate::catalog::Catalog;
use crate::config::{Config, Log};
use crate::error::RecoveryError;
use crate::io::files::{Files, NotReplaced, read_file, replace_file};

/// Its name in the data directory.
pub const FILE_NAME: &str = "MANIFEST";
/// What replacing it may leave behind.
pub const NEW_FILE_NAME: &str = "MANIFEST.new";
const FORMAT: u32 = 1;

/// From where a partition is recovered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Its snapshot file; none = empty tables.
    pub snapshot: Option<String>,
    /// Length of that file.
    pub bytes: u64,
    /// The records of its command log from here on are to be replayed.
    pub sequence: u64,
    /// The segment of the command log in which they begin, at the earliest; none when it had no log.
    pub first_segment: Option<u64>,
}

/// What the manifest says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of all formats that the directory's files have.
    pub format: u32,
    /// Whether the files of the partitions exist.
    pub ready: bool,
    /// Generation of the snapshot; 0 = the empty database.
    pub generation: u64,
    /// Above the number of every multi-partition transaction in the snapshot, whose records may be in no log any more.
    pub next_transaction: u64,
    /// Size of a block.
    pub block_bytes: usize,
    /// Whether transactions are logged.
    pub log: Log,
    /// The schema's SQL.
    pub schema: String,
    /// By partition.
    pub partitions: Vec<Part>,
}

impl Manifest {
    /// The manifest of a database about to be made.
    pub fn of_new(config: &Config, schema: &str) -> Self {
        let first_segment = (config.log == Log::Sync).then_some(0);
        let part = Part { snapshot: None, bytes: 0, sequence: 0, first_segment };
        Self {
            format: FORMAT,
            ready: false,
            generation: 0,
            next_transaction: 1,
            block_bytes: config.eviction_block_bytes,
            log: config.log,
            schema: schema.to_owned(),
            partitions: vec![part; config.partitions as usize],
        }
    }

    /// Reads it.
    ///
    /// # Errors
    /// When it cannot be read, is damaged, or has another format.
    pub fn read(files: &dyn Files, directory: &Path) -> Result<Self, RecoveryError> {
        let path = directory.join(FILE_NAME);
        let bytes = read_file(files, &path).map_err(RecoveryError::io(&path))?;
        Self::parse(&bytes).map_err(|(offset, damage)| RecoveryError::Damaged { path, offset, damage })
    }

    fn parse(bytes: &[u8]) -> Result<Self, (u64, Damage)> {
        let end = bytes.iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |at| at + 1);
        let (line, rest) = bytes.split_at(end);
        let expected = checksum_line(line);
        if rest != expected.as_bytes() {
            let found = String::from_utf8_lossy(&rest[..rest.len().min(40)]).trim_end().to_owned();
            return Err((end as u64, Damage { expected: expected.trim_end().to_owned(), found }));
        }
        let damage = |expected: String, found: String| Err((0, Damage { expected, found }));
        let value: serde_json::Value = match serde_json::from_slice(line) {
            Ok(value) => value,
            Err(error) => return damage("a manifest".to_owned(), error.to_string()),
        };
        if value["format"] != FORMAT {
            return damage(format!("format {FORMAT}"), format!("format {}", value["format"]));
        }
        serde_json::from_value(value).or_else(|error| damage("a manifest".to_owned(), error.to_string()))
    }

    /// Replaces it.
    ///
    /// # Errors
    /// What the system says, and whether it may have been replaced.
    pub fn write(&self, files: &dyn Files, directory: &Path) -> Result<(), NotReplaced> {
        let text = serde_json::to_string(self).map_err(std::io::Error::other);
        let mut text = text.map_err(|error| NotReplaced { error, is_certain: true })?;
        text.push('\n');
        let checksum = checksum_line(text.as_bytes());
        text.push_str(&checksum);
        replace_file(files, &directory.join(FILE_NAME), text.as_bytes())
    }

    /// Whether the configuration fits what the directory was written with.
    ///
    /// # Errors
    /// What is different, with both values.
    pub fn check(&self, directory: &Path, config: &Config, catalog: &Catalog) -> Result<(), RecoveryError> {
        let differs = |what, written: String, configured: String| {
            Err(RecoveryError::Differs { directory: directory.to_owned(), what, written, configured })
        };
        let (written, configured) = (self.partitions.len(), config.partitions as usize);
        if written != configured {
            return differs("`partitions` =", written.to_string(), configured.to_string());
        }
        if self.block_bytes != config.eviction_block_bytes {
            let (written, configured) = (self.block_bytes.to_string(), config.eviction_block_bytes.to_string());
            return differs("`eviction_block_bytes` =", written, configured);
        }
        if (self.log, config.log) == (Log::Sync, Log::Off) {
            return differs(
                "`log` =",
                "sync".to_owned(),
                "off, which would lose what is written from now on".to_owned(),
            );
        }
        let there = Catalog::from_sql(&self.schema).map_err(|error| RecoveryError::Directory {
            directory: directory.to_owned(),
            problem: format!("its schema cannot be read any more: {error}"),
        })?;
        let pairs = there.tables().iter().map(Some).chain(std::iter::repeat(None));
        let here = catalog.tables().iter().map(Some).chain(std::iter::repeat(None));
        let most = there.tables().len().max(catalog.tables().len());
        match pairs.zip(here).take(most).find(|(there, here)| there != here) {
            None => Ok(()),
            Some((there, here)) => differs("the table", describe(there), describe(here)),
        }
    }
}

fn checksum_line(line: &[u8]) -> String {
    format!("crc32c {:08x}\n", crc32c::crc32c(line))
}

/// A table in a message.
fn describe(table: Option<&crate::catalog::TableDef>) -> String {
    let Some(table) = table else {
        return "(none)".to_owned();
    };
    let column = |column: &crate::catalog::Column| {
        let null = if column.null_bit.is_some() { "" } else { " NOT NULL" };
        format!("{} {:?}{null}", column.name, column.column_type)
    };
    let columns: Vec<_> = table.columns.iter().map(column).collect();
    let indexes: Vec<_> = table.indexes.iter().map(|index| index.name.as_str()).collect();
    let partition = table.partition_column.map_or("none", |column| table.columns[column].name.as_str());
    format!(
        "`{}` ({}; indexes {}; evictable {}; replicated {}; partition column {partition})",
        table.name,
        columns.join(", "),
        indexes.join(", "),
        table.evictable,
        table.replicated
    )
}
