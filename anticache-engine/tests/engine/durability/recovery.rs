//! Snapshots and recovery: what they write, what they refuse by name, and what becomes of them when the disk does not do its part.

use std::path::{Path, PathBuf};

use anticache_engine::config::{AntiCaching, Config, Log};
use anticache_engine::durability::snapshot::Verdict;
use anticache_engine::io::files::create_directory;
use anticache_engine::io::simulated::{Fault, FaultRule, Operation, SimulatedDisk};
use anticache_engine::net::frame::Status;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::support::durable::{History, Model, OWNERS, Op, Process, SCHEMA, config};
use crate::support::replies::Answer;

const IDS: i64 = 1800;

fn insert(id: i64) -> Op {
    Op::Insert { id, owner: (id % i64::from(OWNERS)) as i32, note: "n".repeat((id * 7 % 900) as usize) }
}

/// A database on a disk, its process running.
struct Running {
    disk: SimulatedDisk,
    config: Config,
    history: History,
    process: Process,
    random: Pcg64Mcg,
}

impl Running {
    fn filled(config: Config, ids: i64) -> Self {
        Self::filled_on(SimulatedDisk::new(1), config, ids)
    }

    fn filled_on(disk: SimulatedDisk, config: Config, ids: i64) -> Self {
        let history = History::default();
        let process = Process::start(&disk, &config, &history.journal).unwrap();
        let mut running = Self { disk, config, history, process, random: Pcg64Mcg::seed_from_u64(5) };
        for first in (0..ids).step_by(50) {
            let mut next = first..;
            running.run(50, |_| insert(next.next().unwrap()));
        }
        running
    }

    fn run(&mut self, count: usize, mut op: impl FnMut(&mut Pcg64Mcg) -> Op) {
        let random = &mut self.random;
        let ops = self.history.invent(count, || op(random));
        let answers = self.process.run(&ops);
        let failed = answers.iter().find(|answer| answer.status == Status::Failed);
        assert!(failed.is_none(), "{}", failed.map(Answer::text).unwrap_or_default());
        self.history.learn(answers);
    }

    fn work(&mut self, batches: usize) {
        (0..batches).for_each(|_| self.run(40, |random| Op::random(random, IDS)));
    }

    /// Ends the process without warning.
    fn crash(self) -> Crashed {
        let Self { disk, config, history, process, random } = self;
        disk.kill();
        drop(process);
        disk.restart();
        Crashed { disk, config, history, random }
    }
}

/// A database whose process has died.
struct Crashed {
    disk: SimulatedDisk,
    config: Config,
    history: History,
    random: Pcg64Mcg,
}

impl Crashed {
    fn try_start(&self, change: impl FnOnce(&mut Config)) -> Result<Process, String> {
        let mut config = self.config.clone();
        change(&mut config);
        let before = self.history.journal.lock().unwrap().clone();
        let started = Process::start(&self.disk, &config, &self.history.journal);
        *self.history.journal.lock().unwrap() = before;
        started.map_err(|error| error.to_string())
    }

    fn start(self) -> Running {
        let process = self.try_start(|_| {}).unwrap();
        let Self { disk, config, mut history, random } = self;
        history.must_hold(&process.state().unwrap()).unwrap();
        Running { disk, config, history, process, random }
    }

    fn names(&self) -> Vec<String> {
        self.disk.files().list(Path::new("/data")).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.config.data_dir.join(name)
    }

    /// What the files have instead of what they should have.
    fn bytes(&self, name: &str) -> Vec<u8> {
        anticache_engine::io::files::read_file(&*self.disk.files(), &self.path(name)).unwrap().to_vec()
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        let files = self.disk.files();
        let file = files.create(&self.path(name)).unwrap();
        let mut padded = anticache_engine::io::aligned_buf(bytes.len().next_multiple_of(4096));
        padded[..bytes.len()].copy_from_slice(bytes);
        file.write_all_at(&padded, 0).unwrap();
        file.set_len(bytes.len() as u64).unwrap();
    }

