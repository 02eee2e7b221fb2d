//! Transactions that all fit into memory, but far from all together: each one ends, whatever the others keep.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anticache_engine::catalog::Catalog;
use anticache_engine::config::{AntiCaching, Config, Log, Merge};
use anticache_engine::net::frame::{RequestHead, Status};
use anticache_engine::partition::Partition;
use anticache_engine::partition::multi::{Coordinator, run_queued};
use anticache_engine::procedure::{FirstTuple, Participants, Procedure, ProcedureSet};
use anticache_engine::storage::table::Found;
use anticache_engine::txn::{Abort, TxnContext};
use proptest::prelude::*;

use crate::support::cluster::{Cluster, Model, Op, agree};
use crate::support::database::{self, COLD, SCHEMA, row};
use crate::support::effort::properties;
use crate::support::replies::{Answer, Bytes, decode};

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

fn numbers(params: &[u8]) -> Vec<i64> {
    params.chunks_exact(8).map(|number| i64::from_le_bytes(number.try_into().unwrap())).collect()
}

/// Adds the rows with these keys, all in one transaction; counts its executions.
struct Add(Arc<AtomicU64>);

impl Procedure for Add {
    fn name(&self) -> &'static str {
        "add_rows"
    }

    fn first_tuple<'call>(&'call self, _: &'call [u8]) -> Option<FirstTuple<'call>> {
        None
    }

    fn execute(&self, txn: &mut TxnContext<'_>, params: &[u8]) -> Result<(), Abort> {
        self.0.fetch_add(1, Ordering::SeqCst);
        numbers(params).into_iter().try_for_each(|key| txn.insert(COLD, &row(key, 0)).map(drop))
    }
}

/// Reads rows at partition 0, and unless the first number is negative also the row of that key at partition 1.
struct Look;

impl Procedure for Look {
    fn name(&self) -> &'static str {
        "look"
    }

    fn first_tuple<'call>(&'call self, _: &'call [u8]) -> Option<FirstTuple<'call>> {
        None
    }

    fn partitions(&self, params: &[u8], _: u32) -> Participants {
        if numbers(params)[0] >= 0 { Participants::OWN.and(0).and(1) } else { Participants::OWN.and(0) }
    }

    fn execute(&self, txn: &mut TxnContext<'_>, params: &[u8]) -> Result<(), Abort> {
        let keys = numbers(params);
        let tuples: Vec<_> = keys[1..].iter().filter_map(|key| txn.lookup(COLD, &key.to_le_bytes())).collect();
        if keys[0] >= 0 {
            let there = txn.at(1)?.lookup(COLD, &keys[0].to_le_bytes()).ok_or(Abort::user("missing"))?;
            txn.at(1)?.row(there)?;
        }
        tuples.into_iter().try_for_each(|tuple| txn.row(tuple).map(drop))
    }
}

/// Overwrites a row's value, and that of a row at partition 1 where there is a second key.
struct Write;

impl Procedure for Write {
    fn name(&self) -> &'static str {
        "write"
    }

    fn first_tuple<'call>(&'call self, _: &'call [u8]) -> Option<FirstTuple<'call>> {
        None
    }

    fn partitions(&self, params: &[u8], _: u32) -> Participants {
        if params.len() > 8 { Participants::OWN.and(0).and(1) } else { Participants::OWN.and(0) }
    }

    fn execute(&self, txn: &mut TxnContext<'_>, params: &[u8]) -> Result<(), Abort> {
        if params.len() > 8 {
            let there = txn.at(1)?.lookup(COLD, &params[8..]).ok_or(Abort::user("missing"))?;
            txn.at(1)?.update(there, 8, &params[8..])?;
        }
        let tuple = txn.lookup(COLD, &params[..8]).ok_or(Abort::user("missing"))?;
        txn.update(tuple, 8, &params[..8])
    }
}

/// Two partitions, the transactions above, and what they have answered.
struct Pair {
    home: Partition,
    other: Partition,
    site: Arc<Coordinator>,
    executions: Arc<AtomicU64>,
    sink: Bytes,
    answers: Vec<Answer>,
    _directory: tempfile::TempDir,
}

