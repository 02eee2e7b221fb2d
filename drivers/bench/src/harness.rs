//! What the benchmarks share: YCSB's requests, medians and percentiles, CPUs, and the report.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anticache_engine::net::frame::write_request;
use anticache_engine::partition::ReplySink;
use anyhow::Context;
use rand::RngExt;
use rand_distr::{Distribution, Zipf};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// Requests that are run together, as a server does with what a connection sent.
pub const BATCH: usize = 64;

/// Replies in one buffer.
#[derive(Default)]
pub struct Replies(pub Vec<u8>);

impl ReplySink for Replies {
    fn buffer(&mut self, _connection: u32, _epoch: u32) -> &mut Vec<u8> {
        &mut self.0
    }
}

impl Replies {
    /// Counts the replies that came since the last call, and forgets them.
    ///
    /// # Panics
    /// When a transaction has failed.
    pub fn take(&mut self) -> usize {
        let (mut rest, mut count) = (&self.0[..], 0);
        while let Some((length, after)) = rest.split_first_chunk::<4>() {
            let (reply, behind) = after.split_at(u32::from_le_bytes(*length) as usize);
            assert!(reply[8] < 2, "a transaction has failed: {}", String::from_utf8_lossy(&reply[9..]));
            rest = behind;
            count += 1;
        }
        self.0.clear();
        count
    }
}

pub fn schema(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../workloads/schemas").join(name)
}

/// Sets keys of a configuration: `KEY=VALUE`, the value as JSON or a word.
///
/// # Errors
/// When one has no `=`.
pub fn apply(config: &mut serde_json::Value, settings: &[String]) -> anyhow::Result<()> {
    for setting in settings {
        let (key, value) = setting.split_once('=').with_context(|| format!("--set {setting}: KEY=VALUE"))?;
        config[key] = serde_json::from_str(value).unwrap_or_else(|_| value.into());
    }
    Ok(())
}

/// The middle one; of two, the larger. 0 of none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

/// The median of ratios, each within one round.
pub fn ratio(values: &[f64], peer: &[f64]) -> f64 {
    median(&values.iter().zip(peer).map(|(value, peer)| value / peer).collect::<Vec<_>>())
}

/// The CPUs that this process was given.
fn given_cpus() -> CpuSet {
    static GIVEN: OnceLock<CpuSet> = OnceLock::new();
    *GIVEN.get_or_init(|| sched_getaffinity(None).unwrap_or_default())
}

/// Binds this thread, and those that it starts, to a CPU.
pub fn bind(cpu: usize) {
    given_cpus();
    let mut set = CpuSet::new();
    set.set(cpu);
    if let Err(error) = sched_setaffinity(None, &set) {
        eprintln!("warning: not bound to one CPU ({error}): expect noise");
    }
}

/// The last CPU.
pub fn last_cpu() -> usize {
    let given = given_cpus();
    (0..CpuSet::MAX_CPU).rev().find(|&cpu| given.is_set(cpu)).unwrap_or_default()
}

/// Binds this thread to the last CPU.
pub fn bind_to_last() {
    bind(last_cpu());
}

/// Does something on all CPUs, as a server does what comes before its threads, and goes on where it was bound.
pub fn unbound<R>(work: impl FnOnce() -> R) -> R {
    let bound = sched_getaffinity(None);
    let _ = sched_setaffinity(None, &given_cpus());
    let result = work();
    let _ = bound.and_then(|bound| sched_setaffinity(None, &bound));
    result
}

/// Seconds that the processor has worked for this thread.
pub fn thread_cpu_s() -> f64 {
    clock_s(ClockId::ThreadCPUTime)
}

/// The same for all threads of this process.
pub fn process_cpu_s() -> f64 {
    clock_s(ClockId::ProcessCPUTime)
}

