//! The closed loop: every terminal has at most one transaction outstanding and submits the next when the last is over, at once or after its pause.
//! The same loop drives every system; so does the open one ([`open`]), in which a free terminal waits for an arrival instead.

mod open;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::open_loop::Arrivals;
use super::recorder::{Recorder, Spans, Timeline};
use crate::system::{Completion, Connection, Outcome, SystemError};
use crate::workload::TransactionStream;

/// What the workers of a trial share.
pub struct Shared {
    /// When the terminals started; all times are nanoseconds since then.
    pub started: Instant,
    pub spans: Spans,
    /// Ends the trial early.
    pub stop: Stop,
    pub timeline: Mutex<Timeline>,
    /// What every terminal waits for, by its number: for whoever asks from outside which of them hang.
    pub outstanding: Vec<Outstanding>,
    /// What terminals take in an open loop; `None`: the loop is closed.
    pub arrivals: Option<Arrivals>,
}

impl Shared {
    /// Nanoseconds since the terminals started.
    pub fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }
}

/// A request to stop, which ends pauses.
#[derive(Default)]
pub struct Stop {
    requested: AtomicBool,
    asleep: Mutex<()>,
    wake: Condvar,
}

impl Stop {
    pub fn request(&self) {
        // Under the lock, so that nobody who has just looked falls asleep after the call.
        let _asleep = self.asleep.lock().unwrap_or_else(PoisonError::into_inner);
        self.requested.store(true, Ordering::Relaxed);
        self.wake.notify_all();
    }

    pub fn requested(&self) -> bool {
        self.requested.load(Ordering::Relaxed)
    }

    /// Sleeps for that time, or until the request.
    fn sleep(&self, time: Duration) {
        let asleep = self.asleep.lock().unwrap_or_else(PoisonError::into_inner);
        // A poisoned lock protects nothing here.
        let _ = self.wake.wait_timeout_while(asleep, time, |()| !self.requested());
    }
}

/// The transaction that a terminal waits for. Only its worker changes it: [`Outstanding::end`] with the
/// worker's recorder locked, so that with that lock a transaction is either outstanding or recorded.
#[derive(Default)]
pub struct Outstanding {
    /// When it was submitted, plus one; 0: there is none.
    submitted: AtomicU64,
    type_index: AtomicUsize,
    /// In an open loop, when it arrived.
    intended_ns: AtomicU64,
}

impl Outstanding {
    /// Type and time of submission of the transaction, unless it is over.
    pub fn get(&self) -> Option<(usize, u64)> {
        let submitted_ns = self.submitted.load(Ordering::Acquire).checked_sub(1)?;
        Some((self.type_index.load(Ordering::Relaxed), submitted_ns))
    }

    /// When the terminal's latest transaction arrived, in an open loop.
    pub fn intended_ns(&self) -> u64 {
        self.intended_ns.load(Ordering::Relaxed)
    }

    /// Begins what has arrived at `intended_ns`.
    fn arrive(&self, intended_ns: u64, type_index: usize, now_ns: u64) {
        self.intended_ns.store(intended_ns, Ordering::Relaxed);
        self.begin(type_index, now_ns);
    }

    fn begin(&self, type_index: usize, now_ns: u64) {
        self.type_index.store(type_index, Ordering::Relaxed);
        self.submitted.store(now_ns + 1, Ordering::Release);
    }

    fn end(&self) -> Option<(usize, u64)> {
        let ended = self.get();
        self.submitted.store(0, Ordering::Relaxed);
        ended
    }
}

/// A worker thread: a connection and the terminals that it serves.
pub struct Worker {
    shared: Arc<Shared>,
    connection: Box<dyn Connection>,
    first_terminal: u32,
    /// The transactions of its terminals.
    streams: Vec<Box<dyn TransactionStream>>,
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
        Worker { shared, connection, first_terminal, streams, recorder }
    }

    /// Runs until the measured interval ends or the trial is stopped, then lets what is outstanding
    /// complete.
    ///
    /// # Errors
    /// What the connection returns: the trial has failed.
    pub fn run(mut self) -> Result<(), SystemError> {
        let shared = Arc::clone(&self.shared);
        let outcome = match &shared.arrivals {
            None => self.drive(),
            Some(arrivals) => self.drive_open(arrivals),
        };
        // After an error nobody waits for an answer any longer: these terminals failed, they do not hang.
        for terminal in (self.first_terminal as usize..).take(self.streams.len()) {
            self.shared.outstanding[terminal].end();
        }
        outcome
    }

    fn drive(&mut self) -> Result<(), SystemError> {
        let mut completions = Vec::with_capacity(self.streams.len());
        let mut outstanding = 0;
        for index in 0..self.streams.len() {
            outstanding += usize::from(self.submit(index)?);
        }
        while outstanding > 0 {
            self.connection.wait(&mut completions)?;
            let now_ns = self.shared.now_ns();
            self.record(now_ns, &completions)?;
            let over = self.is_over(now_ns);
            for completion in completions.drain(..) {
                if over || !self.submit((completion.terminal - self.first_terminal) as usize)? {
                    outstanding -= 1;
                }
            }
        }
        Ok(())
    }

    fn is_over(&self, now_ns: u64) -> bool {
        now_ns >= self.shared.spans.measure_end_ns || self.shared.stop.requested()
    }

    /// Sleeps through a terminal's pause, which is not part of any latency and during which the terminal waits for nobody; false: the trial was over
    /// before it.
    fn pause(&self, pause: Duration) -> bool {
        let now_ns = self.shared.now_ns();
        self.lock_recorder().rest(now_ns);
        let left_ns = self.shared.spans.measure_end_ns.saturating_sub(now_ns);
        self.shared.stop.sleep(pause.min(Duration::from_nanos(left_ns)));
        let now_ns = self.shared.now_ns();
        if self.is_over(now_ns) {
            return false;
        }
        self.lock_recorder().resume(now_ns);
        true
    }

    /// Submits a terminal's next transaction after its pause; false: the trial was over before.
    fn submit(&mut self, index: usize) -> Result<bool, SystemError> {
        let pause = self.streams[index].pause();
        if !pause.is_zero() && !self.pause(pause) {
            return Ok(false);
        }
        let terminal = self.first_terminal + index as u32;
        let transaction = self.streams[index].next();
        // Before the submission, since a blocking adapter executes the transaction in it.
        self.shared.outstanding[terminal as usize].begin(transaction.type_index(), self.shared.now_ns());
        self.connection.submit(terminal, &transaction).map(|()| true)
    }

    fn lock_recorder(&self) -> MutexGuard<'_, Recorder> {
        self.recorder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, now_ns: u64, completions: &[Completion]) -> Result<(), SystemError> {
        let mut recorder = self.lock_recorder();
        if recorder.needs_flush(now_ns) {
            let mut timeline = self.shared.timeline.lock().unwrap_or_else(PoisonError::into_inner);
            recorder.flush(now_ns, &mut timeline);
        }
        for completion in completions {
            let terminal = completion.terminal;
            let outstanding = &self.shared.outstanding[terminal as usize];
            let Some((type_index, submitted_ns)) = outstanding.end() else {
                return Err(SystemError::Data(format!("terminal {terminal} got an answer that it did not wait for")));
            };
            recorder.record(now_ns, type_index, submitted_ns, completion);
            if let Some(open) = &mut recorder.open
                && completion.outcome == Outcome::Committed
            {
                open.end(outstanding.intended_ns(), now_ns);
            }
        }
        Ok(())
    }
}
