//! The narrow waist between the terminals and the systems under test.
//!
//! A [`System`] is a factory and an inspector; a [`Connection`] carries the transactions of a group of
//! terminals. The same worker loop (`trial::worker`) drives every adapter: blocking ones serve one
//! terminal per connection, pipelined ones many.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use anticache_engine::catalog::{Catalog, TableId};
use serde_json::{Map, Value};

use crate::interrupt::Interrupt;
use crate::spec::{Endpoint, Spec};
use crate::workload::{Transaction, Workload};

/// Why a system could not do its work. Retries and aborts are not errors: see [`Completion`].
#[derive(Debug, thiserror::Error)]
pub enum SystemError {
    #[error("{server} at {address}: cannot connect: {reason}; is it running? its log says why not")]
    Connect { server: &'static str, address: String, reason: String },
    #[error("{server} at {address}: connection lost: {reason}; see the server's log")]
    Lost { server: &'static str, address: String, reason: String },
    #[error("{server} at {address}: error {code}: {message}")]
    Server { server: &'static str, address: String, code: String, message: String },
    /// The data are not as they have to be, or the call makes no sense for this system.
    #[error("{0}")]
    Data(String),
    #[error("interrupted")]
    Interrupted,
}

impl SystemError {
    /// Short name under which the error is counted in results.
    pub fn kind(&self) -> String {
        match self {
            SystemError::Connect { server, .. } => format!("{server} unreachable"),
            SystemError::Lost { server, .. } => format!("{server} lost"),
            SystemError::Server { server, code, .. } => format!("{server} {code}"),
            SystemError::Data(_) => "data".to_owned(),
            SystemError::Interrupted => "interrupted".to_owned(),
        }
    }
}

/// How a transaction ended for its terminal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Acknowledged by the system, with its durability.
    Committed,
    /// Rolled back for a reason of the benchmark's logic; not tried again.
    Aborted(String),
}

/// A transaction that is over.
#[derive(Debug, Clone)]
pub struct Completion {
    pub terminal: u32,
    pub outcome: Outcome,
    /// Whether what was read is intact; `None` when it was not checked.
    pub verified: Option<bool>,
    /// One entry per attempt that the system rolled back and the client repeated, by type (for MySQL
    /// the error number). Empty for nearly all, so that it costs no allocation.
    pub retries: Vec<&'static str>,
}

/// Carries the transactions of a group of terminals, each with at most one outstanding.
pub trait Connection: Send {
    /// Hands over the next transaction of `terminal`. A blocking adapter executes it here.
    ///
    /// # Errors
    /// What [`Connection::wait`] returns.
    fn submit(&mut self, terminal: u32, transaction: &Transaction<'_>) -> Result<(), SystemError>;

    /// Waits until at least one outstanding transaction is over and appends all that are.
    ///
    /// # Errors
    /// Anything that repeating the transaction cannot mend: the server is gone, its disk is full …
    fn wait(&mut self, completions: &mut Vec<Completion>) -> Result<(), SystemError>;

    /// The same for so long at most; none may be over then. A pipelined adapter has to end in time, or the next arrival of an open loop is started
    /// late; one that executes in [`Connection::submit`] never waits.
    ///
    /// # Errors
    /// What [`Connection::wait`] returns.
    fn wait_for(&mut self, _limit: Duration, completions: &mut Vec<Completion>) -> Result<(), SystemError> {
        self.wait(completions)
    }
}

/// Values per server, keyed by the server's name (`mysqld`, `memcached`, `anticached`, `loadgen`).
pub type ByServer = BTreeMap<&'static str, Map<String, Value>>;

/// What loading and prewarming need besides the system itself.
#[derive(Debug, Clone, Copy)]
pub struct BulkWork<'a> {
    /// Threads, each with its own connection.
    pub threads: u32,
    pub interrupt: &'a Interrupt,
}

/// Cached documents beside the rows that they stand for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct CacheDifferences {
    /// Documents found in the cache.
    pub compared: u64,
    /// Those that are not their row's, or whose row is gone.
    pub different: u64,
}

/// Something that a system did besides transactions. Amounts that its kind does not have are 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemEvent {
    /// When it ended, in microseconds since 1970 by the server's clock.
    pub at_us: u64,
    pub partition: u32,
    /// As the system calls it, for example `eviction`.
    pub kind: String,
    pub tuples: u64,
    pub blocks: u64,
    pub bytes: u64,
    /// How long transactions waited for it, in microseconds.
    pub took_us: u64,
}

/// Reads what a system did, over a connection of its own.
pub trait EventSource: Send {
    /// Appends events since the last call, at most as many as the system tells at a time. Returns how many are lost for good, because too many came
    /// since.
    ///
    /// # Errors
    /// The connection broke.
    fn poll(&mut self, events: &mut Vec<SystemEvent>) -> Result<u64, SystemError>;
}

/// A deployed system under test.
pub trait System: Send + Sync {
    /// Creates the benchmark's tables from the DDL text, in place of older ones.
    fn create_schema(&self, ddl: &str) -> Result<(), SystemError>;

