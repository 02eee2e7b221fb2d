//! What a procedure sees of the database while it runs: a transaction context.
//!
//! A partition runs one transaction at a time, so there are no locks. A look-up or a scan returns evicted tuples like others and the procedure goes
//! on; only reading or writing an evicted tuple's columns ends the pass with [`Abort::Evicted`]. So one pass finds every evicted tuple that the
//! transaction needs and that does not depend on another evicted one (the paper's pre-pass, §3.3). The executor then rolls back, fetches, and
//! re-queues.
//!
//! A transaction on several partitions has a context for each: the procedure gets that of the partition which the request was sent to, and
//! [`TxnContext::at`] leads from there to the others.

use std::borrow::Cow;
use std::ops::{ControlFlow, Range};

use crate::anticache::evicted_table::EvictedId;
use crate::catalog::key::{KeyBuf, NarrowKey, ShortKey};
use crate::catalog::{Field, IndexId, TableId, row};
use crate::storage::hash_index::hash_key;
use crate::storage::index::Index;
use crate::storage::meter::MemoryMeter;
use crate::storage::ordered_index::Direction;
use crate::storage::table::{Found, Refused, Table};
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
    /// Where it was found, so that it is not taken for a tuple of another partition.
    partition: u16,
    found: Found,
}

/// A primary key on its way from one stage of prefetching to the next.
#[derive(Debug, Clone, Copy, Default)]
pub struct KeyHash(u64);

/// The tuples that a scan found, in its order; read with [`TxnContext::matched`] until the transaction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Matches {
    table: TableId,
    partition: u16,
    start: usize,
    end: usize,
}

impl Matches {
    /// How many.
    #[inline]
    pub fn len(self) -> usize {
        self.end - self.start
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }
}

/// What one transaction needs from disk and has touched in memory; kept by the executor from transaction to transaction.
#[derive(Debug, Default)]
pub struct Footprint {
    /// Evicted tuples looked up.
    pub evicted: Vec<(TableId, EvictedId)>,
    /// Tuples in memory looked up, so that a pre-pass can make them the hottest and pin them.
    pub resident: Vec<(TableId, TupleId)>,
    /// Results of scans.
    matched: Vec<Found>,
}

impl Footprint {
    /// Forgets everything.
    #[inline]
    pub fn clear(&mut self) {
        self.evicted.clear();
        self.resident.clear();
        self.matched.clear();
    }
}

/// The one running transaction of a partition.
pub struct TxnContext<'run> {
    pub(crate) partition: u16,
    /// Partitions of the database.
    pub(crate) partitions: u32,
    /// The contexts of the other participants, at the context that the procedure got; empty at those, and for a transaction of one partition.
    pub(crate) peers: Vec<TxnContext<'run>>,
    pub(crate) tables: &'run mut [Table],
    pub(crate) meter: &'run mut MemoryMeter,
    pub(crate) undo: &'run mut UndoLog,
    pub(crate) footprint: &'run mut Footprint,
    pub(crate) reply: &'run mut Vec<u8>,
    /// Whether something found no memory here.
    pub(crate) refused_for_memory: bool,
    /// Whether this transaction was chosen to update the LRU chain (probability α).
    pub(crate) sampled: bool,
    /// Union of [`flag::UNSYNCED`] bits of the tuples seen: the log groups that must be durable before the reply.
    pub(crate) unsynced_seen: u8,
    /// The log groups in which a tuple was deleted and which are not durable yet: a look-up that finds nothing depends on them.
    pub(crate) unsynced_deletes: u8,
}

