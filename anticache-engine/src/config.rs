//! Configuration of a server, from a JSON file; unknown keys and impossible values are refused before anything starts.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use rustix::thread::CpuSet;
use serde::{Deserialize, Serialize};

use crate::anticache::block::BlockBuilder;
use crate::catalog::Catalog;
use crate::error::StartError;
use crate::io::DIRECT_IO_ALIGN_BYTES;

/// How the LRU chain is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AntiCaching {
    /// Every transaction updates the chain (α = 1).
    Lru,
    /// A fraction of the transactions does (α = `lru_sample_rate`).
    Alru,
    /// No chain, no eviction: a main-memory DBMS (the paper's H-Store baseline).
    Off,
}

/// What is merged when a block was fetched (paper §3.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Merge {
    /// Every tuple of the block.
    Block,
    /// The wanted tuples only.
    Tuple,
}

/// Which table the next block is taken from, where several can give one (paper §3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EvictFrom {
    /// The one whose coldest tuple was left alone for longest: LRU over all tables.
    Coldest,
    /// All of them, in inverse proportion to their accesses since the last eviction: the paper's rule. A small table with few accesses is drained by
    /// it, its hottest tuples included, while larger ones hold tuples that are colder.
    InverseAccesses,
}

/// How much of a block is read when tuples of it are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FetchUnit {
    /// All of it, as in the paper (§3.4).
    Block,
    /// With tuple-merge, the sectors in which a wanted tuple lies, unless the block is to be merged whole. Not in the paper.
    Sectors,
}

/// What is done about blocks of which many tuples were merged back (paper §3.4, §6.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compaction {
    /// When such a block is fetched, it is merged whole.
    Lazy,
    /// The tuples left in several such blocks are put together in a new one, without bringing them into memory.
    Background,
}

/// When a write is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Log {
    /// When its command-log group is on stable storage.
    Sync,
    /// At once; nothing is logged.
    Off,
}

/// When a transaction is answered that read what is not on stable storage yet, and wrote nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AnswerReaders {
    /// When the command-log group of what it read is: nobody is told what a crash then takes back.
    Durable,
    /// When it has ended, as InnoDB answers it, which releases a transaction's locks before it flushes its log. What writes waits all the same.
    AtOnce,
}

