//! Transactions on several partitions at a running server: waiting, vanishing clients, stopping, a log that fails.

use std::sync::atomic::{AtomicBool, Ordering};

use anticache_engine::client::{Client, Reply};
use anticache_engine::config::Log;
use anticache_engine::io::simulated::{Fault, FaultRule, Operation, SimulatedDisk};

use crate::support::lists::{self, HOLD, Site, TOUCH, lists, params};

/// Reads one list.
fn read(client: &mut Client, key: i64) -> Vec<u32> {
    let partition = client.partition_of(key);
    lists(&client.call(partition, TOUCH, &params(&[(key, 0)])).unwrap()).remove(0)
}

#[test]
fn a_transaction_waits_for_a_busy_participant_and_others_go_on() {
    let site = Site::start(3, 30, |_| {});
    let (mut busy, mut waiting, mut free) = (site.client(), site.client(), site.client());
    let (gate, holding) = (&site.gate, &site.holding);
    let (seen, finished, lists_before) = std::thread::scope(|scope| {
        let held = scope.spawn(move || busy.call(1, HOLD, &[]).unwrap());
        while !holding.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        let both = scope.spawn(move || waiting.call(0, TOUCH, &params(&[(0, 7), (1, 8)])).unwrap());
        let mut seen = Vec::new();
        for element in 1..200 {
            free.call(2, TOUCH, &params(&[(2 + i64::from(element % 9) * 3, element)])).unwrap();
            // Partition 0 has reached the transaction, or will; nothing of it has happened.
            seen.extend(read(&mut free, 0));
        }
        let finished = both.is_finished() || held.is_finished();
        gate.store(true, Ordering::SeqCst);
        (seen, finished, lists(&both.join().unwrap()))
    });
    assert!(seen.is_empty() && !finished, "{seen:?}: it cannot run without partition 1");
    assert_eq!(lists_before, [vec![], vec![]] as [Vec<u32>; 2]);
    assert_eq!((read(&mut free, 0), read(&mut free, 1)), (vec![7], vec![8]));
    let stats = free.stats().unwrap();
    assert_eq!(stats["multi_partition"], 1);
    site.server.stop();
}

#[test]
fn a_client_that_vanishes_changes_nothing_for_others() {
    let site = Site::start(2, 4000, |config| config.log = Log::Sync);
    for round in 0..20u32 {
        let mut vanishing = site.client();
        for n in 0..50i64 {
            let key = (i64::from(round) * 173 + n * 31) % 3998;
            vanishing.submit(
                n as u64,
                vanishing.partition_of(key),
                TOUCH,
                &params(&[(key, 1 + round), (key + 1, 1 + round)]),
            );
        }
        // Sent, and some replies read or none.
        vanishing.wait(&mut |_, _| ()).unwrap();
        drop(vanishing);
    }
    let mut client = site.client();
    for key in (0..3998).step_by(7) {
        client.call(client.partition_of(key), TOUCH, &params(&[(key, 99), (key + 1, 0)])).unwrap();
    }
    assert_eq!(client.stats().unwrap()["waiting"], 0);
    site.server.stop();
}

/// Clients ask until the connection ends; what was acknowledged with both halves is in pairs, and the server ends.
#[test]
fn a_stop_in_the_middle_answers_or_hangs_up() {
    for log in [Log::Off, Log::Sync] {
        let site = Site::start(4, 4000, |config| config.log = log);
        let stopped = AtomicBool::new(false);
        let address = site.server.address();
        let server = site.server;
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..4u32)
                .map(|client| {
                    let stopped = &stopped;
                    scope.spawn(move || {
                        let mut connection = Client::connect(address).unwrap();
                        connection.set_timeout(Some(lists::PATIENCE)).unwrap();
                        let mut done = 0u32;
                        for number in 0i64.. {
                            while connection.outstanding() < 8 {
                                let key = (number * 37 + i64::from(client) * 1000) % 3990;
                                let accesses = [(key, 0), (key + 1 + number % 3, 0)];
                                connection.submit(0, connection.partition_of(key), TOUCH, &params(&accesses));
                            }
                            let waited = connection.wait(&mut |_, reply| {
                                assert!(matches!(reply, Reply::Committed(_)), "{reply:?}");
                                done += 1;
                            });
                            if let Err(error) = waited {
                                assert!(stopped.load(Ordering::SeqCst), "{error}");
                                assert!(!error.to_string().contains("timed out"), "{error}");
                                break;
                            }
                        }
                        done
                    })
                })
                .collect();
            std::thread::sleep(std::time::Duration::from_millis(300));
            stopped.store(true, Ordering::SeqCst);
            server.stop();
            assert!(clients.into_iter().all(|client| client.join().unwrap() > 0));
        });
    }
}

