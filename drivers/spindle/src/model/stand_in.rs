//! STAND-IN until the mechanical model is merged: every request takes 5 ms, one after another; a write with the cache
//! on takes 0.1 ms and is destaged after that.

use super::{Event, Operation, PowerCut, Request};
use crate::profile::{Profile, ProfileError};
use serde::Serialize;
use std::collections::VecDeque;

const SERVICE_NS: u64 = 5_000_000;

/// What was done.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Counters {
    /// Requests completed.
    pub completed: u64,
}

/// A drive of constant latency.
#[derive(Debug)]
pub struct Drive {
    cache: bool,
    queue: VecDeque<Request>,
    dirty: VecDeque<(u64, u32)>,
    current: Option<(Work, u64)>,
    acknowledged: Vec<(u64, u64)>,
    counters: Counters,
    began: Vec<Event>,
}

#[derive(Debug)]
enum Work {
    Request(Request),
    Destage(u64, u32),
}

impl Drive {
    /// A drive.
    pub fn new(_: &Profile, _region_sectors: u64, _seed: u64) -> Result<Self, ProfileError> {
        Ok(Self {
            cache: true,
            queue: VecDeque::new(),
            dirty: VecDeque::new(),
            current: None,
            acknowledged: Vec::new(),
            counters: Counters::default(),
            began: Vec::new(),
        })
    }

    /// Takes a request.
    pub fn submit(&mut self, now_ns: u64, request: Request) {
        if self.cache && request.operation == Operation::Write {
            self.acknowledged.push((request.id, now_ns + 100_000));
            self.dirty.push_back((request.first_sector, request.sectors));
        } else {
            self.queue.push_back(request);
        }
        let mut began = std::mem::take(&mut self.began);
        self.pick(now_ns, &mut began);
        self.began = began;
    }

    fn pick(&mut self, now_ns: u64, events: &mut Vec<Event>) {
        if self.current.is_some() {
            return;
        }
        let flush_waits = self.queue.front().is_some_and(|r| r.operation == Operation::Flush);
        if !self.queue.is_empty() && (!flush_waits || self.dirty.is_empty()) {
            if let Some(request) = self.queue.pop_front() {
                let took = if request.operation == Operation::Flush { 0 } else { SERVICE_NS };
                self.current = Some((Work::Request(request), now_ns + took));
            }
        } else if let Some((first_sector, sectors)) = self.dirty.pop_front() {
            events.push(Event::DestageBegan { first_sector, sectors, at_ns: now_ns });
            self.current = Some((Work::Destage(first_sector, sectors), now_ns + SERVICE_NS));
        }
    }

    /// Goes on to `until_ns`.
    pub fn advance(&mut self, until_ns: u64, events: &mut Vec<Event>) {
        events.append(&mut self.began);
        while let Some(next) = self.next_event_ns().filter(|n| *n <= until_ns) {
            if let Some(i) = self.acknowledged.iter().position(|(_, at)| *at == next) {
                let (id, at_ns) = self.acknowledged.remove(i);
                self.counters.completed += 1;
                events.push(Event::Completed { id, at_ns });
                self.pick(at_ns, events);
                continue;
            }
            match self.current.take() {
                Some((Work::Request(request), at_ns)) => {
                    self.counters.completed += 1;
                    events.push(Event::Completed { id: request.id, at_ns });
                }
                Some((Work::Destage(first_sector, sectors), at_ns)) => {
                    events.push(Event::DestageEnded { first_sector, sectors, at_ns });
                }
                None => {}
            }
            self.pick(next, events);
        }
    }

    /// When something happens next.
    pub fn next_event_ns(&self) -> Option<u64> {
        let acknowledged = self.acknowledged.iter().map(|(_, at)| *at).min();
        [acknowledged, self.current.as_ref().map(|(_, at)| *at)].into_iter().flatten().min()
    }

    /// Turns the write cache on or off.
    pub fn set_write_cache(&mut self, on: bool) {
        self.cache = on;
    }

    /// Ends everything now.
    pub fn drain(&mut self, now_ns: u64, events: &mut Vec<Event>) {
        events.append(&mut self.began);
        let mut until = now_ns;
        while let Some(next) = self.next_event_ns() {
            until = until.max(next);
            self.advance(until, events);
        }
    }

    /// Cuts the power.
    pub fn cut_power(&mut self, _now_ns: u64) -> PowerCut {
        let mut cut = PowerCut::default();
        cut.requests.extend(self.acknowledged.drain(..).map(|(id, _)| id));
        cut.requests.extend(self.queue.drain(..).map(|r| r.id));
        self.dirty.clear();
        match self.current.take() {
            Some((Work::Request(request), _)) => {
                cut.requests.push(request.id);
                if request.operation == Operation::Write {
                    cut.interrupted = Some((request.first_sector, request.sectors / 2));
                }
            }
            Some((Work::Destage(first, sectors), _)) => cut.interrupted = Some((first, sectors / 2)),
            None => {}
        }
        cut
    }

    /// What was done.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Forgets what was done.
    pub fn reset_counters(&mut self) {
        self.counters = Counters::default();
    }
}
