//! The command log on a simulated disk: whatever power cuts, dying processes and damaged files leave, it gives every acknowledged transaction in
//! order, invents none, never brings back what a restart gave up, or says by name what is wrong.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anticache_engine::durability::command_log::CommandLog;
use anticache_engine::durability::log_reader::{LogError, LogSummary, Multi, read_log, read_log_from};
use anticache_engine::io::files::{Files, create_directory};
use anticache_engine::io::ring::IoRing;
use anticache_engine::io::simulated::{Fault, FaultRule, Operation, SimulatedDisk};
use anticache_engine::partition::Origin;
use proptest::prelude::*;

use crate::support::effort::properties;

const PARTITION: u32 = 3;

fn directory() -> &'static Path {
    Path::new("/log")
}

fn segment(number: u64) -> PathBuf {
    directory().join(format!("command-0003-{number:08}.log"))
}

/// A record as the model knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    procedure: String,
    multi: Option<Multi>,
    params: Vec<u8>,
}

fn read_from(files: &dyn Files, from: u64) -> (Vec<Known>, Result<LogSummary, LogError>) {
    let mut found = Vec::new();
    let summary = read_log_from(files, directory(), PARTITION, from, |record| {
        assert_eq!(record.sequence, from + found.len() as u64, "in order and without a gap");
        let (procedure, params) = (record.procedure.to_owned(), record.params.to_vec());
        found.push(Known { procedure, multi: record.multi, params });
        ControlFlow::Continue(())
    });
    (found, summary)
}

#[derive(Debug, Clone)]
enum Step {
    /// Bytes of parameters, procedure, participants (none = a single-partition transaction).
    Append(usize, u16, Vec<u16>),
    Flush,
    Reap,
    Truncate,
}

fn step() -> impl Strategy<Value = Step> {
    let participants = prop_oneof![3 => Just(Vec::new()), 1 => prop::collection::vec(0..256u16, 1..5)];
    prop_oneof![
        8 => (8..6000usize, 0..2u16, participants).prop_map(|(bytes, procedure, with)| Step::Append(bytes, procedure, with)),
        6 => Just(Step::Flush),
        6 => Just(Step::Reap),
        1 => Just(Step::Truncate),
    ]
}

/// One process: after how many disk operations it ends, or at the end of what it does; whether it dies then or the power fails; how many unacknowledged
/// records its recovery gives up.
#[derive(Debug, Clone)]
struct Life {
    ends_after: Option<u64>,
    steps: Vec<Step>,
    killed: bool,
    gives_up: u64,
}

fn life() -> impl Strategy<Value = Life> {
    (prop::option::of(0..120u64), prop::collection::vec(step(), 0..50), any::<bool>(), 0..3u64)
        .prop_map(|(ends_after, steps, killed, gives_up)| Life { ends_after, steps, killed, gives_up })
}

/// A database's log over several lives, with what must and what may be found in it.
struct History {
    disk: SimulatedDisk,
    files: Arc<dyn Files>,
    /// Everything appended and not given up, from sequence 0.
    appended: Vec<Known>,
    acknowledged: u64,
    /// Where reading begins: what a snapshot would have.
    snapshot: u64,
    /// Whether the log was ever begun durably.
    begun: bool,
}

impl History {
    fn new(seed: u64) -> Self {
        let disk = SimulatedDisk::new(seed);
        let files = disk.files();
        create_directory(&*files, directory()).unwrap();
        Self { disk, files, appended: Vec::new(), acknowledged: 0, snapshot: 0, begun: false }
    }

    /// Reads the log back and checks it; None when the power failed meanwhile.
    fn recover(&self) -> Option<LogSummary> {
        let (found, summary) = read_from(&*self.files, self.snapshot);
        let summary = match summary {
            Ok(summary) => summary,
            Err(LogError::Io { source, .. }) if source.to_string().contains("no power") => return None,
            Err(error) => panic!("{error}"),
        };
        let end = self.snapshot + found.len() as u64;
        assert_eq!(summary.next_sequence, end);
        assert!(end >= self.acknowledged, "{end} found, {} acknowledged", self.acknowledged);
        assert_eq!(found[..], self.appended[self.snapshot as usize..end as usize]);
        Some(summary)
    }

    fn names(place: usize) -> Vec<String> {
        vec![format!("first of life {place}"), format!("second of life {place}")]
    }

