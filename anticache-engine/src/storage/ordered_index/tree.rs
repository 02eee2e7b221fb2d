//! The B+tree: descent, splits on the way up, merges on the way up.

use std::io;
use std::ops::ControlFlow;

use super::node::{NO_NODE, Node, Nodes, Words, less};
use super::{Direction, TOGETHER};
use crate::storage::hash_index::Handle;

/// Levels above the leaves. Two neighbours together fill half a node at least, so that 2^32 entries need far fewer.
const MAX_LEVELS: usize = 32;

/// A node, the lowest key that may be below it and the one from which on none may.
type Bounded<const W: usize> = (u32, Words<W>, Option<Words<W>>);

/// The inner nodes from the root down to a leaf, and the slot taken in each.
struct Path {
    steps: [(u32, u32); MAX_LEVELS],
    leaf: u32,
}

/// A leaf and the keys that belong into it: from `low` on, up to `high` but for that itself.
#[derive(Debug, Clone, Copy)]
struct LeafOf<const W: usize> {
    leaf: u32,
    low: Words<W>,
    high: Option<Words<W>>,
}

impl<const W: usize> LeafOf<W> {
    #[inline(always)]
    fn has(&self, key: &Words<W>) -> bool {
        !less(key, &self.low) && self.high.as_ref().is_none_or(|high| less(key, high))
    }
}

/// A B+tree with unique keys of `W` words and nodes of `N` entries.
///
/// In an inner node, the key of a slot separates its child from the one before: it is at most the smallest key below it and greater than every
/// key of the child before. The first slot's key is zero, as no key may lead to the left of it. Separators stay when the key they were
/// made from goes.
#[derive(Debug)]
pub struct Tree<const W: usize, const N: usize> {
    inner: Nodes<W, N>,
    leaves: Nodes<W, N>,
    root: u32,
    /// Inner levels; with none the root is a leaf.
    levels: usize,
    len: u64,
    /// Where the latest insert went, as long as no node was divided or given up since: the next one often goes there too, an order's lines always.
    latest: Option<LeafOf<W>>,
}

impl<const W: usize, const N: usize> Tree<W, N> {
    /// An empty tree with address space for `max_entries`.
    ///
    /// # Errors
    /// As [`crate::storage::region::Region::reserve`].
    pub fn new(max_entries: usize) -> io::Result<Self> {
        let inner = Nodes::new(Nodes::<W, N>::most_for(max_entries))?;
        let mut leaves = Nodes::new(max_entries)?;
        let root = leaves.take();
        Ok(Self { inner, leaves, root, levels: 0, len: 0, latest: None })
    }

    /// Entries held.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Bytes of all nodes.
    pub fn allocated_bytes(&self) -> usize {
        self.inner.allocated_bytes() + self.leaves.allocated_bytes()
    }

    /// Slots of all leaves in use.
    pub fn leaf_slots(&self) -> u64 {
        (self.leaves.used() * N) as u64
    }

    #[inline(always)]
    fn slot_towards(node: &Node<W, N>, key: &Words<W>) -> usize {
        node.upper_bound(key) - 1
    }

    /// The leaf in which `key` is or belongs.
    #[inline(always)]
    fn leaf_of(&self, key: &Words<W>) -> u32 {
        let mut id = self.root;
        for level in (0..self.levels).rev() {
            let node = &self.inner[id];
            id = node.values()[Self::slot_towards(node, key)];
            if level == 0 {
                self.leaves[id].prefetch();
            } else if Node::<W, N>::IS_WIDE {
                self.inner[id].prefetch();
            }
        }
        id
    }

    /// The same for an insert.
    #[inline(always)]
    fn leaf_to_insert(&mut self, key: &Words<W>) -> u32 {
        if let Some(latest) = self.latest.as_ref().filter(|latest| latest.has(key)) {
            return latest.leaf;
        }
        let mut at = LeafOf { leaf: self.root, low: [0; W], high: None };
        for level in (0..self.levels).rev() {
            let node = &self.inner[at.leaf];
            let slot = Self::slot_towards(node, key);
            at = LeafOf {
                leaf: node.values()[slot],
                low: if slot == 0 { at.low } else { node.keys()[slot] },
                high: node.keys().get(slot + 1).copied().or(at.high),
            };
            if level == 0 {
                self.leaves[at.leaf].prefetch();
            } else if Node::<W, N>::IS_WIDE {
                self.inner[at.leaf].prefetch();
            }
        }
        self.latest = Some(at);
        at.leaf
    }

