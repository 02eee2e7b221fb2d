//! Several partitions with procedures that touch more than one of them, and a map that does the same.
//!
//! Every transaction draws a number when it is executed, and tells it in its reply. A partition executes one transaction at a time, and one on
//! several has all of them, so the order of these numbers is a serial order of what happened, whatever the order of the replies.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anticache_engine::catalog::Catalog;
use anticache_engine::config::Config;
use anticache_engine::durability::recovery::{Opened, Site};
use anticache_engine::durability::snapshot::keeper::{Keeper, Outcome as SnapshotOutcome};
use anticache_engine::error::StartError;
use anticache_engine::io::files::{Files, KernelFiles, create_directory};
use anticache_engine::net::frame::{RequestHead, Status, parse_requests, write_request};
use anticache_engine::partition::Partition;
use anticache_engine::partition::multi::{Coordinator, run_queued};
use anticache_engine::procedure::{FirstTuple, Participants, Procedure, ProcedureSet};
use anticache_engine::txn::{Abort, TupleRef, TxnContext};
use proptest::prelude::*;

use crate::support::database::{COLD, SCHEMA, config, row};
use crate::support::replies::{Answer, Bytes, decode};

/// What clients ask for. Keys live at partition `key % partitions`; requests go to the partition of their first key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    Insert(i64, i64),
    Read(i64),
    Add(i64, i64),
    Delete(i64),
    /// From one account to others, the amount to each; gives up after its writes when the amount is negative.
    Spread(i64, Vec<i64>, i64),
    Sum(Vec<i64>),
    /// An account with its balance goes to another key.
    Move(i64, i64),
}

impl Op {
    pub fn keys(&self) -> Vec<i64> {
        match self {
            Self::Insert(key, _) | Self::Read(key) | Self::Add(key, _) | Self::Delete(key) => vec![*key],
            Self::Spread(from, to, _) => std::iter::once(*from).chain(to.iter().copied()).collect(),
            Self::Sum(keys) => keys.clone(),
            Self::Move(from, to) => vec![*from, *to],
        }
    }

    pub fn writes(&self) -> bool {
        !matches!(self, Self::Read(_) | Self::Sum(_))
    }

    pub fn base(&self, partitions: i64) -> usize {
        self.keys()[0].rem_euclid(partitions) as usize
    }

    /// Procedure and parameters: the number of keys, the keys, an amount or 0, and a token that names the request.
    pub fn request(&self, token: u64) -> (u16, Vec<u8>) {
        let (procedure, amount) = match self {
            Self::Insert(_, value) => (0, *value),
            Self::Read(_) => (1, 0),
            Self::Add(_, amount) => (2, *amount),
            Self::Delete(_) => (3, 0),
            Self::Spread(_, _, amount) => (4, *amount),
            Self::Sum(_) => (5, 0),
            Self::Move(..) => (6, 0),
        };
        let keys = self.keys();
        let numbers = std::iter::once(keys.len() as i64).chain(keys).chain([amount, token as i64]);
        (procedure, numbers.flat_map(i64::to_le_bytes).collect())
    }
}

pub type Model = BTreeMap<i64, i64>;

/// What the map answers, changing it.
pub fn expected(model: &mut Model, op: &Op) -> Result<Vec<i64>, &'static str> {
    match op {
        Op::Insert(key, _) if model.contains_key(key) => Err("duplicate key"),
        Op::Insert(key, value) => {
            model.insert(*key, *value);
            Ok(vec![])
        }
        Op::Read(key) => model.get(key).map(|&value| vec![value]).ok_or("missing"),
        Op::Add(key, amount) => model.get_mut(key).map(|value| *value += amount).ok_or("missing").map(|()| vec![]),
        Op::Delete(key) => model.remove(key).map(|_| vec![]).ok_or("missing"),
        Op::Spread(from, to, amount) => {
            if op.keys().iter().any(|key| !model.contains_key(key)) {
                return Err("missing");
            }
            if *amount < 0 {
                return Err("negative amount");
            }
            *model.get_mut(from).unwrap() -= amount * to.len() as i64;
            to.iter().for_each(|key| *model.get_mut(key).unwrap() += amount);
            Ok(vec![])
        }
        Op::Sum(keys) => Ok(keys.iter().map(|key| model.get(key).copied().unwrap_or(0)).collect()),
        Op::Move(from, to) => {
            if !model.contains_key(from) {
                return Err("missing");
            }
            if model.contains_key(to) {
                return Err("duplicate key");
            }
            let value = model.remove(from).unwrap();
            model.insert(*to, value);
            Ok(vec![value])
        }
    }
}

