use std::collections::{HashMap, HashSet};

use proptest::prelude::*;
use rand::{Rng, RngCore, SeedableRng};
use rand_pcg::Pcg64;

use super::*;

/// Allocates as a caller with an unlimited budget does, and checks what it is told on the way.
fn allocate(heap: &mut VarHeap, owner: TupleId, column: u8, value: &[u8]) -> VarRef {
    let fits = heap.fits(value.len());
    let place = heap.allocate(owner, column, value);
    assert_eq!(place.is_some(), fits);
    place.unwrap_or_else(|| {
        let expected = heap.allocated_bytes() + heap.slab_bytes_for(value.len());
        assert!(heap.add_slab_for(value.len()));
        assert_eq!(heap.allocated_bytes(), expected);
        heap.allocate(owner, column, value).unwrap()
    })
}

impl VarHeap {
    /// Checks lists, counts and totals against the slabs and the headers of their cells.
    fn check(&self) {
        let mut listed = HashMap::new();
        for (class, partial) in self.partial.iter().enumerate() {
            for (bin, &head) in partial.heads.iter().enumerate() {
                assert_eq!(head != NO_SLAB, partial.filled & (1 << bin) != 0);
                let (mut prev, mut slab) = (NO_SLAB, head);
                while slab != NO_SLAB {
                    assert_eq!(self.slabs.as_slice()[slab as usize].prev, prev);
                    assert!(listed.insert(slab, (class, bin)).is_none());
                    (prev, slab) = (slab, self.slabs.as_slice()[slab as usize].next);
                }
            }
        }
        let (mut live, mut value_bytes, mut used_bytes, mut slab_bytes) = (0, 0, 0, 0);
        let mut free = [0; CLASS_COUNT];
        let mut frame = LARGE_FRAMES;
        while (frame as usize) < self.slabs.len() {
            let state = self.slabs.as_slice()[frame as usize];
            let (class, size) = (usize::from(state.class), &CLASSES[usize::from(state.class)]);
            for part in frame..frame + size.frames {
                assert_eq!(self.frames.is_taken(part), class != 0);
                assert_eq!(self.slabs.as_slice()[part as usize].class, state.class);
            }
            if class != 0 {
                let headers: Vec<_> =
                    (0..size.cells).map(|index| self.header(frame * FRAME_UNITS + index * size.cell_units)).collect();
                let in_use: Vec<_> = headers.iter().filter(|header| header.class != 0).collect();
                assert!(in_use.iter().all(|header| header.class == state.class));
                assert_eq!(in_use.len(), usize::from(state.used));
                assert_eq!(listed.remove(&frame), size.bin(u32::from(state.used)).map(|bin| (class, bin)));
                let mut freed = HashSet::new();
                let mut next = state.free_head;
                while next != NO_CELL {
                    assert!(next < state.touched && headers[usize::from(next)].class == 0 && freed.insert(next));
                    next = headers[usize::from(next)].owner as u16;
                }
                assert_eq!(freed.len(), usize::from(state.touched - state.used));
                free[class] += size.cells - u32::from(state.used);
                live += in_use.len() as u64;
                value_bytes += in_use.iter().map(|header| usize::from(header.len)).sum::<usize>();
                used_bytes += in_use.len() * size.cell_bytes();
                slab_bytes += size.slab_bytes();
            }
            frame += size.frames;
        }
        assert!(listed.is_empty(), "slabs of no class are listed: {listed:?}");
        assert_eq!(free, self.partial.map(|partial| partial.free));
        assert_eq!((live, value_bytes), (self.live, self.value_bytes));
        assert_eq!((used_bytes, slab_bytes), (self.used_bytes, self.slab_bytes));
    }
}

/// What the heap must hold: per (owner, column) the ref and the value.
#[derive(Default)]
struct Model {
    values: HashMap<(TupleId, u8), (VarRef, Vec<u8>)>,
    keys: Vec<(TupleId, u8)>,
    next_owner: TupleId,
}

