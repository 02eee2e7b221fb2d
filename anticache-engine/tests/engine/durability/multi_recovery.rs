//! Several partitions that crash again and again, at any operation of their disk, with snapshots at any moment: what was acknowledged is there afterwards
//! at all participants, and everything else wholly or not at all.
//!
//! `TEST_EFFORT` and `TEST_SEED` say how many cases are run, and which one is the first.

use std::collections::{BTreeSet, HashSet};
use std::path::Path;
use std::sync::Arc;

use anticache_engine::config::{AntiCaching, Config, Log, Merge};
use anticache_engine::durability::manifest::Manifest;
use anticache_engine::io::simulated::{Fault, FaultRule, Operation, SimulatedDisk};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::support::cluster::{Clock, Cluster, Model, Op, Outcome, expected};
use crate::support::database;
use crate::support::effort::{cases, seeds};

fn config(partitions: u32) -> Config {
    Config { partitions, log: Log::Sync, ..database::config(Path::new("/db"), u64::from(partitions) << 20) }
}

fn is_off(disk: &SimulatedDisk) -> bool {
    disk.files().list(Path::new("/db")).is_err()
}

/// Counts of what happened, to see that the cases reach what they are for.
#[derive(Debug, Default)]
struct Tally {
    lives: u64,
    cuts_in_recovery: u64,
    snapshots: u64,
    given_up: u64,
    from_snapshots: u64,
    replayed: u64,
    multi: u64,
    acknowledged: u64,
    lost: u64,
    evicted: u64,
}

struct Case {
    seed: u64,
    random: Pcg64Mcg,
    config: Config,
    disk: SimulatedDisk,
    clock: Arc<Clock>,
    keys: i64,
    /// Only transactions that keep the sum of all accounts.
    transfers: bool,
    /// What was there at the last start.
    base: Model,
    /// Requests up to that start.
    sent_before: u64,
}

impl Case {
    fn new(seed: u64) -> Self {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let config = Config {
            merge: if random.random_bool(0.5) { Merge::Tuple } else { Merge::Block },
            anticaching: if random.random_bool(0.5) { AntiCaching::Lru } else { AntiCaching::Alru },
            log_group_interval_us: if random.random_bool(0.2) { 200 } else { 0 },
            log_segment_bytes: [32 << 10, 128 << 10, 512 << 10][random.random_range(0..3)],
            ..config(random.random_range(2..4))
        };
        // Few keys: everything depends on everything. Many: most are evicted.
        let keys = if random.random_bool(0.85) { 60 } else { 4000 };
        let transfers = random.random_bool(0.5);
        let (disk, clock, base) = (SimulatedDisk::new(seed), Arc::default(), Model::new());
        Self { seed, random, config, disk, clock, keys, transfers, base, sent_before: 0 }
    }

    fn op(&mut self) -> Op {
        let (keys, random) = (self.keys, &mut self.random);
        let key = |random: &mut Pcg64Mcg| {
            let below = if random.random_bool(0.3) { 40.min(keys) } else { keys + 20 };
            random.random_range(0..below)
        };
        let from = key(random);
        let kind = if self.transfers { random.random_range(4..14) } else { random.random_range(0..14) };
        match kind {
            0 => Op::Insert(from, random.random_range(-1000..1000)),
            1 | 2 => Op::Add(from, random.random_range(-1000..1000)),
            3 => Op::Delete(from),
            4 => Op::Read(from),
            5 => Op::Sum((0..random.random_range(1..9)).map(|_| key(random)).collect()),
            6 | 7 => Op::Move(from, key(random) + keys * i64::from(random.random_bool(0.5)) + i64::from(from == 0)),
            8 => Op::Spread(from, vec![from + 6], random.random_range(0..100)),
            _ => {
                let to: BTreeSet<i64> = (0..random.random_range(1..4)).map(|_| key(random)).collect();
                let to = to.into_iter().filter(|&to| to != from).collect();
                Op::Spread(from, to, random.random_range(-10..100))
            }
        }
    }

