//! Compares the disk as it runs here with its own model in virtual time: what this machine makes of the profile.

mod real;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;

use crate::control::{self, Command};
use crate::daemon::disk::{Mode, new_drive};
use crate::daemon::scheduling::become_real_time;
use crate::device::Mkfs;
use crate::layout::Layout;
use crate::lifecycle::{self, MountOptions, SWITCH_LIMIT};
use crate::model::simulate::simulate;
use crate::model::workload::{Pattern, Workload};
use crate::model::{Operation, SECTOR_BYTES};
use crate::profile::{Kind, Profile};

/// The model is run with so many starting angles, because the real one's is chance.
const ANGLES: u64 = 8;
/// Share of late operations that a self-test allows.
const LATE_LIMIT: f64 = 0.05;
/// Share of a core that the daemon of a mechanical disk may need.
const CPU_LIMIT: f64 = 0.10;
/// Below the daemon's threads.
const SELFTEST_PRIORITY: i32 = 1;
/// Part of the disk that is written.
const WRITTEN_BYTES: u64 = 1 << 30;
const WRITTEN_QUICK_BYTES: u64 = 256 << 20;

/// What to test.
#[derive(Debug)]
pub struct Options {
    /// A disk: its profile and region, on a scratch disk in its directory. Otherwise the scratch disk is made here.
    pub directory: Option<PathBuf>,
    /// Profile instead of the disk's.
    pub profile: Option<String>,
    /// Region instead of the disk's.
    pub region_bytes: Option<u64>,
    /// About 10 s in all, with a wider tolerance.
    pub quick: bool,
    /// Where to write the results.
    pub json: Option<PathBuf>,
}

/// One result.
#[derive(Debug, Serialize)]
pub struct Row {
    name: String,
    measured: f64,
    /// What the model says, or the limit.
    model: Option<f64>,
    ratio: Option<f64>,
    unit: &'static str,
    /// Allowed deviation of the ratio from 1; empty where the row has a limit, or none.
    tolerance: Option<f64>,
    ok: bool,
}

struct Scratch {
    layout: Layout,
    device: PathBuf,
    _directory: tempfile::TempDir,
}

impl Drop for Scratch {
    fn drop(&mut self) {
        lifecycle::unmount(&self.layout).unwrap_or_else(|error| eprintln!("spindle: scratch disk: {error:#}"));
    }
}

struct SelfTest {
    scratch: Scratch,
    profile: Profile,
    region_bytes: u64,
    quick: bool,
    stop: Arc<AtomicBool>,
    rows: Vec<Row>,
}

/// Runs the self-test and returns whether everything is as it should be.
pub fn run(options: &Options) -> Result<bool> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let mut test = SelfTest::new(options, stop)?;
    // After the scratch disk's daemon was started, which shall not inherit it. What is measured is the disk, not how soon
    // a busy machine lets this process notice that it has answered.
    if let Some(warning) = become_real_time(SELFTEST_PRIORITY, "self-test") {
        eprintln!("spindle: {warning}");
    }
    println!("{:44} {:>12} {:>12} {:>7}  {:8} ", "test", "measured", "model/limit", "ratio", "unit");
    test.bypass()?;
    if !test.profile.is_none() {
        test.model()?;
    }
    let ok = test.rows.iter().all(|row| row.ok);
    if let Some(path) = &options.json {
        let text = serde_json::to_string_pretty(&test.rows)? + "\n";
        std::fs::write(path, text).with_context(|| format!("{}", path.display()))?;
    }
    println!(
        "{}",
        if ok {
            "self-test passed"
        } else {
            "self-test FAILED: this machine does not run the profile as it is modelled"
        }
    );
    Ok(ok)
}

impl SelfTest {
    fn new(options: &Options, stop: Arc<AtomicBool>) -> Result<Self> {
        let disk = options.directory.as_deref().map(Layout::open).transpose()?;
        let description = disk.as_ref().map(Layout::description).transpose()?;
        let named = options.profile.clone().or_else(|| description.as_ref().map(|d| d.profile.clone()));
        let name = named.unwrap_or_else(|| Profile::built_in()[0].to_owned());
        let profile = Profile::load(&name)?;
        let region_bytes = options.region_bytes.or_else(|| description.as_ref().map(|d| d.region_bytes));
        let region_bytes = region_bytes.unwrap_or(32 << 30);
        if region_bytes < 4 * WRITTEN_BYTES {
            bail!("a self-test needs a region of at least 4 GiB, not {region_bytes} bytes");
        }
        let parent = disk.as_ref().map_or(Path::new("."), Layout::root);
        let directory = tempfile::Builder::new().prefix("selftest-").tempdir_in(parent);
        let directory = directory.with_context(|| format!("no scratch directory in {}", parent.display()))?;
        let layout = Layout::create(directory.path(), &name, region_bytes, 1)?;
        let device = lifecycle::mount(&layout, &MountOptions { at: None, mkfs: Mkfs::Keep, barriers: true })?;
        let scratch = Scratch { layout, device, _directory: directory };
        let quick = options.quick;
        let region_gib = region_bytes as f64 / (1_u64 << 30) as f64;
        println!("profile {}, region {region_gib} GiB, tolerance {:.0} %", profile.name, tolerance(quick) * 100.0);
        Ok(Self { scratch, profile, region_bytes, quick, stop, rows: Vec::new() })
    }

