//! The files of a trial: `result.json`, `timeline.csv`, `latency.hdr`, `response.hdr`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};
use serde::Serialize;

use super::events::EventSummary;
use super::open_loop::OpenLoopResult;
use super::recorder::{Counts, Tally, TimelineSecond};
use super::transactions::TransactionSummary;
use crate::system::ByServer;

/// Version of the format of `result.json`.
pub const RESULT_FORMAT: u32 = 1;

/// What a trial is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Measured as specified.
    Ok,
    /// Measured, but not to be believed; the reason says why.
    Invalid,
    /// Not measured to the end; the reason says why.
    Failed,
}

/// Percentiles, mean and maximum in microseconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LatencySummary {
    pub p50: u64,
    pub p95: u64,
    pub p99: u64,
    pub p999: u64,
    pub mean: f64,
    pub max: u64,
}

impl LatencySummary {
    pub fn of(histogram: &Histogram<u64>) -> LatencySummary {
        LatencySummary {
            p50: histogram.value_at_quantile(0.5),
            p95: histogram.value_at_quantile(0.95),
            p99: histogram.value_at_quantile(0.99),
            p999: histogram.value_at_quantile(0.999),
            mean: histogram.mean(),
            max: histogram.max(),
        }
    }
}

/// The content of `result.json`.
#[derive(Debug, Clone, Serialize)]
pub struct TrialResult {
    pub format: u32,
    pub status: Status,
    /// Empty when the status is ok and no remark on an open loop is to be made.
    pub reason: String,
    /// Short names of what is wrong with the trial, for filtering.
    pub flags: Vec<String>,
    /// Committed in the measured interval ÷ its seconds.
    pub throughput_txn_s: f64,
    pub committed: u64,
    pub aborted: Counts,
    pub retried: Counts,
    /// Errors that ended the trial, by type.
    pub errors: Counts,
    /// Seconds really measured; shorter than specified when the trial was cut off.
    pub measured_s: f64,
    /// From the submission to the commit: service time, in an open loop.
    pub latency_us: LatencySummary,
    pub latency_us_by_type: BTreeMap<String, LatencySummary>,
    /// Reads checked in the measured interval.
    pub verified: u64,
    /// Reads found wrong, those before and after the measured interval included.
    pub verify_failed: u64,
    /// CPU time of this process in the measured interval ÷ (its seconds × CPUs of its set); without that which terminals of an open loop spin away.
    pub client_cpu_share: f64,
    pub debug_build: bool,
    pub counters_before: ByServer,
    pub counters_after: ByServer,
    pub server_settings: ByServer,
    pub versions: BTreeMap<String, String>,
    /// What only TPC-C has.
    #[serde(flatten)]
    pub tpcc: Option<TpccResult>,
    /// Of systems that tell what they do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events: Option<EventSummary>,
    /// Where transactions arrive instead of following on each other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_loop: Option<OpenLoopResult>,
    /// Where they were recorded one by one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transactions: Option<TransactionSummary>,
}

/// What is said of TPC-C besides.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TpccResult {
    /// Committed in the measured interval, by transaction.
    pub committed_by_type: BTreeMap<String, u64>,
    /// Share of New-Orders in them: 10 of 23 in the mix, less those that are rolled back.
    pub new_order_share: f64,
    /// Committed New-Orders ÷ minutes of the measured interval: like tpmC, but not an audited result.
    pub new_orders_per_minute: f64,
}

impl TpccResult {
    /// New-Order is the first type.
    pub fn of(tally: &Tally, types: &[&str], measured_s: f64) -> TpccResult {
        let committed = &tally.committed_by_type;
        let new_orders = committed.first().copied().unwrap_or(0) as f64;
        TpccResult {
            committed_by_type: types.iter().map(|name| (*name).to_owned()).zip(committed.iter().copied()).collect(),
            new_order_share: new_orders / (tally.committed.max(1) as f64),
            new_orders_per_minute: if measured_s > 0.0 { 60.0 * new_orders / measured_s } else { 0.0 },
        }
    }
}

