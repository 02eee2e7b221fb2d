//! The LRU chain: a table's tuples at one partition from coldest (head) to hottest (tail), linked through the tuple headers (paper §3.1).
//!
//! A few *marks* along the chain tell how long its cold end has been left alone, without a time in each tuple's header: a tuple with a mark, and all
//! that are colder, were linked or touched last before the mark's time. A marked tuple that leaves its place hands the mark to its colder neighbour.
//!
//! A *probation* at the cold end, which the paper's chain does not have, can take what is merged (segmented LRU: Karedla, Love, Wherry, Computer 27(3),
//! 1994): a tuple that was wanted once does not push out what was wanted more often. There it counts for as old as its colder neighbour.

use std::collections::VecDeque;

use crate::storage::tuples::{NO_TUPLE, TupleId, TupleMemory, flag};

/// Most marks of a chain; with one more, every second one is taken away.
const MOST_MARKS: usize = 128;
/// A mark is set when the tuples linked since the last one are more than this part of the chain.
const LINKED_PER_MARK: u64 = MOST_MARKS as u64 / 2;

/// A tuple whose [`flag::MARKED`] is set.
#[derive(Debug, Clone, Copy)]
struct Mark {
    id: TupleId,
    /// It, and all that are colder, were the hottest last before this time.
    before: u64,
}

/// The cold end where merged tuples have to be used once more: those whose [`flag::PROBATION`] is set, of which none lies behind one without.
#[derive(Debug, Clone, Copy)]
struct Probation {
    /// Of the chain's tuples, when evictions refill it. 0 = there is none, and merged tuples become the hottest.
    share: f64,
    /// The hottest of them.
    last: TupleId,
    len: u64,
}

/// Ends of a doubly-linked chain whose links are the headers' `next` and `prev`.
#[derive(Debug, Clone)]
pub struct LruChain {
    head: TupleId,
    tail: TupleId,
    len: u64,
    /// From the coldest to the hottest; their times ascend, too.
    marks: VecDeque<Mark>,
    /// Times that a tuple became the hottest since the last mark was set.
    linked: u64,
    probation: Probation,
}

impl Default for LruChain {
    fn default() -> Self {
        Self::with_probation(0.0)
    }
}

impl LruChain {
    /// An empty chain with this share of its tuples on probation; 0 = the paper's.
    pub fn with_probation(share: f64) -> Self {
        let marks = VecDeque::with_capacity(MOST_MARKS + 1);
        let probation = Probation { share, last: NO_TUPLE, len: 0 };
        Self { head: NO_TUPLE, tail: NO_TUPLE, len: 0, marks, linked: 0, probation }
    }

    /// The coldest tuple.
    pub fn coldest(&self) -> Option<TupleId> {
        (self.head != NO_TUPLE).then_some(self.head)
    }

    /// The hottest tuple.
    pub fn hottest(&self) -> Option<TupleId> {
        (self.tail != NO_TUPLE).then_some(self.tail)
    }

    /// Tuples linked.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether no tuple is linked.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Links a tuple at the hot end.
    #[inline]
    pub fn push_hot(&mut self, tuples: &mut TupleMemory, id: TupleId) {
        tuples.set_links(id, NO_TUPLE, self.tail);
        match self.tail {
            NO_TUPLE => self.head = id,
            tail => tuples.set_next(tail, id),
        }
        self.tail = id;
        self.len += 1;
        self.linked += 1;
    }

    /// Links a tuple at the cold end: where block-merge puts the tuples that nobody asked for (paper §3.4).
    pub fn push_cold(&mut self, tuples: &mut TupleMemory, id: TupleId) {
        tuples.set_links(id, self.head, NO_TUPLE);
        match self.head {
            NO_TUPLE => self.tail = id,
            head => tuples.set_prev(head, id),
        }
        self.head = id;
        self.len += 1;
        if self.probation.share > 0.0 {
            self.begin_probation(tuples, id, self.probation.len == 0);
        }
    }