/// The numbers that executions draw, for one database.
#[derive(Default)]
pub struct Clock {
    next: AtomicU64,
    /// Of the last execution of each request, by token: for those whose replies are lost.
    last: Mutex<HashMap<u64, u64>>,
    /// By partition, the tokens of the executions that wrote and committed: its log, as it should be.
    journal: Mutex<BTreeMap<u32, Vec<u64>>>,
}

impl Clock {
    fn draw(&self, token: u64) -> u64 {
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        self.last.lock().unwrap().insert(token, number);
        number
    }

    fn wrote(&self, token: u64, partitions: impl Iterator<Item = u32>) {
        let mut journal = self.journal.lock().unwrap();
        partitions.for_each(|partition| journal.entry(partition).or_default().push(token));
    }

    /// What each partition has written since the beginning.
    pub fn journal(&self) -> BTreeMap<u32, Vec<u64>> {
        self.journal.lock().unwrap().clone()
    }

    /// What a partition has written is this.
    pub fn set_journal(&self, journal: BTreeMap<u32, Vec<u64>>) {
        *self.journal.lock().unwrap() = journal;
    }

    /// Does something that executes transactions again, which counts for nothing.
    pub fn aside<T>(&self, work: impl FnOnce() -> T) -> T {
        let (last, journal) = (self.last.lock().unwrap().clone(), self.journal());
        let result = work();
        *self.last.lock().unwrap() = last;
        self.set_journal(journal);
        result
    }

    pub fn executed(&self, token: u64) -> Option<u64> {
        self.last.lock().unwrap().get(&token).copied()
    }
}

/// The token in a request's parameters.
pub fn token_of(params: &[u8]) -> u64 {
    u64::from_le_bytes(params[params.len() - 8..].try_into().unwrap())
}

type Body = fn(&mut TxnContext<'_>, u32, &[i64], i64) -> Result<(), Abort>;

struct Numbered {
    name: &'static str,
    body: Body,
    clock: Arc<Clock>,
    partitions: u32,
}

fn unpack(params: &[u8]) -> (Vec<i64>, i64) {
    let mut numbers = params.chunks_exact(8).map(|number| i64::from_le_bytes(number.try_into().unwrap()));
    let count = numbers.next().unwrap() as usize;
    let keys = numbers.by_ref().take(count).collect();
    (keys, numbers.next().unwrap_or(0))
}

pub fn owner(key: i64, partitions: u32) -> u32 {
    key.rem_euclid(i64::from(partitions)) as u32
}

impl Procedure for Numbered {
    fn name(&self) -> &'static str {
        self.name
    }

    fn first_tuple<'call>(&'call self, params: &'call [u8]) -> Option<FirstTuple<'call>> {
        Some(FirstTuple::whole(COLD, params.get(8..16)?))
    }

    fn partitions(&self, params: &[u8], partitions: u32) -> Participants {
        unpack(params).0.iter().fold(Participants::OWN, |all, &key| all.and(owner(key, partitions)))
    }

    fn execute(&self, txn: &mut TxnContext<'_>, params: &[u8]) -> Result<(), Abort> {
        let (keys, amount) = unpack(params);
        let outcome = (self.body)(txn, self.partitions, &keys, amount);
        let number = self.clock.draw(token_of(params));
        match outcome {
            Ok(()) => {
                // A transfer to nobody writes nothing.
                if !["read", "sum"].contains(&self.name) && (self.name != "spread" || keys.len() > 1) {
                    let owners: BTreeSet<u32> = keys.iter().map(|&key| owner(key, self.partitions)).collect();
                    self.clock.wrote(token_of(params), owners.into_iter());
                }
                txn.reply(&number.to_le_bytes());
                Ok(())
            }
            Err(Abort::User(reason)) => Err(Abort::user(format!("{reason}@{number}"))),
            Err(other) => Err(other),
        }
    }
}

fn find(txn: &mut TxnContext<'_>, partitions: u32, key: i64) -> Result<Option<TupleRef>, Abort> {
    Ok(txn.at(owner(key, partitions))?.lookup(COLD, &key.to_le_bytes()))
}

fn must_find(txn: &mut TxnContext<'_>, partitions: u32, key: i64) -> Result<TupleRef, Abort> {
    find(txn, partitions, key)?.ok_or(Abort::user("missing"))
}

