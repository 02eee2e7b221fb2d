//! The second step of recovery: the command logs of all partitions are run again, from where the snapshots begin.
//!
//! With one partition its log is run again, record by record, while a thread beside reads and checks what follows ([`super::beside`]). With several:
//! 1. every log is read for its records of multi-partition transactions; from these follows where each log must be cut
//!    ([`super::multi_recovery`]): what a crash has left of a transaction in some logs and not in others did not happen;
//! 2. every log is read again up to its cut and run, each partition in a thread of its own; at the record of a multi-partition transaction its
//!    participants' threads meet ([`ReplayMeetings`]). The kept records of these stand in ascending order of their numbers in every log, and each in the
//!    logs of all participants, so nobody waits in a circle or in vain.
//!
//! Reading twice needs no memory for the log, only for the names of its multi-partition transactions. On a simulated disk, where the order of everything
//! must follow from the seed, the logs are kept and run by one thread instead.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use super::log_reader::{LogSummary, Multi, Record, read_log_from};
use super::manifest::Part;
use super::multi_recovery::{MultiRecord, cuts};
use super::recovery::Site;
use super::snapshot::keeper::Keeper;
use crate::error::{RecoveryError, StartError};
use crate::partition::multi::{LoggedMulti, ReplayError, ReplayMeetings, ReplaySeat, replay_multi};
use crate::partition::{Partition, Replies};

/// Transactions replayed between two looks at what is under way at the disk.
const REPLAYED_BETWEEN_POLLS: u64 = 16;

/// Partitions in the state of their logs.
pub(super) struct Replayed {
    pub(super) partitions: Vec<Partition>,
    /// By partition. `records` are those replayed, and `next_sequence` is where the log goes on, at its cut when it has one.
    pub(super) logs: Vec<LogSummary>,
    /// Above the number of every multi-partition transaction found, kept or not.
    pub(super) next_transaction: u64,
}

/// Runs the logs again.
///
/// # Errors
/// When a log cannot be trusted, or a transaction of it does not commit again.
pub(super) fn replay_logs(site: Site<'_>, keeper: &Keeper, partitions: Vec<Partition>) -> Result<Replayed, StartError> {
    if site.files.is_simulated() {
        return in_one_thread(site, keeper, partitions);
    }
    let surveys = survey(site, keeper)?;
    let (next_transaction, cuts) = (next_transaction(&surveys), cuts(&surveys));
    drop(surveys);
    let meetings = ReplayMeetings::new(site.config.partitions);
    let meetings = meetings.map_err(StartError::system("create eventfds to replay the command logs"))?;
    let seats: Result<Vec<_>, _> = partitions.iter().map(|partition| meetings.seat(partition)).collect();
    let seats = seats.map_err(StartError::system("share the events of the partitions' disk I/O"))?;
    let all = partitions.into_iter().zip(seats).zip(cuts);
    let outcomes = site.each_partition(all.collect(), |((partition, seat), cut)| {
        let part = keeper.part(partition.id());
        let partition = Some(Box::new(partition));
        LogReplay { site, seat, partition, cut, records: 0, prefetched: 0, replies: Replies::default(), problem: None }
            .run(part)
    });
    // Who gave up because another one did knows no reason.
    let (mut done, mut abandoned) = (Vec::new(), None);
    for outcome in outcomes {
        match outcome {
            Ok(replayed) => done.push(replayed),
            Err(GaveUp::With(error)) => return Err(error.into()),
            Err(GaveUp::Abandoned(error)) => abandoned = Some(error),
        }
    }
    if let Some(error) = abandoned {
        return Err(error.into());
    }
    let (partitions, logs) = done.into_iter().unzip();
    Ok(Replayed { partitions, logs, next_transaction })
}