    /// Links a tuple that was merged because a transaction wants it: at the hot end (paper §3.4), or behind all others on probation.
    pub fn push_merged(&mut self, tuples: &mut TupleMemory, id: TupleId) {
        let colder = self.probation.last;
        if self.probation.share == 0.0 {
            return self.push_hot(tuples, id);
        } else if colder == NO_TUPLE {
            return self.push_cold(tuples, id);
        }
        let hotter = tuples.next(colder);
        tuples.set_links(id, hotter, colder);
        tuples.set_next(colder, id);
        match hotter {
            NO_TUPLE => self.tail = id,
            hotter => tuples.set_prev(hotter, id),
        }
        self.len += 1;
        self.begin_probation(tuples, id, true);
    }

    /// Puts the coldest of the others on probation where it has less than its share: two at most, which is to be called for each tuple that is evicted,
    /// so that no walk along the chain takes long.
    #[inline]
    pub fn refill_probation(&mut self, tuples: &mut TupleMemory) {
        if self.probation.share > 0.0 {
            self.refill(tuples);
        }
    }

    fn refill(&mut self, tuples: &mut TupleMemory) {
        for _ in 0..2 {
            if self.probation.len as f64 >= self.probation.share * self.len as f64 {
                return;
            }
            let next = if self.probation.last == NO_TUPLE { self.head } else { tuples.next(self.probation.last) };
            self.begin_probation(tuples, next, true);
            // Nobody has used it for long: it is brought near for the next call.
            let after = tuples.next(next);
            if after != NO_TUPLE {
                tuples.prefetch(after);
                tuples.prefetch_links(after);
            }
        }
    }

    fn begin_probation(&mut self, tuples: &mut TupleMemory, id: TupleId, is_last: bool) {
        set_flag(tuples, id, flag::PROBATION, true);
        self.probation.len += 1;
        if is_last {
            self.probation.last = id;
        }
    }

    /// Unlinks a tuple.
    #[inline]
    pub fn remove(&mut self, tuples: &mut TupleMemory, id: TupleId) {
        if tuples.flags(id) & (flag::MARKED | flag::PROBATION) != 0 {
            self.leave(tuples, id);
        }
        let (next, prev) = (tuples.next(id), tuples.prev(id));
        match prev {
            NO_TUPLE => self.head = next,
            prev => tuples.set_next(prev, next),
        }
        match next {
            NO_TUPLE => self.tail = prev,
            next => tuples.set_prev(next, prev),
        }
        self.len -= 1;
    }

    /// Moves a tuple to the hot end.
    #[inline]
    pub fn touch(&mut self, tuples: &mut TupleMemory, id: TupleId) {
        if tuples.flags(id) & (flag::MARKED | flag::PROBATION) != 0 {
            self.leave(tuples, id);
        }
        if self.tail != id {
            let [next, prev] = tuples.move_behind(id, self.tail);
            if prev == NO_TUPLE {
                self.head = next;
            }
            self.tail = id;
            self.linked += 1;
        }
    }

    /// Says that it is `now`, on any clock that never goes back: sets a mark on the hottest tuple when enough has happened since the last one, or there
    /// is none.
    #[inline]
    pub fn tell_time(&mut self, tuples: &mut TupleMemory, now: u64) {
        if self.linked * LINKED_PER_MARK > self.len || self.marks.is_empty() {
            self.mark(tuples, now);
        }
    }

    /// A time before which the coldest tuple, and no other than those around it, was touched last; `None` when no mark tells.
    pub fn coldest_before(&self) -> Option<u64> {
        self.marks.front().map(|mark| mark.before)
    }

    fn mark(&mut self, tuples: &mut TupleMemory, now: u64) {
        self.linked = 0;
        if self.tail == NO_TUPLE || tuples.flags(self.tail) & flag::MARKED != 0 {
            return;
        }
        set_flag(tuples, self.tail, flag::MARKED, true);
        self.marks.push_back(Mark { id: self.tail, before: now });
        if self.marks.len() > MOST_MARKS {
            let mut keep = false;
            self.marks.retain(|mark| {
                keep = !keep;
                set_flag(tuples, mark.id, flag::MARKED, keep);
                keep
            });
        }
    }

