//! The terminals of a worker thread, served together: whichever has an answer goes on. Each has a connection of its own; where a system allows it, all of
//! them share another one.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::mysql::session::io_reason;
use super::mysql::ycsb::KeyResult;
use super::sockets::{Poller, Socket};
use crate::system::{Completion, Connection, SystemError};
use crate::workload::Transaction;
use crate::ycsb::YcsbTransaction;

/// How often terminals are looked at that have waited for too long.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A terminal of YCSB: a transaction is a sequence of requests, each of them sent when the one before was answered. What it appends to `shared` is one
/// request on the connection that the terminals of its thread share.
pub trait Terminal: Send {
    /// Its own connection.
    fn socket(&self) -> &Socket;

    /// Sends the first request of a transaction.
    ///
    /// # Errors
    /// As [`Connection::submit`].
    fn begin(&mut self, transaction: &YcsbTransaction<'_>, shared: &mut Vec<u8>) -> Result<(), SystemError>;

    /// Goes on with what its own connection has received: sends the next request, or tells how the transaction ended. `None`: it goes on.
    ///
    /// # Errors
    /// As [`Connection::wait`].
    fn go_on(&mut self, shared: &mut Vec<u8>) -> Result<Option<KeyResult>, SystemError>;

    /// The same with the whole answer to its request on the shared connection.
    ///
    /// # Errors
    /// As [`Connection::wait`].
    fn go_on_with(&mut self, _answer: &[u8], _shared: &mut Vec<u8>) -> Result<Option<KeyResult>, SystemError> {
        Err(SystemError::Data("an answer to a terminal that has asked nothing".to_owned()))
    }

    /// What was rolled back by the system and repeated in the transaction that ended.
    fn take_retries(&mut self) -> Vec<&'static str>;

    /// The error of an answer that has not come for so long; `None`: it may still come.
    fn overdue(&self, waited: Duration) -> Option<SystemError>;
}

/// How many bytes the first answer takes of those that were received; `None`: they are not all there yet. An error says what is wrong with them.
pub type AnswerBytes = fn(&[u8]) -> Result<Option<usize>, String>;

/// A connection that terminals share: their requests are sent in groups, and answered in their order.
pub struct Shared {
    socket: Socket,
    server: &'static str,
    address: String,
    answer_bytes: AnswerBytes,
}

impl Shared {
    /// A connection to a server, which has this name and address in errors.
    pub fn new(socket: Socket, server: &'static str, address: &str, answer_bytes: AnswerBytes) -> Shared {
        Shared { socket, server, address: address.to_owned(), answer_bytes }
    }
}

/// What terminals ask on the shared connection.
#[derive(Default)]
struct Requests {
    /// Those that are to be sent.
    bytes: Vec<u8>,
    /// Who waits for an answer; the next one is the first one's.
    asked: VecDeque<usize>,
    /// How many of those have their requests sent.
    sent: usize,
}

impl Requests {
    /// Lets a terminal append a request.
    fn of<R>(&mut self, terminal: usize, act: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        let before = self.bytes.len();
        let result = act(&mut self.bytes);
        if self.bytes.len() > before {
            self.asked.push_back(terminal);
        }
        result
    }

    /// Whether those to be sent are as many as those that the server still has: it works at one half while the client works at the other. Sent at once,
    /// three went together of 64, and the calls of the kernel for them took most of the client's time.
    fn are_due(&self) -> bool {
        !self.bytes.is_empty() && self.asked.len() - self.sent >= self.sent
    }

    /// Who has asked for the answer that came next; `None`: nobody.
    fn answered(&mut self) -> Option<usize> {
        self.sent = self.sent.checked_sub(1)?;
        self.asked.pop_front()
    }
}

/// Terminals that share a thread.
pub struct Terminals<T> {
    first: u32,
    terminals: Vec<T>,
    /// Since when each waits for an answer.
    waiting: Vec<Option<Instant>>,
    shared: Option<Shared>,
    requests: Requests,
    poller: Poller,
    looked: Instant,
}

impl<T: Terminal> Terminals<T> {
    /// Opens each terminal of the range.
    ///
    /// # Errors
    /// What `open` returns.
    pub fn open(
        range: Range<u32>,
        shared: Option<Shared>,
        mut open: impl FnMut() -> Result<T, SystemError>,
    ) -> Result<Terminals<T>, SystemError> {
        let first = range.start;
        let terminals = range.map(|_| open()).collect::<Result<Vec<T>, SystemError>>()?;
        let mut poller = Poller::new().map_err(|error| kernel(&error))?;
        // The shared one's name is that of no terminal.
        let sockets = terminals.iter().map(Terminal::socket).chain(shared.as_ref().map(|shared| &shared.socket));
        for (name, socket) in (0..).zip(sockets) {
            poller.add(socket, name).map_err(|error| kernel(&error))?;
        }
        Ok(Terminals {
            first,
            waiting: vec![None; terminals.len()],
            terminals,
            shared,
            requests: Requests::default(),
            poller,
            looked: Instant::now(),
        })
    }

