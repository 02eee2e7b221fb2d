//! The LRU chain: a table's tuples at one partition from coldest (head) to hottest (tail), linked through the tuple headers (paper §3.1).

use crate::storage::tuples::{NO_TUPLE, TupleId, TupleMemory};

/// Ends of a doubly-linked chain whose links are the headers' `next` and `prev`.
#[derive(Debug, Clone, Copy)]
pub struct LruChain {
    head: TupleId,
    tail: TupleId,
    len: u64,
}

impl Default for LruChain {
    fn default() -> Self {
        Self { head: NO_TUPLE, tail: NO_TUPLE, len: 0 }
    }
}

impl LruChain {
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
    }

    /// Unlinks a tuple.
    #[inline]
    pub fn remove(&mut self, tuples: &mut TupleMemory, id: TupleId) {
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
        if self.tail != id {
            self.remove(tuples, id);
            self.push_hot(tuples, id);
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
    }
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
        #[test]
        fn behaves_like_a_list(ops in prop::collection::vec((0..4u8, 0..20u32), 1..300)) {
            let mut tuples = TupleMemory::new(16, 4096, 1 << 20).unwrap();
            tuples.add_chunk();
            for _ in 0..20 {
                tuples.allocate();
            }
            let mut chain = LruChain::default();
            let mut model = Vec::<TupleId>::new();
            for (op, id) in ops {
                let linked = model.contains(&id);
                match (op, linked) {
                    (0, false) => { chain.push_hot(&mut tuples, id); model.push(id); }
                    (1, false) => { chain.push_cold(&mut tuples, id); model.insert(0, id); }
                    (2, true) => { chain.remove(&mut tuples, id); model.retain(|&x| x != id); }
                    (3, true) => { chain.touch(&mut tuples, id); model.retain(|&x| x != id); model.push(id); }
                    _ => {}
                }
                prop_assert_eq!(order(&chain, &tuples), model.clone());
            }
        }
    }
}
