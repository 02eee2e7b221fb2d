//! Hash index: linear hashing over buckets of one cache line.
//!
//! A bucket holds twelve one-byte fingerprints, twelve 4-byte handles and a link to an overflow bucket: 64 bytes, so that a look-up
//! misses the cache once. The index keeps no keys: a handle leads to the tuple, whose header and key share a line that the transaction
//! needs anyway, or to the Evicted Table, which keeps the keys of evicted tuples. It grows one bucket at a time (linear hashing: no
//! directory, no moment at which everything is rehashed), which bounds the executor's stalls.

use std::io;

use super::region::{RegionVec, ZeroValid, prefetch};

/// What an index entry refers to: a [`super::tuples::TupleId`], or with the top bit set an entry of the Evicted Table.
pub type Handle = u32;

const SLOTS: usize = 12;
const NO_BUCKET: u32 = 0;
const INITIAL_BUCKETS: usize = 16;
/// Average fill at which another bucket is added, in entries per 16 buckets: 0.72 × 12 × 16.
const ENTRIES_PER_16_BUCKETS: u64 = 138;

#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Bucket {
    /// 0 = the slot is free.
    fingerprints: [u8; SLOTS],
    handles: [Handle; SLOTS],
    /// Number of the next overflow bucket; 0 ends the list, because overflow bucket 0 is never given out. Of a list all buckets are full but the first
    /// overflow bucket, so that equal keys, however many, are added and divided in a step each, and those that go leave no memory behind.
    overflow: u32,
}

const _: () = assert!(size_of::<Bucket>() == 64);

// SAFETY: integers only, no padding: 12 + 48 + 4 = 64.
unsafe impl ZeroValid for Bucket {}

impl Bucket {
    /// Bit i is set where slot i has this fingerprint.
    #[inline(always)]
    fn matches(&self, fingerprint: u8) -> u32 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: SSE2 is part of x86-64; the 16 bytes loaded are the fingerprints and the first handle, inside the bucket.
        unsafe {
            use std::arch::x86_64::{__m128i, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8};
            let line = _mm_loadu_si128(std::ptr::from_ref(self).cast::<__m128i>());
            let equal = _mm_cmpeq_epi8(line, _mm_set1_epi8(fingerprint.cast_signed()));
            _mm_movemask_epi8(equal).cast_unsigned() & ((1 << SLOTS) - 1)
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            (0..SLOTS).filter(|&i| self.fingerprints[i] == fingerprint).map(|i| 1 << i).sum()
        }
    }

    /// The handles that it holds.
    #[inline(always)]
    fn entries(&self) -> impl Iterator<Item = Handle> {
        (0..SLOTS).filter(|&slot| self.fingerprints[slot] != 0).map(|slot| self.handles[slot])
    }
}

/// Which bucket array, and where in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Main(usize),
    Overflow(usize),
}

/// A unique hash index from key hashes to handles. Comparing keys is the caller's part (`is_match`).
#[derive(Debug)]
pub struct HashIndex {
    main: RegionVec<Bucket>,
    overflow: RegionVec<Bucket>,
    overflow_free: u32,
    /// Buckets at the start of the current doubling round, minus one.
    round_mask: u64,
    len: u64,
    /// The entries of the bucket that is being divided. Kept, because a new bucket comes with every ninth entry or so.
    divided: Vec<Handle>,
}

#[inline(always)]
fn fingerprint_of(hash: u64) -> u8 {
    // The top bits, because the low ones choose the bucket; 0 means "free", so it is never a fingerprint.
    ((hash >> 56) as u8).max(1)
}

