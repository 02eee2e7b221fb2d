//! The specification of one trial, in the form of loadgen's, and the part of it that is executed.

use std::path::{Path, PathBuf};

use loadgen::spec::{Problem, SpecError, read_json};
use serde::{Deserialize, Serialize};

/// Version of the specification's format.
const SPEC_FORMAT: u32 = 1;
/// Most tuples of a table; their ids have 31 bits, and nobody waits for more.
const MOST_TUPLES: u64 = 100_000_000;
/// Most tuples that one repetition updates.
const MOST_UPDATES: u64 = 10_000_000;
/// Most indexes of a table: as many key columns it has (paper §5.5: up to eight).
pub const MOST_INDEXES: u32 = 8;

/// Which chain the updated tuples are moved in (paper §5.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Chain {
    /// None: anti-caching is off.
    None,
    /// The engine's.
    Double,
    /// One without links to predecessors.
    Single,
}

/// What is merged after a fetch (paper §3.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Merged {
    /// The whole block; one of its tuples is the wanted one.
    Block,
    /// One wanted tuple.
    Tuple,
}

/// How the indexes find their entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IndexKind {
    /// Hash indexes.
    Hash,
    /// B+-trees.
    Ordered,
}

/// Figure 10: updates of tuples in memory, each of which moves its tuple to the chain's hot end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LruChain {
    pub tuples: u64,
    /// Tuples updated in one repetition (the paper: 100,000).
    pub updates: u64,
    pub skew: f64,
    pub chain: Chain,
    /// Seconds after which an unfinished repetition ends the trial as failed.
    pub limit_s: f64,
}

/// Figure 11a: one block out of memory and back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvictionSteps {
    /// Tuples that the table has at least; it always has four blocks of them, so that evicted ones are as cold as others.
    pub tuples: u64,
    pub block_bytes: u64,
    pub merged: Merged,
    /// As in [`LruChain`].
    pub limit_s: f64,
}

/// Figure 11b: what eviction does to the indexes of the coldest tuples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IndexUpdate {
    pub tuples: u64,
    /// Tuples whose indexes are updated in one repetition (the paper: 1,000).
    pub updates: u64,
    pub indexes: u32,
    pub index_kind: IndexKind,
    /// As in [`LruChain`].
    pub limit_s: f64,
}

/// What is measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "measure", rename_all = "snake_case")]
pub enum Measurement {
    LruChain(LruChain),
    EvictionSteps(EvictionSteps),
    IndexUpdate(IndexUpdate),
}

impl Measurement {
    /// As in a specification.
    pub fn name(&self) -> &'static str {
        match self {
            Self::LruChain(_) => "lru_chain",
            Self::EvictionSteps(_) => "eviction_steps",
            Self::IndexUpdate(_) => "index_update",
        }
    }

    /// Seconds that one trial may take.
    pub fn limit_s(&self) -> f64 {
        match self {
            Self::LruChain(lru) => lru.limit_s,
            Self::EvictionSteps(steps) => steps.limit_s,
            Self::IndexUpdate(update) => update.limit_s,
        }
    }

    fn check(&self) -> Result<(), Problem> {
        in_range("micro.limit_s", self.limit_s(), 0.1, 86_400.0)?;
        match self {
            Self::LruChain(lru) => {
                in_range("micro.tuples", lru.tuples, 1, MOST_TUPLES)?;
                in_range("micro.updates", lru.updates, 1, MOST_UPDATES)?;
                in_range("micro.skew", lru.skew, 0.0, 5.0)
            }
            Self::EvictionSteps(steps) => {
                in_range("micro.tuples", steps.tuples, 1, MOST_TUPLES)?;
                in_range("micro.block_bytes", steps.block_bytes, 4096, 1 << 30)?;
                if steps.block_bytes % 4096 == 0 {
                    return Ok(());
                }
                let allowed = "a multiple of 4096 (direct I/O)";
                Err(Problem::new("micro.block_bytes", steps.block_bytes, "not whole pages", allowed))
            }
            Self::IndexUpdate(update) => {
                in_range("micro.updates", update.updates, 1, MOST_UPDATES)?;
                in_range("micro.tuples", update.tuples, update.updates, MOST_TUPLES)?;
                in_range("micro.indexes", update.indexes, 0, MOST_INDEXES)
            }
        }
    }
}

