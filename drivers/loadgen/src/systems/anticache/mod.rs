//! The anti-caching engine, through its native client: every worker thread multiplexes its terminals
//! over one pipelined connection per partition.

mod events;
mod tpcc;
mod ycsb;

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::ops::Range;
use std::time::Duration;

use anticache_engine::catalog::{Catalog, TableId};
use anticache_engine::client::{Client, ClientError, Reply};
use anticache_engine::secret::Secret;
use serde_json::{Map, Value};

use crate::interrupt::Interrupt;
use crate::row_hash::RowSum;
use crate::spec::Spec;
use crate::system::{
    Adapter, BulkWork, ByServer, Completion, Connection, EventSource, Outcome, System, SystemError, evenly,
};
use crate::workload::Workload;

/// Name of the server in errors, counters and settings.
const SERVER: &str = "anticached";
/// A server that answers nothing at all for this long is dead; blocks come from disk in less.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// So long a snapshot of everything may take before its client gives up.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(600);
/// Loading requests that a thread has outstanding, so that the server never waits for it.
const LOAD_OUTSTANDING: usize = 8;

/// How the adapter is found by its systems' names.
pub static ADAPTER: Adapter = Adapter {
    name: "anticache",
    systems: &["anticache-lru", "anticache-alru", "anticache-off"],
    addresses: &[("anticache_address", |endpoint| endpoint.anticache_address.as_deref())],
    open: |spec, workload| Ok(Box::new(AnticacheSystem::open(spec, workload)?)),
};

/// A deployed engine.
pub struct AnticacheSystem {
    address: SocketAddr,
    secret: Option<Secret>,
    workload: Workload,
}

impl AnticacheSystem {
    /// # Errors
    /// [`SystemError::Connect`] when the server does not answer.
    pub fn open(spec: &Spec, workload: Workload) -> Result<AnticacheSystem, SystemError> {
        let name = spec.endpoint.anticache_address.as_deref().unwrap_or_default();
        let refuse = |reason: String| SystemError::Connect { server: SERVER, address: name.to_owned(), reason };
        let address = name
            .to_socket_addrs()
            .map_err(|error| refuse(error.to_string()))?
            .next()
            .ok_or_else(|| refuse("the name has no address".to_owned()))?;
        let secret = spec.endpoint.anticache_secret.as_ref().map(|secret| Secret::new(secret.reveal().as_bytes()));
        let secret = secret.transpose().map_err(|error| refuse(format!("endpoint.anticache_secret: {error}")))?;
        let system = AnticacheSystem { address, secret, workload };
        system.client()?;
        Ok(system)
    }

    fn client(&self) -> Result<Client, SystemError> {
        let mut client =
            Client::connect_with(self.address, self.secret.as_ref()).map_err(|error| self.unreachable(&error))?;
        client.set_timeout(Some(ANSWER_TIMEOUT)).map_err(|error| self.unreachable(&error))?;
        Ok(client)
    }

    /// The client of a group of terminals. They are many users, who send without waiting for each other: as soon as half of them have submitted, not only
    /// when there is nothing left to do but to wait. Otherwise they and the server take turns, each idle while the other works.
    fn terminals_client(&self, terminals: usize) -> Result<Client, SystemError> {
        let mut client = self.client()?;
        client.send_every(terminals / 2 / client.partitions() as usize);
        Ok(client)
    }

    fn unreachable(&self, error: &ClientError) -> SystemError {
        let reason = match error {
            ClientError::Connect { source, .. } | ClientError::Broken { source, .. } => source.to_string(),
            ClientError::Secret { problem, .. } => (*problem).to_owned(),
            other => other.to_string(),
        };
        SystemError::Connect { server: SERVER, address: self.address.to_string(), reason }
    }

    /// Counters and settings as the server sends them: one object with `settings` inside.
    fn stats(&self) -> Result<Map<String, Value>, SystemError> {
        match self.client()?.stats().map_err(|error| system_error(self.address, &error))? {
            Value::Object(stats) => Ok(stats),
            other => Err(SystemError::Data(format!("{SERVER}: its statistics are no object: {other}"))),
        }
    }

    /// Refuses to load into a database that is not empty.
    fn check_empty(&self) -> Result<(), SystemError> {
        match tuples(&self.stats()?) {
            0 => Ok(()),
            before => {
                let message =
                    format!("{SERVER} at {}: holds {before} tuples already; restart it to load", self.address);
                Err(SystemError::Data(message))
            }
        }
    }

    /// Tuples of every table, in memory and evicted, summed over the partitions; in the order of the server's tables.
    fn tuples_by_table(&self, client: &mut Client) -> Result<Vec<(String, u64)>, SystemError> {
        let mut sums: Vec<(String, u64)> = Vec::new();
        for partition in 0..client.partitions() {
            let description = client.describe(partition, 0).map_err(|error| system_error(self.address, &error))?;
            for (at, table) in description["tables"].as_array().into_iter().flatten().enumerate() {
                let tuples = ["resident", "evicted"].iter().filter_map(|kind| table[kind].as_u64()).sum::<u64>();
                match sums.get_mut(at) {
                    Some((_, sum)) => *sum += tuples,
                    None => sums.push((table["name"].as_str().unwrap_or_default().to_owned(), tuples)),
                }
            }
        }
        Ok(sums)
    }