    fn path_to(&self, key: &Words<W>) -> Path {
        let mut path = Path { steps: [(NO_NODE, 0); MAX_LEVELS], leaf: self.root };
        for step in &mut path.steps[..self.levels] {
            let node = &self.inner[path.leaf];
            let slot = Self::slot_towards(node, key);
            *step = (path.leaf, slot as u32);
            path.leaf = node.values()[slot];
        }
        path
    }

    /// The handle under `key`.
    #[inline]
    pub fn find(&self, key: &Words<W>) -> Option<Handle> {
        let leaf = &self.leaves[self.leaf_of(key)];
        leaf.position(key).map(|slot| leaf.values()[slot])
    }

    /// Adds an entry; false, and nothing done, when the key is there.
    #[inline]
    pub fn insert(&mut self, key: &Words<W>, handle: Handle) -> bool {
        let id = self.leaf_to_insert(key);
        let leaf = &mut self.leaves[id];
        let slot = leaf.lower_bound(key);
        if leaf.keys().get(slot) == Some(key) {
            return false;
        }
        if leaf.is_full() {
            self.insert_and_split(key, slot, handle);
        } else {
            leaf.insert_at(slot, *key, handle);
        }
        self.len += 1;
        true
    }

    /// Points the entry (`key`, `old`) to `new`; false when there is none.
    #[inline]
    pub fn replace(&mut self, key: &Words<W>, old: Handle, new: Handle) -> bool {
        let id = self.leaf_of(key);
        let leaf = &mut self.leaves[id];
        match leaf.position(key) {
            Some(slot) if leaf.values()[slot] == old => {
                leaf.set_value(slot, new);
                true
            }
            _ => false,
        }
    }

    /// The leaves in which up to [`TOGETHER`] keys are or belong; `arrives` asks for what is needed of each. All take a step down before one takes the
    /// next, so that their cache misses overlap.
    #[inline(always)]
    fn leaves_of(&self, keys: &[Words<W>], arrives: impl Fn(&Node<W, N>)) -> [u32; TOGETHER] {
        assert!(keys.len() <= TOGETHER, "{} keys at once, and {TOGETHER} are allowed", keys.len());
        let mut nodes = [self.root; TOGETHER];
        for level in (0..self.levels).rev() {
            for (id, key) in nodes.iter_mut().zip(keys) {
                let node = &self.inner[*id];
                *id = node.values()[Self::slot_towards(node, key)];
                if level == 0 { arrives(&self.leaves[*id]) } else { self.inner[*id].prefetch() }
            }
        }
        nodes
    }

    /// Brings the leaves near in which up to [`TOGETHER`] keys are or belong.
    pub fn prefetch_all(&self, keys: &[Words<W>]) {
        self.leaves_of(keys, Node::prefetch);
    }

    /// Points up to [`TOGETHER`] entries to their new handles: old and new handle of each, which no other entry has. `heads` are those of them whose
    /// leaves are searched for by `keys`, the first one among them; the others are expected where the one before was, and are asked for their `key`
    /// when they are not there. In a leaf it is the handle that is looked for: keys take three quarters of its lines. False when one was not there.
    pub fn replace_all(
        &mut self,
        heads: &[usize],
        keys: &[Words<W>],
        moved: &[(Handle, Handle)],
        key: impl Fn(usize) -> Words<W>,
    ) -> bool {
        let leaves = self.leaves_of(keys, Node::prefetch_values);
        let mut heads = heads.iter().zip(leaves).peekable();
        let (mut all, mut leaf, mut slot) = (true, self.root, None);
        for (at, &(old, new)) in moved.iter().enumerate() {
            let head = heads.next_if(|(head, _)| **head == at);
            leaf = head.map_or(leaf, |(_, id)| id);
            slot = self.leaves[leaf].slot_of(old, slot.map_or(0, |slot| slot + 1));
            if slot.is_none() && head.is_none() {
                leaf = self.leaf_of(&key(at));
                slot = self.leaves[leaf].slot_of(old, 0);
            }
            if let Some(slot) = slot {
                debug_assert_eq!(self.leaves[leaf].keys()[slot], key(at), "two entries have handle {old}");
                self.leaves[leaf].set_value(slot, new);
            }
            all &= slot.is_some();
        }
        all
    }

