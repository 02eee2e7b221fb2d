//! What transactions on several partitions cost: two partitions, a thread each, in process.
//!
//! Every transaction moves an amount between two of the records, which lie at one partition or, for a share of the transactions, at both. The first
//! variant is the same work at partitions that know nothing of each other.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anticache_engine::catalog::{Catalog, TableId};
use anticache_engine::config::{Config, Log};
use anticache_engine::net::frame::{RequestHead, parse_requests, write_request};
use anticache_engine::partition::Partition;
use anticache_engine::partition::multi::Coordinator;
use anticache_engine::procedure::{FirstTuple, Participants, Procedure, ProcedureSet};
use anticache_engine::txn::{Abort, TxnContext};
use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

use crate::harness::{self, BATCH, Replies, Report, median, ratio};

const PARTITIONS: u32 = 2;
const SCHEMA: &str = "CREATE TABLE account (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL, filler CHAR(84) NOT NULL) COMMENT = 'evictable; partition by id';";
const ROW_BYTES: usize = 100;
const ACCOUNT: TableId = 0;
/// Requests between looks at the other partition, as the server does.
const SLICE: usize = 16;
const DRAWN: usize = 1 << 17;
/// Unanswered requests of a thread.
const OUTSTANDING: u64 = 256;

#[derive(clap::Args)]
pub struct Arguments {
    /// Records of 100 bytes at each partition.
    #[arg(long, default_value_t = 500_000)]
    records: i64,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Times that every variant has its turn.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// With the command log, synced.
    #[arg(long)]
    log: bool,
}

fn key(params: &[u8], at: usize) -> i64 {
    params
        .get(8 * at..8 * at + 8)
        .map_or(0, |bytes| bytes.iter().rev().fold(0, |key, &byte| key << 8 | i64::from(byte)))
}

fn owner(key: i64) -> u32 {
    key.rem_euclid(i64::from(PARTITIONS)) as u32
}

/// Moves 1 from an account to another.
struct Transfer;

impl Procedure for Transfer {
    fn name(&self) -> &'static str {
        "transfer"
    }

    fn first_tuple<'call>(&'call self, params: &'call [u8]) -> Option<FirstTuple<'call>> {
        Some(FirstTuple::whole(ACCOUNT, params.get(..8)?))
    }

    fn partitions(&self, params: &[u8], _partitions: u32) -> Participants {
        Participants::OWN.and(owner(key(params, 0))).and(owner(key(params, 1)))
    }

    fn execute(&self, txn: &mut TxnContext<'_>, params: &[u8]) -> Result<(), Abort> {
        for (at, change) in [(0, -1i64), (1, 1)] {
            let id = key(params, at);
            let txn = txn.at(owner(id))?;
            let tuple = txn.lookup(ACCOUNT, &id.to_le_bytes()).ok_or(Abort::user("no such account"))?;
            let balance = key(txn.row(tuple)?, 1) + change;
            txn.update(tuple, 8, &balance.to_le_bytes())?;
        }
        Ok(())
    }
}

struct Load;

impl Procedure for Load {
    fn name(&self) -> &'static str {
        "load"
    }

    fn first_tuple<'call>(&'call self, _params: &'call [u8]) -> Option<FirstTuple<'call>> {
        None
    }

    fn execute(&self, txn: &mut TxnContext<'_>, params: &[u8]) -> Result<(), Abort> {
        params.chunks_exact(8).try_for_each(|id| {
            let mut row = id.to_vec();
            row.resize(ROW_BYTES, 0);
            txn.insert(ACCOUNT, &row).map(|_| ())
        })
    }
}

fn config(arguments: &Arguments, data_dir: &Path) -> Config {
    let budget_bytes = (arguments.records as u64 * u64::from(PARTITIONS) * 250).max(64 << 20);
    Config {
        partitions: PARTITIONS,
        eviction_block_bytes: 1 << 18,
        log: if arguments.log { Log::Sync } else { Log::Off },
        snapshot_interval_s: 0,
        snapshot_log_bytes: 0,
        ..Config::new(Path::new("").to_owned(), data_dir.to_owned(), budget_bytes)
    }
}

/// Two partitions with their thread's requests.
struct Variant {
    name: String,
    share: f64,
    site: Arc<Coordinator>,
    partitions: Vec<Option<Box<Partition>>>,
    requests: Vec<Vec<u8>>,
}

