//! The engine's errors, one type a layer; every message carries its operands.

use std::io;
use std::path::{Path, PathBuf};

use crate::durability::log_reader::LogError;
use crate::durability::snapshot::format::Damage;

/// A schema that the engine cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// The file cannot be read.
    #[error("schema {path}: {source}")]
    Read {
        /// The schema file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The SQL does not parse.
    #[error("schema: {0}")]
    Sql(#[from] sqlparser::parser::ParserError),
    /// The SQL parses but asks for something the engine does not have, or contradicts itself.
    #[error("schema, table `{table}`: {problem}")]
    Table {
        /// The table's name.
        table: String,
        /// What is wrong, with the value and what is allowed.
        problem: String,
    },
    /// A statement other than CREATE TABLE.
    #[error("schema: only CREATE TABLE statements are served, found `{0}`")]
    Statement(String),
}

/// A configuration or an environment in which a server or a partition cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration file cannot be read.
    #[error("configuration {path}: {source}")]
    ReadConfig {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The configuration file is not what it should be.
    #[error("configuration {path}: {source}")]
    ParseConfig {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        source: serde_json::Error,
    },
    /// A value that cannot be served.
    #[error("configuration: `{key}` = {value}: {allowed}")]
    Value {
        /// The key.
        key: &'static str,
        /// The value given.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// The schema.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// What an earlier server left.
    #[error(transparent)]
    Recovery(#[from] RecoveryError),
    /// Something that the system refused.
    #[error("{what}: {source}")]
    System {
        /// What was tried, with its operand.
        what: String,
        /// What the system said.
        source: io::Error,
    },
}

impl StartError {
    /// For `map_err`: names what was tried.
    pub fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::System { what, source }
    }
}

/// Why a data directory cannot be recovered. Nothing in it was changed.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    /// A file cannot be read, written, created or removed.
    #[error("{path}: {source}")]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file or directory that is not what an earlier server leaves.
    #[error("data directory {directory}: {problem}")]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// What is wrong with it, and what to do.
        problem: String,
    },
    /// The configuration contradicts what the directory was written with.
    #[error("data directory {directory} was written with {what} {written}, the configuration says {configured}")]
    Differs {
        /// The directory.
        directory: PathBuf,
        /// What is different.
        what: &'static str,
        /// What it was.
        written: String,
        /// What is configured.
        configured: String,
    },
    /// A file whose content does not fit.
    #[error("{path}, byte {offset}: {damage}")]
    Damaged {
        /// Which.
        path: PathBuf,
        /// Where what does not fit begins.
        offset: u64,
        /// What was found and expected.
        damage: Damage,
    },
    /// The command log cannot be trusted.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A transaction of the command log does not commit again.
    #[error(
        "partition {partition}: transaction {sequence} of the command log, `{procedure}`, does not commit again: {problem}"
    )]
    Replay {
        /// Partition.
        partition: u32,
        /// Its place in the command log.
        sequence: u64,
        /// Its procedure.
        procedure: String,
        /// What it ended with.
        problem: String,
    },
    /// A record of the command log that no multi-partition transaction of this database can have left.
    #[error(
        "partition {partition}: transaction {sequence} of the command log is number {transaction} of those on several partitions, at {participants:?}, \
         {problem}: the logs in the data directory are not all of one database"
    )]
    Participants {
        /// Partition.
        partition: u32,
        /// Its place in the command log.
        sequence: u64,
        /// Its number.
        transaction: u64,
        /// Where it took place.
        participants: Vec<u16>,
        /// Why that cannot be.
        problem: String,
    },
    /// What was recovered does not fit in memory, or cannot be brought there.
    #[error("partition {partition}: {problem}")]
    Load {
        /// Partition.
        partition: u32,
        /// Why.
        problem: String,
    },
}

impl RecoveryError {
    /// For `map_err`: names the file.
    pub fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }
}

/// Why a block that was read cannot be used. It fails the transactions that need it; it never becomes data.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// The header is not that of the wanted block.
    #[error("block {block_id}: header says {found}, expected {expected}")]
    Header {
        /// The wanted block.
        block_id: u32,
        /// What the header says.
        found: String,
        /// What it should say.
        expected: String,
    },
    /// The header's checksum does not fit.
    #[error("block {block_id}: header checksum {found:#010x}, expected {expected:#010x}")]
    HeaderChecksum {
        /// The wanted block.
        block_id: u32,
        /// Checksum stored.
        found: u32,
        /// Checksum computed.
        expected: u32,
    },
    /// A tuple's length or place does not fit.
    #[error("block {block_id}, offset {offset}: a tuple of {length} bytes cannot be there")]
    TupleBounds {
        /// The wanted block.
        block_id: u32,
        /// Offset in the block.
        offset: u32,
        /// Length found.
        length: u32,
    },
    /// A tuple's checksum does not fit.
    #[error("block {block_id}, offset {offset}: tuple checksum {found:#010x}, expected {expected:#010x}")]
    TupleChecksum {
        /// The wanted block.
        block_id: u32,
        /// Offset in the block.
        offset: u32,
        /// Checksum stored.
        found: u32,
        /// Checksum computed.
        expected: u32,
    },
    /// A tuple's bytes are not a row of its table, or not that of its Evicted Table entry.
    #[error("block, offset {offset}: {problem}")]
    Row {
        /// Offset in the block.
        offset: u32,
        /// What does not fit.
        problem: String,
    },
    /// The read itself failed.
    #[error("block {block_id}: {problem}")]
    Read {
        /// The wanted block.
        block_id: u32,
        /// What the system said.
        problem: String,
    },
}
