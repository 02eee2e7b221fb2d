//! What becomes of holes in blocks: lazy and background compaction against a map, what they are worth, and what damage does to them.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use anticache_engine::config::{Compaction, FetchUnit, Merge};
use anticache_engine::io::simulated::{Fault, FaultRule, Operation, SimulatedDisk};
use anticache_engine::net::frame::{RequestHead, Status};
use proptest::prelude::*;

use crate::support::database::Database;
use crate::support::effort::properties;
use crate::support::notes::{A, DROP, EVENTS, NOTES, PUT, SET, SUM, TRAIL, database, database_on, request, text_of};
use crate::support::replies::{Bytes, decode};

const IDS: i64 = 1500;

/// Values of the rows by table and id; `TRAIL`, which has no index and can only be added to, may have several of an id.
type Model = BTreeMap<(u16, i64), Vec<i64>>;

#[derive(Debug, Clone)]
enum Op {
    Put(u16, i64, i64),
    Sum(u16, Vec<i64>),
    Set(u16, i64, i64),
    Drop(u16, i64),
}

fn op() -> impl Strategy<Value = Op> {
    let table = prop_oneof![Just(A), Just(NOTES), Just(EVENTS)];
    let id = prop_oneof![1 => 0..40i64, 3 => 0..IDS];
    prop_oneof![
        1 => (table.clone(), id.clone(), 0..2000i64).prop_map(|(t, id, v)| Op::Put(t, id, v)),
        1 => (id.clone(), 0..2000i64).prop_map(|(id, v)| Op::Put(TRAIL, id, v)),
        4 => (table.clone(), prop::collection::vec(id.clone(), 1..6)).prop_map(|(t, ids)| Op::Sum(t, ids)),
        3 => (table.clone(), id.clone(), 0..2000i64).prop_map(|(t, id, v)| Op::Set(t, id, v)),
        1 => (table, id).prop_map(|(t, id)| Op::Drop(t, id)),
    ]
}

fn wire(op: &Op) -> (u64, u16, Vec<u8>) {
    match op {
        Op::Put(t, id, v) => request(PUT, *t, &[*id, *v]),
        Op::Sum(t, ids) => request(SUM, *t, ids),
        Op::Set(t, id, v) => request(SET, *t, &[*id, *v]),
        Op::Drop(t, id) => request(DROP, *t, &[*id]),
    }
}

/// What the map answers, changing it.
fn expected(model: &mut Model, op: &Op) -> Result<Vec<u8>, &'static str> {
    match op {
        Op::Put(t, id, v) => {
            let values = model.entry((*t, *id)).or_default();
            if *t != TRAIL && !values.is_empty() {
                return Err("duplicate key");
            }
            values.push(*v);
        }
        Op::Sum(t, ids) => {
            let values = ids.iter().filter_map(|id| model.get(&(*t, *id)));
            return Ok(values.flatten().sum::<i64>().to_le_bytes().to_vec());
        }
        Op::Set(t, id, v) => {
            model.entry((*t, *id)).or_default().fill(*v);
        }
        Op::Drop(t, id) => {
            model.remove(&(*t, *id));
        }
    }
    Ok(Vec::new())
}

fn run(database: &mut Database, model: &mut Model, ops: &[Op]) {
    let requests: Vec<_> = ops.iter().enumerate().map(|(token, op)| (token as u64, wire(op).1, wire(op).2)).collect();
    for answer in database.run(&requests) {
        let op = &ops[answer.token as usize];
        let (status, payload) = match expected(model, op) {
            Ok(payload) => (Status::Committed, payload),
            Err(reason) => (Status::Aborted, reason.as_bytes().to_vec()),
        };
        assert_eq!(
            (answer.status, &answer.payload),
            (status, &payload),
            "{op:?}: {} {:?} {:?}",
            answer.text(),
            database.partition.gauges(),
            database.partition.counters()
        );
    }
}

fn load(database: &mut Database, model: &mut Model) {
    for first in (0..IDS).step_by(50) {
        let put = |id: i64| [A, NOTES, EVENTS, TRAIL].map(|table| Op::Put(table, id, id * 7));
        run(database, model, &(first..first + 50).flat_map(put).collect::<Vec<_>>());
    }
}

