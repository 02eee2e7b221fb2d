//! The disk's model against what arithmetic says.

use spindle::model::simulate::{Outcome, simulate};
use spindle::model::workload::{Pattern, Workload};
use spindle::model::{Drive, Event, Operation, Request};
use spindle::profile::Profile;

const FULL_STROKE: u64 = 244_140_625;
const FIRST_20_GB: u64 = 20_000_000_000 / 4096;
const ROTATION_MS: f64 = 60e3 / 7200.0;

fn random_reads(region_sectors: u64, queue_depth: usize) -> Workload {
    Workload {
        pattern: Pattern::Random,
        operation: Operation::Read,
        sectors: 1,
        queue_depth,
        region_first: 0,
        region_sectors,
        operations: Some(10_000),
        seconds: None,
        think_ns: 0,
        seed: 42,
    }
}

fn drive(profile: &str) -> Drive {
    let profile = Profile::load(profile).expect("a built-in profile");
    Drive::new(&profile, profile.capacity_sectors().expect("a drive"), 1).expect("the whole drive")
}

fn run(workload: &Workload) -> Outcome {
    simulate(&mut drive("hdd-7200"), workload, 0).expect("a workload without fault")
}

fn close(actual: f64, expected: f64, tolerance: f64) {
    assert!((actual / expected - 1.0).abs() <= tolerance, "{actual}, expected {expected} within {tolerance}");
}

/// The seek curve over the share of the full stroke; the number of cylinders cancels out when there are many.
fn seek_ms(share: f64) -> f64 {
    let (least, average, most) = (1.0, 8.5, 18.0);
    let root = (-10.0 * least + 15.0 * average - 5.0 * most) / 3.0;
    let slope = (7.0 * least - 15.0 * average + 8.0 * most) / 3.0;
    root * share.sqrt() + slope * share + least
}

/// Mean seek between uniformly distributed sectors of the outer part of the stroke: there are more of them outside.
fn mean_seek_ms(stroke: f64) -> f64 {
    let steps = 1000;
    let place = |step: i32| (f64::from(step) + 0.5) / f64::from(steps) * stroke;
    let density = |place: f64| 150.0 - 75.0 * place;
    let (mut sum, mut weights) = (0.0, 0.0);
    for (a, b) in (0..steps).flat_map(|a| (0..steps).map(move |b| (place(a), place(b)))) {
        sum += density(a) * density(b) * seek_ms((a - b).abs());
        weights += density(a) * density(b);
    }
    sum / weights
}

#[test]
fn random_reads_one_at_a_time_take_overhead_seek_half_a_revolution_and_transfer() {
    for (region_sectors, stroke) in [(FULL_STROKE, 1.0), (FIRST_20_GB, 0.02 * 112.5 / 150.0)] {
        let expected_ms = 0.15 + mean_seek_ms(stroke) + ROTATION_MS / 2.0 + 0.03;
        let outcome = run(&random_reads(region_sectors, 1));
        close(outcome.iops, 1000.0 / expected_ms, 0.015);
        close(outcome.service.mean_us(), expected_ms * 1000.0, 0.015);
    }
}

#[test]
fn a_queue_makes_random_reads_faster_and_the_order_is_that_of_drives() {
    let iops: Vec<f64> = [1, 4, 16, 32].iter().map(|depth| run(&random_reads(FULL_STROKE, *depth)).iops).collect();
    assert!(iops.is_sorted(), "{iops:?}");
    assert!((2.0..2.3).contains(&(iops[2] / iops[0])), "{iops:?}");
    assert!((2.3..2.7).contains(&(iops[3] / iops[0])), "{iops:?}");
}

#[test]
fn the_drive_chooses_among_the_requests_that_it_holds_only() {
    // The last request lies just behind the first; the others are far away.
    let far = |id: u64| 50_000_000 + (id * 7_919_993) % 150_000_000;
    let place = |id: u64, last: u64| match id {
        0 => 0,
        id if id == last => 4,
        id => far(id),
    };
    let second_served = |count: u64| {
        let read = |id| Request { id, operation: Operation::Read, first_sector: place(id, count - 1), sectors: 4 };
        submit_all(&mut drive("hdd-7200"), 3_000_000_000, &(0..count).map(read).collect::<Vec<_>>())[1].0
    };
    assert_eq!(second_served(32), 31);
    assert_ne!(second_served(33), 32);
}

