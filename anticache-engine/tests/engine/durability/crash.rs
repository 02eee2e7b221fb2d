//! A database that crashes again and again, at any operation of its disk: what it acknowledged is there afterwards, in order, and nothing by halves.
//!
//! `TEST_EFFORT` and `TEST_SEED` say how many cases are run, and which one is the first.

use anticache_engine::config::{AntiCaching, Config, Merge};
use anticache_engine::io::simulated::SimulatedDisk;
use anticache_engine::net::frame::Status;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::support::durable::{History, OWNERS, Op, Process, config, is_off};
use crate::support::effort::{cases, seeds};
use crate::support::replies::Answer;

fn random_config(random: &mut Pcg64Mcg) -> Config {
    Config {
        merge: if random.random_bool(0.5) { Merge::Tuple } else { Merge::Block },
        eviction_block_bytes: [4096, 8192, 16384][random.random_range(0..3)],
        hole_threshold: [0.1, 0.5, 1.0][random.random_range(0..3)],
        probation_share: [0.0, 0.3][random.random_range(0..2)],
        anticaching: match random.random_range(0..6) {
            0 => AntiCaching::Off,
            1 | 2 => AntiCaching::Lru,
            _ => AntiCaching::Alru,
        },
        ..config()
    }
}

/// Counts of what happened, to see that the cases reach what they are for.
#[derive(Debug, Default)]
struct Tally {
    lives: u64,
    cuts_in_recovery: u64,
    snapshots: u64,
    from_snapshots: u64,
    given_up: u64,
    replayed: u64,
    evicted: u64,
}

struct Case {
    seed: u64,
    random: Pcg64Mcg,
    config: Config,
    disk: SimulatedDisk,
    history: History,
    ids: i64,
}

impl Case {
    fn new(seed: u64) -> Self {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let config = random_config(&mut random);
        // Without anti-caching everything must fit in memory.
        let ids = random.random_range(50..if config.anticaching == AntiCaching::Off { 400 } else { 2500 });
        Self { seed, random, config, disk: SimulatedDisk::new(seed), history: History::default(), ids }
    }

    /// Starts the database, perhaps with a crash on the way; what it holds must be allowed.
    fn start(&mut self, tally: &mut Tally) -> Process {
        loop {
            if self.random.random_bool(0.25) {
                self.disk.cut_after(self.disk.operations() + self.random.random_range(1..60));
            }
            // What is replayed was committed before.
            let before = self.history.journal.lock().unwrap().clone();
            let started = Process::start(&self.disk, &self.config, &self.history.journal);
            *self.history.journal.lock().unwrap() = before;
            match started {
                Ok(process) => return process,
                Err(error) if is_off(&self.disk) => {
                    tally.cuts_in_recovery += 1;
                    drop(error);
                    self.disk.restart();
                }
                Err(error) => panic!("seed {}: {error}", self.seed),
            }
        }
    }

    fn run(mut self, tally: &mut Tally) {
        for life in 0..self.random.random_range(2..6) {
            let mut process = self.start(tally);
            match process.state() {
                Ok(found) => {
                    let held = self.history.must_hold(&found);
                    held.unwrap_or_else(|problem| panic!("seed {}, life {life}: {problem}", self.seed));
                }
                Err(error) => assert!(is_off(&self.disk), "seed {}, life {life}: {error}", self.seed),
            }
            tally.lives += 1;
            tally.from_snapshots += u64::from(process.keeper.generation() > 0 && life > 0);
            tally.replayed += process.partition.counters().recovered_log_records;
            self.live(&mut process);
            self.history.learn(process.answers());
            tally.snapshots += process.outcomes.iter().filter(|outcome| outcome.problem.is_none()).count() as u64;
            tally.given_up += process.outcomes.iter().filter(|outcome| outcome.problem.is_some()).count() as u64;
            tally.evicted += process.partition.counters().evicted_tuples;
            match self.random.random_range(0..3) {
                0 => self.disk.kill(),
                _ => self.disk.power_cut(),
            }
            drop(process);
            self.disk.restart();
        }
    }

    /// Fills an empty database, mostly without a crash.
    fn load(&mut self, process: &mut Process) {
        if !self.history.base.items.is_empty() {
            return;
        }
        if self.random.random_bool(0.2) {
            self.disk.cut_after(self.disk.operations() + self.random.random_range(1..300));
        }
        let snapshot_at = self.random.random_range(0..2 * self.ids);
        for first in (0..self.ids).step_by(50) {
            let mut id = first;
            let ops = self.history.invent(50.min((self.ids - first) as usize), || {
                id += 1;
                Op::Insert {
                    id: id - 1,
                    owner: (id % i64::from(OWNERS)) as i32,
                    note: "n".repeat((id * 7 % 900) as usize),
                }
            });
            process.submit(&ops);
            if (first..first + 50).contains(&snapshot_at) {
                process.begin_snapshot();
            }
            process.poll();
            let answers = process.answers();
            self.history.learn(answers);
            if is_off(&self.disk) {
                return;
            }
        }
    }

    /// Works until the power fails or enough was done.
    fn live(&mut self, process: &mut Process) {
        self.load(process);
        let snapshots = self.random.random_range(0.0..0.1);
        let batch = self.random.random_range(1..80);
        if self.random.random_bool(0.7) {
            self.disk.cut_after(self.disk.operations() + self.random.random_range(1..800));
        }
        for _ in 0..self.random.random_range(1..60) {
            if is_off(&self.disk) {
                return;
            }
            let (ids, random) = (self.ids, &mut self.random);
            let ops = self.history.invent(batch, || Op::random(random, ids));
            process.submit(&ops);
            if self.random.random_bool(snapshots) {
                process.begin_snapshot();
            }
            for _ in 0..self.random.random_range(0..6) {
                process.poll();
            }
            let answers = process.answers();
            let failed = answers.iter().find(|answer| answer.status == Status::Failed).map(Answer::text);
            self.history.learn(answers);
            if is_off(&self.disk) {
                return;
            }
            if let Some(text) = failed.filter(|text| !text.contains("memory budget")) {
                panic!("seed {}: {text}", self.seed);
            }
        }
    }
}

#[test]
fn what_was_acknowledged_survives_every_crash() {
    let mut tally = Tally::default();
    for seed in seeds(40) {
        Case::new(seed).run(&mut tally);
    }
    eprintln!("{} cases: {tally:?}", cases(40));
    let Tally { cuts_in_recovery, snapshots, from_snapshots, replayed, evicted, .. } = tally;
    assert!(
        cuts_in_recovery > 0 && snapshots > 20 && from_snapshots > 10 && replayed > 1000 && evicted > 5000,
        "the cases do not reach what they are for: {tally:?}"
    );
}
