//! What a partition does between transactions: completed I/O, waiting transactions that are ready, snapshots, eviction, fetches, and the groups of
//! its command log.

use std::io;
use std::time::{Duration, Instant};

use super::{Partition, ReplySink};
use crate::anticache::AntiCache;
use crate::durability::command_log::CommandLog;
use crate::io::ring::Completion;
use crate::net::frame::{Status, write_reply};
use crate::stats::PauseKind;
use crate::storage::tuples::flag;

/// What a tag of an I/O operation says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IoTag {
    /// A group of the command log.
    Log,
    /// A block, or sectors, being fetched: the packed key.
    Fetch(u64),
    /// An eviction's write, by its number.
    Evict(u32),
    /// A block that compaction reads.
    CompactRead,
    /// A block that compaction writes.
    CompactWrite,
    /// An operation of the snapshot under way.
    Snapshot(u32),
}

/// Bits of a tag below its kind.
const KIND_SHIFT: u32 = 56;

impl IoTag {
    pub(crate) fn pack(self) -> u64 {
        match self {
            Self::Log => 0,
            Self::Fetch(key) => 1 << KIND_SHIFT | key,
            Self::Evict(number) => 2 << KIND_SHIFT | u64::from(number),
            Self::CompactRead => 3 << KIND_SHIFT,
            Self::CompactWrite => 4 << KIND_SHIFT,
            Self::Snapshot(number) => 5 << KIND_SHIFT | u64::from(number),
        }
    }

    fn unpack(tag: u64) -> Self {
        match tag >> KIND_SHIFT {
            0 => Self::Log,
            1 => Self::Fetch(tag & ((1 << KIND_SHIFT) - 1)),
            2 => Self::Evict(tag as u32),
            3 => Self::CompactRead,
            4 => Self::CompactWrite,
            _ => Self::Snapshot(tag as u32),
        }
    }
}

impl Partition {
    /// Everything between transactions: completed I/O, merges, transactions that became ready, eviction, fetches, group commit. Never waits for
    /// the disk. Call it after each batch and whenever [`IoRing::event`](crate::io::ring::IoRing::event) fires.
    pub fn poll<S: ReplySink>(&mut self, sink: &mut S) {
        let mut since = Instant::now();
        self.events.begin_turn();
        self.complete_io(sink);
        let has_ready = self.has_ready();
        if has_ready {
            self.pauses.add(PauseKind::Turn, since);
        }
        self.run_ready(sink);
        if has_ready {
            since = Instant::now();
        }
        self.step_snapshot();
        self.keep_budget();
        self.start_io(sink);
        self.pauses.add(PauseKind::Turn, since);
    }

    /// The part of [`Partition::poll`] that runs no transaction.
    pub(super) fn poll_disk<S: ReplySink>(&mut self, sink: &mut S) {
        self.ring.clear_event();
        self.complete_io(sink);
        self.start_io(sink);
    }

    fn complete_io<S: ReplySink>(&mut self, sink: &mut S) {
        let mut completions = std::mem::take(&mut self.completions);
        self.ring.reap(&mut completions);
        for completion in completions.drain(..) {
            self.complete(completion, sink);
        }
        self.completions = completions;
        if let Some(anticache) = &mut self.anticache {
            anticache.begin_turn();
        }
        self.retry_writes();
        self.retry_merges();
        self.settle_multi(sink);
    }

    fn start_io<S: ReplySink>(&mut self, sink: &mut S) {
        self.start_fetches();
        self.compact();
        if let Err(error) = self.flush_log(false).and_then(|()| self.ring.submit()) {
            self.fail(error.to_string(), sink);
        }
    }

    pub(super) fn complete<S: ReplySink>(&mut self, completion: Completion, sink: &mut S) {
        match IoTag::unpack(completion.tag) {
            IoTag::Log => self.group_written(completion, sink),
            IoTag::Fetch(key) => self.fetched(key, completion),
            IoTag::Evict(number) => self.blocks_written(number, completion),
            IoTag::CompactRead => self.source_read(completion),
            IoTag::CompactWrite => self.compacted_block_written(completion),
            IoTag::Snapshot(number) => self.snapshot_io_ended(number, completion),
        }
    }

    fn group_written<S: ReplySink>(&mut self, mut completion: Completion, sink: &mut S) {
        if let Err(error) = completion.result {
            return self.fail(format!("command log: {error}"), sink);
        }
        let Some(log) = &mut self.log else { return };
        let through = log.multi_in_flight();
        self.unresolved_group = completion.buffers.pop();
        self.vote(through);
        self.release_group(sink);
    }

    /// Releases the durable log group, when what it holds of multi-partition transactions is resolved.
    pub(super) fn release_group<S: ReplySink>(&mut self, sink: &mut S) {
        let through = self.log.as_ref().and_then(CommandLog::multi_in_flight);
        if self.unresolved_group.is_none() || !self.is_resolved(through) {
            return;
        }
        self.ready.extend(self.after_release.drain(..));
        let (Some(log), Some(buffer)) = (&mut self.log, self.unresolved_group.take()) else {
            return;
        };
        let Some((group, mark)) = log.complete(buffer) else { return };
        for &(table, tuple) in &group.marked {
            let tuples = self.tables[usize::from(table)].tuples_mut();
            if tuples.is_live(tuple) {
                let flags = tuples.flags(tuple) & !mark;
                tuples.set_flags(tuple, flags);
            }
        }
        debug_assert_eq!(mark & !flag::UNSYNCED, 0);
        for (origin, frame) in group.replies() {
            sink.buffer(origin.connection, origin.epoch).extend_from_slice(frame);
        }
        log.recycle(group);
    }

    /// The command log cannot be written: whatever waits for it fails, and so does everything after it.
    pub(super) fn fail<S: ReplySink>(&mut self, reason: String, sink: &mut S) {
        self.unresolved_group = None;
        self.ready.extend(self.after_release.drain(..));
        self.fail_multi(&reason);
        if let Some(log) = &mut self.log {
            for origin in log.abandon() {
                self.counters.failed += 1;
                write_reply(
                    sink.buffer(origin.connection, origin.epoch),
                    origin.token,
                    Status::Failed,
                    reason.as_bytes(),
                );
            }
        }
        self.failure.get_or_insert(reason);
    }

    /// When to call [`Partition::poll`] next although nothing arrives and [`IoRing::event`](crate::io::ring::IoRing::event) does not fire.
    pub fn poll_after(&self) -> Option<Duration> {
        // Nothing else comes to let in the first of those that were held back, when they are all that there is.
        if !self.ready.is_empty() || (!self.held_back.is_empty() && self.under_way() == 0) {
            return Some(Duration::ZERO);
        }
        let step_due = self.snapshots.steps_in(self.executed());
        let group_due = self.log.as_ref().and_then(|log| log.due(Instant::now()));
        let blocks_due = self.anticache.as_ref().and_then(AntiCache::idle_for);
        group_due.into_iter().chain(blocks_due).chain(step_due).min()
    }

    /// Writes the log's group under construction when it is due; with `now`, in any case.
    pub(super) fn flush_log(&mut self, now: bool) -> io::Result<()> {
        let tag = IoTag::Log.pack();
        match &mut self.log {
            Some(log) if self.failure.is_none() && now => log.flush_now(&mut self.ring, tag),
            Some(log) if self.failure.is_none() => log.flush(&mut self.ring, tag),
            _ => Ok(()),
        }
    }
}
