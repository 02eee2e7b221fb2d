//! The engine against a plain map, with a budget so small that most tuples are evicted, for every merge strategy.

use std::collections::BTreeMap;

use anticache_engine::config::{AntiCaching, Compaction, Log, Merge};
use anticache_engine::net::frame::Status;
use proptest::prelude::*;

use crate::support::database::{ADD, COLD, DELETE, Database, INSERT, OTHER, READ, SHUFFLE, SUM, TRANSFER, params};
use crate::support::effort::properties;
use crate::support::replies::Answer;

/// Keys 0..KEYS are loaded at the start: about four times what the budget of 1 MiB holds.
const KEYS: i64 = 3000;

type Model = BTreeMap<(u16, i64), i64>;

#[derive(Debug, Clone)]
enum Op {
    Insert(u16, i64, i64),
    Read(u16, i64),
    Add(u16, i64, i64),
    Delete(u16, i64),
    Transfer(u16, i64, i64, i64),
    Sum(u16, Vec<i64>),
    Shuffle(u16, i64, i64, i64, i64),
}

fn op() -> impl Strategy<Value = Op> {
    let table = prop_oneof![4 => Just(COLD), 1 => Just(OTHER)];
    // A hot range and the rest, so that tuples go out and come back.
    let key = prop_oneof![2 => 0..60i64, 3 => 0..KEYS + 50];
    prop_oneof![
        1 => (table.clone(), key.clone(), any::<i32>()).prop_map(|(t, k, v)| Op::Insert(t, k, v.into())),
        4 => (table.clone(), key.clone()).prop_map(|(t, k)| Op::Read(t, k)),
        3 => (table.clone(), key.clone(), any::<i32>()).prop_map(|(t, k, v)| Op::Add(t, k, v.into())),
        1 => (table.clone(), key.clone()).prop_map(|(t, k)| Op::Delete(t, k)),
        2 => (table.clone(), key.clone(), key.clone(), -20..100i64).prop_map(|(t, a, b, v)| Op::Transfer(t, a, b, v)),
        1 => (table.clone(), prop::collection::vec(key.clone(), 1..12)).prop_map(|(t, ks)| Op::Sum(t, ks)),
        2 => (table, key.clone(), key.clone(), key, -1..1i64).prop_map(|(t, a, b, c, s)| Op::Shuffle(t, a, b, c, s)),
    ]
}

fn request(op: &Op) -> (u16, Vec<u8>) {
    match op {
        Op::Insert(t, k, v) => (INSERT, params(*t, &[*k, *v])),
        Op::Read(t, k) => (READ, params(*t, &[*k])),
        Op::Add(t, k, v) => (ADD, params(*t, &[*k, *v])),
        Op::Delete(t, k) => (DELETE, params(*t, &[*k])),
        Op::Transfer(t, a, b, v) => (TRANSFER, params(*t, &[*a, *b, *v])),
        Op::Sum(t, ks) => (SUM, params(*t, ks)),
        Op::Shuffle(t, a, b, new, sign) => (SHUFFLE, params(*t, &[*a, *b, *new, *sign])),
    }
}

/// What the map answers, changing it.
fn expected(model: &mut Model, op: &Op) -> Result<Vec<u8>, &'static str> {
    match op {
        Op::Insert(t, k, v) => {
            if model.contains_key(&(*t, *k)) {
                return Err("duplicate key");
            }
            model.insert((*t, *k), *v);
            Ok(Vec::new())
        }
        Op::Read(t, k) => model.get(&(*t, *k)).map(|v| v.to_le_bytes().to_vec()).ok_or("missing"),
        Op::Add(t, k, v) => {
            *model.get_mut(&(*t, *k)).ok_or("missing")? += v;
            Ok(Vec::new())
        }
        Op::Delete(t, k) => model.remove(&(*t, *k)).map(|_| Vec::new()).ok_or("missing"),
        Op::Transfer(t, a, b, v) => {
            if !model.contains_key(&(*t, *a)) || !model.contains_key(&(*t, *b)) {
                return Err("missing");
            }
            if *v < 0 {
                return Err("negative amount");
            }
            *model.get_mut(&(*t, *a)).unwrap() -= v;
            *model.get_mut(&(*t, *b)).unwrap() += v;
            Ok(Vec::new())
        }
        Op::Shuffle(t, a, b, new, sign) => {
            if !model.contains_key(&(*t, *a)) || !model.contains_key(&(*t, *b)) {
                return Err("missing");
            }
            if model.contains_key(&(*t, *new)) {
                return Err("duplicate key");
            }
            if *sign < 0 {
                return Err("negative");
            }
            let value = model[&(*t, *a)] + 1;
            model.remove(&(*t, *b));
            model.insert((*t, *new), value);
            model.insert((*t, *a), value);
            Ok(Vec::new())
        }
        Op::Sum(t, ks) => Ok(ks.iter().filter_map(|k| model.get(&(*t, *k))).sum::<i64>().to_le_bytes().to_vec()),
    }
}

