//! The specification of one loadgen call: what to drive, how hard and for how long.
//!
//! Every error names the key, the value that was found and what is allowed, so that a mistake in a
//! workload file can be mended without reading this code.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anticache_engine::catalog::Catalog;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::arrivals::{OpenLoop, Process};
use crate::cpus::CpuList;
use crate::system::Adapter;
use crate::systems::{ADAPTERS, anticache};
use crate::tpcc::TpccSpec;
use crate::ycsb::{KeyOrder, YcsbSpec};

/// Version of the specification format that this binary understands.
pub const SPEC_FORMAT: u32 = 1;
/// More would take more memory (16 bytes each) than a client node should lend them.
const MOST_RECORDED_TRANSACTIONS: u64 = 100_000_000;
/// Bounds of the rate of an open loop: one transaction in 1000 s, and beyond what any client here can start.
const OFFERED_TXN_S: [f64; 2] = [0.001, 10_000_000.0];

/// A specification that cannot be executed; `loadgen` exits with 2.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    #[error("{}: cannot read the specification: {source}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("{}: line {line}, column {column}: {message}", path.display())]
    Malformed { path: PathBuf, line: usize, column: usize, message: String },
    #[error("{}: {key} = {value}: {problem}; allowed: {allowed}", path.display())]
    Invalid { path: PathBuf, key: String, value: String, problem: String, allowed: String },
}

/// A password or shared secret; nothing prints it, and no error repeats it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SecretText(String);

impl SecretText {
    /// The secret itself: for the connection that needs it, and nothing else.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("(not shown)")
    }
}

impl<'de> Deserialize<'de> for SecretText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SecretText, D::Error> {
        // The deserializer's own message would repeat what stands in the place of the text.
        let text = String::deserialize(deserializer);
        text.map(SecretText).map_err(|_| serde::de::Error::custom("a password or secret that is no text (not shown)"))
    }
}

/// Where a deployed system listens, as `deploy.yml` leaves it in `endpoint.json`. Unknown keys are
/// accepted here alone: the file is written by a program, for several readers.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Endpoint {
    pub adapter: Option<String>,
    pub mysql_address: Option<String>,
    pub mysql_user: Option<String>,
    pub mysql_password: Option<SecretText>,
    pub mysql_database: Option<String>,
    pub memcached_address: Option<String>,
    pub anticache_address: Option<String>,
    /// What the engine's `secret_file` holds; absent: the server must have none.
    pub anticache_secret: Option<SecretText>,
}

/// How a single-statement transaction is framed on MySQL, as YCSB's are. Transactions of several statements, as TPC-C's, are always
/// [`MysqlTransaction::Explicit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum MysqlTransaction {
    /// Autocommit off: the statement, then `COMMIT` (two round trips), as the paper's benchmark framework does.
    #[default]
    Explicit,
    /// Autocommit on: the statement is the transaction (one round trip).
    Autocommit,
}

/// What lets a terminal submit its next transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
enum Arrival {
    /// The answer to its last one, as in the paper.
    #[default]
    Closed,
    /// An arrival at its time; see [`Process::Fixed`].
    Fixed,
    /// The same; see [`Process::Poisson`].
    Poisson,
}

/// The file's shape, before it is checked. Keys that are not listed here are refused.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SpecFile {
    format: u32,
    system: String,
    #[serde(default)]
    endpoint: Endpoint,
    benchmark: String,
    ycsb: Option<YcsbSpec>,
    tpcc: Option<TpccSpec>,
    terminals: u32,
    warmup_s: f64,
    measure_s: f64,
    seed: u64,
    #[serde(default)]
    client_cpus: String,
    #[serde(default)]
    mysql_transaction: MysqlTransaction,
    #[serde(default = "default_loading_threads")]
    loading_threads: u32,
    schema: Option<PathBuf>,
    engine_settings: Option<Map<String, Value>>,
    #[serde(default)]
    record_transactions: u64,
    #[serde(default)]
    arrival: Arrival,
    offered_txn_s: Option<f64>,
}

fn default_loading_threads() -> u32 {
    4
}

