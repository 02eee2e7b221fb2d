//! The event loop in each partition's thread: wait for sockets and disk, read and run what arrived, let the partition poll its disk work, send what
//! became ready.
//!
//! It also takes part in the transactions on several partitions ([`crate::partition::multi`]): it looks for them between slices of requests, and is woken
//! for them.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use rustix::event::epoll;

use super::acceptor::Accepted;
use super::admin;
use super::frame::{
    BadLength, FIRST_ADMIN_PROCEDURE, RequestHead, SETTINGS_PROCEDURE, SNAPSHOT_PROCEDURE, STATS_PROCEDURE, Status,
    parse_requests, write_reply,
};
use super::keeper::KeeperPort;
use crate::config::Config;
use crate::io::files::DirectoryLock;
use crate::partition::multi::Coordinator;
use crate::partition::{Origin, Partition, ReplySink};
use crate::stats::SystemCalls;

/// Requests that are run before replies are sent and disk work is looked at.
const MAX_BATCH: usize = 512;
/// Requests that are run before it is looked whether other partitions wait for this one.
const MAX_SLICE: usize = 16;
/// Transactions on several partitions that are waited for before sockets and disk are looked at again.
const MAX_MEETINGS: usize = 16;
/// A connection with more unsent replies than this is not read from until they are gone.
const MAX_UNSENT_BYTES: usize = 32 << 20;
/// Memory that a connection without unsent replies keeps for the next ones.
const KEPT_OUTLET_BYTES: usize = 1 << 20;
const READ_BUFFER_BYTES: usize = 256 << 10;
/// How often a connection that is being closed is read from to throw away what came.
const MAX_DISCARDING_READS: usize = 16;
/// How often a stopping server looks whether everything is done.
const DRAIN_INTERVAL: Duration = Duration::from_millis(1);
/// How long a stopping server waits for transactions under way.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

const WAKE: u64 = u64::MAX;
const DISK: u64 = u64::MAX - 1;
const OTHERS: u64 = u64::MAX - 2;

/// What becomes of bytes that arrive; never an earlier one again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Intake {
    /// They are requests.
    Requests,
    /// They follow something malformed and are thrown away until the client ends its side: closing the socket while some are on their way would make
    /// the kernel reset the connection, and the client lose replies that it has not read.
    Discarded,
    /// The client has ended its side. What it asked before is still answered.
    Ended,
}

/// Incoming side of a connection.
struct Inlet {
    stream: TcpStream,
    buffer: Vec<u8>,
    filled: usize,
    intake: Intake,
    /// Whether the client was told that no more replies come.
    is_told: bool,
    /// Whole requests wait in the buffer until the client has read what was answered before, or the other connections have had their turn.
    paused: bool,
    /// What the event loop waits for at this socket.
    interest: epoll::EventFlags,
    _seat: Arc<()>,
}

/// Outgoing side of a connection.
#[derive(Default)]
struct Outlet {
    frames: Vec<u8>,
    epoch: u32,
}

/// The outgoing sides; apart from the inlets, because a batch is read from the one while it writes to the other.
#[derive(Default)]
struct Outlets {
    outlets: Vec<Outlet>,
    discarded: Vec<u8>,
}

impl Outlets {
    fn is_empty(&self) -> bool {
        self.outlets.iter().all(|outlet| outlet.frames.is_empty())
    }
}

impl ReplySink for Outlets {
    #[inline]
    fn buffer(&mut self, connection: u32, epoch: u32) -> &mut Vec<u8> {
        match self.outlets.get_mut(connection as usize) {
            Some(outlet) if outlet.epoch == epoch => &mut outlet.frames,
            _ => {
                self.discarded.clear();
                &mut self.discarded
            }
        }
    }
}

/// What a server says about its configuration.
fn settings(config: &Config) -> serde_json::Value {
    let mut settings = serde_json::to_value(config).unwrap_or_default();
    if let Some(object) = settings.as_object_mut() {
        object.insert("alpha".into(), config.alpha().into());
        object.insert("buffers_per_partition".into(), config.buffers_per_partition().into());
        object.insert("blocks_per_eviction".into(), config.blocks_per_eviction().into());
        object.insert("version".into(), env!("CARGO_PKG_VERSION").into());
        object.insert("debug_build".into(), cfg!(debug_assertions).into());
    }
    settings
}

