//! Running a multi-partition transaction, given the partitions; no threads here.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::coordinator::{Coordinator, Item, Work};
use super::{MultiRequest, Outbox, lock};
use crate::catalog::TableId;
use crate::net::frame::{Status, begin_reply, finish_reply, write_reply};
use crate::partition::admission::age_of;
use crate::partition::room::Refusal;
use crate::partition::waiting::Waiter;
use crate::partition::{MAX_RESTARTS, Partition, Waiting, WaitingId};
use crate::procedure::Procedure;
use crate::txn::{Abort, TxnContext};

/// Items that are run in one meeting at most, so that the sockets and disks of its participants are looked at in between.
const MAX_RUN: usize = 32;

/// How one execution ended.
pub(super) enum Attempt {
    /// The procedure has done its work; `unsynced` = its reply must wait for what it saw.
    Done { unsynced: bool },
    /// It has given up.
    Aborted { reason: Cow<'static, str>, unsynced: bool },
    /// The pre-pass is over.
    Evicted,
    /// A table at one of the participants, given by its place, needs memory.
    NeedMemory { place: usize, table: TableId },
}

/// What becomes of a request after it was run.
enum End {
    /// It has its reply.
    Answered,
    /// It will be queued again.
    Parked,
}

/// Executes a procedure once; `partitions` has the base partition first. Nothing is undone.
pub(super) fn attempt(
    partitions: &mut [&mut Partition],
    procedure: &dyn Procedure,
    params: &[u8],
    reply: &mut Vec<u8>,
) -> Attempt {
    let Some((base, others)) = partitions.split_first_mut() else {
        return Attempt::Aborted { reason: Cow::Borrowed("no partition"), unsynced: false };
    };
    let (sampled, awaited) = (base.sampler.choose(), base.awaited_by_readers);
    let mut txn = base.context(Some(reply), sampled);
    txn.peers = others.iter_mut().map(|partition| partition.context(None, sampled)).collect();
    let outcome = procedure.execute(&mut txn, params);
    txn.gather_replies();
    let mut contexts = std::iter::once(&txn).chain(&txn.peers);
    let short_of_memory = contexts.clone().position(|context| context.refused_for_memory);
    let unsynced = contexts.any(|context: &TxnContext<'_>| context.unsynced_seen & awaited != 0);
    match outcome {
        Ok(()) => Attempt::Done { unsynced },
        Err(Abort::User(reason)) => Attempt::Aborted { reason, unsynced },
        Err(Abort::Evicted) => Attempt::Evicted,
        Err(Abort::NeedMemory(table)) => Attempt::NeedMemory { place: short_of_memory.unwrap_or(0), table },
    }
}

pub(super) fn undo_all(partitions: &mut [&mut Partition]) {
    partitions.iter_mut().for_each(|partition| partition.undo_changes());
}

/// The partitions that an item wants, in its order.
fn in_order<'run>(partitions: &'run mut [&mut Partition], wanted: &[u16]) -> Vec<&'run mut Partition> {
    let place = |partition: &Partition| wanted.iter().position(|&id| u32::from(id) == partition.id());
    let found = partitions.iter_mut().filter_map(|partition| Some((place(partition)?, &mut **partition)));
    let mut found: Vec<(usize, &mut Partition)> = found.collect();
    found.sort_by_key(|&(place, _)| place);
    found.into_iter().map(|(_, partition)| partition).collect()
}

/// Runs everything queued at a site whose partitions are all here, in one thread: for tests and tools.
pub fn run_queued(site: &Coordinator, partitions: &mut [&mut Partition]) {
    let all: Vec<u16> = partitions.iter().map(|partition| partition.id() as u16).collect();
    while let Some(item) = site.take_next_within(&all) {
        site.run(&item, &mut in_order(partitions, &item.participants));
    }
}

impl Coordinator {
    /// Runs an item that is next at all its participants, and then what follows for them.
    pub(super) fn run_with_next(&self, item: &Item, partitions: &mut [&mut Partition]) {
        self.take(item);
        self.run(item, partitions);
        for _ in 1..MAX_RUN {
            let Some(next) = self.take_next_within(&item.participants) else {
                return;
            };
            self.run(&next, &mut in_order(partitions, &next.participants));
        }
    }

