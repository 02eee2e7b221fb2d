//! What a transaction costs in instructions and cache misses, counted in the processor that valgrind's callgrind simulates. Most virtual machines offer
//! no counters of their own; these need none, and are the same on every machine, whatever else it does.
//!
//! Each piece of work runs in a process of its own under valgrind: loads its database, warms the caches up, and does what is counted within
//! [`counted`], at which callgrind begins and ends to collect. The simulation knows no prefetching, so that a miss here is one that a processor may have
//! overlapped with others, and no kernel.

use std::hint::black_box;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anticache_engine::config::{AntiCaching, Config, Log};
use anticache_engine::procedure::tpcc::generate::Scale;
use anyhow::{Context, ensure};

use crate::all::left_s;
use crate::driver::{Driver, Pace, Requests};
use crate::growth::Dimensions;
use crate::harness::ycsb::{LOAD, ROW_BYTES, draw, load_calls, wire};
use crate::harness::{BATCH, Report, schema};
use crate::tpcc;
use crate::ycsb::in_memory;

/// The simulated caches, for instructions, for data, and of the last level: bytes, ways, bytes of a line.
const CACHES: [&str; 3] = ["--I1=32768,8,64", "--D1=32768,8,64", "--LL=33554432,16,64"];
/// Callgrind's name of [`counted`], whatever it is given to do.
const COUNTED: &str = "--toggle-collect=anticache_bench::counts::counted*";
/// What is shown of callgrind's events, each a sum.
const SHOWN: [(&str, &[&str]); 4] = [
    ("instructions", &["Ir"]),
    ("instruction cache misses", &["I1mr"]),
    ("first-level data misses", &["D1mr", "D1mw"]),
    ("last-level data misses", &["DLmr", "DLmw"]),
];
/// For a warehouse and what the transactions that are counted add to it. Valgrind has no address space for what an engine with twice as much reserves.
const TPCC_BUDGET_BYTES: u64 = 240 << 20;
/// Of the database whose orders outgrow the memory, at ratio 1.
const GROWN: Dimensions = Dimensions { warehouses: 1, items: 20_000, customers: 600, orders: 10_000 };
const TERMINALS: u64 = 10;
const PACE: Pace = Pace { outstanding: BATCH, batch: BATCH };

#[derive(clap::Args)]
pub struct Arguments {
    /// Records of 1000 bytes, for YCSB and recovery.
    #[arg(long, default_value_t = 500_000)]
    records: u64,
    /// Transactions that are counted, for YCSB; a fifth for TPC-C.
    #[arg(long, default_value_t = 200_000)]
    transactions: usize,
    /// Count only the work whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Do this work in this process, and print how many transactions or megabytes it was.
    #[arg(long, hide = true)]
    inside: Option<String>,
}

/// What is counted.
#[derive(Clone, Copy)]
enum Work {
    Ycsb {
        read_share: f64,
        anticaching: AntiCaching,
    },
    Tpcc {
        anticaching: AntiCaching,
    },
    /// With so many times the rows that the memory for rows holds; with 1 all are in memory.
    TpccGrown {
        ratio: f64,
    },
    Recovery {
        log: bool,
    },
}

/// A piece of work, what it is compared with, and the seconds that it takes by default on a machine with two cores.
struct Case {
    name: &'static str,
    peer: Option<&'static str>,
    work: Work,
    expected_s: f64,
}

const fn case(name: &'static str, peer: Option<&'static str>, work: Work, expected_s: f64) -> Case {
    Case { name, peer, work, expected_s }
}

const fn reads(anticaching: AntiCaching) -> Work {
    Work::Ycsb { read_share: 1.0, anticaching }
}

const fn half(anticaching: AntiCaching) -> Work {
    Work::Ycsb { read_share: 0.5, anticaching }
}

