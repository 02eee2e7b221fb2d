//! TPC-C (revision 5.11) as the paper runs it (§4.1): the full mix without think times, every transaction at its terminal's home warehouse; or with
//! the specification's remote accesses, or its keying and think times.
//!
//! Data and inputs come from the engine's library ([`anticache_engine::procedure::tpcc::generate`]), where the clauses are named: the same seeds give
//! the same rows and the same inputs whatever system they are for.

pub mod data_set;
pub mod goods;
mod pauses;
mod reply;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anticache_engine::catalog::Catalog;
use anticache_engine::error::CatalogError;
use anticache_engine::procedure::tpcc::generate::{Input, Mix, Population, Scale, Seeds, Terminal, TransactionKind};
use anticache_engine::procedure::tpcc::{ITEM_NOT_FOUND, procedures};
use serde::Deserialize;

use crate::workload::{Transaction, TransactionStream};
use pauses::Pauses;

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

/// Checks that a schema has the tables, columns and indexes of TPC-C, and the table that says what was loaded.
///
/// # Errors
/// What is missing.
pub fn check_catalog(catalog: &Catalog) -> Result<(), CatalogError> {
    // Each resolves what it needs; together that is all.
    Population::new(catalog, Scale::new(1), 0)?;
    procedures(catalog)?;
    data_set::check_catalog(catalog)
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
        let seeds = Seeds { population: self.spec.population_seed, inputs: self.seed };
        let pauses = self.pauses().then(|| Pauses::new(self.spec.wait_factor, self.seed, terminal));
        let terminal = Terminal::new(self.scale, self.spec.mix(), seeds, u64::from(terminal));
        Box::new(TpccTerminal { terminal, pauses, kind: None, input: None })
    }

    /// Whether terminals key in and think.
    pub fn pauses(&self) -> bool {
        self.spec.wait_factor > 0.0
    }

    /// Whether an input is to be rolled back, as one in a hundred New-Orders is: its last item does not exist (clause 2.4.1.4). Any other
    /// transaction that is not committed has met a damaged database.
    fn is_rolled_back(&self, input: &Input) -> bool {
        matches!(input, Input::NewOrder(order) if order.lines().iter().any(|line| line.i_id > self.scale.items))
    }

    /// Checks how a transaction ended: committed with this reply, or rolled back for this reason. Returns whether the reply fits its input; `None`: it
    /// was rolled back as it should be. One that commits though it should have been rolled back is as wrong as a damaged one.
    ///
    /// # Errors
    /// Why a transaction was rolled back that should have committed: an item that exists was not found, or anything else.
    pub fn verify(&self, input: &Input, ended: Result<&[u8], &str>) -> Result<Option<bool>, String> {
        let rolled_back = self.is_rolled_back(input);
        match ended {
            Ok(reply) => Ok(Some(!rolled_back && reply::is_intact(input, reply))),
            Err(ITEM_NOT_FOUND) if rolled_back => Ok(None),
            Err(reason) => {
                let problem = "what is loaded is damaged, or not what the trial wants";
                Err(format!("{}: {reason} ({input:?}): {problem}", input.kind().procedure()))
            }
        }
    }
}

/// One terminal's endless stream.
struct TpccTerminal {
    terminal: Terminal,
    pauses: Option<Pauses>,
    /// The next transaction, once its pause has been asked for.
    kind: Option<TransactionKind>,
    input: Option<Input>,
}

impl TransactionStream for TpccTerminal {
    fn pause(&mut self) -> Duration {
        let Some(pauses) = &mut self.pauses else {
            return Duration::ZERO;
        };
        pauses.before(*self.kind.get_or_insert_with(|| self.terminal.next_kind()))
    }

    fn next(&mut self) -> Transaction<'_> {
        let kind = self.kind.take().unwrap_or_else(|| self.terminal.next_kind());
        Transaction::Tpcc(self.input.insert(self.terminal.draw(kind, now_us())))
    }
}

/// Microseconds since 1970, cut to whole seconds: more than a DATETIME of MySQL does not hold, and all systems are to store the same rows.
fn now_us() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64 * 1_000_000)
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;

    /// A small database of two warehouses.
    pub const SPEC: TpccSpec = TpccSpec {
        warehouses: 2,
        items: 100,
        customers_per_district: 30,
        orders_per_district: 30,
        population_seed: 3,
        access: Access::HomeWarehouse,
        wait_factor: 0.0,
    };
    pub static CATALOG: LazyLock<Arc<Catalog>> =
        LazyLock::new(|| Arc::new(Catalog::from_sql(include_str!("../../../../workloads/schemas/tpcc.sql")).unwrap()));

    /// Inputs of a terminal without their dates, and the pauses before them.
    fn drawn(spec: &TpccSpec, seed: u64, terminal: u32) -> (Vec<String>, Duration) {
        let mut stream = Tpcc::new(spec, Arc::clone(&CATALOG), seed).terminal(terminal);
        let mut paused = Duration::ZERO;
        let inputs = (0..300).map(|_| {
            paused += stream.pause();
            let Transaction::Tpcc(input) = stream.next() else {
                panic!("not of TPC-C");
            };
            let mut input = *input;
            match &mut input {
                Input::NewOrder(order) => order.entry_d_us = 0,
                Input::Payment(payment) => payment.date_us = 0,
                Input::Delivery(delivery) => delivery.date_us = 0,
                Input::OrderStatus(_) | Input::StockLevel(_) => {}
            }
            format!("{input:?}")
        });
        (inputs.collect(), paused)
    }

    #[test]
    fn a_stream_is_its_seeds_and_terminal() {
        let (inputs, paused) = drawn(&SPEC, 5, 1);
        assert_eq!((drawn(&SPEC, 5, 1).0, paused), (inputs.clone(), Duration::ZERO));
        assert_ne!(drawn(&SPEC, 6, 1).0, inputs);
        assert_ne!(drawn(&SPEC, 5, 2).0, inputs);
        assert_ne!(drawn(&TpccSpec { population_seed: 4, ..SPEC }, 5, 1).0, inputs);
    }

    #[test]
    fn pauses_do_not_change_the_inputs() {
        let (inputs, _) = drawn(&SPEC, 5, 1);
        let (same, paused) = drawn(&TpccSpec { wait_factor: 0.01, ..SPEC }, 5, 1);
        assert_eq!(same, inputs);
        // 300 transactions of 21 s on average in the specification.
        assert!((45.0..85.0).contains(&paused.as_secs_f64()), "{paused:?}");
    }
}