    /// Takes the entry of `key` out.
    #[inline]
    pub fn remove(&mut self, key: &Words<W>) -> Option<Handle> {
        let id = self.leaf_of(key);
        let leaf = &mut self.leaves[id];
        let slot = leaf.position(key)?;
        let handle = leaf.remove_at(slot);
        self.len -= 1;
        if leaf.is_low() || leaf.count() == 0 {
            self.shrink(key);
        }
        Some(handle)
    }

    /// Splits the full leaf of `key`, and above it every inner node that has no slot for the new neighbour of the one below.
    #[cold]
    #[inline(never)]
    fn insert_and_split(&mut self, key: &Words<W>, slot: usize, handle: Handle) {
        self.latest = None;
        let path = self.path_to(key);
        let mut right = self.leaves.split(path.leaf, slot, *key, handle);
        let mut separator = self.leaves[right].keys()[0];
        for &(id, slot) in path.steps[..self.levels].iter().rev() {
            let slot = slot as usize + 1;
            if !self.inner[id].is_full() {
                self.inner[id].insert_at(slot, separator, right);
                return;
            }
            right = self.inner.split(id, slot, separator, right);
            separator = self.inner[right].keys()[0];
            self.inner[right].set_key(0, [0; W]);
        }
        assert!(self.levels < MAX_LEVELS, "an ordered index of {} entries has {MAX_LEVELS} levels", self.len);
        let root = self.inner.take();
        self.inner[root].insert_at(0, [0; W], self.root);
        self.inner[root].insert_at(1, separator, right);
        self.root = root;
        self.levels += 1;
    }

    /// After a removal in the leaf of `key`: gives the leaf up if it can be, and so on upwards.
    fn shrink(&mut self, key: &Words<W>) {
        self.latest = None;
        let path = self.path_to(key);
        for (level, &(parent, slot)) in path.steps[..self.levels].iter().enumerate().rev() {
            let is_above_leaves = level + 1 == self.levels;
            let Some(given_up) = self.give_up_child(parent, slot as usize, is_above_leaves) else { break };
            let parent = &mut self.inner[parent];
            parent.remove_at(given_up);
            if given_up == 0 && parent.count() > 0 {
                parent.set_key(0, [0; W]);
            }
        }
        while self.levels > 0 && self.inner[self.root].count() == 1 {
            let child = self.inner[self.root].values()[0];
            self.inner.give_back(self.root);
            self.root = child;
            self.levels -= 1;
        }
    }

    /// Gives the child in `slot` back if it is empty, or merges it with a neighbour under the same parent if it is low and they fit. Tells the slot
    /// whose child is no more.
    fn give_up_child(&mut self, parent: u32, slot: usize, is_leaf: bool) -> Option<usize> {
        let family = self.inner[parent];
        let nodes = if is_leaf { &mut self.leaves } else { &mut self.inner };
        let id = family.values()[slot];
        if nodes[id].count() == 0 {
            nodes.give_back(id);
            return Some(slot);
        }
        if !nodes[id].is_low() {
            return None;
        }
        for right_slot in [slot + 1, slot] {
            if right_slot == 0 || right_slot == family.count() {
                continue;
            }
            let (left, right) = (family.values()[right_slot - 1], family.values()[right_slot]);
            if nodes[left].fits_with(&nodes[right]) {
                if !is_leaf {
                    nodes[right].set_key(0, family.keys()[right_slot]);
                }
                nodes.merge(left, right);
                return Some(right_slot);
            }
        }
        None
    }

    /// Visits the handles of all keys from `low` to `high`, both included, until `visit` breaks.
    #[inline]
    pub fn scan(
        &self,
        low: &Words<W>,
        high: &Words<W>,
        direction: Direction,
        visit: impl FnMut(Handle) -> ControlFlow<()>,
    ) {
        if low > high {
            return;
        }
        let _ = match direction {
            Direction::Ascending => self.ascend(low, high, visit),
            Direction::Descending => self.descend(low, high, visit),
        };
    }

