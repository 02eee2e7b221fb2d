//! Shows what the hot path does not cost: a transaction whose data are in memory allocates nothing and makes no system call, whatever is kept of the
//! LRU chain, and the command log costs so much for a group, not for a transaction. A lock that has to wait would be a system call as well.
#![allow(clippy::unwrap_used)] // a test that fails may panic

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::catalog::Catalog;
use crate::config::{AntiCaching, Config, FetchUnit, Log};
use crate::memory_audit::{Sink, allocations};
use crate::net::frame::{RequestHead, Status, parse_requests, write_request};
use crate::partition::Partition;
use crate::procedure::ProcedureSet;
use crate::procedure::tpcc::generate::{Mix, Population, Scale, Seeds, Terminal, TpccTable};

mod calls;

/// Requests that are run together, as they come from a connection.
const BATCH: usize = 64;
const RECORDS: i64 = 8000;
const FIELD_BYTES: usize = 100;
const NOW_US: i64 = 1_400_000_000_000_000;
const TPCC_SCALE: Scale = Scale { warehouses: 1, items: 10_000, customers_per_district: 300, orders_per_district: 300 };
const CHAINS: [AntiCaching; 3] = [AntiCaching::Alru, AntiCaching::Lru, AntiCaching::Off];

/// Encoded requests.
#[derive(Default)]
struct Requests {
    wire: Vec<u8>,
    heads: Vec<RequestHead>,
}

impl Requests {
    fn of<'requests>(all: impl IntoIterator<Item = (u16, &'requests [u8])>) -> Self {
        let mut requests = Self::default();
        for (procedure, params) in all {
            write_request(&mut requests.wire, 0, procedure, params);
        }
        parse_requests(&requests.wire, usize::MAX, &mut requests.heads).unwrap();
        requests
    }
}

struct Driven {
    partition: Partition,
    sink: Sink,
    terminals: Vec<Terminal>,
    draws: u64,
    _directory: tempfile::TempDir,
}

impl Driven {
    fn create(schema: &str, budget_bytes: u64, change: impl FnOnce(&mut Config)) -> Self {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let schema: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../workloads/schemas").join(schema);
        let catalog = Catalog::from_file(&schema).unwrap();
        let mut config = Config { log: Log::Off, ..Config::new(schema, directory.path().to_owned(), budget_bytes) };
        change(&mut config);
        config.check().unwrap();
        let procedures = ProcedureSet::for_catalog(&catalog).unwrap();
        let partition = Partition::create(0, &config, &catalog, procedures, directory.path()).unwrap();
        Self {
            partition,
            sink: Sink(Vec::with_capacity(1 << 20)),
            terminals: Vec::new(),
            draws: 0,
            _directory: directory,
        }
    }

    /// YCSB's table, loaded.
    fn ycsb(budget_bytes: u64, change: impl FnOnce(&mut Config)) -> Self {
        let mut driven = Self::create("ycsb.sql", budget_bytes, change);
        let load = driven.procedure("ycsb_load");
        for first in (0..RECORDS).step_by(16) {
            let mut params = 16u32.to_le_bytes().to_vec();
            for key in first..first + 16 {
                params.extend_from_slice(&key.to_le_bytes());
                params.extend(std::iter::repeat_n(b'a', 10 * FIELD_BYTES));
            }
            driven.run(&Requests::of([(load, params.as_slice())]));
        }
        driven
    }

    /// TPC-C's tables, loaded.
    fn tpcc(change: impl FnOnce(&mut Config)) -> Self {
        let mut driven = Self::create("tpcc.sql", 256 << 20, change);
        let catalog = Catalog::from_sql(include_str!("../../workloads/schemas/tpcc.sql")).unwrap();
        let population = Population::new(&catalog, TPCC_SCALE, 1).unwrap();
        let load = driven.procedure("tpcc_load");
        for table in TpccTable::ALL {
            for params in population.load_calls(table, 1, 100) {
                driven.run(&Requests::of([(load, params.as_slice())]));
            }
        }
        driven.terminals = (0..10).map(|at| Terminal::new(TPCC_SCALE, Mix::HomeOnly, Seeds::both(1), at)).collect();
        driven
    }

