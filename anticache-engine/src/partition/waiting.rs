//! Transactions that wait for blocks: the end of a pre-pass, pins, and running again (paper §3.3).

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;

use super::admission::Age;
use super::multi::MultiRequest;
use super::{Invocation, MAX_RESTARTS, Origin, Partition, ReplySink};
use crate::anticache::Few;
use crate::catalog::TableId;
use crate::events::{Amounts, EventKind};
use crate::storage::tuples::{TupleId, flag};

/// Memory of a transaction that waits, without its parameters and its tuples.
pub(super) const WAITER_BYTES: u64 = 256;
/// Memory of a tuple that it wants or keeps: with the waiting transaction, with the fetch, and among the pins.
const WANTED_BYTES: u64 = 48;
/// When those waiting take so much, no further requests are read.
const MAX_WAITING_BYTES: u64 = 32 << 20;

/// Who waits.
#[derive(Debug)]
pub(crate) enum Waiter {
    /// A transaction of this partition.
    Single {
        /// Where its reply goes.
        origin: Origin,
        /// Number of its procedure.
        procedure: u16,
        /// Its parameters; those of a read take no memory of their own.
        params: SmallVec<[u8; 32]>,
        /// Executions before the next.
        restarts: u32,
    },
    /// This partition's part of a transaction on several.
    Multi(Arc<MultiRequest>),
    /// A transaction that is executed again from the log; whoever does so waits for it.
    Replay,
    /// A transaction of this partition that runs again now.
    Running,
}

impl Waiter {
    /// Bytes of the parameters that it alone keeps.
    fn params_bytes(&self) -> u64 {
        if let Self::Single { params, .. } = self { params.len() as u64 } else { 0 }
    }

    /// Does not count its last restart.
    pub(super) fn forgive_restart(&mut self) {
        match self {
            Self::Single { restarts, .. } => *restarts = restarts.saturating_sub(1),
            Self::Multi(request) => request.forgive_restart(),
            Self::Replay | Self::Running => {}
        }
    }
}

/// A transaction that waits for blocks, or is ready to run again.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(super) waiter: Waiter,
    pub(super) age: Age,
    /// Tuples that must stay in memory until it ran.
    pub(crate) pinned: Few<(TableId, TupleId)>,
    /// Blocks not merged yet.
    pub(crate) blocks_pending: u32,
    /// Why a block of it cannot be had.
    pub(crate) problem: Option<String>,
    /// Whether an older transaction has taken its tuples away, and it was not held back since.
    pub(super) was_robbed: bool,
    /// Whether it waits for others to end, and keeps nothing.
    pub(super) is_held_back: bool,
    /// What it takes of memory that no budget counts.
    bytes: u64,
}

impl Waiting {
    pub(super) fn new(waiter: Waiter, age: Age) -> Self {
        let (was_robbed, is_held_back) = (false, false);
        let bytes = WAITER_BYTES + waiter.params_bytes();
        Self { waiter, age, pinned: Few::new(), blocks_pending: 0, problem: None, was_robbed, is_held_back, bytes }
    }

    /// Where its reply goes, when that is this partition's business alone.
    pub(super) fn origin(&self) -> Option<Origin> {
        match self.waiter {
            Waiter::Single { origin, .. } => Some(origin),
            Waiter::Multi(_) | Waiter::Replay | Waiter::Running => None,
        }
    }
}

/// Position of a waiting transaction.
pub(crate) type WaitingId = usize;

impl Invocation<'_> {
    /// What waits until it can be executed again.
    pub(super) fn to_waiter(self) -> Waiter {
        Waiter::Single {
            origin: self.origin,
            procedure: self.procedure,
            params: SmallVec::from_slice(self.params),
            restarts: self.restarts + 1,
        }
    }
}

impl Partition {
    /// Step 5. Makes what the pre-pass touched in memory the hottest and pins it, requests the blocks and lets the transaction wait.
    pub(super) fn end_pre_pass<S: ReplySink>(&mut self, invocation: Invocation<'_>, sink: &mut S) {
        let Invocation { origin, restarts, .. } = invocation;
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
        let tuples = self.footprint.evicted.len() as u64;
        self.events.add(EventKind::Restart, Amounts { tuples, ..Amounts::default() });
        let age = self.settled_age(invocation.age);
        let id = self.park(Waiting::new(invocation.to_waiter(), age));
        self.keep_footprint(id);
    }

    /// Unless it must queue behind others: makes what an execution touched in memory the hottest, pins it for a waiting transaction, and requests the blocks that it needs.
    pub(super) fn keep_footprint(&mut self, id: WaitingId) {
        let age = self.oldest(&[id]);
        if !self.footprint.evicted.is_empty() && self.must_queue(age) {
            return self.hold_back(id);
        }
        let footprint = std::mem::take(&mut self.footprint);
        let wanted_bytes = (footprint.resident.len() + footprint.evicted.len()) as u64 * WANTED_BYTES;
        if let Some(waiting) = &mut self.waiting[id] {
            waiting.bytes += wanted_bytes;
            self.count_waiting(wanted_bytes);
        }
        for &(table, tuple) in &footprint.resident {
            if self.tables[usize::from(table)].tuples().is_live(tuple) {
                self.tables[usize::from(table)].touch(tuple);
                self.pin(id, table, tuple);
            }
        }
        self.request_fetches(id, &footprint.evicted);
        self.footprint = footprint;
    }