/// A server's configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// SQL DDL of the tables.
    pub schema: PathBuf,
    /// Directory for the Block Table, the command log and snapshots: empty or absent, or what an earlier server left, which is recovered.
    pub data_dir: PathBuf,
    /// Address to listen on.
    pub listen: SocketAddr,
    /// File with the secret that clients must know, readable by its owner alone; without it anybody may connect, and `listen` must be a loopback
    /// address.
    #[serde(default)]
    pub secret_file: Option<PathBuf>,
    /// Most connections that may be open at a time, over all partitions (a client has one for each): a connection may take several tens of megabytes
    /// for requests and unread replies, which no budget counts.
    #[serde(default = "thousand_connections")]
    pub max_connections: u32,
    /// Number of partitions, one thread each.
    #[serde(default = "one")]
    pub partitions: u32,
    /// CPUs that the server's threads are bound to, in turn; empty = not bound.
    #[serde(default)]
    pub cpus: Vec<usize>,
    /// Microseconds for which a partition without anything to do looks for requests and for what its disk has done before its thread sleeps; 0 = it
    /// sleeps at once.
    #[serde(default = "default_idle_poll_us")]
    pub idle_poll_us: u64,
    /// Bytes that everything which grows with the data may use, over all partitions.
    pub memory_budget_bytes: u64,
    /// LRU chain and eviction.
    #[serde(default = "alru")]
    pub anticaching: AntiCaching,
    /// α for `alru`: the fraction of transactions that update the chain.
    #[serde(default = "default_sample_rate")]
    pub lru_sample_rate: f64,
    /// Share of a table's tuples in memory, at the cold end of its chain, behind which a merged tuple is put until it is used once more; 0 = at the hot
    /// end, as in the paper (§3.4).
    #[serde(default)]
    pub probation_share: f64,
    /// Size of a block.
    #[serde(default = "one_mebibyte")]
    pub eviction_block_bytes: usize,
    /// Microseconds between two checks whether something should be evicted; 0 = a check after every batch. Whatever it is, the budget holds: a
    /// transaction that finds no memory has tuples evicted at once.
    #[serde(default)]
    pub eviction_check_interval_us: u64,
    /// Share of the budget, above 0 and at most 1, that tuples and all else may fill: a check that finds more evicts until it is less. 1 = a check
    /// only keeps a few slots free.
    #[serde(default = "one_share")]
    pub eviction_threshold: f64,
    /// Blocks that one eviction writes, in one sequential write where there is room for it; 0 = derived from the budget, at most 8.
    #[serde(default)]
    pub eviction_blocks: usize,
    /// Which tables give the blocks.
    #[serde(default = "coldest")]
    pub evict_from: EvictFrom,
    /// Merge strategy.
    #[serde(default = "tuple_merge")]
    pub merge: Merge,
    /// How much of a block is read.
    #[serde(default = "whole_block")]
    pub fetch: FetchUnit,
    /// What is done about stale entries in blocks.
    #[serde(default = "lazy")]
    pub compaction: Compaction,
    /// Share of stale entries from which a fetched block is merged whole (tuple-merge's lazy compaction).
    #[serde(default = "half")]
    pub hole_threshold: f64,
    /// Durability of writes.
    #[serde(default = "sync")]
    pub log: Log,
    /// What readers of rows that were just written wait for.
    #[serde(default = "durable")]
    pub answer_readers: AnswerReaders,
    /// Length of a command-log segment.
    #[serde(default = "sixty_four_mebibytes")]
    pub log_segment_bytes: u64,
    /// Group commit: how long after its first record a command-log group is written, at the earliest.
    #[serde(default)]
    pub log_group_interval_us: u64,
    /// Group commit: for how long after a group is durable the next one collects records, as a share of the time that the write took; at most 5 ms. 0 =
    /// it is written at once with what there is.
    #[serde(default = "quarter")]
    pub log_gathering_share: f64,
    /// Bytes, waiting replies included, with which a group is written although it is not due by these two.
    #[serde(default = "half_a_mebibyte")]
    pub log_group_bytes: usize,
    /// Seconds from one snapshot's beginning to the next; 0 = none by time. With `log` = off, snapshots are taken on demand only.
    #[serde(default = "five_minutes")]
    pub snapshot_interval_s: u64,
    /// Bytes of the command log since the last snapshot with which a partition asks for the next one; 0 = none by bytes.
    #[serde(default = "one_gibibyte")]
    pub snapshot_log_bytes: u64,
    /// Whether large regions ask the kernel for transparent huge pages; without them each look-up in a large table misses the processor's page
    /// cache as well.
    #[serde(default = "yes")]
    pub huge_pages: bool,
    /// Seed of the sampling.
    #[serde(default = "one_seed")]
    pub seed: u64,
}

fn one() -> u32 {
    1
}
fn thousand_connections() -> u32 {
    1024
}
fn default_idle_poll_us() -> u64 {
    DEFAULT_IDLE_POLL_US
}
fn yes() -> bool {
    true
}
fn one_seed() -> u64 {
    1
}
fn alru() -> AntiCaching {
    AntiCaching::Alru
}
fn default_sample_rate() -> f64 {
    0.01
}
fn one_mebibyte() -> usize {
    1 << 20
}
fn half_a_mebibyte() -> usize {
    512 << 10
}
fn coldest() -> EvictFrom {
    EvictFrom::Coldest
}

fn quarter() -> f64 {
    0.25
}

fn tuple_merge() -> Merge {
    Merge::Tuple
}
fn whole_block() -> FetchUnit {
    FetchUnit::Block
}
fn one_share() -> f64 {
    1.0
}
fn lazy() -> Compaction {
    Compaction::Lazy
}
fn half() -> f64 {
    0.5
}
fn sync() -> Log {
    Log::Sync
}
fn durable() -> AnswerReaders {
    AnswerReaders::Durable
}
fn five_minutes() -> u64 {
    300
}
fn one_gibibyte() -> u64 {
    1 << 30
}
fn sixty_four_mebibytes() -> u64 {
    64 << 20
}

/// Most partitions of one server.
pub const MAX_PARTITIONS: u32 = 256;
/// [`Config::idle_poll_us`] by default: longer than waking a thread takes on a virtual machine.
pub const DEFAULT_IDLE_POLL_US: u64 = 50;
/// Most connections that can be allowed.
pub const MAX_CONNECTIONS: u32 = 65_536;

