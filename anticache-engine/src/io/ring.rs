//! An io_uring that owns the buffers of the operations in flight.
//!
//! Invariant that makes the unsafe submissions sound: from submission to completion the kernel may access an operation's buffers, its
//! `iovec`s and its file; all three live in `operations` and are neither moved (the heap blocks are not) nor dropped until the
//! completion was reaped. Dropping the ring first waits for everything in flight.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use io_uring::{IoUring, opcode, squeue, types};

use super::AlignedBuf;

/// Number of an operation in flight.
pub type OperationId = usize;

struct Operation {
    tag: u64,
    buffers: Vec<AlignedBuf>,
    iovecs: Vec<libc::iovec>,
    file: Arc<File>,
    bytes: usize,
}

/// A finished operation with its buffers.
pub struct Completion {
    /// What the submitter named it.
    pub tag: u64,
    /// The buffers, given back.
    pub buffers: Vec<AlignedBuf>,
    /// Ok when all bytes were transferred; a short transfer is an error.
    pub result: io::Result<()>,
}

/// Reads and writes in flight of one partition.
pub struct IoRing {
    ring: IoUring,
    operations: Vec<Option<Operation>>,
    free: Vec<OperationId>,
    in_flight: usize,
    unsubmitted: usize,
    event: OwnedFd,
}

// SAFETY: the raw pointers are the `iovec`s into buffers that the same operation owns; a ring is used by one thread at a time.
unsafe impl Send for IoRing {}

impl IoRing {
    /// A ring for at most `depth` operations in flight.
    ///
    /// # Errors
    /// When the kernel refuses io_uring (too old, or disabled by `kernel.io_uring_disabled` or a seccomp filter).
    pub fn new(depth: u32) -> io::Result<Self> {
        let ring = IoUring::new(depth.next_power_of_two()).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!(
                    "io_uring is refused ({error}); see kernel.io_uring_disabled, or the container's seccomp profile"
                ),
            )
        })?;
        let event =
            rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK | rustix::event::EventfdFlags::CLOEXEC)?;
        ring.submitter().register_eventfd(event.as_raw_fd())?;
        let operations = (0..depth as usize).map(|_| None).collect();
        Ok(Self { ring, operations, free: (0..depth as usize).rev().collect(), in_flight: 0, unsubmitted: 0, event })
    }

    /// Becomes readable when an operation completed; for the event loop.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Resets the event.
    pub fn clear_event(&self) {
        let mut counter = [0u8; 8];
        // Nothing to read means nothing to reset.
        let _ = rustix::io::read(&self.event, &mut counter);
    }

    /// Operations not completed yet.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Whether another operation can be started.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Starts to read `buffer.len()` bytes at `offset`.
    ///
    /// # Panics
    /// If the ring has no room (see [`IoRing::has_room`]).
    pub fn read(&mut self, file: &Arc<File>, offset: u64, buffer: AlignedBuf, tag: u64) -> OperationId {
        self.start(file, vec![buffer], tag, |fd, iovecs| {
            opcode::Readv::new(fd, iovecs.as_ptr(), iovecs.len() as u32).offset(offset).build()
        })
    }

    /// Starts to write `buffers` one behind the other at `offset` in one operation; `durable` = complete only when on stable storage.
    ///
    /// # Panics
    /// If the ring has no room (see [`IoRing::has_room`]).
    pub fn write(
        &mut self,
        file: &Arc<File>,
        offset: u64,
        buffers: Vec<AlignedBuf>,
        durable: bool,
        tag: u64,
    ) -> OperationId {
        let flags = if durable { libc::RWF_DSYNC } else { 0 };
        self.start(file, buffers, tag, |fd, iovecs| {
            opcode::Writev::new(fd, iovecs.as_ptr(), iovecs.len() as u32).offset(offset).rw_flags(flags).build()
        })
    }

    fn start(
        &mut self,
        file: &Arc<File>,
        mut buffers: Vec<AlignedBuf>,
        tag: u64,
        entry: impl FnOnce(types::Fd, &[libc::iovec]) -> squeue::Entry,
    ) -> OperationId {
        let id = self.free.pop().expect("room in the ring");
        let iovecs: Vec<_> = buffers
            .iter_mut()
            .map(|buffer| libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() })
            .collect();
        let bytes = buffers.iter().map(|buffer| buffer.len()).sum();
        let entry = entry(types::Fd(file.as_raw_fd()), &iovecs).user_data(id as u64);
        self.operations[id] = Some(Operation { tag, buffers, iovecs, file: Arc::clone(file), bytes });
        // SAFETY: the entry points at the iovecs, buffers and file of the operation just stored (module invariant).
        unsafe { self.ring.submission().push(&entry) }.expect("the submission queue is as long as the operation table");
        self.in_flight += 1;
        self.unsubmitted += 1;
        id
    }

    /// The buffers of an operation in flight. Only meaningful for writes, whose buffers the kernel merely reads.
    pub fn buffers(&self, id: OperationId) -> &[AlignedBuf] {
        self.operations[id].as_ref().map_or(&[], |operation| &operation.buffers)
    }

    /// Hands the started operations to the kernel.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn submit(&mut self) -> io::Result<()> {
        while self.unsubmitted > 0 {
            match self.ring.submit() {
                Ok(submitted) => self.unsubmitted -= submitted,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Collects what completed, without waiting.
    pub fn reap(&mut self, completions: &mut Vec<Completion>) {
        if self.in_flight == 0 {
            return;
        }
        for entry in self.ring.completion() {
            let id = entry.user_data() as usize;
            let operation = self.operations[id].take().expect("a completion belongs to an operation in flight");
            self.free.push(id);
            self.in_flight -= 1;
            let result = match usize::try_from(entry.result()) {
                Ok(bytes) if bytes == operation.bytes => Ok(()),
                Ok(bytes) => Err(io::Error::other(format!("short transfer: {bytes} of {} bytes", operation.bytes))),
                Err(_) => Err(io::Error::from_raw_os_error(-entry.result())),
            };
            drop((operation.iovecs, operation.file));
            completions.push(Completion { tag: operation.tag, buffers: operation.buffers, result });
        }
    }

    /// Waits until at least one operation completed, then collects.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn wait(&mut self, completions: &mut Vec<Completion>) -> io::Result<()> {
        self.submit()?;
        if self.in_flight > 0 && self.ring.completion().is_empty() {
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        }
        self.reap(completions);
        Ok(())
    }
}

