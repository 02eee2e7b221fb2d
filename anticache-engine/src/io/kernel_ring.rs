//! An io_uring that owns the buffers of the operations in flight.
//!
//! Invariant that makes the unsafe submissions sound: from submission to completion the kernel may access an operation's buffers, its
//! `iovec`s and its file; all three live in `operations` and are neither moved (the heap blocks are not) nor dropped until the
//! completion was reaped. Dropping the ring first waits for everything in flight.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use io_uring::{IoUring, opcode, types};

use super::AlignedBuf;
use super::files::{DiskFile, Handle};
use super::ring::{Buffers, Completion, OperationId, Request};

struct Operation {
    tag: u64,
    buffers: Buffers,
    iovecs: Vec<libc::iovec>,
    file: Arc<dyn DiskFile>,
    bytes: usize,
}

/// Operations in flight on the kernel's files.
pub(super) struct KernelRing {
    ring: IoUring,
    operations: Vec<Option<Operation>>,
    free: Vec<OperationId>,
    in_flight: usize,
    unsubmitted: usize,
    event: OwnedFd,
    pub(super) system_calls: u64,
    /// What the kernel answers to the next submissions.
    #[cfg(test)]
    refusals: Vec<i32>,
}

/// Whether the kernel only lacks memory, or room for completions, at this moment.
fn is_transient(error: &io::Error) -> bool {
    use rustix::io::Errno;
    [Errno::AGAIN, Errno::BUSY, Errno::INTR].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// How long is waited for a kernel that takes nothing and has nothing to complete.
const RESUBMIT_AFTER: std::time::Duration = std::time::Duration::from_millis(1);

// SAFETY: the raw pointers are the `iovec`s into buffers that the same operation owns; a ring is used by one thread at a time.
unsafe impl Send for KernelRing {}

impl KernelRing {
    pub(super) fn new(depth: u32) -> io::Result<Self> {
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
        Ok(Self {
            ring,
            operations,
            free: (0..depth as usize).rev().collect(),
            in_flight: 0,
            unsubmitted: 0,
            event,
            system_calls: 0,
            #[cfg(test)]
            refusals: Vec::new(),
        })
    }

    pub(super) fn event(&self) -> &OwnedFd {
        &self.event
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    pub(super) fn start(
        &mut self,
        file: &Arc<dyn DiskFile>,
        request: Request,
        mut buffers: Buffers,
        tag: u64,
    ) -> OperationId {
        let Handle::Kernel(descriptor) = file.handle() else {
            panic!("{file:?} is not a file of the kernel, whose ring this is");
        };
        let descriptor = types::Fd(descriptor.as_raw_fd());
        let id = self.free.pop().expect("room in the ring");
        let iovecs: Vec<_> = match request {
            Request::Write { .. } => buffers
                .iter_mut()
                .map(|buffer| libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() })
                .collect(),
            Request::Read { .. } | Request::Sync => Vec::new(),
        };
        let (entry, bytes) = match request {
            Request::Read { offset, bytes } => {
                let buffer = &mut buffers[0][..bytes];
                let entry = opcode::Read::new(descriptor, buffer.as_mut_ptr(), bytes as u32).offset(offset).build();
                (entry, bytes)
            }
            Request::Write { offset, durable } => {
                let flags = if durable { libc::RWF_DSYNC } else { 0 };
                let entry = opcode::Writev::new(descriptor, iovecs.as_ptr(), iovecs.len() as u32);
                (entry.offset(offset).rw_flags(flags).build(), iovecs.iter().map(|part| part.iov_len).sum())
            }
            Request::Sync => (opcode::Fsync::new(descriptor).flags(types::FsyncFlags::DATASYNC).build(), 0),
        };
        let entry = entry.user_data(id as u64);
        self.operations[id] = Some(Operation { tag, buffers, iovecs, file: Arc::clone(file), bytes });
        // SAFETY: the entry points at the iovecs, buffers and file of the operation just stored (module invariant).
        unsafe { self.ring.submission().push(&entry) }.expect("the submission queue is as long as the operation table");
        self.in_flight += 1;
        self.unsubmitted += 1;
        id
    }

    pub(super) fn buffers(&self, id: OperationId) -> &[AlignedBuf] {
        self.operations[id].as_ref().map_or(&[], |operation| &operation.buffers)
    }

    /// Hands over what was started. What the kernel does not take at this moment stays for the next call, for which the event is set: nobody else
    /// would wake who waits for it.
    pub(super) fn submit(&mut self) -> io::Result<()> {
        while self.unsubmitted > 0 {
            match self.enter(0) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_transient(&error) => {
                    // It can only be full when it is set.
                    let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn enter(&mut self, wanted: usize) -> io::Result<()> {
        #[cfg(test)]
        if let Some(errno) = self.refusals.pop() {
            return Err(io::Error::from_raw_os_error(errno));
        }
        self.system_calls += 1;
        self.unsubmitted -= self.ring.submit_and_wait(wanted)?.min(self.unsubmitted);
        Ok(())
    }

    pub(super) fn reap(&mut self, completions: &mut Vec<Completion>) {
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

    pub(super) fn wait(&mut self, completions: &mut Vec<Completion>) -> io::Result<()> {
        self.submit()?;
        if self.in_flight > 0 && self.ring.completion().is_empty() {
            if self.unsubmitted == self.in_flight {
                std::thread::sleep(RESUBMIT_AFTER);
            } else if let Err(error) = self.enter(1)
                && !is_transient(&error)
            {
                return Err(error);
            }
        }
        self.reap(completions);
        Ok(())
    }
}

impl Drop for KernelRing {
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
    use smallvec::smallvec;

    use super::{Buffers, KernelRing, Request};
    use crate::io::aligned_buf;
    use crate::io::files::{Files, KernelFiles};

    /// The kernel is short of memory for a moment: nothing is lost, and who waits for the disk is woken to try again.
    #[test]
    fn what_the_kernel_does_not_take_now_it_gets_later() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let file = KernelFiles::new().create(&dir.path().join("file")).unwrap();
        let mut ring = KernelRing::new(4).unwrap();
        for errno in [libc::EAGAIN, libc::EBUSY, libc::EINTR] {
            let mut done = Vec::new();
            ring.start(&file, Request::Write { offset: 0, durable: true }, smallvec![aligned_buf(4096)], 1);
            ring.refusals = vec![errno];
            ring.submit().unwrap();
            let mut event = [0; 8];
            while done.is_empty() {
                // Only the event says when to look again.
                while rustix::io::read(ring.event(), &mut event).is_err() {
                    std::thread::yield_now();
                }
                ring.submit().unwrap();
                ring.reap(&mut done);
            }
            ring.start(&file, Request::Read { offset: 0, bytes: 4096 }, smallvec![aligned_buf(4096)], 2);
            ring.refusals = vec![errno; 5];
            while done.len() < 2 {
                ring.wait(&mut done).unwrap();
            }
            assert!(done.iter().all(|completion| completion.result.is_ok()) && ring.in_flight() == 0);
        }
        ring.start(&file, Request::Sync, Buffers::new(), 3);
        ring.refusals = vec![libc::EBADF];
        assert_eq!(ring.submit().unwrap_err().raw_os_error(), Some(libc::EBADF));
    }

    #[test]
    fn writes_then_reads_back_and_reports_short_reads() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let files = KernelFiles::new();
        let file = files.create(&dir.path().join("file")).unwrap();
        let mut ring = files.ring(8).unwrap();
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
        ring.fsync(&file, 10);
        done.clear();
        ring.wait(&mut done).unwrap();
        assert!(done[0].tag == 10 && done[0].result.is_ok() && done[0].buffers.is_empty());
    }
}