impl Config {
    /// The defaults, for a database of its own in `data_dir`, listening on a free port of the loopback address.
    ///
    /// # Panics
    /// Never: every other key has a default.
    pub fn new(schema: PathBuf, data_dir: PathBuf, memory_budget_bytes: u64) -> Self {
        let given = serde_json::json!({
            "schema": schema, "data_dir": data_dir, "listen": "127.0.0.1:0", "memory_budget_bytes": memory_budget_bytes
        });
        serde_json::from_value(given).expect("every other key has a default")
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`StartError`] naming the file and the key.
    pub fn from_file(path: &Path) -> Result<Self, StartError> {
        let text = std::fs::read(path).map_err(|source| StartError::ReadConfig { path: path.to_owned(), source })?;
        let config: Self = serde_json::from_slice(&text)
            .map_err(|source| StartError::ParseConfig { path: path.to_owned(), source })?;
        config.check()?;
        Ok(config)
    }

    /// Checks the values against each other and against what can be served.
    ///
    /// # Errors
    /// [`StartError::Value`].
    pub fn check(&self) -> Result<(), StartError> {
        let refuse = |key: &'static str, value: String, allowed: String| Err(StartError::Value { key, value, allowed });
        if !(1..=MAX_PARTITIONS).contains(&self.partitions) {
            return refuse("partitions", self.partitions.to_string(), format!("1 to {MAX_PARTITIONS}"));
        }
        if !(1..=MAX_CONNECTIONS).contains(&self.max_connections) {
            return refuse("max_connections", self.max_connections.to_string(), format!("1 to {MAX_CONNECTIONS}"));
        }
        if self.idle_poll_us > MAX_IDLE_POLL_US {
            return refuse("idle_poll_us", self.idle_poll_us.to_string(), format!("0 to {MAX_IDLE_POLL_US}"));
        }
        if self.secret_file.is_none() && !self.listen.ip().is_loopback() {
            let allowed =
                "a loopback address, or any with a secret_file: without one, whoever reaches it may read and write";
            return refuse("listen", self.listen.to_string(), allowed.to_owned());
        }
        if !(self.lru_sample_rate > 0.0 && self.lru_sample_rate <= 1.0) {
            return refuse("lru_sample_rate", self.lru_sample_rate.to_string(), "above 0, at most 1".to_owned());
        }
        if !(0.0..=1.0).contains(&self.probation_share) {
            return refuse("probation_share", self.probation_share.to_string(), "0 to 1".to_owned());
        }
        if !(self.hole_threshold > 0.0 && self.hole_threshold <= 1.0) {
            return refuse("hole_threshold", self.hole_threshold.to_string(), "above 0, at most 1".to_owned());
        }
        let blocks = DIRECT_IO_ALIGN_BYTES..=64 << 20;
        if !blocks.contains(&self.eviction_block_bytes)
            || !self.eviction_block_bytes.is_multiple_of(DIRECT_IO_ALIGN_BYTES)
        {
            let allowed = format!("a multiple of {DIRECT_IO_ALIGN_BYTES} up to {}", blocks.end());
            return refuse("eviction_block_bytes", self.eviction_block_bytes.to_string(), allowed);
        }
        if !(self.eviction_threshold > 0.0 && self.eviction_threshold <= 1.0) {
            return refuse("eviction_threshold", self.eviction_threshold.to_string(), "above 0, at most 1".to_owned());
        }
        if self.eviction_check_interval_us > MAX_CHECK_INTERVAL_US {
            let allowed = format!("0 to {MAX_CHECK_INTERVAL_US}");
            return refuse("eviction_check_interval_us", self.eviction_check_interval_us.to_string(), allowed);
        }
        if self.snapshot_interval_s > MAX_SNAPSHOT_INTERVAL_S {
            let allowed = format!("0 (none by time) to {MAX_SNAPSHOT_INTERVAL_S}");
            return refuse("snapshot_interval_s", self.snapshot_interval_s.to_string(), allowed);
        }
        if self.log_segment_bytes < 1 << 20 || !self.log_segment_bytes.is_multiple_of(DIRECT_IO_ALIGN_BYTES as u64) {
            let allowed = format!("a multiple of {DIRECT_IO_ALIGN_BYTES}, at least {}", 1 << 20);
            return refuse("log_segment_bytes", self.log_segment_bytes.to_string(), allowed);
        }
        if !(0.0..=1.0).contains(&self.log_gathering_share) {
            return refuse("log_gathering_share", self.log_gathering_share.to_string(), "0 to 1".to_owned());
        }
        if self.log_group_interval_us > 1_000_000 {
            return refuse("log_group_interval_us", self.log_group_interval_us.to_string(), "0 to 1000000".to_owned());
        }
        if !LOG_GROUP_BYTES.contains(&self.log_group_bytes) {
            let allowed = format!("{} to {}", LOG_GROUP_BYTES.start(), LOG_GROUP_BYTES.end());
            return refuse("log_group_bytes", self.log_group_bytes.to_string(), allowed);
        }
        if let Some(cpu) = self.cpus.iter().find(|&&cpu| cpu >= CpuSet::MAX_CPU) {
            return refuse("cpus", cpu.to_string(), format!("numbers below {}", CpuSet::MAX_CPU));
        }
        if self.anticaching != AntiCaching::Off {
            let least = self.minimum_budget_bytes();
            if self.memory_budget_bytes < least {
                let allowed = format!(
                    "at least {least} for {} partitions and blocks of {} bytes",
                    self.partitions, self.eviction_block_bytes
                );
                return refuse("memory_budget_bytes", self.memory_budget_bytes.to_string(), allowed);
            }
            self.check_eviction()?;
            if self.fetch == FetchUnit::Sectors && self.merge == Merge::Block {
                return refuse(
                    "fetch",
                    "sectors".to_owned(),
                    "block, where merge is block: it needs all of it".to_owned(),
                );
            }
        }
        Ok(())
    }