impl Variant {
    fn new(name: &str, joined: bool, share: f64, arguments: &Arguments, directory: &Path) -> anyhow::Result<Self> {
        let data = directory.join(name.replace([' ', '%'], "-"));
        std::fs::create_dir_all(&data)?;
        let (config, catalog) = (config(arguments, &data), Catalog::from_sql(SCHEMA)?);
        let procedures = ProcedureSet::new(vec![Box::new(Transfer), Box::new(Load)]);
        let site = Arc::new(Coordinator::new(PARTITIONS, 1)?);
        let mut partitions = Vec::new();
        let mut requests = Vec::new();
        for id in 0..PARTITIONS {
            let mut partition = Partition::create(id, &config, &catalog, procedures.clone(), &data)?;
            if joined {
                partition.join(&site);
            }
            load(&mut partition, arguments.records);
            partitions.push(Some(Box::new(partition)));
            requests.push(draw(i64::from(id), arguments.records, share));
        }
        Ok(Self { name: name.to_owned(), share, site, partitions, requests })
    }

    /// Transactions per second of both, and the microseconds that they waited for each other per transaction on both.
    fn measure(&mut self, duration: Duration) -> (f64, f64) {
        let waited = |partitions: &[Option<Box<Partition>>]| -> (u64, u64) {
            let counters: Vec<_> = partitions.iter().flatten().map(|partition| *partition.counters()).collect();
            let sum = |each: fn(&anticache_engine::stats::Counters) -> u64| counters.iter().map(each).sum();
            (sum(|counters| counters.multi_wait_us), sum(|counters| counters.multi_partition))
        };
        let before = waited(&self.partitions);
        let (stop, running, unanswered) = (AtomicBool::new(false), AtomicU32::new(PARTITIONS), AtomicU64::new(0));
        let (site, requests) = (&self.site, &self.requests);
        let started = Instant::now();
        let mut done = 0;
        std::thread::scope(|scope| {
            let threads: Vec<_> = self
                .partitions
                .iter_mut()
                .zip(0..)
                .map(|(slot, id)| {
                    let (stop, running, unanswered) = (&stop, &running, &unanswered);
                    scope.spawn(move || {
                        harness::bind(id % (harness::last_cpu() + 1));
                        let thread = Driver { site, id: id as u32, stop, running, unanswered };
                        let partition = slot.take().expect("it was put back");
                        let (partition, done) = thread.run(partition, &requests[id]);
                        *slot = Some(partition);
                        done
                    })
                })
                .collect();
            std::thread::sleep(duration);
            stop.store(true, Ordering::SeqCst);
            done = threads.into_iter().map(|thread| thread.join().expect("no panic")).sum();
        });
        let elapsed = started.elapsed().as_secs_f64();
        let after = waited(&self.partitions);
        (done as f64 / elapsed, (after.0 - before.0) as f64 / (after.1 - before.1).max(1) as f64)
    }
}

fn load(partition: &mut Partition, records: i64) {
    let mut sink = Replies(Vec::new());
    let ids: Vec<i64> = (0..records).map(|n| n * i64::from(PARTITIONS) + i64::from(partition.id())).collect();
    for some in ids.chunks(500) {
        let params: Vec<u8> = some.iter().flat_map(|id| id.to_le_bytes()).collect();
        let head = RequestHead { token: 0, procedure: 1, start: 0, end: params.len() };
        partition.execute_batch(0, 0, &params, &[head], &mut sink);
        partition.poll(&mut sink);
    }
    while !partition.is_idle() {
        partition.poll(&mut sink);
    }
}

/// Requests of one partition's clients.
fn draw(partition: i64, records: i64, share: f64) -> Vec<u8> {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(partition as u64);
    let partitions = i64::from(PARTITIONS);
    let mut wire = Vec::new();
    for token in 0..DRAWN as u64 {
        let from = rng.random_range(0..records) * partitions + partition;
        let other = if rng.random_bool(share) { (partition + 1) % partitions } else { partition };
        let to = rng.random_range(0..records) * partitions + other;
        write_request(&mut wire, token, 0, &[from.to_le_bytes(), to.to_le_bytes()].concat());
    }
    wire
}