/// What all event loops have in common.
#[derive(Clone)]
pub(super) struct Common {
    pub(super) stopping: Arc<AtomicBool>,
    /// As it is now: some settings may change.
    pub(super) config: Config,
    /// Held by each until it has ended: the keeper ends before the partitions have written everything.
    pub(super) _lock: Arc<DirectoryLock>,
}

/// Of one partition.
pub(super) struct EventLoop {
    id: u32,
    /// None when it was lost in a meeting, because the thread that had it died.
    partition: Option<Box<Partition>>,
    site: Arc<Coordinator>,
    keeper: KeeperPort,
    incoming: Receiver<Accepted>,
    wake: Arc<OwnedFd>,
    /// The event of the partition's ring, for when the partition is lent.
    disk: OwnedFd,
    common: Common,
    /// Refused connections of the whole server, reported by one partition, because the client adds the partitions' counters up.
    refused: Option<Arc<AtomicU64>>,
    epoll: OwnedFd,
    inlets: Vec<Option<Inlet>>,
    outlets: Outlets,
    requests: Vec<RequestHead>,
    /// For how long is looked for events before the thread sleeps.
    idle_poll: Duration,
    /// An inlet waits only until the others have had their turn.
    again: bool,
    calls: SystemCalls,
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        // In a panic too: others must not wait for this partition.
        self.site.leave(self.id);
    }
}

impl EventLoop {
    pub(super) fn new(
        partition: Partition,
        site: &Arc<Coordinator>,
        keeper: KeeperPort,
        incoming: Receiver<Accepted>,
        wake: Arc<OwnedFd>,
        common: Common,
        refused: Option<Arc<AtomicU64>>,
    ) -> io::Result<Self> {
        let (id, disk) = (partition.id(), partition.ring().event().try_clone_to_owned()?);
        let idle_poll = Duration::from_micros(common.config.idle_poll_us);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &*wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        epoll::add(&epoll, &disk, epoll::EventData::new_u64(DISK), epoll::EventFlags::IN)?;
        epoll::add(&epoll, site.event(id), epoll::EventData::new_u64(OTHERS), epoll::EventFlags::IN)?;
        Ok(Self {
            id,
            partition: Some(Box::new(partition)),
            site: Arc::clone(site),
            keeper,
            incoming,
            wake,
            disk,
            common,
            refused,
            epoll,
            inlets: Vec::new(),
            outlets: Outlets::default(),
            requests: Vec::with_capacity(MAX_BATCH),
            idle_poll,
            again: false,
            calls: SystemCalls::default(),
        })
    }

    pub(super) fn run(mut self) {
        let mut events = Vec::with_capacity(64);
        while !self.common.stopping.load(Ordering::Relaxed) {
            if let Err(error) = self.turn(&mut events, true) {
                eprintln!("anticached: partition {}: event loop: {error}", self.id);
                return;
            }
        }
        self.site.close();
        let deadline = Instant::now() + DRAIN_TIMEOUT;
        while !self.is_drained() && Instant::now() < deadline {
            if self.turn(&mut events, false).is_err() {
                return;
            }
        }
        (0..self.inlets.len()).for_each(|number| self.close(number));
    }

    /// Whether everything asked here is answered, and no partition needs this one any more.
    fn is_drained(&self) -> bool {
        let is_idle = self.partition.as_ref().is_none_or(|partition| partition.is_idle());
        is_idle && self.outlets.is_empty() && self.site.is_quiet()
    }

    /// One turn of the loop; `read` = also take new requests.
    fn turn(&mut self, events: &mut Vec<epoll::Event>, read: bool) -> io::Result<()> {
        let lost = || io::Error::other("the partition was lost with the thread of another one");
        let poll_after = self.partition.as_ref().ok_or_else(lost)?.poll_after();
        let timeout = poll_after.or((!read).then_some(DRAIN_INTERVAL));
        let timeout = if std::mem::take(&mut self.again) { Some(Duration::ZERO) } else { timeout };
        self.wait(events, timeout)?;
        for event in events.iter() {
            // Each of these three is one to reset.
            self.calls.system_calls_event += u64::from(event.data.u64() >= OTHERS);
            match event.data.u64() {
                WAKE => {
                    self.take_connections()?;
                    if let Some(partition) = &mut self.partition {
                        self.keeper.obey(partition, &mut self.outlets);
                    }
                }
                DISK => self.partition.iter().for_each(|partition| partition.ring().clear_event()),
                OTHERS => self.site.clear_event(self.id),
                connection if read => {
                    let flags = event.flags;
                    let broken = flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
                    self.serve(connection as usize, broken);
                }
                _ => {}
            }
        }
        self.meet_others();
        self.poll();
        self.send_all();
        Ok(())
    }

