//! The open loop of a worker: a terminal that is free takes the next arrival of the queue and submits when its time has come, or at once when that has
//! passed. While terminals wait for answers, one of them free, the worker waits for whichever comes first: an answer or the arrival.

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::time::Duration;

use super::super::open_loop::Arrivals;
use super::Worker;
use crate::system::{Completion, SystemError};

/// Longest sleep, after which a worker looks whether the trial is over.
const LONGEST_NAP_NS: u64 = 50_000_000;
/// A worker that is woken early spins until the arrival; no longer than this, so that it does not take the CPU from the others.
const MOST_EARLY_NS: u64 = 50_000;
/// How fast [`WakeUp`] forgets the quickest wake-up: by a part of the difference.
const FORGET: u64 = 64;

impl Worker {
    /// As [`Worker::drive`], for what arrives.
    pub(super) fn drive_open(&mut self, arrivals: &Arrivals) -> Result<(), SystemError> {
        // By default the kernel wakes 50 µs late, to save energy. Where it refuses, the measured lateness says so.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let now_ns = self.shared.now_ns();
        self.lock_recorder().rest(now_ns);
        let free = (0..self.streams.len()).collect();
        let mut open = OpenWorker {
            worker: self,
            arrivals,
            free,
            free_since_ns: 0,
            next_ns: None,
            outstanding: 0,
            wake_up: WakeUp::default(),
            spun_ns: 0,
        };
        let outcome = open.run();
        open.give_back();
        outcome
    }
}

struct OpenWorker<'a> {
    worker: &'a mut Worker,
    arrivals: &'a Arrivals,
    /// Terminals without a transaction, by index; the one that has been free for longest comes first, so that all take their turns.
    free: VecDeque<usize>,
    /// Since when there has been one.
    free_since_ns: u64,
    /// The arrival that was taken for the first free terminal. Not more: other workers may be quicker.
    next_ns: Option<u64>,
    outstanding: usize,
    wake_up: WakeUp,
    /// Since the last start.
    spun_ns: u64,
}

