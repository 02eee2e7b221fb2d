//! The native client: one pipelined TCP connection per partition, used by one thread.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;
use serde::Deserialize;

use crate::net::frame::{
    ANY_PARTITION, HELLO_HEAD_BYTES, HELLO_MAGIC, PROTOCOL_VERSION, REPLY_HEADER_BYTES, SETTINGS_PROCEDURE,
    SNAPSHOT_PROCEDURE, STATS_PROCEDURE, Status, write_request,
};
use crate::net::handshake::Refusal;
use crate::secret::{NONCE_BYTES, Secret, Side, from_hex, new_nonce};
use crate::stats::add_up;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const READ_BUFFER_BYTES: usize = 256 << 10;
/// Longest reply that is believed.
const MAX_REPLY_BYTES: usize = 256 << 20;

/// What can go wrong with a connection; it cannot be used afterwards.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No connection.
    #[error("connect to the engine at {address}: {source}")]
    Connect {
        /// The server's address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The connection broke.
    #[error("connection to the engine at {address} broke: {source}")]
    Broken {
        /// The server's address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The server refused the connection or sent what it should not.
    #[error("engine at {address}: {problem}")]
    Protocol {
        /// The server's address.
        address: SocketAddr,
        /// What is wrong.
        problem: String,
    },
    /// One of the two sides does not know the secret of the other.
    #[error("engine at {address}: {problem}")]
    Secret {
        /// The server's address.
        address: SocketAddr,
        /// Which, and what to do.
        problem: &'static str,
    },
    /// A call was not committed.
    #[error("{0}")]
    NotCommitted(String),
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply<'reply> {
    /// Committed, with the procedure's reply.
    Committed(&'reply [u8]),
    /// Aborted by the procedure, with its reason.
    Aborted(&'reply str),
    /// The server could not serve it (I/O error, memory), with the reason.
    Failed(&'reply str),
}

const WRONG_SECRET: &str = "it refuses this secret: give the one of its secret_file";
const SECRET_WANTED: &str = "it wants a secret, and none is given here";
const NO_SECRET: &str = "a secret is given here, but it asks for none: it runs without secret_file, or is another server; nothing was sent to it";
const NO_PROOF: &str = "it cannot prove that it knows the secret: it is another server; nothing was sent to it";

/// What the server says in a handshake: a challenge, a welcome, or an error.
#[derive(Deserialize)]
struct Welcome {
    error: Option<String>,
    challenge: Option<String>,
    proof: Option<String>,
    partitions: Option<u32>,
    procedures: Option<Vec<String>>,
}

struct Connection {
    stream: TcpStream,
    outgoing: Vec<u8>,
    /// Bytes of `outgoing` that the socket has taken.
    sent: usize,
    /// Requests submitted since something was sent last.
    unsent: usize,
    incoming: Vec<u8>,
    filled: usize,
    outstanding: usize,
}

/// A client of all partitions of one server.
pub struct Client {
    address: SocketAddr,
    connections: Vec<Connection>,
    procedures: HashMap<String, u16>,
    timeout: Option<Duration>,
    send_every: usize,
}

impl Client {
    /// Connects to every partition of a server that has no secret.
    ///
    /// # Errors
    /// When the server is not there, speaks another version, or wants a secret.
    pub fn connect(address: SocketAddr) -> Result<Self, ClientError> {
        Self::connect_with(address, None)
    }

    /// Connects to every partition. With a secret, server and client prove to each other that they know it, and a server that does not ask for
    /// the proof is refused.
    ///
    /// # Errors
    /// When the server is not there or speaks another version; [`ClientError::Secret`] when one side has a secret that the other does not know.
    pub fn connect_with(address: SocketAddr, secret: Option<&Secret>) -> Result<Self, ClientError> {
        let (_, welcome) = greet(address, ANY_PARTITION, secret)?;
        let missing = || ClientError::Protocol { address, problem: "its welcome is incomplete".to_owned() };
        let partitions = welcome.partitions.filter(|&partitions| partitions > 0).ok_or_else(missing)?;
        let names = welcome.procedures.ok_or_else(missing)?;
        let mut connections = Vec::new();
        for partition in 0..partitions {
            let partition = u16::try_from(partition).map_err(|_| missing())?;
            let (stream, _) = greet(address, partition, secret)?;
            let incoming = vec![0; READ_BUFFER_BYTES];
            let outgoing = Vec::new();
            connections.push(Connection { stream, outgoing, sent: 0, unsent: 0, incoming, filled: 0, outstanding: 0 });
        }
        let procedures = names.into_iter().zip(0..).collect();
        Ok(Self { address, connections, procedures, timeout: None, send_every: usize::MAX })
    }

    /// Number of partitions.
    pub fn partitions(&self) -> u32 {
        self.connections.len() as u32
    }

    /// The partition that owns a key: the partitioning column's value modulo the number of partitions.
    #[inline]
    pub fn partition_of(&self, key: i64) -> u32 {
        key.rem_euclid(self.connections.len() as i64) as u32
    }

    /// Number of a procedure.
    ///
    /// # Errors
    /// When the server does not have it.
    pub fn procedure(&self, name: &str) -> Result<u16, ClientError> {
        self.procedures.get(name).copied().ok_or_else(|| ClientError::Protocol {
            address: self.address,
            problem: format!("it has no procedure `{name}`"),
        })
    }

    /// Requests not answered yet.
    pub fn outstanding(&self) -> usize {
        self.connections.iter().map(|connection| connection.outstanding).sum()
    }

    /// Bounds how long [`Client::wait`] may stay without an answer; afterwards it fails.
    ///
    /// # Errors
    /// What the system says.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) -> Result<(), ClientError> {
        let address = self.address;
        self.timeout = timeout;
        for connection in &self.connections {
            let set =
                connection.stream.set_read_timeout(timeout).and_then(|()| connection.stream.set_write_timeout(timeout));
            set.map_err(|source| ClientError::Broken { address, source })?;
        }
        Ok(())
    }

    /// Sends requests as soon as so many were submitted to a partition, not only when their replies are waited for. Who always has `n` outstanding and
    /// submits them all at once takes turns with the server, each idle while the other works; with `n / 2` here both work.
    pub fn send_every(&mut self, requests: usize) {
        self.send_every = requests.max(1);
    }

    /// Adds a request; it is sent by the next [`Client::wait`], if not before ([`Client::send_every`]).
    ///
    /// # Panics
    /// If the partition does not exist.
    #[inline]
    pub fn submit(&mut self, token: u64, partition: u32, procedure: u16, params: &[u8]) {
        let connection = &mut self.connections[partition as usize];
        write_request(&mut connection.outgoing, token, procedure, params);
        connection.outstanding += 1;
        connection.unsent += 1;
        if connection.unsent >= self.send_every {
            // A connection that broke says so again when its replies are waited for.
            let _ = connection.send();
        }
    }

    /// Sends what was submitted, waits for at least one reply, and delivers all that arrived; returns their number, 0 when nothing is
    /// outstanding.
    ///
    /// # Errors
    /// When a connection broke; replies that were delivered before count.
    pub fn wait(&mut self, on_reply: &mut dyn FnMut(u64, Reply<'_>)) -> Result<usize, ClientError> {
        self.deliver(None, on_reply)
    }

    /// As [`Client::wait`], but for so long at most, whatever the bound of [`Client::set_timeout`]: 0 when no reply came in that time, which is no
    /// error. For who has something to submit at a moment of its own.
    ///
    /// # Errors
    /// As [`Client::wait`].
    pub fn wait_for(
        &mut self,
        limit: Duration,
        on_reply: &mut dyn FnMut(u64, Reply<'_>),
    ) -> Result<usize, ClientError> {
        self.deliver(Some(Instant::now() + limit), on_reply)
    }

    fn deliver(
        &mut self,
        until: Option<Instant>,
        on_reply: &mut dyn FnMut(u64, Reply<'_>),
    ) -> Result<usize, ClientError> {
        let address = self.address;
        let broken = |source| ClientError::Broken { address, source };
        let mut delivered = 0;
        loop {
            for connection in &mut self.connections {
                connection.send().map_err(broken)?;
            }
            if delivered > 0 || self.outstanding() == 0 {
                return Ok(delivered);
            }
            let limit = until.map(|until| until.saturating_duration_since(Instant::now()));
            for number in self.readable(limit).map_err(broken)? {
                delivered += self.connections[number].receive(address, on_reply)?;
            }
            if delivered == 0 && limit.is_some_and(|limit| limit.is_zero()) {
                return Ok(0);
            }
        }
    }

    /// The connections with something to read; waits for it, or for one that takes more requests. With one connection, nothing left to send and
    /// no `limit` there is nothing to choose, so nothing is asked. None at the end of the `limit`.
    fn readable(&self, limit: Option<Duration>) -> io::Result<Vec<usize>> {
        let waiting: Vec<usize> =
            (0..self.connections.len()).filter(|&n| self.connections[n].outstanding > 0).collect();
        let is_sent = waiting.iter().all(|&n| self.connections[n].outgoing.is_empty());
        if limit.is_none() && waiting.len() <= 1 && is_sent {
            return Ok(waiting);
        }
        let wanted = |n: usize| match self.connections[n].outgoing.is_empty() {
            true => PollFlags::IN,
            false => PollFlags::IN | PollFlags::OUT,
        };
        let mut fds: Vec<_> = waiting.iter().map(|&n| PollFd::new(&self.connections[n].stream, wanted(n))).collect();
        let timeout = limit.or(self.timeout).and_then(|timeout| rustix::time::Timespec::try_from(timeout).ok());
        loop {
            match poll(&mut fds, timeout.as_ref()) {
                Ok(0) if limit.is_some() => return Ok(Vec::new()),
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let readable = |fd: &PollFd<'_>| fd.revents().intersects(PollFlags::IN | PollFlags::ERR | PollFlags::HUP);
        Ok(waiting.into_iter().zip(&fds).filter(|(_, fd)| readable(fd)).map(|(n, _)| n).collect())
    }

    /// Runs one procedure and waits for it.
    ///
    /// # Errors
    /// [`ClientError::NotCommitted`] with the reason, or a broken connection.
    ///
    /// # Panics
    /// If requests are outstanding: their replies would have nowhere to go.
    pub fn call(&mut self, partition: u32, procedure: u16, params: &[u8]) -> Result<Vec<u8>, ClientError> {
        assert_eq!(self.outstanding(), 0, "call while requests are outstanding");
        self.submit(0, partition, procedure, params);
        let mut outcome = Err(ClientError::NotCommitted("no reply".to_owned()));
        self.wait(&mut |_, reply| {
            outcome = match reply {
                Reply::Committed(payload) => Ok(payload.to_vec()),
                Reply::Aborted(reason) => Err(ClientError::NotCommitted(format!("aborted: {reason}"))),
                Reply::Failed(reason) => Err(ClientError::NotCommitted(format!("failed: {reason}"))),
            };
        })?;
        outcome
    }

    /// Takes a snapshot of all partitions and waits until it is durable; its generation.
    ///
    /// # Errors
    /// As [`Client::call`]; why there is none.
    pub fn snapshot(&mut self) -> Result<u64, ClientError> {
        let reply = self.call(0, SNAPSHOT_PROCEDURE, &[])?;
        let said = serde_json::from_slice::<serde_json::Value>(&reply).unwrap_or_default();
        said["generation"].as_u64().ok_or_else(|| ClientError::Protocol {
            address: self.address,
            problem: format!("a snapshot: {}", String::from_utf8_lossy(&reply)),
        })
    }

    /// Changes some of [`crate::config::LIVE_SETTINGS`] at every partition.
    ///
    /// # Errors
    /// As [`Client::call`]; a refusal names the key, and nothing was changed then.
    pub fn change_settings(&mut self, changes: &serde_json::Value) -> Result<(), ClientError> {
        let changes = changes.to_string();
        (0..self.partitions())
            .try_for_each(|partition| self.call(partition, SETTINGS_PROCEDURE, changes.as_bytes()).map(drop))
    }

    /// Counters and gauges, summed over the partitions, and the settings.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn stats(&mut self) -> Result<serde_json::Value, ClientError> {
        let mut sum = serde_json::Map::new();
        for partition in 0..self.partitions() {
            let reply = self.call(partition, STATS_PROCEDURE, &[])?;
            let stats = serde_json::from_slice::<serde_json::Map<_, _>>(&reply);
            let stats = stats.map_err(|error| ClientError::Protocol {
                address: self.address,
                problem: format!("statistics: {error}"),
            })?;
            add_up(&mut sum, &stats);
        }
        Ok(serde_json::Value::Object(sum))
    }
}

/// Connects and does the handshake.
fn greet(address: SocketAddr, partition: u16, secret: Option<&Secret>) -> Result<(TcpStream, Welcome), ClientError> {
    let connect = |source| ClientError::Connect { address, source };
    let refuse = |problem| ClientError::Secret { address, problem };
    let mut stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).map_err(connect)?;
    stream.set_nodelay(true).map_err(connect)?;
    stream.set_read_timeout(Some(CONNECT_TIMEOUT)).map_err(connect)?;
    let nonce = new_nonce().map_err(connect)?;
    let mut hello = [0; HELLO_HEAD_BYTES + NONCE_BYTES];
    hello[..4].copy_from_slice(&HELLO_MAGIC);
    hello[4..6].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    hello[6..8].copy_from_slice(&partition.to_le_bytes());
    hello[HELLO_HEAD_BYTES..].copy_from_slice(&nonce);
    stream.write_all(&hello).map_err(connect)?;
    let answer = hear(&mut stream, address)?;
    let welcome = match (secret, &answer.challenge) {
        (None, None) => answer,
        (None, Some(_)) => return Err(refuse(SECRET_WANTED)),
        (Some(_), None) => return Err(refuse(NO_SECRET)),
        (Some(secret), Some(challenge)) => {
            let server_nonce = from_hex(challenge)
                .ok_or_else(|| ClientError::Protocol { address, problem: "its challenge is malformed".to_owned() })?;
            stream.write_all(&secret.proof(Side::Client, partition, &nonce, &server_nonce)).map_err(connect)?;
            let welcome = hear(&mut stream, address)?;
            let proof = welcome.proof.as_deref().and_then(from_hex).ok_or_else(|| refuse(NO_PROOF))?;
            if !secret.verifies(&proof, Side::Server, partition, &nonce, &server_nonce) {
                return Err(refuse(NO_PROOF));
            }
            welcome
        }
    };
    stream.set_read_timeout(None).map_err(connect)?;
    Ok((stream, welcome))
}

/// Reads one message of the handshake.
fn hear(stream: &mut TcpStream, address: SocketAddr) -> Result<Welcome, ClientError> {
    let connect = |source| ClientError::Connect { address, source };
    let problem = |problem: String| ClientError::Protocol { address, problem };
    let mut length = [0; 4];
    stream.read_exact(&mut length).map_err(connect)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > 1 << 20 {
        return Err(problem(format!("a welcome of {length} bytes: not an anticached server?")));
    }
    let mut text = vec![0; length];
    stream.read_exact(&mut text).map_err(connect)?;
    let welcome: Welcome = serde_json::from_slice(&text).map_err(|error| problem(format!("its welcome: {error}")))?;
    match welcome.error {
        Some(error) if error == Refusal::Secret.to_string() => {
            Err(ClientError::Secret { address, problem: WRONG_SECRET })
        }
        Some(error) => Err(problem(error)),
        None => Ok(welcome),
    }
}

impl Connection {
    /// Sends as much as the socket takes now: a server that waits until its replies are read takes no more requests.
    #[inline]
    fn send(&mut self) -> io::Result<()> {
        self.unsent = 0;
        while self.sent < self.outgoing.len() {
            let unsent = &self.outgoing[self.sent..];
            match rustix::net::send(&self.stream, unsent, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(bytes) => self.sent += bytes,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.outgoing.clear();
        self.sent = 0;
        Ok(())
    }

    /// Reads once and delivers the whole replies received so far.
    fn receive(&mut self, address: SocketAddr, on_reply: &mut dyn FnMut(u64, Reply<'_>)) -> Result<usize, ClientError> {
        let bytes = match self.stream.read(&mut self.incoming[self.filled..]) {
            Ok(0) => {
                let source = io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    format!("closed with {} requests outstanding", self.outstanding),
                );
                return Err(ClientError::Broken { address, source });
            }
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(source) => return Err(ClientError::Broken { address, source }),
        };
        self.filled += bytes;
        let (mut at, mut delivered) = (0, 0);
        while let Some((token, status, payload, end)) = parse_reply(&self.incoming[at..self.filled])
            .map_err(|problem| ClientError::Protocol { address, problem })?
        {
            let text = || std::str::from_utf8(payload).unwrap_or("a reason that is not text");
            on_reply(
                token,
                match status {
                    Status::Committed => Reply::Committed(payload),
                    Status::Aborted => Reply::Aborted(text()),
                    Status::Failed => Reply::Failed(text()),
                },
            );
            at += end;
            delivered += 1;
        }
        self.outstanding -= delivered;
        self.incoming.copy_within(at..self.filled, 0);
        self.filled -= at;
        if self.filled == self.incoming.len() {
            self.incoming.resize(2 * self.filled, 0);
        }
        Ok(delivered)
    }
}

type ParsedReply<'input> = (u64, Status, &'input [u8], usize);

/// The first whole reply of `input`, with its length on the wire.
fn parse_reply(input: &[u8]) -> Result<Option<ParsedReply<'_>>, String> {
    let Some(length) = input.first_chunk::<4>() else {
        return Ok(None);
    };
    let length = u32::from_le_bytes(*length) as usize;
    if !(REPLY_HEADER_BYTES - 4..=MAX_REPLY_BYTES).contains(&length) {
        return Err(format!("a reply of {length} bytes"));
    }
    let end = 4 + length;
    if input.len() < end {
        return Ok(None);
    }
    let mut token = [0; 8];
    token.copy_from_slice(&input[4..12]);
    let status = Status::from_wire(input[12]).ok_or_else(|| format!("a reply with status {}", input[12]))?;
    Ok(Some((u64::from_le_bytes(token), status, &input[REPLY_HEADER_BYTES..end], end)))
}