    #[inline]
    fn ascend(
        &self,
        low: &Words<W>,
        high: &Words<W>,
        mut visit: impl FnMut(Handle) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut leaf = &self.leaves[self.leaf_of(low)];
        let mut start = leaf.lower_bound(low);
        loop {
            let end = leaf.upper_bound(high);
            leaf.values()[start..end].iter().try_for_each(|&handle| visit(handle))?;
            if end < leaf.count() || leaf.next == NO_NODE {
                return ControlFlow::Continue(());
            }
            leaf = &self.leaves[leaf.next];
            start = 0;
        }
    }

    #[inline]
    fn descend(
        &self,
        low: &Words<W>,
        high: &Words<W>,
        mut visit: impl FnMut(Handle) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut leaf = &self.leaves[self.leaf_of(high)];
        let mut end = leaf.upper_bound(high);
        loop {
            let start = leaf.lower_bound(low);
            leaf.values()[start..end].iter().rev().try_for_each(|&handle| visit(handle))?;
            if start > 0 || leaf.prev == NO_NODE {
                return ControlFlow::Continue(());
            }
            leaf = &self.leaves[leaf.prev];
            end = leaf.count();
        }
    }

    /// Whether everything in the tree is as it should be: order, separators, links, counts and fill.
    ///
    /// # Errors
    /// The first thing that is not, with the node it was found in.
    pub fn check(&self) -> Result<(), String> {
        if let Some(latest) = &self.latest
            && (self.leaf_of(&latest.low) != latest.leaf
                || latest.high.is_some_and(|high| self.leaf_of(&high) == latest.leaf))
        {
            return Err(format!("the latest insert went to another leaf: {latest:x?}"));
        }
        // The nodes of a level in key order, each with its lowest key and the one that it must not reach.
        let mut level = vec![(self.root, [0; W], None)];
        let mut inner_used = 0;
        for depth in 0..self.levels {
            Self::check_level(&self.inner, &level, if depth == 0 { 2 } else { 1 }, 1)?;
            inner_used += level.len();
            level = level.iter().flat_map(|&(id, low, high)| self.children(id, low, high)).collect();
        }
        Self::check_level(&self.leaves, &level, usize::from(self.levels > 0), 0)?;
        let entries = level.iter().map(|&(id, ..)| self.leaves[id].count() as u64).sum::<u64>();
        let expected = (self.len, inner_used, level.len());
        let counted = (entries, self.inner.used(), self.leaves.used());
        if counted != expected {
            return Err(format!("counted entries, inner nodes, leaves: {counted:?}, expected {expected:?}"));
        }
        if level.len() > Nodes::<W, N>::most_for(self.len as usize) {
            return Err(format!("{} leaves for {} entries", level.len(), self.len));
        }
        Ok(())
    }

    fn children(&self, id: u32, low: Words<W>, high: Option<Words<W>>) -> Vec<Bounded<W>> {
        let node = &self.inner[id];
        let mut children = Vec::with_capacity(node.count());
        for slot in 0..node.count() {
            let from = if slot == 0 { low } else { node.keys()[slot] };
            children.push((node.values()[slot], from, node.keys().get(slot + 1).copied().or(high)));
        }
        children
    }

    /// Checks a level whose nodes have `least` entries or more, the first `zeros` of them with a key of zero.
    fn check_level(nodes: &Nodes<W, N>, level: &[Bounded<W>], least: usize, zeros: usize) -> Result<(), String> {
        for (i, &(id, low, high)) in level.iter().enumerate() {
            let node = &nodes[id];
            let (first, others) = node.keys().split_at(zeros.min(node.count()));
            let is_within = |key: &Words<W>| low <= *key && high.is_none_or(|high| *key < high);
            let prev = if i == 0 { NO_NODE } else { level[i - 1].0 };
            let next = level.get(i + 1).map_or(NO_NODE, |&(id, ..)| id);
            let faults = [
                (node.count() < least, "too few entries"),
                (!node.keys().is_sorted_by(|a, b| a < b), "keys out of order"),
                (!others.iter().all(is_within), "keys beyond the separators"),
                (first.iter().any(|key| *key != [0; W]), "a first separator that is not zero"),
                (!node.is_padded(), "free slots with keys"),
                ((node.prev, node.next) != (prev, next), "wrong links"),
            ];
            if let Some((_, fault)) = faults.iter().find(|(is_there, _)| *is_there) {
                return Err(format!("node {id}, number {i} of its level: {fault}: {node:x?}"));
            }
        }
        Ok(())
    }
}
