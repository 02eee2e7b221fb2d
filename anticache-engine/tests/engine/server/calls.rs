//! System calls of a server: few for many transactions.

use anticache_engine::client::Client;

use crate::support::served::{serve, stop};

const RECORDS: i64 = 1000;
/// The counters of system calls that work is shared by; [`looks`] has the others.
const KINDS: [&str; 5] = ["wait", "receive", "send", "event", "disk"];

fn load(client: &mut Client) {
    let procedure = client.procedure("ycsb_load").unwrap();
    for first in (0..RECORDS).step_by(100) {
        let mut params = 100u32.to_le_bytes().to_vec();
        for key in first..first + 100 {
            params.extend_from_slice(&key.to_le_bytes());
            params.extend_from_slice(&[b'a'; 1000]);
        }
        client.call(0, procedure, &params).unwrap();
    }
}

/// Transactions, so many of them at a time: the next are sent when all are answered. Every fourth is an update.
fn run(client: &mut Client, transactions: usize, outstanding: usize) {
    let (read, update) = (client.procedure("ycsb_read").unwrap(), client.procedure("ycsb_update").unwrap());
    for turn in 0..transactions / outstanding {
        for at in 0..outstanding {
            let number = turn * outstanding + at;
            let key = (number as i64 * 7919 % RECORDS).to_le_bytes();
            if number % 4 == 3 {
                client.submit(0, 0, update, &[&key[..], &[0, 0], &[b'x'; 100]].concat());
            } else {
                client.submit(0, 0, read, &key);
            }
        }
        while client.outstanding() > 0 {
            client
                .wait(&mut |_, reply| assert!(matches!(reply, anticache_engine::client::Reply::Committed(_))))
                .unwrap();
        }
    }
}

fn counted(client: &mut Client) -> [u64; KINDS.len()] {
    let stats = client.stats().unwrap();
    KINDS.map(|kind| stats[format!("system_calls_{kind}")].as_u64().unwrap())
}

fn calls_for(client: &mut Client, transactions: usize, outstanding: usize) -> [u64; KINDS.len()] {
    let before = counted(client);
    run(client, transactions, outstanding);
    let after = counted(client);
    std::array::from_fn(|kind| after[kind] - before[kind])
}

fn looks(client: &mut Client) -> u64 {
    client.stats().unwrap()["system_calls_look"].as_u64().unwrap()
}

fn server(log: &str, idle_poll_us: u64) -> (crate::support::served::Served, Client) {
    let changes = serde_json::json!({
        "partitions": 1, "memory_budget_bytes": 32 << 20, "log": log, "idle_poll_us": idle_poll_us
    });
    let served = serve("", &changes);
    let mut client = Client::connect(served.address).unwrap();
    load(&mut client);
    (served, client)
}

/// One wait, one read and one write for all that is outstanding; with the log, what its groups need besides.
#[test]
fn what_is_outstanding_shares_its_system_calls() {
    for (log, most_per_turn, idle_poll_us) in [("off", 6, 50), ("off", 6, 0), ("sync", 16, 50), ("sync", 16, 0)] {
        let (served, mut client) = server(log, idle_poll_us);
        for outstanding in [1, 8, 64] {
            let calls = calls_for(&mut client, 100 * outstanding, outstanding);
            let all: u64 = calls.iter().sum();
            assert!(all >= 300, "log {log}, {outstanding} outstanding: {KINDS:?} {calls:?}");
            assert!(all <= 100 * most_per_turn, "log {log}, {outstanding} outstanding: {KINDS:?} {calls:?}");
            assert_eq!(calls[4] > 0, log == "sync", "the disk has to do with the log alone");
        }
        stop(served);
    }
}

/// Who has nothing to do looks for work for a moment and sleeps then: a second of looking would be a million calls.
#[test]
fn an_idle_partition_looks_for_work_before_it_sleeps() {
    for idle_poll_us in [0, 50, 1000] {
        let (served, mut client) = server("off", idle_poll_us);
        run(&mut client, 100, 1);
        let before = looks(&mut client);
        std::thread::sleep(std::time::Duration::from_millis(500));
        let made = looks(&mut client) - before;
        // It looks after it has answered the first time, and perhaps once more before the second.
        assert!(made <= idle_poll_us * 40, "{made} looks with {idle_poll_us} us");
        assert_eq!(before > 0, idle_poll_us > 0, "{before} looks with {idle_poll_us} us");
        stop(served);
    }
}