fn agree(model: &mut Model, op: &Op, answer: &Answer) {
    match expected(model, op) {
        Ok(payload) => assert_eq!((answer.status, &answer.payload), (Status::Committed, &payload), "{op:?}"),
        Err(reason) => assert_eq!((answer.status, answer.text().as_str()), (Status::Aborted, reason), "{op:?}"),
    }
}

fn load(database: &mut Database, model: &mut Model) {
    load_tables(database, model, &[(COLD, KEYS), (OTHER, KEYS / 4)]);
}

fn load_tables(database: &mut Database, model: &mut Model, tables: &[(u16, i64)]) {
    for &(table, keys) in tables {
        for first in (0..keys).step_by(50) {
            let ops: Vec<Op> = (first..first + 50).map(|k| Op::Insert(table, k, k * 3)).collect();
            run_in_reply_order(database, model, &ops);
        }
    }
}

/// Replies are released in commit order (log off), so the map applies the operations in that order: the engine's results must be those of this
/// serial execution.
fn run_in_reply_order(database: &mut Database, model: &mut Model, ops: &[Op]) {
    let requests: Vec<_> =
        ops.iter().enumerate().map(|(token, op)| (token as u64, request(op).0, request(op).1)).collect();
    for answer in database.run(&requests) {
        agree(model, &ops[answer.token as usize], &answer);
    }
}

fn everything_agrees(database: &mut Database, model: &mut Model) {
    for table in [COLD, OTHER] {
        let keys: Vec<i64> = (0..KEYS + 50).collect();
        for chunk in keys.chunks(64) {
            let ops: Vec<Op> = chunk.iter().map(|&k| Op::Read(table, k)).collect();
            run_in_reply_order(database, model, &ops);
        }
    }
    database.settle();
    database.check();
}

fn strategies() -> impl Strategy<Value = (Merge, f64, AntiCaching, f64, Compaction)> {
    (
        prop_oneof![Just(Merge::Tuple), Just(Merge::Block)],
        prop_oneof![Just(0.1), Just(0.5), Just(1.0)],
        prop_oneof![Just(AntiCaching::Lru), Just(AntiCaching::Alru)],
        prop_oneof![Just(0.0), Just(0.3)],
        prop_oneof![Just(Compaction::Lazy), Just(Compaction::Background)],
    )
}

proptest! {
    #![proptest_config(properties(24))]

    #[test]
    fn behaves_like_a_map((merge, hole_threshold, anticaching, probation_share, compaction) in strategies(), batches in prop::collection::vec(prop::collection::vec(op(), 1..80), 1..30)) {
        let mut database = Database::create(|config| {
            config.merge = merge;
            config.hole_threshold = hole_threshold;
            config.anticaching = anticaching;
            config.probation_share = probation_share;
            config.compaction = compaction;
        });
        let mut model = Model::new();
        load(&mut database, &mut model);
        let resident = database.partition.gauges().tuples_resident;
        prop_assert!(resident * 2 < model.len() as u64, "{resident} of {} tuples are in memory", model.len());
        for ops in &batches {
            run_in_reply_order(&mut database, &mut model, ops);
        }
        everything_agrees(&mut database, &mut model);
        let gauges = database.partition.gauges();
        prop_assert_eq!(gauges.tuples_resident + gauges.tuples_evicted, model.len() as u64);
    }
}

/// With the log on, replies wait for their groups and come in another order; operations on different keys have one right answer in any order.
#[test]
fn behaves_like_a_map_with_the_log_on() {
    for merge in [Merge::Tuple, Merge::Block] {
        let mut database = Database::create(|config| {
            config.merge = merge;
            config.log = Log::Sync;
        });
        let mut model = Model::new();
        load(&mut database, &mut model);
        for round in 0..60i64 {
            let ops: Vec<Op> = (0..40)
                .map(|n| {
                    let key = (n * 73 + round * 31) % KEYS;
                    if n % 3 == 0 { Op::Add(COLD, key, n) } else { Op::Read(COLD, key) }
                })
                .collect();
            run_in_reply_order(&mut database, &mut model, &ops);
        }
        everything_agrees(&mut database, &mut model);
        assert!(database.partition.gauges().log_groups > 60);
    }
}

