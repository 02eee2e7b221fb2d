//! Nodes of the ordered index, and the linked lists in which they lie.

use std::io;
use std::mem::offset_of;
use std::ops::{Index, IndexMut};

use crate::storage::region::{LINE_BYTES, RegionVec, ZeroValid, prefetch};

/// A key as `W` words, the first byte of the key in the highest bits of the first word: words compare as the bytes do.
pub type Words<const W: usize> = [u64; W];

/// Values that are compared at once.
const VALUE_GROUP: usize = 8;

/// No node: ends a list.
pub const NO_NODE: u32 = u32::MAX;

/// Up to `N` entries in key order: a key and 4 bytes, which are a handle in a leaf and the id of a child elsewhere.
///
/// Keys and values are apart, so that a search looks only at lines of keys. Slots from `count` on hold the largest key: searches run over all
/// `N` slots without asking for `count`, whose line they need not wait for.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub struct Node<const W: usize, const N: usize> {
    keys: [Words<W>; N],
    values: [u32; N],
    /// The neighbours on the same level; in a node that is not in use, `next` is the next such node.
    pub prev: u32,
    pub next: u32,
    count: u16,
    /// Where the latest entry went, which tells runs of ascending keys from others; only a hint, removals do not maintain it.
    latest: u16,
}

// SAFETY: integers only; what padding there is at the end is never read.
unsafe impl<const W: usize, const N: usize> ZeroValid for Node<W, N> {}

/// Whether one key is before another.
#[inline(always)]
pub fn less<const W: usize>(a: &Words<W>, b: &Words<W>) -> bool {
    match W {
        1 => a[0] < b[0],
        2 => (u128::from(a[0]) << 64 | u128::from(a[1])) < (u128::from(b[0]) << 64 | u128::from(b[1])),
        _ => a < b,
    }
}

impl<const W: usize, const N: usize> Node<W, N> {
    /// Keys to a cache line, at least one.
    const GROUP: usize = if W < 8 { 8 / W } else { 1 };
    /// Whether keys are too wide to be counted.
    pub const IS_WIDE: bool = W > 2;
    const EMPTY: Self = {
        assert!(N >= 4 && N < u16::MAX as usize, "a node needs a few slots, numbered by 16 bits");
        assert!(Self::IS_WIDE || N.is_multiple_of(Self::GROUP), "keys are searched by whole cache lines");
        Self { keys: [[u64::MAX; W]; N], values: [0; N], prev: NO_NODE, next: NO_NODE, count: 0, latest: 0 }
    };
    /// A node with fewer entries is low: it is merged with a neighbour if both fit into [`Self::MERGED`].
    const LOW: usize = N / 2;
    /// Entries that two merged nodes may have: not all slots, or the next insert would split them again.
    const MERGED: usize = N - N / 8;

    /// Entries held.
    #[inline(always)]
    pub fn count(&self) -> usize {
        usize::from(self.count)
    }

    /// Whether every slot is taken.
    #[inline(always)]
    pub fn is_full(&self) -> bool {
        self.count() == N
    }

    /// Whether it is worth looking for a neighbour to merge with.
    #[inline(always)]
    pub fn is_low(&self) -> bool {
        self.count() < Self::LOW
    }

    /// Whether the entries of both may go into one node.
    pub fn fits_with(&self, other: &Self) -> bool {
        self.count() + other.count() <= Self::MERGED
    }

    /// Keys of the entries.
    #[inline(always)]
    pub fn keys(&self) -> &[Words<W>] {
        &self.keys[..self.count()]
    }

    /// Handles or children of the entries.
    #[inline(always)]
    pub fn values(&self) -> &[u32] {
        &self.values[..self.count()]
    }

    /// Whether every slot without an entry holds the largest key, as searches need it.
    pub fn is_padded(&self) -> bool {
        self.keys[self.count()..].iter().all(|key| *key == [u64::MAX; W])
    }

    /// Brings all lines near at once: a search would wait for one of keys, or several of wide ones, and then for one of values. Takes a quarter off
    /// a random look-up among a million.
    #[inline(always)]
    pub fn prefetch(&self) {
        let start = std::ptr::from_ref(self).cast::<u8>();
        for line in 0..size_of::<Self>() / LINE_BYTES {
            prefetch(start.wrapping_add(line * LINE_BYTES));
        }
    }

    /// The same for the lines of values and what lies behind them.
    #[inline(always)]
    pub fn prefetch_values(&self) {
        let start = std::ptr::from_ref(self).cast::<u8>();
        let from = offset_of!(Self, values) / LINE_BYTES * LINE_BYTES;
        for line in (from..size_of::<Self>()).step_by(LINE_BYTES) {
            prefetch(start.wrapping_add(line));
        }
    }