const READS_OFF: &str = "YCSB, read-only: anticache-off";
const HALF_OFF: &str = "YCSB, 50/50: anticache-off";
const TPCC_OFF: &str = "TPC-C, full mix: anticache-off";
const SMALL_IN_MEMORY: &str = "TPC-C grown, full mix: all in memory";
/// Every peer stands before those that are compared with it.
const CASES: [Case; 12] = [
    case(READS_OFF, None, reads(AntiCaching::Off), 30.0),
    case("YCSB, read-only: anticache-alru", Some(READS_OFF), reads(AntiCaching::Alru), 30.0),
    case("YCSB, read-only: anticache-lru", Some(READS_OFF), reads(AntiCaching::Lru), 30.0),
    case(HALF_OFF, None, half(AntiCaching::Off), 30.0),
    case("YCSB, 50/50: anticache-alru", Some(HALF_OFF), half(AntiCaching::Alru), 30.0),
    case("YCSB, 50/50: anticache-lru", Some(HALF_OFF), half(AntiCaching::Lru), 30.0),
    case(TPCC_OFF, None, Work::Tpcc { anticaching: AntiCaching::Off }, 75.0),
    case("TPC-C, full mix: anticache-alru", Some(TPCC_OFF), Work::Tpcc { anticaching: AntiCaching::Alru }, 75.0),
    case(SMALL_IN_MEMORY, None, Work::TpccGrown { ratio: 1.0 }, 90.0),
    case(
        "TPC-C grown, full mix: 2x the memory, blocks fetched",
        Some(SMALL_IN_MEMORY),
        Work::TpccGrown { ratio: 2.0 },
        250.0,
    ),
    case("recovery, snapshot", None, Work::Recovery { log: false }, 40.0),
    case("recovery, snapshot and log", None, Work::Recovery { log: true }, 60.0),
];

impl Work {
    fn unit(self) -> &'static str {
        if matches!(self, Self::Recovery { .. }) { "/MB" } else { "/txn" }
    }

    /// Does it, and says how many transactions or megabytes it was.
    fn run(self, arguments: &Arguments, directory: &Path) -> anyhow::Result<f64> {
        match self {
            Self::Ycsb { read_share, anticaching } => arguments.ycsb(read_share, anticaching, directory),
            Self::Tpcc { anticaching } => {
                arguments.tpcc((Scale::new(1), TPCC_BUDGET_BYTES), anticaching, false, directory)
            }
            Self::TpccGrown { ratio } => {
                let (scale, grown_bytes) = GROWN.size(ratio);
                let evicts = ratio > 1.0;
                let budget_bytes = if evicts { grown_bytes } else { TPCC_BUDGET_BYTES };
                arguments.tpcc((scale, budget_bytes), AntiCaching::Alru, evicts, directory)
            }
            Self::Recovery { log } => arguments.recovery(log, directory),
        }
    }

    fn settings(self, arguments: &Arguments) -> String {
        let what = match self {
            Self::Ycsb { .. } => format!(
                "{} records x {ROW_BYTES} B, Zipf 1.0, in memory, log off, batches of {BATCH}",
                arguments.records
            ),
            Self::Tpcc { .. } => format!("1 warehouse, home warehouse only, in memory, log off, batches of {BATCH}"),
            Self::TpccGrown { ratio } => format!(
                "1 warehouse, {} items, {} customers and {} orders of a district at 1x, {ratio}x the memory, \
                 home warehouse only, aLRU, log off, batches of {BATCH}",
                GROWN.items, GROWN.customers, GROWN.orders
            ),
            Self::Recovery { .. } => {
                format!("{} records x {ROW_BYTES} B, the log's transactions half updates", arguments.records)
            }
        };
        format!("1 partition, in process, {what}; simulated by callgrind, {}", CACHES.join(" "))
    }
}

/// Everything that callgrind counts happens in here.
#[inline(never)]
fn counted<R>(work: impl FnOnce() -> R) -> R {
    black_box(work())
}

impl Arguments {
    /// A database with all records, and requests on the wire, twice as many as are counted.
    fn loaded(&self, config: &Config, read_share: f64) -> anyhow::Result<(Driver, Requests)> {
        let mut driver: Driver = Driver::open(config)?;
        driver.call(load_calls(self.records, 100).map(|params| (LOAD, params)))?;
        let requests = Requests::new(wire(&draw(self.records, read_share, 2 * self.transactions)?));
        Ok((driver, requests))
    }

    fn ycsb(&self, read_share: f64, anticaching: AntiCaching, directory: &Path) -> anyhow::Result<f64> {
        let config = in_memory(anticaching, Log::Off, self.records, directory);
        let (mut driver, mut requests) = self.loaded(&config, read_share)?;
        count_transactions(&mut driver, &mut requests, self.transactions)
    }