    /// Waits for events, or for a transaction on several partitions that is due, at most for `timeout`.
    ///
    /// Before it sleeps it looks for them for a while: a thread that sleeps goes on some tens of microseconds after it was woken, in which it would have
    /// run a hundred transactions. Between two looks it offers the CPU to whoever else wants it.
    fn wait(&mut self, events: &mut Vec<epoll::Event>, timeout: Option<Duration>) -> io::Result<()> {
        events.clear();
        self.calls.system_calls_wait += 1;
        let looks_for = timeout.unwrap_or(Duration::MAX).min(self.idle_poll);
        let began = Instant::now();
        while began.elapsed() < looks_for {
            self.take_events(events, Some(Duration::ZERO))?;
            if !events.is_empty() || self.site.due(self.id).is_some() {
                return Ok(());
            }
            self.calls.system_calls_look += 2;
            std::thread::yield_now();
        }
        let may_sleep = self.site.may_sleep(self.id) && self.site.due(self.id).is_none();
        let left = timeout.map(|timeout| timeout.saturating_sub(began.elapsed()));
        let taken = self.take_events(events, if may_sleep { left } else { Some(Duration::ZERO) });
        self.site.awake(self.id);
        taken
    }

    fn take_events(&mut self, events: &mut Vec<epoll::Event>, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = timeout.map(|timeout| rustix::time::Timespec {
            tv_sec: timeout.as_secs().cast_signed(),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn poll(&mut self) {
        if let Some(partition) = &mut self.partition {
            partition.poll(&mut self.outlets);
            self.keeper.report(partition);
        }
    }

    /// Takes part in the transactions that other partitions wait with, and runs those that this one has submitted.
    fn meet_others(&mut self) {
        for _ in 0..MAX_MEETINGS {
            let Some(item) = self.site.due(self.id) else {
                return;
            };
            let Some(partition) = self.partition.take() else {
                return;
            };
            self.partition = self.site.meet(&item, partition, self.disk.as_fd(), &mut self.outlets);
        }
    }

    fn take_connections(&mut self) -> io::Result<()> {
        let mut counter = [0u8; 8];
        // Nothing to read means that the wake-up was taken before.
        let _ = rustix::io::read(&*self.wake, &mut counter);
        while let Ok(Accepted { stream, seat }) = self.incoming.try_recv() {
            let free = self.inlets.iter().position(Option::is_none);
            let number = free.unwrap_or_else(|| {
                self.inlets.push(None);
                self.outlets.outlets.push(Outlet::default());
                self.inlets.len() - 1
            });
            let interest = epoll::EventFlags::IN;
            if let Err(error) = epoll::add(&self.epoll, &stream, epoll::EventData::new_u64(number as u64), interest) {
                eprintln!("anticached: a connection is refused: {error}");
                continue;
            }
            let buffer = vec![0; READ_BUFFER_BYTES];
            let inlet = Inlet {
                stream,
                buffer,
                filled: 0,
                intake: Intake::Requests,
                is_told: false,
                paused: false,
                interest,
                _seat: seat,
            };
            self.inlets[number] = Some(inlet);
        }
        Ok(())
    }

    fn close(&mut self, number: usize) {
        if let Some(mut inlet) = self.inlets[number].take() {
            // Bytes that arrived and were not read would make the kernel reset the connection, and the client lose replies that it has not read.
            let _ = inlet.stream.shutdown(Shutdown::Write);
            for _ in 0..MAX_DISCARDING_READS {
                if !matches!(inlet.stream.read(&mut inlet.buffer), Ok(bytes) if bytes > 0) {
                    break;
                }
            }
            // Closing the socket takes it out of the epoll set.
        }
        let outlet = &mut self.outlets.outlets[number];
        outlet.epoch = outlet.epoch.wrapping_add(1);
        outlet.frames = Vec::new();
    }

    /// Reads what a socket has and runs it. `broken` = it cannot be written to any more.
    fn serve(&mut self, number: usize, broken: bool) {
        let Some(mut inlet) = self.inlets.get_mut(number).and_then(Option::take) else {
            return;
        };
        let reads = inlet.interest.contains(epoll::EventFlags::IN);
        // Nobody is there to answer, and that nothing is read for now would not end by itself: the kernel reports it again and again.
        let mut open = reads || !broken;
        if reads {
            self.calls.system_calls_receive += 1;
            match inlet.stream.read(&mut inlet.buffer[inlet.filled..]) {
                Ok(0) => inlet.intake = Intake::Ended,
                Ok(_) if inlet.intake == Intake::Discarded => {}
                Ok(bytes) => {
                    inlet.filled += bytes;
                    self.run_requests(number, &mut inlet);
                }
                Err(error) => open = matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
            }
        }
        self.inlets[number] = Some(inlet);
        if !open {
            self.close(number);
        }
    }

    /// Runs the whole requests of an inlet's buffer, unless too much waits to be sent or to be run. When one is malformed, nothing behind it can be
    /// understood. Behind a request to the partition itself, which may read from the disk, come the other connections first.
    fn run_requests(&mut self, number: usize, inlet: &mut Inlet) {
        let epoch = self.outlets.outlets[number].epoch;
        let mut start = 0;
        loop {
            inlet.paused = !self.takes_requests(number);
            if inlet.paused {
                break;
            }
            let mut requests = std::mem::take(&mut self.requests);
            requests.clear();
            let input = &inlet.buffer[start..inlet.filled];
            let (parsed, more) = parse_run(input, &mut requests);
            let (transactions, admin) = match requests.split_last() {
                Some((last, before)) if is_admin(last) => (before, Some(last)),
                _ => (requests.as_slice(), None),
            };
            self.execute(number as u32, epoch, input, transactions);
            if let Some(request) = admin {
                self.administer(number as u32, epoch, request, input);
            }
            let others_first = admin.is_some_and(|request| request.procedure != SNAPSHOT_PROCEDURE);
            self.requests = requests;
            match parsed {
                Ok(used) => start += used,
                Err(error) => {
                    eprintln!("anticached: connection {number} is closed: {error}");
                    inlet.filled = 0;
                    inlet.intake = inlet.intake.max(Intake::Discarded);
                    return;
                }
            }
            if !more {
                break;
            }
            if others_first {
                (inlet.paused, self.again) = (true, true);
                break;
            }
            self.poll();
        }
        inlet.buffer.copy_within(start..inlet.filled, 0);
        inlet.filled -= start;
        // A request longer than the buffer: its length was checked, so make room for the rest of it.
        if inlet.filled == inlet.buffer.len() {
            inlet.buffer.resize(2 * inlet.filled, 0);
        }
    }

    /// Whether a connection's replies are read, and not too many transactions wait.
    fn takes_requests(&self, number: usize) -> bool {
        let is_crowded = self.partition.as_deref().is_some_and(Partition::is_crowded);
        !is_crowded && self.outlets.outlets[number].frames.len() < MAX_UNSENT_BYTES
    }

    /// Goes on with the requests of an inlet that had to wait, when there is room for their replies.
    fn resume(&mut self, number: usize) {
        if !self.takes_requests(number) || self.common.stopping.load(Ordering::Relaxed) {
            return;
        }
        if let Some(mut inlet) = self.inlets[number].take_if(|inlet| inlet.paused) {
            self.run_requests(number, &mut inlet);
            self.inlets[number] = Some(inlet);
        }
    }

    fn execute(&mut self, connection: u32, epoch: u32, input: &[u8], requests: &[RequestHead]) {
        for slice in requests.chunks(MAX_SLICE) {
            if self.site.has_queued(self.id) {
                self.meet_others();
            }
            if let Some(partition) = &mut self.partition {
                partition.execute_batch(connection, epoch, input, slice, &mut self.outlets);
            }
        }
    }

    /// Answers a request to the partition itself, or has it answered later.
    fn administer(&mut self, connection: u32, epoch: u32, request: &RequestHead, input: &[u8]) {
        let (status, payload) = match (request.procedure, &mut self.partition) {
            (STATS_PROCEDURE, _) => (Status::Committed, self.stats().into_bytes()),
            (SETTINGS_PROCEDURE, Some(partition)) => match self.common.config.changed(request.params(input)) {
                Ok(config) => {
                    partition.change_settings(&config);
                    self.common.config = config;
                    (Status::Committed, Vec::new())
                }
                Err(problem) => (Status::Aborted, problem.into_bytes()),
            },
            (SNAPSHOT_PROCEDURE, _) => {
                let origin = Origin { connection, epoch, token: request.token };
                return self.keeper.want(self.id, origin);
            }
            (procedure, Some(partition)) => admin::answer(partition, procedure, request.params(input)),
            (_, None) => (Status::Failed, b"the partition was lost".to_vec()),
        };
        write_reply(self.outlets.buffer(connection, epoch), request.token, status, &payload);
    }

    fn stats(&self) -> String {
        let mut stats = self.partition.as_ref().map(|partition| partition.stats()).unwrap_or_default();
        let refused = self.refused.as_ref().map_or(0, |count| count.load(Ordering::Relaxed));
        stats.insert("refused_connections".to_owned(), refused.into());
        if let Ok(serde_json::Value::Object(calls)) = serde_json::to_value(self.calls) {
            stats.extend(calls);
        }
        stats.insert("settings".to_owned(), settings(&self.common.config));
        serde_json::Value::Object(stats).to_string()
    }

    /// Sends what is ready, as far as the sockets take it.
    fn send_all(&mut self) {
        for number in 0..self.inlets.len() {
            let mut open = self.send(number);
            self.resume(number);
            open &= self.is_needed(number) && self.watch(number).is_ok();
            if !open {
                self.close(number);
            }
        }
    }

    /// Sends to one socket; false when it takes nothing any more.
    fn send(&mut self, number: usize) -> bool {
        let (Some(inlet), outlet) = (&mut self.inlets[number], &mut self.outlets.outlets[number]) else {
            return true;
        };
        if outlet.frames.is_empty() {
            return true;
        }
        self.calls.system_calls_send += 1;
        match inlet.stream.write(&outlet.frames) {
            Ok(sent) => {
                outlet.frames.drain(..sent);
                if outlet.frames.is_empty() {
                    outlet.frames.shrink_to(KEPT_OUTLET_BYTES);
                }
                true
            }
            Err(error) => matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
        }
    }

    /// Whether a connection may send more, or waits for something that it has asked for.
    fn is_needed(&mut self, number: usize) -> bool {
        let (Some(inlet), outlet) = (&mut self.inlets[number], &self.outlets.outlets[number]) else {
            return true;
        };
        if inlet.intake == Intake::Requests || inlet.paused || !outlet.frames.is_empty() {
            return true;
        }
        let owes = |partition: &Partition| partition.owes_replies(number as u32, outlet.epoch);
        if self.partition.as_deref().is_some_and(owes) || self.keeper.owes_replies(number as u32, outlet.epoch) {
            return true;
        }
        if !std::mem::replace(&mut inlet.is_told, true) {
            let _ = inlet.stream.shutdown(Shutdown::Write);
        }
        inlet.intake == Intake::Discarded
    }

    /// Has the event loop wait for what is next at a socket.
    fn watch(&mut self, number: usize) -> io::Result<()> {
        let takes_requests = self.takes_requests(number);
        let (Some(inlet), outlet) = (&mut self.inlets[number], &self.outlets.outlets[number]) else {
            return Ok(());
        };
        let mut interest = epoll::EventFlags::empty();
        let takes_bytes = match inlet.intake {
            Intake::Requests => !inlet.paused && takes_requests,
            Intake::Discarded => true,
            Intake::Ended => false,
        };
        interest.set(epoll::EventFlags::IN, takes_bytes);
        interest.set(epoll::EventFlags::OUT, !outlet.frames.is_empty());
        if interest != inlet.interest {
            let data = epoll::EventData::new_u64(number as u64);
            self.calls.system_calls_event += 1;
            epoll::modify(&self.epoll, inlet.stream.as_fd(), data, interest)?;
            inlet.interest = interest;
        }
        Ok(())
    }
}

fn is_admin(request: &RequestHead) -> bool {
    request.procedure >= FIRST_ADMIN_PROCEDURE
}

/// As [`parse_requests`], as far as the first request to the partition itself, whose answer may be large; and whether more may follow.
fn parse_run(input: &[u8], requests: &mut Vec<RequestHead>) -> (Result<usize, BadLength>, bool) {
    let parsed = parse_requests(input, MAX_BATCH, requests);
    match requests.iter().position(is_admin) {
        Some(at) => {
            let more = parsed.is_err() || at + 1 < requests.len();
            requests.truncate(at + 1);
            (Ok(requests[at].end), more)
        }
        None => (parsed, requests.len() == MAX_BATCH),
    }
}
