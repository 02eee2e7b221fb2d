//! The thread that owns the drive: it brings the model up to the present, and replies when the model says so.

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use super::buffer::Buffer;
use super::disk::{Done, Shared};
use super::late::Kind;
use super::lock;
use super::overlay::Snapshot;
use super::platter::{Job, write_to_image};
use crate::model::{Drive, Event, PowerCut, Request, SECTOR_BYTES};

/// A reply that lags more is late, and counts as such.
const LONGEST_LAG_NS: u64 = 200_000;

/// A read: its data come from the thread that took the request, its due time from the arm. Whoever is last replies.
pub struct ReadSlot(Mutex<ReadState>);

enum ReadState {
    Open(Done),
    Supplied(Done, Result<Buffer, i32>),
    Due(Done, u64),
    Replied,
}

impl ReadSlot {
    /// A read that `done` answers.
    pub fn new(done: Done) -> Arc<Self> {
        Arc::new(Self(Mutex::new(ReadState::Open(done))))
    }

    /// The data are there.
    pub fn supply(&self, shared: &Shared, data: Result<Buffer, i32>) {
        let mut state = lock(&self.0);
        match std::mem::replace(&mut *state, ReadState::Replied) {
            ReadState::Open(done) => *state = ReadState::Supplied(done, data),
            ReadState::Due(done, due_ns) => reply_read(shared, done, &data, due_ns),
            other => *state = other,
        }
    }

    /// The model has ended the read.
    fn due(&self, shared: &Shared, due_ns: u64) {
        let mut state = lock(&self.0);
        match std::mem::replace(&mut *state, ReadState::Replied) {
            ReadState::Open(done) => *state = ReadState::Due(done, due_ns),
            ReadState::Supplied(done, data) => reply_read(shared, done, &data, due_ns),
            other => *state = other,
        }
    }

    fn fail(&self, errno: i32) {
        let state = std::mem::replace(&mut *lock(&self.0), ReadState::Replied);
        if let ReadState::Open(done) | ReadState::Supplied(done, _) | ReadState::Due(done, _) = state {
            done(Err(errno));
        }
    }
}

fn reply_read(shared: &Shared, done: Done, data: &Result<Buffer, i32>, due_ns: u64) {
    done(data.as_ref().map(|buffer| &buffer[..]).map_err(|errno| *errno));
    shared.replied(Kind::Read, due_ns);
}

/// What waits for the model.
pub enum Pending {
    /// A read.
    Read(Arc<ReadSlot>),
    /// A write whose data are in the overlay.
    CachedWrite(Done),
    /// A write past the cache: first sector and data.
    Write(Done, u64, Buffer),
    /// A flush.
    Flush(Done),
}

impl Pending {
    fn fail(self, errno: i32) {
        match self {
            Self::Read(slot) => slot.fail(errno),
            Self::CachedWrite(done) | Self::Write(done, ..) | Self::Flush(done) => done(Err(errno)),
        }
    }
}

type Question = Box<dyn FnOnce(&mut Arm) + Send>;

enum Message {
    Submit(u64, Request, Pending),
    Ask(Question),
    Stop,
}

/// Where other threads leave messages for the arm.
#[derive(Default)]
pub struct Inbox {
    messages: Mutex<VecDeque<Message>>,
    arrived: Condvar,
}

impl Inbox {
    /// Hands over a request that arrived at `arrival_ns`.
    pub fn submit(&self, arrival_ns: u64, request: Request, pending: Pending) {
        self.put(Message::Submit(arrival_ns, request, pending));
    }

