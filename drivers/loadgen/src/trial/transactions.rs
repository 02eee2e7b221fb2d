//! Every transaction of the measured interval by itself: `transactions.csv`. Only where the specification asks for it (`record_transactions`);
//! kept in memory reserved beforehand, written when the trial is over.

use std::io::{self, Write};
use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

/// One transaction that was over in the measured interval; times are those of the trial's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransactionRecord {
    pub submitted_ns: u64,
    /// Retries included; longer ones than an hour and a bit count as `u32::MAX`.
    pub latency_us: u32,
    pub terminal: u16,
    pub type_index: u8,
    pub committed: bool,
}

/// What one worker keeps.
#[derive(Debug)]
pub struct TransactionLog {
    records: Vec<TransactionRecord>,
    most: usize,
    lost: u64,
}

impl TransactionLog {
    /// A log of at most so many transactions; the memory is the kernel's until it is written to.
    pub fn new(most: usize) -> TransactionLog {
        TransactionLog { records: Vec::with_capacity(most), most, lost: 0 }
    }

    pub fn push(&mut self, record: TransactionRecord) {
        // The capacity may be larger than what was asked for.
        if self.records.len() < self.most {
            self.records.push(record);
        } else {
            self.lost += 1;
        }
    }
}

/// How many of at most `most` transactions the worker of a group of terminals keeps; `None`: nothing is recorded.
pub fn share(most: u64, group: &Range<u32>, terminals: u32) -> Option<usize> {
    let own = u64::from(group.end - group.start);
    (most > 0).then(|| (most * own).div_ceil(u64::from(terminals)) as usize)
}

/// How complete `transactions.csv` is; in `result.json` under `transactions`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TransactionSummary {
    pub recorded: u64,
    /// Transactions beyond `record_transactions`, the latest of each worker.
    pub lost: u64,
    /// When the measured interval began, in microseconds since 1970 by this machine's clock.
    pub interval_began_us: u64,
}

/// What all workers kept, in the order of submission.
pub struct Transactions {
    records: Vec<TransactionRecord>,
    measure_start_ns: u64,
    pub summary: TransactionSummary,
}

impl Transactions {
    /// Puts the logs together; `now_ns` is the present on the trial's clock.
    pub fn of(logs: Vec<TransactionLog>, measure_start_ns: u64, now_ns: u64) -> Transactions {
        let lost = logs.iter().map(|log| log.lost).sum();
        let mut records = Vec::with_capacity(logs.iter().map(|log| log.records.len()).sum());
        for log in logs {
            records.extend_from_slice(&log.records);
        }
        records.sort_unstable_by_key(|record| (record.submitted_ns, record.terminal));
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64;
        let interval_began_us = (since_1970 + measure_start_ns / 1000).saturating_sub(now_ns / 1000);
        let summary = TransactionSummary { recorded: records.len() as u64, lost, interval_began_us };
        Transactions { records, measure_start_ns, summary }
    }

    /// Writes the content of `transactions.csv`; starts count from the beginning of the measured interval and are negative before it.
    ///
    /// # Errors
    /// What the writer reports.
    pub fn write(&self, types: &[&str], writer: &mut dyn Write) -> io::Result<()> {
        writeln!(writer, "start_us,latency_us,type,terminal,outcome")?;
        for record in &self.records {
            let start_us = (record.submitted_ns.cast_signed() - self.measure_start_ns.cast_signed()).div_euclid(1000);
            let TransactionRecord { latency_us, terminal, type_index, committed, .. } = *record;
            let (name, outcome) = (types[usize::from(type_index)], if committed { "committed" } else { "aborted" });
            writeln!(writer, "{start_us},{latency_us},{name},{terminal},{outcome}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(submitted_ns: u64, terminal: u16, committed: bool) -> TransactionRecord {
        TransactionRecord { submitted_ns, latency_us: 7, terminal, type_index: u8::from(!committed), committed }
    }

    #[test]
    fn a_record_takes_sixteen_bytes() {
        assert_eq!(size_of::<TransactionRecord>(), 16);
    }

    #[test]
    fn workers_keep_shares_that_make_up_the_whole() {
        assert_eq!(share(0, &(0..4), 8), None);
        assert_eq!((share(100, &(0..4), 8), share(100, &(4..8), 8)), (Some(50), Some(50)));
        assert_eq!(share(1, &(0..1), 8), Some(1), "never less than is asked for");
    }

    #[test]
    fn all_logs_are_written_in_the_order_of_submission() {
        let mut logs = [TransactionLog::new(2), TransactionLog::new(2)];
        logs[0].push(at(5_000_000, 0, true));
        logs[0].push(at(3_000_000, 0, false));
        logs[0].push(at(9_000_000, 0, true));
        logs[1].push(at(999_999, 1, true));
        let transactions = Transactions::of(logs.into(), 1_000_000, 10_000_000);
        assert_eq!((transactions.summary.recorded, transactions.summary.lost), (3, 1));
        let mut csv = Vec::new();
        transactions.write(&["read", "update"], &mut csv).unwrap();
        let expected = "start_us,latency_us,type,terminal,outcome\n-1,7,read,1,committed\n2000,7,update,0,aborted\n\
                        4000,7,read,0,committed\n";
        assert_eq!(String::from_utf8(csv).unwrap(), expected);
    }

    #[test]
    fn the_interval_began_so_long_ago() {
        let now_us = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64;
        let began_us = Transactions::of(Vec::new(), 1_000_000_000, 61_000_000_000).summary.interval_began_us;
        assert!(began_us >= now_us - 60_000_000, "{began_us} {now_us}");
        assert!(began_us < now_us, "{began_us} {now_us}");
    }
}