    /// Takes from a tuple that leaves its place what it has by that.
    #[cold]
    fn leave(&mut self, tuples: &mut TupleMemory, id: TupleId) {
        if tuples.flags(id) & flag::MARKED != 0 {
            self.hand_over(tuples, id);
        }
        if tuples.flags(id) & flag::PROBATION != 0 {
            set_flag(tuples, id, flag::PROBATION, false);
            self.probation.len -= 1;
            if self.probation.last == id {
                self.probation.last = tuples.prev(id);
            }
        }
    }

    /// The tuple's mark goes to its colder neighbour, unless that has one, which tells more.
    fn hand_over(&mut self, tuples: &mut TupleMemory, id: TupleId) {
        set_flag(tuples, id, flag::MARKED, false);
        let Some(at) = self.marks.iter().position(|mark| mark.id == id) else {
            debug_assert!(false, "tuple {id} is marked without a mark");
            return;
        };
        let colder = tuples.prev(id);
        if colder == NO_TUPLE || tuples.flags(colder) & flag::MARKED != 0 {
            self.marks.remove(at);
        } else {
            set_flag(tuples, colder, flag::MARKED, true);
            self.marks[at].id = colder;
        }
    }

    /// Repairs the links of the neighbours after a tuple was moved in memory from `old` to `new` (its header was copied along).
    pub fn relocated(&mut self, tuples: &mut TupleMemory, old: TupleId, new: TupleId) {
        let (next, prev) = (tuples.next(new), tuples.prev(new));
        match prev {
            NO_TUPLE => self.head = new,
            prev => tuples.set_next(prev, new),
        }
        match next {
            NO_TUPLE => self.tail = new,
            next => tuples.set_prev(next, new),
        }
        debug_assert_ne!(old, new);
        if self.probation.last == old {
            self.probation.last = new;
        }
        if tuples.flags(new) & flag::MARKED != 0 {
            self.marks.iter_mut().filter(|mark| mark.id == old).for_each(|mark| mark.id = new);
        }
    }

    /// The hottest tuple on probation, and how many are.
    pub fn probation(&self) -> (Option<TupleId>, u64) {
        (Some(self.probation.last).filter(|&last| last != NO_TUPLE), self.probation.len)
    }

    /// Ids of the marked tuples and the times of their marks, from the coldest.
    pub fn marks(&self) -> impl Iterator<Item = (TupleId, u64)> {
        self.marks.iter().map(|mark| (mark.id, mark.before))
    }
}

