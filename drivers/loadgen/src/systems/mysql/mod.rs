//! MySQL 5.6 (InnoDB): prepared statements at serializable isolation, one blocking connection and one
//! thread per terminal.
//!
//! Deadlocks (1213) and lock wait limits (1205) are rolled back, counted and repeated until the
//! transaction commits, its latency running on. Any other error ends the trial with its reason.

pub mod bulk;
pub mod session;
pub mod ycsb;

use std::collections::BTreeMap;
use std::ops::Range;

use serde_json::{Map, Value};

use crate::spec::{MysqlTransaction, Spec};
use crate::system::{BulkWork, ByServer, Completion, Connection, Outcome, System, SystemError, one_terminal_each};
use crate::workload::{Transaction, Workload};
use anticache_engine::catalog::{Catalog, TableId};

use session::{MysqlServer, SERVER, Session, Use};
use ycsb::YcsbStatements;

/// A deployed MySQL server.
pub struct MysqlSystem {
    pub server: MysqlServer,
    pub workload: Workload,
    framing: MysqlTransaction,
}

impl MysqlSystem {
    /// # Errors
    /// [`SystemError::Connect`] when the server does not answer.
    pub fn open(spec: &Spec, workload: Workload) -> Result<MysqlSystem, SystemError> {
        let server = MysqlServer::open(&spec.endpoint)?;
        Ok(MysqlSystem { server, workload, framing: spec.mysql_transaction })
    }

    /// A connection for terminals.
    pub fn transaction_session(&self) -> Result<Session, SystemError> {
        self.server.connect(Use::Transactions(self.framing))
    }
}

impl System for MysqlSystem {
    fn create_schema(&self, ddl: &str) -> Result<(), SystemError> {
        bulk::create_schema(self, ddl)
    }

    fn load(&self, work: BulkWork<'_>) -> Result<u64, SystemError> {
        bulk::load(self, work)
    }

    fn prewarm(&self, work: BulkWork<'_>) -> Result<String, SystemError> {
        bulk::prewarm_buffer_pool(self, work)
    }

    fn terminal_groups(&self, terminals: u32, _cpus: usize) -> Vec<Range<u32>> {
        one_terminal_each(terminals)
    }

    fn connect(&self, _terminals: Range<u32>) -> Result<Box<dyn Connection>, SystemError> {
        let mut session = self.transaction_session()?;
        let Workload::Ycsb(ycsb) = &self.workload else {
            return Err(SystemError::Data("this system does not run TPC-C yet".to_owned()));
        };
        let statements = YcsbStatements::prepare(&mut session, ycsb)?;
        Ok(Box::new(MysqlConnection { session, statements, completed: None }))
    }

    fn scan(&self, _catalog: &Catalog, _table: TableId, _on_row: &mut dyn FnMut(&[u8])) -> Result<(), SystemError> {
        Err(SystemError::Data("this system does not scan yet".to_owned()))
    }

    fn counters(&self) -> Result<ByServer, SystemError> {
        let status = self.server.connect_without_database(Use::Inspection)?.show("SHOW GLOBAL STATUS")?;
        let integers: Map<String, Value> = status
            .into_iter()
            .filter_map(|(name, value)| Some((name, Value::from(value.as_str()?.parse::<u64>().ok()?))))
            .collect();
        Ok(ByServer::from([(SERVER, integers)]))
    }

    fn settings(&self) -> Result<ByServer, SystemError> {
        let mut session = self.transaction_session()?;
        let mut settings = session.show("SHOW GLOBAL VARIABLES")?;
        let of_session: Option<(String, u8)> = session.query_first("SELECT @@tx_isolation, @@autocommit")?;
        if let Some((isolation, autocommit)) = of_session {
            settings.insert("session.tx_isolation".to_owned(), Value::from(isolation));
            settings.insert("session.autocommit".to_owned(), Value::from(autocommit));
        }
        Ok(ByServer::from([(SERVER, settings)]))
    }

    fn versions(&self) -> Result<BTreeMap<&'static str, String>, SystemError> {
        let mut session = self.server.connect_without_database(Use::Inspection)?;
        let version: Option<String> = session.query_first("SELECT VERSION()")?;
        Ok(BTreeMap::from([(SERVER, version.unwrap_or_default())]))
    }
}

/// One terminal's connection.
struct MysqlConnection {
    session: Session,
    statements: YcsbStatements,
    completed: Option<Completion>,
}

impl Connection for MysqlConnection {
    fn submit(&mut self, terminal: u32, transaction: &Transaction<'_>) -> Result<(), SystemError> {
        let Transaction::Ycsb(transaction) = transaction else {
            return Err(SystemError::Data("this system does not run TPC-C yet".to_owned()));
        };
        let mut retries = Vec::new();
        let result = self.statements.execute(&mut self.session, transaction, &mut retries)?;
        self.completed = Some(result.completion(terminal, retries));
        Ok(())
    }

    fn wait(&mut self, completions: &mut Vec<Completion>) -> Result<(), SystemError> {
        completions.extend(self.completed.take());
        Ok(())
    }
}

/// What became of a transaction on a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyResult {
    Done { verified: Option<bool> },
    NoSuchKey,
}

impl KeyResult {
    /// The completion that the terminal gets.
    pub fn completion(self, terminal: u32, retries: Vec<&'static str>) -> Completion {
        let (outcome, verified) = match self {
            KeyResult::Done { verified } => (Outcome::Committed, verified),
            KeyResult::NoSuchKey => (Outcome::Aborted("no such key".to_owned()), None),
        };
        Completion { terminal, outcome, verified, retries }
    }
}