    /// Loads the benchmark's data set into fresh tables and verifies the count where the system can
    /// count. Returns the records loaded.
    fn load(&self, work: BulkWork<'_>) -> Result<u64, SystemError>;

    /// Fills caches with the hottest records, coldest first, as far as they hold them. Returns a
    /// sentence for the log.
    fn prewarm(&self, work: BulkWork<'_>) -> Result<String, SystemError>;

    /// Has the servers do what they have put off (pages to write back, a log that only a snapshot shortens) and waits until it is done, so that a
    /// trial begins with the same state whatever ran before it. Returns a sentence for the log. A system that puts nothing off has nothing to do.
    ///
    /// # Errors
    /// Why something is left to be done.
    fn quiesce(&self, _interrupt: &Interrupt) -> Result<String, SystemError> {
        Ok("nothing was put off".to_owned())
    }

    /// How `terminals` terminals are grouped onto connections, one worker thread each, on a client
    /// with `cpus` CPUs.
    fn terminal_groups(&self, terminals: u32, cpus: usize) -> Vec<Range<u32>>;

    /// Whether what is loaded can be read again; a system that keeps nothing cannot be asked what it was loaded with.
    fn keeps_data(&self) -> bool {
        true
    }

    /// Opens the connection of one group of terminals.
    fn connect(&self, terminals: Range<u32>) -> Result<Box<dyn Connection>, SystemError>;

    /// Passes every row of a table, serialized as the engine has it (`anticache_engine::catalog::row`), to `on_row`, in any order.
    fn scan(&self, catalog: &Catalog, table: TableId, on_row: &mut dyn FnMut(&[u8])) -> Result<(), SystemError>;

    /// How many cached documents differ from the rows that they stand for, while nothing is running; `None` where nothing is cached.
    fn cache_differences(&self, _catalog: &Catalog) -> Result<Option<CacheDifferences>, SystemError> {
        Ok(None)
    }

    /// Whether a replicated table ([`System::scan`] passes one replica) is the same everywhere; otherwise what differs. A system without replicas has
    /// nothing to compare.
    fn compare_replicas(&self, _catalog: &Catalog, _table: TableId) -> Result<Option<String>, SystemError> {
        Ok(None)
    }

    /// What the system does besides transactions, from now on; `None`: it does not tell.
    fn event_source(&self) -> Result<Option<Box<dyn EventSource>>, SystemError> {
        Ok(None)
    }

    /// Counters of all servers, to be read before and after a measurement.
    fn counters(&self) -> Result<ByServer, SystemError>;

    /// Changes settings of a running server. Only the engine has such.
    ///
    /// # Errors
    /// [`SystemError::Data`] with the server's reason.
    fn change_settings(&self, changes: &Map<String, Value>) -> Result<(), SystemError> {
        let keys: Vec<&str> = changes.keys().map(String::as_str).collect();
        Err(SystemError::Data(format!("{} cannot be changed while the system runs", keys.join(", "))))
    }

    /// Settings as the servers themselves report them.
    fn settings(&self) -> Result<ByServer, SystemError>;

    /// Version per server, as it reports it.
    fn versions(&self) -> Result<BTreeMap<&'static str, String>, SystemError>;
}

/// An address that an endpoint file must have: its key, and where it stands once it is read.
pub type Address = (&'static str, fn(&Endpoint) -> Option<&str>);

/// Opens a deployed system of a specification, to run a benchmark on it.
pub type Open = fn(&Spec, Workload) -> Result<Box<dyn System>, SystemError>;

/// What loadgen knows of an adapter besides its code. `systems::ADAPTERS` lists them.
#[derive(Debug)]
pub struct Adapter {
    /// Name as in an endpoint file.
    pub name: &'static str,
    /// The systems that it drives, by the names of design §1.
    pub systems: &'static [&'static str],
    /// The addresses of the servers that it speaks to.
    pub addresses: &'static [Address],
    pub open: Open,
}

/// Opens the system that a specification names.
///
/// # Errors
/// [`SystemError::Connect`] when one of its servers does not answer.
pub fn open(spec: &Spec, workload: &Workload) -> Result<Box<dyn System>, SystemError> {
    (spec.adapter.open)(spec, workload.clone())
}

/// One group per terminal: for adapters whose connections block.
pub fn one_terminal_each(terminals: u32) -> Vec<Range<u32>> {
    (0..terminals).map(|terminal| terminal..terminal + 1).collect()
}

/// At most `groups` groups of nearly equal size: for adapters that multiplex.
pub fn evenly(terminals: u32, groups: usize) -> Vec<Range<u32>> {
    let groups = u32::try_from(groups).unwrap_or(u32::MAX).clamp(1, terminals.max(1));
    let bound = |group: u32| (u64::from(terminals) * u64::from(group) / u64::from(groups)) as u32;
    (0..groups).map(|group| bound(group)..bound(group + 1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_cover_all_terminals_once() {
        for (terminals, groups) in [(1, 1), (64, 3), (5, 8), (7, 2)] {
            let all: Vec<u32> = evenly(terminals, groups).into_iter().flatten().collect();
            assert_eq!(all, (0..terminals).collect::<Vec<_>>());
            assert!(evenly(terminals, groups).iter().all(|group| !group.is_empty()));
        }
        assert_eq!(one_terminal_each(3), [0..1, 1..2, 2..3]);
    }
}
