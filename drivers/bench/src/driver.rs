//! A partition in this process, driven by one thread as a server's thread does it: a batch of requests, a poll, and so on.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anticache_engine::config::{Config, Log};
use anticache_engine::durability::recovery::{Opened, Site, read_schema};
use anticache_engine::durability::snapshot::Verdict;
use anticache_engine::durability::snapshot::keeper::Keeper;
use anticache_engine::io::files::{Files, KernelFiles};
use anticache_engine::net::frame::{RequestHead, parse_requests};
use anticache_engine::partition::{Partition, ReplySink};
use anticache_engine::procedure::ProcedureSet;
use anticache_engine::storage::region::{lines_of, prefetch};
use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::counters::{Counters, Counts};
use crate::harness::{Replies, Report, thread_cpu_s};

/// Turns between two looks at the clock.
const TURNS: usize = 16;
/// Loading calls under way.
const LOADING: usize = 64;

/// A sleeping partition also has timers.
const LONGEST_SLEEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000 };

/// Where replies go.
pub trait Sink: ReplySink + Default {
    /// The replies themselves.
    fn replies(&mut self) -> &mut Replies;

    /// Nothing could be begun in a turn, and nothing ended in it.
    fn idle(&mut self) {}

    /// What happened since the last transaction was not the executor's doing.
    fn excuse(&mut self) {}
}

impl Sink for Replies {
    fn replies(&mut self) -> &mut Replies {
        self
    }
}

/// Requests on the wire, gone through in order.
pub struct Requests {
    wire: Vec<u8>,
    at: usize,
}

impl Requests {
    pub fn new(wire: Vec<u8>) -> Self {
        Self { wire, at: 0 }
    }

    /// Whether all have been begun.
    pub fn is_over(&self) -> bool {
        self.at == self.wire.len()
    }

    /// Takes the next so many out, to be gone through by themselves; all that are left when there are not so many.
    ///
    /// # Errors
    /// When these are no requests.
    pub fn take(&mut self, count: usize) -> anyhow::Result<Self> {
        let from = self.at;
        self.at += parse_requests(&self.wire[from..], count, &mut Vec::new())?;
        Ok(Self::new(self.wire[from..self.at].to_vec()))
    }

    /// Others in their place, written into the same memory.
    pub fn renew(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.wire);
        self.at = 0;
    }

    /// What a receive would have left in the processor's cache.
    fn bring_near(&self, bytes: Range<usize>) {
        let bytes = &self.wire[bytes.start..bytes.end.min(self.wire.len())];
        lines_of(bytes).for_each(prefetch);
    }

    /// Finds the next ones, from the beginning again when there are no more; returns what they lie in.
    fn next(&mut self, most: usize, heads: &mut Vec<RequestHead>) -> anyhow::Result<&[u8]> {
        if self.is_over() {
            self.at = 0;
        }
        let from = self.at;
        heads.clear();
        self.at += parse_requests(&self.wire[from..], most, heads)?;
        self.bring_near(self.at..self.at + (self.at - from) * 5 / 4);
        Ok(&self.wire[from..])
    }
}

/// How much is under way, and in which pieces it is begun.
#[derive(Clone, Copy)]
pub struct Pace {
    /// Transactions that were begun and have not ended, at most.
    pub outstanding: usize,
    /// Requests that come at once, at most.
    pub batch: usize,
}

/// What was done in a time.
#[derive(Clone, Copy, Default)]
pub struct Done {
    pub transactions: usize,
    pub seconds: f64,
    /// CPU time of the thread: what others did meanwhile on its CPU is not in it.
    pub cpu_s: f64,
    /// Of this, time in which everything under way waited for the disk.
    pub idle_s: f64,
    /// What the processor counted of the thread.
    pub counts: Counts,
}

impl Done {
    pub fn per_s(&self) -> f64 {
        self.transactions as f64 / self.seconds
    }