    fn run(&self, item: &Item, partitions: &mut [&mut Partition]) {
        match &item.work {
            Work::Transaction(request) => {
                let mut frame = Vec::new();
                let end = self.run_transaction(item, request, partitions, &mut frame);
                if matches!(end, End::Answered) {
                    partitions.iter_mut().for_each(|partition| partition.unpark_multi(request.id));
                }
                if matches!(end, End::Answered) && !frame.is_empty() {
                    partitions[0].answer_multi(request, frame);
                }
            }
            Work::Barrier(each) => {
                partitions.iter_mut().for_each(|partition| each(partition));
                self.answered();
            }
        }
    }

    /// Runs a transaction until it has ended or waits. A reply that may go out at once is left in `frame`.
    fn run_transaction(
        &self,
        item: &Item,
        request: &Arc<MultiRequest>,
        partitions: &mut [&mut Partition],
        frame: &mut Vec<u8>,
    ) -> End {
        if let Some(reason) = lock(&request.problem).take() {
            return refuse(partitions, request, &reason, frame);
        }
        let procedures = partitions[0].procedures.clone();
        let Some(procedure) = procedures.get(request.procedure) else {
            return refuse(partitions, request, "no such procedure", frame);
        };
        let restarts_before = request.restarts.load(Ordering::Relaxed);
        loop {
            // Looked at before each attempt: while room was made for this one, a log may have failed.
            let failure = |partition: &&mut Partition| partition.failure.clone().or(self.failure(partition.id()));
            if let Some(reason) = partitions.iter().find_map(failure) {
                return refuse(partitions, request, &reason, frame);
            }
            frame.clear();
            let start = begin_reply(frame, request.origin.token);
            match attempt(partitions, procedure, &request.params, frame) {
                Attempt::Done { unsynced } => {
                    finish_reply(frame, start, Status::Committed);
                    partitions[0].counters.committed += 1;
                    partitions[0].counters.multi_partition += 1;
                    self.commit(item, request, partitions, unsynced, frame);
                    return End::Answered;
                }
                Attempt::Aborted { reason, unsynced } => {
                    undo_all(partitions);
                    partitions[0].counters.aborted += 1;
                    frame.clear();
                    write_reply(frame, request.origin.token, Status::Aborted, reason.as_bytes());
                    self.commit(item, request, partitions, unsynced, frame);
                    return End::Answered;
                }
                Attempt::Evicted => {
                    undo_all(partitions);
                    return park(partitions, request, frame);
                }
                Attempt::NeedMemory { place, table } => {
                    undo_all(partitions);
                    let restarts = request.restarts.fetch_add(1, Ordering::Relaxed);
                    match with_outbox(partitions[place], |partition, outbox| {
                        partition.make_room_to_rerun(usize::from(table), (restarts, age_of(request)), outbox)
                    }) {
                        Ok(()) => {}
                        Err(Refusal::AfterRelease) => {
                            request.pending.store(1, Ordering::Release);
                            // It counts if it got memory that did not suffice, not that it waits.
                            request.restarts.store(restarts.min(restarts_before + 1), Ordering::Relaxed);
                            partitions[place].forget_wants();
                            let id = partitions[place]
                                .park_until_release(Waiter::Multi(Arc::clone(request)), age_of(request));
                            partitions[place].remember_parked(request.id, id);
                            return End::Parked;
                        }
                        Err(Refusal::AfterOthers) => {
                            request.pending.store(1, Ordering::Release);
                            // What it got so far was not all that it needs, and it keeps nothing of it.
                            request.restarts.store(restarts_before + 1, Ordering::Relaxed);
                            let waiter = Waiter::Multi(Arc::clone(request));
                            let before = partitions[place].forget_parked(request.id);
                            let id = partitions[place].park_until_others_end(waiter, age_of(request), before);
                            partitions[place].remember_parked(request.id, id);
                            return End::Parked;
                        }
                        Err(Refusal::Never(reason)) => return refuse(partitions, request, &reason, frame),
                    }
                }
            }
        }
    }

    /// Logs what wrote at every participant and marks its tuples; keeps the reply where it must wait.
    fn commit(
        &self,
        item: &Item,
        request: &MultiRequest,
        partitions: &mut [&mut Partition],
        unsynced: bool,
        frame: &mut Vec<u8>,
    ) {
        let wrote = partitions.iter().any(|partition| !partition.undo.is_empty());
        if partitions[0].log.is_some() && (wrote || unsynced) {
            self.executed(item.number, &item.participants);
            partitions[0].hold_multi(item.number, request, std::mem::take(frame));
            for partition in partitions.iter_mut() {
                let Some(log) = &mut partition.log else { continue };
                let mark = if wrote {
                    log.append_multi(request.procedure, item.number, &item.participants, &request.params)
                } else {
                    0
                };
                if !log.note_multi(item.number, partition.unresolved_group.is_some()) {
                    self.durable(partition.id() as u16, item.number);
                }
                if wrote {
                    partition.mark_changes(mark);
                }
            }
        }
        for partition in partitions.iter_mut() {
            partition.forget_changes();
            partition.forget_wants();
        }
    }
}