    /// Runs `question` on the arm, after the requests handed over before, and returns its answer.
    pub fn ask<A: Send + 'static>(&self, question: impl FnOnce(&mut Arm) -> A + Send + 'static) -> anyhow::Result<A> {
        let (answer, answered) = mpsc::channel();
        self.put(Message::Ask(Box::new(move |arm| {
            let _ = answer.send(question(arm));
        })));
        answered.recv().map_err(|_| anyhow::anyhow!("the arm thread has ended"))
    }

    /// Ends the arm thread.
    pub fn stop(&self) {
        self.put(Message::Stop);
    }

    fn put(&self, message: Message) {
        lock(&self.messages).push_back(message);
        self.arrived.notify_one();
    }

    /// Takes what is there, or waits for it until the clock shows `until_ns`.
    fn take(&self, shared: &Shared, until_ns: Option<u64>) -> VecDeque<Message> {
        let mut messages = lock(&self.messages);
        while messages.is_empty() {
            let left_ns = until_ns.map(|until| until.saturating_sub(shared.now_ns()));
            messages = match left_ns {
                Some(0) => break,
                Some(left) => {
                    let waited = self.arrived.wait_timeout(messages, Duration::from_nanos(left));
                    waited.unwrap_or_else(std::sync::PoisonError::into_inner).0
                }
                None => self.arrived.wait(messages).unwrap_or_else(std::sync::PoisonError::into_inner),
            };
        }
        std::mem::take(&mut *messages)
    }
}

/// The arm thread's state.
pub struct Arm {
    shared: Arc<Shared>,
    platter: Sender<Job>,
    /// The model; none for a profile without one. Questions may look at it.
    pub drive: Option<Drive>,
    pending: HashMap<u64, Pending>,
    destages: VecDeque<Snapshot>,
    events: Vec<Event>,
    /// How far the model has been brought: its time never goes back.
    model_ns: u64,
    reply_lag_ns: u64,
}

impl Arm {
    /// The thread's body; ends on [`Inbox::stop`].
    pub fn run(shared: Arc<Shared>, platter: Sender<Job>, drive: Option<Drive>) {
        let (pending, destages, events) = (HashMap::new(), VecDeque::new(), Vec::new());
        let mut arm = Self { shared, platter, drive, pending, destages, events, model_ns: 0, reply_lag_ns: 0 };
        loop {
            let messages = arm.shared.inbox.take(&arm.shared, arm.drive.as_ref().and_then(Drive::next_event_ns));
            for message in messages {
                match message {
                    Message::Submit(arrival_ns, request, pending) => arm.submit(arrival_ns, request, pending),
                    Message::Ask(question) => question(&mut arm),
                    Message::Stop => return,
                }
            }
            arm.catch_up(arm.shared.now_ns());
        }
    }

    /// Hands a request to the drive. It has been on its way through the kernel and back before it came here; that is not the
    /// drive's time, so it counts from when it was sent, but from no time that the model has passed.
    fn submit(&mut self, arrival_ns: u64, request: Request, pending: Pending) {
        let sent_ns = arrival_ns.saturating_sub(self.shared.path_ns() + self.reply_lag_ns);
        self.catch_up(sent_ns);
        self.advance(sent_ns);
        // Without a model the mode is bypass, which submits nothing.
        let Some(drive) = &mut self.drive else { return pending.fail(libc::EIO) };
        self.pending.insert(request.id, pending);
        drive.submit(self.model_ns, request);
    }

    /// Lets happen what is due, and no time pass beyond: a request that was sent before now may still come.
    fn catch_up(&mut self, now_ns: u64) {
        while let Some(at_ns) = self.drive.as_ref().and_then(Drive::next_event_ns).filter(|at_ns| *at_ns <= now_ns) {
            self.advance(at_ns);
        }
    }

    fn advance(&mut self, until_ns: u64) {
        self.model_ns = self.model_ns.max(until_ns);
        let Some(drive) = &mut self.drive else { return };
        let mut events = std::mem::take(&mut self.events);
        drive.advance(self.model_ns, &mut events);
        events.drain(..).for_each(|event| self.happened(event));
        self.events = events;
    }

    fn happened(&mut self, event: Event) {
        match event {
            Event::Completed { id, at_ns } => self.complete(id, at_ns),
            Event::DestageBegan { first_sector, sectors, .. } => {
                self.destages.push_back(lock(&self.shared.overlay).snapshot(first_sector, sectors));
            }
            Event::DestageEnded { first_sector, sectors, .. } => match self.destages.pop_front() {
                Some(snapshot)
                    if (snapshot.first_sector, snapshot.versions.len()) == (first_sector, sectors as usize) =>
                {
                    self.write(Job::Destage(snapshot));
                }
                other => {
                    let began = other.map(|s| (s.first_sector, s.versions.len()));
                    self.shared.warn(format!(
                        "the model ended a destage of {sectors} sectors at {first_sector}, but began {began:?}"
                    ));
                }
            },
        }
    }