    /// Tables are numbered by their order in the schema: the server's must be the specification's.
    fn check_tables(&self, client: &mut Client, catalog: &Catalog) -> Result<(), SystemError> {
        let there: Vec<String> = self.tuples_by_table(client)?.into_iter().map(|(name, _)| name).collect();
        let wanted: Vec<&str> = catalog.tables().iter().map(|table| table.name.as_str()).collect();
        if there == wanted {
            return Ok(());
        }
        let (there, wanted) = (there.join(", "), wanted.join(", "));
        let problem =
            format!("has the tables {there}; the specification's schema has {wanted}: start it with that schema");
        Err(SystemError::Data(format!("{SERVER} at {}: {problem}", self.address)))
    }

    fn settings_object(&self) -> Result<Map<String, Value>, SystemError> {
        match self.stats()?.remove("settings") {
            Some(Value::Object(settings)) => Ok(settings),
            _ => Ok(Map::new()),
        }
    }
}

/// Whether a setting has a value; a number may be written in another way.
fn is_same(found: Option<&Value>, wanted: &Value) -> bool {
    found.is_some_and(|found| found == wanted || (found.is_number() && found.as_f64() == wanted.as_f64()))
}

impl System for AnticacheSystem {
    /// The server made its tables from the same DDL when it started.
    fn create_schema(&self, _ddl: &str) -> Result<(), SystemError> {
        Ok(())
    }

    fn load(&self, work: BulkWork<'_>) -> Result<u64, SystemError> {
        match &self.workload {
            Workload::Ycsb(ycsb) => ycsb::load(self, ycsb, work),
            Workload::Tpcc(tpcc) => tpcc::load(self, tpcc, work),
        }
    }

    fn prewarm(&self, work: BulkWork<'_>) -> Result<String, SystemError> {
        match &self.workload {
            Workload::Ycsb(ycsb) => ycsb::prewarm(self, ycsb, work),
            // What the transactions want most was loaded last, by age, and what is static is always in memory.
            Workload::Tpcc(_) => Ok(format!("{SERVER}: loading by age left the newest orders in memory")),
        }
    }

    /// A snapshot: then none comes due in a trial for what was logged, or for the time that has passed, before it.
    fn quiesce(&self, _interrupt: &Interrupt) -> Result<String, SystemError> {
        let mut client = self.client()?;
        client.set_timeout(Some(SNAPSHOT_TIMEOUT)).map_err(|error| self.unreachable(&error))?;
        let generation = client.snapshot().map_err(|error| system_error(self.address, &error))?;
        Ok(format!("{SERVER}: snapshot {generation}"))
    }

    fn terminal_groups(&self, terminals: u32, cpus: usize) -> Vec<Range<u32>> {
        evenly(terminals, cpus)
    }

    fn connect(&self, terminals: Range<u32>) -> Result<Box<dyn Connection>, SystemError> {
        Ok(match &self.workload {
            Workload::Ycsb(ycsb) => Box::new(ycsb::YcsbConnection::open(self, ycsb, terminals)?),
            Workload::Tpcc(tpcc) => Box::new(tpcc::TpccConnection::open(self, tpcc, terminals)?),
        })
    }

    /// Of a replicated table, those of the first partition; [`System::compare_replicas`] looks at the others.
    fn scan(&self, catalog: &Catalog, table: TableId, on_row: &mut dyn FnMut(&[u8])) -> Result<(), SystemError> {
        let mut client = self.client()?;
        self.check_tables(&mut client, catalog)?;
        let partitions = if catalog.table(table).replicated { 1 } else { client.partitions() };
        (0..partitions).try_for_each(|partition| {
            client.scan(partition, table, &mut *on_row).map_err(|error| system_error(self.address, &error))
        })
    }

    fn compare_replicas(&self, catalog: &Catalog, table: TableId) -> Result<Option<String>, SystemError> {
        let mut client = self.client()?;
        self.check_tables(&mut client, catalog)?;
        let mut sums = Vec::new();
        for partition in 0..client.partitions() {
            let mut sum = RowSum::default();
            client.scan(partition, table, |row| sum.add(row)).map_err(|error| system_error(self.address, &error))?;
            sums.push(sum);
        }
        let name = &catalog.table(table).name;
        let other = sums.iter().zip(0..).find(|(sum, _)| Some(*sum) != sums.first());
        Ok(other.map(|(sum, partition)| {
            let (first, rows) = (sums[0].rows, sum.rows);
            format!(
                "{name} is not the same at every partition: {first} rows at 0, {rows} at {partition}, or other ones"
            )
        }))
    }

    fn event_source(&self) -> Result<Option<Box<dyn EventSource>>, SystemError> {
        Ok(Some(Box::new(events::PartitionEvents::open(self)?)))
    }

