use std::collections::BTreeMap;
use std::ops::ControlFlow;

use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::*;
use crate::catalog::key::KeyBuf;

impl NormalKey for Vec<u8> {
    fn push_normal(&mut self, bytes: &[u8], number: bool) {
        assert!(!number, "keys here are bytes already");
        self.extend_from_slice(bytes);
    }

    fn push_var(&mut self, text: &[u8], bytes: usize) {
        unreachable!("{text:?} of {bytes} bytes: keys here have no texts");
    }

    fn len(&self) -> usize {
        self.len()
    }

    fn words<const W: usize>(&self) -> [u64; W] {
        let mut key = KeyBuf::new();
        key.push(self);
        key.words()
    }
}

#[derive(Debug, Clone)]
enum Op {
    Insert(u16),
    Remove(u16),
    Replace(u16),
    /// Replaces so many keys, or all that there are, from one on in steps, and one more that may not be there. A bit for each guesses that it follows
    /// the one before.
    ReplaceAll {
        from: u16,
        count: usize,
        step: usize,
        other: Option<u16>,
        guesses: u64,
    },
    Find(u16),
    Scan {
        low: (u16, usize),
        high: (u16, usize),
        descending: bool,
        limit: usize,
    },
    /// Removes what a scan between the two finds, from its start.
    Drain(u16, u16),
}

fn op() -> impl Strategy<Value = Op> {
    let bound = || (any::<u16>(), 0..=MAX_KEY_BYTES);
    prop_oneof![
        12 => any::<u16>().prop_map(Op::Insert),
        4 => any::<u16>().prop_map(Op::Remove),
        2 => any::<u16>().prop_map(Op::Replace),
        2 => (any::<u16>(), 0..TOGETHER, 1..4usize, any::<Option<u16>>(), any::<u64>())
            .prop_map(|(from, count, step, other, guesses)| Op::ReplaceAll { from, count, step, other, guesses }),
        3 => any::<u16>().prop_map(Op::Find),
        3 => (bound(), bound(), any::<bool>(), 1..100usize)
            .prop_map(|(low, high, descending, limit)| Op::Scan { low, high, descending, limit }),
        1 => (any::<u16>(), any::<u16>()).prop_map(|(a, b)| Op::Drain(a, b)),
    ]
}

/// Bytes that differ early, late and in the middle, with runs of the smallest and of the largest byte.
fn key_of(number: u16, key_bytes: usize) -> Vec<u8> {
    let spread = |nibble: u16| [0x00, 0xFF, 0x01, 0x7F, 0x80, 0xFE][usize::from(nibble) % 6];
    let mut key = vec![spread(number / 6); key_bytes];
    key[key_bytes / 2] = (number / 36 % 16) as u8;
    key[key_bytes - 1] = spread(number) ^ (number / 36 / 16 % 4) as u8;
    key
}

fn prefix((number, length): (u16, usize), key_bytes: usize) -> Vec<u8> {
    let mut key = key_of(number, key_bytes);
    key.truncate(length % (key_bytes + 1));
    key
}

fn padded(prefix: &[u8], fill: u8, key_bytes: usize) -> Vec<u8> {
    let mut key = prefix.to_vec();
    key.resize(key_bytes, fill);
    key
}