    /// Starts the database, perhaps with a crash on the way.
    fn start(&mut self, tally: &mut Tally) -> Cluster {
        loop {
            if self.random.random_bool(0.3) {
                let end = self.disk.operations() + self.random.random_range(1..120);
                if self.random.random_bool(0.5) { self.disk.cut_after(end) } else { self.disk.kill_after(end) }
            }
            match Cluster::open_on(&self.disk.files(), &self.config, &self.clock) {
                Ok(cluster) if !is_off(&self.disk) => {
                    self.disk.cut_after(u64::MAX);
                    return cluster;
                }
                Err(error) if !is_off(&self.disk) => panic!("seed {}: {error}", self.seed),
                _ => {
                    tally.cuts_in_recovery += 1;
                    self.disk.restart();
                }
            }
        }
    }

    /// Checks what is there after a crash, and what clients were told before it.
    fn check(&mut self, cluster: &Cluster, before: Option<&Cluster>, tally: &mut Tally) {
        let kept = self.kept(cluster, before, tally);
        let Some(before) = before else { return };
        let mut order: Vec<(u64, u64)> = Vec::new();
        for token in self.sent_before..before.sent.len() as u64 {
            if kept.contains(&token) || before.answers.get(&token).is_some_and(|answer| answer.at.is_some()) {
                order.push((self.clock.executed(token).unwrap(), token));
            }
        }
        order.sort_unstable();
        for (number, token) in order {
            let op = &before.sent[token as usize];
            let told = before.answers.get(&token).filter(|answer| answer.at.is_some());
            let result = if kept.contains(&token) || !op.writes() {
                expected(&mut self.base, op)
            } else {
                let mut model = self.base.clone();
                let result = expected(&mut model, op);
                assert!(
                    model == self.base,
                    "seed {}: request {token}, {op:?}, was acknowledged and is lost",
                    self.seed
                );
                result
            };
            let result = result.map_err(str::to_owned);
            assert!(
                result.is_ok() || !kept.contains(&token),
                "seed {}: {op:?} is kept and gives {result:?}",
                self.seed
            );
            if let Some(told) = told {
                tally.acknowledged += 1;
                let expected = Outcome { at: Some(number), result };
                assert_eq!(*told, expected, "seed {}: request {token}, {op:?}, was told what is not so", self.seed);
            }
        }
        let rows = cluster.rows();
        let difference = rows.iter().zip(&self.base).find(|(found, wanted)| found != wanted);
        assert!(rows == self.base, "seed {}: first difference, found and expected: {difference:?}", self.seed);
        cluster.check();
        if self.transfers {
            assert_eq!(rows.values().sum::<i64>(), (0..self.keys).sum::<i64>(), "seed {}", self.seed);
        }
    }

    /// The requests of the last life whose changes are there, by the lengths of the logs; each of them is there at all its partitions.
    fn kept(&self, cluster: &Cluster, before: Option<&Cluster>, tally: &mut Tally) -> HashSet<u64> {
        let mut journal = self.clock.journal();
        let mut lost = HashSet::new();
        for partition in &cluster.partitions {
            let written = journal.entry(partition.id()).or_default();
            let left = partition.log_sequence() as usize;
            assert!(left <= written.len(), "seed {}: {left} records of {}", self.seed, written.len());
            lost.extend(written.drain(left..));
        }
        tally.lost += lost.len() as u64;
        let kept: HashSet<u64> = journal.values().flatten().copied().collect();
        for token in &lost {
            let half = || format!("request {token}, {:?}, is there by half", before.unwrap().sent[*token as usize]);
            assert!(!kept.contains(token), "seed {}: {}", self.seed, half());
        }
        self.clock.set_journal(journal);
        kept
    }

    fn load(&self, cluster: &mut Cluster) {
        for key in 0..self.keys {
            cluster.send(Op::Insert(key, key));
            if key % 100 == 99 {
                cluster.settle();
            }
        }
        cluster.settle();
    }