    /// States after each beginning of the journal.
    fn states(&self) -> Vec<Model> {
        let mut model = self.history.base.clone();
        let mut states = vec![model.clone()];
        for token in self.history.journal.lock().unwrap().iter() {
            self.history.ops[token].apply(*token, &mut model);
            if self.history.ops[token].writes() {
                states.push(model.clone());
            }
        }
        states
    }
}

#[test]
fn a_snapshot_replaces_the_log_before_it_and_refers_to_blocks() {
    let mut running = Running::filled(config(), IDS);
    running.work(10);
    let before = running.process.partition.gauges().blocks_live;
    let outcome = running.process.snapshot();
    assert_eq!((outcome.verdict, outcome.generation), (Verdict::Durable, 1));
    let counters = *running.process.partition.counters();
    let blocks = running.process.partition.gauges().blocks_live;
    assert_eq!((counters.snapshots, counters.snapshot_blocks_added), (1, before), "of {blocks} blocks at the end");
    let in_memory_bytes = running.process.partition.gauges().memory_total_bytes;
    assert!(counters.snapshot_bytes < in_memory_bytes, "blocks are not copied: {counters:?}");
    assert_eq!(running.process.snapshot().verdict, Verdict::Durable);
    assert_eq!(running.process.partition.counters().snapshot_blocks_added, blocks, "only those evicted since");
    let written = running.history.ops.len();
    running.work(3);
    let running = running.crash().start();
    let recovered = *running.process.partition.counters();
    assert!(recovered.recovered_log_records <= 120, "of {written} operations only the last are replayed");
    assert!(
        recovered.recovered_log_records > 0 && recovered.recovered_snapshot_bytes > 0 && recovered.recovered_tuples > 0
    );
    let names = running.disk.files().list(Path::new("/data")).unwrap();
    let snapshots: Vec<_> = names.iter().filter(|name| name.starts_with("snapshot")).collect();
    assert_eq!(snapshots, ["snapshot-0000-00000002.db"]);
}

