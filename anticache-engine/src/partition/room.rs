//! Waiting for the disk in the middle of everything: when a transaction needs memory, or the command log does not keep up.

use std::time::Instant;

use super::admission::Age;
use super::{MAX_RESTARTS, Partition, ReplySink, WaitingId};
use crate::anticache::Room;
use crate::stats::PauseKind;
use crate::storage::table::Table;

/// The command-log group under construction, and the replies that wait for it and for the one before, are not let grow beyond this while that is being
/// written. The bound is far above what a disk leaves behind and far below the group format's 4 GiB.
const MAX_GROUP_BYTES: usize = 64 << 20;

/// Why a transaction cannot be run again at once.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// What could be evicted belongs to a log group that waits for other partitions ([`super::multi`]): not before that is released. Waiting for it in
    /// the middle of everything could mean to wait for oneself.
    #[error("memory is held by transactions that other partitions have not made durable")]
    AfterRelease,
    /// Transactions older than it keep in memory what it would need to have evicted.
    #[error("memory is held by transactions that began before")]
    AfterOthers,
    /// For this reason.
    #[error("{0}")]
    Never(String),
}

impl Partition {
    /// Step 6, for a transaction of an age that was executed so often. Waits for the disk when every buffer is on its way to it, or the writes of all cold tuples are not durable yet.
    ///
    /// # Errors
    /// Why there is no room.
    pub(crate) fn make_room_to_rerun<S: ReplySink>(
        &mut self,
        table: usize,
        (restarts, age): (u32, Age),
        sink: &mut S,
    ) -> Result<(), Refusal> {
        self.hungry = true;
        let free = self.tables[table].tuples().free_slots();
        self.tables[table].want_more_slots(&self.meter);
        let reason = loop {
            if restarts >= MAX_RESTARTS {
                break "the transaction's own tuples do not fit";
            }
            let started = Instant::now();
            let hungry = (0..self.tables.len()).filter(|&table| self.tables[table].is_hungry()).collect::<Vec<_>>();
            let lacking =
                hungry.into_iter().map(|table| self.make_room(table, 0, age, true)).find(|&room| room != Room::Made);
            self.pauses.add(PauseKind::Eviction, started);
            match lacking {
                None => return Ok(()),
                Some(Room::Wait) if self.unresolved_group.is_some() => return Err(Refusal::AfterRelease),
                Some(Room::Wait) => {
                    let (waited_us, completed) = self.stall(sink);
                    self.counters.eviction_stalls += 1;
                    self.counters.eviction_stall_us += waited_us;
                    self.pauses.add_us(PauseKind::Stall, waited_us);
                    if completed == 0 && self.ring.in_flight() == 0 {
                        break "nothing can be evicted, nor is anything on its way to disk";
                    }
                }
                Some(_) if self.tables[table].tuples().free_slots() > free => return Ok(()),
                // What other tables have kept for this transaction may be what this one lacks.
                Some(_) if self.forget_wants_but(table) => {}
                Some(Room::AfterOthers) => return Err(Refusal::AfterOthers),
                Some(_) => break "nothing can be evicted",
            }
        };
        let budget_bytes = self.meter.budget_bytes();
        let write_problem = self.anticache.as_ref().and_then(|anticache| anticache.write_problem.as_ref());
        let cause = write_problem.map_or(String::new(), |error| format!(": evicted blocks cannot be written: {error}"));
        Err(Refusal::Never(format!("memory budget of {budget_bytes} bytes is used up and {reason}{cause}")))
    }

    /// A transaction has ended: what tables have kept for it, others may have. False when they kept nothing.
    pub(crate) fn forget_wants(&mut self) -> bool {
        if self.hungry {
            self.tables.iter_mut().for_each(Table::forget_wants);
        }
        std::mem::take(&mut self.hungry)
    }

    /// As [`Partition::forget_wants`], of all tables but one.
    fn forget_wants_but(&mut self, table: usize) -> bool {
        let others = self.tables.iter_mut().enumerate().filter(|(index, other)| *index != table && other.is_hungry());
        others.map(|(_, other)| other.forget_wants()).count() > 0
    }

    /// Waits until the log's group under construction is small enough to take more, and so are the replies that wait for the one before it.
    pub(super) fn bound_group<S: ReplySink>(&mut self, sink: &mut S) {
        while self.log.as_ref().is_some_and(|log| log.group_bytes() > MAX_GROUP_BYTES) {
            let waited_us = if self.unresolved_group.is_some() {
                let started = Instant::now();
                self.await_release(sink);
                started.elapsed().as_micros() as u64
            } else {
                self.stall(sink).0
            };
            self.counters.log_stalls += 1;
            self.counters.log_stall_us += waited_us;
            self.pauses.add_us(PauseKind::Turn, waited_us);
        }
    }

    /// Waits until what a snapshot under way had to save ahead is small enough to be let grow.
    pub(super) fn bound_snapshot<S: ReplySink>(&mut self, sink: &mut S) {
        while self.snapshot_delays_transactions() {
            let (waited_us, completed) = self.stall(sink);
            self.counters.snapshot_stalls += 1;
            self.counters.snapshot_stall_us += waited_us;
            self.pauses.add_us(PauseKind::Turn, waited_us);
            if completed == 0 && self.ring.in_flight() == 0 {
                return;
            }
        }
    }

    /// Waits until the blocks of a parked replay are merged.
    ///
    /// # Errors
    /// Why one of them cannot be had.
    pub(super) fn wait_for_blocks(&mut self, id: WaitingId) -> Result<(), String> {
        let mut outbox = super::multi::Outbox::default();
        loop {
            let Some(waiting) = &mut self.waiting[id] else { return Ok(()) };
            if waiting.blocks_pending == 0 {
                self.ready.retain(|&ready| ready != id);
                return waiting.problem.take().map_or(Ok(()), Err);
            }
            if self.ring.in_flight() > 0 {
                self.stall(&mut outbox);
            }
            // No transaction is waiting for its turn while this one waits.
            if let Some(anticache) = &mut self.anticache {
                anticache.begin_turn();
            }
            self.retry_writes();
            self.retry_merges();
            self.start_fetches();
        }
    }

    /// Waits for the disk, in the middle of everything. Returns for how many microseconds, and how many operations completed.
    pub(super) fn stall<S: ReplySink>(&mut self, sink: &mut S) -> (u64, usize) {
        let started = Instant::now();
        let flushed = self.flush_log(true);
        let mut completions = std::mem::take(&mut self.completions);
        if let Err(error) = flushed.and_then(|()| self.ring.wait(&mut completions)) {
            self.fail(format!("disk I/O: {error}"), sink);
        }
        let completed = completions.len();
        for completion in completions.drain(..) {
            self.complete(completion, sink);
        }
        self.completions = completions;
        (started.elapsed().as_micros() as u64, completed)
    }
}