    /// Microseconds of CPU time for each transaction, without what was spent on waiting for the disk.
    pub fn busy_us(&self) -> f64 {
        (self.cpu_s - self.idle_s) * 1e6 / self.transactions as f64
    }

    pub fn add(&mut self, other: Self) {
        self.transactions += other.transactions;
        self.seconds += other.seconds;
        self.cpu_s += other.cpu_s;
        self.idle_s += other.idle_s;
        self.counts.add(other.counts);
    }

    /// Adds to the report what the processor counted, for each transaction.
    pub fn show_counts(&self, name: &str, settings: &str, report: &mut Report) {
        for (what, count) in self.counts.named() {
            report.add(&format!("{name}: {what}"), count / self.transactions as f64, "/txn", None, settings);
        }
    }
}

/// The partition, its data directory's keeper, and what is under way.
pub struct Driver<S = Replies> {
    pub partition: Partition,
    pub sink: S,
    /// Takes one snapshot after the other.
    pub snapshots_follow: bool,
    /// Snapshots that were taken, and the seconds from their beginnings to their ends.
    pub snapshots: u64,
    pub snapshots_s: f64,
    keeper: Keeper,
    counters: Counters,
    snapshot_began: Option<Instant>,
    /// With a log, writers' replies come later than they commit; without, counting replies is time that no server spends.
    counts_replies: bool,
    heads: Vec<RequestHead>,
    begun: u64,
    ended: u64,
}

impl<S: Sink> Driver<S> {
    /// The database of a configuration's data directory, recovered or new.
    ///
    /// # Errors
    /// What the engine says.
    pub fn open(config: &Config) -> anyhow::Result<Self> {
        config.check()?;
        let files: Arc<dyn Files> = Arc::new(KernelFiles::new());
        let (schema, catalog) = read_schema(&config.schema)?;
        let procedures = ProcedureSet::for_catalog(&catalog)?;
        let site = Site { files: &files, config, catalog: &catalog, schema: &schema, procedures: &procedures };
        let Opened { keeper, mut partitions, .. } = site.open()?;
        Ok(Self {
            partition: partitions.remove(0),
            sink: S::default(),
            snapshots_follow: false,
            snapshots: 0,
            snapshots_s: 0.0,
            keeper,
            counters: Counters::of_this_thread(),
            snapshot_began: None,
            counts_replies: config.log == Log::Sync,
            heads: Vec::new(),
            begun: 0,
            ended: 0,
        })
    }

    fn under_way(&self) -> usize {
        (self.begun - self.ended) as usize
    }

    /// Lets the partition do what lies between transactions; returns how many have ended since the last call.
    fn poll(&mut self) -> anyhow::Result<usize> {
        if self.snapshots_follow {
            self.begin_snapshot()?;
        }
        self.partition.poll(&mut self.sink);
        if self.snapshot_began.is_some() {
            self.end_snapshot()?;
        }
        let before = self.ended;
        if self.counts_replies {
            self.ended += self.sink.replies().take() as u64;
        } else {
            let replies = self.sink.replies();
            std::hint::black_box(&replies.0);
            let counters = self.partition.counters();
            if counters.failed > 0 {
                // It says why.
                replies.take();
            }
            replies.0.clear();
            anyhow::ensure!(counters.failed == 0, "transactions have failed: {counters:?}");
            self.ended = counters.committed + counters.aborted;
        }
        Ok((self.ended - before) as usize)
    }

    /// Begins a snapshot, if none is under way.
    ///
    /// # Errors
    /// What the keeper says.
    pub fn begin_snapshot(&mut self) -> anyhow::Result<()> {
        if self.keeper.is_busy() {
            return Ok(());
        }
        self.snapshot_began = Some(Instant::now());
        let mut begun = self.keeper.begin()?;
        // In a server the keeper has a thread of its own.
        self.sink.excuse();
        self.partition.begin_snapshot(begun.generation, begun.files.remove(0));
        Ok(())
    }