/// Everything that changes while a snapshot is written, a step at a time, between its steps.
#[test]
fn a_snapshot_under_heavy_work_is_the_state_at_its_beginning() {
    for anticaching in [AntiCaching::Alru, AntiCaching::Lru, AntiCaching::Off] {
        let budget = if anticaching == AntiCaching::Off { 16 << 20 } else { config().memory_budget_bytes };
        let mut running = Running::filled(Config { anticaching, memory_budget_bytes: budget, ..config() }, IDS);
        for _ in 0..12 {
            let before = running.process.outcomes.len();
            assert!(running.process.begin_snapshot());
            while running.process.outcomes.len() == before {
                running.work(1);
            }
            assert_eq!(
                running.process.outcomes[before].verdict,
                Verdict::Durable,
                "{:?}",
                running.process.outcomes[before]
            );
            running.work(2);
            running = running.crash().start();
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name_and_nothing_is_touched() {
    let mut running = Running::filled(config(), IDS);
    running.process.snapshot();
    running.work(2);
    let crashed = running.crash();
    let before: Vec<_> = crashed.names().iter().map(|name| (name.clone(), crashed.bytes(name))).collect();
    let refused = |change: fn(&mut Config), expected: &str| {
        let error = crashed.try_start(change).err().expect(expected);
        assert!(error.contains(expected) && error.contains("/data"), "{error}");
    };
    refused(|config| config.partitions = 3, "`partitions` = 1, the configuration says 3");
    refused(|config| config.eviction_block_bytes = 8192, "`eviction_block_bytes` = 4096, the configuration says 8192");
    refused(|config| config.log = Log::Off, "`log` = sync, the configuration says off");
    refused(|config| config.anticaching = AntiCaching::Off, "found an evicted tuple of table");
    for (from, to, expected) in [
        ("CHAR(1000)", "CHAR(1001)", "the table `item`"),
        ("KEY by_owner (owner)", "KEY by_token (token)", "indexes PRIMARY, by_name, by_token"),
        ("'evictable; partition by item'", "'partition by item'", "evictable true"),
        ("CREATE TABLE tally", "CREATE TABLE u (a INT PRIMARY KEY); CREATE TABLE tally", "the table `tally`"),
    ] {
        let schema = SCHEMA.replace(from, to);
        let error = Process::start_with(&crashed.disk, &crashed.config, &schema, &History::default().journal);
        let error = error.err().unwrap().to_string();
        assert!(error.contains(expected) && error.contains("was written with"), "{error}");
    }
    crashed.write("notes.txt", b"mine");
    refused(|_| {}, "it holds `notes.txt`");
    crashed.disk.files().remove(&crashed.path("notes.txt")).unwrap();
    for (name, bytes) in before {
        assert_eq!(crashed.bytes(&name), bytes, "{name} was changed");
    }
    let manifest = crashed.bytes("MANIFEST");
    crashed.disk.files().remove(&crashed.path("MANIFEST")).unwrap();
    refused(|_| {}, "and no MANIFEST");
    crashed.write("MANIFEST", &manifest);
    crashed.start();
}

/// Bits, ends and whole files: a named error, or the right data.
#[test]
fn damage_is_named_or_does_not_matter() {
    let mut running = Running::filled(config(), IDS);
    running.process.snapshot();
    running.work(6);
    let crashed = running.crash();
    let states = crashed.states();
    let mut random = Pcg64Mcg::seed_from_u64(9);
    let (mut refused, mut right) = (0, 0);
    for name in crashed.names() {
        let good = crashed.bytes(&name);
        let is_log = name.starts_with("command");
        for trial in 0..14 {
            let at = if trial % 2 == 0 {
                random.random_range(0..good.len())
            } else {
                random.random_range(0..good.len().min(20_000))
            };
            let what = match trial {
                0..9 => {
                    crashed.disk.flip_bit(&crashed.path(&name), at as u64, random.random_range(0..8)).unwrap();
                    format!("{name}, a bit of byte {at}")
                }
                9..13 => {
                    crashed.disk.truncate(&crashed.path(&name), at as u64).unwrap();
                    format!("{name}, cut at {at}")
                }
                _ => {
                    crashed.disk.files().remove(&crashed.path(&name)).unwrap();
                    format!("{name}, removed")
                }
            };
            // Starting changes the directory; what was there comes back afterwards.
            let all: Vec<_> = crashed.names().into_iter().map(|name| (crashed.bytes(&name), name)).collect();
            let outcome =
                crashed.try_start(|_| {}).and_then(|process| process.state().map_err(|error| error.to_string()));
            match outcome {
                // The last group of a log that does not fit is one that a crash has torn: nothing tells it from one that was acknowledged.
                Ok(found) if is_log => assert!(states.contains(&found), "{what}: wrong data"),
                Ok(found) => assert!(found == *states.last().unwrap(), "{what}: wrong data"),
                Err(error) => {
                    let named = ["/data", "block ", "transaction "].iter().any(|part| error.contains(part));
                    assert!(named && !error.contains("simulated"), "{what}: {error}");
                    refused += 1;
                    right -= 1;
                }
            }
            right += 1;
            crashed.names().iter().for_each(|name| crashed.disk.files().remove(&crashed.path(name)).unwrap());
            all.iter().for_each(|(bytes, name)| crashed.write(name, bytes));
            crashed.write(&name, &good);
        }
    }
    assert!(refused > 20 && right > 10, "{refused} refused, {right} right");
    crashed.start();
}

fn rule(file: &str, operation: Operation, after: u64, error: Fault) -> FaultRule {
    FaultRule { file: file.to_owned(), operation, after, error, times: 1 }
}

/// A disk that does not do its part during a snapshot: it is given up, the database goes on, and the next one succeeds.
#[test]
fn a_snapshot_that_fails_is_given_up_and_tried_again() {
    let mut running = Running::filled(config(), IDS);
    running.process.snapshot();
    let faults = [
        ("snapshot-", Operation::Create, 0, Fault::NoSpace, ""),
        ("snapshot-", Operation::Write, 0, Fault::NoSpace, "writing the snapshot"),
        ("snapshot-", Operation::Write, 3, Fault::Io, "writing the snapshot"),
        ("snapshot-", Operation::Sync, 0, Fault::Io, "syncing the snapshot"),
        ("MANIFEST", Operation::Create, 0, Fault::NoSpace, "replacing MANIFEST"),
        ("MANIFEST", Operation::Write, 0, Fault::NoSpace, "replacing MANIFEST"),
        ("MANIFEST", Operation::Sync, 0, Fault::Io, "replacing MANIFEST"),
        ("MANIFEST", Operation::Rename, 0, Fault::Io, "replacing MANIFEST"),
        ("data", Operation::SyncDirectory, 1, Fault::Io, "replacing MANIFEST"),
    ];
    for (round, (file, operation, after, error, expected)) in faults.into_iter().enumerate() {
        running.disk.fail(rule(file, operation, after, error));
        let errors = running.process.partition.counters().snapshot_errors;
        if expected.is_empty() {
            assert!(!running.process.begin_snapshot());
        } else {
            let outcome = running.process.snapshot();
            let problem = outcome.problem.clone().expect(expected);
            assert!(problem.contains(expected), "{problem}");
            assert_eq!(running.process.partition.counters().snapshot_errors, errors + 1, "{expected}");
        }
        running.work(2);
        running.disk.heal();
        if round % 3 == 2 {
            running = running.crash().start();
        }
        let outcome = running.process.snapshot();
        assert_eq!((outcome.verdict, outcome.problem), (Verdict::Durable, None), "after {expected}");
        running.work(1);
        running = running.crash().start();
    }
}

/// After a failed sync nobody knows which blocks are on disk: no snapshot refers to them any more, until a restart knows them from the log.
#[test]
fn a_block_file_that_cannot_be_synced_ends_snapshots_until_the_restart() {
    let mut running = Running::filled(config(), IDS);
    running.disk.fail(rule("blocks", Operation::Sync, 0, Fault::Io));
    let problem = running.process.snapshot().problem.unwrap();
    assert!(problem.contains("syncing the block file"), "{problem}");
    running.work(2);
    let problem = running.process.snapshot().problem.unwrap();
    assert!(problem.contains("restart the server"), "{problem}");
    running.disk.heal();
    running.work(2);
    let Running { disk, config, history, process, random } = running;
    disk.power_cut();
    drop(process);
    disk.restart();
    let mut running = Crashed { disk, config, history, random }.start();
    assert_eq!(running.process.snapshot().verdict, Verdict::Durable);
}

/// A full disk during a snapshot, log and blocks included: what was acknowledged stays, and the database comes back with more space.
#[test]
fn a_full_disk_loses_nothing() {
    let mut running = Running::filled(config(), IDS);
    running.process.snapshot();
    running.disk.fail(FaultRule { times: 1000, ..rule("", Operation::Write, 200, Fault::NoSpace) });
    let random = &mut running.random;
    for _ in 0..40 {
        let ops = running.history.invent(40, || Op::random(random, IDS));
        running.process.submit(&ops);
        running.process.begin_snapshot();
        (0..20).for_each(|_| running.process.poll());
        running.history.learn(running.process.answers());
    }
    running.disk.heal();
    let mut running = running.crash().start();
    running.work(2);
    assert_eq!(running.process.snapshot().verdict, Verdict::Durable);
    running.crash().start();
}

/// What unfinished snapshots, earlier generations and half-written manifests leave is removed; recovery can be repeated and interrupted.
#[test]
fn leftovers_are_removed_and_recovery_can_be_repeated() {
    let mut running = Running::filled(config(), IDS);
    running.process.snapshot();
    running.process.begin_snapshot();
    running.work(1);
    let crashed = running.crash();
    crashed.write("snapshot-0000-00000000.db", b"an earlier one");
    crashed.write("snapshot-0000-00000777.db", b"a later one");
    crashed.write("MANIFEST.new", b"half of it");
    let mut running = crashed.start();
    let names = running.disk.files().list(Path::new("/data")).unwrap();
    assert!(
        !names.iter().any(|name| name.ends_with("777.db") || name.ends_with("-00000000.db") || name.ends_with(".new")),
        "{names:?}"
    );
    for _ in 0..5 {
        running = running.crash().start();
    }
    running.work(2);
    assert_eq!(running.process.snapshot().verdict, Verdict::Durable);
    running.crash().start();
}

/// A start that is cut off anywhere, before the database was ever ready, can be repeated.
#[test]
fn a_first_start_that_is_cut_off_can_be_repeated() {
    for cut in 0..60 {
        let (disk, config, history) = (SimulatedDisk::new(cut), config(), History::default());
        disk.cut_after(cut);
        let first = Process::start(&disk, &config, &history.journal);
        let ended = first.is_ok();
        drop(first);
        disk.power_cut();
        disk.restart();
        let mut process =
            Process::start(&disk, &config, &history.journal).unwrap_or_else(|error| panic!("{cut}: {error}"));
        let answers = process.run(&[(0, insert(1))]);
        assert_eq!(answers[0].status, Status::Committed, "{cut}");
        assert!(cut < 50 || ended, "the first start takes fewer operations");
    }
}

#[test]
fn without_a_log_the_last_snapshot_is_what_remains() {
    let mut running = Running::filled(Config { log: Log::Off, ..config() }, IDS);
    let crashed = running.crash();
    let error = crashed.try_start(|_| {}).err().unwrap();
    assert!(error.contains("`log` = off and no snapshot was taken"), "{error}");
    running = Running::filled(Config { log: Log::Off, ..config() }, IDS);
    running.work(5);
    assert_eq!(running.process.snapshot().verdict, Verdict::Durable);
    let expected = running.process.state().unwrap();
    running.work(5);
    let crashed = running.crash();
    let process = crashed.try_start(|_| {}).unwrap();
    assert_eq!(process.state().unwrap(), expected);
    drop(process);
    // From there on it may be logged.
    let mut process = crashed.try_start(|config| config.log = Log::Sync).unwrap();
    let answers = process.run(&[(u64::MAX - 1, Op::Set { id: 10_000 }), (u64::MAX, insert(10_001))]);
    assert_eq!(answers.iter().filter(|answer| answer.status == Status::Committed).count(), 1);
    crashed.disk.kill();
    drop(process);
    crashed.disk.restart();
    let process = crashed.try_start(|config| config.log = Log::Sync).unwrap();
    assert_eq!(process.state().unwrap().items.len(), expected.items.len() + 1);
    assert_eq!(process.partition.counters().recovered_log_records, 1);
}

/// What fitted in memory before and does not now is evicted on the way; what cannot be is an error.
#[test]
fn a_smaller_budget_evicts_while_recovering() {
    let mut running = Running::filled(Config { memory_budget_bytes: 8 << 20, ..config() }, IDS);
    assert_eq!(running.process.partition.gauges().tuples_evicted, 0);
    running.process.snapshot();
    running.work(3);
    running.config.memory_budget_bytes = 3 << 20;
    let mut running = running.crash().start();
    let gauges = running.process.partition.gauges();
    assert!(gauges.tuples_evicted > 500 && gauges.blocks_live > 100, "{gauges:?}");
    running.work(10);
    running.process.snapshot();
    let crashed = running.crash();
    let error = crashed.try_start(|config| config.memory_budget_bytes = 5 << 16).err().unwrap();
    assert!(error.contains("memory budget of 327680 bytes"), "{error}");
    crashed.start();
}

/// What recovery runs again is older than all that comes afterwards: the chains' clock goes on. [`Process::state`] checks that their marks ascend.
#[test]
fn ages_go_on_after_recovery() {
    let mut running = Running::filled(config(), IDS);
    running.work(5);
    let mut running = running.crash().start();
    let youngest = |running: &Running| running.process.partition.tables()[0].chain().unwrap().marks().last().unwrap().1;
    let recovered = youngest(&running);
    assert!(running.process.partition.counters().recovered_log_records > 1000);
    running.work(1);
    assert!(youngest(&running) > recovered);
    running.work(20);
    running.process.state().unwrap();
}

/// On a simulated disk only the seed decides: how long a write took is the machine's, so no group of the log waits for a share of it.
#[test]
fn the_machines_clock_decides_nothing_on_a_simulated_disk() {
    let operations = |log_gathering_share: f64| {
        let mut running = Running::filled(Config { log_gathering_share, ..config() }, IDS);
        running.work(50);
        (running.disk.operations(), running.process.partition.stats()["log_groups"].clone())
    };
    assert_eq!(operations(1.0), operations(0.0));
}

/// Nothing lies where it lay before: what fitted may be short of a little memory while it is recovered.
#[test]
fn recovery_may_exceed_the_budget_for_a_while() {
    let mut running = Running::filled(Config { memory_budget_bytes: 8 << 20, ..config() }, IDS);
    running.process.snapshot();
    running.work(1);
    let mut crashed = running.crash();
    let process = crashed.try_start(|config| config.memory_budget_bytes = 468 << 10).unwrap();
    crashed.history.must_hold(&process.state().unwrap()).unwrap();
    assert!(process.partition.counters().recovered_beyond_budget > 0);
    let meter = process.partition.meter();
    assert!(meter.lent_bytes() == 0 && !meter.is_over(), "{meter:?}");
    assert!(meter.peak_bytes() <= (468 << 10) * 9 / 8, "{meter:?}");
    let error = crashed.try_start(|config| config.memory_budget_bytes = 420 << 10).err().unwrap();
    assert!(error.contains("does not commit again"), "{error}");
}

/// A process dies between the renaming of the manifest and the sync of its directory; the next one, which recovers from what it reads, loses power: the
/// manifest before may be in force again, and its blocks must be there.
#[test]
fn recovery_overwrites_nothing_before_the_manifest_that_it_has_read_is_durable() {
    let mut cuts = 0;
    for seed in 0..8 {
        let mut running = Running::filled_on(SimulatedDisk::new(seed), config(), IDS);
        assert_eq!(running.process.snapshot().verdict, Verdict::Durable);
        running.work(30);
        running.disk.fail(FaultRule {
            file: "data".to_owned(),
            operation: Operation::SyncDirectory,
            after: 1,
            error: Fault::Io,
            times: 1,
        });
        assert_eq!(running.process.snapshot().verdict, Verdict::InDoubt);
        running.disk.heal();
        running.work(20);
        let crashed = running.crash();
        let before = crashed.disk.count(Operation::Write);
        crashed.disk.cut_after(crashed.disk.operations() + 200);
        if crashed.try_start(|_| {}).is_err() {
            cuts += u32::from(crashed.disk.count(Operation::Write) > before);
            crashed.disk.restart();
        }
        crashed.start();
    }
    assert!(cuts > 4, "{cuts} recoveries lost power after they had written something");
}

#[test]
fn a_new_data_directory_survives_a_power_cut_with_those_above_it() {
    for seed in 0..12 {
        let disk = SimulatedDisk::new(seed);
        let config = Config { data_dir: PathBuf::from("/srv/engine/data"), ..config() };
        let running = Running::filled_on(disk, config, 50);
        running.disk.power_cut();
        running.disk.restart();
        let crashed = running.crash();
        crashed.start();
    }
}

/// The first server dies when it has made the directories, and not made their names durable; the second one finds them.
#[test]
fn directories_of_a_server_that_died_survive_a_power_cut() {
    for (seed, dies_after) in (0..6).flat_map(|seed| (0..8).map(move |dies| (seed, dies))) {
        let disk = SimulatedDisk::new(seed);
        let config = Config { data_dir: PathBuf::from("/srv/engine/data"), ..config() };
        disk.kill_after(disk.operations() + dies_after);
        let _ = create_directory(&*disk.files(), &config.data_dir);
        disk.kill();
        disk.restart();
        let running = Running::filled_on(disk, config, 20);
        running.disk.power_cut();
        running.disk.restart();
        running.crash().start();
    }
}

/// A manifest that could not even be written beside the old one was not replaced: what it would have named goes, or a full disk would become fuller with
/// each attempt.
#[test]
fn a_full_disk_does_not_fill_up_with_snapshots_that_do_not_count() {
    let mut running = Running::filled(config(), IDS);
    assert_eq!(running.process.snapshot().verdict, Verdict::Durable);
    for operation in [Operation::Create, Operation::Write, Operation::SetLength, Operation::Sync] {
        let file = "MANIFEST.new".to_owned();
        running.disk.fail(FaultRule { file, operation, after: 0, error: Fault::NoSpace, times: 2 });
        for _ in 0..2 {
            running.work(2);
            let outcome = running.process.snapshot();
            assert!(outcome.problem.unwrap().contains("MANIFEST"), "{operation:?}");
            let names = running.disk.files().list(Path::new("/data")).unwrap();
            let snapshots: Vec<_> = names.iter().filter(|name| name.starts_with("snapshot")).collect();
            assert_eq!(snapshots, ["snapshot-0000-00000001.db"], "{operation:?}");
        }
    }
    let mut running = running.crash().start();
    assert_eq!(running.process.snapshot().verdict, Verdict::Durable);
    running.crash().start();
}

#[test]
fn restarts_without_work_take_no_more_and_more_space() {
    let mut running = Running::filled(config(), 200);
    let bytes_in_use = |running: &Running| -> u64 {
        let files = running.disk.files();
        let names = files.list(Path::new("/data")).unwrap();
        names.iter().map(|name| files.open(&Path::new("/data").join(name)).unwrap().len().unwrap()).sum()
    };
    let before = bytes_in_use(&running);
    for life in 0..12 {
        running = if life % 2 == 0 { running.crash().start() } else { running.crash().start().crash().start() };
    }
    let (after, segment_bytes) = (bytes_in_use(&running), running.config.log_segment_bytes);
    assert!(after < before + segment_bytes, "{after} bytes, {before} before");
    running.work(5);
    running.crash().start();
}

/// A directory whose sync fails now and then: of all generations that may count, no more than two are kept.
#[test]
fn generations_in_doubt_do_not_pile_up() {
    let mut running = Running::filled(config(), IDS);
    assert_eq!(running.process.snapshot().verdict, Verdict::Durable);
    let generations = |running: &Running| {
        let names = running.disk.files().list(Path::new("/data")).unwrap();
        names.iter().filter(|name| name.starts_with("snapshot")).count()
    };
    let rule = |after| FaultRule {
        file: "data".to_owned(),
        operation: Operation::SyncDirectory,
        after,
        error: Fault::Io,
        times: 1,
    };
    let mut doubts = 0;
    for attempt in 0..12 {
        running.disk.fail(rule([1, 2, 0][attempt % 3]));
        running.work(2);
        if running.process.begin_snapshot() {
            let outcome = running.process.finish_snapshot();
            doubts += u32::from(outcome.verdict == Verdict::InDoubt);
        }
        running.disk.heal();
        assert!(generations(&running) <= 2, "{} generations after attempt {attempt}", generations(&running));
        if attempt % 4 == 3 {
            running = running.crash().start();
        }
    }
    assert!(doubts > 3, "{doubts}");
    assert_eq!(running.process.snapshot().verdict, Verdict::Durable);
    assert_eq!(generations(&running), 1);
    running.crash().start();
}

#[test]
fn a_refused_block_write_in_recovery_is_named() {
    let mut running = Running::filled(Config { memory_budget_bytes: 8 << 20, ..config() }, IDS);
    running.process.snapshot();
    let crashed = running.crash();
    let (file, operation, error) = ("blocks".to_owned(), Operation::Write, Fault::NoSpace);
    crashed.disk.fail(FaultRule { file, operation, after: 3, error, times: u64::MAX });
    let text = crashed.try_start(|config| config.memory_budget_bytes = 3 << 20).err().unwrap();
    assert!(text.contains("evicted blocks cannot be written: No space left on device"), "{text}");
    crashed.disk.heal();
    crashed.disk.kill();
    crashed.disk.restart();
    crashed.start();
}
