//! YCSB as the paper runs it (§4.1): one table, two transactions (read one record, update one field of
//! one record), Zipfian keys with the newest record hottest.

mod keys;
mod operations;
mod records;

pub use keys::{KeyChooser, KeyOrder, MAX_SCATTERED_RECORDS};
pub use operations::YcsbTerminal;
pub use records::{MIN_FIELD_BYTES, RecordLayout};

use serde::Deserialize;

use crate::streams::{Purpose, stream};
use crate::workload::TransactionStream;

/// Parameters of a YCSB data set and mix. Keys that are not listed here are refused.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct YcsbSpec {
    /// Records loaded; keys are 0 … records − 1 and the highest is the newest.
    pub records: u64,
    pub fields: u32,
    pub field_bytes: u32,
    /// Name of the mix, for people; `read_share` is what counts.
    pub mix: String,
    /// Share of read transactions, 0 to 1; the others update.
    pub read_share: f64,
    /// Zipf exponent s.
    pub skew: f64,
    pub key_order: KeyOrder,
    /// Fields written by an update.
    pub update_fields: u32,
    /// Share of reads whose fields are verified by checksum, 0 to 1.
    pub verify_share: f64,
}

/// One YCSB transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum YcsbTransaction<'a> {
    /// Read all fields of a record; with `verify`, check their checksums.
    Read { key: i64, verify: bool },
    /// Overwrite one field of a record.
    Update { key: i64, field: u16, value: &'a [u8] },
}

/// A YCSB data set and mix, ready to draw from.
#[derive(Debug, Clone)]
pub struct Ycsb {
    pub spec: YcsbSpec,
    pub layout: RecordLayout,
    chooser: KeyChooser,
    seed: u64,
}

/// Name of the one table; [`YCSB_KEY`] is its primary key and the fields are `field0` ….
pub const YCSB_TABLE: &str = "usertable";
/// Name of the primary key column.
pub const YCSB_KEY: &str = "ycsb_key";

impl Ycsb {
    pub fn new(spec: &YcsbSpec, seed: u64) -> Ycsb {
        Ycsb {
            layout: RecordLayout::new(spec.fields, spec.field_bytes),
            chooser: KeyChooser::new(spec.records, spec.skew, spec.key_order),
            spec: spec.clone(),
            seed,
        }
    }

    /// Appends the fields of a freshly loaded record to `row`, one after another.
    pub fn push_initial_record(&self, key: i64, row: &mut Vec<u8>) {
        let mut random = stream(self.seed, Purpose::Record, key as u64);
        self.layout.push_record(key, &mut random, row);
    }

    /// Key of the record with that popularity rank; 1 is the hottest.
    pub fn key_of_rank(&self, rank: u64) -> i64 {
        self.chooser.key_of_rank(rank)
    }

    /// The operations of one terminal: a function of (seed, terminal) and the parameters alone.
    pub fn terminal(&self, terminal: u32) -> Box<dyn TransactionStream> {
        let random = stream(self.seed, Purpose::Operations, u64::from(terminal));
        Box::new(YcsbTerminal::new(&self.spec, self.layout, self.chooser.clone(), random))
    }
}