impl Drop for IoRing {
    fn drop(&mut self) {
        let mut completions = Vec::new();
        while self.in_flight > 0 {
            if self.wait(&mut completions).is_err() {
                // The kernel may still use the buffers: leak them rather than free memory that it writes to.
                std::mem::forget(std::mem::take(&mut self.operations));
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::{aligned_buf, open_direct};

    #[test]
    fn writes_then_reads_back_and_reports_short_reads() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let file = Arc::new(open_direct(&dir.path().join("file")).unwrap());
        let mut ring = IoRing::new(8).unwrap();
        let buffers: Vec<_> = (1..=3u8)
            .map(|n| {
                let mut buffer = aligned_buf(4096);
                buffer.fill(n);
                buffer
            })
            .collect();
        ring.write(&file, 8192, buffers, true, 7);
        let mut done = Vec::new();
        ring.wait(&mut done).unwrap();
        assert_eq!(done[0].tag, 7);
        done.remove(0).result.unwrap();
        ring.read(&file, 8192 + 4096, aligned_buf(8192), 8);
        ring.read(&file, 8192 + 8192, aligned_buf(8192), 9);
        while ring.in_flight() > 0 {
            ring.wait(&mut done).unwrap();
        }
        done.sort_by_key(|c| c.tag);
        assert!(done[0].result.is_ok());
        assert!(
            done[0].buffers[0][..4096].iter().all(|&b| b == 2) && done[0].buffers[0][4096..].iter().all(|&b| b == 3)
        );
        assert!(done[1].result.as_ref().unwrap_err().to_string().contains("short transfer: 4096 of 8192"));
    }
}
