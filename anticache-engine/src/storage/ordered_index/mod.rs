//! Ordered index: a B+tree whose keys have one width.
//!
//! Keys are strings of bytes in the order of `memcmp`, normalised by the caller, and packed into words, so that a node is an array of integers: the
//! narrow keys that matter most (one or two words: TPC-C's ORDERS, NEW_ORDER and ORDER_LINE) are compared without a call or a branch. Unlike
//! the hash index it keeps the keys, because a search for a neighbour would otherwise touch a tuple, perhaps an evicted one, at every
//! step. Handles are those of the hash index.
//!
//! Where a full node is divided depends on where the new key goes. Order numbers grow at the end of every district's range, so cutting in the middle
//! would leave the whole index half empty; a run of ascending keys fills its nodes instead.

use std::io;
use std::ops::ControlFlow;

use smallvec::SmallVec;

use super::hash_index::Handle;
use crate::catalog::key::NormalKey;

mod node;
#[cfg(test)]
mod tests;
mod tree;

use node::Words;
use tree::Tree;

/// Widest key in bytes.
pub const MAX_KEY_BYTES: usize = 128;

/// Most entries that are replaced together.
pub const TOGETHER: usize = 64;

/// The order in which a scan visits keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the smallest to the largest.
    Ascending,
    /// From the largest to the smallest.
    Descending,
}

/// A unique ordered index from keys of one width to handles; the tree is the one for the fewest words that hold a key.
#[derive(Debug)]
pub enum OrderedIndex {
    /// Keys of 1 to 8 bytes.
    Words1(Keyed<1, 40>),
    /// Keys of 9 to 16 bytes.
    Words2(Keyed<2, 24>),
    /// Keys of 17 to 32 bytes.
    Words4(Keyed<4, 28>),
    /// Keys of 33 to 64 bytes.
    Words8(Keyed<8, 29>),
    /// Keys of 65 to 128 bytes.
    Words16(Keyed<16, 30>),
}

/// A tree and the width of its keys in bytes.
#[derive(Debug)]
pub struct Keyed<const W: usize, const N: usize> {
    tree: Tree<W, N>,
    key_bytes: usize,
}

/// Evaluates an expression for the tree of whichever width.
macro_rules! with_keyed {
    ($index:expr, $keyed:ident => $result:expr) => {
        match $index {
            OrderedIndex::Words1($keyed) => $result,
            OrderedIndex::Words2($keyed) => $result,
            OrderedIndex::Words4($keyed) => $result,
            OrderedIndex::Words8($keyed) => $result,
            OrderedIndex::Words16($keyed) => $result,
        }
    };
}

impl OrderedIndex {
    /// An empty index for keys of `key_bytes`, with address space for `max_entries`.
    ///
    /// # Errors
    /// If `key_bytes` is not in 1..=[`MAX_KEY_BYTES`]; as [`super::region::Region::reserve`].
    pub fn new(key_bytes: usize, max_entries: usize) -> io::Result<Self> {
        Ok(match key_bytes {
            1..=8 => Self::Words1(Keyed::new(key_bytes, max_entries)?),
            9..=16 => Self::Words2(Keyed::new(key_bytes, max_entries)?),
            17..=32 => Self::Words4(Keyed::new(key_bytes, max_entries)?),
            33..=64 => Self::Words8(Keyed::new(key_bytes, max_entries)?),
            65..=MAX_KEY_BYTES => Self::Words16(Keyed::new(key_bytes, max_entries)?),
            _ => {
                let message = format!(
                    "an ordered index cannot have keys of {key_bytes} bytes: index columns of 1 to {MAX_KEY_BYTES} bytes together"
                );
                return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
            }
        })
    }

    /// Entries held.
    pub fn len(&self) -> u64 {
        with_keyed!(self, keyed => keyed.tree.len())
    }

    /// Whether it holds no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of all nodes.
    pub fn allocated_bytes(&self) -> usize {
        with_keyed!(self, keyed => keyed.tree.allocated_bytes())
    }

    /// The part of the slots of all leaves that holds entries, in 0..=1.
    pub fn leaf_fill(&self) -> f64 {
        with_keyed!(self, keyed => keyed.tree.len() as f64 / keyed.tree.leaf_slots() as f64)
    }

    /// The handle under `key`.
    ///
    /// # Panics
    /// As all that take a key: if it does not have the width of the index.
    #[inline]
    pub fn find(&self, key: &impl NormalKey) -> Option<Handle> {
        with_keyed!(self, keyed => keyed.tree.find(&keyed.exact(key)))
    }

    /// Adds an entry; false, and nothing changed, when the key is there already.
    #[inline]
    pub fn insert(&mut self, key: &impl NormalKey, handle: Handle) -> bool {
        with_keyed!(self, keyed => keyed.tree.insert(&keyed.exact(key), handle))
    }

    /// Points the entry (`key`, `old`) to `new`; false when there is none.
    #[inline]
    pub fn replace(&mut self, key: &impl NormalKey, old: Handle, new: Handle) -> bool {
        with_keyed!(self, keyed => keyed.tree.replace(&keyed.exact(key), old, new))
    }

