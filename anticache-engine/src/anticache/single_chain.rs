//! An LRU chain whose tuples know only their successor: what the paper compares the doubly-linked one with (§5.4, Figure 10). No part of the engine
//! uses it; the microbenchmark keeps it beside a table that has no chain of its own.

use crate::storage::tuples::{NO_TUPLE, TupleId, TupleMemory};

/// Ends of a singly-linked chain, from coldest (head) to hottest (tail), whose links are the headers' `next`.
#[derive(Debug, Clone, Copy)]
pub struct SingleChain {
    head: TupleId,
    tail: TupleId,
}

impl Default for SingleChain {
    fn default() -> Self {
        Self { head: NO_TUPLE, tail: NO_TUPLE }
    }
}

impl SingleChain {
    /// The coldest tuple.
    pub fn coldest(&self) -> Option<TupleId> {
        (self.head != NO_TUPLE).then_some(self.head)
    }

    /// The hottest tuple.
    pub fn hottest(&self) -> Option<TupleId> {
        (self.tail != NO_TUPLE).then_some(self.tail)
    }

    /// Links a tuple at the hot end.
    pub fn push_hot(&mut self, tuples: &mut TupleMemory, id: TupleId) {
        tuples.set_next(id, NO_TUPLE);
        match self.tail {
            NO_TUPLE => self.head = id,
            tail => tuples.set_next(tail, id),
        }
        self.tail = id;
    }

    /// Moves a linked tuple to the hot end, and returns how many links were followed: its predecessor can only be found from the cold end on.
    ///
    /// # Panics
    /// When the tuple is not linked.
    #[inline]
    pub fn touch(&mut self, tuples: &mut TupleMemory, id: TupleId) -> u64 {
        if self.tail == id {
            return 0;
        }
        let next = tuples.next(id);
        let mut walked = 0;
        if self.head == id {
            self.head = next;
        } else {
            let mut before = self.head;
            loop {
                walked += 1;
                let at = tuples.next(before);
                if at == id {
                    break;
                }
                before = at;
            }
            tuples.set_next(before, next);
        }
        self.push_hot(tuples, id);
        walked
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::anticache::chain::LruChain;

    const TUPLES: u32 = 20;

    fn order(first: Option<TupleId>, tuples: &TupleMemory) -> Vec<TupleId> {
        std::iter::successors(first, |&id| Some(tuples.next(id)).filter(|&next| next != NO_TUPLE)).collect()
    }

    fn memory() -> TupleMemory {
        let mut tuples = TupleMemory::new(16, 4096, 1 << 20).unwrap();
        tuples.add_chunk();
        (0..TUPLES).for_each(|_| assert!(tuples.allocate().is_some()));
        tuples
    }

    proptest! {
        #[test]
        fn it_keeps_the_order_of_the_doubly_linked_one(touched in prop::collection::vec(0..TUPLES, 0..200)) {
            let (mut of_single, mut of_double) = (memory(), memory());
            let (mut single, mut double) = (SingleChain::default(), LruChain::default());
            for id in 0..TUPLES {
                single.push_hot(&mut of_single, id);
                double.push_hot(&mut of_double, id);
            }
            for id in touched {
                let before = order(single.coldest(), &of_single);
                let place = before.iter().position(|&at| at == id).unwrap();
                let walked = single.touch(&mut of_single, id);
                prop_assert_eq!(walked as usize, if place == before.len() - 1 { 0 } else { place });
                double.touch(&mut of_double, id);
                prop_assert_eq!(order(single.coldest(), &of_single), order(double.coldest(), &of_double));
                prop_assert_eq!(single.hottest(), double.hottest());
            }
        }
    }
}