    /// `evicts` says whether the data outgrow the budget.
    fn tpcc(
        &self,
        (scale, budget_bytes): (Scale, u64),
        anticaching: AntiCaching,
        evicts: bool,
        directory: &Path,
    ) -> anyhow::Result<f64> {
        let defaults = Config::new(schema("tpcc.sql"), directory.to_owned(), budget_bytes);
        let mut driver = Driver::open(&Config { anticaching, log: Log::Off, ..defaults })?;
        tpcc::load(&mut driver, scale)?;
        let mut requests = tpcc::draw(scale, TERMINALS, None)?;
        let transactions = count_transactions(&mut driver, &mut requests, self.transactions / 5)?;
        let evicted = driver.partition.counters().evicted_blocks;
        ensure!((evicted > 0) == evicts, "{evicted} blocks were evicted from a budget of {budget_bytes} bytes");
        Ok(transactions)
    }

    fn recovery(&self, log: bool, directory: &Path) -> anyhow::Result<f64> {
        let config = in_memory(AntiCaching::Alru, Log::Sync, self.records, directory);
        // Of the segment in which the snapshot begins all is read, also what loading has written.
        let config = Config { log_segment_bytes: 16 << 20, ..config };
        let (mut driver, mut requests) = self.loaded(&config, 0.5)?;
        driver.begin_snapshot()?;
        driver.settle()?;
        if log {
            driver.run_once(&mut requests, PACE, Duration::MAX)?;
            driver.settle()?;
        }
        drop(driver);
        let driver: Driver = counted(|| Driver::open(&config))?;
        let counters = driver.partition.counters();
        ensure!(counters.recovered_tuples == self.records, "not all was recovered: {counters:?}");
        Ok((counters.recovered_snapshot_bytes + counters.recovered_log_bytes) as f64 / 1e6)
    }
}

/// Runs so many requests to warm the caches up, and counts as many others.
fn count_transactions(driver: &mut Driver, requests: &mut Requests, count: usize) -> anyhow::Result<f64> {
    driver.run_once(&mut requests.take(count)?, PACE, Duration::MAX)?;
    let mut requests = requests.take(count)?;
    let done = counted(|| driver.run_once(&mut requests, PACE, Duration::MAX))?;
    Ok(done.transactions as f64)
}

/// Sums of events, in the order of [`SHOWN`], from what callgrind writes: a line with the names of its events, and one with their sums, from whose end
/// zeros may be missing.
fn parse(text: &str) -> anyhow::Result<[f64; SHOWN.len()]> {
    let line = |name: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(name));
        found.with_context(|| format!("callgrind has written no line with \"{name}\""))
    };
    let names: Vec<_> = line("events:")?.split_whitespace().collect();
    let sums: Result<Vec<f64>, _> = line("totals:")?.split_whitespace().map(str::parse).collect();
    let sums = sums.context("callgrind's totals")?;
    let sum = |name: &str| {
        let at = names.iter().position(|event| *event == name);
        let at = at.with_context(|| format!("callgrind has counted no {name}, but {}", names.join(" ")))?;
        anyhow::Ok(sums.get(at).copied().unwrap_or_default())
    };
    let mut shown = [0.0; SHOWN.len()];
    for (shown, (_, events)) in shown.iter_mut().zip(SHOWN) {
        for event in events {
            *shown += sum(event)?;
        }
    }
    ensure!(shown[0] > 0.0, "callgrind has counted no instruction: it knows no function {COUNTED}");
    Ok(shown)
}