    fn procedure(&self, name: &str) -> u16 {
        self.partition.procedures.number(name).unwrap()
    }

    /// Reads and updates of any records, one in a hundred of a record that there is not.
    fn draw_ycsb(&mut self, count: usize, reads: bool, updates: bool) -> Requests {
        let (read, update) = (self.procedure("ycsb_read"), self.procedure("ycsb_update"));
        let mut draw = || {
            self.draws = self.draws.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            let (key, other) = ((self.draws >> 33) as i64 % (RECORDS + RECORDS / 100), self.draws >> 20);
            let mut params = key.to_le_bytes().to_vec();
            if reads && (!updates || other % 2 == 0) {
                return (read, params);
            }
            params.extend_from_slice(&((other % 10) as u16).to_le_bytes());
            params.extend_from_slice(&[b'x'; FIELD_BYTES]);
            (update, params)
        };
        let drawn: Vec<_> = (0..count).map(|_| draw()).collect();
        Requests::of(drawn.iter().map(|(procedure, params)| (*procedure, params.as_slice())))
    }

    /// The full mix.
    fn draw_tpcc(&mut self, count: usize) -> Requests {
        let mut draw = |at: usize| {
            let input = self.terminals[at % 10].next(NOW_US + at as i64);
            let mut params = Vec::new();
            input.encode(&mut params);
            (self.partition.procedures.number(input.kind().procedure()).unwrap(), params)
        };
        let drawn: Vec<_> = (0..count).map(&mut draw).collect();
        Requests::of(drawn.iter().map(|(procedure, params)| (*procedure, params.as_slice())))
    }

    /// Runs everything, a batch at a time, and waits for all replies.
    fn run(&mut self, requests: &Requests) {
        let mut missing = requests.heads.len();
        for batch in requests.heads.chunks(BATCH) {
            self.partition.execute_batch(0, 0, &requests.wire, batch, &mut self.sink);
            self.partition.poll(&mut self.sink);
            missing -= self.take_replies();
        }
        while missing > 0 {
            self.partition.poll(&mut self.sink);
            missing -= self.take_replies();
        }
    }

    fn take_replies(&mut self) -> usize {
        let (mut rest, mut count) = (&self.sink.0[..], 0);
        while let Some((length, after)) = rest.split_first_chunk::<4>() {
            let (reply, behind) = after.split_at(u32::from_le_bytes(*length) as usize);
            assert_ne!(reply[8], Status::Failed as u8, "{}", String::from_utf8_lossy(&reply[9..]));
            (rest, count) = (behind, count + 1);
        }
        self.sink.0.clear();
        count
    }

    /// Allocations while requests are run.
    fn allocations_of(&mut self, requests: &Requests) -> u64 {
        let before = allocations();
        self.run(requests);
        allocations() - before
    }
}

/// The system call that tells the time, where the kernel gives no clock to be read without one: that one does not count.
fn clock_call() -> Option<libc::c_long> {
    let read_clock = || {
        std::hint::black_box(Instant::now());
    };
    let clock = calls::first_call(None, read_clock).map(libc::c_long::from);
    assert!(clock.is_none_or(|number| number == libc::SYS_clock_gettime), "{clock:?}");
    clock
}

#[test]
fn reads_and_updates_allocate_nothing_and_call_nothing() {
    let clock = clock_call();
    for chain in CHAINS {
        let mut driven = Driven::ycsb(64 << 20, |config| config.anticaching = chain);
        let warming = driven.draw_ycsb(10_000, true, true);
        driven.run(&warming);
        for (reads, updates) in [(true, false), (false, true)] {
            let what = format!("{chain:?}, reads: {reads}, updates: {updates}");
            let requests = driven.draw_ycsb(20_000, reads, updates);
            let before = *driven.partition.counters();
            assert_eq!(driven.allocations_of(&requests), 0, "{what}");
            let after = driven.partition.counters();
            assert_eq!(after.committed + after.aborted - before.committed - before.aborted, 20_000);
            assert!(after.committed - before.committed > 19_000 && after.aborted > before.aborted);
            assert_eq!(calls::first_call(clock, || driven.run(&requests)), None, "{what}");
        }
    }
}

