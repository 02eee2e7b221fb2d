//! Several partitions with snapshots, and transactions across them, that crash again and again: after each recovery every transaction is there at all
//! its participants or at none, those that were acknowledged are there, and each partition holds a beginning of what it executed.
//!
//! `CRASH_CASES` says how many cases are run, `CRASH_SEED` which one is the first.
#![allow(clippy::unwrap_used)] // a test that fails may panic

mod common;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex};

use anticache_engine::catalog::Catalog;
use anticache_engine::config::{Config, Log};
use anticache_engine::durability::recovery::{Opened, Site};
use anticache_engine::durability::snapshot::Verdict;
use anticache_engine::durability::snapshot::keeper::Keeper;
use anticache_engine::error::StartError;
use anticache_engine::io::simulated::SimulatedDisk;
use anticache_engine::net::frame::{RequestHead, Status, parse_requests, write_request};
use anticache_engine::partition::Partition;
use anticache_engine::partition::multi::{Coordinator, run_queued};
use anticache_engine::procedure::{Participants, Procedure, ProcedureSet};
use anticache_engine::txn::{Abort, TxnContext};
use common::{Bytes, COLD, SCHEMA, decode, row};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|number| number.parse().ok()).unwrap_or(default)
}

/// Moves an amount from the first account to each of the others; makes an account where there is none.
#[derive(Debug, Clone)]
struct Transfer {
    keys: Vec<i64>,
}

impl Transfer {
    /// What it adds to each account. No two beginnings of what a partition executes give the same balances: the amounts are drawn by token.
    fn deltas(&self, token: u64) -> impl Iterator<Item = (i64, i64)> {
        let amount = (token.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 24) as i64;
        let others = self.keys.len() as i64 - 1;
        self.keys.iter().enumerate().map(move |(at, &key)| (key, if at == 0 { -others * amount } else { amount }))
    }
}

fn owner(key: i64, partitions: u32) -> u32 {
    key.rem_euclid(i64::from(partitions)) as u32
}

struct Move {
    partitions: u32,
    /// Tokens of what committed, in that order.
    journal: Arc<Mutex<Vec<u64>>>,
}

fn numbers(params: &[u8]) -> Vec<i64> {
    params.chunks_exact(8).map(|eight| i64::from_le_bytes(eight.try_into().unwrap())).collect()
}

impl Procedure for Move {
    fn name(&self) -> &'static str {
        "move"
    }

    fn first_key<'params>(&self, params: &'params [u8]) -> Option<(u16, &'params [u8])> {
        Some((COLD, params.get(8..16)?))
    }

    fn partitions(&self, params: &[u8], partitions: u32) -> Participants {
        numbers(params)[1..].iter().fold(Participants::OWN, |all, &key| all.and(owner(key, partitions)))
    }

    fn execute(&self, txn: &mut TxnContext<'_>, params: &[u8]) -> Result<(), Abort> {
        let numbers = numbers(params);
        let transfer = Transfer { keys: numbers[1..].to_vec() };
        for (key, delta) in transfer.deltas(numbers[0] as u64) {
            let txn = txn.at(owner(key, self.partitions))?;
            let Some(tuple) = txn.lookup(COLD, &key.to_le_bytes()) else {
                txn.insert(COLD, &row(key, delta))?;
                continue;
            };
            let balance = i64::from_le_bytes(txn.row(tuple)?[8..16].try_into().unwrap()) + delta;
            txn.update(tuple, 8, &balance.to_le_bytes())?;
        }
        self.journal.lock().unwrap().push(numbers[0] as u64);
        Ok(())
    }
}

type Balances = BTreeMap<i64, i64>;

/// One process of the database.
struct Process {
    keeper: Keeper,
    site: Arc<Coordinator>,
    partitions: Vec<Partition>,
    sink: Bytes,
    durable: u64,
}

impl Process {
    fn start(disk: &SimulatedDisk, config: &Config, journal: &Arc<Mutex<Vec<u64>>>) -> Result<Self, StartError> {
        let (files, catalog) = (disk.files(), Catalog::from_sql(SCHEMA).unwrap());
        let work = Move { partitions: config.partitions, journal: Arc::clone(journal) };
        let procedures = ProcedureSet::new(vec![Box::new(work)]);
        let site = Site { files: &files, config, catalog: &catalog, schema: SCHEMA, procedures: &procedures };
        let Opened { keeper, coordinator, partitions } = site.open()?;
        Ok(Self { keeper, site: coordinator, partitions, sink: Bytes::default(), durable: 0 })
    }

