//! What the benchmarks share: the sink of replies, YCSB's requests, medians and the report.

use std::path::{Path, PathBuf};

use anticache_engine::net::frame::write_request;
use anticache_engine::partition::ReplySink;
use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;
use rand_distr::{Distribution, Zipf};

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
        let (key, value) = setting.split_once('=').ok_or_else(|| anyhow::anyhow!("--set {setting}: KEY=VALUE"))?;
        config[key] = serde_json::from_str(value).unwrap_or_else(|_| value.into());
    }
    Ok(())
}

/// The middle one; of two, the larger.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// The median of ratios, each within one round.
pub fn ratio(rates: &[f64], peer: &[f64]) -> f64 {
    median(&rates.iter().zip(peer).map(|(rate, peer)| rate / peer).collect::<Vec<_>>())
}

/// Binds this thread to a CPU.
pub fn bind(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        eprintln!("warning: not bound to one CPU ({error}): expect noise");
    }
}

/// Binds this thread to the last CPU.
pub fn bind_to_last() {
    bind(std::thread::available_parallelism().map_or(1, std::num::NonZero::get) - 1);
}

/// What was measured: printed at once, and kept in the format that the README describes under "Benchmarks".
#[derive(Default)]
pub struct Report(Vec<serde_json::Value>);

impl Report {
    /// `ratio` is against `peer`, measured in the same rounds.
    pub fn add(&mut self, name: &str, value: f64, unit: &str, ratio: Option<(&str, f64)>, settings: &str) {
        let shown = ratio.map_or(String::new(), |(peer, ratio)| format!("{ratio:6.3} of {peer}"));
        println!("{name:<58} {value:>14.0} {unit:<8} {shown}");
        let better =
            if unit.ends_with("us") || unit.ends_with('s') && !unit.contains('/') { "lower" } else { "higher" };
        self.0.push(serde_json::json!({"name": name, "value": value, "unit": unit, "better": better,
            "peer": ratio.map(|(peer, _)| peer), "ratio": ratio.map(|(_, ratio)| ratio), "settings": settings}));
    }

    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::write(path, serde_json::to_string_pretty(&self.0)?)?;
        println!("written to {}", path.display());
        Ok(())
    }
}

/// YCSB's table and requests (paper §4.1): procedures 0 read, 1 update, 2 load.
pub mod ycsb {
    use super::{Distribution, RngExt, SeedableRng, Xoshiro256PlusPlus, Zipf, write_request};

    pub const FIELDS: u16 = 10;
    pub const FIELD_BYTES: usize = 100;
    pub const ROW_BYTES: usize = FIELDS as usize * FIELD_BYTES;

    /// Appends a request's parameters; an update when there is a field.
    pub fn encode(key: i64, field: Option<u16>, params: &mut Vec<u8>) {
        params.extend_from_slice(&key.to_le_bytes());
        if let Some(field) = field {
            params.extend_from_slice(&field.to_le_bytes());
            params.extend_from_slice(&[b'x'; FIELD_BYTES]);
        }
    }

    /// Requests of a mix, drawn with Zipf 1.0 over the records, newest hottest.
    pub fn draw(records: u64, read_share: f64, count: usize) -> anyhow::Result<Vec<(u16, Vec<u8>)>> {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(42);
        let zipf = Zipf::new(records as f64, 1.0)?;
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
}