#[test]
fn sequential_streams_run_at_the_rate_of_their_zone() {
    let inner = FULL_STROKE - 2_000_000;
    let all = &[16, 64, 256][..];
    // One command after the other of 16 sectors: taking them in and handing the data over takes longer than to read them at that rate.
    let rates = [("hdd-7200", 0, 150.0, all), ("hdd-7200", inner, 75.0, all), ("hdd-297mb", 0, 297.0, &all[1..])];
    for ((profile, region_first, mb_s, lengths), operation) in
        rates.into_iter().flat_map(|r| [(r, Operation::Read), (r, Operation::Write)])
    {
        for &sectors in lengths {
            let region = Workload { region_first, ..random_reads(2_000_000, 1) };
            let operations = Some(2_000_000 / u64::from(sectors));
            let workload = Workload { pattern: Pattern::Sequential, operation, sectors, operations, ..region };
            let mut drive = drive(profile);
            let outcome = simulate(&mut drive, &workload, 0).expect("no fault");
            // The cache has taken some of the writes and not yet given them up.
            let left = if operation == Operation::Write { 1.0 - 4096.0 / 2_000_000.0 } else { 1.0 };
            close(outcome.mb_s * left, mb_s, 0.01);
        }
    }
}

#[test]
fn reads_with_pauses_find_their_data_read_ahead() {
    let workload =
        Workload { pattern: Pattern::Sequential, sectors: 4, think_ns: 2_000_000, ..random_reads(FIRST_20_GB, 1) };
    let mut drive = drive("hdd-7200");
    let outcome = simulate(&mut drive, &workload, 0).expect("no fault");
    assert!(outcome.service.quantile_us(0.99) < 250, "{}", outcome.service.quantile_us(0.99));
    assert!(drive.counters().read_ahead_hits > 9_900, "{:?}", drive.counters());
    assert_eq!(drive.counters().reads, 10_000);
    assert_eq!(drive.counters().sectors_read, 40_000);
}

#[test]
fn each_append_with_its_flush_takes_a_revolution() {
    let append =
        Workload { pattern: Pattern::AppendFlush, operation: Operation::Write, ..random_reads(FIRST_20_GB, 1) };
    let with_cache = run(&append);
    assert!(with_cache.iops > 115.0 && with_cache.iops <= 120.0, "{}", with_cache.iops);
    let mut drive = drive("hdd-7200");
    drive.set_write_cache(false);
    let without = simulate(&mut drive, &append, 0).expect("no fault");
    assert!(without.iops > 115.0 && without.iops <= 120.0, "{}", without.iops);
    assert_eq!(drive.counters().destages, 0);
    assert_eq!(drive.counters().flushes, 10_000);
}

/// Submits everything at once and returns the ids in the order of completion, with times.
fn submit_all(drive: &mut Drive, at_ns: u64, requests: &[Request]) -> Vec<(u64, u64)> {
    let mut events = Vec::new();
    drive.advance(at_ns, &mut events);
    requests.iter().for_each(|request| drive.submit(at_ns, *request));
    while let Some(next_ns) = drive.next_event_ns() {
        drive.advance(next_ns, &mut events);
    }
    let completed = events.iter().filter_map(|event| match event {
        Event::Completed { id, at_ns } => Some((*id, *at_ns)),
        _ => None,
    });
    completed.collect()
}

#[test]
fn contiguous_queued_reads_are_served_in_order_at_the_rate_of_the_medium() {
    for seed in 0..20 {
        let profile = Profile::load("hdd-7200").expect("built in");
        let mut drive = Drive::new(&profile, FULL_STROKE, seed * 400_000).expect("a drive");
        let start_ns = 1_000_000_000;
        let read = |id, first_sector| Request { id, operation: Operation::Read, first_sector, sectors: 4 };
        // From another angle each time. All 32 are in the drive when it comes to choose, because the arm is away; and they have come
        // in the wrong order.
        let away = std::iter::once(read(0, 200_000_000 + seed * 13));
        let run = (1..=31).rev().map(|id| read(id, 5_000_000 + id * 4));
        let completed = submit_all(&mut drive, start_ns, &away.chain(run).collect::<Vec<_>>());
        assert!(completed.is_sorted(), "{completed:?}");
        // Positioning across the drive, then 496 KiB at 150 MB/s; a broken run would cost a revolution more for each break.
        let taken_ms = (completed[31].1 - completed[0].1) as f64 / 1e6;
        let longest_ms = seek_ms(0.9) + ROTATION_MS + 31.0 * 16384.0 / 150e3 + 1.0;
        assert!(taken_ms < longest_ms, "{taken_ms} of {longest_ms}");
    }
}

#[test]
fn late_calls_do_not_change_what_happens() {
    let requests: Vec<Request> = random_reads(FULL_STROKE, 1)
        .accesses()
        .take(100)
        .zip(0..)
        .map(|(access, id)| Request { id, operation: access.operation, first_sector: access.first_sector, sectors: 1 })
        .collect();
    let exact = submit_all(&mut drive("hdd-7200"), 0, &requests);
    let mut late = drive("hdd-7200");
    let mut events = Vec::new();
    requests.iter().for_each(|request| late.submit(0, *request));
    (1..1000).for_each(|call| late.advance(call * 7_300_001, &mut events));
    let times = events
        .iter()
        .filter_map(|event| if let Event::Completed { id, at_ns } = event { Some((*id, *at_ns)) } else { None });
    assert_eq!(times.collect::<Vec<_>>(), exact);
}

