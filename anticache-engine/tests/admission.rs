//! Transactions that all fit into memory, but far from all together: each one ends, whatever the others keep.
#![allow(clippy::unwrap_used)] // a test that fails may panic

mod cluster;
mod common;

use anticache_engine::config::{AntiCaching, Log, Merge};
use cluster::{Cluster, Model, Op, agree};
use proptest::prelude::*;

const KEYS_PER_PARTITION: i64 = 3000;

fn loaded(partitions: u32, merge: Merge, log: Log) -> Cluster {
    let mut cluster = Cluster::create(partitions, |config| {
        (config.merge, config.anticaching, config.log) = (merge, AntiCaching::Lru, log);
    });
    for key in 0..KEYS_PER_PARTITION * i64::from(partitions) {
        cluster.send(Op::Insert(key, key));
        if key % 50 == 49 {
            cluster.settle();
        }
    }
    cluster.settle();
    cluster
}

/// Sums and transfers with many accounts all over the database, and new accounts in between, which want memory at once.
fn op(keys: i64) -> impl Strategy<Value = Op> {
    let many = prop::collection::btree_set(0..keys, 30..90).prop_map(|keys| keys.into_iter().collect::<Vec<_>>());
    let shuffled = many.prop_shuffle();
    prop_oneof![
        4 => shuffled.clone().prop_map(Op::Sum),
        2 => shuffled.prop_map(|mut keys| Op::Spread(keys.pop().unwrap(), keys, 1)),
        1 => (keys..100 * keys).prop_map(|key| Op::Insert(key, 1)),
    ]
}

fn setting() -> impl Strategy<Value = (u32, Merge, Log, Vec<Op>)> {
    let merge = prop_oneof![Just(Merge::Tuple), Just(Merge::Block)];
    let log = prop_oneof![Just(Log::Off), Just(Log::Sync)];
    (1..4u32, merge, log).prop_flat_map(|(partitions, merge, log)| {
        let ops = prop::collection::vec(op(KEYS_PER_PARTITION * i64::from(partitions)), 300..500);
        (Just(partitions), Just(merge), Just(log), ops)
    })
}

fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 0, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whoever_fits_alone_is_served((partitions, merge, log, ops) in setting()) {
        let mut cluster = loaded(partitions, merge, log);
        for op in ops {
            cluster.send(op);
        }
        cluster.settle();
        let failures: Vec<_> = cluster.answers.values().filter(|answer| answer.at.is_none()).collect();
        prop_assert!(failures.is_empty(), "{} failures: {:?}", failures.len(), failures[0]);
        let mut model = Model::new();
        prop_assert_eq!(agree(&mut model, &cluster.sent, &cluster.answers), 0);
        prop_assert_eq!(cluster.rows(), model);
        cluster.check();
        prop_assert!(cluster.counted(|counters| counters.robbed) > 0, "there was memory for all");
    }
}

/// Transactions that want neighbours of the same blocks: each keeps what it wants itself, not what comes with it for others.
#[test]
fn tuples_that_come_for_others_are_not_kept() {
    let mut cluster = loaded(1, Merge::Tuple, Log::Off);
    for key in KEYS_PER_PARTITION..2 * KEYS_PER_PARTITION {
        cluster.send(Op::Insert(key, key));
        cluster.settle();
    }
    let before = cluster.sent.len() as u64;
    // A block holds seven tuples in a row: all the blocks are wanted by all, who want a third of what memory holds each.
    for first in 0..7 {
        cluster.send(Op::Sum((0..500).map(|n| first + 7 * n).collect()));
    }
    cluster.settle();
    for (token, answer) in cluster.answers.range(before..) {
        assert!(answer.result.is_ok(), "{token}: {:?}", answer.result);
    }
    cluster.check();
}

/// One that cannot fit is refused; who wants tuples of the same blocks, and fits, is not.
#[test]
fn whoever_shares_blocks_with_one_that_cannot_fit_is_served() {
    for merge in [Merge::Tuple, Merge::Block] {
        let mut cluster = loaded(1, merge, Log::Off);
        let before = cluster.sent.len() as u64;
        cluster.send(Op::Sum((0..KEYS_PER_PARTITION).collect()));
        for first in 0..60 {
            cluster.send(Op::Sum((0..20).map(|n| first * 20 + n).collect()));
        }
        cluster.settle();
        let answers: Vec<_> = cluster.answers.range(before..).map(|(_, answer)| &answer.result).collect();
        assert!(answers[0].is_err());
        assert_eq!(answers.iter().filter(|result| result.is_err()).count(), 1, "{merge:?}: {answers:?}");
        cluster.check();
    }
}
