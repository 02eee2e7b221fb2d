//! Reads records back through the terminals' own connection, to know before a trial that the data set is there, and after loading that it is intact.
//! A TPC-C database also says itself what it was loaded with.

use anticache_engine::procedure::tpcc::DISTRICTS;
use anticache_engine::procedure::tpcc::generate::Input;
use anticache_engine::procedure::tpcc::params::{CustomerBy, OrderStatus, StockLevel};
use rand_xoshiro::rand_core::Rng;

use crate::streams::{Purpose, stream};
use crate::system::{Outcome, System, SystemError};
use crate::tpcc::{Tpcc, data_set};
use crate::workload::{Transaction, Workload};
use crate::ycsb::YcsbTransaction;

/// Records read back after loading, besides the first and the last.
const SAMPLE: u64 = 200;

/// Checks, where the database says it, that it was loaded to its end and with what the trial wants.
///
/// # Errors
/// [`SystemError::Data`] naming what is loaded and what is wanted.
pub fn is_loaded(system: &dyn System, workload: &Workload) -> Result<(), SystemError> {
    match workload {
        Workload::Tpcc(tpcc) if system.keeps_data() => data_set::check(system, tpcc),
        _ => Ok(()),
    }
}

/// As [`is_loaded`], and checks the first and the last record; of TPC-C the first and the last warehouse, with a district, a customer, an order and its
/// lines. Of ITEM nothing is read alone by any transaction: a New-Order that does not find an item which exists ends the trial.
///
/// # Errors
/// [`SystemError::Data`] naming the record that is missing or damaged.
pub fn ends(system: &dyn System, workload: &Workload) -> Result<(), SystemError> {
    is_loaded(system, workload)?;
    match workload {
        Workload::Ycsb(ycsb) => check(system, [0, ycsb.spec.records - 1].into_iter()),
        Workload::Tpcc(tpcc) => check_warehouses(system, tpcc),
    }
}

fn check_warehouses(system: &dyn System, tpcc: &Tpcc) -> Result<(), SystemError> {
    let mut connection = system.connect(0..1)?;
    let mut completions = Vec::new();
    let scale = tpcc.scale;
    for (w_id, d_id, c_id) in [(1, 1, 1), (scale.warehouses, DISTRICTS, scale.customers_per_district)] {
        let stock = Input::StockLevel(StockLevel { w_id, d_id, threshold: 10 });
        let order = Input::OrderStatus(OrderStatus { w_id, d_id, customer: CustomerBy::Id(c_id) });
        for input in [stock, order] {
            let problem = |what: &str| {
                SystemError::Data(format!("customer {w_id}/{d_id}/{c_id}: {what}: load the data set again"))
            };
            connection.submit(0, &Transaction::Tpcc(&input))?;
            while completions.is_empty() {
                connection.wait(&mut completions)?;
            }
            for completion in completions.drain(..) {
                match completion.outcome {
                    Outcome::Aborted(reason) => return Err(problem(&reason)),
                    Outcome::Committed if completion.verified == Some(false) => {
                        return Err(problem("what was read of it is damaged"));
                    }
                    Outcome::Committed => {}
                }
            }
        }
    }
    Ok(())
}

/// Checks the first, the last and random records.
///
/// # Errors
/// As [`ends`].
pub fn sample(system: &dyn System, workload: &Workload, seed: u64) -> Result<(), SystemError> {
    let Workload::Ycsb(ycsb) = workload else {
        return ends(system, workload);
    };
    let records = ycsb.spec.records;
    let mut random = stream(seed, Purpose::ReadBack, 0);
    check(system, [0, records - 1].into_iter().chain((0..SAMPLE).map(|_| random.next_u64() % records)))
}

fn check(system: &dyn System, keys: impl Iterator<Item = u64>) -> Result<(), SystemError> {
    let mut connection = system.connect(0..1)?;
    let mut completions = Vec::new();
    for key in keys {
        let read = YcsbTransaction::Read { key: key as i64, verify: true };
        connection.submit(0, &Transaction::Ycsb(read))?;
        while completions.is_empty() {
            connection.wait(&mut completions)?;
        }
        for completion in completions.drain(..) {
            if let Outcome::Aborted(reason) = completion.outcome {
                return Err(SystemError::Data(format!("record {key}: {reason}: load the data set first")));
            }
            if completion.verified == Some(false) {
                return Err(SystemError::Data(format!("record {key} is damaged: its checksums do not fit")));
            }
        }
    }
    Ok(())
}
