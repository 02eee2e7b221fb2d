//! Transactions on several partitions, and barriers across all of them (paper §2, §3.5).
//!
//! **Order.** A transaction that touches more than one partition gets a number, its timestamp, from the site's [`Coordinator`], which appends it in
//! one step to the queues of all its participants. So all partitions see these transactions in one order, and nobody ever waits in a circle:
//! there are no locks, and no deadlocks to detect.
//!
//! **Execution.** A participant that reaches such a transaction says so, and goes on with transactions of its own until all have reached it
//! ([`Coordinator::due`]): until then nothing of it has happened anywhere. From then on it executes no others until it has ended (the paper's
//! rule), so that what it waits for is at most the few requests which the others have begun. It lends its whole [`Partition`], by moving it, to the
//! meeting of the participants; the last to arrive runs the procedure with all of them and gives them back ([`Coordinator::meet`]). While it waits, a
//! participant takes its partition back for a moment whenever its disk has done something: durability never waits for a meeting. What comes
//! next in the queues of the same participants is run in the same meeting.
//!
//! **Evicted tuples.** When the procedure meets some at any participant, it is rolled back everywhere; each participant pins what was touched in
//! memory and fetches its blocks, while it goes on with other work. When the last block of all participants is merged, the transaction is queued
//! again, with a new number. The pins are released when it runs. Restarts are bounded as for other transactions.
//!
//! **Durability.** Every participant logs the transaction, the base partition (where the request arrived) first among the participants, because the
//! procedure is replayed with that one's context. Each log is synced when its own group is due, so after a crash the record may be in some of them
//! only. Then the transaction did not happen, and whatever stands behind it in the logs that have it may have seen what did not happen: recovery cuts
//! these logs there ([`crate::durability::multi_recovery`]). Hence nobody may be told of
//! - the transaction itself, before it is durable at all its participants: one log may still lose it;
//! - a later write at one of them, although durable there: it goes when the transaction goes;
//! - anything read from either.
//!
//! And a later multi-partition transaction, although durable everywhere, goes when at one of its participants an earlier one goes. So: a
//! transaction is *resolved* when it is durable at all its participants and every multi-partition transaction before it, at each of them, is
//! resolved. Only then no crash can take it back: let a cut fall at or before it, at some partition; a cut falls on a record missing elsewhere, or on
//! one that is behind another cut; following these back one comes to a record missing in a log, of a transaction that is resolved by the definition
//! and therefore durable in that log, a contradiction. [`votes::Votes`] computes this; its test compares it with what recovery keeps.
//!
//! A log group that holds (parts of) unresolved transactions is kept, when it is durable, until they are resolved: its tuples stay flagged, so that
//! whoever reads them waits with it, its replies stay held, and the next group is written only then. That next groups wait couples the pace of
//! the participants' logs; it cannot make them wait for each other in a circle, because the lowest unresolved number is, at every participant, in
//! the group that is being written or in the one under construction with no group kept before it. A transaction that wrote nothing but saw what
//! is not durable is counted among the unresolved ones without a record.
//!
//! **Snapshots.** A snapshot begins at all partitions in a barrier, so a transaction is in the parts of all its participants or of none, executed and
//! perhaps not resolved. It counts only when every partition's log is durable up to where its part begins
//! ([`crate::durability::snapshot`]), and then everything in it is resolved.
//!
//! **Failures.** When the log of a partition fails, the unresolved transactions that it took part in fail, and with them the logs of their
//! participants, for the reason above. Partitions that it shares none with go on.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::waiting::WAITER_BYTES;
use super::{Invocation, Origin, Partition, ReplySink, WaitingId};
use crate::net::frame::{Status, write_reply};
use crate::procedure::{Participants, Procedure};

mod coordinator;
mod execute;
mod meeting;
mod replay;
pub mod votes;

pub use coordinator::{Coordinator, Item};
pub use execute::run_queued;
pub use replay::{LoggedMulti, ReplayError, ReplayMeetings, ReplaySeat, replay_multi};

/// A panic elsewhere ends its own thread, which is reported; what it guarded is consistent between statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request for several partitions, from its arrival to its reply.
#[derive(Debug)]
pub(crate) struct MultiRequest {
    /// Its name among the parked ones: the first number that it got is not known when it is made, so this is counted apart.
    id: u64,
    origin: Origin,
    procedure: u16,
    params: Vec<u8>,
    /// The base partition, then the others in ascending order.
    participants: Arc<[u16]>,
    restarts: AtomicU32,
    /// Participants that fetch blocks for it.
    pending: AtomicU32,
    /// Why a block of it cannot be had.
    problem: Mutex<Option<String>>,
}

