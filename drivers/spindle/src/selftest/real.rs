//! Runs a workload on a real block device: the same stream that the model gets in virtual time.

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use io_uring::{IoUring, opcode, squeue, types};

use crate::daemon::buffer::Buffer;
use crate::model::workload::{Access, Workload};
use crate::model::{Operation, SECTOR_BYTES};

/// What was measured.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    /// Reads or writes that ended; flushes are not counted.
    pub operations: u64,
    /// From the start to the last end.
    pub seconds: f64,
}

struct Loop {
    ring: IoUring,
    file: std::fs::File,
    slots: Vec<(Buffer, Access)>,
    in_flight: usize,
}

/// Runs the workload, past the page cache, until its operations or seconds are over, or `stop` is set.
pub fn run(device: &Path, workload: &Workload, stop: &AtomicBool) -> Result<Measured> {
    if let Some(fault) = workload.fault() {
        bail!("{fault}");
    }
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT | libc::O_EXCL).open(device);
    let file = file.with_context(|| format!("{}", device.display()))?;
    let depth = workload.queue_depth;
    let ring = IoUring::new(depth.next_power_of_two() as u32).context("io_uring is not available")?;
    let nothing = Access { operation: Operation::Flush, first_sector: 0, sectors: 0 };
    let bytes = workload.sectors as usize * SECTOR_BYTES as usize;
    let slots = (0..depth).map(|_| (Buffer::copy_of(&vec![0x5a; bytes]), nothing)).collect();
    let mut running = Loop { ring, file, slots, in_flight: 0 };
    running.run(workload, stop)
}

impl Loop {
    fn run(&mut self, workload: &Workload, stop: &AtomicBool) -> Result<Measured> {
        let mut accesses = workload.accesses();
        let began = Instant::now();
        let (mut operations, mut seconds) = (0, 0.0);
        let mut failed = None;
        let mut ended: Vec<usize> = (0..self.slots.len()).collect();
        loop {
            for slot in ended.drain(..) {
                let over = workload.seconds.is_some_and(|limit| began.elapsed().as_secs_f64() >= limit);
                let go_on = !over && failed.is_none() && !stop.load(Ordering::Relaxed);
                if let Some(access) = go_on.then(|| accesses.next()).flatten() {
                    self.begin(slot, access)?;
                }
            }
            if self.in_flight == 0 {
                break;
            }
            self.wait(&mut ended)?;
            for slot in &ended {
                operations += u64::from(self.slots[*slot].1.operation != Operation::Flush);
            }
            seconds = began.elapsed().as_secs_f64();
            failed = failed.or_else(|| self.fault(&ended));
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(Measured { operations, seconds }),
        }
    }

    fn fault(&mut self, ended: &[usize]) -> Option<anyhow::Error> {
        let short = ended.iter().find(|slot| self.slots[**slot].0.is_empty())?;
        Some(anyhow::anyhow!("{:?} failed", self.slots[*short].1))
    }

    fn begin(&mut self, slot: usize, access: Access) -> Result<()> {
        let fd = types::Fd(self.file.as_raw_fd());
        let (buffer, now) = &mut self.slots[slot];
        *now = access;
        let (bytes, offset) = (access.sectors * SECTOR_BYTES as u32, access.first_sector * SECTOR_BYTES);
        let entry: squeue::Entry = match access.operation {
            Operation::Read => opcode::Read::new(fd, buffer.as_mut_ptr(), bytes).offset(offset).build(),
            Operation::Write => opcode::Write::new(fd, buffer.as_ptr(), bytes).offset(offset).build(),
            Operation::Flush => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
        };
        // SAFETY: the slot's buffer holds `bytes` (every access of a workload has its size) and stays in `self.slots`,
        // unmoved and otherwise unused, until the slot's completion was seen: `run` ends only when none is in flight, and
        // when waiting itself fails the process is given up (`wait`). `self.file` outlives the ring's use of it.
        unsafe { self.ring.submission().push(&entry.user_data(slot as u64)) }
            .context("the submission queue is full")?;
        self.in_flight += 1;
        Ok(())
    }

    fn wait(&mut self, ended: &mut Vec<usize>) -> Result<()> {
        while let Err(error) = self.ring.submit_and_wait(1) {
            if error.raw_os_error() != Some(libc::EINTR) {
                // Requests may be in flight into buffers of this function's caller: nothing may be freed any more.
                eprintln!("Error: io_uring cannot be waited for: {error}");
                std::process::abort();
            }
        }
        for completion in self.ring.completion() {
            let slot = completion.user_data() as usize;
            self.in_flight -= 1;
            let access = self.slots[slot].1;
            if i64::from(completion.result()) != i64::from(access.sectors) * SECTOR_BYTES as i64 {
                // An empty buffer marks the slot as failed; its memory is not in use any more.
                self.slots[slot].0 = Buffer::take(0);
            }
            ended.push(slot);
        }
        Ok(())
    }
}
