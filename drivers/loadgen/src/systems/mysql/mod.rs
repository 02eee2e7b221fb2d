//! MySQL 5.6 (InnoDB): prepared statements at serializable isolation, one connection per terminal. The terminals of YCSB share a thread per client CPU
//! ([`ycsb`], `systems::terminals`); those of TPC-C, whose transactions are long and whose throughput is small, have a blocking one each.
//!
//! Deadlocks (1213) and lock wait limits (1205) are rolled back, counted and repeated until the
//! transaction commits, its latency running on. Any other error ends the trial with its reason.

pub mod quiesce;
pub mod rows;
pub mod schema;
pub mod session;
pub mod tpcc;
mod wire;
pub mod ycsb;

use std::collections::BTreeMap;
use std::ops::Range;

use serde_json::{Map, Value};

use crate::interrupt::Interrupt;
use crate::spec::{MysqlTransaction, Spec};
use crate::system::{Adapter, Address, BulkWork, ByServer, Connection, System, SystemError, evenly, one_terminal_each};
use crate::systems::terminals::Terminals;
use crate::workload::Workload;
use anticache_engine::catalog::{Catalog, TableId};

use session::{MysqlServer, SERVER, Session, Use};
use tpcc::{NoCopies, TpccConnection};
use ycsb::YcsbTerminal;

/// Where the server listens.
pub const ADDRESS: Address = ("mysql_address", |endpoint| endpoint.mysql_address.as_deref());

/// How the adapter is found by its systems' names.
pub static ADAPTER: Adapter = Adapter {
    name: "mysql",
    systems: &["mysql"],
    addresses: &[ADDRESS],
    open: |spec, workload| Ok(Box::new(MysqlSystem::open(spec, workload)?)),
};

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

    /// A connection for terminals. Transactions of several statements are always explicit.
    pub fn transaction_session(&self) -> Result<Session, SystemError> {
        let framing = match self.workload {
            Workload::Ycsb(_) => self.framing,
            Workload::Tpcc(_) => MysqlTransaction::Explicit,
        };
        self.server.connect(Use::Transactions(framing))
    }
}

impl System for MysqlSystem {
    fn create_schema(&self, ddl: &str) -> Result<(), SystemError> {
        schema::create(&self.server, ddl)
    }

    fn load(&self, work: BulkWork<'_>) -> Result<u64, SystemError> {
        match &self.workload {
            Workload::Ycsb(ycsb) => ycsb::bulk::load(&self.server, ycsb, work),
            Workload::Tpcc(tpcc) => tpcc::load::load(&self.server, tpcc, work),
        }
    }

    fn prewarm(&self, work: BulkWork<'_>) -> Result<String, SystemError> {
        match &self.workload {
            Workload::Ycsb(ycsb) => ycsb::bulk::prewarm_buffer_pool(&self.server, ycsb, work),
            Workload::Tpcc(tpcc) => tpcc::prewarm::prewarm_buffer_pool(&self.server, tpcc, work),
        }
    }

    fn quiesce(&self, interrupt: &Interrupt) -> Result<String, SystemError> {
        quiesce::write_back(&self.server, interrupt)
    }

    fn terminal_groups(&self, terminals: u32, cpus: usize) -> Vec<Range<u32>> {
        match self.workload {
            Workload::Ycsb(_) => evenly(terminals, cpus),
            Workload::Tpcc(_) => one_terminal_each(terminals),
        }
    }

    fn connect(&self, terminals: Range<u32>) -> Result<Box<dyn Connection>, SystemError> {
        Ok(match &self.workload {
            Workload::Ycsb(ycsb) => Box::new(Terminals::open(terminals, None, || YcsbTerminal::open(self, ycsb))?),
            Workload::Tpcc(tpcc) => Box::new(TpccConnection::open(self.transaction_session()?, tpcc, NoCopies)?),
        })
    }

    fn scan(&self, catalog: &Catalog, table: TableId, on_row: &mut dyn FnMut(&[u8])) -> Result<(), SystemError> {
        rows::scan(&self.server, catalog.table(table), on_row)
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
