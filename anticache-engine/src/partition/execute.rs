//! Runs transactions: the steps 1 to 4 of their life (see [`super`]), and what of it also those on several partitions need.

use std::ops::Range;
use std::time::Instant;

use super::room::Refusal;
use super::{Age, Origin, Partition, ReplySink};
use crate::catalog::TableId;
use crate::durability::command_log::CommandLog;
use crate::net::frame::{RequestHead, Status, begin_reply, finish_reply, write_reply};
use crate::procedure::FirstTuple;
use crate::stats::PauseKind;
use crate::storage::hash_index::hash_key;
use crate::storage::undo::Change;
use crate::txn::{Abort, TxnContext, roll_back};

/// Requests whose memory is prefetched together.
pub(super) const PREFETCH_WINDOW: usize = 32;

/// The tuple that a transaction will look up first, on its way from one stage of prefetching to the next.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected<'call> {
    table: TableId,
    hash: u64,
    /// See [`crate::procedure::FirstTuple::columns`].
    columns: &'call Range<usize>,
}

/// Of the transactions of a window; none where it is not known which tuple.
pub(super) type ExpectedTuples<'call> = [Option<Expected<'call>>; PREFETCH_WINDOW];

/// One execution of a transaction.
#[derive(Debug, Clone, Copy)]
pub(super) struct Invocation<'params> {
    pub(super) origin: Origin,
    pub(super) procedure: u16,
    pub(super) params: &'params [u8],
    /// Executions before this one.
    pub(super) restarts: u32,
    pub(super) age: Age,
}

/// The context of a partition for a transaction; a macro, because the borrow checker must see that procedures are not a part of it.
macro_rules! context {
    ($partition:expr, $reply:expr, $sampled:expr) => {{
        $partition.footprint.clear();
        TxnContext {
            partition: $partition.id as u16,
            partitions: $partition.partitions,
            peers: Vec::new(),
            tables: &mut $partition.tables,
            meter: &mut $partition.meter,
            undo: &mut $partition.undo,
            footprint: &mut $partition.footprint,
            reply: $reply,
            refused_for_memory: false,
            sampled: $sampled,
            unsynced_seen: 0,
            unsynced_deletes: $partition.log.as_ref().map_or(0, CommandLog::unsynced_deletes),
        }
    }};
}

impl Partition {
    /// Runs the requests found in `input`.
    pub fn execute_batch<S: ReplySink>(
        &mut self,
        connection: u32,
        epoch: u32,
        input: &[u8],
        requests: &[RequestHead],
        sink: &mut S,
    ) {
        for window in requests.chunks(PREFETCH_WINDOW) {
            self.events.begin_turn();
            self.bound_group(sink);
            self.bound_snapshot(sink);
            self.prefetch(input, window);
            for request in window {
                let origin = Origin { connection, epoch, token: request.token };
                let params = request.params(input);
                let invocation =
                    Invocation { origin, procedure: request.procedure, params, restarts: 0, age: Age::NEW };
                if !self.divert(invocation, sink) {
                    self.run(invocation, sink);
                }
            }
        }
    }

    /// Brings index buckets, then what the tuples begin with, then their columns, then the neighbours in the chain near, for all requests of a window:
    /// the cache misses of different transactions overlap instead of following each other.
    fn prefetch(&self, input: &[u8], window: &[RequestHead]) {
        let mut expected = ExpectedTuples::default();
        for (request, slot) in window.iter().zip(&mut expected) {
            *slot = self.prefetch_bucket_of(request.procedure, request.params(input));
        }
        self.prefetch_tuples(&expected);
    }

