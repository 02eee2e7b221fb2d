//! The anti-caching engine, through its native client: every worker thread multiplexes its terminals
//! over one pipelined connection per partition.

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::ops::Range;
use std::time::Duration;

use anticache_engine::client::{Client, ClientError, Reply};
use anticache_engine::secret::Secret;
use serde_json::{Map, Value};

use crate::parallel::{ChunkWorker, Chunks, Order, for_each_chunk};
use crate::progress::Progress;
use crate::spec::Spec;
use crate::system::{BulkWork, ByServer, Completion, Connection, Outcome, System, SystemError, evenly};
use crate::workload::{Transaction, Workload};
use crate::ycsb::{KeyOrder, RecordLayout, Ycsb, YcsbTransaction};
use anticache_engine::catalog::{Catalog, TableId};

/// Name of the server in errors, counters and settings.
const SERVER: &str = "anticached";
/// A server that answers nothing at all for this long is dead; blocks come from disk in less.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Records of one loading round of a thread, shared out to the partitions.
const LOAD_RECORDS: u64 = 256;
/// Loading requests that a thread has outstanding, so that the server never waits for it.
const LOAD_OUTSTANDING: usize = 8;
/// Prewarming reads that are outstanding: as many as fig06 has terminals.
const PREWARM_OUTSTANDING: usize = 64;
/// Steps from the coldest to the hottest record of prewarming. Inside of one the keys ascend, as they lie
/// in the blocks, so that reads that need the same block share its fetch; in the order of the ranks alone
/// nearly every record would cost a whole block.
const PREWARM_STEPS: u64 = 16;

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

    fn read_hottest(
        &self,
        ycsb: &Ycsb,
        hottest: u64,
        work: BulkWork<'_>,
        progress: &Progress,
    ) -> Result<(), SystemError> {
        let (mut bulk, read) = BulkClient::open(self, "ycsb_read")?;
        let step = hottest.div_ceil(PREWARM_STEPS).max(1);
        for first in (0..hottest).step_by(step as usize) {
            let positions = first..hottest.min(first + step);
            let mut keys: Vec<i64> = positions.map(|position| ycsb.key_of_rank(hottest - position)).collect();
            keys.sort_unstable();
            for key in keys {
                if work.interrupt.requested() {
                    return Err(SystemError::Interrupted);
                }
                bulk.client.submit(0, bulk.client.partition_of(key), read, &key.to_le_bytes());
                bulk.wait_until_at_most(PREWARM_OUTSTANDING - 1)?;
                progress.add(1);
            }
            // The next step is hotter: all of this one comes before it.
            bulk.wait_until_at_most(0)?;
        }
        Ok(())
    }

    fn settings_object(&self) -> Result<Map<String, Value>, SystemError> {
        match self.stats()?.remove("settings") {
            Some(Value::Object(settings)) => Ok(settings),
            _ => Ok(Map::new()),
        }
    }
}

impl System for AnticacheSystem {
    /// The server made its tables from the same DDL when it started.
    fn create_schema(&self, _ddl: &str) -> Result<(), SystemError> {
        Ok(())
    }

    fn load(&self, work: BulkWork<'_>) -> Result<u64, SystemError> {
        let Workload::Ycsb(ycsb) = &self.workload else {
            return Err(SystemError::Data("this system does not run TPC-C yet".to_owned()));
        };
        let records = ycsb.spec.records;
        let tuples_before = tuples(&self.stats()?);
        if tuples_before != 0 {
            let message =
                format!("{SERVER} at {}: holds {tuples_before} tuples already; restart it to load", self.address);
            return Err(SystemError::Data(message));
        }
        let progress = Progress::start("load anticached", records, "records");
        let chunks = Chunks { order: Order::Shared, total: records, chunk: LOAD_RECORDS, threads: work.threads };
        for_each_chunk(chunks, work.interrupt, || Loader::open(self, ycsb, &progress))?;
        let elapsed_s = progress.elapsed_s();
        progress.finish(format!("{records} records in {elapsed_s:.1} s; counting"));
        let found = tuples(&self.stats()?);
        if found != records {
            return Err(SystemError::Data(format!("{SERVER} holds {found} tuples after loading, not {records}")));
        }
        Ok(records)
    }

    /// Memory is the primary storage: loading in order of age has left the newest records in it, which are
    /// the hottest where the keys are clustered. Where they are scattered the hottest are read, coldest of
    /// them first, as many as are in memory at a time: the others are evicted for them.
    fn prewarm(&self, work: BulkWork<'_>) -> Result<String, SystemError> {
        let Workload::Ycsb(ycsb) = &self.workload else {
            return Err(SystemError::Data("this system does not run TPC-C yet".to_owned()));
        };
        let stats = self.stats()?;
        if ycsb.spec.key_order == KeyOrder::Clustered {
            return Ok(format!("{SERVER}: loading left the newest, hottest records in memory"));
        }
        if count(&stats, "tuples_evicted") == 0 {
            return Ok(format!("{SERVER}: all records are in memory"));
        }
        let hottest = count(&stats, "tuples_resident").min(ycsb.spec.records);
        let progress = Progress::start("prewarm anticached", hottest, "records");
        self.read_hottest(ycsb, hottest, work, &progress)?;
        let summary = format!("read the {hottest} hottest records in {:.1} s", progress.elapsed_s());
        progress.finish(&summary);
        Ok(format!("{SERVER}: {summary}, it holds {} in memory", count(&self.stats()?, "tuples_resident")))
    }

    fn terminal_groups(&self, terminals: u32, cpus: usize) -> Vec<Range<u32>> {
        evenly(terminals, cpus)
    }

