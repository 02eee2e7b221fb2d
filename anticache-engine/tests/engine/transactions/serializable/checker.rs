//! A checker of strict serializability for histories of transactions on append-only lists.
//!
//! A transaction reads whole lists and appends elements that nobody else appends. So what was read tells the order of the appends (a list
//! read later begins with one read earlier), and the dependencies follow: an append comes after the one before it in the list (ww), a read after the
//! append of its last element (wr) and before the append that follows it (rw). A transaction that was answered before another was sent comes before
//! it. If the graph of these has no cycle, the transactions can be put into one order that explains everything that was seen and respects time.
//!
//! Existing checkers were looked at. Jepsen's Elle, the one to trust, is Clojure and would bring a JVM into the tests of this crate; on crates.io, `adya`
//! does the same natively but is a first version nobody has used, `stateright` searches all orders (exponential beyond a dozen transactions) and
//! the others check one register. For this one form of history the inference is short, and the tests below show it the anomalies.

use std::collections::HashMap;

/// A transaction that committed.
#[derive(Debug, Clone, Default)]
pub struct Transaction {
    /// When it was sent and when its reply came, on a clock that all clients share.
    pub sent: u64,
    pub answered: u64,
    /// Lists as they were when it began, by key.
    pub reads: Vec<(i64, Vec<u32>)>,
    /// Elements appended, at most one to a list.
    pub appends: Vec<(i64, u32)>,
}

/// Why a history is impossible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Anomaly {
    /// A list was read in two versions of which neither is the other's beginning.
    Incompatible { key: i64, first: Vec<u32>, second: Vec<u32> },
    /// An element that no transaction of the history can have appended (aborted, or of an unknown outcome and not given as such).
    FromNowhere { key: i64, element: u32 },
    /// An element twice in a list.
    Duplicate { key: i64, element: u32 },
    /// Transactions that depend on each other in a circle, by their positions; the letters say how each depends on the one before.
    Cycle(Vec<(usize, &'static str)>),
}

/// Checks a history. Transactions of unknown outcome are not in it, but their elements are in `maybe`, each with its own.
///
/// # Errors
/// The first anomaly found.
pub fn check(history: &[Transaction], maybe: &[(i64, u32)]) -> Result<(), Anomaly> {
    let orders = orders(history)?;
    let mut appended_by: HashMap<(i64, u32), usize> = HashMap::new();
    for (at, transaction) in history.iter().enumerate() {
        appended_by.extend(transaction.appends.iter().map(|&append| (append, at)));
    }
    // One whose outcome is unknown and whose element was seen is a transaction too, of which nothing else is known.
    let mut count = history.len();
    for &append in maybe {
        appended_by.entry(append).or_insert_with(|| {
            count += 1;
            count - 1
        });
    }
    let mut graph = Graph::new(count);
    for (&key, order) in &orders {
        for (place, &element) in order.iter().enumerate() {
            let by = *appended_by.get(&(key, element)).ok_or(Anomaly::FromNowhere { key, element })?;
            if let Some(before) = place.checked_sub(1).map(|before| order[before]) {
                let before = *appended_by.get(&(key, before)).ok_or(Anomaly::FromNowhere { key, element: before })?;
                graph.edge(before, by, "ww");
            }
        }
    }
    let mut appends_to: HashMap<i64, Vec<(u32, usize)>> = HashMap::new();
    for (&(key, element), &by) in &appended_by {
        appends_to.entry(key).or_default().push((element, by));
    }
    for (key, order) in orders.iter().filter(|(_, order)| !order.is_empty()) {
        // Appends that nobody saw come behind those that somebody saw, if they committed.
        let last = appended_by[&(*key, order[order.len() - 1])];
        let unseen = appends_to.get(key).into_iter().flatten();
        for &(_, by) in unseen.filter(|(element, by)| *by < history.len() && !order.contains(element)) {
            graph.edge(last, by, "ww");
        }
    }
    let nothing = Vec::new();
    for (at, transaction) in history.iter().enumerate() {
        for (key, list) in &transaction.reads {
            if let Some(last) = list.last() {
                graph.edge(appended_by[&(*key, *last)], at, "wr");
            }
            let order = orders.get(key).unwrap_or(&nothing);
            match order.get(list.len()) {
                Some(next) => graph.edge(at, appended_by[&(*key, *next)], "rw"),
                // It has seen all that anybody saw; the others come behind.
                None => {
                    let unseen = appends_to.get(key).into_iter().flatten();
                    for &(_, by) in unseen.filter(|(element, by)| *by < history.len() && !order.contains(element)) {
                        graph.edge(at, by, "rw");
                    }
                }
            }
        }
    }
    add_real_time(history, &mut graph);
    graph.cycle().map_or(Ok(()), |cycle| Err(Anomaly::Cycle(cycle)))
}

/// The longest version of every list, of which all others must be beginnings.
fn orders(history: &[Transaction]) -> Result<HashMap<i64, Vec<u32>>, Anomaly> {
    let mut orders: HashMap<i64, Vec<u32>> = HashMap::new();
    for (key, list) in history.iter().flat_map(|transaction| &transaction.reads) {
        let known = orders.entry(*key).or_default();
        let shared = known.len().min(list.len());
        if known[..shared] != list[..shared] {
            return Err(Anomaly::Incompatible { key: *key, first: known.clone(), second: list.clone() });
        }
        if list.len() > known.len() {
            let mut sorted = list.clone();
            sorted.sort_unstable();
            if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
                return Err(Anomaly::Duplicate { key: *key, element: twice[0] });
            }
            known.clone_from(list);
        }
    }
    Ok(orders)
}

