//! Transactions on several partitions against a plain map, in one thread, with budgets so small that most tuples are evicted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anticache_engine::config::{AntiCaching, Log, Merge};
use proptest::prelude::*;

use crate::support::cluster::{Cluster, Model, Op, agree, op};
use crate::support::database;
use crate::support::effort::properties;
use crate::support::replies;

/// About three times what a partition's budget of 1 MiB holds, for each.
const KEYS_PER_PARTITION: i64 = 3000;

fn load(cluster: &mut Cluster) -> i64 {
    let keys = KEYS_PER_PARTITION * cluster.partitions.len() as i64;
    for key in 0..keys {
        cluster.send(Op::Insert(key, key));
        if key % 50 == 49 {
            cluster.settle();
        }
    }
    keys
}

#[derive(Debug, Clone)]
enum Step {
    Send(Op),
    Poll(usize),
    RunQueued,
}

fn steps(partitions: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => op(KEYS_PER_PARTITION * partitions as i64, partitions as i64).prop_map(Step::Send),
        4 => (0..partitions).prop_map(Step::Poll),
        3 => Just(Step::RunQueued),
    ];
    prop::collection::vec(step, 400..1200)
}

fn setting() -> impl Strategy<Value = (usize, Merge, AntiCaching, Log)> {
    (
        2..5usize,
        prop_oneof![Just(Merge::Tuple), Just(Merge::Block)],
        prop_oneof![Just(AntiCaching::Lru), Just(AntiCaching::Alru)],
        prop_oneof![2 => Just(Log::Off), 1 => Just(Log::Sync)],
    )
}

proptest! {
    #![proptest_config(properties(16))]

    #[test]
    fn several_partitions_behave_like_a_map((setting, steps) in setting().prop_flat_map(|setting| (Just(setting), steps(setting.0)))) {
        let (partitions, merge, anticaching, log) = setting;
        let mut cluster = Cluster::create(partitions as u32, |config| {
            config.merge = merge;
            config.anticaching = anticaching;
            config.log = log;
        });
        let keys = load(&mut cluster);
        let before = cluster.counted(|counters| counters.restarted);
        for step in steps {
            match step {
                Step::Send(op) => cluster.send(op),
                Step::Poll(partition) => cluster.poll(partition),
                Step::RunQueued => cluster.run_queued(),
            }
        }
        cluster.settle();
        let mut model = Model::new();
        prop_assert_eq!(agree(&mut model, &cluster.sent, &cluster.answers), 0, "failures");
        prop_assert_eq!(cluster.rows(), model);
        cluster.check();
        let many = cluster.sent.len() as u64 - keys as u64;
        let restarted = cluster.counted(|counters| counters.restarted) - before;
        prop_assert!(restarted > many / 8, "{} of {} met evicted tuples", restarted, many);
        prop_assert!(cluster.counted(|counters| counters.multi_partition) > many / 10);
    }
}

/// Transfers keep the sum, and one transaction that reads everything sees it.
#[test]
fn a_sum_over_all_partitions_is_constant() {
    for log in [Log::Off, Log::Sync] {
        let mut cluster = Cluster::create(3, |config| config.log = log);
        let keys = load(&mut cluster);
        let total = (0..keys).sum::<i64>();
        for round in 0..40i64 {
            for n in 0..20 {
                let from = (round * 613 + n * 71) % keys;
                let to = (1..4).map(|k| (from + k * 997) % keys).collect();
                cluster.send(Op::Spread(from, to, if n % 5 == 0 { -7 } else { n }));
            }
            cluster.send(Op::Sum((round % 20 * 300..round % 20 * 300 + 300).collect()));
        }
        cluster.settle();
        let mut model = Model::new();
        assert_eq!(agree(&mut model, &cluster.sent, &cluster.answers), 0);
        assert_eq!(cluster.rows().values().sum::<i64>(), total);
        cluster.check();
    }
}

/// One pre-pass finds the evicted tuples of all partitions: one restart, however many blocks at however many partitions.
#[test]
fn evicted_tuples_of_several_partitions_are_fetched_in_one_pass() {
    let mut cluster = Cluster::create(4, |_| {});
    load(&mut cluster);
    let before = cluster.counted(|counters| counters.restarted);
    let all_evicted: Vec<i64> = (0..40).map(|n| n * 7).collect();
    cluster.send(Op::Sum(all_evicted));
    cluster.settle();
    assert_eq!(cluster.counted(|counters| counters.restarted) - before, 1);
    assert_eq!(cluster.answers[&(cluster.sent.len() as u64 - 1)].result, Ok((0..40).map(|n| n * 7).collect()));
}

/// A transaction whose tuples do not fit into memory together ends with a reason, and everything else goes on.
#[test]
fn a_transaction_that_cannot_fit_is_given_up() {
    let mut cluster = Cluster::create(2, |_| {});
    let keys = load(&mut cluster);
    cluster.send(Op::Sum((0..keys).collect()));
    cluster.settle();
    let answer = &cluster.answers[&(cluster.sent.len() as u64 - 1)];
    let reason = answer.result.as_ref().unwrap_err();
    assert!(reason.contains("given up after 100 restarts") || reason.contains("memory budget"), "{reason}");
    cluster.send(Op::Sum(vec![0, 1, 2, 3]));
    cluster.settle();
    assert_eq!(cluster.answers[&(cluster.sent.len() as u64 - 1)].result, Ok(vec![0, 1, 2, 3]));
    cluster.check();
}

#[test]
fn a_request_goes_to_a_participant() {
    let mut cluster = Cluster::create(3, |_| {});
    let (procedure, params) = Op::Sum(vec![1, 2]).request(0);
    let mut sink = replies::Bytes::default();
    let head = anticache_engine::net::frame::RequestHead { token: 9, procedure, start: 0, end: params.len() };
    cluster.partitions[0].execute_batch(0, 0, &params, &[head], &mut sink);
    let answer = replies::decode(&mut sink.0).remove(0);
    assert_eq!(answer.text(), "sum was sent to partition 0 and takes place at [1, 2]: send it to one of these");
    cluster.send(Op::Sum(vec![1, 2]));
    cluster.settle();
    assert_eq!(cluster.answers[&0].result, Ok(vec![0, 0]));
}

/// A barrier sees every transaction before it at all partitions, and none after it.
#[test]
fn a_barrier_is_one_point_of_the_order() {
    let mut cluster = Cluster::create(3, |_| {});
    let seen = Arc::new(AtomicU64::new(0));
    for key in 0..6 {
        cluster.send(Op::Insert(key, 0));
    }
    cluster.send(Op::Spread(0, vec![1, 2], 1));
    let counter = Arc::clone(&seen);
    cluster.site.barrier(move |partition| {
        let mut sum = 0;
        partition
            .scan_rows(database::COLD, |row| sum += i64::from_le_bytes(row[8..16].try_into().unwrap()).abs())
            .unwrap();
        counter.fetch_add(sum as u64, Ordering::SeqCst);
    });
    cluster.send(Op::Spread(3, vec![4, 5], 100));
    cluster.settle();
    assert_eq!(seen.load(Ordering::SeqCst), 4);
}
