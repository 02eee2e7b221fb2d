//! Which multi-partition transactions no crash can take back any more.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Multi-partition transactions that were executed and are not resolved yet.
///
/// A transaction is resolved when it is durable at all its participants and every multi-partition transaction before it at each of them is resolved.
/// Numbers grow, and every partition executes in their order, so this is well-founded: the lowest number depends on no other.
#[derive(Debug)]
pub struct Votes {
    /// By partition, ascending.
    unresolved: Vec<VecDeque<u64>>,
    /// By partition: everything that it executed up to this number is durable there.
    durable_through: Vec<u64>,
    failed: Vec<bool>,
    participants: HashMap<u64, Arc<[u16]>>,
}

impl Votes {
    /// None yet, at so many partitions.
    pub fn new(partitions: usize) -> Self {
        Self {
            unresolved: vec![VecDeque::new(); partitions],
            durable_through: vec![0; partitions],
            failed: vec![false; partitions],
            participants: HashMap::new(),
        }
    }

    /// A transaction was executed; its number is above all before. When the log of a participant has failed meanwhile, it will never be resolved:
    /// `failed` gets each partition whose log counts as failed by that.
    pub fn executed(&mut self, number: u64, participants: Arc<[u16]>, failed: impl FnMut(u16)) {
        for &partition in &*participants {
            debug_assert!(self.unresolved[usize::from(partition)].back().is_none_or(|&last| last < number));
            self.unresolved[usize::from(partition)].push_back(number);
        }
        let is_lost = participants.iter().any(|&partition| self.failed[usize::from(partition)]);
        let reached = if is_lost { participants.to_vec() } else { Vec::new() };
        self.participants.insert(number, participants);
        self.spread(reached, failed);
    }

    /// What a partition executed up to a number is durable there. `resolved` gets, for each partition whose oldest transactions are resolved by
    /// this, the highest number of them.
    pub fn durable(&mut self, partition: u16, through: u64, mut resolved: impl FnMut(u16, u64)) {
        let mark = &mut self.durable_through[usize::from(partition)];
        *mark = (*mark).max(through);
        let mut look_at = vec![partition];
        while let Some(partition) = look_at.pop() {
            while let Some(&number) = self.unresolved[usize::from(partition)].front() {
                let Some(participants) = self.participants.get(&number).filter(|all| self.is_oldest(number, all))
                else {
                    break;
                };
                for &participant in &**participants {
                    self.unresolved[usize::from(participant)].pop_front();
                    resolved(participant, number);
                    if participant != partition {
                        look_at.push(participant);
                    }
                }
                self.participants.remove(&number);
            }
        }
    }

    /// Whether a transaction is durable at its participants and the oldest at each of them.
    fn is_oldest(&self, number: u64, participants: &[u16]) -> bool {
        participants
            .iter()
            .map(|&partition| usize::from(partition))
            .all(|at| self.durable_through[at] >= number && self.unresolved[at].front() == Some(&number))
    }

    /// A partition's log has failed: nothing that it executed and that is not resolved ever will be. So the other participants must not acknowledge
    /// what they did from the oldest of these on, and their logs count as failed too, and so on. `failed` gets each partition that is so for
    /// the first time, the one named included.
    pub fn fail(&mut self, partition: u16, failed: impl FnMut(u16)) {
        self.spread(vec![partition], failed);
    }

    /// These logs fail, and those of whoever shares a transaction with them that is not resolved.
    fn spread(&mut self, mut look_at: Vec<u16>, mut failed: impl FnMut(u16)) {
        while let Some(partition) = look_at.pop() {
            if std::mem::replace(&mut self.failed[usize::from(partition)], true) {
                continue;
            }
            failed(partition);
            let numbers = &self.unresolved[usize::from(partition)];
            look_at
                .extend(numbers.iter().filter_map(|number| self.participants.get(number)).flat_map(|all| all.iter()));
        }
    }