    /// The configuration with some [`LIVE_SETTINGS`] changed, as a JSON object of their values; checked as a whole.
    ///
    /// # Errors
    /// What is wrong: a key that cannot be changed while the server runs, or a value that is refused at a start as well.
    pub fn changed(&self, changes: &[u8]) -> Result<Self, String> {
        type Object = serde_json::Map<String, serde_json::Value>;
        let changes: Object = serde_json::from_slice(changes).map_err(|error| format!("no JSON object: {error}"))?;
        let mut all = serde_json::to_value(self).map_err(|error| error.to_string())?;
        for (key, value) in changes {
            if !LIVE_SETTINGS.contains(&key.as_str()) {
                return Err(format!(
                    "`{key}` cannot be changed while the server runs; {} can",
                    LIVE_SETTINGS.join(", ")
                ));
            }
            // By itself, so that a value of the wrong kind is named with its key.
            let mut alone = all.clone();
            alone[&key] = value.clone();
            serde_json::from_value::<Self>(alone).map_err(|error| format!("`{key}` = {value}: {error}"))?;
            all[&key] = value;
        }
        let changed: Self = serde_json::from_value(all).map_err(|error| error.to_string())?;
        changed.check().map_err(|error| error.to_string())?;
        Ok(changed)
    }

    /// Checks the values that only mean something together with the budget.
    fn check_eviction(&self) -> Result<(), StartError> {
        let refuse = |key: &'static str, value: String, allowed: String| Err(StartError::Value { key, value, allowed });
        let most = (self.buffers_without_compaction() - BUFFERS_FOR_FETCHES) / 2;
        if self.eviction_blocks > most {
            let allowed = format!("0 to {most}, for the partition's block buffers are a sixteenth of its budget");
            return refuse("eviction_blocks", self.eviction_blocks.to_string(), allowed);
        }
        let staging_bytes = (self.buffers_per_partition() * self.eviction_block_bytes) as f64;
        let least = staging_bytes * 2.0 / self.partition_budget_bytes() as f64;
        if self.eviction_threshold < least {
            let allowed = format!("at least {least:.3}, twice what the block buffers take");
            return refuse("eviction_threshold", self.eviction_threshold.to_string(), allowed);
        }
        Ok(())
    }

    /// Least budget with which eviction can work: buffers for a few blocks, and as many blocks of tuples in memory; per partition at least
    /// a mebibyte, for the first steps of the indexes.
    pub fn minimum_budget_bytes(&self) -> u64 {
        let blocks = 4 * MIN_BUFFERS as u64 * self.eviction_block_bytes as u64;
        u64::from(self.partitions) * blocks.max(1 << 20)
    }

    /// Checks that a block can hold a row of every evictable table.
    ///
    /// # Errors
    /// [`StartError::Value`].
    pub fn check_against(&self, catalog: &Catalog) -> Result<(), StartError> {
        for table in catalog.tables() {
            if table.evictable && BlockBuilder::capacity(self.eviction_block_bytes, table.max_serialized_bytes()) == 0 {
                return Err(StartError::Value {
                    key: "eviction_block_bytes",
                    value: self.eviction_block_bytes.to_string(),
                    allowed: format!(
                        "enough for a row of table {}, {} bytes",
                        table.name,
                        table.max_serialized_bytes()
                    ),
                });
            }
        }
        Ok(())
    }

