//! One file of the simulated disk: what is durable, what everybody reads, and the changes between the two.

use std::collections::VecDeque;

use super::chance::Chance;

/// What a drive writes in one piece.
const SECTOR_BYTES: u64 = 512;
/// Unsynced bytes of one file that the disk holds back; beyond that the oldest become durable by themselves, as in any drive with a small cache.
const CACHE_BYTES: usize = 8 << 20;

/// How much of something survives a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    All,
    None,
    /// Each piece by its own chance.
    Some,
}

impl Fate {
    pub(super) fn draw(chance: &mut Chance) -> Self {
        [Self::All, Self::None, Self::Some][chance.below(3) as usize]
    }

    pub(super) fn spares(self, chance: &mut Chance) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Some => chance.coin(),
        }
    }
}

#[derive(Debug)]
enum Kind {
    Write { offset: u64, bytes: Vec<u8> },
    Length(u64),
}

#[derive(Debug)]
struct Change {
    /// Place in the order of all changes of the disk.
    stamp: u64,
    kind: Kind,
    durable: bool,
    /// A failed sync has given it up: no later sync covers it.
    abandoned: bool,
}

impl Change {
    fn cached_bytes(&self) -> usize {
        match &self.kind {
            Kind::Write { bytes, .. } => bytes.len(),
            Kind::Length(_) => 0,
        }
    }

    fn apply(&self, image: &mut Vec<u8>) {
        match &self.kind {
            Kind::Write { offset, bytes } => put(image, *offset, bytes),
            Kind::Length(length) => image.resize(*length as usize, 0),
        }
    }
}

fn put(image: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let (start, end) = (offset as usize, offset as usize + bytes.len());
    if image.len() < end {
        image.resize(end, 0);
    }
    image[start..end].copy_from_slice(bytes);
}

/// A write cut at the borders of sectors: (offset, bytes) of each.
fn sectors(offset: u64, bytes: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let here = offset + at as u64;
        let length = ((SECTOR_BYTES - here % SECTOR_BYTES) as usize).min(bytes.len() - at);
        let piece = (length > 0).then(|| (here, &bytes[at..at + length]));
        at += length;
        piece
    })
}

/// A file's content.
#[derive(Debug, Default)]
pub(super) struct Image {
    durable: Vec<u8>,
    /// What reads see.
    pub(super) current: Vec<u8>,
    /// What leads from the one to the other, oldest first.
    changes: VecDeque<Change>,
    cached_bytes: usize,
}

impl Image {
    pub(super) fn write(&mut self, stamp: u64, offset: u64, bytes: &[u8], durable: bool) {
        put(&mut self.current, offset, bytes);
        if durable {
            // The length that a durable write needs is durable with it, and so is every length before it.
            let lengths = self.changes.iter_mut().filter(|change| matches!(change.kind, Kind::Length(_)));
            lengths.for_each(|change| change.durable = true);
        }
        self.push(stamp, Kind::Write { offset, bytes: bytes.to_vec() }, durable);
    }

    pub(super) fn set_length(&mut self, stamp: u64, length: u64) {
        self.current.resize(length as usize, 0);
        self.push(stamp, Kind::Length(length), false);
    }

    fn push(&mut self, stamp: u64, kind: Kind, durable: bool) {
        let change = Change { stamp, kind, durable, abandoned: false };
        self.cached_bytes += change.cached_bytes();
        self.changes.push_back(change);
        while self.cached_bytes > CACHE_BYTES {
            if let Some(oldest) = self.changes.front_mut() {
                oldest.durable = true;
            }
            self.settle_durable();
        }
        self.settle_durable();
    }

    /// Makes durable what was changed before `stamp`.
    pub(super) fn sync(&mut self, stamp: u64) {
        let covered = self.changes.iter_mut().filter(|change| change.stamp < stamp && !change.abandoned);
        covered.for_each(|change| change.durable = true);
        self.settle_durable();
    }

    /// A sync failed.
    pub(super) fn abandon(&mut self) {
        self.changes.iter_mut().filter(|change| !change.durable).for_each(|change| change.abandoned = true);
    }

    /// Moves durable changes into the durable image, as far as none that is not durable lies before them: a later one must stay later.
    fn settle_durable(&mut self) {
        while self.changes.front().is_some_and(|change| change.durable) {
            let Some(change) = self.changes.pop_front() else { break };
            self.cached_bytes -= change.cached_bytes();
            change.apply(&mut self.durable);
        }
    }

    /// Leaves what is durable, and of everything else what `mood` or, where it is undecided, chance spares.
    pub(super) fn cut(&mut self, mood: Option<Fate>, chance: &mut Chance) {
        for change in std::mem::take(&mut self.changes) {
            let fate = if change.durable { Fate::All } else { mood.unwrap_or_else(|| Fate::draw(chance)) };
            match &change.kind {
                Kind::Length(_) => {
                    if fate.spares(chance) {
                        change.apply(&mut self.durable);
                    }
                }
                Kind::Write { offset, bytes } => {
                    let end = *offset as usize + bytes.len();
                    if fate != Fate::None && chance.coin() && self.durable.len() < end {
                        self.durable.resize(end, 0);
                    }
                    for (at, piece) in sectors(*offset, bytes) {
                        if fate.spares(chance) {
                            put(&mut self.durable, at, piece);
                        }
                    }
                }
            }
        }
        self.cached_bytes = 0;
        self.current.clone_from(&self.durable);
    }

    /// A write that did not complete: some of its sectors are written, not durably.
    pub(super) fn write_partly(&mut self, stamp: u64, offset: u64, bytes: &[u8], fate: Fate, chance: &mut Chance) {
        for (at, piece) in sectors(offset, bytes) {
            if fate.spares(chance) {
                self.write(stamp, at, piece, false);
            }
        }
    }

    /// Everything becomes durable, then the content is changed behind the engine's back.
    pub(super) fn tamper(&mut self, change: impl FnOnce(&mut Vec<u8>)) {
        change(&mut self.current);
        self.changes.clear();
        self.cached_bytes = 0;
        self.durable.clone_from(&self.current);
    }
}
