//! TPC-C on databases of one and two partitions that crash again and again, at any operation of their disk, with snapshots at any moment: the
//! consistency conditions hold afterwards, every acknowledged transaction is there, and the others are there wholly or not at all.
//!
//! `TEST_EFFORT` and `TEST_SEED` say how many cases are run, and which one is the first.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use anticache_engine::config::{AntiCaching, Compaction, EvictFrom, Log, Merge};
use anticache_engine::io::simulated::SimulatedDisk;
use anticache_engine::net::frame::Status;
use anticache_engine::partition::Partition;
use anticache_engine::procedure::tpcc::consistency::Report;
use anticache_engine::procedure::tpcc::generate::{Input, Mix, Scale, Seeds, Terminal};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::support::replies::Answer;

use super::database::{Database, Entry, Journal, SEED, Variant, catalog, population};
use super::reference::{Reference, Row};
use crate::support::effort::{cases, seeds};

const DATA_DIR: &str = "/data";
const START_US: i64 = 1_400_000_000_000_000;
/// Small enough that a partition has to evict what one warehouse is loaded with.
const BUDGET_BYTES: u64 = 1 << 20;

fn scale(partitions: u32) -> Scale {
    Scale { warehouses: partitions as i16, items: 40, customers_per_district: 10, orders_per_district: 30 }
}

/// What a database of so many partitions holds after loading.
fn loaded(partitions: u32) -> Reference {
    Reference::load(&catalog(), &population(scale(partitions)), scale(partitions))
}

/// Counts of what happened, to see that the cases reach what they are for.
#[derive(Debug, Default)]
struct Tally {
    lives: u64,
    cuts_in_recovery: u64,
    snapshots: u64,
    from_snapshots: u64,
    replayed: u64,
    acknowledged: u64,
    lost: u64,
    multi: u64,
    evicted: u64,
    restarted: u64,
}

struct Case {
    seed: u64,
    random: Pcg64Mcg,
    variant: Variant,
    disk: SimulatedDisk,
    journal: Journal,
    terminals: Vec<Terminal>,
    /// What was there at the last start, and the records that each partition had logged.
    base: Reference,
    logged: Vec<u64>,
    /// What was asked for and answered since.
    sent: HashMap<u64, Input>,
    answers: Vec<Answer>,
    next_token: u64,
}

impl Case {
    fn new(seed: u64, loaded: &BTreeMap<u32, Reference>) -> Self {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let partitions = random.random_range(1..3);
        let variant = Variant {
            anticaching: if random.random_bool(0.5) { AntiCaching::Lru } else { AntiCaching::Alru },
            merge: if random.random_bool(0.5) { Merge::Tuple } else { Merge::Block },
            log: Log::Sync,
            budget_bytes: BUDGET_BYTES,
            compaction: if random.random_bool(0.3) { Compaction::Background } else { Compaction::Lazy },
            partitions,
            evicts_all: random.random_bool(0.3),
            evict_from: if random.random_bool(0.5) { EvictFrom::Coldest } else { EvictFrom::InverseAccesses },
        };
        let mix = [Mix::HomeOnly, Mix::WithRemote, Mix::Remote(50)][random.random_range(0..3)];
        let terminals = 10 * u64::from(partitions);
        let seeds = Seeds { population: SEED, inputs: SEED + seed };
        let terminals = (0..terminals).map(|index| Terminal::new(scale(partitions), mix, seeds, index)).collect();
        Self {
            seed,
            random,
            variant,
            disk: SimulatedDisk::new(seed),
            journal: Journal::default(),
            terminals,
            base: loaded[&partitions].clone(),
            logged: Vec::new(),
            sent: HashMap::new(),
            answers: Vec::new(),
            next_token: 1,
        }
    }

    fn is_off(&self) -> bool {
        self.disk.files().list(Path::new(DATA_DIR)).is_err()
    }

    fn crash_after(&mut self, operations: u64) {
        let end = self.disk.operations() + operations;
        if self.random.random_bool(0.5) { self.disk.cut_after(end) } else { self.disk.kill_after(end) }
    }

    /// Starts the database, perhaps with a crash on the way.
    fn start(&mut self, tally: &mut Tally) -> Database {
        loop {
            if !self.logged.is_empty() && self.random.random_bool(0.3) {
                let operations = self.random.random_range(1..120);
                self.crash_after(operations);
            }
            let scale = scale(self.variant.partitions);
            let files = self.disk.files();
            match Database::open(&files, &self.variant, Path::new(DATA_DIR), scale, &self.journal) {
                Ok(database) if !self.is_off() => {
                    self.disk.cut_after(u64::MAX);
                    return database;
                }
                Err(error) if !self.is_off() => panic!("seed {}: {error}", self.seed),
                _ => {
                    tally.cuts_in_recovery += 1;
                    self.disk.restart();
                }
            }
        }
    }

    /// Lets a new life begin with what is there.
    fn begin_life(&mut self, database: &Database) {
        self.logged = database.partitions.iter().map(|partition| partition.log_sequence()).collect();
        self.journal.lock().unwrap().clear();
        self.sent.clear();
        self.answers.clear();
    }

