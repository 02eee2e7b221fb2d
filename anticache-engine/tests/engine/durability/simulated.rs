//! A whole partition on a simulated disk.

use std::ops::ControlFlow;

use anticache_engine::config::{AnswerReaders, Log};
use anticache_engine::durability::log_reader::read_log;
use anticache_engine::io::simulated::{Fault, FaultRule, Operation, SimulatedDisk};
use anticache_engine::net::frame::{RequestHead, Status, parse_requests, write_request};
use anticache_engine::procedure::{FirstTuple, Procedure, ProcedureSet};
use anticache_engine::txn::{Abort, TxnContext};

use crate::support::database::{self, ADD, COLD, DELETE, Database, INSERT, READ, SCHEMA, params, procedures};
use crate::support::replies::{Answer, Bytes, decode};

const KEYS: i64 = 3000;

fn requests(first: i64, count: i64) -> Vec<(u64, u16, Vec<u8>)> {
    let one = |n: i64| match n % 3 {
        0 => (n as u64, INSERT, params(COLD, &[n / 3, n])),
        1 => (n as u64, ADD, params(COLD, &[n / 9, 1])),
        _ => (n as u64, READ, params(COLD, &[n / 7])),
    };
    (first..first + count).map(one).collect()
}

fn filled(disk: &SimulatedDisk) -> (Database, Vec<Answer>) {
    let mut database = Database::create_on(disk.files(), SCHEMA, procedures(), |config| config.log = Log::Sync);
    let mut answers = Vec::new();
    for first in (0..3 * KEYS).step_by(60) {
        answers.extend(database.run(&requests(first, 60)));
        database.settle();
    }
    (database, answers)
}

#[test]
fn the_same_seed_gives_the_same_answers_in_the_same_order_with_the_same_disk_operations() {
    let run = |seed| {
        let disk = SimulatedDisk::new(seed);
        let (database, answers) = filled(&disk);
        database.check();
        let counters = database.partition.counters();
        assert!(counters.fetched_blocks > 100 && counters.evicted_blocks > 100, "{counters:?}");
        (answers, counters.restarted, counters.evicted_tuples, counters.merged_tuples, disk.operations())
    };
    let first = run(1);
    assert_eq!(first, run(1));
    assert_ne!(first.0, run(2).0, "another order of completions");
}

/// The power fails at any moment: the log holds every write that was answered, in the order in which they were executed.
#[test]
fn what_was_answered_is_in_the_log() {
    let disk = SimulatedDisk::new(0);
    drop(filled(&disk));
    let operations = disk.operations();
    for seed in 0..12 {
        let disk = SimulatedDisk::new(seed);
        disk.cut_after(20 + (operations - 100) * seed / 12 + seed % 5);
        let (database, answers) = filled(&disk);
        let data_dir = database.directory.path().join("data");
        drop(database);
        disk.power_cut();
        disk.restart();
        let mut logged = Vec::new();
        let read = read_log(&*disk.files(), &data_dir, 0, |record| {
            logged.push((record.procedure.to_owned(), record.params.to_vec()));
            ControlFlow::Continue(())
        });
        read.unwrap();
        let all = requests(0, 3 * KEYS);
        let committed = answers.iter().filter(|answer| answer.status == Status::Committed);
        for (_, procedure, params) in committed.map(|answer| &all[answer.token as usize]) {
            let name = ["insert", "read", "add"][usize::from(*procedure)];
            assert!(name == "read" || logged.iter().any(|(logged, bytes)| logged == name && bytes == params));
        }
        let failed = answers.iter().filter(|answer| answer.status == Status::Failed).count();
        assert!(failed > 0, "seed {seed}: {} of {operations} operations, {:?}", disk.operations(), answers.len());
    }
}

#[test]
fn a_log_that_cannot_be_written_fails_what_waits_for_it() {
    let disk = SimulatedDisk::new(3);
    let (mut database, _) = filled(&disk);
    let file = "command".to_owned();
    disk.fail(FaultRule { file, operation: Operation::Write, after: 0, error: Fault::NoSpace, times: 1 });
    let answer = database.run_one(ADD, params(COLD, &[KEYS - 1, 1]));
    assert_eq!(answer.status, Status::Failed);
    assert!(answer.text().contains("command log") && answer.text().contains("No space left"), "{}", answer.text());
}