    /// Lets a transaction wait until the log group that others hold up is released.
    pub(super) fn park_until_release(&mut self, waiter: Waiter, age: Age) -> WaitingId {
        let id = self.park(Waiting::new(waiter, age));
        self.after_release.push(id);
        id
    }

    pub(super) fn park(&mut self, waiting: Waiting) -> WaitingId {
        self.count_waiting(waiting.bytes);
        if let Some(id) = self.free_waiting.pop() {
            self.waiting[id] = Some(waiting);
            return id;
        }
        self.waiting.push(Some(waiting));
        self.waiting.len() - 1
    }

    /// Counts what waiting transactions, and requests for several partitions, take.
    pub(super) fn count_waiting(&mut self, bytes: u64) {
        self.waiting_bytes += bytes;
        self.waiting_peak_bytes = self.waiting_peak_bytes.max(self.waiting_bytes);
    }

    /// Whether those waiting take so much memory that no further requests should be run.
    pub fn is_crowded(&self) -> bool {
        self.waiting_bytes > MAX_WAITING_BYTES
    }

    /// Keeps a tuple in memory until a waiting transaction ran.
    pub(crate) fn pin(&mut self, waiter: WaitingId, table: TableId, tuple: TupleId) {
        let Some(waiting) = self.waiting[waiter].as_mut().filter(|waiting| !waiting.was_robbed) else { return };
        waiting.pinned.push((table, tuple));
        *self.pins.entry((table, tuple)).or_insert(0) += 1;
        let tuples = self.tables[usize::from(table)].tuples_mut();
        let flags = tuples.flags(tuple) | flag::PINNED;
        tuples.set_flags(tuple, flags);
    }

    /// Follows tuples that were moved to other slots of a table.
    pub(crate) fn repin(&mut self, table: TableId, moved: &HashMap<TupleId, TupleId>) {
        let pinned = self.waiting.iter_mut().flatten().flat_map(|waiting| &mut waiting.pinned);
        for (_, tuple) in pinned.filter(|(of, _)| *of == table) {
            *tuple = *moved.get(tuple).unwrap_or(tuple);
        }
        // All are taken out before the first is put back: a tuple may have moved to where another one was.
        let counts: Vec<_> = moved.iter().map(|(&old, &new)| (new, self.pins.remove(&(table, old)))).collect();
        // Added, because those of a tuple that was deleted stay at its slot until they are released.
        for (new, count) in counts.into_iter().filter_map(|(new, count)| Some((new, count?))) {
            *self.pins.entry((table, new)).or_insert(0) += count;
        }
    }

    pub(super) fn unpin(&mut self, pinned: &[(TableId, TupleId)]) {
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

    /// Whether a transaction may run again now.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty() || !self.held_back.is_empty()
    }

    pub(super) fn run_ready<S: ReplySink>(&mut self, sink: &mut S) {
        self.let_in();
        // Only those ready now: one that is re-queued on the way waits for the next round.
        for _ in 0..self.ready.len() {
            let Some(id) = self.ready.pop_front() else {
                break;
            };
            let Some(waiting) = &mut self.waiting[id] else {
                continue;
            };
            if waiting.was_robbed && waiting.problem.is_none() {
                self.hold_back(id);
                continue;
            }
            if let Waiter::Multi(request) = &waiting.waiter {
                let (request, problem) = (Arc::clone(request), waiting.problem.take());
                // It keeps its pins until it has run.
                self.multi_ready(request, problem);
                continue;
            }
            let (age, problem) = (waiting.age, waiting.problem.take());
            let waiter = std::mem::replace(&mut waiting.waiter, Waiter::Running);
            self.running = Some(id);
            if let Waiter::Single { origin, procedure, ref params, restarts } = waiter {
                self.bound_group(sink);
                self.bound_snapshot(sink);
                match &problem {
                    None => self.run(Invocation { origin, procedure, params, restarts, age }, sink),
                    Some(problem) => self.refuse(origin, problem, sink),
                }
            }
            if let Some(id) = self.running.take() {
                self.end_waiting(id);
            }
        }
        self.let_in();
    }

    /// Releases what a waiting transaction has kept in memory, and forgets it.
    pub(super) fn end_waiting(&mut self, id: WaitingId) {
        let Some(waiting) = self.waiting[id].take() else { return };
        self.free_waiting.push(id);
        self.waiting_bytes -= waiting.bytes;
        if waiting.is_held_back {
            self.held_back.retain(|&held_back| held_back != id);
        } else if !waiting.was_robbed {
            self.one_went_well();
        }
        self.unpin(&waiting.pinned);
    }
}