fn value_at(txn: &mut TxnContext<'_>, partitions: u32, key: i64, tuple: TupleRef) -> Result<i64, Abort> {
    let row = txn.at(owner(key, partitions))?.row(tuple)?;
    assert_eq!(row[..8], key.to_le_bytes());
    assert!(row[16..].iter().all(|&byte| i64::from(byte) == key % 251), "a damaged row");
    Ok(i64::from_le_bytes(row[8..16].try_into().unwrap()))
}

fn set(txn: &mut TxnContext<'_>, partitions: u32, key: i64, tuple: TupleRef, value: i64) -> Result<(), Abort> {
    txn.at(owner(key, partitions))?.update(tuple, 8, &value.to_le_bytes())
}

fn spread(txn: &mut TxnContext<'_>, n: u32, keys: &[i64], amount: i64) -> Result<(), Abort> {
    let tuples: Vec<TupleRef> = keys.iter().map(|&key| must_find(txn, n, key)).collect::<Result<_, _>>()?;
    for (&key, &tuple) in keys.iter().zip(&tuples).skip(1) {
        // Written before the others are read, so that there is something to undo when one of them is evicted.
        let left = value_at(txn, n, keys[0], tuples[0])? - amount;
        set(txn, n, keys[0], tuples[0], left)?;
        let arrived = value_at(txn, n, key, tuple)? + amount;
        set(txn, n, key, tuple, arrived)?;
    }
    if amount < 0 { Err(Abort::user("negative amount")) } else { Ok(()) }
}

fn sum(txn: &mut TxnContext<'_>, n: u32, keys: &[i64], _: i64) -> Result<(), Abort> {
    let tuples: Vec<Option<TupleRef>> = keys.iter().map(|&key| find(txn, n, key)).collect::<Result<_, _>>()?;
    for (&key, tuple) in keys.iter().zip(tuples) {
        let value = tuple.map_or(Ok(0), |tuple| value_at(txn, n, key, tuple))?;
        // Appended at whoever has it: it must be one reply in this order all the same.
        txn.at(owner(key, n))?.reply(&value.to_le_bytes());
    }
    Ok(())
}

fn move_account(txn: &mut TxnContext<'_>, n: u32, keys: &[i64], _: i64) -> Result<(), Abort> {
    let from = must_find(txn, n, keys[0])?;
    let taken = find(txn, n, keys[1])?.is_some();
    let value = value_at(txn, n, keys[0], from)?;
    txn.at(owner(keys[0], n))?.delete(from)?;
    if taken {
        return Err(Abort::user("duplicate key"));
    }
    txn.at(owner(keys[1], n))?.insert(COLD, &row(keys[1], value))?;
    txn.reply(&value.to_le_bytes());
    Ok(())
}

pub fn procedures(clock: &Arc<Clock>, partitions: u32) -> ProcedureSet {
    let all: [(&'static str, Body); 7] = [
        ("insert", |txn, _, keys, value| txn.insert(COLD, &row(keys[0], value)).map(|_| ())),
        ("read", |txn, n, keys, _| {
            let tuple = must_find(txn, n, keys[0])?;
            let value = value_at(txn, n, keys[0], tuple)?;
            txn.reply(&value.to_le_bytes());
            Ok(())
        }),
        ("add", |txn, n, keys, amount| {
            let tuple = must_find(txn, n, keys[0])?;
            let value = value_at(txn, n, keys[0], tuple)? + amount;
            set(txn, n, keys[0], tuple, value)
        }),
        ("delete", |txn, n, keys, _| {
            let tuple = must_find(txn, n, keys[0])?;
            txn.delete(tuple)
        }),
        ("spread", spread),
        ("sum", sum),
        ("move", move_account),
    ];
    let numbered =
        |(name, body)| Box::new(Numbered { name, body, clock: Arc::clone(clock), partitions }) as Box<dyn Procedure>;
    ProcedureSet::new(all.into_iter().map(numbered).collect())
}

/// A reply, with its place in the serial order; None for a failure, which did nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub at: Option<u64>,
    pub result: Result<Vec<i64>, String>,
}

pub fn outcome(status: Status, payload: &[u8]) -> Outcome {
    let text = String::from_utf8_lossy(payload).into_owned();
    match status {
        Status::Committed => {
            let mut numbers: Vec<i64> =
                payload.chunks_exact(8).map(|number| i64::from_le_bytes(number.try_into().unwrap())).collect();
            Outcome { at: numbers.pop().map(|at| at as u64), result: Ok(numbers) }
        }
        Status::Aborted => {
            let (reason, at) = text.rsplit_once('@').unwrap();
            Outcome { at: Some(at.parse().unwrap()), result: Err(reason.to_owned()) }
        }
        Status::Failed => Outcome { at: None, result: Err(text) },
    }
}