    /// Waits once, so long at most, and goes on with all that has come.
    fn go_on(&mut self, limit: Duration, completions: &mut Vec<Completion>) -> Result<(), SystemError> {
        self.send_requests()?;
        let ready = self.poller.wait(limit).map_err(|error| kernel(&error))?;
        let now = Instant::now();
        for name in ready {
            let index = name as usize;
            let Some(terminal) = self.terminals.get_mut(index) else {
                self.receive_answers(now, completions)?;
                continue;
            };
            let ended = self.requests.of(index, |shared| terminal.go_on(shared))?;
            self.went_on(index, ended, now, completions);
        }
        if now - self.looked < LOOK_EVERY {
            return Ok(());
        }
        self.looked = now;
        self.check_overdue(now)
    }

    fn went_on(&mut self, index: usize, ended: Option<KeyResult>, now: Instant, completions: &mut Vec<Completion>) {
        self.waiting[index] = ended.is_none().then_some(now);
        if let Some(result) = ended {
            completions.push(result.completion(self.first + index as u32, self.terminals[index].take_retries()));
        }
    }

    fn send_requests(&mut self) -> Result<(), SystemError> {
        if let Some(shared) = self.shared.as_mut().filter(|_| self.requests.are_due()) {
            let sent = shared.socket.send(&self.requests.bytes);
            sent.map_err(|error| lost(shared.server, &shared.address, io_reason(&error)))?;
            self.requests.bytes.clear();
            self.requests.sent = self.requests.asked.len();
        }
        Ok(())
    }

    /// Goes on with every answer that is whole.
    fn receive_answers(&mut self, now: Instant, completions: &mut Vec<Completion>) -> Result<(), SystemError> {
        let Some(mut shared) = self.shared.take() else { return Ok(()) };
        let lost = |reason: String| lost(shared.server, &shared.address, reason);
        let mut left = shared.socket.receive().map_err(|error| lost(io_reason(&error)))?;
        let received_bytes = left.len();
        while let Some(bytes) = (shared.answer_bytes)(left).map_err(lost)? {
            let (answer, behind) = left.split_at(bytes);
            left = behind;
            let nobody = || lost("an answer that nobody has asked for".to_owned());
            let index = self.requests.answered().ok_or_else(nobody)?;
            let terminal = &mut self.terminals[index];
            let ended = self.requests.of(index, |requests| terminal.go_on_with(answer, requests))?;
            self.went_on(index, ended, now, completions);
        }
        let taken_bytes = received_bytes - left.len();
        shared.socket.forget(taken_bytes);
        self.shared = Some(shared);
        Ok(())
    }

    fn check_overdue(&self, now: Instant) -> Result<(), SystemError> {
        let waiting = self.terminals.iter().zip(&self.waiting);
        let overdue =
            |(terminal, since): (&T, &Option<Instant>)| terminal.overdue(now.saturating_duration_since((*since)?));
        waiting.filter_map(overdue).next().map_or(Ok(()), Err)
    }
}

impl<T: Terminal> Connection for Terminals<T> {
    fn submit(&mut self, terminal: u32, transaction: &Transaction<'_>) -> Result<(), SystemError> {
        let Transaction::Ycsb(transaction) = transaction else {
            return Err(SystemError::Data("a transaction of another benchmark on a connection for YCSB".to_owned()));
        };
        let index = (terminal - self.first) as usize;
        let terminal = &mut self.terminals[index];
        self.requests.of(index, |shared| terminal.begin(transaction, shared))?;
        self.waiting[index] = Some(Instant::now());
        Ok(())
    }

    fn wait(&mut self, completions: &mut Vec<Completion>) -> Result<(), SystemError> {
        while completions.is_empty() {
            self.go_on(LOOK_EVERY, completions)?;
        }
        Ok(())
    }

    fn wait_for(&mut self, limit: Duration, completions: &mut Vec<Completion>) -> Result<(), SystemError> {
        self.go_on(limit.min(LOOK_EVERY), completions)
    }
}

fn lost(server: &'static str, address: &str, reason: String) -> SystemError {
    SystemError::Lost { server, address: address.to_owned(), reason }
}

fn kernel(error: &io::Error) -> SystemError {
    SystemError::Data(format!("cannot wait for many connections: {error}"))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpStream};
    use std::thread;

    use proptest::prelude::*;

    use super::*;
    use crate::system::Outcome;
    use crate::systems::sockets::tests::pair;

    /// Asks twice for its key, and aborts where it is answered another one.
    struct Asker {
        own: Socket,
        key: i64,
        answers: u32,
    }