impl Pair {
    /// Filled with so many rows at each partition.
    fn filled(rows: [i64; 2], log: Log) -> Self {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let config =
            Config { partitions: 2, anticaching: AntiCaching::Lru, log, ..database::config(directory.path(), 2 << 20) };
        std::fs::create_dir_all(&config.data_dir).unwrap();
        let (catalog, executions) = (Catalog::from_sql(SCHEMA).unwrap(), Arc::new(AtomicU64::new(0)));
        let procedures =
            ProcedureSet::new(vec![Box::new(Add(Arc::clone(&executions))), Box::new(Look), Box::new(Write)]);
        let site = Arc::new(Coordinator::new(2, 1).unwrap());
        let create = |id| {
            let mut partition = Partition::create(id, &config, &catalog, procedures.clone(), &config.data_dir).unwrap();
            partition.join(&site);
            partition
        };
        let (mut home, mut other, mut sink) = (create(0), create(1), Bytes::default());
        for (partition, rows) in [&mut home, &mut other].into_iter().zip(rows) {
            for first in (0..rows).step_by(50) {
                send(partition, &mut sink, (0, 0), (first..first + 50).collect());
                while !partition.is_idle() {
                    partition.poll(&mut sink);
                }
            }
        }
        assert!(decode(&mut sink.0).iter().all(|answer| answer.status == Status::Committed));
        Self { home, other, site, executions, sink, answers: vec![], _directory: directory }
    }

    /// To partition 0, with a token and the number of its procedure.
    fn send(&mut self, head: (u64, u16), numbers: Vec<i64>) {
        send(&mut self.home, &mut self.sink, head, numbers);
    }

    fn run_queued(&mut self) {
        run_queued(&self.site, &mut [&mut self.home, &mut self.other]);
    }

    fn poll_home(&mut self) {
        self.home.poll(&mut self.sink);
        self.answers.append(&mut decode(&mut self.sink.0));
    }

    fn resident(&self) -> Vec<i64> {
        let table = &self.home.tables()[usize::from(COLD)];
        (0..KEYS_PER_PARTITION)
            .filter(|key| matches!(table.find(&key.to_le_bytes()), Some(Found::Resident(_))))
            .collect()
    }

    /// Lets everything go on until there are so many answers.
    fn finish(&mut self, answers: usize) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.answers.len() < answers {
            self.other.poll(&mut self.sink);
            self.run_queued();
            self.poll_home();
            assert!(Instant::now() < deadline, "{} answers", self.answers.len());
        }
        let refused: Vec<_> = self.answers.iter().filter(|answer| answer.status != Status::Committed).collect();
        assert!(refused.is_empty(), "{}: {}", refused[0].token, refused[0].text());
    }
}

fn send(partition: &mut Partition, sink: &mut Bytes, (token, procedure): (u64, u16), numbers: Vec<i64>) {
    let params: Vec<u8> = numbers.into_iter().flat_map(i64::to_le_bytes).collect();
    let head = RequestHead { token, procedure, start: 0, end: params.len() };
    partition.execute_batch(0, 0, &params, &[head], sink);
}

/// Whoever is held back is not executed again and again while the older one, which waits for another partition, keeps the memory.
#[test]
fn who_is_held_back_is_not_tried_in_vain() {
    let mut pair = Pair::filled([KEYS_PER_PARTITION; 2], Log::Off);
    // The first keeps everything that is in memory, the second ends soon, the third finds no room beside the two.
    let all = std::iter::once(0).chain(pair.resident()).collect();
    pair.send((1, 1), all);
    pair.run_queued();
    pair.send((2, 1), vec![-1, 0]);
    pair.send((3, 0), (10_000..10_400).collect());
    while pair.answers.is_empty() {
        pair.poll_home();
    }
    assert_eq!((pair.answers[0].token, pair.answers.len()), (2, 1));
    (0..10).for_each(|_| pair.poll_home());
    let before = pair.executions.load(Ordering::SeqCst);
    (0..200).for_each(|_| pair.poll_home());
    assert_eq!(pair.executions.load(Ordering::SeqCst) - before, 0, "executions while nothing changes");
    pair.finish(3);
}