    /// Works until the power fails, or enough was done; then the process ends in any case.
    fn live(&mut self, cluster: &mut Cluster) {
        let snapshots = if self.random.random_bool(0.8) { self.random.random_range(0.0..0.1) } else { 0.0 };
        if self.random.random_bool(0.8) {
            let end = self.disk.operations() + self.random.random_range(1..500);
            if self.random.random_bool(0.5) { self.disk.cut_after(end) } else { self.disk.kill_after(end) }
        }
        for _ in 0..self.random.random_range(20..400) {
            match self.random.random_range(0..14) {
                0..6 => {
                    let op = self.op();
                    cluster.send(op);
                }
                6..11 => cluster.poll(self.random.random_range(0..self.config.partitions) as usize),
                _ => cluster.run_queued(),
            }
            if self.random.random_bool(snapshots) {
                cluster.begin_snapshot();
            }
            // Whoever waits for the dead disk learns of it; a few steps more are what a thread does that has not.
            if is_off(&self.disk) && self.random.random_bool(0.1) {
                break;
            }
        }
        if !is_off(&self.disk) {
            let answers = cluster.answers.range(self.sent_before..);
            let mut failed = answers.filter_map(|(_, answer)| answer.result.as_ref().err());
            let unexpected = failed.find(|reason| reason.contains("log") || reason.contains("disk"));
            assert_eq!(unexpected, None, "seed {}", self.seed);
        }
        if self.random.random_bool(0.5) {
            self.disk.kill()
        } else {
            self.disk.power_cut()
        }
        self.disk.restart();
    }

    fn run(mut self, tally: &mut Tally) {
        let mut cluster = self.start(tally);
        self.load(&mut cluster);
        for _ in 0..self.random.random_range(2..6) {
            self.live(&mut cluster);
            tally.lives += 1;
            tally.snapshots += cluster.snapshots.iter().filter(|outcome| outcome.problem.is_none()).count() as u64;
            tally.given_up += cluster.snapshots.iter().filter(|outcome| outcome.problem.is_some()).count() as u64;
            tally.multi += cluster.counted(|counters| counters.multi_partition);
            tally.evicted += cluster.counted(|counters| counters.evicted_tuples);
            let mut next = self.start(tally);
            tally.from_snapshots += u64::from(next.keeper.as_ref().unwrap().generation() > 0);
            tally.replayed += next.counted(|counters| counters.recovered_log_records);
            self.check(&next, Some(&cluster), tally);
            (next.sent, next.answers) = (std::mem::take(&mut cluster.sent), std::mem::take(&mut cluster.answers));
            // Requests that were never answered never will be.
            for token in 0..next.sent.len() as u64 {
                next.answers.entry(token).or_insert(Outcome { at: None, result: Err("lost".to_owned()) });
            }
            self.sent_before = next.sent.len() as u64;
            cluster = next;
        }
        // It is whole: it works, and takes a snapshot from which it can be started.
        for _ in 0..50 {
            let op = self.op();
            cluster.send(op);
        }
        cluster.settle();
        assert_eq!(cluster.snapshot().problem, None, "seed {}", self.seed);
        self.disk.power_cut();
        self.disk.restart();
        let last = self.start(tally);
        assert_eq!(last.counted(|counters| counters.recovered_log_records), 0, "seed {}", self.seed);
        self.check(&last, Some(&cluster), tally);
    }
}

#[test]
fn what_was_acknowledged_survives_every_crash_at_all_participants() {
    let mut tally = Tally::default();
    for seed in seeds(40) {
        Case::new(seed).run(&mut tally);
    }
    eprintln!("{} cases: {tally:?}", cases(40));
    let Tally { cuts_in_recovery, snapshots, from_snapshots, replayed, multi, lost, evicted, .. } = tally;
    assert!(
        cuts_in_recovery > 5 && snapshots > 20 && from_snapshots > 10 && replayed > 1000 && evicted > 500,
        "the cases do not reach what they are for: {tally:?}"
    );
    assert!(multi > 1000 && lost > 100, "the cases do not reach what they are for: {tally:?}");
}