    /// Transactions that are not resolved.
    pub fn unresolved(&self) -> usize {
        self.participants.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::durability::multi_recovery::{MultiRecord, cuts};

    const PARTITIONS: usize = 4;

    #[derive(Debug, Clone)]
    enum Step {
        Execute(Vec<u16>),
        /// A partition's next few transactions become durable.
        Durable(u16, usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let partitions: Vec<u16> = (0..PARTITIONS as u16).collect();
        prop_oneof![
            prop::sample::subsequence(partitions, 2..=PARTITIONS).prop_map(Step::Execute),
            (0..PARTITIONS as u16, 1..4usize).prop_map(|(partition, count)| Step::Durable(partition, count)),
        ]
    }

    proptest! {
        /// After every step, whatever a crash leaves of the logs beyond what is durable, recovery keeps all that was resolved; and everything
        /// is resolved that is certain to be kept.
        #[test]
        fn resolved_is_what_recovery_keeps_after_any_crash(steps in prop::collection::vec(step(), 1..60), seed in any::<u64>()) {
            let mut votes = Votes::new(PARTITIONS);
            let mut logs: Vec<Vec<MultiRecord>> = vec![Vec::new(); PARTITIONS];
            let mut durable = [0usize; PARTITIONS];
            let mut resolved: BTreeMap<u16, u64> = (0..PARTITIONS as u16).map(|partition| (partition, 0)).collect();
            let mut chance = seed | 1;
            for (number, step) in (1..).zip(steps) {
                match step {
                    Step::Execute(participants) => {
                        for &partition in &participants {
                            let log = &mut logs[usize::from(partition)];
                            let sequence = log.len() as u64;
                            log.push(MultiRecord { sequence, transaction: number, participants: participants.clone() });
                        }
                        votes.executed(number, participants.into(), |_| unreachable!("no log fails"));
                    }
                    Step::Durable(partition, count) => {
                        let log = &logs[usize::from(partition)];
                        let end = (durable[usize::from(partition)] + count).min(log.len());
                        durable[usize::from(partition)] = end;
                        let through = end.checked_sub(1).map_or(0, |last| log[last].transaction);
                        votes.durable(partition, through, |partition, number| {
                            let before = resolved.insert(partition, number);
                            assert!(before < Some(number), "resolved in order");
                        });
                    }
                }
                let kept_at_least = survivors(&logs, &durable);
                for (partition, kept) in kept_at_least.iter().enumerate() {
                    prop_assert_eq!(kept.last().copied().unwrap_or(0), resolved[&(partition as u16)], "partition {}", partition);
                }
                // More than what is durable may be there after a crash; never does that cost anything.
                let mut left = durable;
                for (left, log) in left.iter_mut().zip(&logs) {
                    chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    *left += (chance >> 33) as usize % (log.len() - *left + 1);
                }
                for (with_more, with_less) in survivors(&logs, &left).iter().zip(&kept_at_least) {
                    prop_assert!(with_more.starts_with(with_less));
                }
            }
        }
    }

    /// The transactions that recovery keeps at each partition when its log has the first `left` records.
    fn survivors(logs: &[Vec<MultiRecord>], left: &[usize]) -> Vec<Vec<u64>> {
        let logs: Vec<Vec<MultiRecord>> = logs.iter().zip(left).map(|(log, &left)| log[..left].to_vec()).collect();
        let kept = logs.iter().zip(cuts(&logs)).map(|(log, cut)| {
            log.iter()
                .filter(|record| cut.is_none_or(|cut| record.sequence < cut))
                .map(|record| record.transaction)
                .collect()
        });
        kept.collect()
    }

    #[test]
    fn a_failure_reaches_whoever_depends_on_it() {
        let mut votes = Votes::new(PARTITIONS);
        votes.executed(1, [0, 1].into(), |_| unreachable!("no log has failed"));
        votes.executed(2, [1, 2].into(), |_| unreachable!("no log has failed"));
        let mut failed = Vec::new();
        votes.fail(0, |partition| failed.push(partition));
        assert_eq!(failed, [0, 1, 2]);
        assert_eq!(votes.unresolved(), 2);
    }

    #[test]
    fn what_is_executed_with_a_failed_log_fails_the_others() {
        let mut votes = Votes::new(PARTITIONS);
        votes.fail(2, |partition| assert_eq!(partition, 2));
        votes.executed(1, [0, 1].into(), |_| unreachable!("neither log has failed"));
        let mut failed = Vec::new();
        votes.executed(2, [3, 2].into(), |partition| failed.push(partition));
        assert_eq!(failed, [3]);
        votes.executed(3, [1, 3].into(), |partition| failed.push(partition));
        assert_eq!(failed, [3, 1, 0]);
    }
}