fn set_flag(tuples: &mut TupleMemory, id: TupleId, which: u8, set: bool) {
    let flags = tuples.flags(id);
    tuples.set_flags(id, if set { flags | which } else { flags & !which });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn order(chain: &LruChain, tuples: &TupleMemory) -> Vec<TupleId> {
        let mut forward = Vec::new();
        let mut at = chain.coldest();
        while let Some(id) = at {
            forward.push(id);
            at = Some(tuples.next(id)).filter(|&next| next != NO_TUPLE);
        }
        let mut backward = Vec::new();
        let mut at = chain.hottest();
        while let Some(id) = at {
            backward.push(id);
            at = Some(tuples.prev(id)).filter(|&prev| prev != NO_TUPLE);
        }
        backward.reverse();
        assert_eq!(forward, backward);
        assert_eq!(chain.len(), forward.len() as u64);
        forward
    }

    proptest! {
        /// The model knows when each tuple became the hottest, and which are on probation; marks must not contradict it, and tell of the coldest what they
        /// can.
        #[test]
        fn behaves_like_a_list(share in prop::sample::select(vec![0.0, 0.3, 1.0]), ops in prop::collection::vec((0..8u8, 0..20u32), 1..300)) {
            let mut tuples = TupleMemory::new(16, 4096, 1 << 20).unwrap();
            tuples.add_chunk();
            for _ in 0..20 {
                tuples.allocate();
            }
            let mut chain = LruChain::with_probation(share);
            let (mut model, mut on_probation) = (Vec::<(TupleId, u64)>::new(), 0);
            for (now, (op, id)) in (1..).zip(ops) {
                let place = model.iter().position(|&(x, _)| x == id);
                match (op, place) {
                    (0, None) => { chain.push_hot(&mut tuples, id); model.push((id, now)); }
                    (1, None) => {
                        chain.push_cold(&mut tuples, id);
                        model.insert(0, (id, 0));
                        on_probation += usize::from(share > 0.0);
                    }
                    (2, Some(place)) => {
                        chain.remove(&mut tuples, id);
                        model.remove(place);
                        on_probation -= usize::from(place < on_probation);
                    }
                    (3, Some(place)) => {
                        chain.touch(&mut tuples, id);
                        model.remove(place);
                        model.push((id, now));
                        on_probation -= usize::from(place < on_probation);
                    }
                    (4, _) => {
                        chain.tell_time(&mut tuples, now);
                        prop_assert_eq!(chain.coldest_before().is_none(), model.is_empty(), "tuples without an age are taken for the hottest");
                    }
                    (5, _) => chain.mark(&mut tuples, now),
                    (6, None) if share == 0.0 => { chain.push_merged(&mut tuples, id); model.push((id, now)); }
                    (6, None) => {
                        chain.push_merged(&mut tuples, id);
                        let as_old = on_probation.checked_sub(1).map_or(0, |colder| model[colder].1);
                        model.insert(on_probation, (id, as_old));
                        on_probation += 1;
                    }
                    (7, _) => {
                        chain.refill_probation(&mut tuples);
                        on_probation = on_probation.max((on_probation + 2).min((share * model.len() as f64).ceil() as usize));
                    }
                    _ => {}
                }
                prop_assert_eq!(order(&chain, &tuples), model.iter().map(|&(id, _)| id).collect::<Vec<_>>());
                for (place, &(id, _)) in model.iter().enumerate() {
                    prop_assert_eq!(tuples.flags(id) & flag::PROBATION != 0, place < on_probation, "tuple {} at {}", id, place);
                }
                let last = on_probation.checked_sub(1).map(|last| model[last].0);
                prop_assert_eq!(chain.probation(), (last, on_probation as u64));
                let marked: Vec<_> = chain.marks().collect();
                prop_assert!(marked.is_sorted_by_key(|&(_, before)| before));
                let flagged = model.iter().filter(|&&(id, _)| tuples.flags(id) & flag::MARKED != 0).map(|&(id, _)| id);
                prop_assert_eq!(marked.iter().map(|&(id, _)| id).collect::<Vec<_>>(), flagged.collect::<Vec<_>>());
                let only_linked = |id| tuples.flags(id) & (flag::MARKED | flag::PROBATION) == 0 || model.iter().any(|&(x, _)| x == id);
                prop_assert!((0..20).all(only_linked));
                for (id, before) in marked {
                    let place = model.iter().position(|&(x, _)| x == id).unwrap();
                    prop_assert!(model[..=place].iter().all(|&(_, since)| since < before), "{model:?} {id} {before}");
                }
            }
        }
    }

    #[test]
    fn marks_tell_the_age_of_the_cold_end_and_stay_few() {
        let mut tuples = TupleMemory::new(16, 4096, 16 << 20).unwrap();
        let mut chain = LruChain::default();
        let count = 100_000u64;
        for now in 0..count {
            if tuples.free_slots() == 0 {
                tuples.add_chunk();
            }
            let id = tuples.allocate().unwrap();
            chain.push_hot(&mut tuples, id);
            chain.tell_time(&mut tuples, now);
        }
        for gone in 0..count / 2 {
            let told = chain.coldest_before().unwrap();
            let step = count / LINKED_PER_MARK * 2;
            assert!((gone..=gone + step).contains(&told), "tuple {gone} was linked at {gone}, not before {told}");
            let coldest = chain.coldest().unwrap();
            chain.remove(&mut tuples, coldest);
        }
        assert!(chain.marks().count() <= MOST_MARKS);
    }
}
