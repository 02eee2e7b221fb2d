//! The acceptor: takes connections, lets each do its handshake, and hands it to its partition.
//!
//! One thread serves all handshakes, without waiting for any of them. A connection that is not through in time is closed; when too many are
//! under way the oldest is closed, because an honest client needs milliseconds. So strangers take neither memory nor threads, and the partitions
//! never see them.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use rustix::event::epoll;

use super::handshake::{Greeting, Handshake, Step, refusal};
use crate::secret::new_nonce;

/// How long a handshake may take, from accepting to its end.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Handshakes that may be under way.
pub const MAX_HANDSHAKES: usize = 512;
/// How long a connection may be silent before the kernel asks whether its client is still there.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// How often a connection that is being refused is read from to throw away what came.
const MAX_DISCARDING_READS: usize = 4;

const LISTENER: u64 = u64::MAX;
const STOP: u64 = u64::MAX - 1;

/// The way to a partition's thread.
pub(super) struct PartitionHandle {
    /// Takes connections after their handshake.
    pub(super) connections: Sender<Accepted>,
    /// Wakes the thread.
    pub(super) wake: Arc<OwnedFd>,
}

/// A connection after its handshake.
pub(super) struct Accepted {
    pub(super) stream: TcpStream,
    /// Counts the connection as long as it is kept.
    pub(super) seat: Arc<()>,
}

struct Pending {
    stream: TcpStream,
    handshake: Handshake,
    deadline: Instant,
}

pub(super) struct Acceptor {
    listener: TcpListener,
    partitions: Vec<PartitionHandle>,
    greeting: Greeting,
    stopping: Arc<AtomicBool>,
    epoll: OwnedFd,
    /// By the order in which they were accepted, and so by deadline.
    pending: BTreeMap<u64, Pending>,
    accepted: u64,
    refused: Arc<AtomicU64>,
    /// Each open connection has a clone.
    seats: Arc<()>,
    max_connections: usize,
}

impl Acceptor {
    /// `stop` becomes readable when the server stops; `refused` counts.
    pub(super) fn new(
        listener: TcpListener,
        partitions: Vec<PartitionHandle>,
        greeting: Greeting,
        stopping: Arc<AtomicBool>,
        stop: &OwnedFd,
        refused: Arc<AtomicU64>,
        max_connections: usize,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
        epoll::add(&epoll, stop, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)?;
        let (pending, seats) = (BTreeMap::new(), Arc::new(()));
        Ok(Self {
            listener,
            partitions,
            greeting,
            stopping,
            epoll,
            pending,
            accepted: 0,
            refused,
            seats,
            max_connections,
        })
    }