    /// Budget of one partition.
    pub fn partition_budget_bytes(&self) -> u64 {
        self.memory_budget_bytes / u64::from(self.partitions)
    }

    /// Block buffers of one partition: those for fetches and evictions together, and compaction's own.
    pub fn buffers_per_partition(&self) -> usize {
        self.buffers_without_compaction() + self.buffers_for_compaction()
    }

    /// Block buffers that background compaction needs at a time: the block it reads and the one it makes.
    pub fn buffers_for_compaction(&self) -> usize {
        if self.compaction == Compaction::Background { 2 } else { 0 }
    }

    /// Block buffers for fetches and evictions: a sixteenth of the budget, within bounds.
    fn buffers_without_compaction(&self) -> usize {
        let sixteenth = self.partition_budget_bytes() / 16 / self.eviction_block_bytes as u64;
        usize::try_from(sixteenth).unwrap_or(MAX_BUFFERS).clamp(MIN_BUFFERS, MAX_BUFFERS)
    }

    /// Buffers for the sectors in which a tuple lies, `span_bytes` each: as many as a disk can serve at once, or a sixty-fourth of the budget.
    pub fn sector_buffers_per_partition(&self, span_bytes: usize) -> usize {
        let share = self.partition_budget_bytes() / 64 / span_bytes as u64;
        usize::try_from(share).unwrap_or(MAX_SECTOR_BUFFERS).clamp(MIN_BUFFERS, MAX_SECTOR_BUFFERS)
    }

    /// Blocks that one eviction writes: as configured, or a quarter of the buffers, at most 8.
    pub fn blocks_per_eviction(&self) -> usize {
        if self.eviction_blocks > 0 {
            return self.eviction_blocks;
        }
        (self.buffers_without_compaction() / 4).clamp(1, 8)
    }

    /// Bytes of the partition's budget above which a check evicts; `None` when only the budget itself counts.
    pub fn eviction_limit_bytes(&self) -> Option<u64> {
        (self.eviction_threshold < 1.0).then(|| (self.eviction_threshold * self.partition_budget_bytes() as f64) as u64)
    }

    /// The α in force.
    pub fn alpha(&self) -> f64 {
        match self.anticaching {
            AntiCaching::Lru => 1.0,
            AntiCaching::Alru => self.lru_sample_rate,
            AntiCaching::Off => 0.0,
        }
    }
}

/// Settings that may change while the server runs: what is in memory and in blocks is the same whatever they are.
pub const LIVE_SETTINGS: [&str; 6] =
    ["lru_sample_rate", "merge", "fetch", "hole_threshold", "eviction_check_interval_us", "eviction_blocks"];
/// What `log_group_bytes` may be.
pub const LOG_GROUP_BYTES: RangeInclusive<usize> = 4096..=64 << 20;
/// Fewest block buffers of a partition: one to evict into, one in flight to disk, two being read.
pub const MIN_BUFFERS: usize = 4;
/// Buffers that evictions, however large, leave to fetches.
const BUFFERS_FOR_FETCHES: usize = 2;
/// Most microseconds between two checks.
const MAX_CHECK_INTERVAL_US: u64 = 60_000_000;
/// Most microseconds of looking for work: more than any thread takes to be woken.
const MAX_IDLE_POLL_US: u64 = 1000;
/// A year.
const MAX_SNAPSHOT_INTERVAL_S: u64 = 366 * 24 * 60 * 60;
/// Most: beyond this many reads in flight a disk gains nothing.
pub const MAX_BUFFERS: usize = 64;
/// Most fetches of sectors in flight. As many again as the queue of a virtual disk takes at once (80 of 256 descriptors): those follow when it has ended
/// with the others. With 256, which fill the kernel's queue, each costs the executor about 1 us more.
pub const MAX_SECTOR_BUFFERS: usize = 160;

#[cfg(test)]
mod tests {
    use super::*;

    fn base() -> serde_json::Value {
        serde_json::json!({"schema": "a.sql", "data_dir": "d", "listen": "127.0.0.1:0", "memory_budget_bytes": 100_000_000})
    }

