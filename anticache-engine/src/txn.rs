//! What a procedure sees of the database while it runs: a transaction context.
//!
//! A partition runs one transaction at a time, so there are no locks. A look-up of an evicted tuple returns a reference and the procedure goes
//! on; only reading the tuple's columns ends the pass with [`Abort::Evicted`]. So one pass finds every evicted tuple that the transaction needs
//! and that does not depend on another evicted one (the paper's pre-pass, §3.3). The executor then rolls back, fetches, and re-queues.

use std::borrow::Cow;

use crate::anticache::evicted_table::EvictedId;
use crate::catalog::TableId;
use crate::storage::hash_index::hash_key;
use crate::storage::table::{Found, MemoryMeter, NeedMemory, Table};
use crate::storage::tuples::{TupleId, flag};
use crate::storage::undo::{Change, UndoLog};

/// Why a procedure did not finish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Abort {
    /// It needs evicted tuples: the pre-pass is over.
    Evicted,
    /// Another tuple of this table does not fit in the memory budget until something is evicted.
    NeedMemory(TableId),
    /// The procedure's own decision (a missing key, a rollback that the benchmark asks for, bad parameters).
    User(Cow<'static, str>),
}

impl Abort {
    /// A user abort.
    pub fn user(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::User(reason.into())
    }
}

/// A tuple that a look-up found, in memory or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TupleRef {
    table: TableId,
    found: Found,
}

/// What one transaction needs from disk and has touched in memory; kept by the executor from transaction to transaction.
#[derive(Debug, Default)]
pub struct Footprint {
    /// Evicted tuples looked up.
    pub evicted: Vec<(TableId, EvictedId)>,
    /// Tuples in memory looked up, so that a pre-pass can make them the hottest and pin them.
    pub resident: Vec<(TableId, TupleId)>,
}

impl Footprint {
    /// Forgets everything.
    #[inline]
    pub fn clear(&mut self) {
        self.evicted.clear();
        self.resident.clear();
    }
}

/// The one running transaction of a partition.
pub struct TxnContext<'run> {
    pub(crate) tables: &'run mut [Table],
    pub(crate) meter: &'run mut MemoryMeter,
    pub(crate) undo: &'run mut UndoLog,
    pub(crate) footprint: &'run mut Footprint,
    pub(crate) reply: &'run mut Vec<u8>,
    /// Whether this transaction was chosen to update the LRU chain (probability α).
    pub(crate) sampled: bool,
    /// Union of [`flag::UNSYNCED`] bits of the tuples seen: the log groups that must be durable before the reply.
    pub(crate) unsynced_seen: u8,
    /// The log groups in which a tuple was deleted and which are not durable yet: a look-up that finds nothing depends on them.
    pub(crate) unsynced_deletes: u8,
}

