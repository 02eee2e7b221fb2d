//! Reads records back through the terminals' own connection, to know before a trial that the data set
//! is there, and after loading that it is intact.

use rand_xoshiro::rand_core::Rng;

use crate::streams::{Purpose, stream};
use crate::system::{Outcome, System, SystemError};
use crate::workload::{Transaction, Workload};
use crate::ycsb::YcsbTransaction;

/// Records read back after loading, besides the first and the last.
const SAMPLE: u64 = 200;

/// Checks the first and the last record.
///
/// # Errors
/// [`SystemError::Data`] naming the record that is missing or damaged.
pub fn ends(system: &dyn System, workload: &Workload) -> Result<(), SystemError> {
    let Workload::Ycsb(ycsb) = workload else {
        return Ok(());
    };
    check(system, [0, ycsb.spec.records - 1].into_iter())
}

/// Checks the first, the last and random records.
///
/// # Errors
/// As [`ends`].
pub fn sample(system: &dyn System, workload: &Workload, seed: u64) -> Result<(), SystemError> {
    let Workload::Ycsb(ycsb) = workload else {
        return Ok(());
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
