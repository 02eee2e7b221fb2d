//! The terminals of a worker thread, each with connections of its own, served together: whichever has an answer goes on.

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::mysql::ycsb::KeyResult;
use super::sockets::{Poller, Socket};
use crate::system::{Completion, Connection, SystemError};
use crate::workload::Transaction;
use crate::ycsb::YcsbTransaction;

/// How often terminals are looked at that have waited for too long.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A terminal of YCSB: a transaction is a sequence of requests, each of them sent when the one before was answered.
pub trait Terminal: Send {
    /// Its connections; their places in the list name them.
    fn sockets(&self) -> Vec<&Socket>;

    /// Sends the first request of a transaction.
    ///
    /// # Errors
    /// As [`Connection::submit`].
    fn begin(&mut self, transaction: &YcsbTransaction<'_>) -> Result<(), SystemError>;

    /// Goes on with what a connection has received: sends the next request, or tells how the transaction ended. `None`: it goes on.
    ///
    /// # Errors
    /// As [`Connection::wait`].
    fn go_on(&mut self, socket: usize) -> Result<Option<KeyResult>, SystemError>;

    /// What was rolled back by the system and repeated in the transaction that ended.
    fn take_retries(&mut self) -> Vec<&'static str>;

    /// The error of an answer that has not come for so long; `None`: it may still come.
    fn overdue(&self, waited: Duration) -> Option<SystemError>;
}

/// Terminals that share a thread.
pub struct Terminals<T> {
    first: u32,
    terminals: Vec<T>,
    /// Since when each waits for an answer.
    waiting: Vec<Option<Instant>>,
    poller: Poller,
    sockets_each: u64,
    looked: Instant,
}

impl<T: Terminal> Terminals<T> {
    /// Opens each terminal of the range.
    ///
    /// # Errors
    /// What `open` returns.
    pub fn open(
        range: Range<u32>,
        mut open: impl FnMut() -> Result<T, SystemError>,
    ) -> Result<Terminals<T>, SystemError> {
        let first = range.start;
        let terminals = range.map(|_| open()).collect::<Result<Vec<T>, SystemError>>()?;
        let sockets_each = terminals.first().map_or(1, |terminal| terminal.sockets().len()) as u64;
        let mut poller = Poller::new().map_err(|error| kernel(&error))?;
        let sockets = terminals.iter().flat_map(|terminal| terminal.sockets());
        for (name, socket) in (0..).zip(sockets) {
            poller.add(socket, name).map_err(|error| kernel(&error))?;
        }
        Ok(Terminals {
            first,
            waiting: vec![None; terminals.len()],
            terminals,
            poller,
            sockets_each,
            looked: Instant::now(),
        })
    }

    /// Waits once, so long at most, and goes on with all that has come.
    fn go_on(&mut self, limit: Duration, completions: &mut Vec<Completion>) -> Result<(), SystemError> {
        let ready = self.poller.wait(limit).map_err(|error| kernel(&error))?;
        let now = Instant::now();
        for name in ready {
            let (index, socket) = ((name / self.sockets_each) as usize, (name % self.sockets_each) as usize);
            let terminal = &mut self.terminals[index];
            let ended = terminal.go_on(socket)?;
            self.waiting[index] = ended.is_none().then_some(now);
            if let Some(result) = ended {
                completions.push(result.completion(self.first + index as u32, terminal.take_retries()));
            }
        }
        if now - self.looked < LOOK_EVERY {
            return Ok(());
        }
        self.looked = now;
        self.check_overdue(now)
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
        self.terminals[index].begin(transaction)?;
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

fn kernel(error: &io::Error) -> SystemError {
    SystemError::Data(format!("cannot wait for many connections: {error}"))
}