/// A loaded database of several partitions, and its disk.
fn loaded(partitions: u32) -> (SimulatedDisk, Arc<Clock>, Cluster) {
    let (disk, clock) = (SimulatedDisk::new(3), Arc::default());
    let mut cluster = Cluster::open_on(&disk.files(), &config(partitions), &clock).unwrap();
    for key in 0..60 {
        cluster.send(Op::Insert(key, key));
    }
    cluster.settle();
    (disk, clock, cluster)
}

#[test]
fn numbers_of_transactions_go_on_after_the_log_is_truncated() {
    let (disk, clock, mut cluster) = loaded(2);
    let mut numbers = Vec::new();
    for round in 0..4 {
        for from in 0..10 {
            cluster.send(Op::Spread(from, vec![from + 1], 1));
        }
        cluster.settle();
        if round != 2 {
            assert_eq!(cluster.snapshot().problem, None);
        }
        let in_manifest = Manifest::read(&*disk.files(), Path::new("/db/data")).unwrap().next_transaction;
        disk.kill();
        disk.restart();
        cluster = Cluster::open_on(&disk.files(), &config(2), &clock).unwrap();
        let next = cluster.keeper.as_ref().unwrap().next_transaction();
        assert!(next >= in_manifest && next > numbers.last().copied().unwrap_or(0) + 9, "{next} after {numbers:?}");
        numbers.push(next);
    }
}

#[test]
fn a_snapshot_that_one_partition_cannot_write_is_given_up_by_all() {
    let (disk, clock, mut cluster) = loaded(3);
    disk.fail(FaultRule {
        file: "snapshot-0001".to_owned(),
        operation: Operation::Write,
        after: 0,
        error: Fault::NoSpace,
        times: 1,
    });
    let problem = cluster.snapshot().problem.unwrap();
    assert!(problem.contains("writing the snapshot"), "{problem}");
    let generation = |cluster: &Cluster| cluster.keeper.as_ref().unwrap().generation();
    assert_eq!(generation(&cluster), 0);
    cluster.send(Op::Spread(0, vec![1, 2], 5));
    cluster.settle();
    assert_eq!(cluster.snapshot().problem, None);
    assert_eq!(generation(&cluster), 2);
    let rows = cluster.rows();
    disk.power_cut();
    disk.restart();
    let recovered = Cluster::open_on(&disk.files(), &config(3), &clock).unwrap();
    assert_eq!((recovered.rows(), generation(&recovered)), (rows, 2));
}

/// The log of partition 1 fails at some write, while memory is short: whatever depends on it is told so, and nobody waits without end.
#[test]
fn a_log_that_fails_leaves_nobody_waiting() {
    const KEYS: i64 = 9000;
    for after in 0..5 {
        let (disk, _, mut cluster) = loaded(3);
        (60..KEYS).for_each(|key| cluster.send(Op::Insert(key, key)));
        cluster.settle();
        disk.fail(FaultRule {
            file: "command-0001".to_owned(),
            operation: Operation::Write,
            after,
            error: Fault::Io,
            times: 1,
        });
        let loads = cluster.answers.len();
        for n in 0..90i64 {
            let keys: Vec<i64> = (1..4).map(|k| (n * 613 + k * 997) % KEYS).collect();
            cluster.send(Op::Spread((n * 613) % KEYS, keys, 1));
            if n % 2 == 0 {
                cluster.run_queued();
                cluster.poll((n / 2 % 3) as usize);
            }
        }
        cluster.settle();
        let failures: Vec<&String> =
            cluster.answers.values().skip(loads).filter_map(|answer| answer.result.as_ref().err()).collect();
        let told = failures.iter().filter(|reason| reason.contains("log")).count();
        assert!(told > 0, "{after}: {failures:?}");
        cluster.send(Op::Add(1, 1));
        cluster.settle();
        let last = cluster.answers.values().next_back().unwrap();
        assert!(last.result.as_ref().unwrap_err().contains("command log"), "{last:?}");
    }
}

