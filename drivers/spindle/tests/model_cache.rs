//! The write cache: what it absorbs, when it gives it up, what a flush waits for; and flash.

use spindle::model::simulate::simulate;
use spindle::model::workload::{Pattern, Workload};
use spindle::model::{Drive, Event, Operation, Request};
use spindle::profile::Profile;

const REGION: u64 = 20_000_000_000 / 4096;

fn drive(name: &str) -> Drive {
    Drive::new(&Profile::load(name).expect("built in"), REGION, 1).expect("a drive")
}

fn write(id: u64, first_sector: u64, sectors: u32) -> Request {
    Request { id, operation: Operation::Write, first_sector, sectors }
}

fn flush(id: u64) -> Request {
    Request { id, operation: Operation::Flush, first_sector: 0, sectors: 0 }
}

fn read(id: u64, first_sector: u64, sectors: u32) -> Request {
    Request { id, operation: Operation::Read, first_sector, sectors }
}

/// Lets the drive run until the request has completed, and returns when.
fn until(drive: &mut Drive, wanted: u64, events: &mut Vec<Event>) -> u64 {
    loop {
        let done = events.iter().rev().find_map(|event| match event {
            Event::Completed { id, at_ns } if *id == wanted => Some(*at_ns),
            _ => None,
        });
        if let Some(at_ns) = done {
            return at_ns;
        }
        let next_ns = drive.next_event_ns().expect("work is left");
        drive.advance(next_ns, events);
    }
}

fn random_writes(queue_depth: usize, operations: u64) -> Workload {
    Workload {
        pattern: Pattern::Random,
        operation: Operation::Write,
        sectors: 1,
        queue_depth,
        region_first: 0,
        region_sectors: REGION,
        operations: Some(operations),
        seconds: None,
        think_ns: 0,
        seed: 5,
    }
}

#[test]
fn the_cache_absorbs_a_burst_and_then_lets_writes_wait() {
    let mut burst = drive("hdd-7200");
    let outcome = simulate(&mut burst, &random_writes(1, 4000), 0).expect("no fault");
    assert!(outcome.service.quantile_us(1.0) < 200, "{}", outcome.service.quantile_us(1.0));
    assert_eq!(burst.counters().throttled_writes, 0);
    let mut flood = drive("hdd-7200");
    let outcome = simulate(&mut flood, &random_writes(1, 20_000), 0).expect("no fault");
    assert!(flood.counters().throttled_writes > 10_000, "{:?}", flood.counters());
    // 4096 went into the cache at once; the rest came at the pace of the platters, faster than in the order of arrival.
    let pace = (20_000.0 - 4096.0) / outcome.seconds;
    assert!((250.0..700.0).contains(&pace), "{pace}");
}

#[test]
fn without_the_cache_writes_complete_on_the_platters() {
    let mut drive = drive("hdd-7200");
    drive.set_write_cache(false);
    let outcome = simulate(&mut drive, &random_writes(1, 2000), 0).expect("no fault");
    // Overhead 0.15, seek 2.2 on average over these 20 GB, settling 1.0, half a revolution 4.17, transfer 0.03.
    assert!((6600.0..7400.0).contains(&outcome.service.mean_us()), "{}", outcome.service.mean_us());
    assert_eq!((drive.counters().destages, drive.counters().writes), (0, 2000));
}

#[test]
fn neighbours_and_repetitions_are_destaged_as_one() {
    let (mut drive, mut events) = (drive("hdd-7200"), Vec::new());
    for (id, first) in [(1, 108), (2, 100), (3, 104), (4, 100), (5, 102)] {
        drive.submit(0, write(id, first, 4));
    }
    drive.submit(0, flush(6));
    until(&mut drive, 6, &mut events);
    let began: Vec<&Event> = events.iter().filter(|event| matches!(event, Event::DestageBegan { .. })).collect();
    assert!(matches!(began[..], [Event::DestageBegan { first_sector: 100, sectors: 12, .. }]), "{began:?}");
}

#[test]
fn a_sector_written_again_while_on_its_way_is_destaged_again() {
    let (mut drive, mut events) = (drive("hdd-7200"), Vec::new());
    drive.submit(0, write(1, 100, 8));
    until(&mut drive, 1, &mut events);
    while !events.iter().any(|event| matches!(event, Event::DestageBegan { .. })) {
        let next_ns = drive.next_event_ns().expect("the drive destages when idle");
        drive.advance(next_ns, &mut events);
    }
    let Some(Event::DestageBegan { at_ns, .. }) = events.last().copied() else { panic!("{events:?}") };
    assert!(at_ns >= 10_000_000, "destaged before it was idle: {at_ns}");
    drive.submit(at_ns, write(2, 102, 2));
    drive.submit(at_ns, flush(3));
    until(&mut drive, 3, &mut events);
    let began = |event: &Event| match event {
        Event::DestageBegan { first_sector, sectors, .. } => Some((*first_sector, *sectors)),
        _ => None,
    };
    assert_eq!(events.iter().filter_map(began).collect::<Vec<_>>(), [(100, 8), (102, 2)]);
}

