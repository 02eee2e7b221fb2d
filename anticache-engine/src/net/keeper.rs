//! The thread that keeps the data directory: it begins snapshots when it is time, and everything about them that may wait for the disk and does not
//! belong to one partition is done here. Partitions and keeper talk through queues; a partition is woken by its event.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use super::frame::{Status, write_reply};
use super::server::wake;
use crate::config::{Config, Log};
use crate::durability::snapshot::keeper::{Begun, Keeper, Outcome};
use crate::durability::snapshot::{Ended, Verdict};
use crate::partition::multi::Coordinator;
use crate::partition::{Origin, Partition, ReplySink};

/// How long after a snapshot that could not be begun it is tried again, when none is taken by time.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// What the keeper is told.
#[derive(Debug)]
pub(super) enum Message {
    /// A snapshot that begins from now on is wanted; a client at this partition waits for it.
    Wanted(u32, Origin),
    /// A partition has written so much log that a snapshot is due.
    Due,
    /// A partition has ended its part.
    Ended(u32, Ended),
    /// The server ends.
    Stop,
}

/// What a partition is told.
#[derive(Debug)]
pub(super) enum Order {
    End(u64, Verdict),
    /// The snapshot for which a client waits is durable, with this generation, or why not.
    Answer(Origin, Result<u64, String>),
}

/// A partition's way to be told.
pub(super) struct Teller {
    pub(super) orders: Sender<Order>,
    pub(super) wake: Arc<OwnedFd>,
}

impl Teller {
    fn tell(&self, order: Order) {
        // A partition that has ended needs no orders.
        let _ = self.orders.send(order);
        wake(&self.wake);
    }
}

/// The keeper's thread.
pub(super) struct KeeperThread {
    keeper: Keeper,
    site: Arc<Coordinator>,
    inbox: Receiver<Message>,
    partitions: Vec<Teller>,
    /// What became of the snapshot before.
    last: Option<(u64, Verdict)>,
    interval: Option<Duration>,
    next_at: Option<Instant>,
    /// Clients that wait for the snapshot under way, and those that came later and wait for the next one.
    waiting: Vec<(u32, Origin)>,
    waiting_next: Vec<(u32, Origin)>,
    /// What was reported last, so that the same is not reported at every interval.
    reported: Option<String>,
}

impl KeeperThread {
    pub(super) fn new(
        keeper: Keeper,
        site: &Arc<Coordinator>,
        inbox: Receiver<Message>,
        partitions: Vec<Teller>,
        config: &Config,
    ) -> Self {
        let automatic = config.log == Log::Sync && config.snapshot_interval_s > 0;
        let interval = automatic.then(|| Duration::from_secs(config.snapshot_interval_s));
        let next_at = interval.map(|interval| Instant::now() + interval);
        let (waiting, waiting_next) = (Vec::new(), Vec::new());
        let (site, last) = (Arc::clone(site), None);
        Self { keeper, site, inbox, partitions, last, interval, next_at, waiting, waiting_next, reported: None }
    }

