//! Waiting for the disk in the middle of everything: when a transaction needs memory, or the command log does not keep up.

use std::time::Instant;

use super::{MAX_GROUP_BYTES, MAX_RESTARTS, Partition, ReplySink};
use crate::anticache::eviction::{Evicted, Room};

/// Times that a transaction is run again with memory that other tables have left over, before something more is evicted for it each time.
const RESTARTS_BEFORE_EVICTION: u32 = 4;

impl Partition {
    /// Step 6. Waits for the disk when every buffer is on its way to it, or the writes of all cold tuples are not durable yet.
    ///
    /// # Errors
    /// Why there is no room.
    pub(super) fn make_room_to_rerun<S: ReplySink>(
        &mut self,
        table: usize,
        restarts: u32,
        sink: &mut S,
    ) -> Result<(), String> {
        // The slots that it had filled are free again: it needs more than those. Twice as many, so that a large transaction fits soon.
        let free = self.tables[table].tuples().free_slots();
        // Tables that it wants memory of take it from each other: something else must give way.
        if restarts >= RESTARTS_BEFORE_EVICTION && self.evict() == Evicted::Wait {
            self.stall_for_eviction(sink);
        }
        let reason = loop {
            if restarts >= MAX_RESTARTS {
                break "the transaction's own tuples do not fit";
            }
            // What was missing is memory for a value, then more slots are of no use.
            let slots = if self.tables[table].wants_value_memory() { free } else { 2 * free + 1 };
            match self.make_room(table, slots) {
                Room::Made => return Ok(()),
                Room::Nothing if self.tables[table].tuples().free_slots() > free => return Ok(()),
                Room::Nothing => break "nothing can be evicted",
                Room::Wait => {
                    if self.stall_for_eviction(sink) == 0 && self.ring.in_flight() == 0 {
                        break "nothing can be evicted, nor is anything on its way to disk";
                    }
                }
            }
        };
        let budget_bytes = self.meter.budget_bytes();
        Err(format!("memory budget of {budget_bytes} bytes is used up and {reason}"))
    }

    /// Waits for the disk because nothing can be evicted before; how many operations completed.
    fn stall_for_eviction<S: ReplySink>(&mut self, sink: &mut S) -> usize {
        let (waited_us, completed) = self.stall(sink);
        self.counters.eviction_stalls += 1;
        self.counters.eviction_stall_us += waited_us;
        completed
    }

    /// Waits until the log's group under construction is small enough to take more.
    pub(super) fn bound_group<S: ReplySink>(&mut self, sink: &mut S) {
        while self.log.as_ref().is_some_and(|log| log.group_bytes() > MAX_GROUP_BYTES) {
            let (waited_us, _) = self.stall(sink);
            self.counters.log_stalls += 1;
            self.counters.log_stall_us += waited_us;
        }
    }

    /// Waits until what a snapshot under way had to save ahead is small enough to be let grow.
    pub(super) fn bound_snapshot<S: ReplySink>(&mut self, sink: &mut S) {
        while self.snapshot_is_behind() {
            let (waited_us, completed) = self.stall(sink);
            self.counters.snapshot_stalls += 1;
            self.counters.snapshot_stall_us += waited_us;
            if completed == 0 && self.ring.in_flight() == 0 {
                return;
            }
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