    pub(super) fn run(mut self) {
        let mut events = Vec::with_capacity(64);
        while !self.stopping.load(Ordering::SeqCst) {
            events.clear();
            let timeout = self.until_next_deadline();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    eprintln!("anticached: acceptor: {error}");
                    return;
                }
            }
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    STOP => {}
                    number => self.receive(number),
                }
            }
            self.close_late();
        }
    }

    fn until_next_deadline(&self) -> Option<rustix::time::Timespec> {
        let (_, oldest) = self.pending.first_key_value()?;
        let left = oldest.deadline.saturating_duration_since(Instant::now());
        Some(rustix::time::Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() })
    }

    /// Takes one connection; the listener is reported again while there are more.
    fn accept(&mut self) {
        let begun = self.listener.accept().and_then(|(stream, _)| {
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            // Who is gone without a word must not keep a seat for ever.
            rustix::net::sockopt::set_tcp_keepidle(&stream, KEEPALIVE_AFTER)?;
            rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
            let number = self.accepted;
            epoll::add(&self.epoll, &stream, epoll::EventData::new_u64(number), epoll::EventFlags::IN)?;
            let handshake = Handshake::new(new_nonce()?);
            Ok(Pending { stream, handshake, deadline: Instant::now() + HANDSHAKE_TIMEOUT })
        });
        match begun {
            Ok(pending) => {
                self.pending.insert(self.accepted, pending);
                self.accepted += 1;
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) if is_of_the_connection(&error) => {}
            Err(error) => {
                eprintln!("anticached: a connection is refused: {error}");
                // Out of descriptors, most likely: asking again at once would only burn the partitions' CPU.
                std::thread::sleep(ACCEPT_PAUSE);
            }
        }
        if self.pending.len() > MAX_HANDSHAKES
            && let Some((_, oldest)) = self.pending.pop_first()
        {
            self.refuse(oldest.stream, &[], "too many connections without a handshake");
        }
    }

    /// Reads what a handshake wants and does what comes next.
    fn receive(&mut self, number: u64) {
        // It may have been closed since the event was reported.
        let Some(mut pending) = self.pending.remove(&number) else { return };
        let mut buffer = [0; 64];
        let wanted = pending.handshake.wanted();
        let step = match pending.stream.read(&mut buffer[..wanted]) {
            // Whoever only looks whether somebody listens is not refused.
            Ok(0) if !pending.handshake.has_begun() => return,
            Ok(0) => return self.refuse(pending.stream, &[], "its handshake was cut short"),
            Ok(bytes) => pending.handshake.receive(&buffer[..bytes], &self.greeting),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Step::Continue(Vec::new())
            }
            Err(_) => return,
        };
        match step {
            Step::Continue(answer) => {
                if say(&mut pending.stream, &answer) {
                    self.pending.insert(number, pending);
                }
            }
            Step::Refused(answer, why) => self.refuse(pending.stream, &answer, &why.to_string()),
            Step::Done(answer, partition) => self.hand_over(pending.stream, &answer, partition),
        }
    }

    fn hand_over(&self, mut stream: TcpStream, answer: &[u8], partition: Option<u16>) {
        let max = self.max_connections;
        if partition.is_some() && Arc::strong_count(&self.seats) > max {
            let why = format!("{max} connections are open, and `max_connections` allows no more");
            return self.refuse(stream, &refusal(&why), &why);
        }
        if !say(&mut stream, answer) || epoll::delete(&self.epoll, &stream).is_err() {
            return;
        }
        let accepted = Accepted { stream, seat: Arc::clone(&self.seats) };
        if let Some(handle) = partition.and_then(|partition| self.partitions.get(usize::from(partition)))
            && handle.connections.send(accepted).is_ok()
        {
            super::server::wake(&handle.wake);
        }
    }

    fn close_late(&mut self) {
        let now = Instant::now();
        while let Some(oldest) = self.pending.first_entry()
            && oldest.get().deadline <= now
        {
            let late = oldest.remove();
            self.refuse(late.stream, &[], "no handshake in time");
        }
    }

    /// Closes a connection with a last message, and counts it. The log tells of the 1st, 2nd, 4th, 8th …: a flood must not fill the disk.
    fn refuse(&self, mut stream: TcpStream, answer: &[u8], why: &str) {
        let count = self.refused.fetch_add(1, Ordering::Relaxed) + 1;
        if count.is_power_of_two() {
            let from = stream.peer_addr().map_or_else(|_| "somebody gone".to_owned(), |address| address.to_string());
            eprintln!("anticached: refused connection {count}, from {from}: {why}");
        }
        say(&mut stream, answer);
        let _ = stream.shutdown(Shutdown::Write);
        // What was not read would make the kernel reset the connection, and the client lose the message.
        for _ in 0..MAX_DISCARDING_READS {
            if !matches!(stream.read(&mut [0; 4096]), Ok(bytes) if bytes > 0) {
                break;
            }
        }
    }
}

/// Sends a message of the handshake; false when the connection does not take it at once: an empty socket buffer holds many of them.
fn say(stream: &mut TcpStream, answer: &[u8]) -> bool {
    matches!(stream.write(answer), Ok(sent) if sent == answer.len())
}

/// An error of `accept` that says that one connection is gone already.
fn is_of_the_connection(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset)
}