impl Model {
    fn allocate(&mut self, heap: &mut VarHeap, column: u8, value: Vec<u8>) {
        let key = (self.next_owner, column);
        self.next_owner += 1;
        let place = allocate(heap, key.0, key.1, &value);
        assert_eq!(place == EMPTY_VALUE, value.is_empty());
        self.values.insert(key, (place, value));
        self.keys.push(key);
    }

    fn free(&mut self, heap: &mut VarHeap, pick: usize) {
        if !self.keys.is_empty() {
            let key = self.keys.swap_remove(pick % self.keys.len());
            heap.free(self.values.remove(&key).unwrap().0);
        }
    }

    fn set_owner(&mut self, heap: &mut VarHeap, pick: usize) {
        if !self.keys.is_empty() {
            let pick = pick % self.keys.len();
            let entry = self.values.remove(&self.keys[pick]).unwrap();
            heap.set_owner(entry.0, self.next_owner);
            self.keys[pick].0 = self.next_owner;
            self.next_owner += 1;
            self.values.insert(self.keys[pick], entry);
        }
    }

    fn release_one(&mut self, heap: &mut VarHeap) -> usize {
        let (allocated, releasable) = (heap.allocated_bytes(), heap.releasable_bytes());
        let mut told = HashSet::new();
        let gained = heap.release_one(0, &[], |owner, column, new| {
            assert!(told.insert((owner, column)), "moved twice");
            self.values.get_mut(&(owner, column)).expect("an owner of a value").0 = new;
        });
        assert_eq!(heap.allocated_bytes(), allocated - gained);
        assert_eq!(heap.releasable_bytes(), releasable - gained);
        assert_eq!(gained == 0, releasable == 0);
        gained
    }

    fn check(&self, heap: &VarHeap) {
        heap.check();
        let mut places = HashSet::new();
        for (&(owner, column), (place, value)) in &self.values {
            assert_eq!(heap.get(*place), value);
            if *place != EMPTY_VALUE {
                assert!(places.insert(place), "two values at one place");
                let header = heap.header(*place);
                assert_eq!((header.owner, header.column), (owner, column));
            }
        }
        assert_eq!(heap.live(), places.len() as u64);
        assert_eq!(heap.value_bytes(), self.values.values().map(|(_, value)| value.len()).sum::<usize>());
    }
}

fn random_value(rng: &mut Pcg64, max_len: usize) -> Vec<u8> {
    let mut value = vec![0; rng.random_range(0..=max_len)];
    rng.fill_bytes(&mut value);
    value
}

#[derive(Debug, Clone)]
enum Step {
    /// Adds `count` values of up to `max_len` bytes.
    Add {
        count: usize,
        max_len: usize,
        column: u8,
        seed: u64,
    },
    /// Frees `count` values.
    Free {
        count: usize,
        seed: u64,
    },
    SetOwner {
        pick: usize,
    },
    ReleaseOne,
}