/// Every row is there once: in memory, or in one block and not a hole. Nothing is brought back to see it.
fn rows_agree(database: &Database, model: &Model) {
    for table in [A, NOTES, EVENTS, TRAIL] {
        let mut found: Vec<(i64, i64)> = Vec::new();
        let number = |row: &[u8], at: usize| i64::from_le_bytes(row[at..at + 8].try_into().unwrap());
        let scan = database.partition.scan_rows(table, |row| {
            found.push((number(row, 0), number(row, 8)));
            assert!(table == A || row.ends_with(&text_of(number(row, 8))), "a text is another's");
        });
        scan.unwrap();
        found.sort_unstable();
        let of_table = model.iter().filter(|((t, _), _)| *t == table);
        let mut rows: Vec<(i64, i64)> = of_table.flat_map(|((_, id), vs)| vs.iter().map(|&v| (*id, v))).collect();
        rows.sort_unstable();
        assert_eq!(found, rows, "table {table}");
    }
}

fn strategies() -> impl Strategy<Value = (Merge, FetchUnit, Compaction, f64)> {
    let threshold = prop_oneof![Just(0.2), Just(0.5), Just(1.0)];
    let compaction = prop_oneof![1 => Just(Compaction::Lazy), 2 => Just(Compaction::Background)];
    let (tuple, block) = (Just(Merge::Tuple), Just((Merge::Block, FetchUnit::Block)));
    let merge = prop_oneof![3 => (tuple, prop_oneof![Just(FetchUnit::Block), Just(FetchUnit::Sectors)]), 1 => block];
    (merge, compaction, threshold)
        .prop_map(|((merge, fetch), compaction, threshold)| (merge, fetch, compaction, threshold))
}

proptest! {
    #![proptest_config(properties(16))]

    /// Variable-length rows and rows without a key go out, come back, are compacted on the way: none is lost, none comes back twice, and no stale
    /// entry is taken for a tuple. The file stays as short as the blocks in it allow.
    #[test]
    fn nothing_is_lost_and_nothing_stale_comes_back(
        (merge, fetch, compaction, hole_threshold) in strategies(),
        batches in prop::collection::vec(prop::collection::vec(op(), 1..60), 1..40),
    ) {
        let mut database = database(|config| {
            config.merge = merge;
            config.fetch = fetch;
            // A block that is one sector is always read whole.
            config.eviction_block_bytes *= if fetch == FetchUnit::Sectors { 4 } else { 1 };
            config.compaction = compaction;
            config.hole_threshold = hole_threshold;
        });
        let mut model = Model::new();
        load(&mut database, &mut model);
        let mut most_blocks = database.partition.gauges().blocks_live;
        for ops in &batches {
            run(&mut database, &mut model, ops);
            most_blocks = most_blocks.max(database.partition.gauges().blocks_live);
        }
        database.settle();
        database.check();
        rows_agree(&database, &model);
        let gauges = database.partition.gauges();
        prop_assert!(gauges.blocks_high_water <= most_blocks * 5 / 4 + 8, "{most_blocks} blocks in a file of {}", gauges.blocks_high_water);
        let all: Vec<Op> = [A, NOTES, EVENTS].into_iter().flat_map(|table| (0..IDS).map(move |id| Op::Sum(table, vec![id]))).collect();
        for ops in all.chunks(64) {
            run(&mut database, &mut model, ops);
        }
    }
}

/// Only the sectors of what is wanted are read, and a block that passed the threshold is read whole and merged whole all the same.
#[test]
fn sectors_are_read_until_a_block_is_merged_whole() {
    let block_bytes = 8 * 4096;
    let filled = |fetch: FetchUnit| {
        let mut database = database(|config| {
            (config.fetch, config.hole_threshold) = (fetch, 0.5);
            config.eviction_block_bytes = block_bytes;
            config.memory_budget_bytes *= 2;
        });
        let mut model = Model::new();
        let rows: Vec<Op> = (0..15_000).map(|id| Op::Put(NOTES, id, id * 7)).collect();
        rows.chunks(100).for_each(|ops| run(&mut database, &mut model, ops));
        database.settle();
        (database, model)
    };
    let read = |fetch: FetchUnit, ids: &[i64]| {
        let (mut database, mut model) = filled(fetch);
        let before = *database.partition.counters();
        ids.iter().for_each(|&id| run(&mut database, &mut model, &[Op::Sum(NOTES, vec![id])]));
        rows_agree(&database, &model);
        let after = *database.partition.counters();
        let blocks = after.fetched_blocks - before.fetched_blocks;
        (blocks, after.fetched_bytes - before.fetched_bytes, after.compactions - before.compactions)
    };
    let apart: Vec<i64> = (0..20).map(|n| n * 97).collect();
    let (blocks, bytes, _) = read(FetchUnit::Block, &apart);
    assert!(blocks > 5 && bytes == blocks * block_bytes as u64, "{blocks} blocks, {bytes} bytes");
    let (blocks, bytes, _) = read(FetchUnit::Sectors, &apart);
    assert!(blocks > 5 && bytes >= blocks * 4096 && bytes <= blocks * 2 * 4096, "{blocks} blocks, {bytes} bytes");
    let neighbours: Vec<i64> = (0..2000).collect();
    let (_, bytes, compactions) = read(FetchUnit::Sectors, &neighbours);
    assert!(compactions > 0 && bytes > compactions * block_bytes as u64, "{compactions} compactions, {bytes} bytes");
}