fn in_range<T: PartialOrd + std::fmt::Display>(key: &str, value: T, low: T, high: T) -> Result<(), Problem> {
    if value >= low && value <= high {
        return Ok(());
    }
    Err(Problem::new(key, value, "out of range", format!("{low} to {high}")))
}

/// One trial, as it is executed here or sent to a server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    pub measurement: Measurement,
    /// Repetitions go on until so many seconds have passed.
    pub measure_s: f64,
    pub seed: u64,
    /// DDL of the table, which the first two measurements fill.
    pub ddl: String,
}

impl Request {
    /// Checks what a trial relies on.
    ///
    /// # Errors
    /// The first impossible value.
    pub fn check(&self) -> Result<(), Problem> {
        in_range("measure_s", self.measure_s, 0.0, 86_400.0)?;
        self.measurement.check()
    }
}

/// The file's shape. Keys that are not listed here are refused; those that only other benchmarks use may have any value.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
struct SpecFile {
    format: u32,
    system: String,
    #[serde(default)]
    endpoint: Endpoint,
    benchmark: String,
    micro: Measurement,
    measure_s: f64,
    seed: u64,
    schema: PathBuf,
    warmup_s: Option<f64>,
    terminals: Option<u32>,
    client_cpus: Option<String>,
    mysql_transaction: Option<String>,
    loading_threads: Option<u32>,
}

/// Where a server is. Unknown keys are accepted here alone: the file is written by a program, for several readers.
#[derive(Debug, Default, Deserialize)]
struct Endpoint {
    micro_address: Option<String>,
}

/// A specification with the place where it comes from.
pub struct Spec {
    /// `host:port` of a server that is to run the trial.
    pub micro_address: Option<String>,
    path: PathBuf,
    schema: PathBuf,
    measurement: Measurement,
    measure_s: f64,
    seed: u64,
}

impl Spec {
    /// Reads a specification; `endpoint` stands for what it says itself.
    ///
    /// # Errors
    /// [`SpecError`] with the file, the line or key, the value and what is allowed.
    pub fn read(path: &Path, endpoint: Option<&Path>) -> Result<Self, SpecError> {
        let mut file: SpecFile = read_json(path)?;
        if let Some(endpoint) = endpoint {
            file.endpoint = read_json(endpoint)?;
        }
        let refused = |problem: Problem| problem.in_file(path);
        in_range("format", file.format, SPEC_FORMAT, SPEC_FORMAT).map_err(refused)?;
        if file.benchmark != "micro" {
            return Err(refused(Problem::new("benchmark", file.benchmark, "not for this program", "micro")));
        }
        Ok(Self {
            micro_address: file.endpoint.micro_address,
            path: path.to_owned(),
            schema: file.schema,
            measurement: file.micro,
            measure_s: file.measure_s,
            seed: file.seed,
        })
    }

    /// What is to be executed, checked, with the DDL.
    ///
    /// # Errors
    /// As [`Spec::read`].
    pub fn request(&self) -> Result<Request, SpecError> {
        let allowed = "a readable file with the table's SQL DDL";
        let ddl = std::fs::read_to_string(&self.schema)
            .map_err(|error| Problem::new("schema", self.schema.display(), error, allowed).in_file(&self.path))?;
        let (measurement, measure_s, seed) = (self.measurement.clone(), self.measure_s, self.seed);
        let request = Request { measurement, measure_s, seed, ddl };
        request.check().map_err(|problem| problem.in_file(&self.path))?;
        Ok(request)
    }
}