    fn complete(&mut self, id: u64, due_ns: u64) {
        // This thread's own lag, as a moving average: late timers, in a virtual machine above all.
        let lag_ns = self.shared.now_ns().saturating_sub(due_ns).min(LONGEST_LAG_NS);
        self.reply_lag_ns = (15 * self.reply_lag_ns + lag_ns) / 16;
        match self.pending.remove(&id) {
            Some(Pending::Read(slot)) => slot.due(&self.shared, due_ns),
            Some(Pending::CachedWrite(done)) => {
                done(Ok(&[]));
                self.shared.replied(Kind::Write, due_ns);
            }
            Some(Pending::Write(done, first_sector, data)) => {
                self.write(Job::Write { offset: first_sector * SECTOR_BYTES, data, done, due_ns });
            }
            Some(Pending::Flush(done)) => self.write(Job::Flush { done, due_ns }),
            None => self.shared.warn(format!("the model completed request {id}, which does not wait")),
        }
    }

    fn write(&self, job: Job) {
        if self.platter.send(job).is_err() {
            self.shared.warn("the thread that writes the image has ended".to_owned());
        }
    }

    /// Brings everything to an end at once: every reply is sent, every cached sector is with the platter thread. Returns a
    /// channel on which that thread tells how many destages the host refused.
    pub fn drain(&mut self) -> mpsc::Receiver<usize> {
        self.advance(self.shared.now_ns());
        let mut events = Vec::new();
        if let Some(drive) = &mut self.drive {
            drive.drain(self.model_ns, &mut events);
        }
        events.into_iter().for_each(|event| self.happened(event));
        if !self.pending.is_empty() || !self.destages.is_empty() {
            let (requests, destages) = (self.pending.len(), self.destages.len());
            self.shared.warn(format!("draining left {requests} requests and {destages} destages open"));
        }
        let (reply, replied) = mpsc::channel();
        self.write(Job::Barrier(reply));
        replied
    }

    /// Cuts the power: everything under way fails, and of the operation that the cut interrupted the sectors stay that had
    /// reached the platters. The caller drops the overlay.
    pub fn cut_power(&mut self) -> PowerCut {
        self.advance(self.shared.now_ns());
        let cut = self.drive.as_mut().map(|drive| drive.cut_power(self.model_ns)).unwrap_or_default();
        // What ended before the cut is written first. Waiting is right here: without power nothing is due.
        let (reply, replied) = mpsc::channel();
        self.write(Job::Barrier(reply));
        if replied.recv().is_ok_and(|refused| refused > 0) {
            self.shared
                .warn("sectors that had reached the platters were lost: the host refused to write them".to_owned());
        }
        if let Some((first_sector, sectors)) = cut.interrupted
            && let Err(error) = self.write_interrupted(first_sector, sectors)
        {
            self.shared.warn(format!("the interrupted write could not be written: {error}"));
        }
        self.destages.clear();
        for (_, pending) in self.pending.drain() {
            pending.fail(libc::EIO);
            self.shared.failed();
        }
        cut
    }

    /// Puts a new drive in the place of the one whose power was cut.
    pub fn replace_drive(&mut self, mut drive: Option<Drive>) {
        self.model_ns = self.model_ns.max(self.shared.now_ns());
        if let Some(drive) = &mut drive {
            // It begins now, not when the daemon did.
            drive.advance(self.model_ns, &mut Vec::new());
            drive.reset_counters();
        }
        self.drive = drive;
    }

    fn write_interrupted(&mut self, first_sector: u64, sectors: u32) -> std::io::Result<()> {
        if let Some(snapshot) = self.destages.pop_front().filter(|s| s.first_sector == first_sector) {
            return write_to_image(&self.shared, &snapshot.truncated(sectors));
        }
        let reached_bytes = sectors as usize * SECTOR_BYTES as usize;
        let interrupted = self.pending.values().find_map(|pending| match pending {
            Pending::Write(_, first, data) if *first == first_sector => data.get(..reached_bytes),
            _ => None,
        });
        interrupted.map_or(Ok(()), |data| self.shared.image.write(data, first_sector * SECTOR_BYTES))
    }
}