    fn open(&mut self, place: usize, gives_up: u64) -> Option<CommandLog> {
        const SEGMENT_BYTES: u64 = 32 << 10;
        if !self.begun {
            let created = CommandLog::create(&self.files, directory(), PARTITION, SEGMENT_BYTES, Self::names(place));
            self.begun = created.is_ok();
            return created.ok();
        }
        let summary = self.recover()?;
        let next_sequence = summary.next_sequence.saturating_sub(gives_up).max(self.acknowledged);
        let next_segment = summary.next_segment();
        let names = Self::names(place);
        let log =
            CommandLog::resume(&self.files, directory(), PARTITION, SEGMENT_BYTES, names, next_segment, next_sequence);
        let log = log.ok()?;
        assert_eq!(log.sequence(), next_sequence);
        self.appended.truncate(next_sequence as usize);
        self.acknowledged = next_sequence;
        Some(log)
    }

    fn live(&mut self, place: usize, life: &Life) {
        match life.ends_after.map(|operations| self.disk.operations() + operations) {
            Some(end) if life.killed => self.disk.kill_after(end),
            Some(end) => self.disk.cut_after(end),
            None => {}
        }
        if let (Some(mut log), Ok(mut ring)) = (self.open(place, life.gives_up), self.files.ring(4)) {
            for step in &life.steps {
                if !self.step(&mut log, &mut ring, place, step) {
                    break;
                }
            }
        }
        // What has not ended by itself ends now, in recovery or after it.
        if life.killed {
            self.disk.kill()
        } else {
            self.disk.power_cut()
        }
        self.disk.restart();
    }

    /// False when the disk refuses.
    fn step(&mut self, log: &mut CommandLog, ring: &mut IoRing, place: usize, step: &Step) -> bool {
        match step {
            Step::Append(bytes, procedure, with) => {
                let sequence = log.sequence();
                assert_eq!(sequence, self.appended.len() as u64);
                let mut params = vec![sequence as u8 ^ place as u8; *bytes];
                params[..8].copy_from_slice(&(sequence << 8 | place as u64).to_le_bytes());
                let multi = (!with.is_empty()).then(|| Multi { transaction: sequence * 7, participants: with.clone() });
                match &multi {
                    None => log.append(*procedure, &params),
                    Some(multi) => log.append_multi(*procedure, multi.transaction, with, &params),
                };
                log.hold(0, Origin { connection: 0, epoch: 0, token: sequence }, b"reply");
                let procedure = Self::names(place).remove(usize::from(*procedure));
                self.appended.push(Known { procedure, multi, params });
                true
            }
            Step::Flush => log.flush(ring, 0).and_then(|()| ring.submit()).is_ok(),
            Step::Reap => {
                let mut done = Vec::new();
                ring.reap(&mut done);
                done.into_iter().all(|mut completion| {
                    if completion.result.is_err() {
                        return false;
                    }
                    let (group, _) = log.complete(completion.buffers.remove(0)).unwrap();
                    self.acknowledged = group.replies().map(|(origin, _)| origin.token + 1).max().unwrap();
                    log.recycle(group);
                    true
                })
            }
            Step::Truncate => {
                self.snapshot = self.acknowledged;
                log.truncate_before(self.snapshot);
                true
            }
        }
    }
}

proptest! {
    #![proptest_config(properties(500))]

    #[test]
    fn every_acknowledged_transaction_survives_any_number_of_crashes(seed: u64, lives in prop::collection::vec(life(), 1..5)) {
        let mut history = History::new(seed);
        for (place, life) in lives.iter().enumerate() {
            history.live(place, life);
        }
        if history.begun {
            history.recover().unwrap();
        }
    }
}

/// A process dies before it acknowledges what it wrote, the second while it goes on with the log, and the third gives up what the first had written: so a
/// segment lies between theirs of which nothing counts. The third dies anywhere, also when its removal of old segments has come to that one.
#[test]
fn a_removal_of_old_segments_may_end_anywhere() {
    let append = || Step::Append(100, 0, Vec::new());
    let first = Life { ends_after: None, steps: vec![append(), append(), Step::Flush], killed: true, gives_up: 0 };
    for (second_end, third_end) in (10..25).flat_map(|second| (20..45).map(move |third| (second, third))) {
        let second = Life { ends_after: Some(second_end), steps: Vec::new(), killed: true, gives_up: 0 };
        let third = Life { ends_after: Some(third_end), steps: vec![Step::Truncate], killed: true, gives_up: 1 };
        let mut history = History::new(0);
        for (place, life) in [&first, &second, &third].into_iter().enumerate() {
            history.live(place, life);
        }
        history.recover().unwrap();
    }
}