fn clock_s(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// What was measured: printed at once, and kept in the format that `README.md` of this package describes.
pub struct Report {
    entries: Vec<serde_json::Value>,
    path: Option<PathBuf>,
}

impl Report {
    /// A report that is written anew to a file, if one is given, with every entry: so nothing measured is lost.
    pub fn new(path: Option<PathBuf>) -> Self {
        Self { entries: Vec::new(), path }
    }

    /// `ratio` is against `peer`, measured in the same rounds.
    pub fn add(&mut self, name: &str, value: f64, unit: &str, ratio: Option<(&str, f64)>, settings: &str) {
        let shown = ratio.map_or(String::new(), |(peer, ratio)| format!("{ratio:6.3} of {peer}"));
        let digits = if value.abs() < 100.0 { 2 } else { 0 };
        println!("{name:<74} {value:>13.digits$} {unit:<9} {shown}");
        self.entries.push(serde_json::json!({"name": name, "value": value, "unit": unit, "better": better(unit),
            "peer": ratio.map(|(peer, _)| peer), "ratio": ratio.map(|(_, ratio)| ratio), "settings": settings}));
        self.write().unwrap_or_else(|error| eprintln!("warning: {error:#}"));
    }

    /// Adds what another process has written.
    ///
    /// # Errors
    /// When the file holds no list, or this report cannot be written.
    pub fn add_file(&mut self, path: &Path) -> anyhow::Result<()> {
        let read = || anyhow::Ok(serde_json::from_slice::<Vec<_>>(&std::fs::read(path)?)?);
        self.entries.extend(read().with_context(|| path.display().to_string())?);
        self.write()
    }

    /// Replaces the file, if there is one.
    fn write(&self) -> anyhow::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let new = path.with_extension("new");
        let text = serde_json::to_string_pretty(&self.entries)? + "\n";
        let replace = || {
            path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
            std::fs::write(&new, text)?;
            std::fs::rename(&new, path)
        };
        replace().with_context(|| path.display().to_string())
    }
}

/// Rates are better when they are higher, everything else (times, bytes, shares of overhead) when it is lower.
fn better(unit: &str) -> &'static str {
    if unit.ends_with("/s") || unit == "IOPS" { "higher" } else { "lower" }
}

/// YCSB's table and requests (paper §4.1): procedures 0 read, 1 update, 2 load.
pub mod ycsb {
    use super::{Context, Distribution, RngExt, SeedableRng, Xoshiro256PlusPlus, Zipf, write_request};

    pub const FIELDS: u16 = 10;
    pub const FIELD_BYTES: usize = 100;
    pub const ROW_BYTES: usize = FIELDS as usize * FIELD_BYTES;
    pub const LOAD: u16 = 2;
    /// Exponent of the Zipf distribution, where nothing else is said.
    pub const SKEW: f64 = 1.0;

    /// Appends a request's parameters; an update when there is a field.
    pub fn encode(key: i64, field: Option<u16>, params: &mut Vec<u8>) {
        params.extend_from_slice(&key.to_le_bytes());
        if let Some(field) = field {
            params.extend_from_slice(&field.to_le_bytes());
            params.extend_from_slice(&[b'x'; FIELD_BYTES]);
        }
    }

    /// Requests of a mix, drawn by Zipf over the records, newest hottest.
    pub fn draw(records: u64, read_share: f64, count: usize) -> anyhow::Result<Vec<(u16, Vec<u8>)>> {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(42);
        let zipf = Zipf::new(records as f64, SKEW)?;
        let request = |_| {
            let key = records as i64 - zipf.sample(&mut rng) as i64;
            let field = (!rng.random_bool(read_share)).then(|| rng.random_range(0..FIELDS));
            let mut params = Vec::new();
            encode(key, field, &mut params);
            (u16::from(field.is_some()), params)
        };
        Ok((0..count).map(request).collect())
    }

    pub fn wire(requests: &[(u16, Vec<u8>)]) -> Vec<u8> {
        let mut wire = Vec::new();
        for (token, (procedure, params)) in requests.iter().enumerate() {
            write_request(&mut wire, token as u64, *procedure, params);
        }
        wire
    }

    /// Requests without end, drawn as they are needed: what does not fit in memory must not come again in cycles.
    pub struct Endless {
        records: u64,
        /// Ranks that are neighbours are neighbours in the file, too.
        clustered: bool,
        zipf: Zipf<f64>,
        rng: Xoshiro256PlusPlus,
    }

    impl Endless {
        pub fn new(records: u64, skew: f64, clustered: bool) -> anyhow::Result<Self> {
            let zipf = Zipf::new(records as f64, skew).with_context(|| format!("skew {skew}, {records} records"))?;
            let rng = Xoshiro256PlusPlus::seed_from_u64(42);
            Ok(Self { records, clustered, zipf, rng })
        }

        /// The next requests, on the wire.
        pub fn draw(&mut self, read_share: f64, count: usize, wire: &mut Vec<u8>) {
            wire.clear();
            let mut params = Vec::new();
            for token in 0..count as u64 {
                let rank = self.zipf.sample(&mut self.rng) as u64 - 1;
                let place = if self.clustered { rank } else { scatter(rank, self.records) };
                let field = (!self.rng.random_bool(read_share)).then(|| self.rng.random_range(0..FIELDS));
                params.clear();
                encode((self.records - 1 - place) as i64, field, &mut params);
                write_request(wire, token, u16::from(field.is_some()), &params);
            }
        }
    }