impl HashIndex {
    /// An empty index with address space for `max_entries`.
    ///
    /// # Errors
    /// As [`super::region::Region::reserve`].
    pub fn new(max_entries: usize) -> io::Result<Self> {
        let max_buckets = max_entries / 4 + 2 * INITIAL_BUCKETS;
        let mut main = RegionVec::with_reserved(max_buckets)?;
        main.grow(INITIAL_BUCKETS);
        let mut overflow = RegionVec::with_reserved(max_buckets)?;
        overflow.grow(1);
        let divided = Vec::with_capacity(2 * SLOTS);
        let round_mask = INITIAL_BUCKETS as u64 - 1;
        Ok(Self { main, overflow, overflow_free: NO_BUCKET, round_mask, len: 0, divided })
    }

    /// Entries held.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it holds no entry.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of all buckets.
    pub fn allocated_bytes(&self) -> usize {
        self.main.allocated_bytes() + self.overflow.allocated_bytes()
    }

    /// Grows an empty index to what it will have when that many entries have come, so that none of them is looked at again on the way. False, and nothing
    /// is changed, when there is no address space for as many.
    pub fn reserve(&mut self, entries: u64) -> bool {
        debug_assert!(self.is_empty());
        let buckets = entries.saturating_mul(16).div_ceil(ENTRIES_PER_16_BUCKETS);
        if buckets > self.main.capacity() as u64 {
            return false;
        }
        let buckets = (buckets as usize).max(self.main.len());
        self.main.grow(buckets - self.main.len());
        self.round_mask = (1 << buckets.ilog2()) - 1;
        true
    }

    #[inline(always)]
    fn bucket_of(&self, hash: u64) -> usize {
        let wide = (hash & (2 * self.round_mask + 1)) as usize;
        if wide < self.main.len() { wide } else { (hash & self.round_mask) as usize }
    }

    #[inline(always)]
    fn bucket(&self, at: At) -> &Bucket {
        match at {
            At::Main(i) => &self.main.as_slice()[i],
            At::Overflow(i) => &self.overflow.as_slice()[i],
        }
    }

    #[inline(always)]
    fn bucket_mut(&mut self, at: At) -> &mut Bucket {
        match at {
            At::Main(i) => &mut self.main.as_mut_slice()[i],
            At::Overflow(i) => &mut self.overflow.as_mut_slice()[i],
        }
    }