/// A log of 24 groups over several segments, ended in order; what it holds, and where its groups begin.
fn ended_log(seed: u64) -> (SimulatedDisk, Arc<dyn Files>, Vec<Known>) {
    let mut history = History::new(seed);
    let mut log = history.open(0, 0).unwrap();
    let mut ring = history.files.ring(4).unwrap();
    for group in 0..24 {
        for record in 0..=group % 3 {
            assert!(history.step(&mut log, &mut ring, 0, &Step::Append(100 + 3000 * record, 1, Vec::new())));
        }
        assert!(history.step(&mut log, &mut ring, 0, &Step::Flush));
        while ring.in_flight() > 0 {
            assert!(history.step(&mut log, &mut ring, 0, &Step::Reap));
        }
    }
    assert_eq!(history.acknowledged as usize, history.appended.len());
    (history.disk.clone(), history.files.clone(), history.appended)
}

fn segments(files: &dyn Files) -> u64 {
    files.list(directory()).unwrap().len() as u64
}

proptest! {
    #![proptest_config(properties(300))]

    /// A flipped bit is an error, or makes the last group look torn, or lies where nothing is.
    #[test]
    fn a_flipped_bit_never_becomes_a_transaction(seed: u64, at in 0.0..1.0f64, byte in prop_oneof![0..600u64, 4096..4300u64, 0..32_768u64], bit in 0..8u8) {
        let (disk, files, written) = ended_log(seed);
        let number = (segments(&*files) as f64 * at) as u64;
        let length = files.open(&segment(number)).unwrap().len().unwrap();
        disk.flip_bit(&segment(number), byte % length, bit).unwrap();
        let (found, summary) = read_from(&*files, 0);
        prop_assert_eq!(&found[..], &written[..found.len()]);
        match summary {
            Ok(summary) => prop_assert!(found.len() == written.len() || summary.torn && found.len() == written.len() - 3),
            Err(error) => {
                let (problem, place) = (error.to_string(), format!("command-0003-{number:08}.log: "));
                let follows = format!("command-0003-{:08}.log: ", number + 1);
                prop_assert!(problem.contains(&place) || problem.contains(&follows), "{}", problem);
            }
        }
    }

    /// A segment cut short is noticed by what follows it. At the end of the log it cannot be told from one that was never longer.
    #[test]
    fn a_truncated_segment_never_becomes_a_gap(seed: u64, at in 0.0..1.0f64, bytes in 0..32_768u64) {
        let (disk, files, written) = ended_log(seed);
        let number = (segments(&*files) as f64 * at) as u64;
        disk.truncate(&segment(number), bytes).unwrap();
        let (found, summary) = read_from(&*files, 0);
        prop_assert_eq!(&found[..], &written[..found.len()]);
        prop_assert!(summary.is_err() || found.len() == written.len() || number + 2 >= segments(&*files), "segment {} cut to {}", number, bytes);
    }
}

fn problem(files: &dyn Files, from: u64) -> String {
    read_from(files, from).1.unwrap_err().to_string()
}

#[test]
fn missing_segments_matter_only_where_their_transactions_are_wanted() {
    let (_, files, written) = ended_log(1);
    let count = segments(&*files);
    assert!(count > 5);
    files.remove(&segment(2)).unwrap();
    let text = problem(&*files, 0);
    assert!(text.contains("command-0003-00000003.log: segment 2 is missing"), "{text}");
    let first = read_log(&*files, directory(), PARTITION, |_| ControlFlow::Break(())).unwrap().next_sequence - 1;
    assert!(first > 0, "the log begins behind the gap");
    let (found, summary) = read_from(&*files, first);
    assert_eq!(found[..], written[first as usize..]);
    assert_eq!(summary.unwrap().last_segment, Some(count - 1));
    let text = problem(&*files, first - 1);
    assert!(
        text.contains("segment 2 is missing") && text.contains(&format!("transactions {} to {}", first - 1, first - 1)),
        "{text}"
    );
    // Of the end only the segment that was prepared ahead is left: a snapshot of everything needs nothing else.
    (0..count - 1).filter(|&number| number != 2).for_each(|number| files.remove(&segment(number)).unwrap());
    assert_eq!(read_from(&*files, written.len() as u64).1.unwrap().next_sequence, written.len() as u64);
    assert!(problem(&*files, 0).contains("is missing"));
}

#[test]
fn headers_of_other_logs_and_versions_are_named() {
    let files = ended_log(2).1;
    files.rename(&segment(1), &segment(2)).unwrap();
    files.rename(&segment(0), &segment(1)).unwrap();
    assert!(problem(&*files, 0).contains("its header is that of partition 3, segment 0"));
    let files = ended_log(2).1;
    let file = files.open(&segment(0)).unwrap();
    let mut old = anticache_engine::io::aligned_buf(4096);
    file.read_at(&mut old, 0).unwrap();
    old[4] = 1;
    file.write_all_at(&old, 0).unwrap();
    assert!(problem(&*files, 0).contains("its format has version 1, which this program cannot read"));
}