fn scan(index: &OrderedIndex, low: &Vec<u8>, high: &Vec<u8>, direction: Direction, limit: usize) -> Vec<Handle> {
    let mut found = Vec::new();
    index.scan(low, high, direction, |handle| {
        found.push(handle);
        if found.len() == limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    found
}

type Model = BTreeMap<Vec<u8>, Handle>;
/// No entry has it.
const NO_HANDLE: Handle = Handle::MAX;

fn scan_model(model: &Model, low: &[u8], high: &[u8], direction: Direction, key_bytes: usize) -> Vec<Handle> {
    let (low, high) = (padded(low, 0, key_bytes), padded(high, 0xFF, key_bytes));
    let mut found = if low > high { Vec::new() } else { model.range(low..=high).map(|(_, &h)| h).collect() };
    if direction == Direction::Descending {
        found.reverse();
    }
    found
}

fn apply(index: &mut OrderedIndex, model: &mut Model, op: &Op, key_bytes: usize, handle: Handle) {
    match *op {
        Op::Insert(number) => {
            let key = key_of(number, key_bytes);
            assert_eq!(index.insert(&key, handle), !model.contains_key(&key));
            model.entry(key).or_insert(handle);
        }
        Op::Remove(number) => {
            let key = key_of(number, key_bytes);
            assert_eq!(index.remove(&key), model.remove(&key));
        }
        Op::Replace(number) => {
            let key = key_of(number, key_bytes);
            let old = model.get(&key).copied();
            assert!(!index.replace(&key, NO_HANDLE, handle), "no entry has this handle");
            assert_eq!(index.replace(&key, old.unwrap_or(0), handle), old.is_some());
            model.entry(key).and_modify(|held| *held = handle);
        }
        Op::ReplaceAll { from, count, step, other, guesses } => {
            let some = model.range(key_of(from, key_bytes)..).step_by(step).take(count);
            let mut keys: Vec<_> = some.map(|(key, _)| key.clone()).collect();
            keys.extend(other.map(|number| key_of(number, key_bytes)).filter(|key| !keys.contains(key)));
            let new = |at: usize| handle + ((at as Handle + 1) << 16);
            let moved: Vec<_> =
                keys.iter().enumerate().map(|(at, key)| (*model.get(key).unwrap_or(&NO_HANDLE), new(at))).collect();
            let all = keys.iter().all(|key| model.contains_key(key));
            let never: Vec<_> = moved.iter().map(|&(_, new)| (NO_HANDLE, new)).collect();
            let follows = |at: usize| guesses >> at & 1 == 1;
            assert_eq!(index.replace_all(&never, |at| keys[at].clone(), follows), keys.is_empty());
            assert_eq!(index.replace_all(&moved, |at| keys[at].clone(), follows), all);
            for (at, key) in keys.into_iter().enumerate() {
                model.entry(key).and_modify(|held| *held = new(at));
            }
        }
        Op::Find(number) => {
            let key = key_of(number, key_bytes);
            assert_eq!(index.find(&key), model.get(&key).copied());
        }
        Op::Scan { low, high, descending, limit } => {
            let (low, high) = (prefix(low, key_bytes), prefix(high, key_bytes));
            let direction = if descending { Direction::Descending } else { Direction::Ascending };
            let mut expected = scan_model(model, &low, &high, direction, key_bytes);
            let end = if descending { index.last(&low, &high) } else { index.first(&low, &high) };
            assert_eq!(end, expected.first().copied());
            expected.truncate(limit);
            index.prefetch_all([low.clone(), high.clone()].into_iter());
            assert_eq!(scan(index, &low, &high, direction, limit), expected);
        }
        Op::Drain(a, b) => {
            let (low, high) = (key_of(a.min(b), key_bytes), key_of(a.max(b), key_bytes));
            let doomed: Vec<_> = model.keys().filter(|&key| low <= *key && *key <= high).cloned().collect();
            for key in doomed {
                assert_eq!(index.remove(&key), model.remove(&key));
            }
        }
    }
}

fn run(key_bytes: usize, ops: &[Op]) {
    let mut index = OrderedIndex::new(key_bytes, 1 << 16).unwrap();
    let mut model = Model::new();
    for (i, op) in ops.iter().enumerate() {
        apply(&mut index, &mut model, op, key_bytes, i as Handle);
        assert_eq!(index.len(), model.len() as u64);
        if i % 64 == 0 {
            index.check().unwrap();
        }
    }
    index.check().unwrap();
    assert_eq!(
        scan(&index, &vec![], &vec![], Direction::Ascending, usize::MAX),
        model.values().copied().collect::<Vec<_>>()
    );
    assert_eq!(index.is_empty(), model.is_empty());
    for key in model.keys() {
        assert!(index.remove(key).is_some());
    }
    index.check().unwrap();
    assert!(index.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn behaves_like_a_map_words_1(key_bytes in 1..=8usize, ops in prop::collection::vec(op(), 1..3000)) {
        run(key_bytes, &ops);
    }

    #[test]
    fn behaves_like_a_map_words_2(key_bytes in 9..=16usize, ops in prop::collection::vec(op(), 1..3000)) {
        run(key_bytes, &ops);
    }

    #[test]
    fn behaves_like_a_map_words_4(key_bytes in 17..=32usize, ops in prop::collection::vec(op(), 1..3000)) {
        run(key_bytes, &ops);
    }

    #[test]
    fn behaves_like_a_map_words_8(key_bytes in 33..=64usize, ops in prop::collection::vec(op(), 1..3000)) {
        run(key_bytes, &ops);
    }

    #[test]
    fn behaves_like_a_map_words_16(key_bytes in 65..=128usize, ops in prop::collection::vec(op(), 1..3000)) {
        run(key_bytes, &ops);
    }

    #[test]
    fn bounds_become_the_words_of_padded_keys(key_bytes in 1..=128usize, number in any::<u16>(), length in 0..=128usize) {
        let keyed = Keyed::<16, 30>::new(key_bytes, 1).unwrap();
        let bound = prefix((number, length), key_bytes);
        let words = |fill| {
            let key = padded(&padded(&bound, fill, key_bytes), 0, 128);
            std::array::from_fn::<u64, 16, _>(|i| u64::from_be_bytes(key[8 * i..8 * i + 8].try_into().unwrap()))
        };
        prop_assert_eq!(keyed.lowest(&bound), words(0x00));
        prop_assert_eq!(keyed.highest(&bound), words(0xFF));
    }

    /// Nodes of four or eight entries make a few hundred keys a tree of many levels, in which splits and merges go far up.
    #[test]
    fn tall_trees_behave_like_a_map(steps in prop::collection::vec((any::<u16>(), 0..40u16, 0..5u8), 1..150), key_count in 200..1500u16) {
        run_tall::<1, 8>(&steps, key_count);
        run_tall::<2, 4>(&steps, key_count);
        run_tall::<4, 5>(&steps, key_count);
    }
}

/// Each step inserts or removes a run of neighbouring keys, upwards or downwards, or scattered ones.
fn run_tall<const W: usize, const N: usize>(steps: &[(u16, u16, u8)], key_count: u16) {
    let mut tree = Tree::<W, N>::new(1 << 16).unwrap();
    let mut model = BTreeMap::<Words<W>, Handle>::new();
    for &(start, length, kind) in steps {
        for i in 0..length {
            let number = match kind {
                0 | 3 => start.wrapping_add(i),
                1 => start.wrapping_sub(i),
                _ => start.wrapping_mul(i + 1),
            } % key_count;
            let mut key = [u64::from(number / 256); W];
            key[W - 1] = u64::from(number % 256).wrapping_sub(1);
            let handle = Handle::from(number) + Handle::from(start);
            if kind < 3 {
                assert_eq!(tree.insert(&key, handle), !model.contains_key(&key));
                model.entry(key).or_insert(handle);
            } else {
                assert_eq!(tree.remove(&key), model.remove(&key));
            }
            assert_eq!(tree.find(&key), model.get(&key).copied());
        }
        tree.check().unwrap();
    }
    for direction in [Direction::Ascending, Direction::Descending] {
        let mut found = Vec::new();
        tree.scan(&[0; W], &[u64::MAX; W], direction, |handle| {
            found.push(handle);
            ControlFlow::Continue(())
        });
        if direction == Direction::Descending {
            found.reverse();
        }
        assert_eq!(found, model.values().copied().collect::<Vec<_>>());
    }
    for key in model.keys() {
        assert_eq!(tree.remove(key), Some(model[key]));
    }
    tree.check().unwrap();
    assert_eq!((tree.len(), tree.leaf_slots()), (0, N as u64), "an empty tree is one leaf");
}

#[test]
fn widths_outside_the_range_are_refused_with_the_value() {
    for key_bytes in [0, 129] {
        let error = OrderedIndex::new(key_bytes, 100).unwrap_err();
        assert!(error.to_string().contains(&format!("keys of {key_bytes} bytes")), "{error}");
    }
}

#[test]
#[should_panic(expected = "width of its index")]
fn a_key_of_another_width_is_refused() {
    OrderedIndex::new(8, 100).unwrap().insert(&vec![1; 7], 0);
}

/// District and order number, as ORDERS has them.
fn order_key(district: u32, order: u32, key_bytes: usize) -> Vec<u8> {
    let mut key = vec![0; key_bytes];
    key[..4].copy_from_slice(&district.to_be_bytes());
    key[key_bytes - 4..].copy_from_slice(&order.to_be_bytes());
    key
}

const WIDTHS: [usize; 5] = [8, 16, 32, 64, 128];

#[test]
fn ascending_and_descending_keys_fill_leaves() {
    for key_bytes in WIDTHS {
        for is_ascending in [true, false] {
            let mut index = OrderedIndex::new(key_bytes, 1 << 16).unwrap();
            for i in 0..20_000 {
                assert!(index.insert(&order_key(0, if is_ascending { i } else { 20_000 - i }, key_bytes), i));
            }
            index.check().unwrap();
            assert!(index.leaf_fill() > 0.98, "{key_bytes} bytes, ascending {is_ascending}: {}", index.leaf_fill());
        }
    }
}

#[test]
fn interleaved_ranges_fill_leaves() {
    let mut random = Pcg64Mcg::seed_from_u64(3);
    for (districts, orders, lines) in [(10, 30_000, 1), (100, 60_000, 1), (1000, 300_000, 1), (10, 5_000, 10)] {
        for key_bytes in [8, 16, 64] {
            let mut index = OrderedIndex::new(key_bytes, 1 << 20).unwrap();
            let mut next = vec![0; districts];
            for _ in 0..orders {
                let district = random.random_range(0..districts);
                for _ in 0..lines {
                    assert!(index.insert(&order_key(district as u32, next[district], key_bytes), next[district]));
                    next[district] += 1;
                }
            }
            index.check().unwrap();
            let fill = index.leaf_fill();
            assert!(fill >= 0.85, "{districts} districts, {key_bytes} bytes, {lines} lines: {fill}");
        }
    }
}

#[test]
fn short_runs_between_present_keys_leave_no_small_leaves() {
    let mut index = OrderedIndex::new(8, 1 << 20).unwrap();
    for order in 0..20_000 {
        index.insert(&order_key(0, order * 10, 8), order);
    }
    for order in 0..20_000 {
        index.insert(&order_key(0, order * 10 + 1, 8), order);
        index.insert(&order_key(0, order * 10 + 2, 8), order);
    }
    index.check().unwrap();
    assert!(index.leaf_fill() >= 0.5, "{}", index.leaf_fill());
}

#[test]
fn queues_do_not_grow() {
    for key_bytes in WIDTHS {
        let mut index = OrderedIndex::new(key_bytes, 1 << 20).unwrap();
        let (districts, waiting) = (10, 300);
        let mut full_bytes = 0;
        for order in 0..20_000u32 {
            for district in 0..districts {
                assert!(index.insert(&order_key(district, order, key_bytes), order));
                if order >= waiting {
                    let (from, to) = (district.to_be_bytes().to_vec(), district.to_be_bytes().to_vec());
                    assert_eq!(index.first(&from, &to), Some(order - waiting));
                    assert_eq!(index.last(&from, &to), Some(order));
                    assert_eq!(index.remove(&order_key(district, order - waiting, key_bytes)), Some(order - waiting));
                }
            }
            if order == 4 * waiting {
                full_bytes = index.allocated_bytes();
            }
            if order > 4 * waiting && order % 1000 == 0 {
                assert!(index.allocated_bytes() <= full_bytes, "{key_bytes} bytes: {}", index.allocated_bytes());
                index.check().unwrap();
            }
        }
        assert!(index.leaf_fill() > 0.7, "{key_bytes} bytes: {}", index.leaf_fill());
    }
}

#[test]
fn churn_at_constant_size_takes_no_more_memory() {
    let mut random = Pcg64Mcg::seed_from_u64(11);
    for key_bytes in WIDTHS {
        let mut index = OrderedIndex::new(key_bytes, 1 << 20).unwrap();
        let mut held = Vec::<u32>::new();
        let key = |number: u32| order_key(number.wrapping_mul(0x9E37_79B1), number, key_bytes);
        for number in 0..20_000 {
            assert!(index.insert(&key(number), number));
            held.push(number);
        }
        let mut settled_bytes = 0;
        for number in 20_000..220_000u32 {
            let victim = random.random_range(0..held.len());
            let gone = std::mem::replace(&mut held[victim], number);
            assert_eq!(index.remove(&key(gone)), Some(gone));
            assert!(index.insert(&key(number), number));
            if number % 50_000 == 0 {
                index.check().unwrap();
            }
            if number == 120_000 {
                settled_bytes = index.allocated_bytes();
            }
        }
        let grown = index.allocated_bytes() as f64 / settled_bytes as f64;
        assert!(grown < 1.03, "{key_bytes} bytes: {grown} times {settled_bytes} bytes");
        assert!(index.leaf_fill() > 0.59, "{key_bytes} bytes: {}", index.leaf_fill());
    }
}

#[test]
fn filling_and_emptying_takes_no_more_memory() {
    for key_bytes in WIDTHS {
        let mut index = OrderedIndex::new(key_bytes, 1 << 20).unwrap();
        let mut random = Pcg64Mcg::seed_from_u64(5);
        let mut first_bytes = 0;
        for round in 0..6 {
            let mut numbers: Vec<u32> = (0..20_000).collect();
            for number in &numbers {
                assert!(index.insert(&order_key(number.wrapping_mul(0x9E37_79B1), *number, key_bytes), *number));
            }
            rand::seq::SliceRandom::shuffle(&mut numbers[..], &mut random);
            // When nine of ten keys are gone, the leaves that are left have to have found each other.
            for (i, number) in numbers.iter().enumerate() {
                let key = order_key(number.wrapping_mul(0x9E37_79B1), *number, key_bytes);
                assert_eq!(index.remove(&key), Some(*number));
                if i == 18_000 {
                    index.check().unwrap();
                    assert!(index.leaf_fill() > 0.3, "{key_bytes} bytes: {}", index.leaf_fill());
                }
            }
            index.check().unwrap();
            first_bytes = if round == 0 { index.allocated_bytes() } else { first_bytes };
            assert!(index.is_empty() && index.allocated_bytes() == first_bytes, "round {round}, {key_bytes} bytes");
        }
    }
}

/// Keys that descend towards a full leaf must not each begin a leaf of their own: "the latest first" of the next user.
#[test]
fn descending_keys_behind_a_full_leaf_share_leaves() {
    for key_bytes in WIDTHS {
        let mut index = OrderedIndex::new(key_bytes, 1 << 16).unwrap();
        for order in 0..1000 {
            assert!(index.insert(&order_key(1, order, key_bytes), order));
        }
        for order in (0..20_000).rev() {
            assert!(index.insert(&order_key(2, order, key_bytes), order));
        }
        index.check().unwrap();
        assert!(index.leaf_fill() > 0.45, "{key_bytes} bytes: {}", index.leaf_fill());
    }
}

/// Whoever chooses keys and knows how leaves are divided: a removal and two insertions make a full leaf give up one entry more, again and again.
#[test]
fn chosen_keys_leave_no_small_leaves() {
    let mut tree = Tree::<1, 40>::new(1 << 16).unwrap();
    for key in 0..40 {
        assert!(tree.insert(&[key << 20], 0));
    }
    let (mut last, mut behind) = (39 << 20, 1 << 60);
    assert!(tree.insert(&[behind], 0));
    for round in 0..3000 {
        tree.remove(&[last]).unwrap();
        (last, behind) = (last + 1, behind - 1);
        assert!(tree.insert(&[last], round) && tree.insert(&[behind], round));
    }
    tree.check().unwrap();
}
