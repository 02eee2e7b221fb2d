//! Multi-partition transactions again, from the logs.
//!
//! Partitions replay their logs side by side; at the record of a multi-partition transaction each waits for the other participants, and one runs it with
//! all of them. The records that recovery keeps stand in one order in all logs, so nobody waits in a circle.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use super::coordinator::Coordinator;
use super::execute::{Attempt, attempt, undo_all};
use super::meeting::Meeting;
use super::{Outbox, lock};
use crate::partition::waiting::Waiter;
use crate::partition::{Age, MAX_RESTARTS, Partition, Waiting};

/// Executes a logged transaction, which committed when it was logged, and nothing is logged or answered. `partitions` has its participants in the
/// order of the record, the base partition first. Waits for the disk where tuples are evicted or memory is short.
///
/// # Errors
/// Why it does not commit this time.
pub fn replay_multi(partitions: &mut [&mut Partition], procedure: &str, params: &[u8]) -> Result<(), String> {
    let Some(procedures) = partitions.first().map(|base| base.procedures.clone()) else {
        return Err("a multi-partition transaction without participants".to_owned());
    };
    let number = procedures.number(procedure);
    let known = number.and_then(|number| procedures.get(number)).ok_or_else(|| format!("no procedure {procedure}"))?;
    let mut reply = Vec::new();
    for restarts in 0..=MAX_RESTARTS {
        reply.clear();
        match attempt(partitions, known, params, &mut reply) {
            Attempt::Done { .. } => {
                for partition in partitions.iter_mut() {
                    partition.forget_changes();
                    partition.forget_wants();
                }
                return Ok(());
            }
            Attempt::Aborted { reason, .. } => {
                undo_all(partitions);
                return Err(format!("{procedure} aborts: {reason}"));
            }
            Attempt::Evicted => {
                undo_all(partitions);
                fetch(partitions).map_err(|problem| format!("{procedure}: {problem}"))?;
            }
            Attempt::NeedMemory { place, table } => {
                undo_all(partitions);
                let room = partitions[place].make_room_to_rerun(usize::from(table), (restarts, Age::OLDEST), &mut Outbox::default());
                room.map_err(|refusal| format!("{procedure}: {refusal}"))?;
            }
        }
    }
    Err(format!("{procedure}: given up after {MAX_RESTARTS} restarts: its tuples do not stay in memory together"))
}

/// Fetches what the execution before has met, at all partitions together, and keeps in memory what it touched until everything is there.
fn fetch(partitions: &mut [&mut Partition]) -> Result<(), String> {
    let ids: Vec<_> = partitions
        .iter_mut()
        .map(|partition| {
            let id = partition.park(Waiting::new(Waiter::Replay, Age::OLDEST));
            partition.keep_footprint(id);
            partition.start_fetches();
            id
        })
        .collect();
    let mut outcome = Ok(());
    for (partition, &id) in partitions.iter_mut().zip(&ids) {
        outcome = partition.wait_for_blocks(id).and(outcome);
    }
    for (partition, id) in partitions.iter_mut().zip(ids) {
        partition.end_waiting(id);
    }
    outcome
}

/// Where the threads that replay a site's logs meet.
#[derive(Default)]
pub struct ReplayMeetings {
    meetings: Mutex<HashMap<u64, Arc<ReplayMeeting>>>,
}

struct ReplayMeeting {
    meeting: Meeting,
    outcome: Mutex<Result<(), String>>,
}

impl ReplayMeetings {
    /// Takes part in a logged transaction; the one who comes last executes it for all. `disk` is the event of the partition's ring. A thread that gives
    /// up replaying must say so with [`Coordinator::leave`], because others may wait for it.
    ///
    /// # Errors
    /// As [`replay_multi`], at all participants, or that another thread has given up; the partition comes back unless that thread died with it.
    pub fn replay(
        &self,
        site: &Coordinator,
        partition: Box<Partition>,
        disk: BorrowedFd<'_>,
        transaction: u64,
        participants: &[u16],
        procedure: &str,
        params: &[u8],
    ) -> (Option<Box<Partition>>, Result<(), String>) {
        let id = partition.id();
        let Some(place) = participants.iter().position(|&participant| u32::from(participant) == id) else {
            let problem =
                format!("transaction {transaction} of partitions {participants:?} is in the log of partition {id}");
            return (Some(partition), Err(problem));
        };
        let meeting = Arc::clone(lock(&self.meetings).entry(transaction).or_insert_with(|| {
            Arc::new(ReplayMeeting { meeting: Meeting::new(participants.len()), outcome: Mutex::new(Ok(())) })
        }));
        let run = |partitions: &mut [&mut Partition]| {
            *lock(&meeting.outcome) = replay_multi(partitions, procedure, params);
            lock(&self.meetings).remove(&transaction);
        };
        let mut sink = Outbox::default();
        match site.come_together(&meeting.meeting, participants, place, partition, disk, &mut sink, run) {
            Ok((partition, _)) => (Some(partition), lock(&meeting.outcome).clone()),
            Err(partition) => (partition, Err(format!("transaction {transaction}: another partition has given up"))),
        }
    }
}
