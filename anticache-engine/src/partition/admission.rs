//! Who may keep tuples in memory, when there is no room for what all waiting transactions want to keep together.
//!
//! Every transaction has an [`Age`]: its place in one order of all transactions of a site that have ever waited. Memory is taken away from the
//! youngest who keeps any, and only for somebody older; a transaction that runs again keeps its tuples until it has ended. Whoever lost some is
//! held back, and so is whoever would have to take from an older one: it fetches nothing and keeps nothing until fewer others are under way than when
//! memory ran out (one more is allowed whenever as many have gone well), or it is older than all of them. While somebody is held back, who comes
//! later queues behind.
//!
//! So the oldest transaction of the site never loses a tuple and is held back nowhere. It ends, whatever others do, and then another is the oldest:
//! each one ends after a bounded number of restarts of its own. Restarts for the sake of older ones are not counted.

use std::sync::Arc;

use super::waiting::{Waiter, Waiting, WaitingId};
use super::{Invocation, Partition};

/// How old a transaction is; the smaller, the older.
///
/// The first part is the number of the site's multi-partition requests when it began to wait, which orders those among each other at all partitions
/// alike; the second counts the other transactions of this partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Age(u64, u64);

impl Age {
    /// Older than all: work that nothing else competes with.
    pub(crate) const OLDEST: Self = Self(0, 0);
    /// Younger than all: it has not waited yet.
    pub(crate) const NEW: Self = Self(u64::MAX, u64::MAX);

    /// Of a multi-partition request, by its number.
    pub(super) fn of_request(id: u64) -> Self {
        Self(id, 0)
    }
}

impl Partition {
    /// The age of a transaction that has to wait; a new one gets it now.
    pub(super) fn settled_age(&mut self, age: Age) -> Age {
        if age != Age::NEW {
            return age;
        }
        self.ages += 1;
        Age(self.link.as_ref().map_or(0, |link| link.requests_so_far()), self.ages)
    }

    /// Whether a waiting transaction is under way: neither held back nor waiting for memory elsewhere.
    fn is_under_way(&self, id: WaitingId) -> bool {
        self.waiting[id].as_ref().is_some_and(|waiting| !waiting.is_held_back)
    }

    pub(super) fn under_way(&self) -> usize {
        self.waiting.len() - self.free_waiting.len() - self.held_back.len()
    }

    /// Takes its tuples away from the youngest transaction that keeps some and is younger than `age`; false when there is none.
    pub(crate) fn rob_youngest(&mut self, age: Age) -> bool {
        let robbable = |waiting: &Waiting| waiting.age > age && !waiting.pinned.is_empty();
        let candidates = self.waiting.iter().enumerate().filter_map(|(id, waiting)| Some((id, waiting.as_ref()?)));
        let youngest = candidates.filter(|(_, waiting)| robbable(waiting)).max_by_key(|(_, waiting)| waiting.age);
        let Some(id) = youngest.map(|(id, _)| id) else {
            return false;
        };
        self.rob(id);
        true
    }

    /// Takes a waiting transaction's tuples away; it will be held back when everything that it has asked for came.
    pub(crate) fn rob(&mut self, id: WaitingId) {
        let Some(waiting) = &mut self.waiting[id] else { return };
        waiting.was_robbed = true;
        let pinned = std::mem::take(&mut waiting.pinned);
        self.unpin(&pinned);
        self.counters.robbed += 1;
    }

    /// Whether a transaction older than `age` keeps tuples in memory.
    pub(crate) fn an_older_one_keeps_tuples(&self, age: Age) -> bool {
        self.waiting.iter().flatten().any(|waiting| waiting.age < age && !waiting.pinned.is_empty())
    }

    /// The oldest of the transactions that wait for something.
    pub(crate) fn oldest(&self, ids: &[WaitingId]) -> Age {
        ids.iter().filter_map(|&id| self.waiting[id].as_ref()).map(|waiting| waiting.age).min().unwrap_or(Age::OLDEST)
    }