    fn send(&mut self, token: u64, transfer: &Transfer) {
        let base = owner(transfer.keys[0], self.partitions.len() as u32) as usize;
        let params: Vec<u8> =
            std::iter::once(token as i64).chain(transfer.keys.iter().copied()).flat_map(i64::to_le_bytes).collect();
        let (mut wire, mut heads) = (Vec::new(), Vec::<RequestHead>::new());
        write_request(&mut wire, token, 0, &params);
        parse_requests(&wire, 1, &mut heads).unwrap();
        self.partitions[base].execute_batch(0, 0, &wire, &heads, &mut self.sink);
    }

    fn run_queued(&mut self) {
        run_queued(&self.site, &mut self.partitions.iter_mut().collect::<Vec<_>>());
    }

    fn begin_snapshot(&mut self) {
        if !self.keeper.is_busy()
            && let Ok(begun) = self.keeper.begin()
        {
            let (generation, files) = (begun.generation, begun.files);
            self.site.barrier(move |partition| {
                partition.begin_snapshot(generation, Arc::clone(&files[partition.id() as usize]));
            });
        }
    }

    fn poll(&mut self, partition: usize) {
        self.partitions[partition].poll(&mut self.sink);
        let ended = self.partitions[partition].snapshot_ended();
        if let Some(outcome) = ended.and_then(|ended| self.keeper.part_ended(partition as u32, ended)) {
            self.durable += u64::from(outcome.verdict == Verdict::Durable);
            self.partitions.iter_mut().for_each(|part| part.end_snapshot(outcome.generation, outcome.verdict));
        }
    }

    /// What each partition holds; none when the disk is off.
    fn balances(&self) -> Option<Vec<Balances>> {
        let of = |partition: &Partition| {
            partition.tables().iter().for_each(|table| table.check().unwrap());
            let mut balances = Balances::new();
            let number = |row: &[u8], at: usize| i64::from_le_bytes(row[at..at + 8].try_into().unwrap());
            let take = |row: &[u8]| assert_eq!(balances.insert(number(row, 0), number(row, 8)), None, "a key twice");
            partition.scan_rows(COLD, take).ok().map(|()| balances)
        };
        self.partitions.iter().map(of).collect()
    }
}

struct Case {
    seed: u64,
    random: Pcg64Mcg,
    disk: SimulatedDisk,
    config: Config,
    keys: i64,
    journal: Arc<Mutex<Vec<u64>>>,
    sent: HashMap<u64, Transfer>,
    acknowledged: BTreeSet<u64>,
    /// The state at the beginning of the journal.
    base: Vec<Balances>,
    next_token: u64,
}

#[derive(Debug, Default)]
struct Tally {
    lives: u64,
    snapshots: u64,
    lost: u64,
    replayed: u64,
    evicted: u64,
}

impl Case {
    fn new(seed: u64) -> Self {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let partitions: u32 = random.random_range(2..5);
        let mut config = common::config(Path::new("/db"), u64::from(partitions) << 20);
        (config.partitions, config.log) = (partitions, Log::Sync);
        Self {
            seed,
            disk: SimulatedDisk::new(seed),
            config,
            // Few keys: everything depends on everything. Many: most are evicted.
            keys: if random.random_bool(0.6) { 40 } else { 3000 * i64::from(partitions) },
            random,
            journal: Arc::default(),
            sent: HashMap::new(),
            acknowledged: BTreeSet::new(),
            base: vec![Balances::new(); partitions as usize],
            next_token: 0,
        }
    }

    fn is_off(&self) -> bool {
        self.disk.files().list(&self.config.data_dir).is_err()
    }

    fn invent(&mut self) -> (u64, Transfer) {
        let count = self.random.random_range(2..5);
        let mut keys: Vec<i64> = (0..count).map(|_| self.random.random_range(0..self.keys)).collect();
        if self.random.random_bool(0.5) {
            // At one partition.
            let partitions = i64::from(self.config.partitions);
            let home = keys[0].rem_euclid(partitions);
            keys.iter_mut().for_each(|key| *key += home - key.rem_euclid(partitions));
        }
        let mut seen = BTreeSet::new();
        keys.retain(|key| seen.insert(*key));
        self.next_token += 1;
        let transfer = Transfer { keys };
        self.sent.insert(self.next_token, transfer.clone());
        (self.next_token, transfer)
    }

    fn learn(&mut self, process: &mut Process) {
        for answer in decode(&mut process.sink.0) {
            if answer.status == Status::Committed {
                self.acknowledged.insert(answer.token);
            }
        }
    }