/// TPC-C adds rows for ever: what allocates is the list of a table's chunks, when it is full, so as many times as it is doubled.
#[test]
fn orders_and_payments_allocate_only_as_lists_of_chunks_double_and_call_nothing() {
    let clock = clock_call();
    for chain in CHAINS {
        let mut driven = Driven::tpcc(|config| config.anticaching = chain);
        let warming = driven.draw_tpcc(5000);
        driven.run(&warming);
        let requests = driven.draw_tpcc(10_000);
        let rows = |driven: &Driven| driven.partition.tables().iter().map(|table| table.tuples().live()).sum::<u64>();
        let before = rows(&driven);
        let allocated = driven.allocations_of(&requests);
        assert!(rows(&driven) - before > 40_000, "{before} rows became {}", rows(&driven));
        assert!(allocated <= 9, "{chain:?}: {allocated} allocations");
        let requests = driven.draw_tpcc(5000);
        assert_eq!(calls::first_call(clock, || driven.run(&requests)), None, "{chain:?}");
    }
}

/// What the write of a group allocates does not depend on the transactions in it.
#[test]
fn the_command_log_allocates_by_the_group() {
    let mut driven = Driven::ycsb(64 << 20, |config| config.log = Log::Sync);
    let warming = driven.draw_ycsb(2000, true, true);
    driven.run(&warming);
    let mut per_group = |transactions: usize| {
        let groups: Vec<Requests> = (0..50).map(|_| driven.draw_ycsb(transactions, false, true)).collect();
        let before = driven.partition.gauges().log_groups;
        let allocated: u64 = groups.iter().map(|group| driven.allocations_of(group)).sum();
        let written = driven.partition.gauges().log_groups - before;
        assert!((25..=75).contains(&written), "{written} groups of {transactions}");
        allocated as f64 / written as f64
    };
    let (small, large) = (per_group(4), per_group(BATCH));
    assert!(small <= 4.0 && large <= 4.0, "{small} allocations for a small group, {large} for a large one");
}

/// A read that has to wait for sectors allocates nothing, an update its parameters. What else does is the eviction of as many tuples, by the block, and
/// what several wait for together, seldom while few requests are under way. A block that has become half holes is merged whole, by a list of its tuples.
#[test]
fn a_transaction_that_waits_allocates_its_parameters_at_most() {
    for (fetch, others) in [(FetchUnit::Sectors, 0.1), (FetchUnit::Block, 0.75)] {
        let mut driven =
            Driven::ycsb(4 << 20, |config| (config.eviction_block_bytes, config.fetch) = (64 << 10, fetch));
        let warming = driven.draw_ycsb(5000, true, true);
        driven.run(&warming);
        for (updates, params) in [(false, 0), (true, 1)] {
            let few: Vec<Requests> = (0..1000).map(|_| driven.draw_ycsb(4, !updates, updates)).collect();
            let before = *driven.partition.counters();
            let allocated: u64 = few.iter().map(|requests| driven.allocations_of(requests)).sum();
            let after = driven.partition.counters();
            let restarted = after.restarted - before.restarted;
            let blocks = after.evicted_blocks - before.evicted_blocks;
            assert!(restarted > 1000 && blocks > 10, "{restarted} restarts, {blocks} blocks");
            let most = params * restarted + (others * restarted as f64) as u64 + 10 * blocks;
            assert!(
                allocated <= most,
                "{allocated} allocations for {restarted} restarts, updates: {updates}, {blocks} blocks, {fetch:?}"
            );
        }
    }
}

/// That the tests above would see one: a log group is handed to the disk by a system call.
#[test]
fn a_log_group_is_written_by_a_system_call() {
    let clock = clock_call();
    let mut driven = Driven::ycsb(64 << 20, |config| config.log = Log::Sync);
    let warming = driven.draw_ycsb(1000, true, true);
    driven.run(&warming);
    let (reads, updates) = (driven.draw_ycsb(1000, true, false), driven.draw_ycsb(BATCH, false, true));
    assert_eq!(calls::first_call(clock, || driven.run(&reads)), None, "reads are not logged");
    let first = calls::first_call(clock, || driven.run(&updates));
    assert_eq!(first.map(libc::c_long::from), Some(libc::SYS_io_uring_enter));
}
