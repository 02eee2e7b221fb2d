//! Which table gives the next block of an eviction (paper §3.2).
//!
//! By default the one whose coldest tuple was left alone for longest, as the marks of the chains tell: LRU over all tables. The paper's rule divides the
//! blocks in inverse proportion to the tables' accesses since the last eviction, and can be chosen for comparison.
//!
//! For that rule: evictions may follow each other so closely that hardly anything was accessed between two: then nothing could be told, or only noise. So accesses
//! are kept until an eviction finds `ENOUGH_ACCESSES` of them; of what is older, only that many still count.

use std::cmp::Reverse;

use super::chain::LruChain;
use crate::catalog::TableId;
use crate::storage::table::Table;

/// Accesses of all tables together that say enough about their proportion.
const ENOUGH_ACCESSES: f64 = 1024.0;
/// A table's credit stays within this many blocks, whatever happens to the others.
const MOST_CREDIT: f64 = 2.0;

/// A table's part in the division of blocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct Share {
    /// Tuples looked up lately.
    pub accesses: f64,
    /// Whether it has anything to evict.
    pub evictable: bool,
    /// What rounding has left over at earlier evictions, in blocks.
    pub credit: f64,
}

impl Share {
    fn weight(&self) -> f64 {
        if self.evictable { 1.0 / (self.accesses + 1.0) } else { 0.0 }
    }
}

/// Divides `blocks` among the evictable tables in inverse proportion to their accesses: the table of each block. Whole blocks cannot be divided, so
/// each table keeps its fraction as credit for the next eviction: over time the proportion holds, and no table is drained because it is
/// merely second.
pub fn divide(shares: &mut [Share], blocks: usize) -> Vec<TableId> {
    let total: f64 = shares.iter().map(Share::weight).sum();
    let mut chosen = Vec::with_capacity(blocks);
    if total == 0.0 {
        return chosen;
    }
    for _ in 0..blocks {
        for share in shares.iter_mut() {
            let credit = share.credit + share.weight() / total;
            share.credit = if share.evictable { credit.clamp(-MOST_CREDIT, MOST_CREDIT) } else { 0.0 };
        }
        let evictable = shares.iter_mut().enumerate().filter(|(_, share)| share.evictable);
        let best = evictable.reduce(|a, b| if b.1.credit > a.1.credit { b } else { a });
        if let Some((table, best)) = best {
            best.credit -= 1.0;
            chosen.push(table as TableId);
        }
    }
    chosen
}

/// The table whose coldest tuple was touched last before all others' coldest; of those that no mark tells apart, the one with most bytes in memory.
pub(super) fn coldest_table(tables: &[Table]) -> Option<TableId> {
    let evictable = tables.iter().enumerate().filter(|(_, table)| table.chain().is_some_and(|chain| !chain.is_empty()));
    let age = |table: &Table| {
        let before = table.chain().and_then(LruChain::coldest_before).unwrap_or(u64::MAX);
        (before, Reverse(table.tuples().live() * table.tuples().tuple_bytes() as u64))
    };
    evictable.min_by_key(|(_, table)| age(table)).map(|(index, _)| index as TableId)
}

/// The table of the next block by the paper's rule, from what was accessed up to now.
pub(super) fn least_accessed_table(shares: &mut Vec<Share>, tables: &mut [Table]) -> Option<TableId> {
    shares.resize(tables.len(), Share::default());
    for (share, table) in shares.iter_mut().zip(tables) {
        share.accesses += std::mem::take(&mut table.accesses_since_eviction) as f64;
        share.evictable = table.chain().is_some_and(|chain| !chain.is_empty());
    }
    let chosen = divide(shares, 1);
    let accesses: f64 = shares.iter().map(|share| share.accesses).sum();
    let kept = (ENOUGH_ACCESSES / accesses.max(1.0)).min(1.0);
    shares.iter_mut().for_each(|share| share.accesses *= kept);
    chosen.first().copied()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn blocks(tables: &[(u64, bool)], rounds: usize, per_round: usize) -> Vec<usize> {
        let share = |&(accesses, evictable): &(u64, bool)| Share { accesses: accesses as f64, evictable, credit: 0.0 };
        let mut shares: Vec<Share> = tables.iter().map(share).collect();
        let mut blocks = vec![0; tables.len()];
        for _ in 0..rounds {
            divide(&mut shares, per_round).into_iter().for_each(|table| blocks[usize::from(table)] += 1);
        }
        blocks
    }

    #[test]
    fn a_hotter_table_gives_less() {
        assert_eq!(blocks(&[(99, true), (0, true)], 1, 101), [1, 100]);
        assert_eq!(blocks(&[(5, true), (5, true)], 1, 4), [2, 2]);
        assert_eq!(blocks(&[(0, false), (1000, true)], 1, 3), [0, 3]);
        assert_eq!(blocks(&[(0, false)], 1, 3), [0]);
        assert_eq!(blocks(&[], 1, 3), Vec::<usize>::new());
    }

    #[test]
    fn single_blocks_keep_the_proportion_over_time() {
        assert_eq!(blocks(&[(3, true), (0, true)], 100, 1), [20, 80]);
    }

    proptest! {
        /// Whatever the tables do, each gives what it owes within two blocks, and owes no more than that afterwards.
        #[test]
        fn no_table_owes_much(rounds in prop::collection::vec((prop::collection::vec((0..10_000u64, any::<bool>()), 4), 1..9usize), 1..60)) {
            let mut shares = [Share::default(); 4];
            for (tables, blocks) in rounds {
                for (share, (accesses, evictable)) in shares.iter_mut().zip(tables) {
                    (share.accesses, share.evictable) = (accesses as f64, evictable);
                }
                let chosen = divide(&mut shares, blocks);
                prop_assert_eq!(chosen.len(), if shares.iter().any(|share| share.evictable) { blocks } else { 0 });
                prop_assert!(chosen.iter().all(|&table| shares[usize::from(table)].evictable));
                prop_assert!(shares.iter().all(|share| share.credit.abs() <= MOST_CREDIT), "{shares:?}");
            }
        }
    }
}