    fn end_snapshot(&mut self) -> anyhow::Result<()> {
        let Some(ended) = self.partition.snapshot_ended() else { return Ok(()) };
        let outcome = self.keeper.part_ended(0, ended).context("a snapshot that was not begun has ended")?;
        self.sink.excuse();
        anyhow::ensure!(outcome.verdict == Verdict::Durable, "a snapshot is not durable: {:?}", outcome.problem);
        self.partition.end_snapshot(outcome.generation, outcome.verdict);
        self.snapshots += 1;
        self.snapshots_s += self.snapshot_began.take().map_or(0.0, |began| began.elapsed().as_secs_f64());
        Ok(())
    }

    /// Runs calls of procedures and waits for them and for everything else that is under way.
    ///
    /// # Errors
    /// When one has failed.
    pub fn call(&mut self, calls: impl IntoIterator<Item = (u16, Vec<u8>)>) -> anyhow::Result<()> {
        for (procedure, params) in calls {
            let head = RequestHead { token: 0, procedure, start: 0, end: params.len() };
            self.begun += 1;
            self.partition.execute_batch(0, 0, &params, &[head], &mut self.sink);
            self.poll()?;
            while self.under_way() >= LOADING {
                self.poll()?;
            }
        }
        self.settle()
    }

    /// Waits until everything is done and durable.
    ///
    /// # Errors
    /// When a transaction has failed.
    pub fn settle(&mut self) -> anyhow::Result<()> {
        let follow = std::mem::take(&mut self.snapshots_follow);
        while self.keeper.is_busy() || self.under_way() > 0 || !self.partition.is_idle() {
            self.poll()?;
        }
        self.snapshots_follow = follow;
        Ok(())
    }

    /// One batch, as far as the pace allows it, and a poll; how many were begun and have ended.
    fn turn(&mut self, requests: &mut Requests, pace: Pace) -> anyhow::Result<(usize, usize)> {
        let most = pace.outstanding.saturating_sub(self.under_way()).min(pace.batch);
        if most > 0 {
            let input = requests.next(most, &mut self.heads)?;
            self.begun += self.heads.len() as u64;
            self.partition.execute_batch(0, 0, input, &self.heads, &mut self.sink);
        }
        let begun = if most > 0 { self.heads.len() } else { 0 };
        Ok((begun, self.poll()?))
    }

    /// Goes through requests for so long, from the beginning again when there are no more. What is under way in the end goes on with the next call, or
    /// with [`Driver::settle`].
    ///
    /// # Errors
    /// When a transaction has failed.
    pub fn run(&mut self, requests: &mut Requests, pace: Pace, duration: Duration) -> anyhow::Result<Done> {
        let (started, mut spent) = (Instant::now(), Spent::begin(self.counters.read()));
        while started.elapsed() < duration {
            for _ in 0..TURNS {
                self.counted_turn(requests, pace, &mut spent)?;
            }
        }
        Ok(spent.end(started, self.counters.read()))
    }

    /// Begins each of the requests once, or those for which there is time; the next call goes on behind them.
    ///
    /// # Errors
    /// When a transaction has failed.
    pub fn run_once(&mut self, requests: &mut Requests, pace: Pace, limit: Duration) -> anyhow::Result<Done> {
        let (started, mut spent) = (Instant::now(), Spent::begin(self.counters.read()));
        while !requests.is_over() && started.elapsed() < limit {
            for _ in 0..TURNS {
                self.counted_turn(requests, pace, &mut spent)?;
                if requests.is_over() {
                    break;
                }
            }
        }
        Ok(spent.end(started, self.counters.read()))
    }