/// Counts of one case for each transaction or megabyte.
fn count(case: &Case, arguments: &Arguments, directory: &Path) -> anyhow::Result<[f64; SHOWN.len()]> {
    let own = tempfile::tempdir_in(directory)?;
    let written = own.path().join("callgrind.out");
    let mut command = Command::new("valgrind");
    command.args(["--quiet", "--tool=callgrind", "--cache-sim=yes", COUNTED]).args(CACHES);
    command.arg(format!("--callgrind-out-file={}", written.display())).arg(std::env::current_exe()?);
    command.args(["counts", "--quiet", "--inside", case.name, "--directory"]).arg(own.path());
    command.args([format!("--records={}", arguments.records), format!("--transactions={}", arguments.transactions)]);
    let output = command.stderr(Stdio::inherit()).output().context("valgrind: apt-get install valgrind")?;
    ensure!(output.status.success(), "{} under valgrind: {}", case.name, output.status);
    let printed = String::from_utf8_lossy(&output.stdout);
    let units: f64 = printed.trim().parse().with_context(|| format!("it has printed {printed:?}"))?;
    let text = std::fs::read_to_string(&written).with_context(|| written.display().to_string())?;
    Ok(parse(&text)?.map(|count| count / units))
}

pub fn run(arguments: &Arguments, directory: &Path, report: &mut Report) -> anyhow::Result<()> {
    if let Some(name) = &arguments.inside {
        let case = CASES.iter().find(|case| case.name == name).with_context(|| format!("--inside {name}"))?;
        println!("{}", case.work.run(arguments, directory)?);
        return Ok(());
    }
    let chosen: Vec<_> = CASES.iter().filter(|case| case.name.contains(&arguments.only)).collect();
    ensure!(!chosen.is_empty(), "--only {}: no work's name contains it", arguments.only);
    let (started, mut counts) = (Instant::now(), Vec::new());
    let mut done_s = 0.0;
    for (at, case) in chosen.iter().enumerate() {
        let expected_left_s: f64 = chosen[at..].iter().map(|case| case.expected_s).sum();
        let left_s = left_s(done_s, started.elapsed().as_secs_f64(), expected_left_s);
        eprintln!("[{}/{}] {}; all that is left: about {left_s:.0} s", at + 1, chosen.len(), case.name);
        let of_case = count(case, arguments, directory)?;
        let peer = counts.iter().find(|(name, _): &&(&str, [f64; SHOWN.len()])| Some(*name) == case.peer);
        for (kind, (what, _)) in SHOWN.iter().enumerate() {
            let of_peer = peer.filter(|(_, of_peer)| of_peer[kind] > 0.0);
            let ratio = of_peer.map(|(name, of_peer)| (*name, of_case[kind] / of_peer[kind]));
            let name = format!("counted, {}: {what}", case.name);
            report.add(&name, of_case[kind], case.work.unit(), ratio, &case.work.settings(arguments));
        }
        counts.push((case.name, of_case));
        done_s += case.expected_s;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITTEN: &str = "# callgrind format\nversion: 1\n\npositions: line\n\
        events: Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw\nsummary: 900 0\n\nfn=(1) main\n7 900\n\n\
        totals: 900 300 200 5 60 4 1 3\n";

    #[test]
    fn sums_are_found_by_the_names_of_their_events() {
        assert_eq!(parse(WRITTEN).unwrap(), [900.0, 5.0, 64.0, 3.0]);
        for (from, to, expected) in [
            ("D1mr ", "", "counted no D1mr"),
            ("totals:", "total:", "no line with \"totals:\""),
            ("totals: 900", "totals: x", "callgrind's totals"),
            ("totals: 900", "totals: 0", "no instruction"),
        ] {
            let error = parse(&WRITTEN.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    /// Each as the process under valgrind does it.
    #[test]
    fn every_work_does_what_is_to_be_counted() {
        let arguments = Arguments { records: 2000, transactions: 1000, only: String::new(), inside: None };
        for case in &CASES {
            let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
            let units = case.work.run(&arguments, directory.path()).unwrap();
            let expected = match case.work {
                Work::Ycsb { .. } => 1000.0..=1000.0,
                Work::Tpcc { .. } | Work::TpccGrown { .. } => 200.0..=200.0,
                Work::Recovery { log: false } => 2.0..=4.5,
                Work::Recovery { log: true } => 2.1..=6.0,
            };
            assert!(expected.contains(&units), "{}: {units}", case.name);
        }
    }

    #[test]
    fn peers_are_counted_before_those_compared_with_them() {
        for (at, case) in CASES.iter().enumerate() {
            assert!(
                case.peer.is_none_or(|peer| CASES[..at].iter().any(|earlier| earlier.name == peer)),
                "{}",
                case.name
            );
        }
    }
}