/// The benchmark and its parameters.
#[derive(Debug, Clone)]
pub enum BenchmarkSpec {
    Ycsb(YcsbSpec),
    /// With the tables of the schema file.
    Tpcc(TpccSpec, Arc<Catalog>),
}

/// One checked loadgen call.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The system's name (design §1), for example `anticache-alru`.
    pub system: String,
    pub adapter: &'static Adapter,
    pub endpoint: Endpoint,
    pub benchmark: BenchmarkSpec,
    /// Clients with one outstanding transaction each.
    pub terminals: u32,
    /// Seconds that execute before the measured interval (paper §4.2).
    pub warmup_s: f64,
    /// Seconds of the measured interval.
    pub measure_s: f64,
    /// Seed of every random stream of this call.
    pub seed: u64,
    /// CPUs that this process is pinned to; `None`: not pinned.
    pub client_cpus: Option<CpuList>,
    pub mysql_transaction: MysqlTransaction,
    /// Threads that load or prewarm.
    pub loading_threads: u32,
    /// DDL file of the benchmark's tables; needed by `load`.
    pub schema: Option<PathBuf>,
    /// Settings that a running engine is given before `run` connects its terminals (`anticache_engine::config::LIVE_SETTINGS`).
    pub engine_settings: Option<Map<String, Value>>,
    /// Most transactions of the measured interval that are recorded one by one; 0: none are.
    pub record_transactions: u64,
    /// `None`: a closed loop, in which each terminal submits when it was answered.
    pub open_loop: Option<OpenLoop>,
}

impl Spec {
    /// Reads and checks a specification file. `endpoint` names a file that stands for the specification's `endpoint`: so that the specification
    /// can be kept and shown, and what holds the passwords is passed by (a pipe does).
    ///
    /// # Errors
    /// [`SpecError`] with the file, the line or key, the value and what is allowed.
    pub fn read(path: &Path, endpoint: Option<&Path>) -> Result<Spec, SpecError> {
        let mut file: SpecFile = read_json(path)?;
        if let Some(endpoint) = endpoint {
            file.endpoint = read_json(endpoint)?;
        }
        file.check().map_err(|problem| problem.in_file(path))
    }
}

/// Reads a JSON file.
///
/// # Errors
/// [`SpecError::Unreadable`] or [`SpecError::Malformed`].
pub fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, SpecError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| SpecError::Unreadable { path: path.to_owned(), source })?;
    serde_json::from_str(&text).map_err(|error| {
        let full = error.to_string();
        let suffix = format!(" at line {} column {}", error.line(), error.column());
        SpecError::Malformed {
            path: path.to_owned(),
            line: error.line(),
            column: error.column(),
            message: full.strip_suffix(&suffix).unwrap_or(&full).to_owned(),
        }
    })
}

impl SpecFile {
    fn benchmark(&self) -> Result<BenchmarkSpec, Problem> {
        let named = [("ycsb", self.ycsb.is_some()), ("tpcc", self.tpcc.is_some())];
        if named.iter().all(|(name, _)| *name != self.benchmark) {
            return Err(Problem::new("benchmark", &self.benchmark, "unknown benchmark", "ycsb, tpcc"));
        }
        if let Some((other, _)) = named.iter().find(|(name, is_there)| *is_there && *name != self.benchmark) {
            return Err(Problem::new(other, "present", format!("benchmark is {}", self.benchmark), "absent"));
        }
        let absent = |key: &str| Problem::new(key, "absent", format!("needed when benchmark is {key}"), "an object");
        match self.benchmark.as_str() {
            "ycsb" => {
                let ycsb = self.ycsb.as_ref().ok_or_else(|| absent("ycsb"))?;
                check_ycsb(ycsb)?;
                Ok(BenchmarkSpec::Ycsb(ycsb.clone()))
            }
            _ => {
                let tpcc = self.tpcc.as_ref().ok_or_else(|| absent("tpcc"))?;
                check_tpcc(tpcc)?;
                Ok(BenchmarkSpec::Tpcc(tpcc.clone(), Arc::new(self.catalog()?)))
            }
        }
    }

