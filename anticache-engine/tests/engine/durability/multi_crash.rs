//! Power cuts and killed processes with transactions on several partitions: what was acknowledged is in the logs, after the cuts that recovery makes;
//! everything else is there wholly or not at all; and nobody was told of anything that is gone.
//!
//! The logs are replayed from their beginning into empty partitions, so this needs no snapshots.

use std::collections::{BTreeMap, HashSet};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use anticache_engine::config::{Config, Log};
use anticache_engine::durability::log_reader::read_log_from;
use anticache_engine::durability::multi_recovery::{MultiRecord, cuts};
use anticache_engine::io::files::{Files, KernelFiles};
use anticache_engine::io::simulated::SimulatedDisk;
use anticache_engine::partition::Partition;
use anticache_engine::partition::multi::{LoggedMulti, ReplayMeetings, replay_multi};
use proptest::prelude::*;

use crate::support::cluster::{self, Cluster, Model, Op, Outcome, expected, op, token_of};
use crate::support::database;
use crate::support::effort::properties;

/// A record as recovery sees it.
#[derive(Debug, Clone)]
struct Logged {
    sequence: u64,
    procedure: String,
    multi: Option<(u64, Vec<u16>)>,
    params: Vec<u8>,
}

fn read_logs(files: &dyn Files, directory: &Path, partitions: u32) -> Vec<Vec<Logged>> {
    let read = |partition| {
        let mut records = Vec::new();
        let summary = read_log_from(files, directory, partition, 0, |record| {
            records.push(Logged {
                sequence: record.sequence,
                procedure: record.procedure.to_owned(),
                multi: record.multi.map(|multi| (multi.transaction, multi.participants)),
                params: record.params.to_vec(),
            });
            ControlFlow::Continue(())
        });
        summary.unwrap();
        records
    };
    (0..partitions).map(read).collect()
}

/// Cuts the logs; returns how many records that dropped.
fn cut(logs: &mut [Vec<Logged>]) -> usize {
    let multi = |record: &Logged| {
        let (transaction, participants) = record.multi.clone()?;
        Some(MultiRecord { sequence: record.sequence, transaction, participants })
    };
    let records: Vec<Vec<MultiRecord>> = logs.iter().map(|log| log.iter().filter_map(multi).collect()).collect();
    let before: usize = logs.iter().map(Vec::len).sum();
    for (log, cut) in logs.iter_mut().zip(cuts(&records)) {
        log.retain(|record| cut.is_none_or(|cut| record.sequence < cut));
    }
    before - logs.iter().map(Vec::len).sum::<usize>()
}

/// Replays cut logs in one thread: a partition waits at a transaction on several until it is next at all of them.
fn replay(logs: &[Vec<Logged>], partitions: &mut [Partition]) {
    let mut next = vec![0; logs.len()];
    while let Some(at) = (0..logs.len()).find(|&at| {
        let waits_for = |&participant: &u16| {
            let theirs = &logs[usize::from(participant)][next[usize::from(participant)]];
            theirs.multi == logs[at][next[at]].multi
        };
        logs[at].get(next[at]).is_some_and(|record| {
            record.multi.as_ref().is_none_or(|(_, participants)| participants.iter().all(waits_for))
        })
    }) {
        let record = &logs[at][next[at]];
        let wanted = record.multi.as_ref().map_or(vec![at as u16], |(_, participants)| participants.clone());
        let mut lent: BTreeMap<usize, &mut Partition> = partitions.iter_mut().enumerate().collect();
        let mut parts: Vec<&mut Partition> =
            wanted.iter().map(|&partition| lent.remove(&usize::from(partition)).unwrap()).collect();
        replay_multi(&mut parts, &record.procedure, &record.params).unwrap();
        wanted.iter().for_each(|&partition| next[usize::from(partition)] += 1);
    }
    assert!(next.iter().zip(logs).all(|(&next, log)| next == log.len()), "replay got stuck");
}