    /// Brings the bucket of `hash` near.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        prefetch(std::ptr::from_ref(&self.main.as_slice()[self.bucket_of(hash)]).cast::<u8>());
    }

    /// The first handle whose fingerprint fits: a guess, right more than 95 times in 100, for prefetching the tuple.
    #[inline]
    pub fn guess(&self, hash: u64) -> Option<Handle> {
        let bucket = &self.main.as_slice()[self.bucket_of(hash)];
        let matches = bucket.matches(fingerprint_of(hash));
        (matches != 0).then(|| bucket.handles[matches.trailing_zeros() as usize])
    }

    /// The handle under `hash` for which `is_match` holds.
    #[inline]
    pub fn find(&self, hash: u64, is_match: impl FnMut(Handle) -> bool) -> Option<Handle> {
        self.position(hash, is_match).map(|(at, slot)| self.bucket(at).handles[slot])
    }

    /// Where the entry is.
    #[inline]
    fn position(&self, hash: u64, mut is_match: impl FnMut(Handle) -> bool) -> Option<(At, usize)> {
        let fingerprint = fingerprint_of(hash);
        let mut at = At::Main(self.bucket_of(hash));
        loop {
            let bucket = self.bucket(at);
            let mut matches = bucket.matches(fingerprint);
            while matches != 0 {
                let slot = matches.trailing_zeros() as usize;
                if is_match(bucket.handles[slot]) {
                    return Some((at, slot));
                }
                matches &= matches - 1;
            }
            if bucket.overflow == NO_BUCKET {
                return None;
            }
            at = At::Overflow(bucket.overflow as usize);
        }
    }

    /// Adds an entry; the caller has made sure that the key is new. `hash_of` tells the hash of any handle held, for growing, and `bring_near` is told
    /// some time before of which handles.
    pub fn insert(
        &mut self,
        hash: u64,
        handle: Handle,
        hash_of: impl FnMut(Handle) -> u64,
        bring_near: impl FnMut(Handle),
    ) {
        self.len += 1;
        self.place(self.bucket_of(hash), hash, handle);
        if self.len * 16 > self.main.len() as u64 * ENTRIES_PER_16_BUCKETS {
            self.split_one(hash_of);
            self.prefetch_splits(bring_near);
        }
    }

    /// Which buckets are divided next is known, and some nine insertions go by before each: time enough to fetch what dividing it looks at.
    fn prefetch_splits(&self, bring_near: impl FnMut(Handle)) {
        let buckets = self.main.as_slice();
        let next = buckets.len() - (self.round_mask as usize + 1);
        buckets[next].entries().for_each(bring_near);
        prefetch(buckets[next + 1..].as_ptr().cast::<u8>());
    }

    /// Points the entry (`hash`, `old`) to `new`; false when there is none.
    pub fn replace(&mut self, hash: u64, old: Handle, new: Handle) -> bool {
        let Some((at, slot)) = self.position(hash, |handle| handle == old) else {
            return false;
        };
        self.bucket_mut(at).handles[slot] = new;
        true
    }

    /// Removes the entry (`hash`, `handle`); false when there is none.
    pub fn remove(&mut self, hash: u64, handle: Handle) -> bool {
        let Some((at, slot)) = self.position(hash, |entry| entry == handle) else {
            return false;
        };
        self.bucket_mut(at).fingerprints[slot] = 0;
        self.len -= 1;
        self.fill_hole(self.bucket_of(hash), at, slot);
        true
    }

    /// Moves an entry of the first overflow bucket of a list to a slot that has become free, and gives that bucket back when it was the last.
    fn fill_hole(&mut self, main_bucket: usize, at: At, slot: usize) {
        let number = self.bucket(At::Main(main_bucket)).overflow;
        if number == NO_BUCKET {
            return;
        }
        let first = At::Overflow(number as usize);
        if at != first {
            let bucket = self.bucket_mut(first);
            let from = (bucket.matches(0) ^ ((1 << SLOTS) - 1)).trailing_zeros() as usize;
            let (fingerprint, handle) = (std::mem::take(&mut bucket.fingerprints[from]), bucket.handles[from]);
            let hole = self.bucket_mut(at);
            (hole.fingerprints[slot], hole.handles[slot]) = (fingerprint, handle);
        }
        if self.bucket(first).fingerprints == [0; SLOTS] {
            let free = std::mem::replace(&mut self.overflow_free, number);
            let next = std::mem::replace(&mut self.bucket_mut(first).overflow, free);
            self.bucket_mut(At::Main(main_bucket)).overflow = next;
        }
    }

    fn place(&mut self, main_bucket: usize, hash: u64, handle: Handle) {
        let main = At::Main(main_bucket);
        let number = self.bucket(main).overflow;
        let has_room = |at: At| self.bucket(at).matches(0) != 0;
        let at = if has_room(main) {
            main
        } else if number != NO_BUCKET && has_room(At::Overflow(number as usize)) {
            At::Overflow(number as usize)
        } else {
            let fresh = self.take_overflow();
            self.bucket_mut(At::Overflow(fresh as usize)).overflow = number;
            self.bucket_mut(main).overflow = fresh;
            At::Overflow(fresh as usize)
        };
        let bucket = self.bucket_mut(at);
        let slot = bucket.matches(0).trailing_zeros() as usize;
        bucket.fingerprints[slot] = fingerprint_of(hash);
        bucket.handles[slot] = handle;
    }

    fn take_overflow(&mut self) -> u32 {
        if self.overflow_free == NO_BUCKET {
            self.overflow.grow(1);
            return u32::try_from(self.overflow.len() - 1).expect("fewer overflow buckets than handles");
        }
        let number = self.overflow_free;
        let bucket = &mut self.overflow.as_mut_slice()[number as usize];
        self.overflow_free = bucket.overflow;
        bucket.overflow = NO_BUCKET;
        number
    }

    /// Linear hashing's step: the next bucket of the round is divided between itself and a new last bucket.
    fn split_one(&mut self, mut hash_of: impl FnMut(Handle) -> u64) {
        let source = self.main.len() - (self.round_mask as usize + 1);
        self.main.grow(1);
        let mut handles = std::mem::take(&mut self.divided);
        self.drain_bucket(source, &mut handles);
        if self.main.len() as u64 == 2 * (self.round_mask + 1) {
            self.round_mask = 2 * self.round_mask + 1;
        }
        for handle in handles.drain(..) {
            let hash = hash_of(handle);
            self.place(self.bucket_of(hash), hash, handle);
        }
        self.divided = handles;
    }

    fn drain_bucket(&mut self, main_bucket: usize, handles: &mut Vec<Handle>) {
        let mut at = At::Main(main_bucket);
        loop {
            let bucket = self.bucket_mut(at);
            handles.extend(bucket.entries());
            bucket.fingerprints = [0; SLOTS];
            let next = std::mem::replace(&mut bucket.overflow, NO_BUCKET);
            if let At::Overflow(number) = at {
                self.bucket_mut(at).overflow = self.overflow_free;
                self.overflow_free = number as u32;
            }
            if next == NO_BUCKET {
                return;
            }
            at = At::Overflow(next as usize);
        }
    }
}

