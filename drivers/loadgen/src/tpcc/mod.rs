//! TPC-C (revision 5.11) as the paper runs it (§4.1): the full mix without think times, every transaction at its terminal's home warehouse; or with
//! the specification's remote accesses, or its keying and think times.
//!
//! Data and inputs come from the engine's library ([`anticache_engine::procedure::tpcc::generate`]), where the clauses are named: the same seeds give
//! the same rows and the same inputs whatever system they are for.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anticache_engine::catalog::Catalog;
use anticache_engine::procedure::tpcc::generate::{Input, Mix, Scale, Terminal};
use serde::Deserialize;

use crate::workload::{Transaction, TransactionStream};

/// Which warehouses a terminal's transactions reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// The terminal's own only (paper §4.1).
    HomeWarehouse,
    /// Others too, as often as the specification wants (clauses 2.4.1.5 and 2.5.1.2).
    Remote,
}

/// Parameters of a TPC-C data set and mix. Keys that are not listed here are refused.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TpccSpec {
    pub warehouses: u32,
    /// Items, and rows of STOCK per warehouse; the specification has 100,000.
    pub items: u32,
    /// The specification has 3000.
    pub customers_per_district: u32,
    /// Orders of a district when it is loaded; the specification has 3000.
    pub orders_per_district: u32,
    /// Seed of the rows and of NURand's constants; the terminals' inputs follow from the specification's `seed`.
    pub population_seed: u64,
    pub access: Access,
    /// Keying and think times as a multiple of the specification's (clause 5.2.5): 0, as in the paper, lets terminals submit at once.
    pub wait_factor: f64,
}

impl TpccSpec {
    /// Size of the database.
    pub fn scale(&self) -> Scale {
        Scale {
            warehouses: self.warehouses as i16,
            items: self.items as i32,
            customers_per_district: self.customers_per_district as i32,
            orders_per_district: self.orders_per_district as i32,
        }
    }

    fn mix(&self) -> Mix {
        match self.access {
            Access::HomeWarehouse => Mix::HomeOnly,
            Access::Remote => Mix::WithRemote,
        }
    }
}

/// A TPC-C data set and mix, ready to draw from.
#[derive(Debug, Clone)]
pub struct Tpcc {
    pub spec: TpccSpec,
    pub scale: Scale,
    /// The tables.
    pub catalog: Arc<Catalog>,
    seed: u64,
}

impl Tpcc {
    pub fn new(spec: &TpccSpec, catalog: Arc<Catalog>, seed: u64) -> Tpcc {
        Tpcc { spec: spec.clone(), scale: spec.scale(), catalog, seed }
    }

    /// The transactions of one terminal: a function of (seeds, terminal) and the parameters alone, but for the times at which they are entered.
    pub fn terminal(&self, terminal: u32) -> Box<dyn TransactionStream> {
        let terminal = Terminal::new(self.scale, self.spec.mix(), self.seed, u64::from(terminal));
        let first = Terminal::clone(&terminal).next(0);
        Box::new(TpccTerminal { terminal, input: first })
    }
}

/// One terminal's endless stream.
struct TpccTerminal {
    terminal: Terminal,
    input: Input,
}

impl TransactionStream for TpccTerminal {
    fn next(&mut self) -> Transaction<'_> {
        self.input = self.terminal.next(now_us());
        Transaction::Tpcc(&self.input)
    }
}

/// Microseconds since 1970, cut to whole seconds: more than a DATETIME of MySQL does not hold, and all systems are to store the same rows.
fn now_us() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64 * 1_000_000)
}