impl TrialResult {
    /// Sets everything that comes from the measured interval.
    pub fn set_measured(&mut self, tally: &Tally, types: &[&str], measured_s: f64) {
        self.committed = tally.committed;
        self.aborted = tally.aborted.clone();
        self.retried = tally.retried.clone();
        self.measured_s = measured_s;
        self.throughput_txn_s = if measured_s > 0.0 { tally.committed as f64 / measured_s } else { 0.0 };
        self.latency_us = LatencySummary::of(&tally.all_latencies_us());
        self.latency_us_by_type = types
            .iter()
            .zip(&tally.latency_us)
            .map(|(name, histogram)| ((*name).to_owned(), LatencySummary::of(histogram)))
            .collect();
        self.verified = tally.verified;
        self.verify_failed = tally.verify_failed;
    }
}

/// Writes a file so that it appears whole or not at all.
///
/// # Errors
/// What the file system reports, with the path.
pub fn write_file(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    write_file_by(path, |file| file.write_all(content))
}

/// The same for content that is too large to have in memory at once.
///
/// # Errors
/// What the file system or `content` reports, with the path.
pub fn write_file_by(
    path: &Path,
    content: impl FnOnce(&mut dyn std::io::Write) -> std::io::Result<()>,
) -> anyhow::Result<()> {
    let temporary = path.with_extension("tmp");
    let write = || {
        let mut file = std::io::BufWriter::new(std::fs::File::create(&temporary)?);
        content(&mut file)?;
        file.into_inner()?.sync_all()?;
        std::fs::rename(&temporary, path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// Pretty JSON with a final newline.
///
/// # Errors
/// Never for the types of this crate; `serde_json` cannot know.
pub fn to_json(value: &impl Serialize) -> anyhow::Result<Vec<u8>> {
    let mut json = serde_json::to_vec_pretty(value)?;
    json.push(b'\n');
    Ok(json)
}

/// The content of `timeline.csv`.
pub fn timeline_csv(lines: &[TimelineSecond]) -> String {
    let mut csv = String::from("second,committed,aborted,retried,latency_us_p50,latency_us_p99\n");
    for line in lines {
        let TimelineSecond { second, committed, aborted, retried, latency_us_p50, latency_us_p99, .. } = line;
        // Writing to a string cannot fail.
        let _ = writeln!(csv, "{second},{committed},{aborted},{retried},{latency_us_p50},{latency_us_p99}");
    }
    csv
}

/// The content of `tenths.csv`: what committed in each tenth of each second of the timeline.
pub fn tenths_csv(lines: &[TimelineSecond]) -> String {
    let mut csv = String::from("tenth,committed\n");
    for line in lines {
        for (tenth, committed) in (line.second * 10..).zip(line.committed_in_tenths) {
            let _ = writeln!(csv, "{tenth},{committed}");
        }
    }
    csv
}

/// The content of `latency.hdr`: a line for each type of transaction.
///
/// # Errors
/// Those of [`interval_log`].
pub fn latency_log(tally: &Tally, types: &[&str], measured_s: f64) -> anyhow::Result<Vec<u8>> {
    let what = "latency in microseconds, retries included: what committed in the measured interval, and what was under way at its end";
    interval_log(what, types.iter().copied().zip(&tally.latency_us), measured_s)
}

/// The content of `response.hdr`: one line, of all types.
///
/// # Errors
/// Those of [`interval_log`].
pub fn response_log(response_us: &Histogram<u64>, measured_s: f64) -> anyhow::Result<Vec<u8>> {
    let what = "microseconds from the arrival to the commit: what committed in the measured interval, what was under way at its end, and \
                what had arrived and was not started then, with what it had waited";
    interval_log(what, [("response", response_us)], measured_s)
}

/// An interval log as HdrHistogram tools read it: one line per histogram (microseconds), as V2 deflate in base64, with its name as the tag.
///
/// # Errors
/// Never in practice; the serialiser's interface allows for it.
fn interval_log<'a>(
    comment: &str,
    histograms: impl IntoIterator<Item = (&'a str, &'a Histogram<u64>)>,
    measured_s: f64,
) -> anyhow::Result<Vec<u8>> {
    let mut text = Vec::new();
    let mut serializer = V2DeflateSerializer::new();
    let mut log = IntervalLogWriterBuilder::new()
        .add_comment(comment)
        .with_start_time(SystemTime::now())
        .with_base_time(SystemTime::now())
        .begin_log_with(&mut text, &mut serializer)?;
    for (name, histogram) in histograms {
        let interval = Duration::from_secs_f64(measured_s.max(0.0));
        log.write_histogram(histogram, Duration::ZERO, interval, Tag::new(name))
            .map_err(|error| anyhow::anyhow!("cannot serialise the latencies of {name}: {error:?}"))?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latency_log_can_be_read_back() {
        use hdrhistogram::serialization::Deserializer;
        use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

        let mut tally = Tally::new(2);
        tally.latency_us[0].record_n(17, 5).unwrap();
        tally.latency_us[1].record(40_000).unwrap();
        let log = latency_log(&tally, &["read", "update"], 2.0).unwrap();
        let mut tags = Vec::new();
        for entry in IntervalLogIterator::new(&log) {
            if let LogEntry::Interval(interval) = entry.unwrap() {
                let bytes = base64_decode(interval.encoded_histogram());
                let histogram: Histogram<u64> = Deserializer::new().deserialize(&mut bytes.as_slice()).unwrap();
                tags.push((interval.tag().unwrap().as_str().to_owned(), histogram.len(), histogram.max()));
            }
        }
        assert_eq!(tags[0], ("read".to_owned(), 5, 17));
        assert_eq!((tags[1].0.as_str(), tags[1].1), ("update", 1));
    }

    /// Standard base64, only for the test: the crate that wrote it is not asked to check itself.
    fn base64_decode(text: &str) -> Vec<u8> {
        let value = |c: u8| match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            _ => 63,
        };
        let mut bytes = Vec::new();
        for group in text.trim_end_matches('=').as_bytes().chunks(4) {
            let bits = group.iter().fold(0_u32, |bits, &c| bits << 6 | u32::from(value(c))) << (6 * (4 - group.len()));
            bytes.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
        }
        bytes
    }

    #[test]
    fn new_orders_are_counted_apart() {
        let mut tally = Tally::new(2);
        (tally.committed, tally.committed_by_type) = (8, vec![6, 2]);
        let tpcc = TpccResult::of(&tally, &["new_order", "payment"], 3.0);
        assert_eq!(tpcc.committed_by_type["payment"], 2);
        assert_eq!((tpcc.new_order_share, tpcc.new_orders_per_minute), (0.75, 120.0));
        let nothing = TpccResult::of(&Tally::new(2), &["new_order", "payment"], 0.0);
        assert_eq!((nothing.new_order_share, nothing.new_orders_per_minute), (0.0, 0.0));
    }

    #[test]
    fn the_timeline_is_plain_csv() {
        let line = TimelineSecond {
            second: -1,
            committed: 5,
            committed_in_tenths: [4, 0, 0, 0, 0, 0, 0, 0, 0, 1],
            aborted: 1,
            retried: 2,
            latency_us_p50: 9,
            latency_us_p99: 11,
        };
        let lines = [line];
        let csv = timeline_csv(&lines);
        assert_eq!(csv, "second,committed,aborted,retried,latency_us_p50,latency_us_p99\n-1,5,1,2,9,11\n");
        let tenths = tenths_csv(&lines);
        assert!(tenths.starts_with("tenth,committed\n-10,4\n-9,0\n") && tenths.ends_with("\n-2,0\n-1,1\n"), "{tenths}");
    }

    #[test]
    fn an_empty_histogram_has_zeros() {
        let summary = LatencySummary::of(&super::super::recorder::new_histogram());
        assert_eq!((summary.p50, summary.max), (0, 0));
        assert!(summary.mean == 0.0);
    }
}
