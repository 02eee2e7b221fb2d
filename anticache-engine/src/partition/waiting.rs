//! Transactions that wait for blocks: the end of a pre-pass, pins, and running again (paper §3.3).

use super::{Invocation, MAX_RESTARTS, Origin, Partition, ReplySink};
use crate::catalog::TableId;
use crate::storage::tuples::{TupleId, flag};

/// A transaction that waits for blocks, or is ready to run again.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(super) origin: Origin,
    procedure: u16,
    params: Vec<u8>,
    /// Tuples that must stay in memory until it ran.
    pub(crate) pinned: Vec<(TableId, TupleId)>,
    /// Blocks not merged yet.
    pub(crate) blocks_pending: u32,
    /// Why a block of it cannot be had.
    pub(crate) problem: Option<String>,
    restarts: u32,
}

/// Position of a waiting transaction.
pub(crate) type WaitingId = usize;

impl Partition {
    /// Step 5. Makes what the pre-pass touched in memory the hottest and pins it, requests the blocks and lets the transaction wait.
    pub(super) fn end_pre_pass<S: ReplySink>(&mut self, invocation: Invocation<'_>, sink: &mut S) {
        let Invocation { origin, procedure, params, restarts } = invocation;
        if self.footprint.evicted.is_empty() {
            return self.refuse(origin, "its procedure says that it met evicted tuples, but looked up none", sink);
        }
        if restarts >= MAX_RESTARTS {
            let reason = format!(
                "given up after {restarts} restarts: its evicted tuples do not stay in memory together; the budget is {} bytes",
                self.meter.budget_bytes()
            );
            return self.refuse(origin, &reason, sink);
        }
        self.counters.restarted += 1;
        let id = self.park(Waiting {
            origin,
            procedure,
            params: params.to_vec(),
            pinned: Vec::new(),
            blocks_pending: 0,
            problem: None,
            restarts: restarts + 1,
        });
        let footprint = std::mem::take(&mut self.footprint);
        for &(table, tuple) in &footprint.resident {
            if self.tables[usize::from(table)].tuples().is_live(tuple) {
                self.tables[usize::from(table)].touch(tuple);
                self.pin(id, table, tuple);
            }
        }
        self.request_fetches(id, &footprint.evicted);
        self.footprint = footprint;
    }

    fn park(&mut self, waiting: Waiting) -> WaitingId {
        if let Some(id) = self.free_waiting.pop() {
            self.waiting[id] = Some(waiting);
            return id;
        }
        self.waiting.push(Some(waiting));
        self.waiting.len() - 1
    }

    /// Keeps a tuple in memory until a waiting transaction ran.
    pub(crate) fn pin(&mut self, waiter: WaitingId, table: TableId, tuple: TupleId) {
        let Some(waiting) = &mut self.waiting[waiter] else { return };
        waiting.pinned.push((table, tuple));
        *self.pins.entry((table, tuple)).or_insert(0) += 1;
        let tuples = self.tables[usize::from(table)].tuples_mut();
        let flags = tuples.flags(tuple) | flag::PINNED;
        tuples.set_flags(tuple, flags);
    }

    fn unpin(&mut self, pinned: &[(TableId, TupleId)]) {
        for pin in pinned {
            let Some(count) = self.pins.get_mut(pin) else { continue };
            *count -= 1;
            if *count == 0 {
                self.pins.remove(pin);
                let tuples = self.tables[usize::from(pin.0)].tuples_mut();
                if tuples.is_live(pin.1) {
                    let flags = tuples.flags(pin.1) & !flag::PINNED;
                    tuples.set_flags(pin.1, flags);
                }
            }
        }
    }

    /// Gives up all pins, when they leave no room for a block that somebody waits for; false when there are none. Transactions whose tuples
    /// are evicted again are restarted again, which is bounded.
    pub(crate) fn unpin_all(&mut self) -> bool {
        let waiting = self.waiting.iter_mut().flatten();
        let all: Vec<_> = waiting.flat_map(|waiting| std::mem::take(&mut waiting.pinned)).collect();
        self.unpin(&all);
        !all.is_empty()
    }

    pub(super) fn run_ready<S: ReplySink>(&mut self, sink: &mut S) {
        // Only those ready now: one that is re-queued on the way waits for the next round.
        for _ in 0..self.ready.len() {
            let Some(id) = self.ready.pop_front() else {
                break;
            };
            let Some(waiting) = self.waiting[id].take() else {
                continue;
            };
            self.free_waiting.push(id);
            self.unpin(&waiting.pinned);
            let Waiting { origin, procedure, ref params, restarts, .. } = waiting;
            self.bound_group(sink);
            self.bound_snapshot(sink);
            match &waiting.problem {
                None => self.run(Invocation { origin, procedure, params, restarts }, sink),
                Some(problem) => self.refuse(origin, problem, sink),
            }
        }
    }
}