#[test]
fn refused_reads_writes_and_space_are_named() {
    let rule = |operation, error| FaultRule { file: "command-0003".to_owned(), operation, after: 0, error, times: 1 };
    let (disk, files, written) = ended_log(3);
    disk.fail(rule(Operation::Read, Fault::Io));
    assert!(problem(&*files, 0).contains("command-0003-00000000.log: Input/output error"));
    disk.fail(FaultRule { after: segments(&*files), times: 20, ..rule(Operation::Read, Fault::ShortRead) });
    assert!(problem(&*files, 0).contains("command-0003-00000000.log: short transfer: "));
    disk.heal();
    let summary = read_from(&*files, 0).1.unwrap();
    let resume = || {
        let (next, names) = (summary.next_segment(), History::names(1));
        CommandLog::resume(&files, directory(), PARTITION, 32 << 10, names, next, written.len() as u64)
    };
    disk.fail(rule(Operation::Sync, Fault::Io));
    assert!(resume().err().unwrap().to_string().contains("command-0003-00000000.log: Input/output error"));
    for operation in [Operation::Create, Operation::Allocate, Operation::Write] {
        disk.fail(rule(operation, Fault::NoSpace));
        let text = resume().err().unwrap().to_string();
        assert!(text.contains("command log /log/command-0003-") && text.contains("No space left"), "{text}");
    }
    // The first segment fits and those behind it do not: the log works until it is full, then it says so.
    let disk = SimulatedDisk::new(4);
    disk.set_capacity(40 << 10);
    let files = disk.files();
    create_directory(&*files, directory()).unwrap();
    let mut log = CommandLog::create(&files, directory(), PARTITION, 32 << 10, History::names(0)).unwrap();
    let mut ring = files.ring(4).unwrap();
    let mut written = 0;
    let text = loop {
        log.append(0, &[1; 4000]);
        if let Err(error) = log.flush(&mut ring, 0) {
            break error.to_string();
        }
        let mut done = Vec::new();
        ring.wait(&mut done).unwrap();
        let (group, _) = log.complete(done.remove(0).buffers.remove(0)).unwrap();
        log.recycle(group);
        written += 1;
    };
    assert!(text.contains("command-0003-00000001.log: No space left"), "{text}");
    assert_eq!((written, read_from(&*files, 0).0.len()), (7, 7));
}

#[test]
fn a_failed_group_write_is_the_completions_error_and_holds_the_replies() {
    let mut history = History::new(5);
    let mut log = history.open(0, 0).unwrap();
    let mut ring = history.files.ring(4).unwrap();
    let error = Fault::Io;
    history.disk.fail(FaultRule { file: "log".to_owned(), operation: Operation::Write, after: 0, error, times: 1 });
    assert!(history.step(&mut log, &mut ring, 0, &Step::Append(100, 0, Vec::new())));
    assert!(history.step(&mut log, &mut ring, 0, &Step::Flush));
    let mut done = Vec::new();
    ring.wait(&mut done).unwrap();
    assert!(done[0].result.as_ref().unwrap_err().to_string().contains("Input/output error"));
    assert_eq!(log.abandon().len(), 1);
    assert!(log.is_idle());
}

/// Three restarts, each giving up what the one before had not acknowledged; then the segments are removed from the front.
#[test]
fn given_up_tails_stay_given_up_and_old_segments_go() {
    let mut history = History::new(6);
    for place in 0..4 {
        let mut log = history.open(place, u64::MAX).unwrap();
        let mut ring = history.files.ring(4).unwrap();
        for _ in 0..3 {
            for _ in 0..2 {
                history.step(&mut log, &mut ring, place, &Step::Append(5000, 0, vec![1, 2]));
            }
            history.step(&mut log, &mut ring, place, &Step::Flush);
            // Whole on disk, and yet nobody was told.
            let mut done = Vec::new();
            ring.wait(&mut done).unwrap();
            let (group, _) = log.complete(done.remove(0).buffers.remove(0)).unwrap();
            log.recycle(group);
        }
        history.disk.kill();
        history.disk.restart();
        if place < 3 {
            assert_eq!(history.recover().unwrap().next_sequence, 6);
        }
    }
    let summary = history.recover().unwrap();
    assert_eq!((summary.records, summary.dropped, summary.next_sequence), (6, 18, 6));
    let mut log = history.open(4, 0).unwrap();
    log.truncate_before(5);
    assert_eq!(segments(&*history.files), summary.next_segment() + 2, "record 5 is still needed");
    log.truncate_before(6);
    assert_eq!(history.files.list(directory()).unwrap().len(), 2, "the current segment and the next");
    history.snapshot = 6;
    assert_eq!(history.recover().unwrap().records, 0);
}