impl MultiRequest {
    /// Its number among the site's requests, in the order of their arrival.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// What it takes of memory until it is answered, at the partition that it was sent to.
    fn waiting_bytes(&self) -> u64 {
        WAITER_BYTES + self.params.len() as u64
    }

    /// Does not count the restart that follows, or the last one: it is for the sake of an older transaction.
    pub(super) fn forgive_restart(&self) {
        let one_less = |restarts: u32| restarts.checked_sub(1);
        // With none counted, there is nothing to forgive.
        let _ = self.restarts.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
    }
}

/// Replies of a partition that were released while it was lent, by connection and epoch.
#[derive(Default)]
pub(crate) struct Outbox(Vec<(u32, u32, Vec<u8>)>);

impl ReplySink for Outbox {
    fn buffer(&mut self, connection: u32, epoch: u32) -> &mut Vec<u8> {
        let found = self.0.iter().position(|&(c, e, _)| (c, e) == (connection, epoch));
        let at = found.unwrap_or_else(|| {
            self.0.push((connection, epoch, Vec::new()));
            self.0.len() - 1
        });
        &mut self.0[at].2
    }
}

/// A partition's side of the multi-partition transactions.
pub(crate) struct Link {
    site: Arc<Coordinator>,
    outbox: Outbox,
    /// Replies that can go out.
    answers: Vec<(Origin, Vec<u8>)>,
    /// Replies that wait until their transactions are resolved, in the order of their numbers.
    held: VecDeque<(u64, Origin, Vec<u8>)>,
    /// Where the requests that were rolled back here wait, with their pins.
    parked: HashMap<u64, WaitingId>,
    /// Requests of a connection and epoch that are not answered.
    owed: HashMap<(u32, u32), u32>,
}

impl Link {
    fn new(site: Arc<Coordinator>) -> Self {
        Self {
            site,
            outbox: Outbox::default(),
            answers: Vec::new(),
            held: VecDeque::new(),
            parked: HashMap::new(),
            owed: HashMap::new(),
        }
    }

    /// The number of the site's next multi-partition request.
    pub(super) fn requests_so_far(&self) -> u64 {
        self.site.next_request_id()
    }

    fn is_idle(&self) -> bool {
        self.owed.is_empty() && self.parked.is_empty()
    }
}

impl Partition {
    /// Makes it one of the partitions of a site.
    pub fn join(&mut self, site: &Arc<Coordinator>) {
        self.site_partitions = site.partitions();
        self.link = Some(Box::new(Link::new(Arc::clone(site))));
    }

    /// Queues a request that touches other partitions; false when it is for this one alone.
    #[inline]
    pub(super) fn divert<S: ReplySink>(&mut self, invocation: Invocation<'_>, sink: &mut S) -> bool {
        if self.site_partitions == 1 {
            return false;
        }
        let Some(procedure) = self.procedures.get(invocation.procedure) else {
            return false;
        };
        let participants = procedure.partitions(invocation.params, self.site_partitions);
        if participants.is_only(self.id) {
            return false;
        }
        self.divert_to(participants, invocation, sink);
        true
    }

    #[cold]
    fn divert_to<S: ReplySink>(&mut self, participants: Participants, invocation: Invocation<'_>, sink: &mut S) {
        let (id, partitions) = (self.id, self.site_partitions);
        let name = self.procedures.get(invocation.procedure).map_or("", Procedure::name);
        let beyond = participants.iter().find(|&partition| partition >= partitions);
        let refusal = if let Some(beyond) = beyond {
            format!("{name} names partition {beyond}; there are {partitions}")
        } else if !participants.contains(id) {
            let all: Vec<u32> = participants.iter().collect();
            format!("{name} was sent to partition {id} and takes place at {all:?}: send it to one of these")
        } else {
            let others = participants.iter().filter(|&partition| partition != id);
            let participants = std::iter::once(id).chain(others).map(|partition| partition as u16).collect();
            return self.submit_multi(invocation, participants);
        };
        self.refuse(invocation.origin, &refusal, sink);
    }