    /// Sleeps until something comes from the disk, if anything shall, as a server's event loop does. One that asks again and again instead was not
    /// seen to gain anything (`anticache-engine/BENCHMARKS.md`).
    fn wait_for_disk(&mut self) {
        let ring = self.partition.ring();
        if ring.in_flight() == 0 {
            return;
        }
        let event = ring.event();
        let mut waited_for = [PollFd::new(&event, PollFlags::IN)];
        // Whatever it returns, the next turn looks at everything.
        let _ = poll(&mut waited_for, Some(&LONGEST_SLEEP));
        ring.clear_event();
        self.sink.excuse();
    }

    #[inline]
    fn counted_turn(&mut self, requests: &mut Requests, pace: Pace, spent: &mut Spent) -> anyhow::Result<()> {
        let (begun, ended) = self.turn(requests, pace)?;
        spent.done.transactions += ended;
        if begun == 0 && ended == 0 {
            spent.idle_since_s.get_or_insert_with(thread_cpu_s);
            self.sink.idle();
            self.wait_for_disk();
        } else {
            spent.is_busy();
        }
        Ok(())
    }
}

/// Keeps account of what is done; CPU times in seconds.
struct Spent {
    done: Done,
    began_s: f64,
    began: Counts,
    idle_since_s: Option<f64>,
}

impl Spent {
    fn begin(began: Counts) -> Self {
        Self { done: Done::default(), began_s: thread_cpu_s(), began, idle_since_s: None }
    }

    #[inline]
    fn is_busy(&mut self) {
        if let Some(since_s) = self.idle_since_s.take() {
            self.done.idle_s += thread_cpu_s() - since_s;
        }
    }

    fn end(mut self, started: Instant, ended: Counts) -> Done {
        self.is_busy();
        self.done.counts = ended.since(self.began);
        self.done.cpu_s = thread_cpu_s() - self.began_s;
        self.done.seconds = started.elapsed().as_secs_f64();
        self.done
    }
}

/// Makes a directory for a database of this name.
pub fn directory(parent: &Path, name: &str) -> anyhow::Result<std::path::PathBuf> {
    let directory = parent.join(name.replace([' ', ',', '%', '/'], "-"));
    std::fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    Ok(directory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::ycsb;

    #[test]
    fn requests_begin_again_at_the_end() {
        let mut requests = Requests::new(ycsb::wire(&ycsb::draw(100, 1.0, 5).unwrap()));
        let mut heads = Vec::new();
        let mut tokens = Vec::new();
        for _ in 0..4 {
            requests.next(2, &mut heads).unwrap();
            tokens.push(heads.iter().map(|head| head.token).collect::<Vec<_>>());
        }
        assert_eq!(tokens, [vec![0, 1], vec![2, 3], vec![4], vec![0, 1]]);
        let mut taken = requests.take(2).unwrap();
        taken.next(5, &mut heads).unwrap();
        assert_eq!(heads.iter().map(|head| head.token).collect::<Vec<_>>(), [2, 3]);
        assert!(taken.is_over() && !requests.is_over());
    }

    #[test]
    fn every_request_ends_with_and_without_a_log() {
        for log in [Log::Off, Log::Sync] {
            let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
            let config = Config {
                log,
                ..Config::new(crate::harness::schema("ycsb.sql"), directory.path().to_owned(), 64 << 20)
            };
            let mut driver = Driver::<Replies>::open(&config).unwrap();
            driver.call(ycsb::load_calls(1000, 100).map(|params| (ycsb::LOAD, params))).unwrap();
            let mut requests = Requests::new(ycsb::wire(&ycsb::draw(1000, 0.5, 500).unwrap()));
            let pace = Pace { outstanding: 32, batch: 8 };
            let done = driver.run_once(&mut requests, pace, Duration::MAX).unwrap();
            driver.settle().unwrap();
            assert!(done.transactions <= 500 && done.transactions + 32 >= 500, "{}", done.transactions);
            assert_eq!((driver.under_way(), driver.partition.counters().committed), (0, 510));
        }
    }
}
