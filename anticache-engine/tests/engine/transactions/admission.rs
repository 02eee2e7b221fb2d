//! Transactions that all fit into memory, but far from all together: each one ends, whatever the others keep.

use crate::support::cluster::{Cluster, Model, Op, agree};
use crate::support::effort::properties;
use anticache_engine::config::{AntiCaching, Log, Merge};
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

proptest! {
    #![proptest_config(properties(6))]

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