    pub(super) fn run(mut self) {
        loop {
            let message = match self.next_at.filter(|_| !self.keeper.is_busy()) {
                Some(at) => self.inbox.recv_timeout(at.saturating_duration_since(Instant::now())),
                None => self.inbox.recv().map_err(RecvTimeoutError::from),
            };
            match message {
                Ok(Message::Wanted(partition, origin)) => {
                    self.waiting_next.push((partition, origin));
                    self.begin();
                }
                Ok(Message::Due) | Err(RecvTimeoutError::Timeout) => self.begin(),
                Ok(Message::Ended(partition, ended)) => self.part_ended(partition, ended),
                Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Begins a snapshot unless one is under way.
    fn begin(&mut self) {
        if self.keeper.is_busy() {
            return;
        }
        self.next_at = self.interval.map(|interval| Instant::now() + interval);
        self.waiting = std::mem::take(&mut self.waiting_next);
        match self.keeper.begin() {
            // At one point of the order of multi-partition transactions: a snapshot has each of them at all its participants, or at none.
            Ok(Begun { generation, files }) => {
                let last = self.last;
                self.site.barrier(move |partition| {
                    // The barrier may come before the order that says so.
                    if let Some((generation, verdict)) = last {
                        partition.end_snapshot(generation, verdict);
                    }
                    partition.begin_snapshot(generation, Arc::clone(&files[partition.id() as usize]));
                });
            }
            Err(error) => {
                self.next_at = Some(Instant::now() + self.interval.unwrap_or(RETRY_INTERVAL));
                self.failed(&format!("no snapshot can be begun: {error}"));
            }
        }
    }

    fn part_ended(&mut self, partition: u32, ended: Ended) {
        let Some(Outcome { generation, verdict, problem }) = self.keeper.part_ended(partition, ended) else {
            return;
        };
        self.last = Some((generation, verdict));
        for teller in &self.partitions {
            teller.tell(Order::End(generation, verdict));
        }
        match problem {
            Some(problem) => self.failed(&format!("snapshot {generation} was given up: {problem}")),
            None => {
                self.reported = None;
                self.answer(&Ok(generation));
            }
        }
        if !self.waiting_next.is_empty() {
            self.begin();
        }
    }

    fn failed(&mut self, problem: &str) {
        // Without its number, the same cause reads the same.
        let cause = problem.trim_start_matches(|letter: char| letter != ':').to_owned();
        if self.reported.as_ref() != Some(&cause) {
            eprintln!(
                "anticached: {problem}; the last one that succeeded, {}, stays in force",
                self.keeper.generation()
            );
            self.reported = Some(cause);
        }
        self.answer(&Err(problem.to_owned()));
    }

    fn answer(&mut self, result: &Result<u64, String>) {
        for (partition, origin) in self.waiting.drain(..) {
            self.partitions[partition as usize].tell(Order::Answer(origin, result.clone()));
        }
    }
}

/// A partition's side.
pub(super) struct KeeperPort {
    keeper: Sender<Message>,
    orders: Receiver<Order>,
    /// Bytes of log with which a snapshot is due; 0 = never.
    due_log_bytes: u64,
    asked: bool,
    /// In the order in which they asked, which is that of the answers.
    waiting: VecDeque<Origin>,
}

impl KeeperPort {
    pub(super) fn new(keeper: Sender<Message>, orders: Receiver<Order>, due_log_bytes: u64) -> Self {
        Self { keeper, orders, due_log_bytes, asked: false, waiting: VecDeque::new() }
    }

    /// A client asks for a snapshot.
    pub(super) fn want(&mut self, partition: u32, origin: Origin) {
        self.waiting.push_back(origin);
        self.tell(Message::Wanted(partition, origin));
    }

    fn tell(&self, message: Message) {
        // The keeper ends with the server only.
        let _ = self.keeper.send(message);
    }

    /// Carries out what the keeper wants.
    pub(super) fn obey(&mut self, partition: &mut Partition, sink: &mut impl ReplySink) {
        while let Ok(order) = self.orders.try_recv() {
            match order {
                Order::End(generation, verdict) => {
                    self.asked = false;
                    partition.end_snapshot(generation, verdict);
                }
                Order::Answer(origin, result) => {
                    let answered = self.waiting.pop_front();
                    debug_assert_eq!(answered, Some(origin));
                    let (status, payload) = match result {
                        Ok(generation) => {
                            (Status::Committed, serde_json::json!({"generation": generation}).to_string())
                        }
                        Err(problem) => (Status::Failed, problem),
                    };
                    write_reply(sink.buffer(origin.connection, origin.epoch), origin.token, status, payload.as_bytes());
                }
            }
        }
    }

    /// Tells the keeper what it must know; once a turn.
    #[inline]
    pub(super) fn report(&mut self, partition: &mut Partition) {
        if let Some(ended) = partition.snapshot_ended() {
            self.tell(Message::Ended(partition.id(), ended));
        }
        if !self.asked && self.due_log_bytes > 0 && partition.log_bytes_since_snapshot() >= self.due_log_bytes {
            self.asked = true;
            self.tell(Message::Due);
        }
    }

    /// Whether a connection waits for a snapshot.
    pub(super) fn owes_replies(&self, connection: u32, epoch: u32) -> bool {
        self.waiting.iter().any(|origin| origin.connection == connection && origin.epoch == epoch)
    }
}