impl TxnContext<'_> {
    /// The context of a participant, itself included. Tuples and matches are used with the context that found them. What is appended to replies
    /// becomes one reply, in the order of appending.
    ///
    /// # Errors
    /// A user abort when the partition does not take part ([`crate::procedure::Procedure::partitions`] did not name it), or when this is not the
    /// context that the procedure was given.
    #[inline]
    pub fn at(&mut self, partition: u32) -> Result<&mut Self, Abort> {
        if u32::from(self.partition) == partition {
            return Ok(self);
        }
        self.gather_replies();
        let own = self.partition;
        self.peers.iter_mut().find(|peer| u32::from(peer.partition) == partition).ok_or_else(|| {
            Abort::user(format!("partition {partition} is not reached from partition {own} in this transaction"))
        })
    }

    /// Whether this is the transaction's only participant, or not the context that the procedure was given.
    #[inline]
    pub fn is_alone(&self) -> bool {
        self.peers.is_empty()
    }

    /// How many partitions the database has.
    #[inline]
    pub fn partitions(&self) -> u32 {
        self.partitions
    }

    /// Moves what was appended at other participants into the reply.
    pub(crate) fn gather_replies(&mut self) {
        for peer in &mut self.peers {
            self.reply.append(peer.reply);
        }
    }

    /// Where the next bytes of the reply go.
    #[inline]
    fn reply_end(&mut self) -> &mut Vec<u8> {
        if !self.peers.is_empty() {
            self.gather_replies();
        }
        self.reply
    }

    #[inline]
    fn table(&self, table: TableId) -> &Table {
        &self.tables[usize::from(table)]
    }

    /// Finds a tuple by primary key ([`crate::catalog::key`] says how keys are written).
    #[inline]
    pub fn lookup(&mut self, table: TableId, key: &[u8]) -> Option<TupleRef> {
        let found = self.table(table).find(key);
        self.see(table, found)
    }

    /// The same, for a key that [`TxnContext::prefetch_key`] has been told.
    #[inline]
    pub fn lookup_expected(&mut self, table: TableId, key: &[u8], expected: KeyHash) -> Option<TupleRef> {
        let found = self.table(table).find_hashed(expected.0, key);
        self.see(table, found)
    }

    /// Finds a tuple by the key of a unique index.
    #[inline]
    pub fn lookup_index(&mut self, table: TableId, index: IndexId, key: &[u8]) -> Option<TupleRef> {
        let found = self.table(table).find_in(index, key);
        self.see(table, found)
    }

    /// Brings the place near where the index of a primary key says who has it. A transaction that will look up many keys names them all first: their
    /// cache misses then overlap. The answer is for [`TxnContext::prefetch_tuple`].
    #[inline]
    pub fn prefetch_key(&self, table: TableId, key: &[u8]) -> KeyHash {
        let hash = hash_key(key);
        self.table(table).prefetch_bucket(hash);
        KeyHash(hash)
    }

    /// Brings the beginning of a key's tuple near, and the columns that lie in these ranges of its fixed part. Not a look-up: it may be another tuple,
    /// and is not recorded as seen.
    #[inline]
    pub fn prefetch_tuple(&self, table: TableId, key: KeyHash, columns: &[Range<usize>]) {
        let table = self.table(table);
        if let Some(id) = table.prefetch_tuple(key.0) {
            columns.iter().for_each(|columns| table.tuples().prefetch_columns(id, columns));
        }
    }

    /// Brings VARCHARs near, unless the tuple is evicted.
    #[inline]
    pub fn prefetch_texts(&self, tuple: TupleRef, fields: &[Field]) {
        if let Found::Resident(id) = tuple.found {
            let table = self.table(tuple.table);
            fields.iter().filter_map(|field| field.var).for_each(|var| table.prefetch_value(id, var));
        }
    }

    /// Brings near where scans that ascend from these keys will begin, [`TOGETHER`](crate::storage::index::TOGETHER) at most: their cache misses
    /// overlap. Does nothing for an index whose keys are wide, or that is not ordered.
    ///
    /// # Panics
    /// If there are more.
    pub fn prefetch_scans(&self, table: TableId, index: IndexId, lows: &[ShortKey]) {
        let table = self.table(table);
        let def = &table.def().indexes[index];
        if let (Index::Ordered(tree), true) = (&table.indexes()[index], def.is_narrow()) {
            tree.prefetch_all(lows.iter().map(|low| def.normalize::<NarrowKey>(low).unwrap_or_default()));
        }
    }

    /// Records that the transaction has seen a tuple, or that there is none.
    #[inline]
    fn see(&mut self, table: TableId, found: Option<Found>) -> Option<TupleRef> {
        let stored = &mut self.tables[usize::from(table)];
        stored.accesses_since_eviction += 1;
        let Some(found) = found else {
            self.unsynced_seen |= self.unsynced_deletes;
            return None;
        };
        match found {
            Found::Resident(id) => {
                let flags = stored.tuples().flags(id);
                self.unsynced_seen |= flags & flag::UNSYNCED;
                if stored.chain().is_some() {
                    self.footprint.resident.push((table, id));
                    // The use for which a tuple was merged, until which it is pinned, is not the one that ends its probation.
                    if self.sampled || flags & (flag::PROBATION | flag::PINNED) == flag::PROBATION {
                        stored.touch(id);
                    }
                }
            }
            Found::Evicted(id) => self.footprint.evicted.push((table, id)),
        }
        Some(TupleRef { table, partition: self.partition, found })
    }

    /// Records everything matched from `start` on. What is not there may have been deleted by a transaction that is not durable.
    fn see_all(&mut self, table: TableId, start: usize) -> Matches {
        self.unsynced_seen |= self.unsynced_deletes;
        let end = self.footprint.matched.len();
        for at in start..end {
            let found = self.footprint.matched[at];
            self.see(table, Some(found));
        }
        Matches { table, partition: self.partition, start, end }
    }

    /// Finds at most `limit` tuples of an ordered index whose keys lie between two keys, both inclusive; each may be the beginning of a key, and
    /// then stands for all that begin with it. An empty beginning stands for all.
    ///
    /// # Errors
    /// A user abort when the index is not ordered, or a key does not end where a column ends.
    pub fn scan(
        &mut self,
        table: TableId,
        index: IndexId,
        low: &[u8],
        high: &[u8],
        direction: Direction,
        limit: usize,
    ) -> Result<Matches, Abort> {
        let stored = &self.tables[usize::from(table)];
        let def = &stored.def().indexes[index];
        let Index::Ordered(tree) = &stored.indexes()[index] else {
            return Err(Abort::user(format!("index {} of table {} has no order to scan", def.name, stored.def().name)));
        };
        let wrong = |at| Abort::user(format!("a key for index {} ends in a column, at byte {at}", def.name));
        let start = self.footprint.matched.len();
        let matched = &mut self.footprint.matched;
        let visit = |handle| {
            if limit > 0 {
                let found = Found::of(handle);
                stored.prefetch(found);
                matched.push(found);
            }
            if matched.len() - start == limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        if def.is_narrow() {
            let low = def.normalize::<NarrowKey>(low).map_err(wrong)?;
            let high = def.normalize::<NarrowKey>(high).map_err(wrong)?;
            tree.scan(&low, &high, direction, visit);
        } else {
            let low = def.normalize::<KeyBuf>(low).map_err(wrong)?;
            let high = def.normalize::<KeyBuf>(high).map_err(wrong)?;
            tree.scan(&low, &high, direction, visit);
        }
        Ok(self.see_all(table, start))
    }

    /// Finds every tuple with the key of an index, hash or ordered, unique or not; in the order of their primary keys.
    pub fn lookup_all(&mut self, table: TableId, index: IndexId, key: &[u8]) -> Matches {
        let start = self.footprint.matched.len();
        self.tables[usize::from(table)].find_all_in(index, key, &mut self.footprint.matched);
        self.see_all(table, start)
    }

    /// One of the tuples that a scan found.
    ///
    /// # Panics
    /// If `at` is not below `matches.len()`, or the scan was another partition's.
    #[inline]
    pub fn matched(&self, matches: Matches, at: usize) -> TupleRef {
        assert!(at < matches.len(), "match {at} of {}", matches.len());
        assert_eq!(matches.partition, self.partition, "matches of another partition");
        TupleRef {
            table: matches.table,
            partition: matches.partition,
            found: self.footprint.matched[matches.start + at],
        }
    }

    #[inline]
    fn resident(&self, tuple: TupleRef) -> Result<TupleId, Abort> {
        if tuple.partition != self.partition {
            return Err(Abort::User(Cow::Borrowed(
                "a tuple is used with the context of another partition than found it",
            )));
        }
        match tuple.found {
            Found::Resident(id) if self.table(tuple.table).tuples().is_live(id) => Ok(id),
            Found::Resident(_) => Err(Abort::user("the transaction has deleted this tuple")),
            Found::Evicted(_) => Err(Abort::Evicted),
        }
    }

    /// The fixed part of a tuple's row.
    ///
    /// # Errors
    /// [`Abort::Evicted`] when it is on disk; return it, the transaction will be run again.
    #[inline]
    pub fn row(&self, tuple: TupleRef) -> Result<&[u8], Abort> {
        let id = self.resident(tuple)?;
        Ok(self.table(tuple.table).tuples().row(id))
    }

    /// A number: an integer, a decimal without its point, or microseconds since 1970. NULL reads as what was there before.
    ///
    /// # Errors
    /// As [`TxnContext::row`].
    #[inline]
    pub fn integer(&self, tuple: TupleRef, field: Field) -> Result<i64, Abort> {
        Ok(row::number(&self.row(tuple)?[field.offset..field.offset + field.bytes]))
    }

    /// A number that an index has: known of evicted tuples too, whose indexed columns the Evicted Table keeps. So what is found by one index can lead
    /// to a key of another in the same pre-pass.
    ///
    /// # Errors
    /// [`Abort::Evicted`] when it is on disk and no index has the column; a user abort when the transaction has deleted it.
    #[inline]
    pub fn indexed_integer(&self, tuple: TupleRef, field: Field) -> Result<i64, Abort> {
        let columns = field.offset..field.offset + field.bytes;
        match tuple.found {
            Found::Evicted(id) if columns.end <= self.table(tuple.table).def().indexed_bytes => {
                Ok(row::number(&self.table(tuple.table).evicted().image(id)[columns]))
            }
            _ => self.integer(tuple, field),
        }
    }

    /// A text: CHAR with its padding, or VARCHAR.
    ///
    /// # Errors
    /// As [`TxnContext::row`].
    #[inline]
    pub fn text(&self, tuple: TupleRef, field: Field) -> Result<&[u8], Abort> {
        let id = self.resident(tuple)?;
        let table = self.table(tuple.table);
        Ok(match field.var {
            Some(var) => table.value(id, var),
            None => &table.tuples().row(id)[field.offset..field.offset + field.bytes],
        })
    }

    /// Whether a column is NULL.
    ///
    /// # Errors
    /// As [`TxnContext::row`].
    #[inline]
    pub fn is_null(&self, tuple: TupleRef, field: Field) -> Result<bool, Abort> {
        let row = self.row(tuple)?;
        Ok(field.null.is_some_and(|(byte, mask)| row[byte] & mask != 0))
    }

    /// Appends bytes of a row's fixed part to the reply.
    ///
    /// # Errors
    /// As [`TxnContext::row`].
    #[inline]
    pub fn reply_with_row(&mut self, tuple: TupleRef, columns: Range<usize>) -> Result<(), Abort> {
        let id = self.resident(tuple)?;
        self.reply_end();
        self.reply.extend_from_slice(&self.tables[usize::from(tuple.table)].tuples().row(id)[columns]);
        Ok(())
    }

    /// Appends a text column to the reply.
    ///
    /// # Errors
    /// As [`TxnContext::row`].
    #[inline]
    pub fn reply_with_text(&mut self, tuple: TupleRef, field: Field) -> Result<(), Abort> {
        let id = self.resident(tuple)?;
        self.reply_end();
        let table = &self.tables[usize::from(tuple.table)];
        self.reply.extend_from_slice(match field.var {
            Some(var) => table.value(id, var),
            None => &table.tuples().row(id)[field.offset..field.offset + field.bytes],
        });
        Ok(())
    }

    /// Appends bytes to the reply.
    #[inline]
    pub fn reply(&mut self, bytes: &[u8]) {
        self.reply_end().extend_from_slice(bytes);
    }

    /// Sets a number; the bytes that the column has no room for are dropped.
    ///
    /// # Errors
    /// As [`TxnContext::update`].
    #[inline]
    pub fn set_integer(&mut self, tuple: TupleRef, field: Field, value: i64) -> Result<(), Abort> {
        self.change_integer(tuple, field, |_| value).map(|_| ())
    }

    /// Sets a number to what follows from the one before, and returns it.
    ///
    /// # Errors
    /// As [`TxnContext::update`].
    #[inline]
    pub fn change_integer(
        &mut self,
        tuple: TupleRef,
        field: Field,
        change: impl FnOnce(i64) -> i64,
    ) -> Result<i64, Abort> {
        self.clear_null(tuple, field)?;
        let id = self.resident(tuple)?;
        let table = &mut self.tables[usize::from(tuple.table)];
        let columns = field.offset..field.offset + field.bytes;
        let before = row::number(&table.tuples().row(id)[columns.clone()]);
        let value = change(before);
        if table.is_indexed(field.offset) {
            self.update(tuple, field.offset, &value.to_le_bytes()[..field.bytes])?;
        } else {
            table.set_number(id, columns, value);
            let (bytes, offset) = (field.bytes as u8, field.offset as u32);
            self.undo.push(Change::Number { table: tuple.table, bytes, tuple: id, offset, before });
        }
        Ok(value)
    }

    /// Sets a text: CHAR is padded with blanks, VARCHAR stored as it is.
    ///
    /// # Errors
    /// As [`TxnContext::update`]; [`Abort::NeedMemory`] when something must be evicted first.
    pub fn set_text(&mut self, tuple: TupleRef, field: Field, text: &[u8]) -> Result<(), Abort> {
        self.clear_null(tuple, field)?;
        let Some(var) = field.var else {
            if text.len() > field.bytes {
                return Err(Abort::user(format!("a text of {} bytes for a CHAR({})", text.len(), field.bytes)));
            }
            let mut padded = text.to_vec();
            padded.resize(field.bytes, b' ');
            return self.update(tuple, field.offset, &padded);
        };
        let id = self.resident(tuple)?;
        let table = &mut self.tables[usize::from(tuple.table)];
        let most = table.def().var_max_bytes[usize::from(var)];
        if text.len() > most {
            return Err(Abort::user(format!("a text of {} bytes for a VARCHAR({most})", text.len())));
        }
        match table.replace_value(id, var, text, self.meter) {
            Ok((old, new)) => {
                self.undo.push(Change::Value { table: tuple.table, tuple: id, var, old, new });
                Ok(())
            }
            Err(refused) => Err(self.refused(tuple.table, refused)),
        }
    }

    /// Sets a column to NULL.
    ///
    /// # Errors
    /// As [`TxnContext::update`], and a user abort when the column is NOT NULL.
    pub fn set_null(&mut self, tuple: TupleRef, field: Field) -> Result<(), Abort> {
        let (byte, mask) = field.null.ok_or(Abort::User(Cow::Borrowed("a NOT NULL column cannot be NULL")))?;
        let bits = self.row(tuple)?[byte] | mask;
        self.update(tuple, byte, &[bits])
    }

    #[inline]
    fn clear_null(&mut self, tuple: TupleRef, field: Field) -> Result<(), Abort> {
        let Some((byte, mask)) = field.null else {
            return Ok(());
        };
        let bits = self.row(tuple)?[byte];
        if bits & mask == 0 { Ok(()) } else { self.update(tuple, byte, &[bits & !mask]) }
    }

    /// Overwrites bytes of a row's fixed part behind its primary key.
    ///
    /// # Errors
    /// [`Abort::Evicted`], or a user abort when the range is outside the row or in its key, or the new key of a unique index exists.
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
        let image = self.undo.keep(&table.tuples().row(id)[offset..end]);
        if let Err(found) = table.overwrite(id, offset, bytes, self.meter) {
            return Err(self.refused(tuple.table, Refused::Duplicate(found)));
        }
        let (offset, len) = (offset as u32, bytes.len() as u32);
        self.undo.push(Change::Update { table: tuple.table, tuple: id, offset, len, image });
        Ok(())
    }

    /// Adds a tuple, given as a serialized row ([`crate::catalog`] describes it, [`row::RowBuf`] builds it).
    ///
    /// # Errors
    /// A user abort when a unique key exists or the row has the wrong length; [`Abort::NeedMemory`] when something must be evicted first.
    pub fn insert(&mut self, table: TableId, serialized: &[u8]) -> Result<TupleRef, Abort> {
        match self.tables[usize::from(table)].insert(serialized, self.meter) {
            Ok(tuple) => {
                // That the key was free may be the deed of a transaction that is not durable.
                self.unsynced_seen |= self.unsynced_deletes;
                self.undo.push(Change::Insert { table, tuple });
                Ok(TupleRef { table, partition: self.partition, found: Found::Resident(tuple) })
            }
            Err(refused) => Err(self.refused(table, refused)),
        }
    }

    /// What a refusal means for the transaction. That a key exists is an answer that depends on the tuple which has it.
    fn refused(&mut self, table: TableId, refused: Refused) -> Abort {
        match refused {
            Refused::NeedMemory => {
                self.refused_for_memory = true;
                Abort::NeedMemory(table)
            }
            Refused::Duplicate(found) => {
                if let Found::Resident(id) = found {
                    self.unsynced_seen |= self.table(table).tuples().flags(id) & flag::UNSYNCED;
                }
                Abort::User(Cow::Borrowed("duplicate key"))
            }
            Refused::Malformed(what) => Abort::user(what),
        }
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
                let restored = tables[usize::from(table)].overwrite(tuple, offset as usize, before, meter);
                debug_assert!(restored.is_ok(), "the key before was its own");
            }
            Change::Number { table, bytes, tuple, offset, before } => {
                let offset = offset as usize;
                tables[usize::from(table)].set_number(tuple, offset..offset + usize::from(bytes), before);
            }
            Change::Value { table, tuple, var, old, new } => {
                let table = &mut tables[usize::from(table)];
                let restored = table.refer(tuple, var, old, meter);
                debug_assert!(restored.is_ok(), "the key before was its own");
                table.free_value(new);
            }
            Change::Insert { table, tuple } => tables[usize::from(table)].remove(tuple),
            Change::Delete { table, tuple } => tables[usize::from(table)].reattach(tuple, meter),
        }
    }
    undo.clear();
}