    fn workload(&self, pattern: Pattern, operation: Operation, sectors: u32, queue_depth: usize) -> Workload {
        Workload {
            pattern,
            operation,
            sectors,
            queue_depth,
            region_first: 0,
            region_sectors: self.region_bytes / SECTOR_BYTES,
            operations: None,
            seconds: Some(if self.quick { 1.2 } else { 10.0 }),
            think_ns: 0,
            seed: 1,
        }
    }

    fn written_sectors(&self) -> u64 {
        (if self.quick { WRITTEN_QUICK_BYTES } else { WRITTEN_BYTES }) / SECTOR_BYTES
    }

    /// How fast the host is: nothing is emulated faster than that.
    fn bypass(&mut self) -> Result<()> {
        let written = self.written_sectors();
        let before = self.stats(true)?;
        let once = Some(written / 256);
        let mut write = self.workload(Pattern::Sequential, Operation::Write, 256, 4);
        (write.region_sectors, write.operations, write.seconds) = (written, once, None);
        let read = Workload { operation: Operation::Read, ..write.clone() };
        let mut random = self.workload(Pattern::Random, Operation::Read, 1, 32);
        (random.region_sectors, random.seconds) = (written, Some(if self.quick { 1.0 } else { 5.0 }));
        self.at_least("bypass: sequential write, 1 MiB, depth 4", &write, "MB/s")?;
        self.at_least("bypass: sequential read, 1 MiB, depth 4", &read, "MB/s")?;
        self.at_least("bypass: random read, 4 KiB, depth 32", &random, "IOPS")?;
        let after = self.stats(false)?;
        self.add("bypass: CPU of the daemon", cpu_share(&before, &after), None, None, "cores", |_| true);
        Ok(())
    }

    /// A row whose limit is the emulated drive's own speed.
    fn at_least(&mut self, name: &str, workload: &Workload, unit: &'static str) -> Result<()> {
        let measured = self.measure(name, workload)?;
        let model =
            if self.profile.is_none() { None } else { Some(self.simulated(workload, measured.operations, unit)?) };
        let value = rate(&measured, workload, unit);
        self.add(name, value, model, None, unit, |ratio| ratio >= 1.0);
        Ok(())
    }

    fn model(&mut self) -> Result<()> {
        let mode = |mode| Command::Mode { mode, write_cache: Some(true) };
        control::send(&self.scratch.layout, &mode(Mode::Model), SWITCH_LIMIT)?;
        let before = self.stats(true)?;
        let short = (self.region_bytes / 16).min(20_000_000_000) / SECTOR_BYTES;
        for (depth, pages) in [(1, "depth 1"), (32, "depth 32")] {
            let full = self.workload(Pattern::Random, Operation::Read, 1, depth);
            self.compare(&format!("random read, 4 KiB, {pages}"), &full, "IOPS")?;
            let short = Workload { region_sectors: short, ..full };
            self.compare(&format!("random read, 4 KiB, {pages}, first 1/16"), &short, "IOPS")?;
        }
        let read = self.workload(Pattern::Sequential, Operation::Read, 256, 1);
        self.compare("sequential read, 1 MiB", &read, "MB/s")?;
        let mut write = self.workload(Pattern::Sequential, Operation::Write, 256, 1);
        write.region_sectors = self.written_sectors();
        self.compare("sequential write, 1 MiB, cache on", &write, "MB/s")?;
        self.empty_cache()?;
        let mut append = self.workload(Pattern::AppendFlush, Operation::Write, 1, 1);
        append.region_sectors = self.written_sectors();
        let appended = self.compare("append 4 KiB + flush", &append, "per s")?;
        if let Some(mechanics) = &self.profile.mechanics {
            let rotations = mechanics.rpm / 60.0;
            self.add("append 4 KiB + flush, limit: rotations", appended, Some(rotations), None, "per s", |r| r <= 1.01);
        }
        let after = self.stats(false)?;
        let limit = (self.profile.kind == Kind::Disk).then_some(CPU_LIMIT);
        self.add("CPU of the daemon", cpu_share(&before, &after), limit, None, "cores", |ratio| ratio <= 1.0);
        let late = after["late"]["late_share"].as_f64().context("statistics without late operations")?;
        self.add("late operations", late, Some(LATE_LIMIT), None, "share", |ratio| ratio <= 1.0);
        let errors = after["host_io_errors"].as_f64().context("statistics without errors")?;
        if errors > 0.0 {
            bail!("{errors} host I/O errors during the self-test; see {}", self.scratch.layout.log().display());
        }
        Ok(())
    }

