//! `result.json` of a microbenchmark: the keys of loadgen's that make sense, and times in milliseconds.

use std::collections::BTreeMap;

use loadgen::trial::Status;
use serde::Serialize;
use serde_json::Value;

/// Version of the format of `result.json`, loadgen's.
const RESULT_FORMAT: u32 = 1;
/// Name under which this program's settings and version stand.
pub const PROGRAM: &str = "anticache-micro";

/// Times of one repetition by name, in milliseconds, and what was counted in it.
pub type Repetition = BTreeMap<&'static str, f64>;

/// The content of `result.json`.
#[derive(Debug, Serialize)]
pub struct MicroResult {
    format: u32,
    pub status: Status,
    /// Empty when the status is ok.
    pub reason: String,
    pub flags: Vec<&'static str>,
    /// Seconds that the repetitions took together, with what is not timed.
    pub measured_s: f64,
    /// Timed repetitions; every figure is the median over them.
    pub repetitions: u64,
    /// Medians by name: `elapsed_ms`, and the parts of it where there are some.
    #[serde(flatten)]
    medians: BTreeMap<&'static str, f64>,
    /// Least and greatest `elapsed_ms` of a repetition.
    elapsed_ms_range: Option<[f64; 2]>,
    debug_build: bool,
    server_settings: BTreeMap<&'static str, Value>,
    versions: BTreeMap<&'static str, &'static str>,
}

impl MicroResult {
    /// A trial that came to nothing.
    pub fn failed(reason: String) -> Self {
        Self {
            format: RESULT_FORMAT,
            status: Status::Failed,
            reason,
            flags: Vec::new(),
            measured_s: 0.0,
            repetitions: 0,
            medians: BTreeMap::new(),
            elapsed_ms_range: None,
            debug_build: cfg!(debug_assertions),
            server_settings: BTreeMap::new(),
            versions: BTreeMap::from([(PROGRAM, env!("CARGO_PKG_VERSION"))]),
        }
    }

    /// What repetitions have shown; a debug build measures nothing that is of use.
    pub fn of(repetitions: &[Repetition], measured_s: f64, settings: Value) -> Self {
        let mut names: Vec<_> = repetitions.iter().flat_map(|times| times.keys().copied()).collect();
        names.sort_unstable();
        names.dedup();
        let values = |name| sorted(repetitions.iter().filter_map(|times| times.get(name).copied()).collect());
        let elapsed = values("elapsed_ms");
        let debug = cfg!(debug_assertions);
        Self {
            status: if debug { Status::Invalid } else { Status::Ok },
            reason: if debug { "a debug build of anticache-micro".to_owned() } else { String::new() },
            flags: if debug { vec!["debug_build"] } else { Vec::new() },
            measured_s,
            repetitions: repetitions.len() as u64,
            medians: names.into_iter().map(|name| (name, median(&values(name)))).collect(),
            elapsed_ms_range: elapsed.first().zip(elapsed.last()).map(|(&least, &most)| [least, most]),
            server_settings: BTreeMap::from([(PROGRAM, settings)]),
            ..Self::failed(String::new())
        }
    }

    /// One line for who watches.
    pub fn shown(result: &Value) -> String {
        let reason = result["reason"].as_str().unwrap_or_default();
        let elapsed = result["elapsed_ms"].as_f64().map_or(String::new(), |elapsed| format!("{elapsed:.3} ms "));
        format!("{} {elapsed}{reason}", result["status"].as_str().unwrap_or("without a status"))
    }
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

/// The middle one of sorted values, or the mean of the two in the middle.
fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_medians_over_the_repetitions() {
        let repetition = |elapsed, write| Repetition::from([("elapsed_ms", elapsed), ("write_ms", write)]);
        let found = [repetition(9.0, 1.0), repetition(2.0, 5.0), repetition(3.0, 2.0), repetition(4.0, 4.0)];
        let result = serde_json::to_value(MicroResult::of(&found, 1.0, Value::Null)).unwrap();
        assert_eq!(result["elapsed_ms"], 3.5);
        assert_eq!(result["write_ms"], 3.0);
        assert_eq!(result["elapsed_ms_range"], serde_json::json!([2.0, 9.0]));
        assert_eq!(result["repetitions"], 4);
        assert_eq!(median(&[1.0, 2.0, 9.0]), 2.0);
    }
}
