//! Reads, writes and syncs that do not block, with completions: the kernel's (io_uring) or a simulated disk's.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::AlignedBuf;
use super::files::DiskFile;
use super::kernel_ring::KernelRing;
use super::simulated::SimulatedRing;

/// Number of an operation in flight.
pub type OperationId = usize;

/// Of an operation; most have one.
pub type Buffers = SmallVec<[AlignedBuf; 1]>;

/// What an operation does.
#[derive(Debug, Clone, Copy)]
pub(super) enum Request {
    /// Fills the first `bytes` of its buffer from `offset` of the file.
    Read { offset: u64, bytes: usize },
    /// Writes its buffers one behind the other at `offset`.
    Write { offset: u64, durable: bool },
    /// Makes durable what was completed before it was started.
    Sync,
}

/// A finished operation with its buffers.
pub struct Completion {
    /// What the submitter named it.
    pub tag: u64,
    /// The buffers, given back.
    pub buffers: Buffers,
    /// Ok when all bytes were transferred; a short transfer is an error.
    pub result: io::Result<()>,
}

// The kernel's lies here as it is: there are few rings, and it is the one that is in a hurry.
#[allow(clippy::large_enum_variant)]
enum Backend {
    Kernel(KernelRing),
    Simulated(SimulatedRing),
}

/// Operations in flight of one partition. Made by [`super::files::Files::ring`], for files of the same place.
pub struct IoRing(Backend);

impl IoRing {
    pub(super) fn kernel(depth: u32) -> io::Result<Self> {
        Ok(Self(Backend::Kernel(KernelRing::new(depth)?)))
    }

    pub(super) fn simulated(ring: SimulatedRing) -> Self {
        Self(Backend::Simulated(ring))
    }

    /// Becomes readable when an operation completed; for the event loop.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.eventfd().as_fd()
    }

    fn eventfd(&self) -> &OwnedFd {
        match &self.0 {
            Backend::Kernel(ring) => ring.event(),
            Backend::Simulated(ring) => ring.event(),
        }
    }

    /// Resets the event.
    pub fn clear_event(&self) {
        let mut counter = [0u8; 8];
        // Nothing to read means nothing to reset.
        let _ = rustix::io::read(self.eventfd(), &mut counter);
    }

    /// Operations not completed yet.
    pub fn in_flight(&self) -> usize {
        match &self.0 {
            Backend::Kernel(ring) => ring.in_flight(),
            Backend::Simulated(ring) => ring.in_flight(),
        }
    }

    /// System calls that operations have cost.
    pub fn system_calls(&self) -> u64 {
        match &self.0 {
            Backend::Kernel(ring) => ring.system_calls,
            Backend::Simulated(_) => 0,
        }
    }

    /// Whether another operation can be started.
    pub fn has_room(&self) -> bool {
        match &self.0 {
            Backend::Kernel(ring) => ring.has_room(),
            Backend::Simulated(ring) => ring.has_room(),
        }
    }

    /// Starts to read `buffer.len()` bytes at `offset`.
    ///
    /// # Panics
    /// If the ring has no room (see [`IoRing::has_room`]), or the file is of another place.
    pub fn read(&mut self, file: &Arc<dyn DiskFile>, offset: u64, buffer: AlignedBuf, tag: u64) -> OperationId {
        let bytes = buffer.len();
        self.read_some(file, offset, buffer, bytes, tag)
    }

    /// Starts to read `bytes` at `offset` into the beginning of `buffer`: the rest of it stays as it is.
    ///
    /// # Panics
    /// As [`IoRing::read`]; if the buffer is shorter.
    pub fn read_some(
        &mut self,
        file: &Arc<dyn DiskFile>,
        offset: u64,
        buffer: AlignedBuf,
        bytes: usize,
        tag: u64,
    ) -> OperationId {
        assert!((1..=buffer.len()).contains(&bytes), "{bytes} bytes into {}", buffer.len());
        self.start(file, Request::Read { offset, bytes }, smallvec![buffer], tag)
    }

    /// Starts to write `buffers` one behind the other at `offset` in one operation; `durable` = complete only when on stable storage.
    ///
    /// # Panics
    /// As [`IoRing::read`].
    pub fn write(
        &mut self,
        file: &Arc<dyn DiskFile>,
        offset: u64,
        buffers: Vec<AlignedBuf>,
        durable: bool,
        tag: u64,
    ) -> OperationId {
        self.start(file, Request::Write { offset, durable }, buffers.into(), tag)
    }

    /// Starts to make durable what has been written to a file: operations on it that completed before this call. What is in flight beside it may
    /// or may not be covered.
    ///
    /// # Panics
    /// As [`IoRing::read`].
    pub fn fsync(&mut self, file: &Arc<dyn DiskFile>, tag: u64) -> OperationId {
        self.start(file, Request::Sync, Buffers::new(), tag)
    }

    fn start(&mut self, file: &Arc<dyn DiskFile>, request: Request, buffers: Buffers, tag: u64) -> OperationId {
        match &mut self.0 {
            Backend::Kernel(ring) => ring.start(file, request, buffers, tag),
            Backend::Simulated(ring) => ring.start(file, request, buffers, tag),
        }
    }

    /// The buffers of an operation in flight. Only meaningful for writes, whose buffers are merely read.
    pub fn buffers(&self, id: OperationId) -> &[AlignedBuf] {
        match &self.0 {
            Backend::Kernel(ring) => ring.buffers(id),
            Backend::Simulated(ring) => ring.buffers(id),
        }
    }

    /// Hands the started operations over.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn submit(&mut self) -> io::Result<()> {
        match &mut self.0 {
            Backend::Kernel(ring) => ring.submit(),
            Backend::Simulated(ring) => {
                ring.submit();
                Ok(())
            }
        }
    }

    /// Collects what completed, without waiting.
    pub fn reap(&mut self, completions: &mut Vec<Completion>) {
        match &mut self.0 {
            Backend::Kernel(ring) => ring.reap(completions),
            Backend::Simulated(ring) => ring.reap(completions, 0),
        }
    }

    /// Hands over what was started, waits until at least one operation completed, then collects.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn wait(&mut self, completions: &mut Vec<Completion>) -> io::Result<()> {
        match &mut self.0 {
            Backend::Kernel(ring) => ring.wait(completions),
            Backend::Simulated(ring) => {
                ring.submit();
                ring.reap(completions, 1);
                Ok(())
            }
        }
    }
}
