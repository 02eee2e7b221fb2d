//! The closed loop: every terminal has one transaction outstanding and submits the next as soon as
//! the last is over. The same loop drives every system.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::recorder::{Recorder, Spans, Timeline};
use crate::system::{Completion, Connection, SystemError};
use crate::workload::TransactionStream;

/// What the workers of a trial share.
pub struct Shared {
    /// When the terminals started; all times are nanoseconds since then.
    pub started: Instant,
    pub spans: Spans,
    /// Set to end the trial early.
    pub stop: AtomicBool,
    pub timeline: Mutex<Timeline>,
}

impl Shared {
    /// Nanoseconds since the terminals started.
    pub fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }
}

/// One of a worker's terminals.
struct Terminal {
    stream: Box<dyn TransactionStream>,
    submitted_ns: u64,
    type_index: usize,
}

/// A worker thread: a connection and the terminals that it serves.
pub struct Worker {
    shared: Arc<Shared>,
    connection: Box<dyn Connection>,
    first_terminal: u32,
    terminals: Vec<Terminal>,
    /// Locked only between waits, so that the main thread can read it even when the server hangs.
    recorder: Arc<Mutex<Recorder>>,
}

impl Worker {
    pub fn new(
        shared: Arc<Shared>,
        connection: Box<dyn Connection>,
        first_terminal: u32,
        streams: Vec<Box<dyn TransactionStream>>,
        recorder: Arc<Mutex<Recorder>>,
    ) -> Worker {
        let terminal = |stream| Terminal { stream, submitted_ns: 0, type_index: 0 };
        let terminals = streams.into_iter().map(terminal).collect();
        Worker { shared, connection, first_terminal, terminals, recorder }
    }

    /// Runs until the measured interval ends or the trial is stopped, then lets what is outstanding
    /// complete.
    ///
    /// # Errors
    /// What the connection returns: the trial has failed.
    pub fn run(mut self) -> Result<(), SystemError> {
        let mut completions = Vec::with_capacity(self.terminals.len());
        for index in 0..self.terminals.len() {
            self.submit(index)?;
        }
        let mut outstanding = self.terminals.len();
        while outstanding > 0 {
            self.connection.wait(&mut completions)?;
            let now_ns = self.shared.now_ns();
            self.record(now_ns, &completions);
            let over = now_ns >= self.shared.spans.measure_end_ns || self.shared.stop.load(Ordering::Relaxed);
            for completion in completions.drain(..) {
                if over {
                    outstanding -= 1;
                } else {
                    self.submit((completion.terminal - self.first_terminal) as usize)?;
                }
            }
        }
        Ok(())
    }

    fn submit(&mut self, index: usize) -> Result<(), SystemError> {
        let terminal = &mut self.terminals[index];
        let transaction = terminal.stream.next();
        terminal.type_index = transaction.type_index();
        terminal.submitted_ns = self.shared.now_ns();
        self.connection.submit(self.first_terminal + index as u32, &transaction)
    }

    fn record(&self, now_ns: u64, completions: &[Completion]) {
        let mut recorder = self.recorder.lock().unwrap_or_else(PoisonError::into_inner);
        if recorder.needs_flush(now_ns) {
            let mut timeline = self.shared.timeline.lock().unwrap_or_else(PoisonError::into_inner);
            recorder.flush(now_ns, &mut timeline);
        }
        for completion in completions {
            let terminal = &self.terminals[(completion.terminal - self.first_terminal) as usize];
            let latency_ns = now_ns.saturating_sub(terminal.submitted_ns);
            recorder.record(now_ns, terminal.type_index, latency_ns, completion);
        }
    }
}
