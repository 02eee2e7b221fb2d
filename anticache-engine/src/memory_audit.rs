//! Holds what a partition accounts for against what it takes: from the kernel for its regions, from the allocator for everything else.
#![allow(clippy::unwrap_used)] // a test that fails may panic

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::Path;

use crate::catalog::Catalog;
use crate::config::{AntiCaching, Config, Log};
use crate::net::frame::{RequestHead, Status};
use crate::partition::{Partition, ReplySink};
use crate::procedure::ProcedureSet;
use crate::procedure::tpcc::generate::{Mix, Population, Scale, Seeds, Terminal, TpccTable};
use crate::storage::region::audit::resident_bytes_of_this_thread;

/// The system's allocator, which counts for each thread the bytes that it has allocated and not freed, and how often it has allocated.
struct Counting;

thread_local! {
    static LIVE_BYTES: Cell<isize> = const { Cell::new(0) };
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // A thread that ends frees after its counter is gone.
    let _ = LIVE_BYTES.try_with(|live| live.set(live.get() + bytes));
}

/// Allocations of this thread so far; what grows in place, or moves to grow, has allocated once more.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.get()
}

// SAFETY: every call is passed on as it is; the counters are plain thread-locals without destructors, so counting never allocates.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        let _ = ALLOCATIONS.try_with(|allocations| allocations.set(allocations.get() + 1));
        // SAFETY: the caller's promises are the callee's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(address, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

pub(crate) struct Sink(pub(crate) Vec<u8>);

impl ReplySink for Sink {
    fn buffer(&mut self, _connection: u32, _epoch: u32) -> &mut Vec<u8> {
        &mut self.0
    }
}

const SCALE: Scale = Scale { warehouses: 1, items: 70_000, customers_per_district: 900, orders_per_district: 900 };
const NOW_US: i64 = 1_400_000_000_000_000;

struct Audited {
    partition: Partition,
    sink: Sink,
    /// Allocated before there was a partition.
    before_bytes: isize,
    refused_before: Option<u64>,
}

/// Huge pages that the kernel did not have since it was started; none when it never gives any.
fn refused_huge_pages() -> Option<u64> {
    let mode = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok()?;
    let counters = std::fs::read_to_string("/proc/vmstat").ok().filter(|_| !mode.contains("[never]"))?;
    counters.lines().find_map(|line| line.strip_prefix("thp_fault_fallback ")?.parse().ok())
}

impl Audited {
    fn has_no_huge_pages(&self) -> bool {
        self.refused_before.is_none() || refused_huge_pages() != self.refused_before
    }

    fn call(&mut self, procedure: &str, params: &[u8]) {
        let procedure = self.partition.procedures.number(procedure).unwrap();
        let head = RequestHead { token: 0, procedure, start: 0, end: params.len() };
        self.partition.execute_batch(0, 0, params, &[head], &mut self.sink);
        while self.sink.0.is_empty() {
            self.partition.poll(&mut self.sink);
        }
        let status = Status::from_wire(self.sink.0[12]).unwrap();
        assert!(matches!(status, Status::Committed | Status::Aborted), "{}", String::from_utf8_lossy(&self.sink.0));
        self.sink.0.clear();
        self.partition.poll(&mut self.sink);
    }

    /// Both sides within 2 % of each other: what grows with the data and the regions, the buffers and what is allocated.
    fn compare(&mut self) {
        while !self.partition.is_idle() {
            self.partition.poll(&mut self.sink);
        }
        let gauges = self.partition.gauges();
        let accounted = gauges.memory_total_bytes - gauges.memory_staging_bytes;
        let backed = resident_bytes_of_this_thread(true) as u64;
        let share = backed as f64 / accounted as f64;
        assert!(share <= 1.0, "{backed} bytes are backed, {accounted} accounted for");
        // A growth step is a huge page; where the kernel has none, it backs what is touched of it.
        assert!(share >= 0.98 || self.has_no_huge_pages(), "{backed} bytes are backed, {accounted} accounted for");
        let allocated = u64::try_from(LIVE_BYTES.get() - self.before_bytes).unwrap();
        let allocated = allocated + resident_bytes_of_this_thread(false) as u64;
        let most = gauges.memory_staging_bytes + gauges.memory_total_bytes / 50;
        assert!(allocated <= most, "{allocated} bytes are allocated, {} accounted for", gauges.memory_staging_bytes);
    }
}

#[test]
fn what_is_accounted_for_is_what_is_taken() {
    let directory = tempfile::tempdir().unwrap();
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("../workloads/schemas/tpcc.sql");
    let catalog = Catalog::from_file(&schema).unwrap();
    let population = Population::new(&catalog, SCALE, 1).unwrap();
    let config = Config {
        anticaching: AntiCaching::Lru,
        log: Log::Off,
        eviction_block_bytes: 64 << 10,
        ..Config::new(schema, directory.path().to_owned(), 54 << 20)
    };
    let procedures = ProcedureSet::for_catalog(&catalog).unwrap();
    let (before_bytes, refused_before) = (LIVE_BYTES.get(), refused_huge_pages());
    let partition = Partition::create(0, &config, &catalog, procedures, directory.path()).unwrap();
    let mut audited = Audited { partition, sink: Sink(Vec::new()), before_bytes, refused_before };
    for table in TpccTable::ALL {
        for params in population.load_calls(table, 1, 100) {
            audited.call("tpcc_load", &params);
        }
    }
    audited.compare();
    let mut terminals: Vec<_> =
        (0..10).map(|index| Terminal::new(SCALE, Mix::HomeOnly, Seeds::both(1), index)).collect();
    for _ in 0..5 {
        for at in 0..4000 {
            let input = terminals[at % 10].next(NOW_US + at as i64);
            let mut params = Vec::new();
            input.encode(&mut params);
            audited.call(input.kind().procedure(), &params);
        }
        audited.compare();
    }
    let gauges = audited.partition.gauges();
    assert!(gauges.tuples_evicted > 10_000 && gauges.memory_values_bytes > 1 << 20, "{gauges:?}");
}
