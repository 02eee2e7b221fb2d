//! The ring of a simulated disk: what was submitted is carried out when completions are asked for, in an order that the seed decides.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::SimulatedDisk;
use super::state::{Flight, FlightId, FlightKind};
use crate::io::AlignedBuf;
use crate::io::files::{DiskFile, Handle};
use crate::io::ring::{Buffers, Completion, OperationId, Request};

#[derive(Debug)]
struct Started {
    tag: u64,
    buffers: Buffers,
}

/// Operations in flight on a simulated disk.
#[derive(Debug)]
pub(in crate::io) struct SimulatedRing {
    disk: SimulatedDisk,
    number: u64,
    /// Of the process that made it.
    generation: u64,
    operations: Vec<Option<Started>>,
    free: Vec<OperationId>,
    unsubmitted: Vec<(OperationId, Flight)>,
    submitted: Vec<OperationId>,
    event: OwnedFd,
}

impl SimulatedRing {
    pub(super) fn new(disk: SimulatedDisk, depth: u32) -> io::Result<Self> {
        let flags = rustix::event::EventfdFlags::NONBLOCK | rustix::event::EventfdFlags::CLOEXEC;
        let event = rustix::event::eventfd(0, flags)?;
        let (number, generation) = {
            let mut state = disk.state();
            state.has_power(state.generation)?;
            state.rings += 1;
            (state.rings, state.generation)
        };
        let (operations, free) = ((0..depth).map(|_| None).collect(), (0..depth as usize).rev().collect());
        Ok(Self { disk, number, generation, operations, free, unsubmitted: Vec::new(), submitted: Vec::new(), event })
    }

    pub(in crate::io) fn event(&self) -> &OwnedFd {
        &self.event
    }

    pub(in crate::io) fn in_flight(&self) -> usize {
        self.unsubmitted.len() + self.submitted.len()
    }

    pub(in crate::io) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    pub(in crate::io) fn buffers(&self, id: OperationId) -> &[AlignedBuf] {
        self.operations[id].as_ref().map_or(&[], |started| &started.buffers)
    }

    pub(in crate::io) fn start(
        &mut self,
        file: &Arc<dyn DiskFile>,
        request: Request,
        buffers: Buffers,
        tag: u64,
    ) -> OperationId {
        let Handle::Simulated(handle) = file.handle() else {
            panic!("{file:?} is not a file of the simulated disk, whose ring this is");
        };
        let id = self.free.pop().expect("room in the ring");
        let kind = match request {
            Request::Read { offset, bytes } => FlightKind::Read { offset, bytes },
            Request::Write { offset, durable } => {
                let bytes = buffers.iter().flat_map(|part| part.iter().copied()).collect();
                FlightKind::Write { offset, bytes, durable }
            }
            Request::Sync => FlightKind::Sync { stamp: self.disk.state().next_stamp() },
        };
        self.operations[id] = Some(Started { tag, buffers });
        self.unsubmitted.push((id, Flight { handle, kind }));
        id
    }

    fn flight_id(&self, id: OperationId) -> FlightId {
        (self.number, id)
    }

    pub(in crate::io) fn submit(&mut self) {
        for (id, flight) in std::mem::take(&mut self.unsubmitted) {
            let flight_id = self.flight_id(id);
            let mut state = self.disk.state();
            // Without power it cannot be carried out: it is not found when its turn comes, and fails then.
            if state.has_power(self.generation).is_ok() {
                state.flights.insert(flight_id, flight);
            }
            drop(state);
            self.submitted.push(id);
        }
        self.signal();
    }

    /// Something will complete when asked for: the event loop must come back.
    fn signal(&self) {
        if !self.submitted.is_empty() {
            // The counter can only be full when the loop has been woken already.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// Completes a random number of the submitted operations, at least `at_least` where there are as many.
    pub(in crate::io) fn reap(&mut self, completions: &mut Vec<Completion>, at_least: usize) {
        let waiting = self.submitted.len();
        if waiting == 0 {
            return;
        }
        let count = (self.disk.state().chance.below(waiting as u64 + 1) as usize).max(at_least.min(waiting));
        for _ in 0..count {
            let chosen = self.disk.state().chance.below(self.submitted.len() as u64) as usize;
            let id = self.submitted.swap_remove(chosen);
            completions.extend(self.complete(id));
        }
        self.signal();
    }

    fn complete(&mut self, id: OperationId) -> Option<Completion> {
        let flight_id = self.flight_id(id);
        let Started { tag, mut buffers } = self.operations[id].take()?;
        self.free.push(id);
        let mut state = self.disk.state();
        let result = state.has_power(self.generation).and_then(|()| {
            state.land(flight_id, |found| {
                if let Some(buffer) = buffers.first_mut() {
                    buffer[..found.len()].copy_from_slice(found);
                }
            })
        });
        Some(Completion { tag, buffers, result })
    }
}

impl Drop for SimulatedRing {
    /// As the kernel's: everything in flight ends first. A process that shall die in the middle is killed before.
    fn drop(&mut self) {
        let mut completions = Vec::new();
        while !self.submitted.is_empty() {
            self.reap(&mut completions, 1);
        }
    }
}