/// Real time as edges. Who was answered goes before a moment, and every moment before later moments and before whoever is sent after it: so
/// there are two edges per transaction, not one per pair.
fn add_real_time(history: &[Transaction], graph: &mut Graph) {
    let mut answered: Vec<(u64, usize)> = history.iter().enumerate().map(|(at, one)| (one.answered, at)).collect();
    answered.sort_unstable();
    let first_moment = graph.edges.len();
    for (place, &(_, at)) in answered.iter().enumerate() {
        let moment = graph.node();
        graph.edge(at, moment, "before");
        if place > 0 {
            graph.edge(moment - 1, moment, "before");
        }
    }
    for (at, transaction) in history.iter().enumerate() {
        let earlier = answered.partition_point(|&(answered, _)| answered < transaction.sent);
        if earlier > 0 {
            graph.edge(first_moment + earlier - 1, at, "before");
        }
    }
}

struct Graph {
    edges: Vec<Vec<(usize, &'static str)>>,
    /// Nodes from here on are moments.
    transactions: usize,
}

impl Graph {
    fn new(transactions: usize) -> Self {
        Self { edges: vec![Vec::new(); transactions], transactions }
    }

    fn node(&mut self) -> usize {
        self.edges.push(Vec::new());
        self.edges.len() - 1
    }

    fn edge(&mut self, from: usize, to: usize, kind: &'static str) {
        if from != to {
            self.edges[from].push((to, kind));
        }
    }