/// The process dies while a segment is being made, whose name is then known and not durable; the power fails while the next process begins the segment
/// behind it. Every moment of both.
#[test]
fn a_name_that_was_not_durable_tears_no_hole_into_the_log() {
    let large = Step::Append(20_000, 0, Vec::new());
    for seed in 0..5 {
        for (dies_after, cut_after) in (0..8).flat_map(|dies| (10..36).map(move |cut| (dies, cut))) {
            let mut history = History::new(seed);
            let mut log = history.open(0, 0).unwrap();
            let mut ring = history.files.ring(4).unwrap();
            history.step(&mut log, &mut ring, 0, &large);
            history.step(&mut log, &mut ring, 0, &Step::Flush);
            while history.acknowledged == 0 {
                history.step(&mut log, &mut ring, 0, &Step::Reap);
            }
            history.disk.kill_after(history.disk.operations() + dies_after);
            // It does not fit into the segment: the one after the next is made.
            history.step(&mut log, &mut ring, 0, &large);
            history.step(&mut log, &mut ring, 0, &Step::Flush);
            drop((log, ring));
            history.disk.kill();
            history.disk.restart();
            history.disk.cut_after(history.disk.operations() + cut_after);
            drop(history.open(1, 0));
            history.disk.power_cut();
            history.disk.restart();
            history.recover().unwrap();
        }
    }
}

/// What was written behind the place at which recovery goes on is taken away from the back: a crash meanwhile leaves no hole in the log.
#[test]
fn a_crash_while_the_rest_is_given_back_leaves_a_log_that_can_be_read() {
    for (seed, after, killed) in
        (0..2).flat_map(|seed| (0..20).flat_map(move |after| [(seed, after, true), (seed, after, false)]))
    {
        let (disk, files, written) = ended_log(seed);
        let first = read_log(&*files, directory(), PARTITION, |_| ControlFlow::Break(())).unwrap();
        let end = disk.operations() + after;
        if killed {
            disk.kill_after(end)
        } else {
            disk.cut_after(end)
        }
        let _ = CommandLog::trim(&files, directory(), PARTITION, first.end);
        if killed {
            disk.kill()
        } else {
            disk.power_cut()
        }
        disk.restart();
        let (found, summary) = read_from(&*files, 0);
        summary.unwrap_or_else(|error| panic!("seed {seed}, after {after}, killed {killed}: {error}"));
        assert!(!found.is_empty() && found[..] == written[..found.len()]);
    }
}

fn group_of_a_client(salt: Option<u64>) -> Vec<u8> {
    let bytes = 32 + 8 * salt.is_some() as u32;
    let salt = salt.map_or_else(Vec::new, |salt| salt.to_le_bytes().to_vec());
    let group = |checksum: u32| {
        let head = [b"ACLG".as_slice(), &bytes.to_le_bytes(), &[0; 20], &checksum.to_le_bytes()].concat();
        [head, salt.clone()].concat()
    };
    group(crc32c::crc32c(&group(0)))
}

/// Parameters may look like a group and lie where one could begin. When their own group is torn, they are still only parameters.
#[test]
fn parameters_that_look_like_a_group_are_none() {
    for forged in [group_of_a_client(None), group_of_a_client(Some(0))] {
        let mut history = History::new(7);
        let mut log = history.open(0, 0).unwrap();
        let mut ring = history.files.ring(4).unwrap();
        // Whatever stands before the parameters, a copy lies at the beginning of a page.
        let mut params = vec![0; 16 << 10];
        for (page, before) in [(1, 39), (2, 47)] {
            params[(page << 12) - before..][..forged.len()].copy_from_slice(&forged);
        }
        log.append(0, &params);
        log.flush(&mut ring, 0).unwrap();
        let mut done = Vec::new();
        ring.wait(&mut done).unwrap();
        assert!(done[0].result.is_ok());
        // A group that is long for the first segment lies in the one behind it.
        history.disk.flip_bit(&segment(1), 4096 + 100, 3).unwrap();
        let (found, summary) = read_from(&*history.files, 0);
        assert!(found.is_empty() && summary.unwrap().torn);
    }
}