fn step() -> impl Strategy<Value = Step> {
    // Few lengths at a time fill whole slabs, the rare long ones take slabs of several frames.
    let max_len = prop_oneof![4 => 0..60usize, 4 => 200..600usize, 1 => 600..=MAX_VALUE_BYTES];
    prop_oneof![
        3 => (1..120usize, max_len, any::<u8>(), any::<u64>())
            .prop_map(|(count, max_len, column, seed)| Step::Add { count, max_len, column, seed }),
        3 => (1..150usize, any::<u64>()).prop_map(|(count, seed)| Step::Free { count, seed }),
        2 => any::<usize>().prop_map(|pick| Step::SetOwner { pick }),
        2 => Just(Step::ReleaseOne),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn behaves_like_a_map(steps in prop::collection::vec(step(), 1..80)) {
        let mut heap = VarHeap::new(64 << 20).unwrap();
        let mut model = Model::default();
        for step in steps {
            match step {
                Step::Add { count, max_len, column, seed } => {
                    let mut rng = Pcg64::seed_from_u64(seed);
                    (0..count).for_each(|_| model.allocate(&mut heap, column, random_value(&mut rng, max_len)));
                }
                Step::Free { count, seed } => {
                    let mut rng = Pcg64::seed_from_u64(seed);
                    (0..count).for_each(|_| model.free(&mut heap, rng.random_range(0..usize::MAX)));
                }
                Step::SetOwner { pick } => model.set_owner(&mut heap, pick),
                Step::ReleaseOne => {
                    model.release_one(&mut heap);
                }
            }
            heap.check();
        }
        model.check(&heap);
        while model.release_one(&mut heap) > 0 {}
        model.check(&heap);
        while !model.keys.is_empty() {
            model.free(&mut heap, 0);
        }
        while model.release_one(&mut heap) > 0 {}
        model.check(&heap);
        prop_assert_eq!((heap.slab_bytes, heap.used_bytes(), heap.value_bytes(), heap.live()), (0, 0, 0, 0));
        prop_assert_eq!(heap.region.resident_bytes(), 0);
    }
}

#[test]
fn churn_and_shrinking_leave_little_unused() {
    let mut rng = Pcg64::seed_from_u64(7);
    let mut heap = VarHeap::new(64 << 20).unwrap();
    let mut model = Model::default();
    for target in [30_000, 6_000, 20_000, 6_000] {
        for _ in 0..60_000 {
            if rng.random_range(0..2 * target) > model.keys.len() {
                let value = random_value(&mut rng, 600);
                model.allocate(&mut heap, 0, value);
            } else {
                model.free(&mut heap, rng.random_range(0..usize::MAX));
            }
        }
        // Down to the target at once, at random: this leaves slabs with few values each.
        while model.keys.len() > target {
            model.free(&mut heap, rng.random_range(0..usize::MAX));
        }
        while model.release_one(&mut heap) > 0 {}
        model.check(&heap);
        let (allocated, used) = (heap.allocated_bytes(), heap.used_bytes());
        assert!(allocated as f64 <= 1.35 * used as f64, "{allocated} bytes for {used} in {} cells", heap.live());
    }
}

#[test]
fn the_account_is_the_kernels() {
    let mut rng = Pcg64::seed_from_u64(11);
    let mut heap = VarHeap::new(256 << 20).unwrap();
    let mut model = Model::default();
    for round in 0..6 {
        while heap.value_bytes() < 40 << 20 {
            let max_len = if rng.random_bool(0.02) { MAX_VALUE_BYTES } else { 600 };
            let value = random_value(&mut rng, max_len);
            model.allocate(&mut heap, 0, value);
        }
        while heap.value_bytes() > 24 << 20 {
            model.free(&mut heap, rng.random_range(0..usize::MAX));
        }
        for _ in 0..round * 200 {
            model.release_one(&mut heap);
        }
        model.check(&heap);
        assert!(heap.region.resident_bytes() <= heap.slab_bytes, "more memory is taken than counted");
        let (account, kernel) = (heap.allocated_bytes() as f64, heap.region.resident_bytes() as f64);
        assert!((account / kernel - 1.0).abs() <= 0.02, "round {round}: {account} by account, {kernel} resident");
    }
}

#[test]
fn a_slab_at_the_edge_of_use_is_kept_and_given_back_on_demand() {
    let mut heap = VarHeap::new(1 << 20).unwrap();
    let cells = CLASSES[class_of(100)].cells as usize;
    let mut places: Vec<_> = (0..3 * cells).map(|_| allocate(&mut heap, 1, 0, &[7; 100])).collect();
    assert_eq!(heap.slab_bytes, 3 * FRAME_BYTES);
    // The last slab runs empty and stays; with the next one the first goes.
    places.drain(2 * cells..).for_each(|place| heap.free(place));
    assert_eq!((heap.slab_bytes, heap.releasable_bytes()), (3 * FRAME_BYTES, FRAME_BYTES));
    places.drain(cells..).for_each(|place| heap.free(place));
    assert_eq!((heap.slab_bytes, heap.releasable_bytes()), (2 * FRAME_BYTES, FRAME_BYTES));
    assert_eq!(heap.release_one(0, &[], |_, _, _| panic!("an empty slab has nothing to move")), FRAME_BYTES);
    assert_eq!((heap.slab_bytes, heap.releasable_bytes()), (FRAME_BYTES, 0));
    assert_eq!(heap.release_one(0, &[], |_, _, _| panic!("a full slab stays")), 0);
    places.iter().for_each(|&place| assert_eq!(heap.get(place), [7; 100]));
}

#[test]
fn the_fullest_slab_is_filled_and_the_emptiest_is_released() {
    let mut heap = VarHeap::new(1 << 20).unwrap();
    let cells = CLASSES[class_of(40)].cells as usize;
    let places: Vec<_> = (0..3 * cells).map(|owner| allocate(&mut heap, owner as u32, 3, &[1; 40])).collect();
    let slabs: Vec<_> = places.chunks(cells).map(|slab| slab[0] / FRAME_UNITS).collect();
    // Half of the first slab, most of the second and little of the third are freed, the second last.
    let freed = [cells / 2, cells - 5, cells / 10];
    for part in [2, 0, 1] {
        places[part * cells..][..freed[part]].iter().for_each(|&place| heap.free(place));
    }
    let filled: Vec<_> = (0..freed[2]).map(|_| heap.allocate(7, 3, &[2; 40]).unwrap() / FRAME_UNITS).collect();
    assert!(filled.iter().all(|&slab| slab == slabs[2]), "{filled:?} of {slabs:?}");
    assert_eq!(heap.allocate(7, 3, &[2; 40]).unwrap() / FRAME_UNITS, slabs[0]);
    let mut owners = Vec::new();
    heap.release_one(0, &[], |owner, column, new| {
        assert_eq!((column, new / FRAME_UNITS), (3, slabs[0]));
        owners.push(owner as usize);
    });
    assert_eq!(owners, (2 * cells - 5..2 * cells).collect::<Vec<_>>());
    heap.check();
}

#[test]
fn what_one_class_gives_back_another_takes() {
    let mut heap = VarHeap::new(1 << 20).unwrap();
    let small: Vec<_> = (0..4 * FRAME_UNITS).map(|owner| allocate(&mut heap, owner, 0, &[1; 8])).collect();
    let first = allocate(&mut heap, 0, 0, &[2; MAX_VALUE_BYTES]);
    small.into_iter().for_each(|place| heap.free(place));
    while heap.release_one(0, &[], |_, _, _| panic!("nothing to move")) > 0 {}
    let places: Vec<_> = (0..7).map(|owner| allocate(&mut heap, owner, 0, &[3; MAX_VALUE_BYTES])).collect();
    assert!(places[6] < first, "the lowest free place is used first: {places:?} {first}");
    assert_eq!(places[6], LARGE_FRAMES * FRAME_UNITS);
    assert!(heap.get(first).iter().all(|&byte| byte == 2) && heap.get(places[6]).iter().all(|&byte| byte == 3));
    heap.check();
}

#[test]
fn the_address_space_outlasts_the_limit_and_its_end_is_reported() {
    let limit = 3 << 20;
    let mut heap = VarHeap::new(limit).unwrap();
    let mut slabs = 0;
    while heap.add_slab_for(8) {
        slabs += 1;
    }
    assert!(heap.slab_bytes >= limit && heap.slab_bytes < heap.region.reserved_bytes());
    assert_eq!((heap.slab_bytes, heap.slab_bytes_for(8)), (slabs * FRAME_BYTES, 0));
    assert!(!heap.add_slab_for(MAX_VALUE_BYTES) && heap.slab_bytes_for(MAX_VALUE_BYTES) == 0);
    let places: Vec<_> = std::iter::from_fn(|| heap.allocate(9, 9, &[9; 8])).collect();
    assert_eq!(places.len(), slabs * FRAME_UNITS as usize);
    assert_eq!(heap.value_bytes() * 2, heap.slab_bytes);
    // The worst case: every run of frames has a slab of one frame, the rest of it is of no use for large ones.
    for &place in places.iter().filter(|&&place| !(place / FRAME_UNITS).is_multiple_of(LARGE_FRAMES)) {
        heap.free(place);
    }
    while heap.release_one(0, &[], |_, _, _| ()) > 0 {}
    assert!(heap.slab_bytes >= limit && !heap.add_slab_for(MAX_VALUE_BYTES));
    heap.check();
}

#[test]
fn wrong_refs_lead_nowhere() {
    let mut heap = VarHeap::new(1 << 20).unwrap();
    // A value whose bytes look like headers of its own class, wherever one would be read.
    let class = class_of(100) as u8;
    let forged = Header { owner: 1, len: 100, column: 0, class }.encode().repeat(12);
    let place = allocate(&mut heap, 1, 0, &forged);
    let large = allocate(&mut heap, 1, 0, &[CLASSES.len() as u8 - 3; 5000]);
    let found = |heap: &VarHeap| -> Vec<VarRef> {
        let everywhere = (0..1 << 17).chain((1 << 17..=u32::MAX).step_by(9973)).chain([u32::MAX]);
        everywhere.filter(|&value| heap.look_for(value).is_some()).collect()
    };
    assert_eq!(found(&heap), [place, large]);
    assert_eq!(heap.get(place), forged);
    heap.free(place);
    assert_eq!(found(&heap), [large]);
    while heap.release_one(0, &[], |_, _, _| ()) > 0 {}
    assert_eq!(found(&heap), [large]);
    heap.free(large);
    while heap.release_one(0, &[], |_, _, _| ()) > 0 {}
    assert!(found(&heap).is_empty());
    heap.check();
}

#[test]
#[should_panic(expected = "no value at ref 4096")]
fn reading_what_was_freed_is_refused() {
    let mut heap = VarHeap::new(1 << 20).unwrap();
    let place = allocate(&mut heap, 1, 0, b"gone");
    heap.free(place);
    heap.get(place);
}

#[test]
#[should_panic(expected = "no value at ref")]
fn freeing_twice_is_refused() {
    let mut heap = VarHeap::new(1 << 20).unwrap();
    let place = allocate(&mut heap, 1, 0, b"once");
    allocate(&mut heap, 2, 0, b"stays");
    heap.free(place);
    heap.free(place);
}

#[test]
#[should_panic(expected = "longer than 8192")]
fn a_value_that_is_too_long_is_refused() {
    let mut heap = VarHeap::new(1 << 20).unwrap();
    let _ = heap.allocate(1, 0, &[0; MAX_VALUE_BYTES + 1]);
}

#[test]
fn empty_values_cost_nothing_and_the_longest_fit() {
    let mut heap = VarHeap::new(1 << 20).unwrap();
    assert_eq!(heap.allocate(1, 2, b""), Some(EMPTY_VALUE));
    heap.set_owner(EMPTY_VALUE, 4);
    heap.free(EMPTY_VALUE);
    assert_eq!((heap.get(EMPTY_VALUE).len(), heap.live(), heap.allocated_bytes()), (0, 0, 0));
    let longest: Vec<u8> = (0..MAX_VALUE_BYTES).map(|at| at as u8).collect();
    let places: Vec<_> = (0..20).map(|owner| allocate(&mut heap, owner, 0, &longest)).collect();
    assert!(places.iter().all(|&place| heap.get(place) == longest));
    assert_eq!(heap.value_bytes(), 20 * MAX_VALUE_BYTES);
}