    /// A permutation of the ranks: the factor is a prime.
    pub fn scatter(rank: u64, records: u64) -> u64 {
        rank * 2_654_435_761 % records
    }

    /// Parameters of the calls that load the table, `rows` rows each.
    pub fn load_calls(records: u64, rows: u64) -> impl Iterator<Item = Vec<u8>> {
        (0..records).step_by(rows as usize).map(move |first| {
            let last = (first + rows).min(records);
            let mut params = ((last - first) as u32).to_le_bytes().to_vec();
            for key in first..last {
                params.extend_from_slice(&key.to_le_bytes());
                params.extend(std::iter::repeat_n(b'a' + (key % 26) as u8, ROW_BYTES));
            }
            params
        })
    }

    /// Share of the reads that go to records beyond the hottest `kept`: what misses at least when so many are in memory.
    pub fn ideal_miss_share(records: u64, skew: f64, kept: u64) -> f64 {
        let harmonic = |last: u64| (1..=last).map(|rank| (rank as f64).powf(-skew)).sum::<f64>();
        1.0 - harmonic(kept.min(records)) / harmonic(records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ratios_are_those_of_the_rounds() {
        assert_eq!((median(&[]), median(&[3.0]), median(&[5.0, 1.0, 3.0])), (0.0, 3.0, 3.0));
        // Drift that meets both sides alike leaves the ratio as it is.
        assert_eq!(ratio(&[2.0, 4.0, 80.0], &[1.0, 2.0, 10.0]), 2.0);
    }

    #[test]
    fn settings_are_json_or_words() {
        let mut config = serde_json::json!({"a": 1});
        apply(&mut config, &["a=2".to_owned(), "fetch=sectors".to_owned(), "b=[1]".to_owned()]).unwrap();
        assert_eq!(config, serde_json::json!({"a": 2, "fetch": "sectors", "b": [1]}));
        assert!(apply(&mut config, &["a".to_owned()]).is_err());
    }

    #[test]
    fn what_is_better_follows_from_the_unit() {
        for (unit, expected) in [
            ("txn/s", "higher"),
            ("IOPS", "higher"),
            ("s", "lower"),
            ("us", "lower"),
            ("B", "lower"),
            ("/1000txn", "lower"),
        ] {
            assert_eq!(better(unit), expected, "{unit}");
        }
    }

    #[test]
    fn a_report_is_on_disk_with_every_entry() {
        let directory = tempfile::tempdir().unwrap();
        let (part, whole) = (directory.path().join("part.json"), directory.path().join("new/whole.json"));
        Report::new(Some(part.clone())).add("read", 2.0, "txn/s", Some(("other", 0.5)), "alone");
        let mut report = Report::new(Some(whole.clone()));
        report.add("first", 1.0, "us", None, "");
        report.add_file(&part).unwrap();
        let written: serde_json::Value = serde_json::from_slice(&std::fs::read(whole).unwrap()).unwrap();
        assert_eq!(
            written[1],
            serde_json::json!({"name": "read", "value": 2.0, "unit": "txn/s", "better": "higher", "peer": "other",
                "ratio": 0.5, "settings": "alone"})
        );
        assert!(written[0]["peer"].is_null() && written[0]["better"] == "lower");
    }

    #[test]
    fn misses_are_ideal_when_the_hottest_are_kept() {
        assert_eq!(ycsb::ideal_miss_share(100, 1.25, 100), 0.0);
        // 1 + 1/2 of 1 + 1/2 + 1/3.
        assert!((ycsb::ideal_miss_share(3, 1.0, 2) - (1.0 / 3.0) / (11.0 / 6.0)).abs() < 1e-12);
        // 1/9 of 1 + 1/4 + 1/9.
        assert!((ycsb::ideal_miss_share(3, 2.0, 2) - (1.0 / 9.0) / (49.0 / 36.0)).abs() < 1e-12);
    }

    #[test]
    fn scattering_is_a_permutation() {
        let mut places: Vec<_> = (0..1000).map(|rank| ycsb::scatter(rank, 1000)).collect();
        assert!(places.windows(2).filter(|two| two[0] + 1 == two[1]).count() < 10);
        places.sort_unstable();
        assert_eq!(places, (0..1000).collect::<Vec<_>>());
    }
}