    /// The first step for one transaction: where the index says who has the key that it looks up first.
    #[inline]
    pub(super) fn prefetch_bucket_of<'call>(
        &'call self,
        procedure: u16,
        params: &'call [u8],
    ) -> Option<Expected<'call>> {
        let FirstTuple { table, key, columns } = self.procedures.get(procedure)?.first_tuple(params)?;
        let hash = hash_key(key);
        self.tables[usize::from(table)].prefetch_bucket(hash);
        Some(Expected { table, hash, columns })
    }

    /// The other steps.
    #[inline]
    pub(super) fn prefetch_tuples(&self, expected: &ExpectedTuples<'_>) {
        let candidates = self.sampler.candidates(PREFETCH_WINDOW);
        let mut tuples = [None; PREFETCH_WINDOW];
        for (number, (expected, tuple)) in expected.iter().zip(&mut tuples).enumerate() {
            if let Some(Expected { table, hash, .. }) = expected {
                let table = &self.tables[usize::from(*table)];
                *tuple = table.prefetch_tuple(*hash).map(|id| (table, id));
                if let Some((table, id)) = tuple.filter(|_| candidates.contains(&number)) {
                    table.prefetch_links(id);
                }
            }
        }
        // The last stage waits for the links, which are on their way while the columns of all are asked for.
        for (expected, tuple) in expected.iter().zip(&tuples) {
            if let (Some(Expected { columns, .. }), Some((table, id))) = (expected, tuple) {
                table.tuples().prefetch_columns(*id, columns);
            }
        }
        tuples[candidates].iter().flatten().for_each(|&(table, id)| table.prefetch_neighbours(id));
    }

    /// Answers with a status and a reason.
    pub(super) fn refuse<S: ReplySink>(&mut self, origin: Origin, reason: &str, sink: &mut S) {
        self.counters.failed += 1;
        self.forget_wants();
        write_reply(sink.buffer(origin.connection, origin.epoch), origin.token, Status::Failed, reason.as_bytes());
    }

    /// Runs one transaction until it has ended or waits for blocks.
    #[inline]
    pub(super) fn run<S: ReplySink>(&mut self, mut invocation: Invocation<'_>, sink: &mut S) {
        let restarts = invocation.restarts;
        while let Some(table) = self.attempt(invocation, sink) {
            let started = Instant::now();
            let room = self.make_room_to_rerun(usize::from(table), (invocation.restarts, invocation.age), sink);
            self.pauses.add(PauseKind::Turn, started);
            match room {
                Ok(()) => {}
                Err(Refusal::AfterRelease) => {
                    let age = self.settled_age(invocation.age);
                    // It counts if it got memory that did not suffice, not that it waits.
                    let restarts = invocation.restarts.min(restarts + 1);
                    let mut waiter = Invocation { restarts, ..invocation }.to_waiter();
                    waiter.forgive_restart();
                    self.forget_wants();
                    self.park_until_release(waiter, age);
                    return;
                }
                // What it got so far was not all that it needs, and it keeps nothing of it.
                Err(Refusal::AfterOthers) => return self.queue_behind(Invocation { restarts, ..invocation }),
                Err(Refusal::Never(reason)) => return self.refuse(invocation.origin, &reason, sink),
            }
            invocation.restarts += 1;
        }
    }

    /// Executes a transaction once (the steps at the top of this module). Returns the table that needs memory before it can be executed again,
    /// or `None` when that is not the executor's next step.
    fn attempt<S: ReplySink>(&mut self, invocation: Invocation<'_>, sink: &mut S) -> Option<TableId> {
        let origin = invocation.origin;
        if let Some(failure) = self.failure.clone() {
            self.refuse(origin, &failure, sink);
            return None;
        }
        let Some(procedure) = self.procedures.get(invocation.procedure) else {
            self.refuse(origin, &format!("no procedure has the number {}", invocation.procedure), sink);
            return None;
        };
        let sampled = self.sampler.choose();
        let out = sink.buffer(origin.connection, origin.epoch);
        let start = begin_reply(out, origin.token);
        let mut txn = context!(self, &mut *out, sampled);
        let outcome = procedure.execute(&mut txn, invocation.params);
        let unsynced_seen = txn.unsynced_seen & self.awaited_by_readers;
        match outcome {
            Ok(()) => {
                self.counters.sampled += u64::from(sampled);
                self.commit(invocation, unsynced_seen, out, start);
                self.forget_wants();
            }
            Err(Abort::User(reason)) => {
                self.undo_changes();
                self.forget_wants();
                self.counters.aborted += 1;
                out.truncate(start);
                write_reply(out, origin.token, Status::Aborted, reason.as_bytes());
                if let Some(log) = self.log.as_mut().filter(|_| unsynced_seen != 0) {
                    log.hold(unsynced_seen, origin, &out[start..]);
                    out.truncate(start);
                }
            }
            Err(Abort::Evicted) => {
                out.truncate(start);
                self.undo_changes();
                self.end_pre_pass(invocation, sink);
            }
            Err(Abort::NeedMemory(table)) => {
                out.truncate(start);
                self.undo_changes();
                return Some(table);
            }
        }
        None
    }

    /// Step 3. Logs what wrote, marks its tuples, and sends or holds the reply.
    #[inline]
    fn commit(&mut self, invocation: Invocation<'_>, unsynced_seen: u8, out: &mut Vec<u8>, start: usize) {
        self.counters.committed += 1;
        finish_reply(out, start, Status::Committed);
        let wrote = !self.undo.is_empty();
        let Some(log) = self.log.as_mut().filter(|_| wrote || unsynced_seen != 0) else {
            return self.forget_changes();
        };
        if wrote {
            let mark = log.append(invocation.procedure, invocation.params);
            self.mark_changes(mark);
        }
        let Some(log) = &mut self.log else { return };
        log.hold(if wrote { 0 } else { unsynced_seen }, invocation.origin, &out[start..]);
        out.truncate(start);
        self.forget_changes();
    }

    /// Marks what the transaction has written with the flag of its log group.
    #[inline]
    pub(super) fn mark_changes(&mut self, mark: u8) {
        let Some(log) = &mut self.log else { return };
        for change in self.undo.changes() {
            // Under the key that an update has taken away, a look-up finds nothing, as after a deletion.
            let takes_key = match *change {
                Change::Update { table, offset, .. } => self.tables[usize::from(table)].is_indexed(offset as usize),
                Change::Value { table, var, .. } => self.tables[usize::from(table)].is_indexed_value(var),
                Change::Number { .. } | Change::Insert { .. } | Change::Delete { .. } => false,
            };
            if takes_key {
                log.mark_deleted();
            }
            match *change {
                Change::Update { table, tuple, .. }
                | Change::Number { table, tuple, .. }
                | Change::Value { table, tuple, .. }
                | Change::Insert { table, tuple } => {
                    let tuples = self.tables[usize::from(table)].tuples_mut();
                    // A tuple that the same transaction deleted later has no slot to mark.
                    if tuples.is_live(tuple) && tuples.flags(tuple) & mark == 0 {
                        let flags = tuples.flags(tuple) | mark;
                        tuples.set_flags(tuple, flags);
                        log.mark(table, tuple);
                    }
                }
                Change::Delete { .. } => log.mark_deleted(),
            }
        }
    }

    /// The context of this partition for a transaction on several; the base partition's writes the `reply`.
    pub(super) fn context<'run>(&'run mut self, reply: Option<&'run mut Vec<u8>>, sampled: bool) -> TxnContext<'run> {
        context!(self, reply.unwrap_or(&mut self.peer_reply), sampled)
    }

    pub(super) fn undo_changes(&mut self) {
        roll_back(&mut self.tables, &mut self.undo, &mut self.meter);
    }

    /// Ends the undo log of a transaction that committed: what it deleted is freed now.
    #[inline]
    pub(super) fn forget_changes(&mut self) {
        for change in self.undo.changes() {
            match *change {
                Change::Delete { table, tuple } => self.tables[usize::from(table)].free_detached(tuple),
                Change::Value { table, old, .. } => self.tables[usize::from(table)].free_value(old),
                Change::Update { .. } | Change::Number { .. } | Change::Insert { .. } => {}
            }
        }
        self.undo.clear();
    }
}