    fn with(key: &str, value: serde_json::Value) -> Result<Config, String> {
        let mut json = base();
        json[key] = value;
        let config: Config = serde_json::from_value(json).map_err(|e| e.to_string())?;
        config.check().map_err(|e| e.to_string())?;
        Ok(config)
    }

    #[test]
    fn defaults_are_the_papers() {
        let config = with("partitions", 1.into()).unwrap();
        assert_eq!((config.eviction_block_bytes, config.merge, config.hole_threshold), (1 << 20, Merge::Tuple, 0.5));
        assert!(config.probation_share == 0.0, "merged tuples become the hottest");
        assert_eq!((config.log_segment_bytes, config.log_group_bytes), (64 << 20, 512 << 10));
        assert!((config.alpha() - 0.01).abs() < 1e-12);
    }

    #[test]
    fn evictions_are_as_large_as_asked_for() {
        let mut config = with("memory_budget_bytes", (1u64 << 30).into()).unwrap();
        assert_eq!((config.buffers_per_partition(), config.blocks_per_eviction()), (64, 8));
        assert_eq!(config.eviction_limit_bytes(), None);
        config.eviction_blocks = 31;
        config.eviction_threshold = 0.75;
        config.compaction = Compaction::Background;
        config.check().unwrap();
        assert_eq!((config.buffers_per_partition(), config.blocks_per_eviction()), (66, 31));
        assert_eq!(config.eviction_limit_bytes(), Some(3 << 28));
        config.eviction_blocks = 32;
        assert!(config.check().unwrap_err().to_string().contains("0 to 31"));
    }

    #[test]
    fn impossible_values_are_named() {
        for (key, value, expected) in [
            ("partitions", serde_json::json!(0), "`partitions` = 0"),
            ("idle_poll_us", serde_json::json!(1001), "`idle_poll_us` = 1001: 0 to 1000"),
            ("lru_sample_rate", serde_json::json!(-1.0), "`lru_sample_rate` = -1"),
            ("lru_sample_rate", serde_json::json!(1.5), "at most 1"),
            ("probation_share", serde_json::json!(-0.1), "`probation_share` = -0.1"),
            ("probation_share", serde_json::json!(1.5), "0 to 1"),
            ("hole_threshold", serde_json::json!(0.0), "`hole_threshold` = 0"),
            ("eviction_block_bytes", serde_json::json!(1000), "multiple of 4096"),
            ("eviction_threshold", serde_json::json!(0.0), "`eviction_threshold` = 0: above 0"),
            ("eviction_threshold", serde_json::json!(1.01), "at most 1"),
            ("eviction_threshold", serde_json::json!(0.05), "twice what the block buffers take"),
            ("eviction_check_interval_us", serde_json::json!(60_000_001u64), "0 to 60000000"),
            ("snapshot_interval_s", serde_json::json!(u64::MAX), "0 (none by time) to 31622400"),
            ("eviction_blocks", serde_json::json!(2), "`eviction_blocks` = 2: 0 to 1"),
            ("compaction", serde_json::json!("eager"), "unknown variant `eager`"),
            ("memory_budget_bytes", serde_json::json!(1000), "at least 16777216"),
            ("log_segment_bytes", serde_json::json!(10), "`log_segment_bytes` = 10"),
            ("log_gathering_share", serde_json::json!(1.5), "`log_gathering_share` = 1.5: 0 to 1"),
            ("log_group_interval_us", serde_json::json!(1_000_001), "`log_group_interval_us` = 1000001: 0 to 1000000"),
            ("log_group_interval_us", serde_json::json!(-1), "invalid value: integer `-1`"),
            ("log_group_bytes", serde_json::json!(4095), "`log_group_bytes` = 4095: 4096 to 67108864"),
            ("log_group_bytes", serde_json::json!((64 << 20) + 1), "`log_group_bytes` = 67108865"),
            ("cpus", serde_json::json!([0, 5000]), "`cpus` = 5000"),
            ("listen", serde_json::json!("0.0.0.0:23063"), "`listen` = 0.0.0.0:23063: a loopback address"),
            ("listen", serde_json::json!("[::]:23063"), "with a secret_file"),
            ("answer_readers", serde_json::json!(true), "expected string or map"),
            ("merge", serde_json::json!("half"), "unknown variant `half`"),
            ("blocksize", serde_json::json!(1), "unknown field `blocksize`"),
        ] {
            let message = with(key, value).unwrap_err();
            assert!(message.contains(expected), "{key}: {message}");
        }
    }
}