    /// Checks what was recovered, and takes it as the new beginning; how many transactions were lost although one participant executed more after them.
    fn must_hold(&mut self, found: Vec<Balances>, tally: &mut Tally) {
        let journal = std::mem::take(&mut *self.journal.lock().unwrap());
        let partitions = self.config.partitions;
        let touches =
            |token: &u64, partition: u32| self.sent[token].keys.iter().any(|&key| owner(key, partitions) == partition);
        let mut survivors: Vec<BTreeSet<u64>> = Vec::new();
        for (partition, found) in (0..partitions).zip(&found) {
            let own: Vec<u64> = journal.iter().copied().filter(|token| touches(token, partition)).collect();
            let (mut balances, mut kept) = (self.base[partition as usize].clone(), None);
            for at in 0..=own.len() {
                if balances == *found {
                    // The last that fits: a transaction of one account with nobody else changes nothing.
                    kept = Some(at);
                }
                let Some(token) = own.get(at) else { break };
                for (key, delta) in
                    self.sent[token].deltas(*token).filter(|(key, _)| owner(*key, partitions) == partition)
                {
                    *balances.entry(key).or_insert(0) += delta;
                }
            }
            let kept = kept.unwrap_or_else(|| {
                panic!("seed {}: partition {partition} holds no beginning of what it executed", self.seed)
            });
            survivors.push(own[..kept].iter().copied().collect());
        }
        for token in &journal {
            let participants: Vec<u32> = (0..partitions).filter(|&partition| touches(token, partition)).collect();
            let at = participants.iter().filter(|&&partition| survivors[partition as usize].contains(token)).count();
            let transfer = &self.sent[token];
            assert!(
                at == 0 || at == participants.len(),
                "seed {}: {transfer:?} is at {at} of {participants:?}",
                self.seed
            );
            assert!(
                at > 0 || !self.acknowledged.contains(token),
                "seed {}: {transfer:?} was acknowledged and is lost",
                self.seed
            );
            tally.lost += u64::from(at == 0);
        }
        self.acknowledged.clear();
        self.base = found;
    }

    fn run(mut self, tally: &mut Tally) {
        for _ in 0..self.random.random_range(2..6) {
            if self.random.random_bool(0.2) {
                self.disk.cut_after(self.disk.operations() + self.random.random_range(1..200));
            }
            // What is replayed was committed before.
            let before = self.journal.lock().unwrap().clone();
            let started = Process::start(&self.disk, &self.config, &self.journal);
            *self.journal.lock().unwrap() = before;
            let mut process = match started {
                Ok(process) => process,
                Err(_) if self.is_off() => {
                    self.disk.restart();
                    continue;
                }
                Err(error) => panic!("seed {}: {error}", self.seed),
            };
            match process.balances() {
                Some(found) => self.must_hold(found, tally),
                None => assert!(self.is_off(), "seed {}", self.seed),
            }
            tally.lives += 1;
            tally.replayed += process.partitions.iter().map(|part| part.counters().recovered_log_records).sum::<u64>();
            self.live(&mut process);
            tally.snapshots += process.durable;
            tally.evicted += process.partitions.iter().map(|part| part.counters().evicted_tuples).sum::<u64>();
            if self.random.random_bool(0.3) {
                self.disk.kill()
            } else {
                self.disk.power_cut()
            }
            drop(process);
            self.disk.restart();
        }
    }

    fn live(&mut self, process: &mut Process) {
        if self.random.random_bool(0.8) {
            self.disk.cut_after(self.disk.operations() + self.random.random_range(1..2500));
        }
        let steps = if self.keys > 100 { 6000 } else { 1500 };
        for _ in 0..self.random.random_range(1..steps) {
            match self.random.random_range(0..100) {
                0..50 => {
                    let (token, transfer) = self.invent();
                    process.send(token, &transfer);
                }
                50..80 => process.poll(self.random.random_range(0..self.config.partitions as usize)),
                80..99 => process.run_queued(),
                _ => process.begin_snapshot(),
            }
            self.learn(process);
        }
    }
}

#[test]
fn what_was_acknowledged_survives_at_all_participants() {
    let (cases, first) = (number("CRASH_CASES", 40), number("CRASH_SEED", 1));
    let mut tally = Tally::default();
    for seed in first..first + cases {
        Case::new(seed).run(&mut tally);
    }
    eprintln!("{cases} cases: {tally:?}");
    if cases >= 40 {
        let Tally { snapshots, lost, replayed, .. } = tally;
        assert!(snapshots > 20 && lost > 20 && replayed > 500, "the cases do not reach what they are for: {tally:?}");
    }
}