    /// A cycle, if there is one: a depth-first search that meets a node on its own path.
    fn cycle(&self) -> Option<Vec<(usize, &'static str)>> {
        #[derive(Clone, Copy, PartialEq)]
        enum Seen {
            No,
            OnPath,
            Done,
        }
        let mut seen = vec![Seen::No; self.edges.len()];
        for start in 0..self.edges.len() {
            if seen[start] != Seen::No {
                continue;
            }
            seen[start] = Seen::OnPath;
            // Node, how it was reached, and the next of its edges.
            let mut path: Vec<(usize, &'static str, usize)> = vec![(start, "", 0)];
            while let Some((node, _, next)) = path.last_mut() {
                let node = *node;
                let Some(&(to, kind)) = self.edges[node].get(*next) else {
                    seen[node] = Seen::Done;
                    path.pop();
                    continue;
                };
                *next += 1;
                match seen[to] {
                    Seen::No => {
                        seen[to] = Seen::OnPath;
                        path.push((to, kind, 0));
                    }
                    Seen::OnPath => {
                        let from = path.iter().position(|&(on_path, ..)| on_path == to)?;
                        let mut cycle: Vec<_> = path[from..].iter().map(|&(node, kind, _)| (node, kind)).collect();
                        cycle[0].1 = kind;
                        cycle.retain(|&(node, _)| node < self.transactions);
                        return Some(cycle);
                    }
                    Seen::Done => {}
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transaction(time: (u64, u64), reads: &[(i64, &[u32])], appends: &[(i64, u32)]) -> Transaction {
        Transaction {
            sent: time.0,
            answered: time.1,
            reads: reads.iter().map(|&(key, list)| (key, list.to_vec())).collect(),
            appends: appends.to_vec(),
        }
    }

    /// All at the same time, so that only what was seen decides.
    const SAME: (u64, u64) = (0, 100);

    #[test]
    fn a_serial_history_is_accepted() {
        let history = [
            transaction((0, 1), &[], &[(1, 1), (2, 10)]),
            transaction((2, 5), &[(1, &[1])], &[(1, 2)]),
            transaction((3, 4), &[(2, &[10])], &[(2, 11)]),
            transaction((6, 7), &[(1, &[1, 2]), (2, &[10, 11])], &[]),
        ];
        assert_eq!(check(&history, &[]), Ok(()));
        assert_eq!(check(&history[1..], &[(1, 1), (2, 10)]), Ok(()), "the first one's outcome is unknown");
    }

    #[test]
    fn a_lost_update_is_found() {
        let history = [
            transaction(SAME, &[(1, &[])], &[(1, 1)]),
            transaction(SAME, &[(1, &[])], &[(1, 2)]),
            transaction(SAME, &[(1, &[1, 2])], &[]),
        ];
        assert_eq!(check(&history, &[]), Err(Anomaly::Cycle(vec![(0, "rw"), (1, "ww")])));
        // The same when nobody saw the second append.
        assert!(matches!(check(&history[..2], &[]), Err(Anomaly::Cycle(_))));
    }

    #[test]
    fn write_skew_is_found() {
        let history = [
            transaction(SAME, &[(1, &[]), (2, &[])], &[(1, 1)]),
            transaction(SAME, &[(1, &[]), (2, &[])], &[(2, 2)]),
            transaction(SAME, &[(1, &[1]), (2, &[2])], &[]),
        ];
        assert!(
            matches!(check(&history, &[]), Err(Anomaly::Cycle(cycle)) if cycle.iter().all(|&(_, kind)| kind == "rw"))
        );
    }

    #[test]
    fn circular_information_flow_is_found() {
        let history = [transaction(SAME, &[(2, &[2])], &[(1, 1)]), transaction(SAME, &[(1, &[1])], &[(2, 2)])];
        assert!(
            matches!(check(&history, &[]), Err(Anomaly::Cycle(cycle)) if cycle.iter().all(|&(_, kind)| kind == "wr"))
        );
    }

    #[test]
    fn dirty_writes_are_found() {
        let history = [
            transaction(SAME, &[], &[(1, 1), (2, 1)]),
            transaction(SAME, &[], &[(1, 2), (2, 2)]),
            transaction(SAME, &[(1, &[1, 2]), (2, &[2, 1])], &[]),
        ];
        assert!(
            matches!(check(&history, &[]), Err(Anomaly::Cycle(cycle)) if cycle.iter().all(|&(_, kind)| kind == "ww"))
        );
    }

    #[test]
    fn a_fractured_read_is_found() {
        let history = [transaction(SAME, &[], &[(1, 1), (2, 1)]), transaction(SAME, &[(1, &[1]), (2, &[])], &[])];
        assert!(matches!(check(&history, &[]), Err(Anomaly::Cycle(_))));
    }

    #[test]
    fn a_stale_read_is_found() {
        let history = [transaction((0, 1), &[], &[(1, 1)]), transaction((2, 3), &[(1, &[])], &[])];
        assert!(matches!(check(&history, &[]), Err(Anomaly::Cycle(_))));
        let overlapping = [transaction((0, 2), &[], &[(1, 1)]), transaction((2, 3), &[(1, &[])], &[])];
        assert_eq!(check(&overlapping, &[]), Ok(()));
    }

    #[test]
    fn time_that_only_a_third_one_tells_is_found() {
        // The reader saw the second append and not the first, which was answered before the second was sent.
        let history = [
            transaction((0, 1), &[], &[(1, 1)]),
            transaction((2, 3), &[], &[(2, 2)]),
            transaction((0, 9), &[(1, &[]), (2, &[2])], &[]),
        ];
        assert!(matches!(check(&history, &[]), Err(Anomaly::Cycle(_))));
    }

    #[test]
    fn impossible_lists_are_found() {
        let append = transaction(SAME, &[], &[(1, 1)]);
        let twice = transaction(SAME, &[(1, &[1, 1])], &[]);
        assert_eq!(check(&[append.clone(), twice], &[]), Err(Anomaly::Duplicate { key: 1, element: 1 }));
        let nowhere = transaction(SAME, &[(1, &[1, 7])], &[]);
        assert_eq!(check(&[append.clone(), nowhere], &[]), Err(Anomaly::FromNowhere { key: 1, element: 7 }));
        let forks = [
            transaction(SAME, &[(1, &[1, 2])], &[]),
            transaction(SAME, &[(1, &[2, 1])], &[]),
            append,
            transaction(SAME, &[], &[(1, 2)]),
        ];
        assert!(matches!(check(&forks, &[]), Err(Anomaly::Incompatible { key: 1, .. })));
    }
}