#[test]
fn groups_wait_for_their_time_and_a_partition_that_needs_room_does_not() {
    let disk = SimulatedDisk::new(4);
    let mut database = Database::create_on(disk.files(), SCHEMA, procedures(), |config| {
        config.log = Log::Sync;
        config.log_group_interval_us = 20_000;
        config.log_group_bytes = 64 << 20;
    });
    // Far more than memory holds, in one batch: nothing can be evicted before its group is durable.
    let inserts: Vec<_> = (0..KEYS).map(|n| (n as u64, INSERT, params(COLD, &[n, n]))).collect();
    assert!(database.run(&inserts).iter().all(|answer| answer.status == Status::Committed));
    let groups = database.partition.gauges().log_groups;
    assert!(groups > 1, "{groups}");
    database.settle();
    let before = database.partition.gauges().log_groups;
    let adds: Vec<_> = (0..50).map(|n| (n, ADD, params(COLD, &[KEYS - 1, 1]))).collect();
    assert_eq!(database.run(&adds).len(), 50);
    assert_eq!(database.partition.gauges().log_groups, before + 1);
}

/// Readers of a row whose update is not durable: answered with it, or, where the configuration says so, at once. Who wrote waits in both cases.
#[test]
fn readers_wait_for_the_log_unless_they_are_to_be_answered_at_once() {
    for answer_readers in [AnswerReaders::Durable, AnswerReaders::AtOnce] {
        let disk = SimulatedDisk::new(9);
        let mut database = Database::create_on(disk.files(), SCHEMA, procedures(), |config| {
            config.log = Log::Sync;
            config.answer_readers = answer_readers;
        });
        database.run(&[(0, INSERT, params(COLD, &[1, 10])), (1, INSERT, params(COLD, &[2, 20]))]);
        database.settle();
        // The second reader meets nothing that is new, the third aborts after what it has read.
        let requests = [
            (0, ADD, params(COLD, &[1, 5])),
            (1, READ, params(COLD, &[1])),
            (2, READ, params(COLD, &[2])),
            (3, DELETE, params(COLD, &[2])),
            (4, READ, params(COLD, &[2])),
        ];
        let at_once = database.execute(&requests);
        let tokens: Vec<u64> = at_once.iter().map(|answer| answer.token).collect();
        match answer_readers {
            AnswerReaders::Durable => assert_eq!(tokens, [2]),
            AnswerReaders::AtOnce => {
                assert_eq!(tokens, [1, 2, 4]);
                assert_eq!(at_once[0].payload, 15i64.to_le_bytes(), "it reads what is not durable yet");
                assert_eq!((at_once[2].status, at_once[2].text().as_str()), (Status::Aborted, "missing"));
            }
        }
        let later = database.answers(requests.len() - at_once.len());
        assert_eq!(later.len() + at_once.len(), requests.len());
    }
}

/// Writes a row, or replies with much more than it.
struct Echo;

impl Procedure for Echo {
    fn name(&self) -> &'static str {
        "echo"
    }

    fn first_tuple<'call>(&'call self, _: &'call [u8]) -> Option<FirstTuple<'call>> {
        None
    }

    fn execute(&self, txn: &mut TxnContext<'_>, params: &[u8]) -> Result<(), Abort> {
        match txn.lookup(COLD, &0i64.to_le_bytes()) {
            None => txn.insert(COLD, &database::row(0, 0)).map(drop),
            Some(tuple) => {
                txn.row(tuple)?;
                txn.reply(&params.repeat(1 << 18));
                Ok(())
            }
        }
    }
}

/// Replies that wait for the group which is being written take memory as those of the next one do: readers wait before it is too much.
#[test]
fn replies_that_wait_for_the_log_do_not_pile_up() {
    let disk = SimulatedDisk::new(6);
    let procedures = ProcedureSet::new(vec![Box::new(Echo)]);
    let mut database = Database::create_on(disk.files(), SCHEMA, procedures, |config| config.log = Log::Sync);
    let (mut sink, mut replies) = (Bytes::default(), 0);
    let batch = |count: u64| {
        let (mut wire, mut heads) = (Vec::new(), Vec::<RequestHead>::new());
        (0..count).for_each(|token| write_request(&mut wire, token, 0, b"x"));
        parse_requests(&wire, usize::MAX, &mut heads).unwrap();
        (wire, heads)
    };
    let (wire, heads) = batch(1);
    database.partition.execute_batch(0, 0, &wire, &heads, &mut sink);
    while database.partition.ring().in_flight() == 0 {
        database.partition.poll(&mut sink);
    }
    let (wire, heads) = batch(16);
    for _ in 0..20 {
        // 4 MiB each; nobody polls the disk.
        database.partition.execute_batch(0, 0, &wire, &heads, &mut sink);
        replies += decode(&mut sink.0).len();
    }
    assert!(replies > 0, "80 MiB of replies wait");
    assert!(database.partition.counters().log_stalls > 0);
    while replies < 321 {
        database.partition.poll(&mut sink);
        replies += decode(&mut sink.0).len();
    }
}