/// Partitions of one site in one thread.
pub struct Cluster {
    pub partitions: Vec<Partition>,
    pub site: Arc<Coordinator>,
    pub clock: Arc<Clock>,
    /// By token.
    pub sent: Vec<Op>,
    pub answers: BTreeMap<u64, Outcome>,
    /// Where it can be recovered.
    pub keeper: Option<Keeper>,
    /// What became of the snapshots.
    pub snapshots: Vec<SnapshotOutcome>,
    sink: Bytes,
    _directory: Option<tempfile::TempDir>,
}

impl Cluster {
    pub fn create(partitions: u32, change: impl FnOnce(&mut Config)) -> Self {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let files: Arc<dyn Files> = Arc::new(KernelFiles::new());
        let mut config = config(directory.path(), u64::from(partitions) << 20);
        change(&mut config);
        let mut cluster = Self::create_on(&files, partitions, &config);
        cluster._directory = Some(directory);
        cluster
    }

    pub fn create_on(files: &Arc<dyn Files>, partitions: u32, config: &Config) -> Self {
        let config = Config { partitions, ..config.clone() };
        config.check().unwrap();
        create_directory(&**files, &config.data_dir).unwrap();
        let catalog = Catalog::from_sql(SCHEMA).unwrap();
        let (site, clock) = (Arc::new(Coordinator::new(partitions, 1).unwrap()), Arc::new(Clock::default()));
        let set = procedures(&clock, partitions);
        let create = |id| {
            let created = Partition::create_on(files, id, &config, &catalog, set.clone(), &config.data_dir);
            let mut partition = created.unwrap();
            partition.join(&site);
            partition
        };
        let partitions = (0..partitions).map(create).collect();
        Self {
            partitions,
            site,
            clock,
            sent: vec![],
            answers: BTreeMap::new(),
            keeper: None,
            snapshots: vec![],
            sink: Bytes::default(),
            _directory: None,
        }
    }

    /// What the directory holds, or a new database; the clock goes on.
    pub fn open_on(files: &Arc<dyn Files>, config: &Config, clock: &Arc<Clock>) -> Result<Self, StartError> {
        let catalog = Catalog::from_sql(SCHEMA).unwrap();
        let procedures = procedures(clock, config.partitions);
        let database = Site { files, config, catalog: &catalog, schema: SCHEMA, procedures: &procedures };
        let Opened { keeper, coordinator, partitions } = clock.aside(|| database.open())?;
        Ok(Self {
            partitions,
            site: coordinator,
            clock: Arc::clone(clock),
            sent: vec![],
            answers: BTreeMap::new(),
            keeper: Some(keeper),
            snapshots: vec![],
            sink: Bytes::default(),
            _directory: None,
        })
    }

    /// Has a snapshot begun, in a barrier, unless one is under way or the disk refuses.
    pub fn begin_snapshot(&mut self) -> bool {
        let Some(begun) =
            self.keeper.as_mut().filter(|keeper| !keeper.is_busy()).and_then(|keeper| keeper.begin().ok())
        else {
            return false;
        };
        self.site.barrier(move |partition| {
            partition.begin_snapshot(begun.generation, Arc::clone(&begun.files[partition.id() as usize]));
        });
        true
    }

    /// Takes a snapshot to its end.
    pub fn snapshot(&mut self) -> SnapshotOutcome {
        let before = self.snapshots.len();
        assert!(self.begin_snapshot());
        for _ in 0..100_000 {
            self.run_queued();
            (0..self.partitions.len()).for_each(|partition| self.poll(partition));
            if let Some(outcome) = self.snapshots.get(before) {
                return outcome.clone();
            }
        }
        panic!("the snapshot does not end");
    }

    pub fn send(&mut self, op: Op) {
        let base = op.base(self.partitions.len() as i64);
        let (procedure, params) = op.request(self.sent.len() as u64);
        let (mut wire, mut heads) = (Vec::new(), Vec::<RequestHead>::new());
        write_request(&mut wire, self.sent.len() as u64, procedure, &params);
        parse_requests(&wire, 1, &mut heads).unwrap();
        self.sent.push(op);
        self.partitions[base].execute_batch(0, 0, &wire, &heads, &mut self.sink);
        self.collect();
    }

