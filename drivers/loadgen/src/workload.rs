//! What terminals execute, independent of the system under test.
//!
//! A benchmark is a variant of [`Transaction`] and [`Workload`] and a module per adapter; the worker loop, the recording and the traits of
//! [`crate::system`] know none.

use std::sync::Arc;
use std::time::Duration;

use anticache_engine::procedure::tpcc::generate::Input;

use crate::spec::{BenchmarkSpec, Spec};
use crate::tpcc::Tpcc;
use crate::ycsb::{Ycsb, YcsbTransaction};

/// One transaction, borrowed from the stream that made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transaction<'a> {
    Ycsb(YcsbTransaction<'a>),
    Tpcc(&'a Input),
}

impl Transaction<'_> {
    /// Position of the transaction's type in [`Workload::transaction_types`].
    pub fn type_index(&self) -> usize {
        match self {
            Transaction::Ycsb(YcsbTransaction::Read { .. }) => 0,
            Transaction::Ycsb(YcsbTransaction::Update { .. }) => 1,
            Transaction::Tpcc(input) => input.kind() as usize,
        }
    }
}

/// An endless, reproducible sequence of transactions.
pub trait TransactionStream: Send {
    /// The next transaction; it borrows the stream's buffers.
    fn next(&mut self) -> Transaction<'_>;

    /// How long the terminal waits, from the last answer on, before it submits the next transaction. Asked once before each, and before `next`, so
    /// that what is entered then has the date of its submission.
    fn pause(&mut self) -> Duration {
        Duration::ZERO
    }
}

/// A benchmark with its parameters and seed.
#[derive(Debug, Clone)]
pub enum Workload {
    Ycsb(Ycsb),
    Tpcc(Tpcc),
}

impl Workload {
    pub fn new(spec: &Spec) -> Workload {
        match &spec.benchmark {
            BenchmarkSpec::Ycsb(ycsb) => Workload::Ycsb(Ycsb::new(ycsb, spec.seed)),
            BenchmarkSpec::Tpcc(tpcc, catalog) => Workload::Tpcc(Tpcc::new(tpcc, Arc::clone(catalog), spec.seed)),
        }
    }

    /// Names of the transaction types, as in results.
    pub fn transaction_types(&self) -> &'static [&'static str] {
        match self {
            Workload::Ycsb(_) => &["read", "update"],
            Workload::Tpcc(_) => &["new_order", "payment", "order_status", "delivery", "stock_level"],
        }
    }

    /// Whether terminals pause between transactions. Those get a connection and a thread each, whatever the system, since a sleeping thread serves
    /// nobody.
    pub fn pauses(&self) -> bool {
        match self {
            Workload::Ycsb(_) => false,
            Workload::Tpcc(tpcc) => tpcc.pauses(),
        }
    }

    /// The transactions of one terminal; depends on (seed, terminal) and the benchmark's parameters alone.
    pub fn terminal(&self, terminal: u32) -> Box<dyn TransactionStream> {
        match self {
            Workload::Ycsb(ycsb) => ycsb.terminal(terminal),
            Workload::Tpcc(tpcc) => tpcc.terminal(terminal),
        }
    }
}
