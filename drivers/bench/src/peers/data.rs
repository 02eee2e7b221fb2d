//! What every system is given: the records, and the operations of the mixes.
//!
//! Keys and mixes are those of [`crate::harness::ycsb::draw`]. Every record and every update has a text of its own, so that a field tells which
//! update wrote it.

use std::ops::Range;

use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

use crate::harness::BATCH;
use crate::harness::ycsb::{FIELD_BYTES, ROW_BYTES, draw, wire};

/// Operations drawn for a mix; a run cycles through them. A power of two, so that any number of lanes that is one divides it.
const DRAWN: usize = 1 << 20;

/// A record's fields, one behind the other.
pub type Row = [u8; ROW_BYTES];
/// What an update writes.
pub type Value = [u8; FIELD_BYTES];

/// Fills with letters that only this seed gives: text that any character set and any query takes as it is.
fn write_text(seed: u64, text: &mut [u8]) {
    Xoshiro256PlusPlus::seed_from_u64(seed).fill(text);
    for byte in text {
        *byte = b'a' + (*byte & 15);
    }
}

/// A record as it is loaded.
pub fn loaded_row(key: i64) -> Row {
    let mut row = [0; ROW_BYTES];
    write_text(key as u64, &mut row);
    row
}

/// One transaction.
#[derive(Clone, Copy)]
pub struct Operation {
    pub key: i64,
    /// The field that is updated; a read when there is none.
    pub field: Option<u16>,
    /// Number of the value that is written.
    value: u32,
}

/// The operations of a mix, in the order in which one client sends them.
pub struct Mix {
    operations: Vec<Operation>,
    values: Vec<Value>,
    /// The operations as requests to the engine, and where each batch of them is.
    requests: Vec<u8>,
    batches: Vec<Range<usize>>,
}

impl Mix {
    pub fn draw(records: u64, read_share: f64) -> anyhow::Result<Self> {
        let mut drawn = draw(records, read_share, DRAWN)?;
        let (mut operations, mut values) = (Vec::with_capacity(DRAWN), Vec::new());
        for (number, (_, params)) in drawn.iter_mut().enumerate() {
            let (key, update) = params.split_first_chunk().ok_or_else(|| anyhow::anyhow!("a request has no key"))?;
            let key = i64::from_le_bytes(*key);
            let field = update.first_chunk().map(|field| u16::from_le_bytes(*field));
            operations.push(Operation { key, field, value: values.len() as u32 });
            if field.is_some() {
                let mut value = [0; FIELD_BYTES];
                write_text(u64::MAX - number as u64, &mut value);
                let at = params.len() - FIELD_BYTES;
                params[at..].copy_from_slice(&value);
                values.push(value);
            }
        }
        let batches = drawn.chunks(BATCH).scan(0, |at, batch| {
            let start = *at;
            *at += wire(batch).len();
            Some(start..*at)
        });
        let batches = batches.collect();
        Ok(Self { operations, values, requests: wire(&drawn), batches })
    }

    /// Number of operations before they begin again.
    pub fn cycle(&self) -> usize {
        self.operations.len()
    }

    /// The operation with a number, which may be beyond the cycle's end.
    pub fn operation(&self, number: usize) -> Operation {
        self.operations[number % self.operations.len()]
    }

    /// What an update writes.
    ///
    /// # Panics
    /// When it is a read behind the last update.
    pub fn value(&self, operation: Operation) -> &Value {
        &self.values[operation.value as usize]
    }

    /// [`BATCH`] operations as requests to the engine; `number` is that of the first, a multiple of [`BATCH`].
    pub fn batch(&self, number: usize) -> &[u8] {
        &self.requests[self.batches[number / BATCH % self.batches.len()].clone()]
    }
}
