//! The raw loopback: a thread that answers every request of a fixed size with a reply of a fixed size, through plain blocking sockets. What it reaches is
//! what the system's sockets allow; both sides do nothing else.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Instant;

use crate::harness;

/// Bytes read at once.
const BUFFER_BYTES: usize = 256 << 10;

/// Sizes of a request and of a reply.
#[derive(Clone, Copy)]
pub struct Sizes {
    pub request: usize,
    pub reply: usize,
}

/// A connection to the echoing thread, which ends with it.
pub struct Echo {
    stream: TcpStream,
    sizes: Sizes,
    buffer: Vec<u8>,
    thread: Option<JoinHandle<std::io::Result<()>>>,
}

impl Echo {
    /// Starts the thread on a CPU.
    ///
    /// # Errors
    /// What the system says.
    pub fn start(sizes: Sizes, cpu: usize) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let thread = std::thread::spawn(move || {
            harness::bind(cpu);
            let (stream, _) = listener.accept()?;
            answer(stream, sizes)
        });
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, sizes, buffer: vec![0; BUFFER_BYTES], thread: Some(thread) })
    }

    /// Round trips per second with so many requests outstanding.
    ///
    /// # Errors
    /// What the system says.
    pub fn measure(&mut self, outstanding: usize, seconds: f64) -> std::io::Result<f64> {
        let requests = vec![b'q'; outstanding * self.sizes.request];
        self.stream.write_all(&requests)?;
        let (started, mut done, mut received) = (Instant::now(), 0, 0);
        while started.elapsed().as_secs_f64() < seconds {
            let arrived = self.receive(&mut received)?;
            done += arrived;
            self.stream.write_all(&requests[..arrived * self.sizes.request])?;
        }
        let rate = done as f64 / started.elapsed().as_secs_f64();
        let mut left = outstanding;
        while left > 0 {
            left -= self.receive(&mut received)?;
        }
        Ok(rate)
    }

    /// Reads once; how many whole replies have come. `received` = bytes of the one that has begun to come.
    fn receive(&mut self, received: &mut usize) -> std::io::Result<usize> {
        let bytes = match self.stream.read(&mut self.buffer)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            bytes => bytes,
        };
        *received += bytes;
        let whole = *received / self.sizes.reply;
        *received %= self.sizes.reply;
        Ok(whole)
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        if let Some(Ok(Err(error))) = self.thread.take().map(JoinHandle::join) {
            eprintln!("warning: the echoing thread: {error}");
        }
    }
}

fn answer(mut stream: TcpStream, sizes: Sizes) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut replies = Vec::new();
    let mut received = 0;
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            bytes => received += bytes,
        }
        let whole = received / sizes.request;
        received %= sizes.request;
        replies.resize((whole * sizes.reply).max(replies.len()), b'r');
        stream.write_all(&replies[..whole * sizes.reply])?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_has_its_reply() {
        let mut echo = Echo::start(Sizes { request: 22, reply: 1013 }, 0).unwrap();
        for outstanding in [1, 1024, 3] {
            assert!(echo.measure(outstanding, 0.001).unwrap() > 0.0);
            echo.stream.set_nonblocking(true).unwrap();
            // Nothing is left over.
            assert_eq!(echo.stream.read(&mut [0; 1]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
            echo.stream.set_nonblocking(false).unwrap();
        }
    }
}
