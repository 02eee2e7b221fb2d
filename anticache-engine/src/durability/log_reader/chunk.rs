//! Groups of the command log on their way from whoever reads them to whoever runs their transactions.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use super::group::Group;
use super::record::{Following, Raw, Record, Records};
use super::{Head, LogSummary};
use crate::durability::beside::Lane;
use crate::storage::region::{lines_of, prefetch_second_level};

/// A chunk is handed over when it has so many bytes: enough that handing over costs nothing, and few enough to stay in a processor's cache.
const CHUNK_BYTES: usize = 128 << 10;

/// Some groups of a segment, one behind the other.
pub(super) struct Chunk {
    segment: Arc<Head>,
    groups: Vec<Copied>,
    bytes: Vec<u8>,
}

/// A group of a chunk.
struct Copied {
    first_sequence: u64,
    body: Range<usize>,
    /// Of the log as far as this group, without its records.
    summary: LogSummary,
}

/// Hands over chunks as groups come.
pub(super) struct Chunks<'read, 'lane> {
    lane: &'read mut Lane<'lane, Chunk>,
    /// The one that is being filled.
    chunk: Option<Chunk>,
}

impl<'read, 'lane> Chunks<'read, 'lane> {
    pub(super) fn new(lane: &'read mut Lane<'lane, Chunk>) -> Self {
        Self { lane, chunk: None }
    }

    /// Takes a group of a segment, the last one of `summary`. Whoever comes with one of another segment has flushed before.
    pub(super) fn push(&mut self, segment: &Arc<Head>, group: &Group<'_>, summary: LogSummary) -> ControlFlow<()> {
        let chunk = self.chunk.get_or_insert_with(|| {
            let (mut groups, mut bytes) =
                self.lane.spare().map_or_else(Default::default, |spare| (spare.groups, spare.bytes));
            groups.clear();
            bytes.clear();
            Chunk { segment: Arc::clone(segment), groups, bytes }
        });
        let start = chunk.bytes.len();
        chunk.bytes.extend_from_slice(group.body);
        let body = start..chunk.bytes.len();
        chunk.groups.push(Copied { first_sequence: group.first_sequence, body, summary });
        if chunk.bytes.len() >= CHUNK_BYTES { self.flush() } else { ControlFlow::Continue(()) }
    }

    /// Hands over what there is.
    pub(super) fn flush(&mut self) -> ControlFlow<()> {
        self.chunk.take().map_or(ControlFlow::Continue(()), |chunk| self.lane.send(chunk))
    }
}

/// Hands out the records of chunks.
pub(super) struct HandOut<F> {
    on_record: F,
    /// Records before this one are not wanted.
    from: u64,
    records: u64,
    dropped: u64,
    /// What was read when nothing more was wanted.
    stopped: Option<LogSummary>,
}

impl<F: FnMut(Record<'_>) -> ControlFlow<()>> HandOut<F> {
    pub(super) fn new(from: u64, on_record: F) -> Self {
        Self { on_record, from, records: 0, dropped: 0, stopped: None }
    }

    pub(super) fn chunk(&mut self, chunk: &Chunk) -> ControlFlow<()> {
        // Another processor has written it.
        lines_of(&chunk.bytes).for_each(prefetch_second_level);
        chunk.groups.iter().try_for_each(|group| {
            let body = &chunk.bytes[group.body.clone()];
            self.group(&chunk.segment, group.first_sequence, body).map_break(|last| {
                self.stopped = Some(LogSummary { next_sequence: (last + 1).max(self.from), ..group.summary });
            })
        })
    }

    /// A break says which record was the last one.
    fn group(&mut self, segment: &Head, first_sequence: u64, body: &[u8]) -> ControlFlow<u64> {
        let procedure_names = segment.header.as_ref().map_or(&[][..], |header| &header.procedure_names);
        let mut records = Records(body);
        for sequence in first_sequence.. {
            let Some(Raw { procedure, multi, params }) = records.next() else { break };
            if sequence >= segment.limit {
                self.dropped += 1;
            } else if sequence >= self.from {
                self.records += 1;
                let procedure = procedure_names[usize::from(procedure)].as_str();
                let following = Following { procedure_names, records: records.clone() };
                let wanted = (self.on_record)(Record { sequence, procedure, multi, params, following });
                wanted.map_break(|()| sequence)?;
            }
        }
        ControlFlow::Continue(())
    }

    /// What the log held as far as it was wanted; `read` is what the reading of it gave.
    pub(super) fn summary<E>(self, read: Result<LogSummary, E>) -> Result<LogSummary, E> {
        let summary = self.stopped.map_or(read, Ok)?;
        Ok(LogSummary { records: self.records, dropped: self.dropped, ..summary })
    }
}
