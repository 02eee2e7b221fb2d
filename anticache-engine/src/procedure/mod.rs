//! Stored procedures: the only way in which clients change or read data (paper §2).

use std::ops::Range;
use std::sync::Arc;

use crate::catalog::{Catalog, TableId};
use crate::config::MAX_PARTITIONS;
use crate::error::CatalogError;
use crate::txn::{Abort, TxnContext};

pub mod tpcc;
pub mod ycsb;

const WORD_BITS: u32 = u64::BITS;

/// The partitions that a transaction touches. The empty set, which is the default, stands for the one partition that the request was sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Participants([u64; (MAX_PARTITIONS / WORD_BITS) as usize]);

impl Participants {
    /// Only the partition that the request was sent to.
    pub const OWN: Self = Self([0; (MAX_PARTITIONS / WORD_BITS) as usize]);

    /// All partitions of a server that has so many.
    pub fn all(partitions: u32) -> Self {
        (0..partitions).fold(Self::OWN, Self::and)
    }

    /// These and one more; a number that no server can have is left out.
    #[must_use]
    #[inline]
    pub fn and(mut self, partition: u32) -> Self {
        if let Some(word) = self.0.get_mut((partition / WORD_BITS) as usize) {
            *word |= 1 << (partition % WORD_BITS);
        }
        self
    }

    /// Whether a partition is among them.
    pub fn contains(self, partition: u32) -> bool {
        self.0.get((partition / WORD_BITS) as usize).is_some_and(|word| word >> (partition % WORD_BITS) & 1 == 1)
    }

    /// Whether the transaction can run at `partition` alone.
    #[inline]
    pub fn is_only(self, partition: u32) -> bool {
        let others = |(word, bits): (usize, u64)| {
            let own = partition / WORD_BITS == word as u32;
            bits & !(u64::from(own) << (partition % WORD_BITS))
        };
        self.0.iter().copied().enumerate().fold(0, |all, word| all | others(word)) == 0
    }

    /// Their numbers, ascending.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        (0..MAX_PARTITIONS).filter(move |&partition| self.contains(partition))
    }
}

/// The tuple that a transaction looks up first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstTuple<'call> {
    /// Its table.
    pub table: TableId,
    /// Its primary key.
    pub key: &'call [u8],
    /// Where the columns lie in the row's fixed part that the transaction will read or write, beside the key.
    pub columns: &'call Range<usize>,
}

impl<'call> FirstTuple<'call> {
    /// One of which everything may be wanted.
    pub fn whole(table: TableId, key: &'call [u8]) -> Self {
        Self { table, key, columns: &(0..usize::MAX) }
    }
}

/// Control code with parameters, run by a partition from beginning to end.
///
/// It must be deterministic in its parameters and the data, because the command log replays it.
pub trait Procedure: Send + Sync {
    /// Name that clients call it by.
    fn name(&self) -> &'static str;

    /// The tuple that it will look up first, so that the executor can bring it near while earlier transactions run.
    fn first_tuple<'call>(&'call self, params: &'call [u8]) -> Option<FirstTuple<'call>>;

    /// The partitions that it touches with these parameters, at a server with `partitions` of them. When these are not only the partition that the
    /// request was sent to, that one must be among them. It is asked once per request; malformed parameters are for [`Procedure::execute`] to
    /// refuse.
    fn partitions(&self, params: &[u8], partitions: u32) -> Participants {
        let _ = (params, partitions);
        Participants::OWN
    }

    /// Runs it. What it appends to the reply goes to the client if it commits.
    ///
    /// # Errors
    /// [`Abort`]; everything it changed is then undone.
    fn execute(&self, txn: &mut TxnContext<'_>, params: &[u8]) -> Result<(), Abort>;
}

/// The procedures of a server; a procedure's position is its number on the wire.
#[derive(Clone)]
pub struct ProcedureSet {
    procedures: Arc<[Box<dyn Procedure>]>,
}

impl ProcedureSet {
    /// All built-in procedures whose tables the catalog has.
    ///
    /// # Errors
    /// When a table has the right name and the wrong columns, or no built-in procedure fits the catalog.
    pub fn for_catalog(catalog: &Catalog) -> Result<Self, CatalogError> {
        let mut procedures: Vec<Box<dyn Procedure>> = Vec::new();
        procedures.extend(ycsb::procedures(catalog)?);
        procedures.extend(tpcc::procedures(catalog)?);
        if procedures.is_empty() {
            let tables: Vec<_> = catalog.tables().iter().map(|table| table.name.as_str()).collect();
            return Err(CatalogError::Table {
                table: tables.join(", "),
                problem:
                    "no built-in procedure works on these tables; `usertable` (YCSB) and `warehouse` (TPC-C) are known"
                        .to_owned(),
            });
        }
        Ok(Self { procedures: procedures.into() })
    }

    /// A set of one's own.
    pub fn new(procedures: Vec<Box<dyn Procedure>>) -> Self {
        Self { procedures: procedures.into() }
    }

    /// A procedure by number.
    #[inline]
    pub fn get(&self, number: u16) -> Option<&dyn Procedure> {
        self.procedures.get(usize::from(number)).map(AsRef::as_ref)
    }

    /// Names in the order of their numbers.
    pub fn names(&self) -> Vec<String> {
        self.procedures.iter().map(|procedure| procedure.name().to_owned()).collect()
    }

    /// Number of a procedure.
    pub fn number(&self, name: &str) -> Option<u16> {
        let position = self.procedures.iter().position(|procedure| procedure.name() == name)?;
        u16::try_from(position).ok()
    }
}