    /// A row whose value must be the model's.
    fn compare(&mut self, name: &str, workload: &Workload, unit: &'static str) -> Result<f64> {
        self.empty_cache()?;
        let measured = self.measure(name, workload)?;
        let model = self.simulated(workload, measured.operations, unit)?;
        let (value, tolerance) = (rate(&measured, workload, unit), tolerance(self.quick));
        self.add(name, value, Some(model), Some(tolerance), unit, |ratio| (ratio - 1.0).abs() <= tolerance);
        Ok(value)
    }

    fn empty_cache(&self) -> Result<()> {
        for mode in [Mode::Bypass, Mode::Model] {
            control::send(&self.scratch.layout, &Command::Mode { mode, write_cache: None }, SWITCH_LIMIT)?;
        }
        Ok(())
    }

    fn measure(&self, name: &str, workload: &Workload) -> Result<real::Measured> {
        eprint!("{name} ...\r");
        let measured = real::run(&self.scratch.device, workload, &self.stop).with_context(|| name.to_owned())?;
        if self.stop.load(std::sync::atomic::Ordering::Relaxed) {
            bail!("interrupted");
        }
        Ok(measured)
    }

    /// The model's rate for the same operations, the mean over starting angles.
    fn simulated(&self, workload: &Workload, operations: u64, unit: &str) -> Result<f64> {
        let same = Workload { operations: Some(operations.max(1)), seconds: None, ..workload.clone() };
        let mut sum = 0.0;
        for seed in 0..ANGLES {
            let drive = new_drive(&self.profile, self.region_bytes, seed)?;
            let mut drive = drive.context("a profile without a model")?;
            drive.set_write_cache(true);
            let outcome = simulate(&mut drive, &same, 0).map_err(anyhow::Error::msg)?;
            sum += if unit == "MB/s" { outcome.mb_s } else { outcome.iops };
        }
        Ok(sum / ANGLES as f64)
    }

    fn stats(&self, reset: bool) -> Result<serde_json::Value> {
        control::send(&self.scratch.layout, &Command::Stats { reset }, Duration::from_secs(10))
    }

    fn add(
        &mut self,
        name: &str,
        measured: f64,
        model: Option<f64>,
        tolerance: Option<f64>,
        unit: &'static str,
        judge: impl Fn(f64) -> bool,
    ) {
        let ratio = model.map(|model| measured / model);
        let ok = ratio.is_none_or(judge);
        let shown = |value: Option<f64>, digits| value.map_or("-".to_owned(), |value| format!("{value:.digits$}"));
        let digits = if measured < 10.0 { 3 } else { 1 };
        let (value, model_shown) = (shown(Some(measured), digits), shown(model, digits));
        let verdict = if ok { "ok" } else { "OUTSIDE" };
        println!("{name:44} {value:>12} {model_shown:>12} {:>7}  {unit:8} {verdict}", shown(ratio, 3));
        self.rows.push(Row { name: name.to_owned(), measured, model, ratio, unit, tolerance, ok });
    }
}

fn tolerance(quick: bool) -> f64 {
    if quick { 0.10 } else { 0.05 }
}

fn rate(measured: &real::Measured, workload: &Workload, unit: &str) -> f64 {
    let per_s = measured.operations as f64 / measured.seconds.max(1e-9);
    if unit == "MB/s" { per_s * f64::from(workload.sectors) * SECTOR_BYTES as f64 / 1e6 } else { per_s }
}

/// CPU seconds per second between two statistics.
fn cpu_share(before: &serde_json::Value, after: &serde_json::Value) -> f64 {
    let difference = |name: &str| after[name].as_f64().unwrap_or(0.0) - before[name].as_f64().unwrap_or(0.0);
    difference("daemon_cpu_s") / difference("uptime_s").max(1e-9)
}