impl TxnContext<'_> {
    /// Finds a tuple by primary key (the key columns' bytes in key order).
    #[inline]
    pub fn lookup(&mut self, table: TableId, key: &[u8]) -> Option<TupleRef> {
        let stored = &mut self.tables[usize::from(table)];
        stored.accesses_since_eviction += 1;
        let Some(found) = stored.find(hash_key(key), key) else {
            self.unsynced_seen |= self.unsynced_deletes;
            return None;
        };
        match found {
            Found::Resident(id) => {
                self.unsynced_seen |= stored.tuples().flags(id) & flag::UNSYNCED;
                if stored.chain().is_some() {
                    self.footprint.resident.push((table, id));
                    if self.sampled {
                        stored.touch(id);
                    }
                }
            }
            Found::Evicted(id) => self.footprint.evicted.push((table, id)),
        }
        Some(TupleRef { table, found })
    }

    fn resident(&self, tuple: TupleRef) -> Result<TupleId, Abort> {
        match tuple.found {
            Found::Resident(id) if self.tables[usize::from(tuple.table)].tuples().is_live(id) => Ok(id),
            Found::Resident(_) => Err(Abort::user("the transaction has deleted this tuple")),
            Found::Evicted(_) => Err(Abort::Evicted),
        }
    }

    /// The row of a tuple.
    ///
    /// # Errors
    /// [`Abort::Evicted`] when it is on disk; return it, the transaction will be run again.
    #[inline]
    pub fn row(&self, tuple: TupleRef) -> Result<&[u8], Abort> {
        let id = self.resident(tuple)?;
        Ok(self.tables[usize::from(tuple.table)].tuples().row(id))
    }

    /// Appends bytes of a row to the reply.
    ///
    /// # Errors
    /// As [`TxnContext::row`].
    #[inline]
    pub fn reply_with_row(&mut self, tuple: TupleRef, columns: std::ops::Range<usize>) -> Result<(), Abort> {
        let id = self.resident(tuple)?;
        self.reply.extend_from_slice(&self.tables[usize::from(tuple.table)].tuples().row(id)[columns]);
        Ok(())
    }

    /// Appends bytes to the reply.
    #[inline]
    pub fn reply(&mut self, bytes: &[u8]) {
        self.reply.extend_from_slice(bytes);
    }

    /// Overwrites bytes of a row behind its key.
    ///
    /// # Errors
    /// [`Abort::Evicted`], or a user abort when the range is outside the row or in its key.
    #[inline]
    pub fn update(&mut self, tuple: TupleRef, offset: usize, bytes: &[u8]) -> Result<(), Abort> {
        let id = self.resident(tuple)?;
        let table = &mut self.tables[usize::from(tuple.table)];
        let end = offset.saturating_add(bytes.len());
        if offset < table.def().key_bytes || end > table.def().row_bytes {
            return Err(Abort::user(format!(
                "update of bytes {offset}..{end} of a row of {} bytes",
                table.def().row_bytes
            )));
        }
        let target = &mut table.tuples_mut().row_mut(id)[offset..end];
        let image = self.undo.keep(target);
        self.undo.push(Change::Update {
            table: tuple.table,
            tuple: id,
            offset: offset as u32,
            len: bytes.len() as u32,
            image,
        });
        target.copy_from_slice(bytes);
        Ok(())
    }

    /// Adds a tuple.
    ///
    /// # Errors
    /// A user abort when the key exists or the row has the wrong length; [`Abort::NeedMemory`] when something must be evicted first.
    pub fn insert(&mut self, table: TableId, row: &[u8]) -> Result<(), Abort> {
        let stored = &mut self.tables[usize::from(table)];
        if row.len() != stored.def().row_bytes {
            return Err(Abort::user(format!(
                "a row of {} bytes for table {}, whose rows have {}",
                row.len(),
                stored.def().name,
                stored.def().row_bytes
            )));
        }
        let key = stored.def().key(row);
        // What this answers depends on the tuple that is there, or on the deletion of the one that was: it waits for their log groups.
        let found = stored.find(hash_key(key), key);
        self.unsynced_seen |= match found {
            Some(Found::Resident(id)) => stored.tuples().flags(id) & flag::UNSYNCED,
            Some(Found::Evicted(_)) => 0,
            None => self.unsynced_deletes,
        };
        if found.is_some() {
            return Err(Abort::user("duplicate key"));
        }
        let tuple = stored.insert(row, self.meter).map_err(|NeedMemory| Abort::NeedMemory(table))?;
        self.undo.push(Change::Insert { table, tuple });
        Ok(())
    }

    /// Removes a tuple.
    ///
    /// # Errors
    /// [`Abort::Evicted`].
    pub fn delete(&mut self, tuple: TupleRef) -> Result<(), Abort> {
        let id = self.resident(tuple)?;
        self.tables[usize::from(tuple.table)].detach(id);
        self.footprint.resident.retain(|&entry| entry != (tuple.table, id));
        self.undo.push(Change::Delete { table: tuple.table, tuple: id });
        Ok(())
    }
}

/// Undoes the changes of the running transaction, newest first.
pub(crate) fn roll_back(tables: &mut [Table], undo: &mut UndoLog, meter: &mut MemoryMeter) {
    while let Some(change) = undo.pop() {
        match change {
            Change::Update { table, tuple, offset, len, image } => {
                let before = undo.image(image, len);
                let row = tables[usize::from(table)].tuples_mut().row_mut(tuple);
                row[offset as usize..][..len as usize].copy_from_slice(before);
            }
            Change::Insert { table, tuple } => tables[usize::from(table)].remove(tuple),
            Change::Delete { table, tuple } => tables[usize::from(table)].reattach(tuple, meter),
        }
    }
    undo.clear();
}
