//! Transactions of the command log run again at recovery: the same executor, without a log and without anybody who waits for a reply.

use super::execute::ExpectedTuples;
use super::{Age, Invocation, Origin, Partition, ReplySink};
use crate::net::frame::{REPLY_HEADER_BYTES, Status};

/// Nobody's connection.
const ORIGIN: Origin = Origin { connection: u32::MAX, epoch: 0, token: 0 };

/// How often a transaction that the engine could not serve is tried.
pub(super) const MAX_ATTEMPTS: u32 = 20;

/// After so many attempts it may use memory beyond the budget.
pub(super) const ATTEMPTS_WITHIN_BUDGET: u32 = 10;

/// The part of the budget that recovery may use beyond it, where something does not fit.
const LENT_SHARE: u64 = 8;

/// Keeps the one reply, in memory that serves the next one too.
#[derive(Debug, Default)]
pub(crate) struct Replies(Vec<u8>);

impl Replies {
    fn status(&self) -> Option<Status> {
        self.0.get(REPLY_HEADER_BYTES - 1).copied().and_then(Status::from_wire)
    }

    fn reason(&self) -> String {
        String::from_utf8_lossy(self.0.get(REPLY_HEADER_BYTES..).unwrap_or_default()).into_owned()
    }
}

impl ReplySink for Replies {
    fn buffer(&mut self, _connection: u32, _epoch: u32) -> &mut Vec<u8> {
        &mut self.0
    }
}

impl Partition {
    /// Runs a transaction to its end, with all the blocks that it needs. While the partition has no command log: it is not logged. Its reply is
    /// the one that `replies` then holds.
    ///
    /// # Errors
    /// Why it does not commit.
    pub(crate) fn replay(&mut self, procedure: u16, params: &[u8], replies: &mut Replies) -> Result<(), String> {
        debug_assert!(self.log.is_none());
        let mut attempts = 1;
        loop {
            self.try_replay(procedure, params, replies);
            match replies.status() {
                Some(Status::Committed) => {
                    self.repay_memory();
                    return Ok(());
                }
                // It committed before, so memory sufficed: but not always the memory that other tables hold at this moment.
                Some(Status::Failed) if attempts < MAX_ATTEMPTS => {
                    if attempts == ATTEMPTS_WITHIN_BUDGET {
                        self.borrow_memory();
                    }
                    self.settle();
                }
                _ => return Err(replies.reason()),
            }
            attempts += 1;
        }
    }

    /// Brings near what the next transactions to be replayed look up first, given by the names of their procedures and their parameters; returns for how
    /// many.
    pub(crate) fn prefetch_replayed<'log>(&self, window: impl Iterator<Item = (&'log str, &'log [u8])>) -> usize {
        let (mut expected, mut count) = (ExpectedTuples::default(), 0);
        for (slot, (name, params)) in expected.iter_mut().zip(window) {
            count += 1;
            if let Some(procedure) = self.procedures.number(name) {
                *slot = self.prefetch_bucket_of(procedure, params);
            }
        }
        self.prefetch_tuples(&expected);
        count
    }

    fn try_replay(&mut self, procedure: u16, params: &[u8], replies: &mut Replies) {
        replies.0.clear();
        self.run(Invocation { origin: ORIGIN, procedure, params, restarts: 0, age: Age::OLDEST }, replies);
        while replies.0.is_empty() {
            self.poll(replies);
            if replies.0.is_empty() && self.ready.is_empty() && self.ring.in_flight() > 0 {
                self.stall(replies);
            }
        }
    }

    /// Lets the partition use more memory than its budget, for recovery alone: tuples, values and index nodes lie elsewhere than before, so what fitted
    /// then may be short of a chunk or a slab now. False when it does already, or has no way to give anything back.
    pub(crate) fn borrow_memory(&mut self) -> bool {
        if self.anticache.is_none() || self.meter.lent_bytes() > 0 {
            return false;
        }
        self.meter.lend(self.meter.budget_bytes() / LENT_SHARE);
        self.counters.recovered_beyond_budget += 1;
        true
    }

    /// Evicts what is beyond the budget again.
    pub(crate) fn repay_memory(&mut self) {
        if self.meter.lent_bytes() > 0 {
            self.meter.lend(0);
            self.settle();
        }
    }

    /// Lets everything under way at the disk end, and the eviction policy do its work.
    pub(super) fn settle(&mut self) {
        let mut replies = Replies::default();
        self.poll(&mut replies);
        while self.ring.in_flight() > 0 {
            self.stall(&mut replies);
            self.poll(&mut replies);
        }
    }

    /// Lets what is under way without a transaction go on: evictions that recovery has started.
    pub(crate) fn poll_quietly(&mut self) {
        self.poll(&mut Replies::default());
    }

    /// Makes room for one more tuple of a table, waiting for the disk where that is necessary.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn make_room_quietly(&mut self, table: usize, attempts: u32) -> Result<(), String> {
        let made = self.make_room_to_rerun(table, (attempts, Age::OLDEST), &mut Replies::default());
        made.map_err(|refusal| refusal.to_string())
    }
}