/// Long churn: the file stays within a quarter and a little of the blocks that were needed at most; in the background, of what the tuples
/// would fill by half.
#[test]
fn the_file_stays_bounded_under_churn() {
    for (merge, compaction) in [
        (Merge::Tuple, Compaction::Lazy),
        (Merge::Block, Compaction::Lazy),
        (Merge::Tuple, Compaction::Background),
        (Merge::Block, Compaction::Background),
    ] {
        // How much of a compaction happens between two batches is up to the disk: to the seed of a simulated one, not to how busy the machine is.
        let files = SimulatedDisk::new(1).files();
        let mut database = database_on(files, |config| (config.merge, config.compaction) = (merge, compaction));
        let mut model = Model::new();
        load(&mut database, &mut model);
        let mut most_blocks = 0;
        for round in 0..250i64 {
            let op = |n: i64| {
                let (table, id) = ([A, NOTES, EVENTS][(n % 3) as usize], (round * 641 + n * 47) % IDS);
                if n % 2 == 0 { Op::Set(table, id, round + n) } else { Op::Sum(table, vec![id, (id * 3) % IDS]) }
            };
            run(&mut database, &mut model, &(0..48).map(op).collect::<Vec<_>>());
            most_blocks = most_blocks.max(database.partition.gauges().blocks_live);
        }
        database.settle();
        rows_agree(&database, &model);
        let (gauges, counters) = (database.partition.gauges(), *database.partition.counters());
        let what = format!("{merge:?}, {compaction:?}: {gauges:?} {counters:?}");
        assert!(gauges.blocks_high_water <= most_blocks * 5 / 4 + 8, "{most_blocks} at most; {what}");
        if compaction == Compaction::Background {
            assert!(gauges.blocks_live <= gauges.blocks_needed * 3 / 2 + 8, "{what}");
            assert_eq!(counters.compactions, 0, "{what}");
            assert!(merge == Merge::Block || counters.compactions_background > 50, "{what}");
        }
        assert!(counters.compacted_tuples + counters.merged_tuples > 1000, "{what}");
    }
}

/// Rows of which every seventh stays in its block while the others are in use, again and again.
fn sieved(compaction: Compaction) -> Database {
    let mut database = database_on(SimulatedDisk::new(1).files(), |config| {
        config.compaction = compaction;
        config.hole_threshold = 1.0;
    });
    for id in 0..9000 {
        let answer = database.run(&[request(PUT, A, &[id, 1])]).remove(0);
        assert_eq!(answer.status, Status::Committed);
    }
    for id in (0..9000).filter(|id| id % 7 != 0) {
        database.run(&[request(SUM, A, &[id])]);
        database.poll(3);
    }
    database.settle();
    database
}

/// Tuples that were left over in blocks of holes are fetched with far fewer reads after compaction, and none of them was in memory on the way.
#[test]
fn compaction_makes_fetches_fewer() {
    let fetched = [Compaction::Lazy, Compaction::Background].map(|compaction| {
        let mut database = sieved(compaction);
        let before = *database.partition.counters();
        assert_eq!(before.compactions_background > 0, compaction == Compaction::Background);
        let ids: Vec<i64> = (0..1400).filter(|id| id % 7 == 0).collect();
        for ids in ids.chunks(20) {
            let answer = database.run(&[request(SUM, A, ids)]).remove(0);
            assert_eq!(answer.payload, (ids.len() as i64).to_le_bytes());
        }
        database.settle();
        database.check();
        let after = database.partition.counters();
        assert_eq!(after.merged_wanted - before.merged_wanted, 200, "all were evicted");
        (after.fetched_blocks - before.fetched_blocks, database.partition.gauges().blocks_high_water)
    });
    let [(lazy, lazy_file), (background, background_file)] = fetched;
    assert!(background * 3 < lazy, "{lazy} blocks fetched without compaction, {background} with it");
    assert!(background_file <= lazy_file, "a file of {lazy_file} blocks without compaction, {background_file} with it");
}