/// Checks what clients were told against what is left, in the serial order; returns the state that must be there.
fn left_over(cluster: &Cluster, logs: &[Vec<Logged>]) -> Model {
    let mut kept: HashSet<u64> = HashSet::new();
    for (log, partition) in logs.iter().zip(0..) {
        for record in log {
            let token = token_of(&record.params);
            let fresh = kept.insert(token);
            let Some((transaction, participants)) = &record.multi else {
                assert!(fresh, "request {token} twice");
                continue;
            };
            for &other in participants {
                let has = |theirs: &Logged| theirs.multi.as_ref().is_some_and(|(number, _)| number == transaction);
                assert!(logs[usize::from(other)].iter().any(has), "{token} is at {partition} and not at {other}");
            }
        }
    }
    let mut order: Vec<(u64, u64)> = Vec::new();
    for token in 0..cluster.sent.len() as u64 {
        let answered = cluster.answers.get(&token).and_then(|answer| answer.at);
        let survives = kept.contains(&token);
        if answered.is_some() || survives {
            order.push((cluster.clock.executed(token).unwrap(), token));
        }
    }
    order.sort_unstable();
    let mut model = Model::new();
    for (number, token) in order {
        let op = &cluster.sent[token as usize];
        let told = cluster.answers.get(&token).filter(|answer| answer.at.is_some());
        let before = model.clone();
        let result = expected(&mut model, op).map_err(str::to_owned);
        if let Some(told) = told {
            assert_eq!(*told, Outcome { at: Some(number), result: result.clone() }, "{op:?} was told what is not so");
        }
        if kept.contains(&token) {
            assert!(result.is_ok(), "{op:?} is in the log and does not commit");
        } else {
            assert!(model == before || told.is_none(), "{op:?} was acknowledged and is lost");
            model = before;
        }
    }
    model
}

#[derive(Debug, Clone)]
enum Step {
    Send(Op),
    Poll(usize),
    RunQueued,
}

#[derive(Debug, Clone)]
struct Case {
    partitions: usize,
    seed: u64,
    keys: i64,
    interval_us: u64,
    kill: bool,
    /// Operations of the disk until the end, after loading.
    operations: u64,
    steps: Vec<Step>,
}

fn case() -> impl Strategy<Value = Case> {
    // Few keys: everything depends on everything. Many: most are evicted.
    let keys = prop_oneof![5 => Just(60i64), 1 => Just(5000)];
    let shape = (2..5usize, any::<u64>(), keys, prop_oneof![3 => Just(0), 1 => Just(300)], any::<bool>(), 1..400u64);
    shape.prop_flat_map(|(partitions, seed, keys, interval_us, kill, operations)| {
        let step = prop_oneof![
            6 => op(keys, partitions as i64).prop_map(Step::Send),
            5 => (0..partitions).prop_map(Step::Poll),
            3 => Just(Step::RunQueued),
        ];
        prop::collection::vec(step, 50..600).prop_map(move |steps| Case {
            partitions,
            seed,
            keys,
            interval_us,
            kill,
            operations,
            steps,
        })
    })
}

fn config(partitions: usize) -> Config {
    let mut config = database::config(Path::new("/db"), (partitions as u64) << 20);
    config.log = Log::Sync;
    config
}

/// Runs a case up to the crash and some way beyond, as the partitions' threads would that have not noticed yet.
fn run_to_the_crash(case: &Case, disk: &SimulatedDisk) -> Cluster {
    let mut config = config(case.partitions);
    config.log_group_interval_us = case.interval_us;
    let mut cluster = Cluster::create_on(&disk.files(), case.partitions as u32, &config);
    for key in 0..case.keys {
        cluster.send(Op::Insert(key, key));
        if key % 100 == 99 {
            cluster.settle();
        }
    }
    cluster.settle();
    let end = disk.operations() + case.operations;
    if case.kill {
        disk.kill_after(end);
    } else {
        disk.cut_after(end);
    }
    for step in &case.steps {
        match step {
            Step::Send(op) => cluster.send(op.clone()),
            Step::Poll(partition) => cluster.poll(*partition),
            Step::RunQueued => cluster.run_queued(),
        }
    }
    if case.kill {
        disk.kill();
    } else {
        disk.power_cut();
    }
    cluster
}

proptest! {
    #![proptest_config(properties(60))]

    #[test]
    fn what_was_acknowledged_survives_wholly(case in case()) {
        let disk = SimulatedDisk::new(case.seed);
        let cluster = run_to_the_crash(&case, &disk);
        disk.restart();
        let config = config(case.partitions);
        let mut logs = read_logs(&*disk.files(), &config.data_dir, case.partitions as u32);
        cut(&mut logs);
        let model = left_over(&cluster, &logs);
        let elsewhere = SimulatedDisk::new(case.seed ^ 1);
        let mut recovered =
            Cluster::create_on(&elsewhere.files(), case.partitions as u32, &Config { log: Log::Off, ..config });
        replay(&logs, &mut recovered.partitions);
        prop_assert_eq!(recovered.rows(), model);
        recovered.check();
    }
}

