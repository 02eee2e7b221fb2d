//! What happened at a partition and when, in two rings of bounded size that are read over the wire: its maintenance (evictions, compactions, snapshots,
//! errors), from which the paper's Figure 12 draws a line per eviction, and its traffic (fetches, merges, restarts), of which there is so much more that
//! it would push the other out.

use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

/// Events kept of each stream; an older one makes room for a newer one. 2 MB a partition each, outside the memory budget because they do not grow with
/// the data.
pub const KEPT_EVENTS: usize = 1 << 15;

/// One of the two rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Evictions, compactions, snapshots, errors.
    Maintenance = 0,
    /// Fetches, merges, restarts.
    Traffic = 1,
}

impl Stream {
    /// The stream of its number on the wire.
    pub fn from_wire(number: u8) -> Option<Self> {
        [Self::Maintenance, Self::Traffic].into_iter().find(|&stream| stream as u8 == number)
    }
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// An eviction transaction; `blocks`, `tuples`, `bytes` it wrote.
    Eviction,
    /// A block was asked for; `block`.
    Fetch,
    /// A block was merged; `block`, `tuples` brought back.
    Merge,
    /// A transaction was rolled back after its pre-pass; `tuples` evicted ones it needs.
    Restart,
    /// Blocks were compacted in the background; `blocks` before, `tuples`, `bytes` of the new one.
    Compaction,
    /// A snapshot began.
    SnapshotBegin,
    /// A snapshot is durable; `bytes` of it.
    SnapshotEnd,
    /// A block could not be read, written or trusted; `block`.
    BlockError,
}

impl EventKind {
    fn stream(self) -> Stream {
        match self {
            Self::Fetch | Self::Merge | Self::Restart => Stream::Traffic,
            _ => Stream::Maintenance,
        }
    }
}

/// One event. Fields that its kind does not use are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Event {
    /// Position in its stream, from 0.
    pub number: u64,
    /// When it ended, in microseconds since 1970; of traffic, when the first of the same turn of the executor did.
    pub at_us: u64,
    /// What.
    pub kind: EventKind,
    /// How long the executor was busy with it, in microseconds.
    pub took_us: u64,
    /// Which block.
    pub block: u32,
    /// How many blocks.
    pub blocks: u32,
    /// How many tuples.
    pub tuples: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// The numbers of an event; see [`EventKind`] for those that count.
#[derive(Debug, Clone, Copy, Default)]
pub struct Amounts {
    /// How long it took, in microseconds.
    pub took_us: u64,
    /// Which block.
    pub block: u32,
    /// How many blocks.
    pub blocks: u32,
    /// How many tuples.
    pub tuples: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// Some events of a stream. It is written as JSON as it is, without a tree of values in between: a partition does nothing else meanwhile.
#[derive(Debug, Serialize)]
pub struct Page<'events> {
    /// The number to go on with.
    pub next: u64,
    /// How many of those asked for are gone.
    pub lost: u64,
    /// In the order of their numbers.
    pub events: Vec<&'events Event>,
}

fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64
}

/// The latest events of one stream.
#[derive(Debug, Default)]
struct Ring {
    kept: VecDeque<Event>,
    next: u64,
}

/// The latest events of a partition.
#[derive(Debug, Default)]
pub struct Events {
    rings: [Ring; 2],
    /// When the first event of the traffic of this turn ended, if there was one.
    turn_us: Option<u64>,
}

impl Events {
    /// A turn of the executor begins: batches and what lies between them. There are so many events of the traffic that the clock is read once for all of a turn.
    pub fn begin_turn(&mut self) {
        self.turn_us = None;
    }

    /// Adds an event that ends now.
    pub fn add(&mut self, kind: EventKind, amounts: Amounts) {
        let ring = &mut self.rings[kind.stream() as usize];
        if ring.kept.len() == KEPT_EVENTS {
            ring.kept.pop_front();
        }
        let Amounts { took_us, block, blocks, tuples, bytes } = amounts;
        let at_us = match kind.stream() {
            Stream::Maintenance => now_us(),
            Stream::Traffic => *self.turn_us.get_or_insert_with(now_us),
        };
        ring.kept.push_back(Event { number: ring.next, at_us, kind, took_us, block, blocks, tuples, bytes });
        ring.next += 1;
    }

    /// At most `limit` events of a stream from the one numbered `from`, or the oldest kept.
    pub fn since(&self, stream: Stream, from: u64, limit: usize) -> Page<'_> {
        let ring = &self.rings[stream as usize];
        let oldest = ring.next - ring.kept.len() as u64;
        let first = from.clamp(oldest, ring.next);
        let events: Vec<&Event> = ring.kept.iter().skip((first - oldest) as usize).take(limit).collect();
        Page { next: first + events.len() as u64, lost: oldest.saturating_sub(from), events }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_gets_every_event_once_or_is_told_what_it_has_lost() {
        let mut events = Events::default();
        for n in 0..10 {
            events.add(EventKind::Eviction, Amounts { tuples: n, ..Amounts::default() });
        }
        let page = events.since(Stream::Maintenance, 3, 4);
        let numbers = |page: &Page<'_>| -> Vec<u64> { page.events.iter().map(|event| event.number).collect() };
        assert_eq!((numbers(&page), page.next, page.lost), (vec![3, 4, 5, 6], 7, 0));
        let wire = serde_json::to_value(&page).unwrap();
        assert_eq!(
            (&wire["next"], &wire["events"][0]["tuples"], &wire["events"][0]["kind"]),
            (&7.into(), &3.into(), &"eviction".into())
        );
        for _ in 0..KEPT_EVENTS {
            events.add(EventKind::Restart, Amounts::default());
            events.add(EventKind::BlockError, Amounts::default());
        }
        let page = events.since(Stream::Maintenance, 7, 2);
        assert_eq!((numbers(&page), page.lost), (vec![10, 11], 3));
        let end = events.since(Stream::Maintenance, u64::MAX, 5);
        assert_eq!((numbers(&end), end.next), (vec![], 10 + KEPT_EVENTS as u64));
        let traffic = events.since(Stream::Traffic, 0, 1);
        assert_eq!((numbers(&traffic), traffic.lost), (vec![0], 0), "one does not push the other out");
    }
}