    impl Asker {
        fn ask(&mut self, shared: &mut Vec<u8>) {
            shared.extend_from_slice(&self.key.to_le_bytes());
        }
    }

    impl Terminal for Asker {
        fn socket(&self) -> &Socket {
            &self.own
        }

        fn begin(&mut self, transaction: &YcsbTransaction<'_>, shared: &mut Vec<u8>) -> Result<(), SystemError> {
            let YcsbTransaction::Read { key, .. } = *transaction else { panic!("reads only") };
            (self.key, self.answers) = (key, 0);
            self.ask(shared);
            Ok(())
        }

        fn go_on(&mut self, _shared: &mut Vec<u8>) -> Result<Option<KeyResult>, SystemError> {
            panic!("nothing is sent on these connections")
        }

        fn go_on_with(&mut self, answer: &[u8], shared: &mut Vec<u8>) -> Result<Option<KeyResult>, SystemError> {
            self.answers += 1;
            match (answer == self.key.to_le_bytes(), self.answers) {
                (false, _) => Ok(Some(KeyResult::NoSuchKey)),
                (true, 2) => Ok(Some(KeyResult::Done { verified: None })),
                (true, _) => {
                    self.ask(shared);
                    Ok(None)
                }
            }
        }

        fn take_retries(&mut self) -> Vec<&'static str> {
            Vec::new()
        }

        fn overdue(&self, _waited: Duration) -> Option<SystemError> {
            None
        }
    }

    /// Terminals whose answers have the length of a key, and the other ends of their connections, the shared one's first.
    fn terminals(count: u32) -> (Terminals<Asker>, Vec<TcpStream>) {
        let (socket, peer) = pair();
        let mut peers = vec![peer];
        let key_bytes: AnswerBytes = |received| match received.first() {
            Some(&0xff) => Err("a key below zero".to_owned()),
            _ => Ok((received.len() >= 8).then_some(8)),
        };
        let shared = Shared::new(socket, "echo", "here:1", key_bytes);
        let open = || {
            let (own, peer) = pair();
            peers.push(peer);
            Ok(Asker { own, key: 0, answers: 0 })
        };
        (Terminals::open(7..7 + count, Some(shared), open).unwrap(), peers)
    }

    /// Sends back what comes, so many bytes at a time.
    fn echo(mut peer: TcpStream, chunks: Vec<usize>) {
        peer.set_nodelay(true).unwrap();
        let mut buffer = [0; 64];
        for bytes in chunks.into_iter().cycle() {
            let Ok(read @ 1..) = peer.read(&mut buffer[..bytes]) else { return };
            let _ = peer.write_all(&buffer[..read]);
        }
    }

    fn read(terminals: &mut Terminals<Asker>, terminal: u32, key: i64) {
        let transaction = Transaction::Ycsb(YcsbTransaction::Read { key, verify: false });
        terminals.submit(terminal, &transaction).unwrap();
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(50))]

        #[test]
        fn each_terminal_gets_its_own_answers(
            count in 1_u32..9, chunks in proptest::collection::vec(1_usize..64, 1..20), rounds in 1_i64..20
        ) {
            let (mut terminals, mut peers) = terminals(count);
            let peer = peers.remove(0);
            let server = thread::spawn(move || echo(peer, chunks));
            let (mut ended, mut begun) = (0, i64::from(count));
            (0..count).for_each(|index| read(&mut terminals, 7 + index, i64::from(index)));
            while ended < begun {
                let mut completions = Vec::new();
                terminals.wait(&mut completions).unwrap();
                for completion in completions {
                    prop_assert_eq!(completion.outcome, Outcome::Committed);
                    ended += 1;
                    if begun < rounds * i64::from(count) {
                        read(&mut terminals, completion.terminal, begun);
                        begun += 1;
                    }
                }
            }
            prop_assert!(terminals.requests.asked.is_empty());
            drop(terminals);
            server.join().unwrap();
        }
    }

    #[test]
    fn what_is_wrong_with_the_shared_connection_is_said() {
        let said = |sent: &[u8]| {
            let (mut terminals, mut peers) = terminals(2);
            let mut peer = peers.remove(0);
            read(&mut terminals, 7, 5);
            peer.write_all(sent).unwrap();
            peer.shutdown(Shutdown::Write).unwrap();
            let mut completions = Vec::new();
            let wait = |_| terminals.wait(&mut completions).err();
            (0..3).find_map(wait).expect("an error").to_string()
        };
        let key = 5_i64.to_le_bytes();
        assert!(said(&[]).contains("closed by the server"), "{}", said(&[]));
        assert!(said(&[0xff]).contains("echo at here:1"), "{}", said(&[0xff]));
        assert!(said(&[0xff]).contains("a key below zero"), "{}", said(&[0xff]));
        assert!(said(&[key; 3].concat()).contains("nobody has asked"), "{}", said(&[key; 3].concat()));
    }
}
