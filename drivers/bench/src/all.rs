//! Every benchmark, each in a process of its own: the memory, the CPU binding and the crash of one are not the next one's.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;
use loadgen::interrupt::Interrupt;

use crate::harness::Report;
use crate::machine::CpuTimes;

/// The benchmarks in their order, with the seconds that they take without options on a machine with two cores: for the estimate of what is left.
const BENCHMARKS: &[(&str, f64)] = &[
    ("ycsb", 115.0),
    ("tcp", 75.0),
    ("eviction", 285.0),
    ("stalls", 70.0),
    ("memory", 20.0),
    ("tpcc", 110.0),
    ("growth", 80.0),
    ("multi", 35.0),
    ("durability", 50.0),
    ("drivers", 40.0),
    ("disk", 50.0),
    #[cfg(feature = "peers")]
    ("peers", 240.0),
];

#[derive(clap::Args)]
pub struct Arguments {
    /// Only these, separated by commas.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

impl Arguments {
    fn chosen(&self) -> anyhow::Result<Vec<(&'static str, f64)>> {
        let names: Vec<_> = BENCHMARKS.iter().map(|(name, _)| *name).collect();
        if let Some(unknown) = self.only.iter().find(|name| !names.contains(&name.as_str())) {
            anyhow::bail!("--only {unknown}: there is {}", names.join(", "));
        }
        let is_chosen = |name: &str| self.only.is_empty() || self.only.iter().any(|only| only == name);
        Ok(BENCHMARKS.iter().copied().filter(|(name, _)| is_chosen(name)).collect())
    }
}

/// Seconds for what is left, when what was done took longer or shorter than expected.
pub fn left_s(expected_done_s: f64, took_s: f64, expected_left_s: f64) -> f64 {
    let pace = if expected_done_s > 0.0 { took_s / expected_done_s } else { 1.0 };
    expected_left_s * pace
}

pub fn run(arguments: &Arguments, directory: &Path, json: Option<PathBuf>) -> anyhow::Result<()> {
    let interrupt = Interrupt::install().context("cannot install signal handlers")?;
    let chosen = arguments.chosen()?;
    let mut report = Report::new(json.clone());
    let mut failed = Vec::new();
    let (started, mut expected_done_s) = (Instant::now(), 0.0);
    for (number, &(name, expected_s)) in chosen.iter().enumerate() {
        let expected_left_s: f64 = chosen[number..].iter().map(|(_, expected_s)| expected_s).sum();
        let left_s = left_s(expected_done_s, started.elapsed().as_secs_f64(), expected_left_s);
        eprintln!(
            "[{}/{}] {name}: about {expected_s:.0} s; all that is left: about {left_s:.0} s",
            number + 1,
            chosen.len()
        );
        let before = CpuTimes::now();
        if let Err(error) = run_one(name, directory, &mut report, &interrupt) {
            eprintln!("warning: {name} has failed: {error:#}");
            failed.push(name);
        }
        CpuTimes::warn_of_theft_since(before, name);
        if interrupt.requested() {
            anyhow::bail!("interrupted during {name}");
        }
        expected_done_s += expected_s;
    }
    eprintln!("{} benchmarks took {:.0} s", chosen.len(), started.elapsed().as_secs_f64());
    if let Some(json) = json {
        eprintln!("written to {}", json.display());
    }
    anyhow::ensure!(failed.is_empty(), "of {} benchmarks these have failed: {}", chosen.len(), failed.join(", "));
    Ok(())
}

/// Runs one in a directory of its own, and keeps what it has measured, also when it fails.
fn run_one(name: &str, directory: &Path, report: &mut Report, interrupt: &Interrupt) -> anyhow::Result<()> {
    let own = tempfile::tempdir_in(directory)?;
    let part = own.path().join("part.json");
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(name).arg("--quiet").arg("--json").arg(&part).arg("--directory").arg(own.path());
    let mut child = command.spawn()?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if interrupt.requested() {
            // It may have had the same signal.
            let _ = child.kill();
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    if part.exists() {
        report.add_file(&part)?;
    }
    anyhow::ensure!(status.success(), "{status}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn what_is_left_follows_the_pace() {
        assert_eq!(left_s(0.0, 0.3, 100.0), 100.0);
        assert_eq!(left_s(10.0, 20.0, 100.0), 200.0);
    }

    #[test]
    fn every_benchmark_is_a_subcommand_and_unknown_ones_are_named() {
        let command = crate::CommandLine::command();
        for (name, _) in BENCHMARKS {
            assert!(command.find_subcommand(name).is_some(), "{name}");
        }
        let chosen = Arguments { only: vec!["disk".to_owned(), "ycsb".to_owned()] }.chosen().unwrap();
        assert_eq!(chosen.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["ycsb", "disk"]);
        let error = Arguments { only: vec!["dsik".to_owned()] }.chosen().unwrap_err().to_string();
        assert!(error.starts_with("--only dsik: there is ycsb"), "{error}");
    }
}