    /// The slot with a value that no two entries have, which is most probably `guess`.
    #[inline(always)]
    pub fn slot_of(&self, value: u32, guess: usize) -> Option<usize> {
        if self.values().get(guess) == Some(&value) {
            return Some(guess);
        }
        // All of a group are compared at once. Slots without an entry may have the value, too, but lie behind the one that has.
        let has = |group: &[u32]| group.iter().fold(false, |found, held| found | (*held == value));
        let group = self.values.chunks(VALUE_GROUP).position(has)?;
        let start = group * VALUE_GROUP;
        let within = self.values[start..].iter().position(|held| *held == value)?;
        Some(start + within).filter(|&slot| slot < self.count())
    }

    /// Number of slots at the start of the node whose keys fulfil `is_before`, a condition that holds up to some key and not after it.
    ///
    /// Narrow keys are counted: first the lines whose last key fulfils it, then the keys of the next line. The loads do not wait for one another
    /// and nothing is predicted: from the caches, a look-up takes two thirds (one word) or half (two words) of the time that it takes with
    /// a binary search, whose steps wait for one another.
    #[inline(always)]
    fn count_before(&self, is_before: impl Fn(&Words<W>) -> bool) -> usize {
        if Self::IS_WIDE {
            return self.keys().partition_point(is_before);
        }
        let groups = N / Self::GROUP;
        let mut group = 0;
        for i in 0..groups {
            group += usize::from(is_before(&self.keys[i * Self::GROUP + Self::GROUP - 1]));
        }
        let start = group.min(groups - 1) * Self::GROUP;
        let mut within = 0;
        for key in &self.keys[start..start + Self::GROUP] {
            within += usize::from(is_before(key));
        }
        start + within
    }

    /// Number of entries whose key is below `key`: where it is or belongs.
    #[inline(always)]
    pub fn lower_bound(&self, key: &Words<W>) -> usize {
        self.count_before(|entry| less(entry, key))
    }

    /// Number of entries whose key is at most `key`.
    #[inline(always)]
    pub fn upper_bound(&self, key: &Words<W>) -> usize {
        self.count_before(|entry| !less(key, entry)).min(self.count())
    }

    /// The slot of `key`, if an entry has it.
    #[inline(always)]
    pub fn position(&self, key: &Words<W>) -> Option<usize> {
        let slot = self.lower_bound(key);
        (self.keys().get(slot) == Some(key)).then_some(slot)
    }

    /// Points the entry in `slot` to `value`.
    #[inline(always)]
    pub fn set_value(&mut self, slot: usize, value: u32) {
        self.values[slot] = value;
    }

    /// Changes the key in `slot`; the caller sees to the order.
    pub fn set_key(&mut self, slot: usize, key: Words<W>) {
        self.keys[slot] = key;
    }

    /// Puts an entry into `slot` of a node that is not full; those from there on move up.
    #[inline]
    pub fn insert_at(&mut self, slot: usize, key: Words<W>, value: u32) {
        let count = self.count();
        self.keys.copy_within(slot..count, slot + 1);
        self.values.copy_within(slot..count, slot + 1);
        self.keys[slot] = key;
        self.values[slot] = value;
        self.count += 1;
        self.latest = slot as u16;
    }

    /// Takes the entry in `slot` out; those behind it move down.
    #[inline]
    pub fn remove_at(&mut self, slot: usize) -> u32 {
        let count = self.count();
        let value = self.values[slot];
        self.keys.copy_within(slot + 1..count, slot);
        self.values.copy_within(slot + 1..count, slot);
        self.keys[count - 1] = [u64::MAX; W];
        self.count -= 1;
        value
    }

    /// Appends the entries of `other` from its slot `from` on, which are greater than all here, and takes them from it.
    fn append_from(&mut self, other: &mut Self, from: usize) {
        let (count, end) = (self.count(), other.count());
        let moved = end - from;
        self.keys[count..count + moved].copy_from_slice(&other.keys[from..end]);
        self.values[count..count + moved].copy_from_slice(&other.values[from..end]);
        other.keys[from..end].fill([u64::MAX; W]);
        self.count += moved as u16;
        other.count = from as u16;
    }