/// One that gets a little more memory whenever an older one ends, many times, does not count these as its own restarts.
#[test]
fn whoever_waits_for_many_older_ones_is_served() {
    const OLDER: usize = 1200;
    let mut pair = Pair::filled([KEYS_PER_PARTITION, 9000], Log::Off);
    let resident = pair.resident();
    let size = resident.len().div_ceil(OLDER);
    for (token, (keys, n)) in (1..).zip(resident.chunks(size).zip(0..)) {
        pair.send((token, 1), std::iter::once(n * 7).chain(keys.iter().copied()).collect());
    }
    pair.run_queued();
    let older = resident.chunks(size).len();
    pair.send((0, 0), (10_000..11_500).collect());
    let before = pair.executions.load(Ordering::SeqCst);
    pair.finish(older + 1);
    let executions = pair.executions.load(Ordering::SeqCst) - before;
    assert!(executions > 100, "{executions} executions");
}

/// The oldest gets memory from a younger one also while somebody writes all the time, so that there is always a tuple which is not durable yet and
/// could be evicted later.
#[test]
fn writers_do_not_keep_the_oldest_waiting() {
    let mut pair = Pair::filled([KEYS_PER_PARTITION; 2], Log::Sync);
    let resident = pair.resident();
    let hot = resident[resident.len() - 1];
    // Numbers of requests order the ages.
    pair.send((1, 1), vec![0, hot]);
    pair.send((2, 1), std::iter::once(-1).chain(0..300).collect());
    pair.send((3, 1), vec![0, hot]);
    pair.send((4, 1), std::iter::once(0).chain(resident).collect());
    pair.run_queued();
    let groups = pair.home.gauges().log_groups;
    let mut token = 10;
    while !pair.answers.iter().any(|answer| answer.token == 2) {
        pair.send((token, 2), vec![hot]);
        token += 1;
        pair.poll_home();
        assert!(pair.home.gauges().log_groups < groups + 300, "{:?}", pair.home.counters());
    }
    pair.finish(token as usize - 10 + 4);
}

/// Nor does the block of a younger one, for which there is no room as long as the oldest keeps its tuples, stand in the way of the oldest's blocks.
#[test]
fn a_younger_one_that_waits_for_memory_is_not_in_the_way() {
    let mut pair = Pair::filled([KEYS_PER_PARTITION; 2], Log::Sync);
    let resident = pair.resident();
    let hot = resident[resident.len() - 1];
    pair.send((2, 1), std::iter::once(-1).chain(0..300).collect());
    // Older than the one before, by its number, though it came later.
    pair.send((1, 1), std::iter::once(0).chain(400..500).chain(resident[150..].iter().copied()).collect());
    pair.run_queued();
    let groups = pair.home.gauges().log_groups;
    let mut token = 10;
    while !pair.answers.iter().any(|answer| answer.token == 1) {
        pair.send((token, 2), vec![hot]);
        token += 1;
        pair.poll_home();
        pair.other.poll(&mut pair.sink);
        pair.run_queued();
        assert!(pair.home.gauges().log_groups < groups + 300, "{:?}", pair.home.counters());
    }
    pair.finish(token as usize - 10 + 2);
}

/// Who waits for memory that is written again by everybody else, while one log group after the other waits for another partition, does so without
/// being given up.
#[test]
fn waiting_for_other_partitions_logs_is_not_counted() {
    let mut pair = Pair::filled([KEYS_PER_PARTITION; 2], Log::Sync);
    let (resident, there) = (pair.resident(), KEYS_PER_PARTITION - 1);
    let mut token = 1;
    let mut write_all = |pair: &mut Pair| {
        for &key in &resident {
            pair.send((token, 2), vec![key]);
            token += 1;
        }
        // The other's log lets the group here go that waits for it, and then another waits for it again.
        while !pair.other.is_idle() {
            pair.other.poll(&mut pair.sink);
        }
        pair.send((token, 2), vec![resident[0], there]);
        pair.run_queued();
        token += 1;
    };
    write_all(&mut pair);
    pair.send((0, 0), (10_000..10_200).collect());
    let mut written = 1;
    while written < 120 && !pair.answers.iter().any(|answer| answer.token == 0) {
        write_all(&mut pair);
        pair.poll_home();
        written += 1;
    }
    assert!(written == 120 || pair.answers.iter().any(|answer| answer.status == Status::Failed), "it found memory");
    pair.finish(token as usize);
}