    /// Whether a transaction that wants to wait must queue behind those held back.
    pub(super) fn must_queue(&self, age: Age) -> bool {
        let is_older = |&id: &WaitingId| self.waiting[id].as_ref().is_some_and(|waiting| waiting.age < age);
        self.under_way() > self.most_under_way && self.held_back.iter().any(is_older)
    }

    /// Parks a transaction that cannot have memory before others have ended. Where it waited `before` it is not under way any more, nor has it gone
    /// well: otherwise it would be let in again at once.
    pub(super) fn park_until_others_end(&mut self, waiter: Waiter, age: Age, before: Option<WaitingId>) -> WaitingId {
        if let Some(before) = before {
            self.give_up_stay(before);
        }
        let id = self.park(Waiting::new(waiter, age));
        self.hold_back(id);
        id
    }

    /// Ends a stay with the waiting transactions that was in vain.
    fn give_up_stay(&mut self, id: WaitingId) {
        if let Some(waiting) = &mut self.waiting[id] {
            waiting.was_robbed = true;
        }
        self.end_waiting(id);
    }

    /// Holds a waiting transaction back, which keeps nothing.
    pub(super) fn hold_back(&mut self, id: WaitingId) {
        let Some(waiting) = &mut self.waiting[id] else { return };
        (waiting.is_held_back, waiting.was_robbed) = (true, false);
        waiting.waiter.forgive_restart();
        self.held_back.push(id);
        self.most_under_way = self.most_under_way.min(self.under_way()).max(1);
    }

    /// What a transaction executes again only because it was robbed does not count.
    pub(super) fn forgive_if_robbed(&mut self, id: WaitingId) {
        if let Some(waiting) = self.waiting[id].as_mut().filter(|waiting| waiting.was_robbed) {
            waiting.waiter.forgive_restart();
        }
    }

    /// A transaction that was under way has ended, or goes on with other tuples: when as many as may be have, there may be one more.
    pub(super) fn one_went_well(&mut self) {
        if self.held_back.is_empty() {
            return;
        }
        self.went_well += 1;
        if self.went_well >= self.most_under_way {
            (self.most_under_way, self.went_well) = (self.most_under_way + 1, 0);
        }
    }

    /// Lets those held back go on, the oldest first, as far as there may be more under way.
    pub(super) fn let_in(&mut self) {
        while let Some((at, age)) = self.oldest_held_back() {
            let is_oldest = || {
                let others = (0..self.waiting.len()).filter(|&id| self.is_under_way(id));
                others.filter_map(|id| self.waiting[id].as_ref()).all(|other| other.age > age)
            };
            if self.under_way() >= self.most_under_way && !is_oldest() {
                return;
            }
            let id = self.held_back.swap_remove(at);
            if let Some(waiting) = &mut self.waiting[id] {
                waiting.is_held_back = false;
                self.ready.push_back(id);
            }
        }
        (self.most_under_way, self.went_well) = (usize::MAX, 0);
    }

    fn oldest_held_back(&self) -> Option<(usize, Age)> {
        let held_back = self.held_back.iter().enumerate();
        held_back.filter_map(|(at, &id)| Some((at, self.waiting[id].as_ref()?.age))).min_by_key(|&(_, age)| age)
    }

    /// Re-queues a transaction of this partition alone until others have ended.
    pub(super) fn queue_behind(&mut self, invocation: Invocation<'_>) {
        let (age, before) = (self.settled_age(invocation.age), self.running.take());
        self.park_until_others_end(invocation.to_waiter(), age, before);
    }

    /// What is to become of waiting transactions whose blocks are all here, or whose memory may be.
    pub(crate) fn blocks_came(&mut self, id: WaitingId) {
        let Some(waiting) = &self.waiting[id] else { return };
        if waiting.was_robbed && waiting.problem.is_none() {
            self.hold_back(id);
        } else {
            self.ready.push_back(id);
        }
    }
}

/// Of a request that was parked at several partitions.
pub(super) fn age_of(request: &Arc<super::multi::MultiRequest>) -> Age {
    Age::of_request(request.id())
}