    /// Works until the disk fails, or enough was done; then the process ends in any case.
    fn live(&mut self, database: &mut Database) {
        let snapshots = self.random.random_range(0.0..0.06);
        if self.random.random_bool(0.8) {
            let operations = self.random.random_range(1..600);
            self.crash_after(operations);
        }
        let batch = self.random.random_range(1..12);
        for _ in 0..self.random.random_range(10..160) {
            for _ in 0..self.random.random_range(0..=batch) {
                if Self::is_full(database) {
                    break;
                }
                self.send(database);
            }
            database.run_queued();
            for _ in 0..self.random.random_range(0..4) {
                database.poll(self.random.random_range(0..self.variant.partitions) as usize);
            }
            if self.random.random_bool(snapshots) {
                database.begin_snapshot();
            }
            self.answers.extend(database.answers());
            if self.is_off() && self.random.random_bool(0.2) {
                break;
            }
        }
        if !self.is_off() {
            let failed = self.answers.iter().find(|answer| answer.status == Status::Failed);
            assert!(failed.is_none(), "seed {}: {}", self.seed, failed.unwrap().text());
        }
        if self.random.random_bool(0.5) {
            self.disk.kill()
        } else {
            self.disk.power_cut()
        }
        self.disk.restart();
    }

    /// Whether so many rows were added that evicting them makes too little room: their index and Evicted Table entries stay in memory.
    fn is_full(database: &Database) -> bool {
        database.partitions.iter().map(Partition::gauges).any(|gauges| {
            let entries_bytes = gauges.memory_index_bytes + gauges.memory_evicted_table_bytes;
            entries_bytes > gauges.memory_budget_bytes * 2 / 5
        })
    }

    fn send(&mut self, database: &mut Database) {
        let (terminal, token) = (self.random.random_range(0..self.terminals.len()), self.next_token);
        let input = self.terminals[terminal].next(START_US + 1000 * token as i64);
        self.next_token += 1;
        self.sent.insert(token, input);
        database.submit(token, &input);
    }

    /// Which transactions of the last life are there: of each partition's log a beginning, and each at all its partitions or at none.
    fn kept(&self, entries: &[Entry], database: &Database) -> HashSet<u64> {
        let (mut kept, mut lost) = (HashSet::new(), HashSet::new());
        for (partition, &before) in database.partitions.iter().zip(&self.logged) {
            let written = entries.iter().filter(|entry| entry.wrote_at.contains(&partition.id()));
            let written: Vec<u64> = written.map(|entry| entry.token).collect();
            let left = partition.log_sequence().checked_sub(before).unwrap() as usize;
            assert!(left <= written.len(), "seed {}: {left} records of {}", self.seed, written.len());
            kept.extend(&written[..left]);
            lost.extend(&written[left..]);
        }
        if let Some(token) = kept.intersection(&lost).next() {
            panic!("seed {}: {:?} is there by half", self.seed, self.sent[token]);
        }
        kept
    }

    /// Checks what is there after a crash, and what clients were told before it.
    fn check(&mut self, database: &Database, tally: &mut Tally) {
        let entries = std::mem::take(&mut *self.journal.lock().unwrap());
        let kept = self.kept(&entries, database);
        let told: HashMap<u64, &Answer> = self.answers.iter().map(|answer| (answer.token, answer)).collect();
        for Entry { token, wrote_at } in &entries {
            let (input, answer) = (&self.sent[token], told.get(token).filter(|a| a.status == Status::Committed));
            if !wrote_at.is_empty() && !kept.contains(token) {
                tally.lost += 1;
                assert!(answer.is_none(), "seed {}: {input:?} was acknowledged and is lost", self.seed);
                continue;
            }
            let expected = self.base.execute(input).unwrap();
            if let Some(answer) = answer {
                tally.acknowledged += 1;
                assert_eq!(answer.payload, expected, "seed {}: {input:?} was told what is not so", self.seed);
            }
        }
        must_be(&database.rows(), &self.base.rows(), self.seed);
        assert_eq!(database.check(), Report::default(), "seed {}", self.seed);
    }

    fn run(mut self, tally: &mut Tally) {
        let mut database = self.start(tally);
        database.fill();
        database.settle();
        self.begin_life(&database);
        for _ in 0..self.random.random_range(2..5) {
            self.live(&mut database);
            tally.lives += 1;
            tally.snapshots += database.snapshots.iter().filter(|outcome| outcome.problem.is_none()).count() as u64;
            tally.multi += database.counted(|counters| counters.multi_partition);
            tally.evicted += database.counted(|counters| counters.evicted_tuples);
            tally.restarted += database.counted(|counters| counters.restarted);
            drop(database);
            database = self.start(tally);
            tally.from_snapshots += u64::from(database.keeper.generation() > 0);
            tally.replayed += database.counted(|counters| counters.recovered_log_records);
            self.check(&database, tally);
            self.begin_life(&database);
        }
    }
}

fn must_be(found: &BTreeMap<&'static str, Vec<Row>>, expected: &BTreeMap<&'static str, Vec<Row>>, seed: u64) {
    for (table, expected) in expected {
        let difference = found[table].iter().zip(expected).find(|(found, expected)| found != expected);
        assert!(difference.is_none(), "seed {seed}: {table}, found and expected: {difference:?}");
        assert_eq!(found[table].len(), expected.len(), "seed {seed}: rows of {table}");
    }
}

#[test]
fn what_was_acknowledged_survives_every_crash() {
    let loaded = [1, 2].map(|partitions| (partitions, loaded(partitions))).into();
    let mut tally = Tally::default();
    for seed in seeds(24) {
        Case::new(seed, &loaded).run(&mut tally);
    }
    eprintln!("{} cases: {tally:?}", cases(24));
    let Tally { cuts_in_recovery, snapshots, from_snapshots, replayed, lost, multi, evicted, .. } = tally;
    assert!(
        cuts_in_recovery > 0 && snapshots > 10 && from_snapshots > 5 && replayed > 1000 && lost > 20 && multi > 100,
        "the cases do not reach what they are for: {tally:?}"
    );
    assert!(evicted > 10_000, "{tally:?}");
}
