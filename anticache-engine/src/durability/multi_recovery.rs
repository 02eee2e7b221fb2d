//! What recovery keeps of multi-partition transactions (paper §2, §3.6).
//!
//! Every participant logs such a transaction, each when its own group is due. A crash may leave the record in some of the logs and not in others; then
//! the transaction did not happen, at any of them. What stands behind it in the logs that have it may depend on it, so these logs are cut there:
//! the record and everything after it is dropped, single-partition transactions too. That may take other multi-partition transactions away
//! from other partitions, whose logs are cut as well. The engine acknowledges nothing that could be lost this way ([`crate::partition::multi`]).

use std::collections::HashMap;

/// A partition's record of a multi-partition transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MultiRecord {
    /// Its sequence in this partition's log.
    pub sequence: u64,
    /// The transaction's number, the same in all logs.
    pub transaction: u64,
    /// The partitions that took part.
    pub participants: Vec<u16>,
}

/// For each partition, the sequence of the first record that must be dropped, with all behind it; `None` = its log is kept whole.
///
/// `logs` holds by partition, in the order of the log, the multi-partition records that the partition's snapshot does not contain. The snapshots must
/// have been begun at one point of the order of multi-partition transactions: what is in one of them is in all of its participants' snapshots.
/// A participant that is no partition of `logs` counts as one that has no record.
pub fn cuts(logs: &[Vec<MultiRecord>]) -> Vec<Option<u64>> {
    let places: Vec<HashMap<u64, usize>> = logs
        .iter()
        .map(|log| log.iter().zip(0..).map(|(record, place)| (record.transaction, place)).collect())
        .collect();
    // By partition, how many of its records are kept. Records that were kept and are found to be lost elsewhere go to `lost`.
    let mut kept: Vec<usize> = logs.iter().map(Vec::len).collect();
    let mut lost: Vec<&MultiRecord> = logs.iter().flatten().filter(|record| is_missing(record, &places)).collect();
    while let Some(record) = lost.pop() {
        for &partition in &record.participants {
            let partition = usize::from(partition);
            let Some(&place) = places.get(partition).and_then(|places| places.get(&record.transaction)) else {
                continue;
            };
            if place < kept[partition] {
                lost.extend(&logs[partition][place..kept[partition]]);
                kept[partition] = place;
            }
        }
    }
    logs.iter().zip(kept).map(|(log, kept)| log.get(kept).map(|record| record.sequence)).collect()
}

/// Whether a participant's log does not have a transaction.
fn is_missing(record: &MultiRecord, places: &[HashMap<u64, usize>]) -> bool {
    let has = |&partition: &u16| {
        places.get(usize::from(partition)).is_some_and(|places| places.contains_key(&record.transaction))
    };
    !record.participants.iter().all(has)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn log(records: &[(u64, u64, &[u16])]) -> Vec<MultiRecord> {
        let record = |&(sequence, transaction, participants): &(u64, u64, &[u16])| MultiRecord {
            sequence,
            transaction,
            participants: participants.to_vec(),
        };
        records.iter().map(record).collect()
    }

    #[test]
    fn a_transaction_missing_somewhere_is_dropped_everywhere() {
        let logs = [log(&[(10, 1, &[0, 1]), (20, 2, &[0, 1])]), log(&[(5, 1, &[0, 1])]), log(&[])];
        assert_eq!(cuts(&logs), [Some(20), None, None]);
        assert_eq!(cuts(&[log(&[(7, 1, &[0, 9])])]), [Some(7)], "a participant that is not there");
    }

    #[test]
    fn what_follows_a_dropped_one_takes_others_along() {
        // 3 is missing at partition 1; so 4, which follows it at 0, is dropped at 2; so 5 at 3.
        let logs = [
            log(&[(0, 1, &[0, 1]), (1, 3, &[0, 1]), (2, 4, &[0, 2])]),
            log(&[(0, 1, &[0, 1])]),
            log(&[(8, 4, &[0, 2]), (9, 5, &[2, 3])]),
            log(&[(3, 2, &[2, 3]), (4, 5, &[2, 3])]),
        ];
        // 2 is missing at partition 2, and goes before 5.
        assert_eq!(cuts(&logs), [Some(1), None, Some(8), Some(3)]);
    }

    /// The definition, computed by repetition.
    fn by_repetition(logs: &[Vec<MultiRecord>]) -> Vec<Option<u64>> {
        let mut kept: Vec<usize> = logs.iter().map(Vec::len).collect();
        loop {
            let before = kept.clone();
            for partition in 0..logs.len() {
                let bad = logs[partition][..kept[partition]].iter().position(|record| {
                    record.participants.iter().any(|&other| {
                        let other = usize::from(other);
                        !logs[other][..kept[other]].iter().any(|theirs| theirs.transaction == record.transaction)
                    })
                });
                kept[partition] = bad.unwrap_or(kept[partition]);
            }
            if kept == before {
                return logs.iter().zip(kept).map(|(log, kept)| log.get(kept).map(|record| record.sequence)).collect();
            }
        }
    }

    proptest! {
        #[test]
        fn equals_the_fixpoint_of_the_definition(
            transactions in prop::collection::vec((prop::sample::subsequence(vec![0u16, 1, 2, 3, 4], 2..=4), any::<u8>()), 0..40),
            ends in prop::collection::vec(0..100usize, 5),
        ) {
            let mut logs: Vec<Vec<MultiRecord>> = vec![Vec::new(); 5];
            for (transaction, (participants, gap)) in (1..).zip(transactions) {
                for &partition in &participants {
                    let log = &mut logs[usize::from(partition)];
                    let sequence = log.last().map_or(0, |last: &MultiRecord| last.sequence + 1) + u64::from(gap % 3);
                    log.push(MultiRecord { sequence, transaction, participants: participants.clone() });
                }
            }
            for (log, end) in logs.iter_mut().zip(ends) {
                // Most logs lose little.
                let lost = if end > 60 { 0 } else { log.len() * (end % 4) / 8 };
                log.truncate(log.len() - lost);
            }
            prop_assert_eq!(cuts(&logs), by_repetition(&logs));
        }
    }
}