#[test]
fn reads_see_the_cache_and_what_leaves_it() {
    let (mut drive, mut events) = (drive("hdd-7200"), Vec::new());
    drive.submit(0, write(1, 1_000_000, 8));
    let written_ns = until(&mut drive, 1, &mut events);
    drive.submit(written_ns, read(2, 1_000_002, 4));
    assert!(until(&mut drive, 2, &mut events) - written_ns < 200_000);
    while !events.iter().any(|event| matches!(event, Event::DestageBegan { .. })) {
        let next_ns = drive.next_event_ns().expect("the drive destages when idle");
        drive.advance(next_ns, &mut events);
    }
    let Some(Event::DestageBegan { at_ns, .. }) = events.last().copied() else { panic!("{events:?}") };
    drive.submit(at_ns, read(3, 1_000_000, 8));
    assert!(until(&mut drive, 3, &mut events) - at_ns < 250_000);
    assert_eq!(drive.counters().cache_hits, 2);
}

#[test]
fn a_flush_is_not_delayed_by_writes_that_come_after_it() {
    // In hdd-15k flushes are queued beside other requests.
    let (mut drive, mut events) = (drive("hdd-15k"), Vec::new());
    let mut accesses = random_writes(1, 1_000_000).accesses();
    for id in 0..20 {
        let access = accesses.next().expect("endless");
        drive.submit(0, write(id, access.first_sector, 1));
    }
    let mut now_ns = until(&mut drive, 19, &mut events);
    drive.submit(now_ns, flush(1000));
    let (flushed_ns, mut id) = (now_ns, 1001);
    while !events.contains(&Event::Completed { id: 1000, at_ns: now_ns }) {
        let access = accesses.next().expect("endless");
        drive.submit(now_ns, write(id, access.first_sector, 1));
        id += 1;
        now_ns = drive.next_event_ns().expect("work is left");
        drive.advance(now_ns, &mut events);
    }
    assert!(id > 1100, "the stream of writes was no stream: {id}");
    // 20 runs at 5.5 ms at most on average, however many writes have come since.
    assert!(now_ns - flushed_ns < 110_000_000, "{}", now_ns - flushed_ns);
}

#[test]
fn a_flush_of_a_clean_cache_costs_the_command_alone() {
    let (mut drive, mut events) = (drive("hdd-7200"), Vec::new());
    drive.submit(0, flush(1));
    assert_eq!(until(&mut drive, 1, &mut events), 150_000);
}

#[test]
fn in_sata_a_flush_is_alone_in_the_drive() {
    let (mut drive, mut events) = (drive("hdd-7200"), Vec::new());
    drive.submit(0, read(1, 4_000_000, 1));
    drive.submit(0, flush(2));
    drive.submit(0, read(3, 1000, 1));
    let third_ns = until(&mut drive, 3, &mut events);
    let ids: Vec<u64> =
        events.iter().filter_map(|e| if let Event::Completed { id, .. } = e { Some(*id) } else { None }).collect();
    assert_eq!(ids, [1, 2, 3]);
    assert!(third_ns > 300_000);
}

#[test]
fn dirty_data_do_not_wait_for_ever_behind_reads() {
    let (mut drive, mut events) = (drive("hdd-7200"), Vec::new());
    drive.submit(0, write(1, 4_000_000, 1));
    let mut now_ns = until(&mut drive, 1, &mut events);
    let reads = Workload { operation: Operation::Read, ..random_writes(1, 1000) };
    for (access, id) in reads.accesses().zip(2..) {
        drive.submit(now_ns, read(id, access.first_sector, 1));
        now_ns = until(&mut drive, id, &mut events);
    }
    let ended = events.iter().find_map(|e| if let Event::DestageEnded { at_ns, .. } = e { Some(*at_ns) } else { None });
    assert!(ended.is_some_and(|at_ns| (500_000_000..1_100_000_000).contains(&at_ns)), "{ended:?}");
}