    /// How many entries a full node keeps when it is split for an entry that belongs into `slot`, given how many low nodes lie `before` and `behind`
    /// it without another between.
    ///
    /// Behind the last entry or before the first, the full node stays as it is and the entry begins another. In a run of ascending keys that
    /// has filled half of the node, the cut is where the run goes on: the run ends its node then, and fills the next ones wholly even where
    /// another range of keys follows. Below the half that would leave small nodes wherever short runs are inserted. Nor is a low node begun beside low
    /// ones, as keys that descend towards a full node would do one by one; a run may meet one, the beginning of the range that follows.
    fn split_point(&self, slot: usize, before: usize, behind: usize) -> usize {
        let continues_run = slot == usize::from(self.latest) + 1 && slot >= N / 2;
        let is_cut_there = match slot {
            0 => before == 0,
            _ if continues_run => behind < 2,
            _ => slot == N && behind == 0,
        };
        if is_cut_there { slot } else { N / 2 }
    }
}

/// All nodes of one kind of a tree. Those of one level form a list from the smallest keys to the largest.
#[derive(Debug)]
pub struct Nodes<const W: usize, const N: usize> {
    all: RegionVec<Node<W, N>>,
    free: u32,
    used: usize,
}

impl<const W: usize, const N: usize> Index<u32> for Nodes<W, N> {
    type Output = Node<W, N>;
    #[inline(always)]
    fn index(&self, id: u32) -> &Node<W, N> {
        &self.all.as_slice()[id as usize]
    }
}

impl<const W: usize, const N: usize> IndexMut<u32> for Nodes<W, N> {
    #[inline(always)]
    fn index_mut(&mut self, id: u32) -> &mut Node<W, N> {
        &mut self.all.as_mut_slice()[id as usize]
    }
}

impl<const W: usize, const N: usize> Nodes<W, N> {
    /// No nodes yet, with address space for those that `max_entries` can need.
    ///
    /// # Errors
    /// As [`crate::storage::region::Region::reserve`].
    pub fn new(max_entries: usize) -> io::Result<Self> {
        Ok(Self { all: RegionVec::with_reserved(Self::most_for(max_entries))?, free: NO_NODE, used: 0 })
    }

    /// Nodes that `entries` need at most. Of two neighbours the low one is merged with the other unless together they have seven eighths of a
    /// node, and while the other is not low it has half a node itself: the average is a quarter or more. An eighth leaves room for
    /// neighbours under different parents, which are not merged.
    pub fn most_for(entries: usize) -> usize {
        entries / (N / 8).max(1) + 64
    }

    /// Nodes in use.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Bytes of all nodes, those not in use included.
    pub fn allocated_bytes(&self) -> usize {
        self.all.allocated_bytes()
    }

    /// An empty node outside every list.
    pub fn take(&mut self) -> u32 {
        let id = if self.free == NO_NODE {
            self.all.grow(1);
            u32::try_from(self.all.len() - 1).expect("fewer nodes than handles")
        } else {
            self.free
        };
        let recycled = self.free != NO_NODE;
        if recycled {
            self.free = self[id].next;
        }
        self[id] = Node::EMPTY;
        self.used += 1;
        id
    }

    /// Takes a node out of its list, for reuse.
    pub fn give_back(&mut self, id: u32) {
        let Node { prev, next, .. } = self[id];
        if prev != NO_NODE {
            self[prev].next = next;
        }
        if next != NO_NODE {
            self[next].prev = prev;
        }
        self[id].next = self.free;
        self.free = id;
        self.used -= 1;
    }

    /// Divides the full node `left` and puts an entry where it belongs, at its `slot`. Gives the new right neighbour; its first key
    /// separates the two.
    pub fn split(&mut self, left: u32, slot: usize, key: Words<W>, value: u32) -> u32 {
        let right = self.take();
        let Node { prev, next, .. } = self[left];
        let is_low = |id: u32| id != NO_NODE && self[id].is_low();
        let behind = if !is_low(next) { 0 } else { 1 + usize::from(is_low(self[next].next)) };
        let cut = self[left].split_point(slot, usize::from(is_low(prev)), behind);
        if next != NO_NODE {
            self[next].prev = right;
        }
        let [low, high] = self.pair(left, right);
        (low.next, high.prev, high.next) = (right, left, next);
        high.append_from(low, cut);
        if slot <= cut && cut < N {
            low.insert_at(slot, key, value);
        } else {
            high.insert_at(slot - cut, key, value);
        }
        right
    }

    /// Moves all entries of `right` to its left neighbour and gives it back.
    pub fn merge(&mut self, left: u32, right: u32) {
        let [low, high] = self.pair(left, right);
        low.append_from(high, 0);
        self.give_back(right);
    }

    fn pair(&mut self, a: u32, b: u32) -> [&mut Node<W, N>; 2] {
        self.all.as_mut_slice().get_disjoint_mut([a as usize, b as usize]).expect("two nodes that exist")
    }
}