    fn submit_multi(&mut self, invocation: Invocation<'_>, participants: Arc<[u16]>) {
        let Some(link) = &mut self.link else { return };
        *link.owed.entry((invocation.origin.connection, invocation.origin.epoch)).or_insert(0) += 1;
        let request = MultiRequest {
            id: link.site.new_request_id(),
            origin: invocation.origin,
            procedure: invocation.procedure,
            params: invocation.params.to_vec(),
            participants,
            restarts: AtomicU32::new(0),
            pending: AtomicU32::new(0),
            problem: Mutex::new(None),
        };
        let (site, bytes) = (Arc::clone(&link.site), request.waiting_bytes());
        self.count_waiting(bytes);
        site.submit_new(request);
    }

    /// A participant has everything that it fetched for a request; the last one queues it again. Its pins stay until it runs.
    pub(super) fn multi_ready(&self, request: Arc<MultiRequest>, problem: Option<String>) {
        let Some(link) = &self.link else { return };
        if let Some(problem) = problem {
            lock(&request.problem).get_or_insert(problem);
        }
        if request.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
            link.site.submit(request);
        }
    }

    /// Tells the site that a log group is durable.
    pub(super) fn vote(&self, through: Option<u64>) {
        if let (Some(link), Some(through)) = (&self.link, through) {
            link.site.durable(self.id as u16, through);
        }
    }

    /// Above the number of every multi-partition transaction so far; 1 in a partition that is alone.
    pub(crate) fn next_transaction(&self) -> u64 {
        self.link.as_ref().map_or(1, |link| link.site.next_number())
    }

    /// Whether every multi-partition transaction that this partition executed up to a number is resolved.
    pub(super) fn is_resolved(&self, through: Option<u64>) -> bool {
        let (Some(link), Some(through)) = (&self.link, through) else {
            return true;
        };
        link.site.resolved_through(self.id) >= through
    }

    /// Hands out what became ready while the partition was lent, or by what others did.
    pub(super) fn settle_multi<S: ReplySink>(&mut self, sink: &mut S) {
        let Some(link) = &self.link else { return };
        if self.failure.is_none()
            && let Some(reason) = link.site.failure(self.id)
        {
            self.fail(reason, sink);
        }
        self.release_group(sink);
        let Some(link) = &mut self.link else { return };
        if !link.held.is_empty() {
            let resolved = link.site.resolved_through(self.id);
            while link.held.front().is_some_and(|&(number, ..)| number <= resolved) {
                link.answers.extend(link.held.pop_front().map(|(_, origin, frame)| (origin, frame)));
            }
        }
        for (connection, epoch, frames) in link.outbox.0.drain(..) {
            sink.buffer(connection, epoch).extend_from_slice(&frames);
        }
        for (origin, frame) in link.answers.drain(..) {
            sink.buffer(origin.connection, origin.epoch).extend_from_slice(&frame);
            link.site.answered();
            if let Some(count) = link.owed.get_mut(&(origin.connection, origin.epoch)) {
                *count -= 1;
                if *count == 0 {
                    link.owed.remove(&(origin.connection, origin.epoch));
                }
            }
        }
    }

    /// The log has failed: what waits for it to be resolved fails, and whoever shares unresolved transactions with this partition learns of it.
    pub(super) fn fail_multi(&mut self, reason: &str) {
        let Some(link) = &self.link else { return };
        link.site.fail(self.id as u16, reason);
        self.fail_held(reason);
    }

    /// What waits to be resolved fails.
    fn fail_held(&mut self, reason: &str) {
        let Some(link) = &mut self.link else { return };
        for (_, origin, mut frame) in link.held.drain(..) {
            self.counters.failed += 1;
            frame.clear();
            write_reply(&mut frame, origin.token, Status::Failed, reason.as_bytes());
            link.answers.push((origin, frame));
        }
    }

    /// Waits until others, or the disk, let the log group go that is kept for them. Their logs do not wait for this partition to execute anything.
    pub(super) fn await_release<S: ReplySink>(&mut self, sink: &mut S) {
        if let Some(link) = &self.link {
            link.site.sleep(self.id, Some(self.ring.event()));
        }
        self.poll_disk(sink);
    }

    /// Whether no multi-partition transaction is under way here.
    pub(super) fn is_multi_idle(&self) -> bool {
        self.link.as_ref().is_none_or(|link| link.is_idle() && link.site.front(self.id).is_none())
    }

    /// Whether a multi-partition request of a connection is not answered.
    pub(super) fn owes_multi(&self, connection: u32, epoch: u32) -> bool {
        self.link.as_ref().is_some_and(|link| link.owed.contains_key(&(connection, epoch)))
    }
}