    fn connect(&self, terminals: Range<u32>) -> Result<Box<dyn Connection>, SystemError> {
        let client = self.client()?;
        let Workload::Ycsb(ycsb) = &self.workload else {
            return Err(SystemError::Data("this system does not run TPC-C yet".to_owned()));
        };
        let procedure = |name| client.procedure(name).map_err(|error| system_error(self.address, &error));
        Ok(Box::new(PipelinedConnection {
            address: self.address,
            read: procedure("ycsb_read")?,
            update: procedure("ycsb_update")?,
            client,
            layout: ycsb.layout,
            first_terminal: terminals.start,
            pending: vec![Pending { key: 0, verify: false }; terminals.len()],
            parameters: Vec::new(),
        }))
    }

    fn scan(&self, _catalog: &Catalog, _table: TableId, _on_row: &mut dyn FnMut(&[u8])) -> Result<(), SystemError> {
        Err(SystemError::Data("this system does not scan yet".to_owned()))
    }

    fn counters(&self) -> Result<ByServer, SystemError> {
        let mut stats = self.stats()?;
        stats.retain(|_, value| value.is_u64());
        Ok(ByServer::from([(SERVER, stats)]))
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

/// What a terminal waits for.
#[derive(Clone, Copy)]
struct Pending {
    key: i64,
    /// Whether the reply is a record to be checked.
    verify: bool,
}

/// The connection of a group of terminals; a request's token is its terminal.
struct PipelinedConnection {
    address: SocketAddr,
    client: Client,
    read: u16,
    update: u16,
    layout: RecordLayout,
    first_terminal: u32,
    pending: Vec<Pending>,
    parameters: Vec<u8>,
}

impl Connection for PipelinedConnection {
    fn submit(&mut self, terminal: u32, transaction: &Transaction<'_>) -> Result<(), SystemError> {
        let Transaction::Ycsb(transaction) = *transaction else {
            return Err(SystemError::Data("this system does not run TPC-C yet".to_owned()));
        };
        self.parameters.clear();
        let (key, verify, procedure) = match transaction {
            YcsbTransaction::Read { key, verify } => (key, verify, self.read),
            YcsbTransaction::Update { key, .. } => (key, false, self.update),
        };
        self.parameters.extend_from_slice(&key.to_le_bytes());
        if let YcsbTransaction::Update { field, value, .. } = transaction {
            self.parameters.extend_from_slice(&field.to_le_bytes());
            self.parameters.extend_from_slice(value);
        }
        self.pending[(terminal - self.first_terminal) as usize] = Pending { key, verify };
        let partition = self.client.partition_of(key);
        self.client.submit(u64::from(terminal), partition, procedure, &self.parameters);
        Ok(())
    }

    fn wait(&mut self, completions: &mut Vec<Completion>) -> Result<(), SystemError> {
        let (pending, layout, first_terminal) = (&self.pending, self.layout, self.first_terminal);
        let mut failure = None;
        let mut on_reply = |token: u64, reply: Reply<'_>| {
            let terminal = token as u32;
            let (outcome, verified) = match reply {
                Reply::Committed(record) => {
                    let Pending { key, verify } = pending[(terminal - first_terminal) as usize];
                    (Outcome::Committed, verify.then(|| layout.verify_record(key, record)))
                }
                Reply::Aborted(reason) => (Outcome::Aborted(reason.to_owned()), None),
                Reply::Failed(reason) => {
                    failure = Some(reason.to_owned());
                    return;
                }
            };
            completions.push(Completion { terminal, outcome, verified, retries: Vec::new() });
        };
        self.client.wait(&mut on_reply).map_err(|error| system_error(self.address, &error))?;
        match failure {
            Some(reason) => Err(refused(self.address.to_string(), &reason)),
            None => Ok(()),
        }
    }
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

/// One loading thread.
struct Loader<'a> {
    bulk: BulkClient,
    procedure: u16,
    ycsb: &'a Ycsb,
    progress: &'a Progress,
    /// Per partition: the number of records so far, and the request's parameters.
    batches: Vec<(u32, Vec<u8>)>,
}

impl<'a> Loader<'a> {
    fn open(system: &AnticacheSystem, ycsb: &'a Ycsb, progress: &'a Progress) -> Result<Loader<'a>, SystemError> {
        let (bulk, procedure) = BulkClient::open(system, "ycsb_load")?;
        let batches = vec![(0, Vec::new()); bulk.client.partitions() as usize];
        Ok(Loader { bulk, procedure, ycsb, progress, batches })
    }
}

impl ChunkWorker for Loader<'_> {
    fn work(&mut self, keys: Range<u64>) -> Result<(), SystemError> {
        let count = keys.end - keys.start;
        for key in keys {
            let key = key as i64;
            let (records, parameters) = &mut self.batches[self.bulk.client.partition_of(key) as usize];
            if *records == 0 {
                // Room for the count, which is known at the end.
                parameters.clear();
                parameters.extend_from_slice(&[0; 4]);
            }
            *records += 1;
            parameters.extend_from_slice(&key.to_le_bytes());
            self.ycsb.push_initial_record(key, parameters);
        }
        for (partition, (records, parameters)) in self.batches.iter_mut().enumerate() {
            if *records > 0 {
                parameters[..4].copy_from_slice(&records.to_le_bytes());
                self.bulk.client.submit(0, partition as u32, self.procedure, parameters);
                *records = 0;
            }
        }
        self.bulk.wait_until_at_most(LOAD_OUTSTANDING)?;
        self.progress.add(count);
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SystemError> {
        self.bulk.wait_until_at_most(0)
    }
}