#[test]
fn flash_reaches_its_published_rates() {
    let reads = |depth| Workload { operation: Operation::Read, queue_depth: depth, ..random_writes(1, 20_000) };
    let outcome = |name: &str, workload: &Workload| simulate(&mut drive(name), workload, 0).expect("no fault");
    let near =
        |actual: f64, expected: f64| assert!((actual / expected - 1.0).abs() < 0.08, "{actual}, published {expected}");
    near(outcome("sata-ssd", &reads(32)).iops, 75_000.0);
    near(outcome("nvme", &reads(256)).iops, 450_000.0);
    near(outcome("sata-ssd", &random_writes(32, 200_000)).iops, 36_000.0);
    near(outcome("nvme", &random_writes(32, 200_000)).iops, 75_000.0);
    for (name, operation, mb_s) in [
        ("sata-ssd", Operation::Read, 500.0),
        ("sata-ssd", Operation::Write, 460.0),
        ("nvme", Operation::Read, 2700.0),
        ("nvme", Operation::Write, 1080.0),
    ] {
        let stream = Workload { pattern: Pattern::Sequential, operation, sectors: 256, ..random_writes(4, 10_000) };
        near(outcome(name, &stream).mb_s, mb_s);
    }
    // Overhead 13, latency 50, 4096 bytes at 500 MB/s 8 microseconds.
    assert_eq!(outcome("sata-ssd", &reads(1)).service.quantile_us(1.0), 71);
}

#[test]
fn long_runs_are_destaged_in_order_and_in_parts_of_a_mebibyte() {
    let (mut drive, mut events) = (drive("hdd-7200"), Vec::new());
    (0..10).for_each(|id| drive.submit(0, write(id, 1000 + id * 100, 100)));
    drive.submit(0, flush(10));
    until(&mut drive, 10, &mut events);
    let ended = |event: &Event| match event {
        Event::DestageEnded { first_sector, sectors, .. } => Some((*first_sector, *sectors)),
        _ => None,
    };
    let runs: Vec<_> = events.iter().filter_map(ended).collect();
    assert_eq!(runs, [(1000, 256), (1256, 256), (1512, 256), (1768, 232)]);
}

#[test]
fn a_power_cut_leaves_as_many_sectors_as_had_passed_under_the_head() {
    // 100 sectors on one track of the outermost zone, 342 to a revolution of 8.33 ms: 24.4 microseconds each.
    for cached in [false, true] {
        let begin = || {
            let mut drive = drive("hdd-7200");
            drive.set_write_cache(cached);
            drive.submit(0, write(1, 100, 100));
            drive.submit(0, flush(2));
            drive
        };
        let (mut whole, mut events) = (begin(), Vec::new());
        let end_ns = if cached { until(&mut whole, 2, &mut events) } else { until(&mut whole, 1, &mut events) };
        for (before_end_us, wanted) in [(3000, 0..=0), (2400, 1..=2), (1210, 50..=51), (1, 99..=99)] {
            let (mut drive, mut events) = (begin(), Vec::new());
            drive.advance(end_ns - before_end_us * 1000, &mut events);
            let cut = drive.cut_power(end_ns - before_end_us * 1000);
            let (first, reached) = cut.interrupted.expect("the write is under way");
            assert!(first == 100 && wanted.contains(&reached), "{reached} sectors {before_end_us} us before the end");
            assert_eq!(cut.requests, if cached { vec![2] } else { vec![1, 2] });
            assert_eq!(drive.next_event_ns(), None);
        }
        let idle = whole.cut_power(end_ns + 1_000_000_000);
        assert_eq!(idle.interrupted, None);
    }
}

#[test]
fn a_write_past_the_cache_waits_for_what_is_older_in_it() {
    let (mut drive, mut events) = (drive("hdd-7200"), Vec::new());
    drive.submit(0, write(1, 100, 1));
    let now_ns = until(&mut drive, 1, &mut events);
    // A read keeps the platters busy, so that both writes wait for them.
    drive.submit(now_ns, read(3, 4_000_000, 1));
    let mut started = Vec::new();
    drive.advance(now_ns + 1_000_000, &mut started);
    drive.set_write_cache(false);
    drive.submit(now_ns + 1_000_000, write(2, 100, 1));
    until(&mut drive, 2, &mut events);
    drive.set_write_cache(true);
    let order: Vec<&str> = events
        .iter()
        .map(|event| match event {
            Event::Completed { id: 1, .. } => "cached",
            Event::Completed { id: 3, .. } => "read",
            Event::Completed { .. } => "past the cache",
            Event::DestageBegan { .. } => "began",
            Event::DestageEnded { .. } => "ended",
        })
        .collect();
    assert_eq!(order, ["cached", "read", "began", "ended", "past the cache"]);
}

#[test]
fn the_cache_is_emptied_at_once_when_it_is_switched_off() {
    let (mut drive, mut events) = (drive("hdd-7200"), Vec::new());
    drive.submit(0, write(1, 100, 1));
    let now_ns = until(&mut drive, 1, &mut events);
    drive.set_write_cache(false);
    assert_eq!(drive.next_event_ns(), Some(now_ns));
    drive.advance(now_ns, &mut events);
    assert_eq!(events.last(), Some(&Event::DestageBegan { first_sector: 100, sectors: 1, at_ns: now_ns }));
}