fn refuse(partitions: &mut [&mut Partition], request: &MultiRequest, reason: &str, frame: &mut Vec<u8>) -> End {
    partitions[0].counters.failed += 1;
    partitions.iter_mut().for_each(|partition| {
        partition.forget_wants();
    });
    frame.clear();
    write_reply(frame, request.origin.token, Status::Failed, reason.as_bytes());
    End::Answered
}

/// The end of a pre-pass at several partitions: at each of them, what was touched in memory is made the hottest and pinned, and blocks requested.
fn park(partitions: &mut [&mut Partition], request: &Arc<MultiRequest>, frame: &mut Vec<u8>) -> End {
    let fetching = partitions.iter().filter(|partition| !partition.footprint.evicted.is_empty()).count();
    if fetching == 0 {
        let reason = "its procedure says that it met evicted tuples, but looked up none";
        return refuse(partitions, request, reason, frame);
    }
    if request.restarts.fetch_add(1, Ordering::Relaxed) >= MAX_RESTARTS {
        let reason = format!(
            "given up after {MAX_RESTARTS} restarts: its evicted tuples do not stay in memory together; the budget of each partition is {} bytes",
            partitions[0].meter.budget_bytes()
        );
        return refuse(partitions, request, &reason, frame);
    }
    partitions[0].counters.restarted += 1;
    request.pending.store(fetching as u32, Ordering::Release);
    for partition in partitions.iter_mut() {
        let id = partition.park(Waiting::new(Waiter::Multi(Arc::clone(request)), age_of(request)));
        partition.keep_footprint(id);
        partition.remember_parked(request.id, id);
    }
    End::Parked
}

/// Does something that may release replies of a partition whose connections are elsewhere.
fn with_outbox<T>(partition: &mut Partition, work: impl FnOnce(&mut Partition, &mut Outbox) -> T) -> T {
    let mut outbox = partition.link.as_mut().map(|link| std::mem::take(&mut link.outbox)).unwrap_or_default();
    let result = work(partition, &mut outbox);
    if let Some(link) = &mut partition.link {
        link.outbox = outbox;
    }
    result
}

impl Partition {
    /// Notes where a request waits; what it kept until now is given up.
    fn remember_parked(&mut self, request: u64, id: WaitingId) {
        let before = self.link.as_mut().and_then(|link| link.parked.insert(request, id));
        if let Some(before) = before {
            self.forgive_if_robbed(before);
            self.end_waiting(before);
        }
    }

    /// Where a request waits, if it does; whoever asks ends its stay.
    fn forget_parked(&mut self, request: u64) -> Option<WaitingId> {
        self.link.as_mut().and_then(|link| link.parked.remove(&request))
    }

    /// Ends a request's stay with the waiting transactions.
    fn unpark_multi(&mut self, request: u64) {
        if let Some(id) = self.forget_parked(request) {
            self.end_waiting(id);
        }
    }

    fn hold_multi(&mut self, number: u64, request: &MultiRequest, frame: Vec<u8>) {
        self.waiting_bytes -= request.waiting_bytes();
        if let Some(link) = &mut self.link {
            link.held.push_back((number, request.origin, frame));
        }
        if let Some(reason) = self.failure.clone() {
            self.fail_held(&reason);
        }
    }

    /// A reply that its owner sends when it polls next.
    fn answer_multi(&mut self, request: &MultiRequest, frame: Vec<u8>) {
        self.waiting_bytes -= request.waiting_bytes();
        if let Some(link) = &mut self.link {
            link.answers.push((request.origin, frame));
        }
    }

    /// Answers an item that nobody will run, because a participant's thread has ended.
    pub(super) fn drop_item(&mut self, item: &Item, site: &Coordinator) {
        site.give_up_front(self.id);
        match &item.work {
            Work::Transaction(request) => {
                self.unpark_multi(request.id);
                if u32::from(item.participants[0]) == self.id {
                    let mut frame = Vec::new();
                    refuse(&mut [self], request, "the thread of a partition that takes part has ended", &mut frame);
                    self.answer_multi(request, frame);
                }
            }
            Work::Barrier(_) => {}
        }
    }
}