    pub fn run_queued(&mut self) {
        run_queued(&self.site, &mut self.partitions.iter_mut().collect::<Vec<_>>());
    }

    pub fn poll(&mut self, partition: usize) {
        self.partitions[partition].poll(&mut self.sink);
        self.collect();
        let ended = self.partitions[partition].snapshot_ended();
        let outcome = ended.and_then(|ended| self.keeper.as_mut()?.part_ended(partition as u32, ended));
        if let Some(outcome) = outcome {
            let SnapshotOutcome { generation, verdict, .. } = outcome;
            self.partitions.iter_mut().for_each(|partition| partition.end_snapshot(generation, verdict));
            self.snapshots.push(outcome);
        }
    }

    fn collect(&mut self) {
        for Answer { token, status, payload } in decode(&mut self.sink.0) {
            let before = self.answers.insert(token, outcome(status, &payload));
            assert_eq!(before, None, "two replies to {:?}", self.sent[token as usize]);
        }
    }

    /// Lets everything under way end.
    pub fn settle(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.answers.len() < self.sent.len() || !self.partitions.iter().all(Partition::is_idle) {
            self.run_queued();
            (0..self.partitions.len()).for_each(|partition| self.poll(partition));
            if Instant::now() > deadline {
                let missing: Vec<_> =
                    self.sent.iter().zip(0..).filter(|(_, token)| !self.answers.contains_key(token)).collect();
                panic!("without a reply: {missing:?}");
            }
        }
    }

    /// Everything in the partitions, by key.
    pub fn rows(&self) -> Model {
        let mut all = Model::new();
        for (partition, number) in self.partitions.iter().zip(0..) {
            let take = |row: &[u8]| {
                let key = i64::from_le_bytes(row[..8].try_into().unwrap());
                assert_eq!(owner(key, self.partitions.len() as u32), number);
                let before = all.insert(key, i64::from_le_bytes(row[8..16].try_into().unwrap()));
                assert_eq!(before, None, "key {key} twice");
            };
            partition.scan_rows(COLD, take).unwrap();
        }
        all
    }

    pub fn check(&self) {
        for partition in &self.partitions {
            partition.tables().iter().for_each(|table| table.check().unwrap());
            assert!(!partition.meter().is_over());
        }
    }

    pub fn counted(&self, count: impl Fn(&anticache_engine::stats::Counters) -> u64) -> u64 {
        self.partitions.iter().map(|partition| count(partition.counters())).sum()
    }
}

/// Replays what was answered on the map, in the serial order, and compares every answer; returns how many were failures.
pub fn agree(model: &mut Model, sent: &[Op], answers: &BTreeMap<u64, Outcome>) -> usize {
    let mut order: Vec<(u64, u64)> =
        answers.iter().filter_map(|(&token, outcome)| Some((outcome.at?, token))).collect();
    order.sort_unstable();
    for (_, token) in &order {
        let op = &sent[*token as usize];
        let expected = expected(model, op).map_err(str::to_owned);
        assert_eq!(answers[token].result, expected, "{op:?}");
    }
    answers.len() - order.len()
}

/// Random operations on keys below `keys`, a few of which are hot.
pub fn op(keys: i64, partitions: i64) -> impl Strategy<Value = Op> {
    let key = prop_oneof![1 => 0..40i64, 3 => 0..keys + 50];
    let distinct = |from: i64, mut to: Vec<i64>| {
        to.sort_unstable();
        to.dedup();
        to.retain(|&key| key != from);
        (from, to)
    };
    prop_oneof![
        1 => (key.clone(), -1000..1000i64).prop_map(|(key, value)| Op::Insert(key, value)),
        3 => key.clone().prop_map(Op::Read),
        3 => (key.clone(), -1000..1000i64).prop_map(|(key, amount)| Op::Add(key, amount)),
        1 => key.clone().prop_map(Op::Delete),
        4 => (key.clone(), prop::collection::vec(key.clone(), 1..5), -20..100i64).prop_map(move |(from, to, amount)| {
            let (from, to) = distinct(from, to);
            Op::Spread(from, to, amount)
        }),
        2 => prop::collection::vec(key.clone(), 1..9).prop_map(Op::Sum),
        2 => (key.clone(), key, 0..partitions).prop_map(move |(from, to, _)| {
            Op::Move(from, if from == to { to + 1 } else { to })
        }),
    ]
}
