//! The thread that writes the image. One thread and one queue: what the drive finished first is written first, so a flush
//! or a completed write is answered only when everything before it is in the image.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use super::buffer::{Buffer, LARGEST_BYTES};
use super::disk::{Done, Shared};
use super::late::Kind;
use super::lock;
use super::overlay::Snapshot;
use crate::model::SECTOR_BYTES;

/// Work for the platter thread.
pub enum Job {
    /// These sectors have reached the platters.
    Destage(Snapshot),
    /// A write past the cache has reached the platters.
    Write {
        /// Where, in bytes.
        offset: u64,
        /// What.
        data: Buffer,
        /// Its reply.
        done: Done,
        /// When that is due.
        due_ns: u64,
    },
    /// A flush has ended.
    Flush {
        /// Its reply.
        done: Done,
        /// When that is due.
        due_ns: u64,
    },
    /// Tells how many destages could not be written, after everything before was tried.
    Barrier(Sender<usize>),
}

/// The platter thread's state.
pub struct Platter {
    shared: Arc<Shared>,
    /// Destages that the host refused, in order. Their sectors stay in the overlay, so nothing stale is read.
    refused: VecDeque<Snapshot>,
}

impl Platter {
    /// Works until the senders are gone.
    pub fn run(shared: Arc<Shared>, jobs: &Receiver<Job>) {
        let mut platter = Self { shared, refused: VecDeque::new() };
        for job in jobs {
            platter.work(job);
        }
    }

    fn work(&mut self, job: Job) {
        match job {
            Job::Destage(snapshot) => {
                if self.write_snapshot(&snapshot).is_err() {
                    self.refused.push_back(snapshot);
                }
                self.shared.overlay_shrank();
            }
            Job::Write { offset, data, done, due_ns } => {
                let result = self.shared.image.write(&data, offset).map(|()| &[][..]);
                done(result.map_err(|_| libc::EIO));
                self.shared.replied(Kind::Write, due_ns);
            }
            Job::Flush { done, due_ns } => {
                let refused = self.retry();
                done(if refused == 0 { Ok(&[]) } else { Err(libc::EIO) });
                self.shared.replied(Kind::Flush, due_ns);
            }
            Job::Barrier(reply) => {
                // Nobody waits any more when the asking command gave up.
                let _ = reply.send(self.retry());
            }
        }
    }

    /// Tries the refused destages again; returns how many are left.
    fn retry(&mut self) -> usize {
        while let Some(snapshot) = self.refused.pop_front() {
            // What was written again since, or lost in a power cut, must not come back.
            let snapshot = lock(&self.shared.overlay).still_held(snapshot);
            if self.write_snapshot(&snapshot).is_err() {
                self.refused.push_front(snapshot);
                break;
            }
        }
        self.refused.len()
    }

    fn write_snapshot(&self, snapshot: &Snapshot) -> std::io::Result<()> {
        write_to_image(&self.shared, snapshot)?;
        lock(&self.shared.overlay).settle(snapshot);
        Ok(())
    }
}

/// Writes the sectors that the snapshot holds, contiguous ones together.
pub fn write_to_image(shared: &Shared, snapshot: &Snapshot) -> std::io::Result<()> {
    let mut at = 0;
    while at < snapshot.versions.len() {
        let run = snapshot.versions[at..].iter().take_while(|v| v.is_some()).count();
        let run = run.min(LARGEST_BYTES / SECTOR_BYTES as usize);
        if run == 0 {
            at += 1;
            continue;
        }
        let mut buffer = Buffer::take(run * SECTOR_BYTES as usize);
        let versions = snapshot.versions[at..at + run].iter().flatten();
        for (sector, version) in buffer.chunks_exact_mut(SECTOR_BYTES as usize).zip(versions) {
            sector.copy_from_slice(version.bytes());
        }
        shared.image.write(&buffer, (snapshot.first_sector + at as u64) * SECTOR_BYTES)?;
        at += run;
    }
    Ok(())
}