/// One pre-pass finds all evicted tuples of a transaction: it is restarted once, however many blocks it needs.
#[test]
fn independent_evicted_tuples_are_fetched_in_one_pass() {
    let mut database = Database::create(|_| {});
    let mut model = Model::new();
    load(&mut database, &mut model);
    let keys: Vec<i64> = (0..10).map(|n| n * 100).collect();
    let before = *database.partition.counters();
    let answer = database.run_one(SUM, params(COLD, &keys));
    assert_eq!(answer.payload, keys.iter().map(|k| k * 3).sum::<i64>().to_le_bytes());
    let after = *database.partition.counters();
    assert_eq!(after.restarted - before.restarted, 1);
    assert_eq!(after.merged_wanted - before.merged_wanted, 10);
    // Again: they are in memory now.
    database.run_one(SUM, params(COLD, &keys));
    assert_eq!(database.partition.counters().restarted, after.restarted);
}

/// While one transaction waits for its block, others run.
#[test]
fn a_fetch_does_not_block_the_partition() {
    let mut database = Database::create(|_| {});
    let mut model = Model::new();
    load(&mut database, &mut model);
    let answers = database.run(&[(1, READ, params(COLD, &[5])), (2, READ, params(COLD, &[KEYS - 1]))]);
    assert_eq!(answers.iter().map(|answer| answer.token).collect::<Vec<_>>(), [2, 1]);
}

/// The store does not grow while tuples only go out and come back (blocks are emptied, compacted, and their ids used again).
#[test]
fn the_store_stays_bounded_under_churn() {
    for merge in [Merge::Tuple, Merge::Block] {
        let mut database = Database::create(|config| config.merge = merge);
        let mut model = Model::new();
        load(&mut database, &mut model);
        let mut high_water = 0;
        for round in 0..200i64 {
            let ops: Vec<Op> = (0..64).map(|n| Op::Add(COLD, (round * 641 + n * 47) % KEYS, 1)).collect();
            run_in_reply_order(&mut database, &mut model, &ops);
            if round == 60 {
                high_water = database.partition.gauges().blocks_high_water;
            }
        }
        let gauges = database.partition.gauges();
        assert!(
            gauges.blocks_high_water <= high_water * 5 / 4,
            "{merge:?}: {high_water} blocks became {}",
            gauges.blocks_high_water
        );
        everything_agrees(&mut database, &mut model);
    }
}

/// Same seed, same requests: the same evictions, merges and restarts. One batch at a time, because the order of disk completions is not ours.
#[test]
fn the_same_seed_gives_the_same_run() {
    let run = || {
        let mut database = Database::create(|_| {});
        for first in (0..KEYS).step_by(5) {
            let requests: Vec<_> = (first..first + 5).map(|k| (k as u64, INSERT, params(COLD, &[k, k]))).collect();
            database.run(&requests);
            database.settle();
        }
        for n in 0..300 {
            database.run_one(READ, params(COLD, &[(n * n) % KEYS]));
            database.settle();
        }
        let counters = database.partition.counters();
        assert!(counters.restarted > 50 && counters.sampled > 500);
        (counters.sampled, counters.evicted_tuples, counters.merged_tuples, counters.restarted)
    };
    assert_eq!(run(), run());
}

#[test]
fn without_anticaching_a_full_memory_is_a_named_failure() {
    let mut database = Database::create(|config| config.anticaching = AntiCaching::Off);
    let mut last = None;
    for id in 0..5000 {
        let answer = database.run_one(INSERT, params(COLD, &[id, 0]));
        if answer.status != Status::Committed {
            last = Some(answer);
            break;
        }
    }
    let refused = last.expect("1 MiB cannot hold 5000 rows of 508 bytes");
    assert_eq!(refused.status, Status::Failed);
    assert!(
        refused.text().contains("memory budget of 1048576 bytes is used up and nothing can be evicted"),
        "{}",
        refused.text()
    );
    assert_eq!(database.run_one(READ, params(COLD, &[0])).status, Status::Committed);
}