/// The files of one database with the log of another, that had more partitions, are refused by name; nothing is dropped for it.
#[test]
fn a_log_whose_participants_do_not_exist_is_refused() {
    let (foreign, _, mut three) = loaded(3);
    three.send(Op::Spread(0, vec![2], 5));
    three.settle();
    let (disk, clock, mut two) = loaded(2);
    two.send(Op::Spread(0, vec![1], 5));
    two.settle();
    let (rows, records) = (two.rows(), two.partitions[0].log_sequence());
    drop((two, three));
    let path = Path::new("/db/data/command-0000-00000000.log");
    let theirs = anticache_engine::io::files::read_file(&*foreign.files(), path).unwrap();
    let own = anticache_engine::io::files::read_file(&*disk.files(), path).unwrap();
    let put = |bytes: &[u8]| {
        let file = disk.files().create(path).unwrap();
        file.write_all_at(bytes, 0).unwrap();
        file.sync().unwrap();
    };
    put(&theirs);
    let error = Cluster::open_on(&disk.files(), &config(2), &clock).err().unwrap().to_string();
    assert!(error.contains("at [0, 2], and the database has 2"), "{error}");
    put(&own);
    let recovered = Cluster::open_on(&disk.files(), &config(2), &clock).unwrap();
    assert_eq!((recovered.rows(), recovered.partitions[0].log_sequence()), (rows, records));
}

/// A snapshot contains a transaction that no log holds yet: it must not count before they all do, or the others' part would be lost.
#[test]
fn a_snapshot_does_not_count_before_the_logs_are_durable() {
    let (disk, clock) = (SimulatedDisk::new(3), Arc::default());
    let start = |log_group_interval_us| {
        let config = Config { log_group_interval_us, ..config(3) };
        Cluster::open_on(&disk.files(), &config, &clock).unwrap()
    };
    let mut cluster = start(0);
    for key in 0..60 {
        cluster.send(Op::Insert(key, key));
    }
    cluster.settle();
    let rows = cluster.rows();
    drop(cluster);
    disk.kill();
    disk.restart();
    // No group is written before an hour has passed.
    let mut cluster = start(3_600_000_000);
    cluster.send(Op::Spread(0, vec![1, 2], 5));
    cluster.run_queued();
    assert!(cluster.begin_snapshot());
    for _ in 0..2000 {
        cluster.run_queued();
        (0..3).for_each(|partition| cluster.poll(partition));
    }
    assert!(cluster.answers.is_empty() && cluster.snapshots.is_empty(), "{:?}", cluster.snapshots);
    drop(cluster);
    disk.power_cut();
    disk.restart();
    let cluster = start(0);
    assert_eq!((cluster.rows(), cluster.keeper.as_ref().unwrap().generation()), (rows, 0));
}

/// What transactions on several partitions bring back in recovery is divided into turns like anything else, and goes on after each.
#[test]
fn replayed_transactions_may_bring_back_any_number_of_tuples() {
    const KEYS: i64 = 6000;
    for merge in [Merge::Tuple, Merge::Block] {
        let (disk, clock, config) = (SimulatedDisk::new(5), Arc::new(Clock::default()), Config { merge, ..config(2) });
        let mut cluster = Cluster::open_on(&disk.files(), &config, &clock).unwrap();
        for key in 0..KEYS {
            cluster.send(Op::Insert(key, 0));
            if key % 50 == 49 {
                cluster.settle();
            }
        }
        for round in 0..40 {
            // Far apart, and long not looked at.
            cluster.send(Op::Spread(round, (1..=150).map(|n| (round + n * 39) % KEYS).collect(), 1));
            cluster.settle();
        }
        let rows = cluster.rows();
        drop(cluster);
        disk.kill();
        disk.restart();
        let cluster = Cluster::open_on(&disk.files(), &config, &clock).unwrap();
        assert!(cluster.rows() == rows);
    }
}
