//! What terminals execute, independent of the system under test.
//!
//! A further benchmark (TPC-C) adds a variant to [`Transaction`] and [`Workload`] and a module per
//! adapter; the worker loop, the recording and the traits of [`crate::system`] stay as they are.

use crate::spec::{BenchmarkSpec, Spec};
use crate::ycsb::{Ycsb, YcsbTransaction};

/// One transaction, borrowed from the stream that made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transaction<'a> {
    Ycsb(YcsbTransaction<'a>),
}

impl Transaction<'_> {
    /// Position of the transaction's type in [`Workload::transaction_types`].
    pub fn type_index(&self) -> usize {
        match self {
            Transaction::Ycsb(YcsbTransaction::Read { .. }) => 0,
            Transaction::Ycsb(YcsbTransaction::Update { .. }) => 1,
        }
    }
}

/// An endless, reproducible sequence of transactions.
pub trait TransactionStream: Send {
    /// The next transaction; it borrows the stream's buffers.
    fn next(&mut self) -> Transaction<'_>;
}

/// A benchmark with its parameters and seed.
#[derive(Debug, Clone)]
pub enum Workload {
    Ycsb(Ycsb),
}

impl Workload {
    pub fn new(spec: &Spec) -> Workload {
        match &spec.benchmark {
            BenchmarkSpec::Ycsb(ycsb) => Workload::Ycsb(Ycsb::new(ycsb, spec.seed)),
        }
    }

    /// Names of the transaction types, as in results.
    pub fn transaction_types(&self) -> &'static [&'static str] {
        match self {
            Workload::Ycsb(_) => &["read", "update"],
        }
    }

    /// The transactions of one terminal; depends on (seed, terminal) and the benchmark's parameters alone.
    pub fn terminal(&self, terminal: u32) -> Box<dyn TransactionStream> {
        match self {
            Workload::Ycsb(ycsb) => ycsb.terminal(terminal),
        }
    }
}
