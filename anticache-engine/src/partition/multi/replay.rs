//! Multi-partition transactions again, from the logs.
//!
//! Partitions replay their logs side by side; at the record of a multi-partition transaction each waits for the other participants, and one runs it with
//! all of them. The records that recovery keeps stand in one order in all logs, so nobody waits in a circle.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

use super::coordinator::Coordinator;
use super::execute::{Attempt, attempt, undo_all};
use super::meeting::{Chair, Meeting};
use super::{Outbox, lock};
use crate::partition::replay::{ATTEMPTS_WITHIN_BUDGET, MAX_ATTEMPTS};
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
    let (mut reply, mut refused) = (Vec::new(), 0);
    for restarts in 0..=MAX_RESTARTS {
        reply.clear();
        match attempt(partitions, known, params, &mut reply) {
            Attempt::Done { .. } => {
                for partition in partitions.iter_mut() {
                    partition.forget_changes();
                    partition.forget_wants();
                    partition.repay_memory();
                }
                return Ok(());
            }
            Attempt::Aborted { reason, .. } => {
                undo_all(partitions);
                return Err(format!("{procedure} aborts: {reason}"));
            }
            Attempt::Evicted => {
                undo_all(partitions);
                if let Err(problem) = fetch(partitions) {
                    // It committed before, so memory sufficed; what else a fetch may lack does not come back by itself.
                    let borrowed = partitions.iter_mut().map(|partition| partition.borrow_memory());
                    if borrowed.filter(|&is_first| is_first).count() == 0 {
                        return Err(format!("{procedure}: {problem}"));
                    }
                }
            }
            Attempt::NeedMemory { place, table } => {
                undo_all(partitions);
                let room = partitions[place].make_room_to_rerun(
                    usize::from(table),
                    (restarts, Age::OLDEST),
                    &mut Outbox::default(),
                );
                if let Err(refusal) = room {
                    // It committed before, so memory sufficed: but not always the memory that others hold at this moment.
                    partitions.iter_mut().for_each(|partition| partition.settle());
                    refused += 1;
                    if refused == ATTEMPTS_WITHIN_BUDGET {
                        partitions.iter_mut().for_each(|partition| {
                            partition.borrow_memory();
                        });
                    }
                    if refused == MAX_ATTEMPTS {
                        return Err(format!("{procedure}: {refusal}"));
                    }
                }
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

/// A multi-partition transaction of a log.
#[derive(Debug, Clone, Copy)]
pub struct LoggedMulti<'log> {
    /// Its number.
    pub transaction: u64,
    /// Its participants, the base partition first.
    pub participants: &'log [u16],
    /// Name of its procedure.
    pub procedure: &'log str,
    /// Its parameters.
    pub params: &'log [u8],
}

/// Why a logged transaction was not replayed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// For this reason.
    #[error("{0}")]
    Problem(String),
    /// Another participant has given up replaying its log, for a reason that it knows.
    #[error("another partition has given up")]
    Abandoned,
}

/// Where the threads that replay a site's logs meet.
pub struct ReplayMeetings {
    site: Coordinator,
    meetings: Mutex<HashMap<u64, Arc<ReplayMeeting>>>,
}

struct ReplayMeeting {
    participants: Box<[u16]>,
    meeting: Meeting,
    outcome: Mutex<Result<(), String>>,
}

/// A thread's place among those that replay. Whoever meets it when it was dropped waits in vain, and is told so.
pub struct ReplaySeat<'site> {
    meetings: &'site ReplayMeetings,
    partition: u32,
    /// The event of the partition's ring.
    disk: OwnedFd,
}

impl Drop for ReplaySeat<'_> {
    fn drop(&mut self) {
        self.meetings.site.leave(self.partition);
    }
}

impl ReplayMeetings {
    /// For so many partitions.
    ///
    /// # Errors
    /// When the system gives no event objects.
    pub fn new(partitions: u32) -> io::Result<Self> {
        Ok(Self { site: Coordinator::new(partitions, 1)?, meetings: Mutex::default() })
    }

    /// The place of the thread that replays a partition's log.
    ///
    /// # Errors
    /// When the partition's event object cannot be shared.
    pub fn seat(&self, partition: &Partition) -> io::Result<ReplaySeat<'_>> {
        let disk = partition.ring().event().try_clone_to_owned()?;
        Ok(ReplaySeat { meetings: self, partition: partition.id(), disk })
    }

    fn meeting(&self, logged: &LoggedMulti<'_>) -> Arc<ReplayMeeting> {
        let new = || {
            let (participants, meeting) = (Box::from(logged.participants), Meeting::new(logged.participants.len()));
            Arc::new(ReplayMeeting { participants, meeting, outcome: Mutex::new(Ok(())) })
        };
        Arc::clone(lock(&self.meetings).entry(logged.transaction).or_insert_with(new))
    }
}

impl ReplaySeat<'_> {
    /// Takes part in a logged transaction; the one who comes last executes it for all.
    ///
    /// # Errors
    /// As [`replay_multi`], at all participants, or that another thread has given up; the partition comes back unless that thread died with it.
    pub fn replay(
        &self,
        partition: Box<Partition>,
        logged: &LoggedMulti<'_>,
    ) -> (Option<Box<Partition>>, Result<(), ReplayError>) {
        let LoggedMulti { transaction, participants, procedure, params } = *logged;
        let meeting = self.meetings.meeting(logged);
        let place = participants.iter().position(|&participant| u32::from(participant) == self.partition);
        let Some(place) = place.filter(|_| *meeting.participants == *participants) else {
            let problem = format!(
                "the log of partition {} says that transaction {transaction} took place at partitions {participants:?}, another log {:?}",
                self.partition, meeting.participants
            );
            return (Some(partition), Err(ReplayError::Problem(problem)));
        };
        let run = |partitions: &mut [&mut Partition]| {
            *lock(&meeting.outcome) = replay_multi(partitions, procedure, params);
            lock(&self.meetings.meetings).remove(&transaction);
        };
        let chair = Chair { meeting: &meeting.meeting, participants, place, disk: self.disk.as_fd() };
        match self.meetings.site.come_together(chair, partition, &mut Outbox::default(), run) {
            Ok((partition, _)) => (Some(partition), lock(&meeting.outcome).clone().map_err(ReplayError::Problem)),
            Err(partition) => (partition, Err(ReplayError::Abandoned)),
        }
    }
}