/// The cases above are worth something only if cuts happen in them, and acknowledgements before and after.
#[test]
fn crashes_do_leave_halves() {
    let (mut dropped, mut acknowledged, mut unknown) = (0, 0, 0);
    for seed in 0..20u64 {
        let step = |n: u64| match (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ seed) >> 60 {
            0..6 => Step::Send(Op::Spread((n * 7 % 60) as i64, vec![(n * 7 % 60 + 1 + n % 3) as i64], 1)),
            6..8 => Step::Send(Op::Add((n * 11 % 60) as i64, 1)),
            8..10 => Step::RunQueued,
            at => Step::Poll(at as usize % 3),
        };
        let steps = (0..400).map(|n| step(n + seed * 1000)).collect();
        let case =
            Case { partitions: 3, seed, keys: 63, interval_us: 0, kill: false, operations: 40 + seed * 5, steps };
        let disk = SimulatedDisk::new(seed);
        let cluster = run_to_the_crash(&case, &disk);
        disk.restart();
        let mut logs = read_logs(&*disk.files(), &config(3).data_dir, 3);
        dropped += cut(&mut logs);
        left_over(&cluster, &logs);
        acknowledged += cluster.answers.values().filter(|answer| answer.at.is_some()).count() - 63;
        unknown += cluster.sent.len() - cluster.answers.values().filter(|answer| answer.at.is_some()).count();
    }
    assert!(dropped > 20 && acknowledged > 1000 && unknown > 200, "{dropped} {acknowledged} {unknown}");
}

/// The same replay by a thread per partition.
#[test]
fn threads_replay_the_logs_side_by_side() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let files: Arc<dyn Files> = Arc::new(KernelFiles::new());
    let mut config = database::config(directory.path(), 3 << 20);
    config.log = Log::Sync;
    let mut cluster = Cluster::create_on(&files, 3, &config);
    for key in 0..5000 {
        cluster.send(Op::Insert(key, key));
        if key % 100 == 99 {
            cluster.settle();
        }
    }
    for n in 0..600i64 {
        let from = n * 211 % 5000;
        cluster.send(match n % 3 {
            0 => Op::Add(from, n),
            1 => Op::Spread(from, vec![(from + 1) % 5000, (from + 1717) % 5000], n),
            _ => Op::Move(from, 10_000 + n),
        });
        if n % 20 == 0 {
            cluster.settle();
        }
    }
    cluster.settle();
    let mut model = Model::new();
    assert_eq!(cluster::agree(&mut model, &cluster.sent, &cluster.answers), 0);
    drop(cluster.partitions);
    let mut logs = read_logs(&*files, &config.data_dir, 3);
    assert_eq!(cut(&mut logs), 0);
    let empty = Config { log: Log::Off, data_dir: directory.path().join("recovered"), ..config };
    let mut recovered = Cluster::create_on(&files, 3, &empty);
    let meetings = ReplayMeetings::new(3).unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = recovered
            .partitions
            .drain(..)
            .zip(&logs)
            .map(|(partition, log)| {
                let meetings = &meetings;
                scope.spawn(move || replay_in_thread(meetings, Box::new(partition), log))
            })
            .collect();
        recovered.partitions = threads.into_iter().map(|thread| *thread.join().unwrap()).collect();
    });
    assert_eq!(recovered.rows(), model);
    recovered.check();
}

fn replay_in_thread(meetings: &ReplayMeetings, mut partition: Box<Partition>, log: &[Logged]) -> Box<Partition> {
    let seat = meetings.seat(&partition).unwrap();
    for record in log {
        let Some((transaction, participants)) = &record.multi else {
            replay_multi(&mut [&mut partition], &record.procedure, &record.params).unwrap();
            continue;
        };
        let (transaction, procedure, params) = (*transaction, record.procedure.as_str(), record.params.as_slice());
        let (back, outcome) = seat.replay(partition, &LoggedMulti { transaction, participants, procedure, params });
        outcome.unwrap();
        partition = back.unwrap();
    }
    partition
}
