//! Connections that one thread serves together: a request is written whole, an answer is read when the kernel says that some of it is there.
//!
//! A thread per connection costs a switch of context, and often the wake-up of another CPU, for every answer; with 64 terminals on one CPU that was more
//! than half of what a MySQL read cost its client. Here one look at the kernel (`epoll_wait`) finds all answers that have come meanwhile.

use std::io::{self, ErrorKind, Read, Write};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// What a buffer has at first; an answer that needs more doubles it.
const BUFFER_BYTES: usize = 4096;
/// Sockets that one look finds at most.
const EVENTS: usize = 64;
/// How long a request may find no room in a socket's buffer.
const ROOM_LIMIT: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// A connection whose calls do not wait for its peer.
pub struct Socket {
    stream: TcpStream,
    buffer: Vec<u8>,
    filled: usize,
}

impl Socket {
    /// Takes a connection whose small packets are sent at once.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(stream: TcpStream) -> io::Result<Socket> {
        stream.set_nonblocking(true)?;
        Ok(Socket { stream, buffer: vec![0; BUFFER_BYTES], filled: 0 })
    }

    /// Writes a request. Only where the peer has not taken earlier ones does this wait, for 10 s at most.
    ///
    /// # Errors
    /// The connection broke, or had no room for the request in time.
    pub fn send(&mut self, mut request: &[u8]) -> io::Result<()> {
        while !request.is_empty() {
            match self.stream.write(request) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(sent) => request = &request[sent..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait_for_room()?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn wait_for_room(&self) -> io::Result<()> {
        match poll(&mut [PollFd::new(&self.stream, PollFlags::OUT)], Some(&ROOM_LIMIT)) {
            Ok(0) => Err(ErrorKind::TimedOut.into()),
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads once, and returns all that has come and was not forgotten ([`Socket::clear`], [`Socket::forget`]).
    ///
    /// # Errors
    /// The connection broke; [`ErrorKind::UnexpectedEof`] when the peer closed it.
    pub fn receive(&mut self) -> io::Result<&[u8]> {
        if self.filled == self.buffer.len() {
            self.buffer.resize(2 * self.filled, 0);
        }
        match self.stream.read(&mut self.buffer[self.filled..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => self.filled += read,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
        Ok(&self.buffer[..self.filled])
    }

    /// Forgets all that was received: the answer to the one request outstanding.
    pub fn clear(&mut self) {
        self.filled = 0;
    }

    /// Forgets so many bytes, those that came first: the answers to some of the requests outstanding.
    pub fn forget(&mut self, bytes: usize) {
        self.buffer.copy_within(bytes..self.filled, 0);
        self.filled -= bytes;
    }
}

/// Tells which of many sockets have something to be received.
pub struct Poller {
    epoll: OwnedFd,
}

impl Poller {
    /// # Errors
    /// The kernel's: for instance too many open files.
    pub fn new() -> io::Result<Poller> {
        Ok(Poller { epoll: epoll::create(CreateFlags::CLOEXEC)? })
    }

    /// Looks at a socket as well, under that name. It is forgotten when it is closed.
    ///
    /// # Errors
    /// The kernel's.
    pub fn add(&mut self, socket: &Socket, name: u64) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, &socket.stream, EventData::new_u64(name), EventFlags::IN)?)
    }

    /// Waits so long at most; returns the names of the sockets that have something, or were closed. Of very many it tells some, the others the next time.
    ///
    /// # Errors
    /// The kernel's.
    pub fn wait(&mut self, limit: Duration) -> io::Result<impl Iterator<Item = u64> + use<>> {
        let limit = Timespec { tv_sec: limit.as_secs().cast_signed(), tv_nsec: i64::from(limit.subsec_nanos()) };
        let mut events = [MaybeUninit::<Event>::uninit(); EVENTS];
        let mut names = [0; EVENTS];
        let count = match epoll::wait(&self.epoll, &mut events[..], Some(&limit)) {
            Ok((events, _)) => {
                names.iter_mut().zip(events.iter()).for_each(|(name, event)| *name = event.data.u64());
                events.len()
            }
            Err(rustix::io::Errno::INTR) => 0,
            Err(error) => return Err(error.into()),
        };
        Ok(names.into_iter().take(count))
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::net::TcpListener;

    fn names(poller: &mut Poller, limit: Duration) -> Vec<u64> {
        poller.wait(limit).unwrap().collect()
    }

    /// A connection, and its other end.
    pub fn pair() -> (Socket, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Socket::new(client).unwrap(), listener.accept().unwrap().0)
    }

    #[test]
    fn what_has_come_is_told_and_read() {
        let ((mut first, first_peer), (mut second, mut second_peer)) = (pair(), pair());
        let mut poller = Poller::new().unwrap();
        poller.add(&first, 7).unwrap();
        poller.add(&second, 9).unwrap();
        assert_eq!(names(&mut poller, Duration::ZERO), [0; 0]);
        second_peer.write_all(&[1; BUFFER_BYTES + 1]).unwrap();
        assert_eq!(names(&mut poller, Duration::from_secs(10)), [9]);
        while second.receive().unwrap().len() < BUFFER_BYTES + 1 {}
        second.forget(BUFFER_BYTES - 1);
        assert_eq!(second.receive().unwrap(), [1; 2], "what came last is kept");
        second.clear();
        assert_eq!(second.receive().unwrap(), [0; 0], "nothing more is there, and that is no error");
        drop(first_peer);
        assert_eq!(names(&mut poller, Duration::from_secs(10)), [7]);
        assert_eq!(first.receive().unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_wait_of_less_than_a_millisecond_is_none_of_one() {
        let (socket, _peer) = pair();
        let mut poller = Poller::new().unwrap();
        poller.add(&socket, 0).unwrap();
        let quickest = || {
            let begun = std::time::Instant::now();
            assert_eq!(names(&mut poller, Duration::from_micros(100)), [0; 0]);
            begun.elapsed()
        };
        let quickest = std::iter::repeat_with(quickest).take(50).min().unwrap();
        assert!(quickest >= Duration::from_micros(100) && quickest < Duration::from_millis(1), "{quickest:?}");
    }

    #[test]
    fn a_request_that_finds_no_room_is_written_when_there_is_some() {
        let (mut socket, mut peer) = pair();
        let request: Vec<u8> = (0..8_000_000_u32).map(|byte| byte as u8).collect();
        let expected = request.clone();
        let reader = std::thread::spawn(move || {
            let mut all = vec![0; expected.len()];
            peer.read_exact(&mut all).unwrap();
            all == expected
        });
        socket.send(&request).unwrap();
        assert!(reader.join().unwrap());
    }
}