/// What an event loop does, without sockets.
struct Driver<'run> {
    site: &'run Coordinator,
    id: u32,
    stop: &'run AtomicBool,
    /// Threads that still send requests.
    running: &'run AtomicU32,
    /// Requests of all threads.
    unanswered: &'run AtomicU64,
}

impl Driver<'_> {
    fn run(&self, mut partition: Box<Partition>, requests: &[u8]) -> (Box<Partition>, u64) {
        let disk = partition.ring().event().try_clone_to_owned().expect("a descriptor");
        let (mut sink, mut heads, mut at) = (Replies(Vec::with_capacity(1 << 20)), Vec::new(), 0);
        let (mut sent, mut answered) = (0, 0);
        let mut open = true;
        // The others' requests need this partition, too.
        while open || self.running.load(Ordering::SeqCst) > 0 || self.unanswered.load(Ordering::SeqCst) > 0 {
            if open && self.stop.load(Ordering::Relaxed) {
                open = false;
                self.running.fetch_sub(1, Ordering::SeqCst);
            }
            let idle = !open || sent - answered >= OUTSTANDING;
            if !idle {
                heads.clear();
                self.unanswered.fetch_add(BATCH as u64, Ordering::SeqCst);
                let used = parse_requests(&requests[at..], BATCH, &mut heads).expect("well-formed requests");
                for slice in heads.chunks(SLICE) {
                    partition = self.meet(partition, disk.as_fd(), &mut sink);
                    partition.execute_batch(0, 0, &requests[at..], slice, &mut sink);
                }
                at = if heads.len() < BATCH { 0 } else { at + used };
                self.unanswered.fetch_sub((BATCH - heads.len()) as u64, Ordering::SeqCst);
                sent += heads.len() as u64;
            }
            partition = self.meet(partition, disk.as_fd(), &mut sink);
            partition.poll(&mut sink);
            let arrived = sink.take() as u64;
            self.unanswered.fetch_sub(arrived, Ordering::SeqCst);
            answered += arrived;
            if idle {
                std::thread::yield_now();
            }
        }
        (partition, answered)
    }

    fn meet(&self, mut partition: Box<Partition>, disk: BorrowedFd<'_>, sink: &mut Replies) -> Box<Partition> {
        while let Some(item) = self.site.due(self.id) {
            partition = self.site.meet(&item, partition, disk, sink).expect("no thread dies");
        }
        partition
    }
}

pub fn run(arguments: &Arguments, directory: &Path, report: &mut Report) -> anyhow::Result<()> {
    let new = |name: &str, joined, share| Variant::new(name, joined, share, arguments, directory);
    let mut variants = [
        new("apart, 0%", false, 0.0)?,
        new("joined, 0%", true, 0.0)?,
        new("joined, 1%", true, 0.01)?,
        new("joined, 10%", true, 0.1)?,
        new("joined, 100%", true, 1.0)?,
    ];
    let duration = Duration::from_secs_f64(arguments.seconds);
    let mut measured = vec![(Vec::new(), Vec::new()); variants.len()];
    for round in 0..=arguments.rounds {
        for (variant, (rates, waits)) in variants.iter_mut().zip(&mut measured) {
            let (rate, waited_us) = variant.measure(duration);
            if round > 0 {
                rates.push(rate);
                waits.push(waited_us);
            }
        }
    }
    let settings = format!(
        "2 partitions, a core each, in process, {} records x {ROW_BYTES} B each, transfers between 2 records, in memory, log {}",
        arguments.records,
        if arguments.log { "synced" } else { "off" }
    );
    let single_us = 2e6 / median(&measured[1].0);
    for (variant, (rates, waits)) in variants.iter().zip(&measured) {
        let (name, rate) = (format!("multi-partition: {}", variant.name), median(rates));
        report.add(&name, rate, "txn/s", Some(("apart, 0%", ratio(rates, &measured[0].0))), &settings);
        if variant.share > 0.0 {
            // Core time that a transaction on both takes beyond what one on its own takes.
            let cost_us = (2e6 / rate - (1.0 - variant.share) * single_us) / variant.share;
            report.add(&format!("{name}: time of both cores for each across"), cost_us, "us", None, &settings);
            println!("{:<58} {:>14.2} us of it waiting", "", median(waits));
        }
    }
    Ok(())
}