    /// The tables of the schema file.
    fn catalog(&self) -> Result<Catalog, Problem> {
        let allowed = "a readable file with the tables' SQL DDL";
        let Some(schema) = &self.schema else {
            return Err(Problem::new("schema", "absent", "needed when benchmark is tpcc", allowed));
        };
        let refused = |problem: String| Problem::new("schema", schema.display(), problem, allowed);
        let ddl = std::fs::read_to_string(schema).map_err(|error| refused(error.to_string()))?;
        let catalog = Catalog::from_sql(&ddl).map_err(|error| refused(error.to_string()))?;
        crate::tpcc::check_catalog(&catalog).map_err(|error| refused(error.to_string()))?;
        Ok(catalog)
    }

    fn open_loop(&self) -> Result<Option<OpenLoop>, Problem> {
        let process = match (self.arrival, self.offered_txn_s) {
            (Arrival::Closed, None) => return Ok(None),
            (Arrival::Closed, Some(rate)) => {
                let problem = "arrival is closed: terminals submit when they were answered, at no rate of their own";
                return Err(Problem::new("offered_txn_s", rate, problem, "absent, or arrival fixed or poisson"));
            }
            (Arrival::Fixed, _) => Process::Fixed,
            (Arrival::Poisson, _) => Process::Poisson,
        };
        let [low, high] = OFFERED_TXN_S;
        let Some(offered_txn_s) = self.offered_txn_s else {
            let allowed = format!("{low} to {high} transactions per second");
            return Err(Problem::new("offered_txn_s", "absent", "needed when arrival is fixed or poisson", allowed));
        };
        in_range("offered_txn_s", offered_txn_s, low, high)?;
        match &self.tpcc {
            Some(tpcc) if tpcc.wait_factor > 0.0 => {
                let problem = "terminals do not pause in an open loop: when transactions come is arrival's to say";
                Err(Problem::new("tpcc.wait_factor", tpcc.wait_factor, problem, "0, or arrival closed"))
            }
            _ => Ok(Some(OpenLoop { process, offered_txn_s })),
        }
    }

    fn check(self) -> Result<Spec, Problem> {
        in_range("format", self.format, SPEC_FORMAT, SPEC_FORMAT)?;
        let Some(adapter) = ADAPTERS.into_iter().find(|adapter| adapter.systems.contains(&self.system.as_str())) else {
            let allowed: Vec<&str> = ADAPTERS.iter().flat_map(|adapter| adapter.systems).copied().collect();
            return Err(Problem::new("system", &self.system, "unknown system", allowed.join(", ")));
        };
        check_endpoint(&self.endpoint, adapter, &self.system)?;
        if self.engine_settings.is_some() && adapter.name != anticache::ADAPTER.name {
            let problem = format!("system {} is not the engine", self.system);
            return Err(Problem::new("engine_settings", "present", problem, "absent"));
        }
        let benchmark = self.benchmark()?;
        in_range("terminals", self.terminals, 1, 4096)?;
        in_range("loading_threads", self.loading_threads, 1, 256)?;
        in_range("warmup_s", self.warmup_s, 0.0, 86_400.0)?;
        in_range("measure_s", self.measure_s, 0.1, 86_400.0)?;
        in_range("record_transactions", self.record_transactions, 0, MOST_RECORDED_TRANSACTIONS)?;
        let open_loop = self.open_loop()?;
        if let Some(schema) = &self.schema {
            let allowed = "a readable file with the tables' SQL DDL";
            std::fs::File::open(schema).map_err(|error| Problem::new("schema", schema.display(), error, allowed))?;
        }
        Ok(Spec {
            client_cpus: parse_cpus(&self.client_cpus)?,
            system: self.system,
            adapter,
            endpoint: self.endpoint,
            benchmark,
            terminals: self.terminals,
            warmup_s: self.warmup_s,
            measure_s: self.measure_s,
            seed: self.seed,
            mysql_transaction: self.mysql_transaction,
            loading_threads: self.loading_threads,
            schema: self.schema,
            engine_settings: self.engine_settings,
            record_transactions: self.record_transactions,
            open_loop,
        })
    }
}

fn parse_cpus(text: &str) -> Result<Option<CpuList>, Problem> {
    if text.trim().is_empty() {
        return Ok(None);
    }
    CpuList::parse(text)
        .map(Some)
        .map_err(|error| Problem::new("client_cpus", text, error, "a CPU list such as 1 or 0-1,3"))
}

