//! An index of a table: a hash index or an ordered one, and the keys of the tuples that it leads to.

use std::io;
use std::ops::ControlFlow;

use super::hash_index::{Handle, HashIndex, hash_key};
pub use super::ordered_index::TOGETHER;
use super::ordered_index::{Direction, OrderedIndex};
use super::region::prefetch;
use super::var_heap::VarHeap;
use crate::catalog::key::{IndexDef, IndexKind, KeyBuf, KeyPart, KeySource, NarrowKey, NormalKey};

/// The indexed columns of a tuple, as its place keeps them.
#[derive(Clone, Copy)]
pub enum Columns<'a> {
    /// In memory: a row, and the memory of its variable-length data.
    Resident(&'a [u8], Option<&'a VarHeap>),
    /// Evicted: the image in the Evicted Table.
    Evicted(&'a [u8]),
}

/// A part of a key.
enum Part<'a> {
    /// Bytes as they are; of a signed number, or not.
    Fixed { bytes: &'a [u8], number: bool },
    /// A text and the bytes of its padded form.
    Var { text: &'a [u8], bytes: usize },
}

/// Evaluates an expression for the key that an ordered index has of some columns.
macro_rules! with_ordered_key {
    ($columns:expr, $def:expr, $key:ident => $result:expr) => {
        if $def.is_narrow() {
            let $key: NarrowKey = $columns.ordered_key($def);
            $result
        } else {
            let $key: KeyBuf = $columns.ordered_key($def);
            $result
        }
    };
}

impl<'a> Columns<'a> {
    /// Each part of a key in turn.
    #[inline]
    fn each(self, parts: &[KeyPart], mut take: impl FnMut(Part<'_>)) {
        for part in parts {
            take(match (part.source, self) {
                (KeySource::Fixed { offset }, Self::Resident(row, _) | Self::Evicted(row)) => {
                    Part::Fixed { bytes: &row[offset..offset + part.bytes], number: part.number }
                }
                (KeySource::Var { offset, .. }, Self::Resident(row, Some(values))) => {
                    Part::Var { text: values.get(reference(row, offset)), bytes: part.bytes }
                }
                (KeySource::Var { image_offset, .. }, Self::Evicted(image)) => {
                    Part::Fixed { bytes: &image[image_offset..image_offset + part.bytes], number: false }
                }
                (KeySource::Var { .. }, Self::Resident(_, None)) => {
                    unreachable!("a table with VARCHAR columns has memory for them")
                }
            });
        }
    }

    /// The key that a hash index compares. Not in line: keys that do not stand in one piece are rare, and callers shall stay small.
    #[inline(never)]
    pub fn hash_key(self, def: &IndexDef) -> KeyBuf {
        let mut key = KeyBuf::new();
        self.each(&def.parts[..def.own_parts], |part| match part {
            Part::Fixed { bytes, .. } => key.push(bytes),
            Part::Var { text, bytes } => key.push_var(text, bytes),
        });
        key
    }

    /// The key of an ordered index's entry.
    #[inline]
    pub fn ordered_key<K: NormalKey>(self, def: &IndexDef) -> K {
        let mut key = K::default();
        self.each(&def.parts, |part| match part {
            Part::Fixed { bytes, number } => key.push_normal(bytes, number),
            Part::Var { text, bytes } => key.push_var(text, bytes),
        });
        key
    }

    /// Whether the tuple has this key, in a hash index's form.
    #[inline]
    pub fn has_key(self, def: &IndexDef, key: &[u8]) -> bool {
        match def.contiguous {
            Some(start) => is_equal(&self.fixed()[start..start + def.key_bytes], key),
            None => self.hash_key(def).as_slice() == key,
        }
    }

    /// The columns of fixed length, at their offsets in the row.
    #[inline]
    fn fixed(self) -> &'a [u8] {
        let (Self::Resident(bytes, _) | Self::Evicted(bytes)) = self;
        bytes
    }

    /// Brings the beginning of its key near.
    #[inline]
    fn prefetch(self, def: &IndexDef) {
        prefetch(self.fixed().as_ptr().wrapping_add(def.contiguous.unwrap_or(0)));
    }

    /// Hash of its key.
    #[inline]
    pub fn hash(self, def: &IndexDef) -> u64 {
        match def.contiguous {
            Some(start) => hash_key(&self.fixed()[start..start + def.key_bytes]),
            None => hash_key(&self.hash_key(def)),
        }
    }
}

/// Whether two keys are equal; those of 4 to 8 bytes are compared without a call.
#[inline]
fn is_equal(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    match (one.first_chunk::<4>(), other.first_chunk(), one.last_chunk::<4>(), other.last_chunk()) {
        (Some(one_first), Some(other_first), Some(one_last), Some(other_last)) if one.len() <= 8 => {
            one_first == other_first && one_last == other_last
        }
        _ => one == other,
    }
}

/// The reference at `offset` of a row.
#[inline]
pub fn reference(row: &[u8], offset: usize) -> u32 {
    row[offset..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// One index.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // a table has few, and a box would be one more step to each
pub enum Index {
    /// For equality.
    Hash(HashIndex),
    /// For ranges.
    Ordered(OrderedIndex),
}

impl Index {
    /// An empty index.
    ///
    /// # Errors
    /// When address space cannot be reserved.
    pub fn new(def: &IndexDef, max_entries: usize) -> io::Result<Self> {
        Ok(match def.kind {
            IndexKind::Hash => Self::Hash(HashIndex::new(max_entries)?),
            IndexKind::Ordered => Self::Ordered(OrderedIndex::new(def.entry_bytes, max_entries)?),
        })
    }

    /// Makes an empty index ready for that many entries, where that saves work; false when there cannot be as many.
    pub fn reserve(&mut self, entries: u64) -> bool {
        match self {
            Self::Hash(index) => index.reserve(entries),
            Self::Ordered(_) => true,
        }
    }

    /// Entries.
    pub fn len(&self) -> u64 {
        match self {
            Self::Hash(index) => index.len(),
            Self::Ordered(tree) => tree.len(),
        }
    }

    /// Whether it has no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes held.
    #[inline]
    pub fn allocated_bytes(&self) -> usize {
        match self {
            Self::Hash(index) => index.allocated_bytes(),
            Self::Ordered(tree) => tree.allocated_bytes(),
        }
    }

    /// An entry with this key: of a unique index the only one. `columns` tells the columns of what a handle leads to.
    #[inline]
    pub fn find<'a>(&self, def: &IndexDef, key: &[u8], columns: impl Fn(Handle) -> Columns<'a>) -> Option<Handle> {
        match self {
            Self::Hash(index) => index.find(hash_key(key), |handle| columns(handle).has_key(def, key)),
            Self::Ordered(tree) => {
                if def.is_narrow() {
                    Self::find_in(tree, def, &def.normalize::<NarrowKey>(key).ok()?)
                } else {
                    Self::find_in(tree, def, &def.normalize::<KeyBuf>(key).ok()?)
                }
            }
        }
    }

    #[inline]
    fn find_in(tree: &OrderedIndex, def: &IndexDef, key: &impl NormalKey) -> Option<Handle> {
        if key.len() == def.entry_bytes { tree.find(key) } else { tree.first(key, key) }
    }

    /// All entries with this key, in no particular order.
    pub fn find_all<'a>(
        &self,
        def: &IndexDef,
        key: &[u8],
        columns: impl Fn(Handle) -> Columns<'a>,
        mut found: impl FnMut(Handle),
    ) {
        match self {
            Self::Hash(index) => {
                let _ = index.find(hash_key(key), |handle| {
                    if columns(handle).has_key(def, key) {
                        found(handle);
                    }
                    false
                });
            }
            Self::Ordered(tree) => {
                if let Ok(normal) = def.normalize::<KeyBuf>(key) {
                    tree.scan(&normal, &normal, Direction::Ascending, |handle| {
                        found(handle);
                        ControlFlow::Continue(())
                    });
                }
            }
        }
    }

    /// Enters a tuple. False, and nothing is changed, when an ordered index has an entry with its key; of a hash index, the caller has made sure that it
    /// has none, where it must not.
    #[must_use]
    pub fn insert<'a>(&mut self, def: &IndexDef, handle: Handle, columns: impl Fn(Handle) -> Columns<'a>) -> bool {
        match self {
            Self::Hash(index) => {
                let hash = columns(handle).hash(def);
                index.insert(hash, handle, |handle| columns(handle).hash(def), |handle| columns(handle).prefetch(def));
                true
            }
            Self::Ordered(tree) => with_ordered_key!(columns(handle), def, key => tree.insert(&key, handle)),
        }
    }

    /// Takes a tuple out.
    pub fn remove(&mut self, def: &IndexDef, handle: Handle, columns: Columns<'_>) {
        let removed = match self {
            Self::Hash(index) => index.remove(columns.hash(def), handle),
            Self::Ordered(tree) => with_ordered_key!(columns, def, key => tree.remove(&key) == Some(handle)),
        };
        debug_assert!(removed, "a tuple has an entry in every index");
    }

    /// Leads to the same tuple's new place.
    pub fn replace(&mut self, def: &IndexDef, old: Handle, new: Handle, columns: Columns<'_>) {
        let replaced = match self {
            Self::Hash(index) => index.replace(columns.hash(def), old, new),
            Self::Ordered(tree) => with_ordered_key!(columns, def, key => tree.replace(&key, old, new)),
        };
        debug_assert!(replaced, "a tuple has an entry in every index");
    }

    /// The same for some tuples, [`TOGETHER`] at most: old and new handle of each. Their cache misses overlap.
    pub fn replace_all<'a>(
        &mut self,
        def: &IndexDef,
        moved: &[(Handle, Handle)],
        columns: impl Fn(Handle) -> Columns<'a>,
    ) {
        assert!(moved.len() <= TOGETHER, "{} tuples at once, and {TOGETHER} are allowed", moved.len());
        let replaced = match self {
            Self::Hash(index) => {
                let mut hashes = [0; TOGETHER];
                for (hash, &(old, _)) in hashes.iter_mut().zip(moved) {
                    *hash = columns(old).hash(def);
                    index.prefetch(*hash);
                }
                hashes.iter().zip(moved).all(|(&hash, &(old, new))| index.replace(hash, old, new))
            }
            Self::Ordered(tree) if def.is_narrow() => {
                Self::replace_in::<NarrowKey>(tree, def, moved, |at| columns(moved[at].0))
            }
            Self::Ordered(tree) => Self::replace_in::<KeyBuf>(tree, def, moved, |at| columns(moved[at].0)),
        };
        debug_assert!(replaced, "a tuple has an entry in every index");
    }

    /// `columns` are those of a tuple before it moved, by its place in `moved`. What was entered in the order of its keys, as an order's lines are, mostly
    /// moves in this order.
    fn replace_in<'a, K: NormalKey>(
        tree: &mut OrderedIndex,
        def: &IndexDef,
        moved: &[(Handle, Handle)],
        columns: impl Fn(usize) -> Columns<'a>,
    ) -> bool {
        let prefix = def.prefix();
        let follows = |at| {
            let (before, this) = (columns(at - 1).fixed(), columns(at).fixed());
            prefix.clone().is_some_and(|prefix| is_equal(&before[prefix.clone()], &this[prefix]))
        };
        tree.replace_all(moved, |at| columns(at).ordered_key::<K>(def), follows)
    }
}