/// The log of partition 1 fails. Whatever shares unresolved transactions with it fails with its reason; partition 3 goes on; nobody hangs.
#[test]
fn a_log_that_fails_takes_its_transactions_with_it() {
    let disk = SimulatedDisk::new(5);
    let site = Site::start_on(&disk.files(), 4, 40, |config| config.log = Log::Sync);
    let mut client = site.client();
    client.call(1, TOUCH, &params(&[(1, 5), (2, 5)])).unwrap();
    disk.fail(FaultRule {
        file: "command-0001".to_owned(),
        operation: Operation::Write,
        after: 0,
        error: Fault::Io,
        times: u64::MAX,
    });
    let failure = |client: &mut Client, partition, accesses: &[lists::Access]| {
        client.call(partition, TOUCH, &params(accesses)).unwrap_err().to_string()
    };
    let first = failure(&mut client, 0, &[(0, 6), (1, 6)]);
    assert!(first.starts_with("failed: ") && first.contains("command log"), "{first}");
    let at_the_partition = failure(&mut client, 1, &[(1, 7)]);
    assert!(at_the_partition.starts_with("failed: command log"), "{at_the_partition}");
    // Partition 0 has executed a transaction that partition 1 has lost, so it cannot acknowledge what depends on it.
    let dependent = failure(&mut client, 0, &[(0, 8)]);
    assert!(dependent.contains("shared with partition 1, whose log failed"), "{dependent}");
    let again = failure(&mut client, 2, &[(2, 9), (1, 9)]);
    assert!(again.contains("command log"), "{again}");
    for element in 10..40 {
        client.call(3, TOUCH, &params(&[(3, element), (2, element)])).unwrap();
    }
    site.server.stop();
}

/// Requests that wait for another partition take memory: beyond a bound, their connection is not read until some were answered.
#[test]
fn requests_that_wait_are_not_taken_without_bound() {
    const REQUESTS: u64 = 64;
    let site = Site::start(2, 4, |_| {});
    let (mut busy, mut flood) = (site.client(), site.client());
    let request = params(&(0..87_000).map(|at| (at % 2, 0)).collect::<Vec<_>>());
    (0..REQUESTS).for_each(|token| flood.submit(token, 0, TOUCH, &request));
    std::thread::scope(|scope| {
        scope.spawn(move || busy.call(1, HOLD, &[]).unwrap());
        while !site.holding.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        let flood = scope.spawn(move || {
            let mut committed = 0;
            while committed < REQUESTS {
                flood.wait(&mut |_, reply| committed += u64::from(matches!(reply, Reply::Committed(_)))).unwrap();
            }
        });
        // Long enough for partition 0 to take whatever it takes.
        std::thread::sleep(std::time::Duration::from_secs(1));
        site.gate.store(true, Ordering::SeqCst);
        flood.join().unwrap();
    });
    let stats = site.client().stats().unwrap();
    let peak_bytes = stats["waiting_peak_bytes"].as_u64().unwrap();
    assert!(peak_bytes > 8 << 20 && peak_bytes < 48 << 20, "{stats}");
    assert_eq!(stats["waiting_bytes"], 0);
    site.server.stop();
}
