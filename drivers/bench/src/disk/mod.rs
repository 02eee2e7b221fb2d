//! The disk: what the machine's own reaches, and the emulated one held against its model.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context;

use crate::harness::{self, Report, median};
use direct::{PAGE, Scratch};

pub mod direct;

#[derive(clap::Args)]
pub struct Arguments {
    /// Bytes of the scratch file.
    #[arg(long, default_value_t = 2 << 30)]
    bytes: u64,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Times that every measurement has its turn.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Profile of the emulated disk.
    #[arg(long, default_value = "hdd-7200")]
    profile: String,
    /// The emulated disk's whole self-test (80 s) instead of the short one (12 s).
    #[arg(long)]
    whole: bool,
}

/// The direct reads that others are held against: pages at random, so many in flight.
pub const DEPTH: usize = 64;
pub const RANDOM_READS: &str = "own disk: direct random reads of 4 KiB, 64 in flight";
pub const SEQUENTIAL_READS: &str = "own disk: direct sequential reads of 1 MiB, 4 in flight";

pub fn run(arguments: &Arguments, directory: &Path, report: &mut Report) -> anyhow::Result<()> {
    own_disk(arguments, directory, report)?;
    emulated_disk(arguments, directory, report)
}

fn own_disk(arguments: &Arguments, directory: &Path, report: &mut Report) -> anyhow::Result<()> {
    harness::bind_to_last();
    let Some(scratch) = Scratch::create(directory, arguments.bytes)? else { return Ok(()) };
    let settings = format!("file of {} MB, O_DIRECT, io_uring, one thread", arguments.bytes / 1_000_000);
    let duration = Duration::from_secs_f64(arguments.seconds);
    let depths = [1, 16, DEPTH];
    let (mut random, mut blocks) = ([const { Vec::new() }; 3], Vec::new());
    let (mut sequential, mut synced_us) = (Vec::new(), Vec::new());
    for _ in 0..arguments.rounds {
        for (depth, rates) in depths.into_iter().zip(&mut random) {
            rates.push(scratch.random_reads(PAGE, depth, duration)?);
        }
        blocks.push(scratch.random_reads(1 << 20, 1, duration)?.per_s);
        sequential.push(scratch.sequential_bytes_per_s(duration)? / 1e6);
        synced_us.extend(scratch.synced_writes_us(duration)?);
    }
    for (depth, reads) in depths.into_iter().zip(&random) {
        let name = format!("own disk: direct random reads of 4 KiB, {depth} in flight");
        let per_s: Vec<_> = reads.iter().map(|reads| reads.per_s).collect();
        report.add(&name, median(&per_s), "IOPS", None, &settings);
        let cpu_us: Vec<_> = reads.iter().map(|reads| reads.cpu_us).collect();
        report.add(&format!("{name}: CPU time of each"), median(&cpu_us), "us", None, &settings);
    }
    report.add("own disk: direct random reads of 1 MiB, 1 in flight", median(&blocks), "IOPS", None, &settings);
    report.add(SEQUENTIAL_READS, median(&sequential), "MB/s", None, &settings);
    let written = scratch.written_bytes_per_s / 1e6;
    report.add("own disk: direct sequential writes of 1 MiB, synced at the end", written, "MB/s", None, &settings);
    report.add("own disk: write and fdatasync of 4 KiB, p50", median(&synced_us), "us", None, &settings);
    Ok(())
}

/// `spindle selftest` says how near the disk comes to its model on this machine.
fn emulated_disk(arguments: &Arguments, directory: &Path, report: &mut Report) -> anyhow::Result<()> {
    let program = std::env::current_exe()?.with_file_name("spindle");
    let missing = [
        (!rustix::process::geteuid().is_root()).then(|| "only root can mount it".to_owned()),
        (!Path::new("/dev/fuse").exists()).then(|| "there is no /dev/fuse".to_owned()),
        (!program.exists()).then(|| format!("{} is not there: make build", program.display())),
    ];
    if let Some(reason) = missing.into_iter().flatten().next() {
        eprintln!("warning: the emulated disk is not measured: {reason}");
        return Ok(());
    }
    let results = directory.join("selftest.json");
    let mut command = Command::new(&program);
    command.current_dir(directory).arg("selftest").args(["--profile", &arguments.profile]).arg("--json").arg(&results);
    if !arguments.whole {
        command.arg("--quick");
    }
    // Its table is this report's.
    let status = command.stdout(Stdio::null()).status().with_context(|| program.display().to_string())?;
    let Ok(text) = std::fs::read(&results) else { anyhow::bail!("spindle selftest: {status}, without results") };
    let settings =
        format!("profile {}, spindle selftest{}", arguments.profile, if arguments.whole { "" } else { " --quick" });
    for row in serde_json::from_slice::<Vec<serde_json::Value>>(&text)? {
        let (name, unit) = (row["name"].as_str().unwrap_or_default(), row["unit"].as_str().unwrap_or_default());
        let unit = if unit == "per s" { "/s" } else { unit };
        // A row without a tolerance has a limit in the model's place.
        let peer = if row["tolerance"].is_null() { "its limit" } else { "the model" };
        let ratio = row["ratio"].as_f64().map(|ratio| (peer, ratio));
        let measured = row["measured"].as_f64().context("a row of the self-test without a value")?;
        report.add(&format!("emulated disk: {name}"), measured, unit, ratio, &settings);
    }
    if !status.success() {
        eprintln!("warning: the emulated disk is not within its model's tolerance on this machine");
    }
    Ok(())
}