/// A block with a damaged tuple is left as it is: the tuple gives its error, the others of the block, and all others, are read.
#[test]
fn damage_in_a_block_under_compaction_loses_nothing_else() {
    let mut database = database(|config| config.compaction = Compaction::Background);
    for id in 0..9000 {
        database.run(&[request(PUT, A, &[id, 1])]);
    }
    database.settle();
    let path = database.directory.path().join("data/blocks-0000.db");
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    // The first tuple of each of the blocks 3, 4 and 5; then holes are made in these and others, all but for the first two tuples.
    for block in 3..6 {
        file.write_all_at(&[0xFF; 4], block * 4096 + 64 + 12 + 100).unwrap();
    }
    for id in (0..140).filter(|id| id % 7 > 1) {
        assert_eq!(database.run(&[request(SUM, A, &[id])]).remove(0).status, Status::Committed);
        database.settle();
    }
    let counters = *database.partition.counters();
    assert!(counters.compactions_background > 2 && counters.block_errors == 3, "{counters:?}");
    for id in 0..9000 {
        let answer = database.run(&[request(SUM, A, &[id])]).remove(0);
        if [21, 28, 35].contains(&id) {
            let expected = format!("block {}, offset 64: tuple checksum", id / 7);
            assert!(answer.status == Status::Failed && answer.text().contains(&expected), "{}", answer.text());
        } else {
            assert_eq!((answer.status, answer.payload), (Status::Committed, 1i64.to_le_bytes().to_vec()), "id {id}");
        }
    }
    database.settle();
    database.check();
}

/// A compacted block that the disk has no space for: the blocks that it was made of stay, with everything in them; later it is tried again.
#[test]
fn a_refused_write_of_a_compacted_block_changes_nothing() {
    let disk = SimulatedDisk::new(1);
    let mut database = database_on(disk.files(), |config| config.compaction = Compaction::Background);
    let committed = |database: &mut Database, procedure, numbers: &[i64]| {
        let answer = database.run(&[request(procedure, A, numbers)]).remove(0);
        assert_eq!(answer.status, Status::Committed, "{}", answer.text());
        answer.payload
    };
    (0..9000).for_each(|id| drop(committed(&mut database, PUT, &[id, 1])));
    // Room for what comes back, so that nothing is evicted meanwhile.
    (8000..9000).for_each(|id| drop(committed(&mut database, DROP, &[id])));
    database.settle();
    let before = *database.partition.counters();
    let (file, operation, error) = (String::new(), Operation::Write, Fault::NoSpace);
    disk.fail(FaultRule { file, operation, after: 0, error, times: u64::MAX });
    (0..280).filter(|id| id % 7 > 0).for_each(|id| drop(committed(&mut database, SUM, &[id])));
    database.settle();
    let refused = *database.partition.counters();
    disk.heal();
    assert!(refused.write_errors > 0, "{refused:?}");
    assert_eq!(refused.compactions_background - before.compactions_background, 0);
    assert_eq!(refused.evicted_blocks, before.evicted_blocks, "only compaction wrote");
    for id in (0..140).filter(|id| id % 7 == 0) {
        assert_eq!(committed(&mut database, SUM, &[id]), 1i64.to_le_bytes());
    }
    let deadline = Instant::now() + Duration::from_secs(30);
    while database.partition.counters().compactions_background == before.compactions_background {
        database.poll(1);
        assert!(Instant::now() < deadline, "compaction does not go on");
    }
    database.settle();
    database.check();
    for id in (0..280).filter(|id| id % 7 == 0) {
        assert_eq!(committed(&mut database, SUM, &[id]), 1i64.to_le_bytes());
    }
}

/// While there are always more blocks to fetch than buffers, compaction that has begun with few holes goes on when they have become many.
#[test]
fn fetches_that_never_pause_do_not_stop_compaction() {
    const ROWS: i64 = 9000;
    let disk = SimulatedDisk::new(1);
    let mut database = database_on(disk.files(), |config| config.compaction = Compaction::Background);
    for id in 0..ROWS {
        assert_eq!(database.run(&[request(PUT, A, &[id, 1])]).remove(0).status, Status::Committed);
    }
    database.settle();
    let (mut sink, mut answered, mut chance) = (Bytes::default(), 0, 1u64);
    for sent in 1..=60_000 {
        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (_, procedure, params) = request(SUM, A, &[(chance >> 33) as i64 % ROWS]);
        let head = RequestHead { token: sent, procedure, start: 0, end: params.len() };
        database.partition.execute_batch(0, 0, &params, &[head], &mut sink);
        while sent - answered > 300 {
            database.partition.poll(&mut sink);
            let answers = decode(&mut sink.0);
            assert!(answers.iter().all(|answer| answer.status == Status::Committed));
            answered += answers.len() as u64;
        }
    }
    let counters = database.partition.counters();
    assert!(counters.compactions_background > 20, "{counters:?}");
}