#[test]
fn the_same_seed_gives_the_same_drive() {
    let outcome = |seed| {
        let profile = Profile::load("hdd-7200").expect("built in");
        let mut drive = Drive::new(&profile, FULL_STROKE, seed).expect("a drive");
        let outcome = simulate(&mut drive, &random_reads(FULL_STROKE, 16), 0).expect("no fault");
        (outcome, drive.counters().clone())
    };
    assert_eq!(outcome(9), outcome(9));
    assert_ne!(outcome(9), outcome(4_000_009));
}

/// Keeps `others` requests of a stream in the drive beside one far read after another, and returns the longest wait of the latter.
fn longest_wait_ms(others: Workload) -> f64 {
    let mut drive = drive("hdd-7200");
    let mut accesses = others.accesses();
    let (mut now_ns, mut next_id, mut longest_ns, mut far) = (0, 1, 0, None);
    let mut events = Vec::new();
    let mut under_way = 0;
    let mut far_reads = 0;
    while far_reads < 100 {
        while under_way < others.queue_depth {
            let Some(access) = accesses.next() else { panic!("the stream ended") };
            let (operation, first_sector, sectors) = (access.operation, access.first_sector, access.sectors);
            drive.submit(now_ns, Request { id: next_id, operation, first_sector, sectors });
            next_id += 1;
            under_way += 1;
        }
        if far.is_none() {
            far = Some(now_ns);
            drive.submit(
                now_ns,
                Request { id: 0, operation: Operation::Read, first_sector: FULL_STROKE - 1 - far_reads, sectors: 1 },
            );
        }
        now_ns = drive.next_event_ns().expect("there is work");
        drive.advance(now_ns, &mut events);
        for event in events.drain(..) {
            match event {
                Event::Completed { id: 0, at_ns } => {
                    longest_ns = longest_ns.max(at_ns - far.take().expect("one far read"));
                    far_reads += 1;
                }
                Event::Completed { .. } => under_way -= 1,
                _ => {}
            }
        }
    }
    longest_ns as f64 / 1e6
}

#[test]
fn nobody_starves_beside_a_stream_near_requests_or_a_flood_of_writes() {
    let base = Workload { operations: None, seconds: Some(1.0), queue_depth: 31, ..random_reads(FIRST_20_GB, 31) };
    let stream = Workload { pattern: Pattern::Sequential, sectors: 16, ..base.clone() };
    let near = Workload { region_sectors: 20_000, ..base.clone() };
    let writes = Workload { operation: Operation::Write, ..base };
    // 50 ms until a run must let others go first, one request or destage of it, and the positioning.
    assert!(longest_wait_ms(stream) < 120.0);
    assert!(longest_wait_ms(writes) < 200.0);
    // Half a second until it is overdue, and the positioning.
    assert!(longest_wait_ms(near) < 600.0);
}

#[test]
fn ageing_shortens_the_longest_waits() {
    let p99_us = |ageing: f64| {
        let mut profile = Profile::load("hdd-7200").expect("built in");
        profile.mechanics.as_mut().expect("a disk").ageing = ageing;
        let mut drive = Drive::new(&profile, FULL_STROKE, 1).expect("a drive");
        simulate(&mut drive, &random_reads(FULL_STROKE, 16), 0).expect("no fault").service.quantile_us(0.99)
    };
    let (without, with) = (p99_us(0.0), p99_us(0.02));
    assert!(with * 10 < without * 9, "{with} {without}");
}

#[test]
fn counters_tell_what_was_done_and_can_start_again() {
    let mut drive = drive("hdd-7200");
    let outcome = simulate(&mut drive, &random_reads(FULL_STROKE, 8), 0).expect("no fault");
    let counters = drive.counters();
    assert_eq!((counters.reads, counters.writes, counters.flushes), (10_000, 0, 0));
    assert_eq!(counters.max_queue_depth, 8);
    close(counters.mean_queue_depth, 8.0, 0.01);
    close(counters.busy_ns as f64, outcome.seconds * 1e9, 0.001);
    assert_eq!(counters.elapsed_ns, (outcome.seconds * 1e9).round() as u64);
    assert!(counters.seeks > 9_900 && counters.seek_cylinders > counters.seeks);
    assert_eq!(counters.read_service, outcome.service);
    let text = serde_json::to_value(counters).expect("plain numbers");
    assert_eq!(text["read_service"]["count"], 10_000);
    assert!(text["read_service"]["p99_us"].as_u64().is_some_and(|p99_us| p99_us > 10_000));
    drive.reset_counters();
    assert_eq!((drive.counters().reads, drive.counters().busy_ns, drive.counters().max_queue_depth), (0, 0, 0));
}

#[test]
#[should_panic(expected = "outside the region")]
fn a_request_outside_the_region_is_refused() {
    let profile = Profile::load("hdd-7200").expect("built in");
    let mut drive = Drive::new(&profile, 1000, 1).expect("a drive");
    drive.submit(0, Request { id: 1, operation: Operation::Read, first_sector: 999, sectors: 2 });
}
