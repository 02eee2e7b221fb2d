//! A compacted block that the disk refuses. A file-size limit, which holds for the whole process, stands for a full disk.
#![allow(clippy::unwrap_used)] // a test that fails may panic

mod common;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anticache_engine::config::Compaction;
use anticache_engine::net::frame::Status;
use common::Database;
use common::notes::{A, DROP, PUT, SUM, database, request};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

fn committed(database: &mut Database, procedure: u16, numbers: &[i64]) -> Vec<u8> {
    let answer = database.run(&[request(procedure, A, numbers)]).remove(0);
    assert_eq!(answer.status, Status::Committed, "{}", answer.text());
    answer.payload
}

/// The blocks that it was made of stay, with everything in them; later it is tried again.
#[test]
fn a_refused_write_of_a_compacted_block_changes_nothing() {
    signal_hook::flag::register(signal_hook::consts::signal::SIGXFSZ, Arc::new(AtomicBool::new(false))).unwrap();
    let mut database = database(|config| config.compaction = Compaction::Background);
    (0..9000).for_each(|id| drop(committed(&mut database, PUT, &[id, 1])));
    // Room for what comes back, so that nothing is evicted meanwhile.
    (8000..9000).for_each(|id| drop(committed(&mut database, DROP, &[id])));
    database.settle();
    let before = *database.partition.counters();
    let limit = getrlimit(Resource::Fsize);
    setrlimit(Resource::Fsize, Rlimit { current: Some(4096), maximum: limit.maximum }).unwrap();
    (0..280).filter(|id| id % 7 > 0).for_each(|id| drop(committed(&mut database, SUM, &[id])));
    database.settle();
    let refused = *database.partition.counters();
    setrlimit(Resource::Fsize, limit).unwrap();
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