impl OpenWorker<'_> {
    fn run(&mut self) -> Result<(), SystemError> {
        let mut completions = Vec::with_capacity(self.free.len());
        loop {
            let due_ns = self.start_due()?;
            match (self.outstanding, due_ns) {
                // A terminal is free, and yet nothing is due any more: the trial is over.
                (0, None) => return Ok(()),
                (0, Some(due_ns)) => self.nap(due_ns),
                (_, None) => self.worker.connection.wait(&mut completions)?,
                (_, Some(due_ns)) => self.wait_until(due_ns, &mut completions)?,
            }
            self.end(&mut completions)?;
        }
    }

    /// Submits what has arrived, as long as terminals are free. Returns when the transaction arrives that the next free one is to submit; `None`: no
    /// terminal is free, or the trial is over.
    fn start_due(&mut self) -> Result<Option<u64>, SystemError> {
        while let Some(&index) = self.free.front() {
            let now_ns = self.worker.shared.now_ns();
            if self.worker.is_over(now_ns) {
                self.give_back();
                return Ok(None);
            }
            let intended_ns = *self.next_ns.get_or_insert_with(|| self.arrivals.take());
            if intended_ns > now_ns {
                return Ok(Some(intended_ns));
            }
            self.next_ns = None;
            self.free.pop_front();
            self.start(index, intended_ns, now_ns)?;
        }
        Ok(None)
    }

    fn start(&mut self, index: usize, intended_ns: u64, now_ns: u64) -> Result<(), SystemError> {
        let was_free = self.free_since_ns <= intended_ns;
        let mut recorder = self.worker.lock_recorder();
        if self.outstanding == 0 {
            recorder.resume(now_ns);
        }
        if let Some(open) = &mut recorder.open {
            open.start(intended_ns, now_ns, was_free, std::mem::take(&mut self.spun_ns));
        }
        drop(recorder);
        let terminal = self.worker.first_terminal + index as u32;
        let transaction = self.worker.streams[index].next();
        // Before the submission, since a blocking adapter executes the transaction in it.
        self.worker.shared.outstanding[terminal as usize].arrive(intended_ns, transaction.type_index(), now_ns);
        self.worker.connection.submit(terminal, &transaction)?;
        self.outstanding += 1;
        Ok(())
    }

    /// Records what is over; its terminals are free again.
    fn end(&mut self, completions: &mut Vec<Completion>) -> Result<(), SystemError> {
        if completions.is_empty() {
            return Ok(());
        }
        let now_ns = self.worker.shared.now_ns();
        self.worker.record(now_ns, completions)?;
        if self.free.is_empty() {
            self.free_since_ns = now_ns;
        }
        for completion in completions.drain(..) {
            self.free.push_back((completion.terminal - self.worker.first_terminal) as usize);
            self.outstanding -= 1;
        }
        if self.outstanding == 0 {
            self.worker.lock_recorder().rest(now_ns);
        }
        Ok(())
    }

    /// Sleeps until an arrival, or a little less; spins where that is all that is left.
    fn nap(&mut self, due_ns: u64) {
        let now_ns = self.worker.shared.now_ns();
        match self.wake_up.nap_ns(due_ns.saturating_sub(now_ns)) {
            0 => {
                while self.worker.shared.now_ns() < due_ns {
                    std::hint::spin_loop();
                }
                self.spun_ns += self.worker.shared.now_ns() - now_ns;
            }
            nap_ns => {
                std::thread::sleep(Duration::from_nanos(nap_ns));
                self.wake_up.learn(self.worker.shared.now_ns().saturating_sub(now_ns + nap_ns));
            }
        }
    }

    /// Waits for an answer until an arrival, or for a little less.
    fn wait_until(&mut self, due_ns: u64, completions: &mut Vec<Completion>) -> Result<(), SystemError> {
        let now_ns = self.worker.shared.now_ns();
        let nap_ns = self.wake_up.nap_ns(due_ns.saturating_sub(now_ns));
        self.worker.connection.wait_for(Duration::from_nanos(nap_ns), completions)?;
        if completions.is_empty() {
            let late_ns = self.worker.shared.now_ns().saturating_sub(now_ns + nap_ns);
            match nap_ns {
                // Asked again and again, which is a way of spinning.
                0 => self.spun_ns += late_ns,
                _ => self.wake_up.learn(late_ns),
            }
        }
        Ok(())
    }

    fn give_back(&mut self) {
        if let Some(intended_ns) = self.next_ns.take() {
            self.arrivals.give_back(intended_ns);
        }
    }
}

/// How long this machine takes to wake a thread, at the quickest: so much earlier it is asked to.
#[derive(Default)]
struct WakeUp {
    quickest_ns: u64,
}

impl WakeUp {
    /// How long to sleep with so much time left; 0: not worth it.
    fn nap_ns(&self, left_ns: u64) -> u64 {
        left_ns.saturating_sub(self.quickest_ns).min(LONGEST_NAP_NS)
    }

    /// A sleep ended so much late.
    fn learn(&mut self, late_ns: u64) {
        let late_ns = late_ns.min(MOST_EARLY_NS);
        self.quickest_ns = late_ns.min(self.quickest_ns + late_ns.saturating_sub(self.quickest_ns) / FORGET);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quickest_wake_up_is_learnt_and_forgotten_slowly() {
        let mut wake_up = WakeUp::default();
        assert_eq!(wake_up.nap_ns(1000), 1000);
        (0..1000).for_each(|_| wake_up.learn(20_000));
        assert!((19_900..=20_000).contains(&wake_up.quickest_ns), "{}", wake_up.quickest_ns);
        assert_eq!(wake_up.nap_ns(15_000), 0);
        assert_eq!(wake_up.nap_ns(60 * 1_000_000_000), LONGEST_NAP_NS);
        wake_up.learn(1_000_000_000);
        assert!(wake_up.quickest_ns < 20_500, "a thread that was held up once is no measure: {}", wake_up.quickest_ns);
        wake_up.learn(3000);
        assert_eq!(wake_up.quickest_ns, 3000);
        (0..100_000).for_each(|_| wake_up.learn(u64::MAX));
        assert!((MOST_EARLY_NS - FORGET..=MOST_EARLY_NS).contains(&wake_up.quickest_ns));
    }
}