/// Hash of an encoded key. Integer keys (8 bytes) take a short path.
#[inline]
pub fn hash_key(key: &[u8]) -> u64 {
    match <[u8; 8]>::try_from(key) {
        Ok(bytes) => mix(u64::from_le_bytes(bytes)),
        Err(_) => rapidhash::v3::rapidhash_v3(key),
    }
}

/// A bijective mixer: two multiply-and-fold rounds, enough that consecutive keys fill buckets evenly.
#[inline]
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 32)).wrapping_mul(0x9FB2_1C65_1E98_DF25);
    x = (x ^ (x >> 35)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    x ^ (x >> 32)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Op {
        Insert(u16),
        Remove(u16),
        Replace(u16),
        Find(u16),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => any::<u16>().prop_map(|k| Op::Insert(k % 700)),
            1 => any::<u16>().prop_map(|k| Op::Remove(k % 700)),
            1 => any::<u16>().prop_map(|k| Op::Replace(k % 700)),
            2 => any::<u16>().prop_map(|k| Op::Find(k % 700)),
        ]
    }

    /// A poor hash on purpose: many keys share a bucket and a fingerprint, so that overflow buckets are exercised.
    fn poor_hash(key: u64) -> u64 {
        (key / 40) | (key % 3) << 56
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn behaves_like_a_map(ops in prop::collection::vec(op(), 1..3000), poor in any::<bool>()) {
            let hash = |key: u64| if poor { poor_hash(key) } else { hash_key(&key.to_le_bytes()) };
            let mut index = HashIndex::new(1 << 16).unwrap();
            let mut model = HashMap::<u64, Handle>::new();
            let mut keys = Vec::<u64>::new(); // key of each handle ever given
            for op in ops {
                match op {
                    Op::Insert(k) if !model.contains_key(&u64::from(k)) => {
                        let handle = keys.len() as Handle;
                        keys.push(u64::from(k));
                        model.insert(u64::from(k), handle);
                        index.insert(hash(u64::from(k)), handle, |h| hash(keys[h as usize]), |_| ());
                    }
                    Op::Remove(k) => {
                        let handle = model.remove(&u64::from(k));
                        let never_given = keys.len() as Handle;
                        prop_assert_eq!(index.remove(hash(u64::from(k)), handle.unwrap_or(never_given)), handle.is_some());
                    }
                    Op::Replace(k) => {
                        if let Some(handle) = model.get_mut(&u64::from(k)) {
                            let new = keys.len() as Handle;
                            keys.push(u64::from(k));
                            prop_assert!(index.replace(hash(u64::from(k)), *handle, new));
                            *handle = new;
                        }
                    }
                    Op::Insert(k) | Op::Find(k) => {
                        let found = index.find(hash(u64::from(k)), |h| keys[h as usize] == u64::from(k));
                        prop_assert_eq!(found, model.get(&u64::from(k)).copied());
                    }
                }
            }
            prop_assert_eq!(index.len(), model.len() as u64);
            for (key, handle) in model {
                prop_assert_eq!(index.find(hash(key), |h| keys[h as usize] == key), Some(handle));
            }
        }
    }

    /// An index that is not unique, of days or states: every key once had many entries at the same time.
    #[test]
    fn runs_of_equal_keys_that_come_and_go_take_no_more_memory() {
        let mut index = HashIndex::new(1 << 16).unwrap();
        let (mut first_bytes, run) = (0, 5000);
        for round in 0..40u32 {
            let hash = hash_key(&u64::from(round).to_le_bytes());
            (0..run).for_each(|handle| index.insert(hash, handle, |_| hash, |_| ()));
            first_bytes = if round == 0 { index.allocated_bytes() } else { first_bytes };
            // Most of a run goes at once, from its beginning, its end and in between; a few entries stay for another round.
            for handle in (1..run).map(|place| place * 7 % run).filter(|handle| handle % 100 > 0) {
                assert!(index.remove(hash, handle));
            }
            if round > 0 {
                let before = hash_key(&u64::from(round - 1).to_le_bytes());
                (0..run).step_by(100).for_each(|handle| assert!(index.remove(before, handle)));
            }
            let mut found = Vec::new();
            index.find(hash, |handle| {
                found.push(handle);
                false
            });
            found.sort_unstable();
            assert_eq!(found, (0..run).step_by(100).collect::<Vec<_>>());
        }
        assert!(index.allocated_bytes() <= 2 * first_bytes, "{} bytes after {first_bytes}", index.allocated_bytes());
    }

    #[test]
    fn what_is_reserved_is_what_it_would_have_grown_to() {
        let hash = |key: u32| hash_key(&u64::from(key).to_le_bytes());
        for entries in [0u32, 1, 137, 138, 139, 276, 277, 5000, 70_000] {
            let [mut grown, mut reserved] = [(); 2].map(|()| HashIndex::new(1 << 17).unwrap());
            assert!(reserved.reserve(u64::from(entries)));
            for key in 0..entries {
                grown.insert(hash(key), key, hash, |_| ());
                reserved.insert(hash(key), key, |_| unreachable!("nothing is divided"), |_| ());
            }
            let shape = |index: &HashIndex| (index.main.len(), index.round_mask, index.len());
            assert_eq!(shape(&grown), shape(&reserved), "{entries} entries");
            assert!((0..entries).all(|key| reserved.find(hash(key), |handle| handle == key) == Some(key)));
            // It goes on as any other.
            (entries..2 * entries).for_each(|key| reserved.insert(hash(key), key, hash, |_| ()));
            assert!((0..2 * entries).all(|key| reserved.find(hash(key), |handle| handle == key) == Some(key)));
        }
        assert!(!HashIndex::new(1 << 10).unwrap().reserve(1 << 40));
    }

    #[test]
    fn memory_per_entry_stays_low_at_any_size() {
        let mut index = HashIndex::new(1 << 20).unwrap();
        for key in 0..300_000u32 {
            index.insert(
                hash_key(&u64::from(key).to_le_bytes()),
                key,
                |h| hash_key(&u64::from(h).to_le_bytes()),
                |_| (),
            );
            if key > 50_000 && key % 10_000 == 0 {
                let per_entry = index.allocated_bytes() as f64 / f64::from(key);
                assert!(per_entry < 12.0, "{per_entry} bytes per entry at {key} entries");
            }
        }
    }
}
