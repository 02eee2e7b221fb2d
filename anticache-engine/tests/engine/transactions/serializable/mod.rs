//! Strict serializability under real threads: clients read and append to lists at several partitions in one transaction, with most lists evicted,
//! and what they saw is checked.

use std::collections::HashMap;
use std::time::Instant;

use anticache_engine::client::Reply;
use anticache_engine::config::{Log, Merge};

use crate::support::lists;
mod checker;

use crate::support::lists::{Access, Site, TOUCH, params};
use checker::{Transaction, check};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// Lists per partition: about twice what its budget holds.
const LISTS: i64 = 2500;
const CLIENTS: u32 = 6;
const OUTSTANDING: usize = 4;

fn transactions_per_client() -> u32 {
    std::env::var("HISTORY").ok().and_then(|count| count.parse().ok()).unwrap_or(1500)
}

/// A few lists, most of them among those that everybody works on now: these move on, before they are full.
fn draw(rng: &mut Pcg64Mcg, keys: i64, client: u32, number: u32) -> Vec<Access> {
    let count = if rng.random_bool(0.5) { 1 } else { rng.random_range(2..6) };
    let mut accesses: Vec<Access> = Vec::new();
    for place in 0..count {
        let hot = i64::from(number / 60) * 7 + rng.random_range(0..8);
        let key = if rng.random_bool(0.7) { hot * 131 % keys } else { rng.random_range(0..keys) };
        let element = (client << 24) + (number << 3) + place + 1;
        if accesses.iter().all(|&(other, _)| other != key) {
            accesses.push((key, if rng.random_bool(0.5) { element } else { 0 }));
        }
    }
    accesses
}

fn run_client(site: &Site, keys: i64, client: u32, started: Instant) -> Vec<Transaction> {
    let mut connection = site.client();
    let mut rng = Pcg64Mcg::seed_from_u64(u64::from(client));
    let now = || started.elapsed().as_nanos() as u64;
    let mut history = Vec::new();
    let mut under_way: HashMap<u64, (Vec<Access>, u64)> = HashMap::new();
    let mut number = 0;
    loop {
        while connection.outstanding() < OUTSTANDING && number < transactions_per_client() {
            let accesses = draw(&mut rng, keys, client, number);
            let base = accesses[0].0.rem_euclid(i64::from(site.partitions)) as u32;
            let parameters = params(&accesses);
            under_way.insert(u64::from(number), (accesses, now()));
            connection.submit(u64::from(number), base, TOUCH, &parameters);
            number += 1;
        }
        let arrived = connection.wait(&mut |token, reply| {
            let (accesses, sent) = under_way.remove(&token).unwrap();
            match reply {
                Reply::Committed(payload) => {
                    let lists = lists::lists(payload);
                    assert_eq!(lists.len(), accesses.len());
                    let reads = accesses.iter().zip(lists).map(|(&(key, _), list)| (key, list)).collect();
                    let appends = accesses.into_iter().filter(|&(_, element)| element != 0).collect();
                    history.push(Transaction { sent, answered: now(), reads, appends });
                }
                Reply::Aborted(reason) => assert_eq!(reason, "the list is full"),
                Reply::Failed(reason) => panic!("{reason}"),
            }
        });
        if arrived.unwrap() == 0 {
            return history;
        }
    }
}

fn histories_are_strictly_serializable(partitions: u32, log: Log, merge: Merge) {
    let keys = LISTS * i64::from(partitions);
    let site = Site::start(partitions, keys, |config| {
        config.log = log;
        config.merge = merge;
    });
    let started = Instant::now();
    let history: Vec<Transaction> = std::thread::scope(|scope| {
        let site = &site;
        let clients: Vec<_> =
            (0..CLIENTS).map(|client| scope.spawn(move || run_client(site, keys, client, started))).collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    let all = CLIENTS * transactions_per_client();
    assert!(history.len() as u32 > all * 9 / 10, "{} of {all} committed", history.len());
    check(&history, &[]).unwrap();
    let stats = site.client().stats().unwrap();
    let count = |name: &str| stats[name].as_u64().unwrap();
    assert!(count("multi_partition") > u64::from(all) / 8, "{stats}");
    assert!(count("restarted") > u64::from(all) / 10 && count("evicted_blocks") > 100, "{stats}");
    assert_eq!(count("waiting"), 0);
    site.server.stop();
}

#[test]
fn two_partitions_without_log() {
    histories_are_strictly_serializable(2, Log::Off, Merge::Tuple);
}

#[test]
fn three_partitions_with_log() {
    histories_are_strictly_serializable(3, Log::Sync, Merge::Tuple);
}

#[test]
fn four_partitions_with_log_and_whole_blocks() {
    histories_are_strictly_serializable(4, Log::Sync, Merge::Block);
}