/// The multi-partition transactions in the logs, by partition. With one partition nothing is read, because there are none.
fn survey(site: Site<'_>, keeper: &Keeper) -> Result<Vec<Vec<MultiRecord>>, RecoveryError> {
    let partitions = site.config.partitions;
    if partitions == 1 {
        return Ok(vec![Vec::new()]);
    }
    let surveys = site.each_partition((0..partitions).collect(), |id| {
        let mut survey = Vec::new();
        read(site, id, keeper.part(id), |record| {
            survey.extend(checked(&record, id, partitions, survey.last())?);
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(survey)
    });
    surveys.into_iter().collect()
}

/// The record of a multi-partition transaction as such, when it can be one of this database; `last` is the one before it in the log.
fn checked(
    record: &Record<'_>,
    id: u32,
    partitions: u32,
    last: Option<&MultiRecord>,
) -> Result<Option<MultiRecord>, RecoveryError> {
    let Some(Multi { transaction, participants }) = record.multi.clone() else { return Ok(None) };
    let (sequence, refused) = (record.sequence, |problem: String| {
        let (sequence, participants) = (record.sequence, participants.clone());
        Err(RecoveryError::Participants { partition: id, sequence, transaction, participants, problem })
    });
    let mut distinct = participants.clone();
    distinct.sort_unstable();
    distinct.dedup();
    if distinct.last().is_some_and(|&highest| u32::from(highest) >= partitions) {
        return refused(format!("and the database has {partitions}"));
    }
    if distinct.len() < participants.len() || distinct.len() < 2 || !distinct.iter().any(|&own| u32::from(own) == id) {
        return refused("which must be different ones, this one among them".to_owned());
    }
    if let Some(last) = last.filter(|last| last.transaction >= transaction) {
        return refused(format!("and stands behind number {}", last.transaction));
    }
    Ok(Some(MultiRecord { sequence, transaction, participants }))
}

fn next_transaction(surveys: &[Vec<MultiRecord>]) -> u64 {
    surveys.iter().filter_map(|survey| survey.last()).map(|record| record.transaction + 1).max().unwrap_or(1)
}

/// Reads the log of a partition from its snapshot on, as far as `on_record` wants.
fn read(
    site: Site<'_>,
    id: u32,
    part: &Part,
    mut on_record: impl FnMut(Record<'_>) -> Result<ControlFlow<()>, RecoveryError>,
) -> Result<LogSummary, RecoveryError> {
    let directory: &Path = &site.config.data_dir;
    let mut problem = None;
    let summary = read_log_from(&**site.files, directory, id, part.sequence, |record| {
        on_record(record).unwrap_or_else(|error| {
            problem = Some(error);
            ControlFlow::Break(())
        })
    });
    if let Some(problem) = problem {
        return Err(problem);
    }
    let summary = summary?;
    match (part.first_segment, summary.last_segment) {
        (Some(first), last) if last.is_none_or(|last| last < first) => Err(RecoveryError::Directory {
            directory: directory.to_owned(),
            problem: format!("segment {first} of the command log of partition {id} is missing, and all behind it"),
        }),
        _ => Ok(summary),
    }
}

fn not_replayed(partition: u32, sequence: u64, procedure: &str, problem: String) -> RecoveryError {
    RecoveryError::Replay { partition, sequence, procedure: procedure.to_owned(), problem }
}

/// Runs a transaction of one partition again.
fn replay_single(
    partition: &mut Partition,
    procedure: &str,
    params: &[u8],
    replies: &mut Replies,
) -> Result<(), String> {
    let number = partition.procedures.number(procedure);
    let number = number.ok_or_else(|| "the server has no procedure of this name".to_owned())?;
    partition.replay(number, params, replies)
}

/// Why a thread did not replay its log to the end.
enum GaveUp {
    /// For this reason.
    With(RecoveryError),
    /// Another one gave up; this is where it was noticed.
    Abandoned(RecoveryError),
}

impl From<RecoveryError> for GaveUp {
    fn from(error: RecoveryError) -> Self {
        Self::With(error)
    }
}

/// The replay of one log in its thread.
struct LogReplay<'site> {
    site: Site<'site>,
    seat: ReplaySeat<'site>,
    /// None when it was lost with another thread.
    partition: Option<Box<Partition>>,
    cut: Option<u64>,
    records: u64,
    /// How many of the next records were prefetched.
    prefetched: usize,
    replies: Replies,
    problem: Option<GaveUp>,
}

impl LogReplay<'_> {
    fn run(mut self, part: &Part) -> Result<(Partition, LogSummary), GaveUp> {
        let Some(id) = self.partition.as_ref().map(|partition| partition.id()) else {
            return Err(RecoveryError::Load { partition: 0, problem: "there is none".to_owned() }.into());
        };
        let summary = read(self.site, id, part, |record| {
            if self.cut.is_some_and(|cut| record.sequence >= cut) {
                return Ok(ControlFlow::Break(()));
            }
            self.problem = self.replay(id, &record).err();
            self.records += u64::from(self.problem.is_none());
            Ok(if self.problem.is_none() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        });
        if let Some(problem) = self.problem {
            return Err(problem);
        }
        let summary = summary?;
        let next_sequence = self.cut.unwrap_or(summary.next_sequence);
        let summary = LogSummary { records: self.records, next_sequence, ..summary };
        match self.partition {
            Some(partition) => Ok((*partition, summary)),
            None => Err(RecoveryError::Load { partition: id, problem: "it was lost".to_owned() }.into()),
        }
    }

    fn replay(&mut self, id: u32, record: &Record<'_>) -> Result<(), GaveUp> {
        let (sequence, procedure) = (record.sequence, record.procedure);
        let with = |problem| not_replayed(id, sequence, procedure, problem);
        if let Some(partition) = self.partition.as_ref().filter(|_| self.prefetched == 0) {
            let this = std::iter::once((procedure, record.params));
            self.prefetched = partition.prefetch_replayed(this.chain(record.following.clone()));
        }
        self.prefetched = self.prefetched.saturating_sub(1);
        if let Some(Multi { transaction, participants }) = &record.multi {
            checked(record, id, self.site.config.partitions, None)?;
            let Some(partition) = self.partition.take() else { return Ok(()) };
            let (transaction, params) = (*transaction, record.params);
            let (back, outcome) =
                self.seat.replay(partition, &LoggedMulti { transaction, participants, procedure, params });
            self.partition = back;
            outcome.map_err(|error| match error {
                ReplayError::Problem(problem) => GaveUp::With(with(problem)),
                ReplayError::Abandoned => GaveUp::Abandoned(with(error.to_string())),
            })?;
        } else if let Some(partition) = &mut self.partition {
            replay_single(partition, procedure, record.params, &mut self.replies).map_err(with)?;
        }
        if let Some(partition) = self.partition.as_mut().filter(|_| sequence.is_multiple_of(REPLAYED_BETWEEN_POLLS)) {
            partition.poll_quietly();
        }
        Ok(())
    }
}

/// A record that is kept.
struct Logged {
    sequence: u64,
    procedure: String,
    /// The partitions that take part, the base partition first.
    participants: Vec<u16>,
    transaction: Option<u64>,
    params: Vec<u8>,
}

/// Does the same in one thread, in an order that depends on nothing else.
fn in_one_thread(site: Site<'_>, keeper: &Keeper, mut partitions: Vec<Partition>) -> Result<Replayed, StartError> {
    let (mut surveys, mut kept, mut logs) = (Vec::new(), Vec::new(), Vec::new());
    for id in 0..site.config.partitions {
        let (mut survey, mut records) = (Vec::new(), Vec::new());
        logs.push(read(site, id, keeper.part(id), |record| {
            let multi = checked(&record, id, site.config.partitions, survey.last())?;
            records.push(Logged {
                sequence: record.sequence,
                procedure: record.procedure.to_owned(),
                transaction: multi.as_ref().map(|multi| multi.transaction),
                participants: multi.as_ref().map_or(vec![id as u16], |multi| multi.participants.clone()),
                params: record.params.to_vec(),
            });
            survey.extend(multi);
            Ok(ControlFlow::Continue(()))
        })?);
        surveys.push(survey);
        kept.push(records);
    }
    for ((records, log), cut) in kept.iter_mut().zip(&mut logs).zip(cuts(&surveys)) {
        records.retain(|record| cut.is_none_or(|cut| record.sequence < cut));
        log.next_sequence = cut.unwrap_or(log.next_sequence);
        log.records = records.len() as u64;
    }
    run_in_turn(&kept, &mut partitions)?;
    Ok(Replayed { partitions, logs, next_transaction: next_transaction(&surveys) })
}

/// Runs cut logs: each as far as the next transaction that is not yet next at all its participants.
fn run_in_turn(logs: &[Vec<Logged>], partitions: &mut [Partition]) -> Result<(), RecoveryError> {
    let mut next = vec![0; logs.len()];
    let is_next = |next: &[usize], record: &Logged| {
        record.participants.iter().map(|&other| usize::from(other)).all(|other| {
            let theirs = logs[other].get(next[other]);
            record.transaction.is_none()
                || theirs.is_some_and(|theirs| {
                    (theirs.transaction, &theirs.participants) == (record.transaction, &record.participants)
                })
        })
    };
    while let Some(at) = (0..logs.len()).find(|&at| logs[at].get(next[at]).is_some_and(|record| is_next(&next, record)))
    {
        let Logged { sequence, procedure, participants, transaction, params } = &logs[at][next[at]];
        let outcome = if transaction.is_none() {
            replay_single(&mut partitions[at], procedure, params, &mut Replies::default())
        } else {
            let mut all: BTreeMap<usize, &mut Partition> = partitions.iter_mut().enumerate().collect();
            let mut lent: Vec<_> =
                participants.iter().filter_map(|&participant| all.remove(&usize::from(participant))).collect();
            replay_multi(&mut lent, procedure, params)
        };
        outcome.map_err(|problem| not_replayed(at as u32, *sequence, procedure, problem))?;
        for participant in participants.iter().map(|&participant| usize::from(participant)) {
            if logs[participant][next[participant]].sequence.is_multiple_of(REPLAYED_BETWEEN_POLLS) {
                partitions[participant].poll_quietly();
            }
            next[participant] += 1;
        }
    }
    match (0..logs.len()).find_map(|at| Some((at, logs[at].get(next[at])?))) {
        None => Ok(()),
        Some((at, record)) => {
            let problem = "its record is not the same in the logs of all its partitions".to_owned();
            Err(not_replayed(at as u32, record.sequence, &record.procedure, problem))
        }
    }
}
