//! A system that completes everything at once: what a trial of it reaches is the ceiling of the
//! driver itself on that machine (design §4.4).

use std::collections::BTreeMap;
use std::ops::Range;

use crate::system::{Adapter, BulkWork, ByServer, Completion, Connection, Outcome, System, SystemError, evenly};
use crate::workload::Transaction;
use anticache_engine::catalog::{Catalog, TableId};

/// How it is found by its name; it has no server.
pub static ADAPTER: Adapter =
    Adapter { name: "null", systems: &["null"], addresses: &[], open: |_, _| Ok(Box::new(NullSystem)) };

pub struct NullSystem;

impl System for NullSystem {
    fn create_schema(&self, _ddl: &str) -> Result<(), SystemError> {
        Ok(())
    }

    fn load(&self, _work: BulkWork<'_>) -> Result<u64, SystemError> {
        Ok(0)
    }

    fn prewarm(&self, _work: BulkWork<'_>) -> Result<String, SystemError> {
        Ok("the null system holds nothing".to_owned())
    }

    fn keeps_data(&self) -> bool {
        false
    }

    fn terminal_groups(&self, terminals: u32, cpus: usize) -> Vec<Range<u32>> {
        evenly(terminals, cpus)
    }

    fn connect(&self, _terminals: Range<u32>) -> Result<Box<dyn Connection>, SystemError> {
        Ok(Box::new(NullConnection::default()))
    }

    fn scan(&self, _catalog: &Catalog, _table: TableId, _on_row: &mut dyn FnMut(&[u8])) -> Result<(), SystemError> {
        Ok(())
    }

    fn counters(&self) -> Result<ByServer, SystemError> {
        Ok(ByServer::new())
    }

    fn settings(&self) -> Result<ByServer, SystemError> {
        Ok(ByServer::new())
    }

    fn versions(&self) -> Result<BTreeMap<&'static str, String>, SystemError> {
        Ok(BTreeMap::new())
    }
}

#[derive(Default)]
struct NullConnection {
    submitted: Vec<u32>,
}

impl Connection for NullConnection {
    fn submit(&mut self, terminal: u32, transaction: &Transaction<'_>) -> Result<(), SystemError> {
        // Keeps the compiler from leaving out the generation of the transaction.
        std::hint::black_box(transaction);
        self.submitted.push(terminal);
        Ok(())
    }

    fn wait(&mut self, completions: &mut Vec<Completion>) -> Result<(), SystemError> {
        completions.extend(self.submitted.drain(..).map(|terminal| Completion {
            terminal,
            outcome: Outcome::Committed,
            verified: None,
            retries: Vec::new(),
        }));
        Ok(())
    }
}