fn check_endpoint(endpoint: &Endpoint, adapter: &Adapter, system: &str) -> Result<(), Problem> {
    if let Some(named) = &endpoint.adapter
        && named != adapter.name
    {
        let problem = format!("does not fit system {system}");
        return Err(Problem::new("endpoint.adapter", named, problem, adapter.name));
    }
    for (key, address_of) in adapter.addresses {
        let key = format!("endpoint.{key}");
        match address_of(endpoint) {
            None => {
                let problem = format!("needed by system {system}");
                return Err(Problem::new(key, "absent", problem, "HOST:PORT"));
            }
            Some(address) if !is_host_port(address) => {
                return Err(Problem::new(key, address, "not an address", "HOST:PORT"));
            }
            Some(_) => {}
        }
    }
    match &endpoint.mysql_database {
        Some(name) if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') => {
            Err(Problem::new("endpoint.mysql_database", name, "not a plain name", "letters, digits and _"))
        }
        _ => Ok(()),
    }
}

fn is_host_port(address: &str) -> bool {
    address
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0))
}

fn check_ycsb(ycsb: &YcsbSpec) -> Result<(), Problem> {
    in_range("ycsb.records", ycsb.records, 1, 1 << 40)?;
    in_range("ycsb.fields", ycsb.fields, 1, 1000)?;
    in_range("ycsb.field_bytes", ycsb.field_bytes, crate::ycsb::MIN_FIELD_BYTES, 255)?;
    in_range("ycsb.read_share", ycsb.read_share, 0.0, 1.0)?;
    in_range("ycsb.skew", ycsb.skew, 0.0, 5.0)?;
    in_range("ycsb.verify_share", ycsb.verify_share, 0.0, 1.0)?;
    // One field per update: the paper's YCSB updates a single value, and the engine's procedure takes one.
    in_range("ycsb.update_fields", ycsb.update_fields, 1, 1)?;
    if ycsb.key_order == KeyOrder::Scattered && ycsb.records > crate::ycsb::MAX_SCATTERED_RECORDS {
        let allowed = format!("at most {} with key_order scattered", crate::ycsb::MAX_SCATTERED_RECORDS);
        return Err(Problem::new("ycsb.records", ycsb.records, "too many", allowed));
    }
    Ok(())
}

fn check_tpcc(tpcc: &TpccSpec) -> Result<(), Problem> {
    in_range("tpcc.warehouses", tpcc.warehouses, 1, i16::MAX as u32)?;
    in_range("tpcc.items", tpcc.items, 1, 100_000)?;
    in_range("tpcc.customers_per_district", tpcc.customers_per_district, 1, 3000)?;
    // Every customer has an order, or Order-Status would find none (clause 4.3.3.1 gives each exactly one).
    in_range("tpcc.orders_per_district", tpcc.orders_per_district, tpcc.customers_per_district, 10_000_000)?;
    in_range("tpcc.wait_factor", tpcc.wait_factor, 0.0, 10.0)
}

fn in_range<T: PartialOrd + fmt::Display>(key: &str, value: T, low: T, high: T) -> Result<(), Problem> {
    if value >= low && value <= high {
        return Ok(());
    }
    let allowed = if low == high { low.to_string() } else { format!("{low} to {high}") };
    Err(Problem::new(key, value, "out of range", allowed))
}

/// One impossible value, not yet tied to a file.
#[derive(Debug)]
pub struct Problem {
    key: String,
    value: String,
    problem: String,
    allowed: String,
}

impl Problem {
    pub fn new(
        key: impl fmt::Display,
        value: impl fmt::Display,
        problem: impl fmt::Display,
        allowed: impl fmt::Display,
    ) -> Problem {
        Problem {
            key: key.to_string(),
            value: value.to_string(),
            problem: problem.to_string(),
            allowed: allowed.to_string(),
        }
    }

    /// Names the file that holds the value.
    pub fn in_file(self, path: &Path) -> SpecError {
        SpecError::Invalid {
            path: path.to_owned(),
            key: self.key,
            value: self.value,
            problem: self.problem,
            allowed: self.allowed,
        }
    }
}
