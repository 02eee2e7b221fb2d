//! Damaged blocks and refused writes: a named failure of the transactions concerned, never wrong data.

use std::os::unix::fs::FileExt;

use anticache_engine::net::frame::Status;

use crate::support::database::{ADD, COLD, Database, INSERT, OTHER, READ, params};

const KEYS: i64 = 3000;

fn filled() -> Database {
    let mut database = Database::create(|_| {});
    for first in (0..KEYS).step_by(50) {
        let requests: Vec<_> = (first..first + 50).map(|k| (k as u64, INSERT, params(COLD, &[k, k]))).collect();
        assert!(database.run(&requests).iter().all(|answer| answer.status == Status::Committed));
    }
    database.settle();
    database
}

fn block_file(database: &Database) -> std::fs::File {
    let path = database.directory.path().join("data/blocks-0000.db");
    std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// The oldest keys were evicted first, into the first blocks.
fn read_all(database: &mut Database) -> (usize, Vec<String>) {
    let (mut right, mut failures) = (0, Vec::new());
    for key in 0..KEYS {
        let answer = database.run_one(READ, params(COLD, &[key]));
        match answer.status {
            Status::Committed => {
                assert_eq!(answer.payload, key.to_le_bytes(), "wrong data for key {key}");
                right += 1;
            }
            Status::Failed => failures.push(answer.text()),
            Status::Aborted => panic!("key {key}: {}", answer.text()),
        }
    }
    (right, failures)
}

#[test]
fn a_damaged_header_fails_the_transactions_that_need_the_block() {
    let mut database = filled();
    block_file(&database).write_all_at(&[0xFF; 8], 8).unwrap();
    let (right, failures) = read_all(&mut database);
    assert_eq!(right + failures.len(), KEYS as usize);
    assert_eq!(failures.len(), 7, "the seven tuples of one block");
    assert!(failures.iter().all(|text| text.contains("block 0: header checksum")), "{failures:?}");
    assert_eq!(database.partition.counters().block_errors, 7);
}

#[test]
fn a_flipped_bit_in_a_tuple_fails_that_tuple_only() {
    let mut database = filled();
    block_file(&database).write_all_at(&[0x01], 4096 * 2 + 64 + 8 + 100).unwrap();
    let (right, failures) = read_all(&mut database);
    assert_eq!((right, failures.len()), (KEYS as usize - 1, 1));
    assert!(failures[0].contains("block 2, offset 64: tuple checksum"), "{}", failures[0]);
}

/// Evictions that go on make the file longer again, so the lost blocks read as zeros; the last one ends too early.
#[test]
fn a_truncated_block_file_fails_the_lost_blocks() {
    let mut database = filled();
    block_file(&database).set_len(4096 * 5 + 1000).unwrap();
    let (right, failures) = read_all(&mut database);
    assert!(right > 5 * 7 && failures.len() > 1000, "{right} read, {} failed", failures.len());
    for text in &failures {
        let named = ["header checksum", "tuple checksum", "cannot be there", "short transfer"];
        assert!(text.contains("block ") && named.iter().any(|what| text.contains(what)), "{text}");
    }
}

#[test]
fn two_blocks_that_changed_places_are_noticed() {
    let mut database = filled();
    let file = block_file(&database);
    let (mut one, mut two) = (vec![0; 4096], vec![0; 4096]);
    file.read_exact_at(&mut one, 4096 * 3).unwrap();
    file.read_exact_at(&mut two, 4096 * 4).unwrap();
    file.write_all_at(&two, 4096 * 3).unwrap();
    file.write_all_at(&one, 4096 * 4).unwrap();
    let (_, failures) = read_all(&mut database);
    assert_eq!(failures.len(), 14);
    assert!(failures.iter().all(|text| text.contains("header says")), "{failures:?}");
}

/// Two tables that both want free slots from a full budget: each time, something is evicted, instead of one taking the other's memory.
#[test]
fn nothing_moves_between_tables_while_nothing_happens() {
    for other_keys in (100..1500).step_by(100) {
        let mut database = Database::create(|_| {});
        for (table, keys) in [(COLD, KEYS), (OTHER, other_keys)] {
            for key in 0..keys {
                assert_eq!(database.run_one(INSERT, params(table, &[key, key])).status, Status::Committed);
            }
        }
        database.settle();
        let before = database.partition.counters().released_chunks;
        database.poll(100);
        let released = database.partition.counters().released_chunks - before;
        assert!(released < 10, "{other_keys} keys in the other table: {released} chunks released");
    }
}

#[test]
fn a_failed_transaction_changes_nothing_and_others_go_on() {
    let mut database = filled();
    block_file(&database).write_all_at(&[0xFF; 8], 8).unwrap();
    assert_eq!(database.run_one(ADD, params(COLD, &[0, 1])).status, Status::Failed);
    assert_eq!(database.run_one(ADD, params(COLD, &[KEYS - 1, 1])).status, Status::Committed);
    let answer = database.run_one(READ, params(COLD, &[KEYS - 1]));
    assert_eq!(answer.payload, KEYS.to_le_bytes());
    database.settle();
    database.check();
}