    fn counters(&self) -> Result<ByServer, SystemError> {
        let mut stats = self.stats()?;
        stats.retain(|_, value| value.is_u64());
        Ok(ByServer::from([(SERVER, stats)]))
    }

    fn change_settings(&self, changes: &Map<String, Value>) -> Result<(), SystemError> {
        let wanted = Value::Object(changes.clone());
        self.client()?.change_settings(&wanted).map_err(|error| system_error(self.address, &error))?;
        let now = self.settings_object()?;
        let kept = changes.iter().find(|(key, value)| !is_same(now.get(*key), value));
        kept.map_or(Ok(()), |(key, value)| {
            let found = now.get(key).unwrap_or(&Value::Null);
            Err(SystemError::Data(format!(
                "{SERVER} at {}: {key} is {found} after it was set to {value}",
                self.address
            )))
        })
    }

    fn settings(&self) -> Result<ByServer, SystemError> {
        Ok(ByServer::from([(SERVER, self.settings_object()?)]))
    }

    fn versions(&self) -> Result<BTreeMap<&'static str, String>, SystemError> {
        let settings = self.settings_object()?;
        let version = settings.get("version").and_then(Value::as_str).unwrap_or("not reported");
        Ok(BTreeMap::from([(SERVER, version.to_owned())]))
    }
}

fn count(stats: &Map<String, Value>, name: &str) -> u64 {
    stats.get(name).and_then(Value::as_u64).unwrap_or(0)
}

/// Tuples of all tables, in memory and evicted.
fn tuples(stats: &Map<String, Value>) -> u64 {
    count(stats, "tuples_resident") + count(stats, "tuples_evicted")
}

fn system_error(address: SocketAddr, error: &ClientError) -> SystemError {
    let address = address.to_string();
    match error {
        ClientError::NotCommitted(reason) => refused(address, reason),
        ClientError::Connect { source, .. } | ClientError::Broken { source, .. } => {
            use std::io::ErrorKind::{TimedOut, WouldBlock};
            let late = matches!(source.kind(), WouldBlock | TimedOut);
            let reason = if late { "no answer in time".to_owned() } else { source.to_string() };
            SystemError::Lost { server: SERVER, address, reason }
        }
        ClientError::Secret { problem, .. } => {
            SystemError::Lost { server: SERVER, address, reason: (*problem).to_owned() }
        }
        ClientError::Protocol { problem, .. } => SystemError::Lost { server: SERVER, address, reason: problem.clone() },
    }
}

fn refused(address: String, reason: &str) -> SystemError {
    SystemError::Server { server: SERVER, address, code: "failed".to_owned(), message: reason.to_owned() }
}

/// Waits for replies to terminals, whose numbers are the requests' tokens, with a `limit` for so long at most. `verify` gets the reply or the reason of the abort, and says whether what was
/// read is intact, or why the trial cannot go on.
fn complete(
    client: &mut Client,
    address: SocketAddr,
    limit: Option<Duration>,
    completions: &mut Vec<Completion>,
    mut verify: impl FnMut(u32, Result<&[u8], &str>) -> Result<Option<bool>, String>,
) -> Result<(), SystemError> {
    let mut failure = None;
    let mut on_reply = |token: u64, reply: Reply<'_>| {
        let (outcome, ended) = match reply {
            Reply::Committed(reply) => (Outcome::Committed, Ok(reply)),
            Reply::Aborted(reason) => (Outcome::Aborted(reason.to_owned()), Err(reason)),
            Reply::Failed(reason) => return failure = Some(reason.to_owned()),
        };
        let terminal = token as u32;
        match verify(terminal, ended) {
            Ok(verified) => completions.push(Completion { terminal, outcome, verified, retries: Vec::new() }),
            Err(problem) => failure = Some(problem),
        }
    };
    let waited = match limit {
        None => client.wait(&mut on_reply),
        Some(limit) => client.wait_for(limit, &mut on_reply),
    };
    waited.map_err(|error| system_error(address, &error))?;
    failure.map_or(Ok(()), |reason| Err(refused(address.to_string(), &reason)))
}

/// A client that only wants to know that its requests commit.
struct BulkClient {
    address: SocketAddr,
    client: Client,
}

impl BulkClient {
    /// Connects; returns the number of a procedure as well.
    fn open(system: &AnticacheSystem, procedure: &str) -> Result<(BulkClient, u16), SystemError> {
        let client = system.client()?;
        let procedure = client.procedure(procedure).map_err(|error| system_error(system.address, &error))?;
        Ok((BulkClient { address: system.address, client }, procedure))
    }

    fn wait_until_at_most(&mut self, outstanding: usize) -> Result<(), SystemError> {
        while self.client.outstanding() > outstanding {
            let mut failure = None;
            let mut on_reply = |_, reply: Reply<'_>| match reply {
                Reply::Committed(_) => {}
                Reply::Aborted(reason) | Reply::Failed(reason) => failure = Some(reason.to_owned()),
            };
            self.client.wait(&mut on_reply).map_err(|error| system_error(self.address, &error))?;
            if let Some(reason) = failure {
                return Err(refused(self.address.to_string(), &reason));
            }
        }
        Ok(())
    }
}