    /// Points some entries to their new handles, [`TOGETHER`] at most: old and new handle of each, which no other entry has. `key` is that of one of
    /// them, and `follows` says whether one most probably stands beside the one before it. False when one is not there.
    ///
    /// # Panics
    /// When there are more.
    pub fn replace_all<K: NormalKey>(
        &mut self,
        moved: &[(Handle, Handle)],
        key: impl Fn(usize) -> K,
        follows: impl Fn(usize) -> bool,
    ) -> bool {
        with_keyed!(self, keyed => {
            let heads: SmallVec<[usize; TOGETHER]> = (0..moved.len()).filter(|&at| at == 0 || !follows(at)).collect();
            let keys: SmallVec<[_; TOGETHER]> = heads.iter().map(|&at| keyed.exact(&key(at))).collect();
            let key_bytes = keyed.key_bytes;
            keyed.tree.replace_all(&heads, &keys, moved, |at| exact(&key(at), key_bytes))
        })
    }

    /// Brings near where [`Self::scan`] begins that ascends from one of these bounds, [`TOGETHER`] at most.
    ///
    /// # Panics
    /// When there are more, or one is wider than a key.
    pub fn prefetch_all<K: NormalKey>(&self, lows: impl Iterator<Item = K>) {
        with_keyed!(self, keyed => {
            let lows: SmallVec<[_; TOGETHER]> = lows.map(|low| keyed.lowest(&low)).collect();
            keyed.tree.prefetch_all(&lows);
        })
    }

    /// Removes the entry of `key` and gives its handle.
    #[inline]
    pub fn remove(&mut self, key: &impl NormalKey) -> Option<Handle> {
        with_keyed!(self, keyed => keyed.tree.remove(&keyed.exact(key)))
    }

    /// Visits the handles of all keys between two bounds, both included, until `visit` breaks.
    ///
    /// Bounds may be prefixes of keys: `low` stands for the smallest key that begins with it, `high` for the largest. The same prefix twice gives
    /// the keys that begin with it, two empty ones everything.
    ///
    /// # Panics
    /// If a bound is wider than a key.
    #[inline]
    pub fn scan<K: NormalKey>(
        &self,
        low: &K,
        high: &K,
        direction: Direction,
        visit: impl FnMut(Handle) -> ControlFlow<()>,
    ) {
        with_keyed!(self, keyed => keyed.tree.scan(&keyed.lowest(low), &keyed.highest(high), direction, visit));
    }

    /// The handle of the smallest key between two bounds as of [`Self::scan`].
    #[inline]
    pub fn first<K: NormalKey>(&self, low: &K, high: &K) -> Option<Handle> {
        self.end(low, high, Direction::Ascending)
    }

    /// The handle of the largest key between two bounds as of [`Self::scan`].
    #[inline]
    pub fn last<K: NormalKey>(&self, low: &K, high: &K) -> Option<Handle> {
        self.end(low, high, Direction::Descending)
    }

    #[inline]
    fn end<K: NormalKey>(&self, low: &K, high: &K, direction: Direction) -> Option<Handle> {
        let mut found = None;
        self.scan(low, high, direction, |handle| {
            found = Some(handle);
            ControlFlow::Break(())
        });
        found
    }

    /// Walks through everything: order, separators, links, counts and fill. For tests and for looking for corruption; takes time and memory.
    ///
    /// # Errors
    /// What is wrong, and in which node.
    pub fn check(&self) -> Result<(), String> {
        with_keyed!(self, keyed => keyed.tree.check())
    }
}

impl<const W: usize, const N: usize> Keyed<W, N> {
    fn new(key_bytes: usize, max_entries: usize) -> io::Result<Self> {
        Ok(Self { tree: Tree::new(max_entries)?, key_bytes })
    }

    #[inline(always)]
    fn exact(&self, key: &impl NormalKey) -> Words<W> {
        exact(key, self.key_bytes)
    }

    #[inline(always)]
    fn lowest(&self, prefix: &impl NormalKey) -> Words<W> {
        assert!(prefix.len() <= self.key_bytes, "a bound is no wider than the keys of its index");
        prefix.words()
    }

    #[inline(always)]
    fn highest(&self, prefix: &impl NormalKey) -> Words<W> {
        let mut words = self.lowest(prefix);
        for (i, word) in words.iter_mut().enumerate() {
            *word |= ones_from(i, prefix.len()) & !ones_from(i, self.key_bytes);
        }
        words
    }
}

/// A key that has the width of its index.
#[inline(always)]
fn exact<const W: usize>(key: &impl NormalKey, key_bytes: usize) -> Words<W> {
    assert_eq!(key.len(), key_bytes, "a key has the width of its index");
    key.words()
}

/// Word `word` of a key whose bytes are zero up to number `byte` and all ones from there on.
#[inline(always)]
fn ones_from(word: usize, byte: usize) -> u64 {
    let zero_bytes = byte.saturating_sub(8 * word);
    if zero_bytes >= 8 { 0 } else { u64::MAX >> (8 * zero_bytes) }
}
