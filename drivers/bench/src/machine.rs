//! On what machine and with which build something is measured, and whether anything disturbs it.

use std::path::Path;
use std::time::Duration;

/// The profile as the workspace says it; the environment may have said otherwise when this was built.
const MANIFEST: &str = include_str!("../../../Cargo.toml");
const LTO: Option<&str> = option_env!("CARGO_PROFILE_RELEASE_LTO");
/// Share of all CPU time that others may use before a warning.
const QUIET_SHARE: f64 = 0.02;

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// The value of `name: value` or `name = "value"` in a text.
fn value_of<'text>(text: &'text str, name: &str) -> Option<&'text str> {
    let after = |line: &'text str| line.strip_prefix(name)?.trim_start().strip_prefix([':', '=']);
    text.lines().find_map(after).map(|value| value.trim().trim_matches('"'))
}

/// Machine, kernel and build, in one line each.
pub fn describe(directory: &Path) -> String {
    let unknown = "unknown";
    let (cpus, memory) = (read("/proc/cpuinfo"), read("/proc/meminfo"));
    let model = value_of(&cpus, "model name").or_else(|| value_of(&cpus, "CPU part")).unwrap_or(unknown);
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let kernel = read("/proc/sys/kernel/osrelease");
    let huge_pages = read("/sys/kernel/mm/transparent_hugepage/enabled");
    let lto = LTO.or_else(|| value_of(MANIFEST, "lto")).unwrap_or("the default");
    let build = if cfg!(debug_assertions) { "with debug assertions" } else { "optimised" };
    format!(
        "machine: {cores} cores of {model}, {} of memory, kernel {}, transparent huge pages {}\nbuild: {build}, link-time optimisation {lto}\ndatabases: {}",
        value_of(&memory, "MemTotal").unwrap_or(unknown),
        kernel.trim(),
        huge_pages.trim(),
        directory.display()
    )
}

/// Seconds of CPU time since the start, in ticks, as `/proc/stat` says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CpuTimes {
    busy: u64,
    stolen: u64,
    all: u64,
}

impl CpuTimes {
    /// Now; none where there is no `/proc/stat`.
    pub fn now() -> Option<Self> {
        Self::parse(&read("/proc/stat"))
    }

    /// The line of all CPUs: user, nice, system, idle, waiting for the disk, interrupts of two kinds, stolen.
    fn parse(text: &str) -> Option<Self> {
        let line = text.lines().next()?.strip_prefix("cpu ")?;
        let numbers: Vec<u64> = line.split_whitespace().map_while(|number| number.parse().ok()).collect();
        let all: u64 = numbers.get(..8)?.iter().sum();
        let (idle, stolen) = (numbers[3] + numbers[4], numbers[7]);
        Some(Self { busy: all - idle - stolen, stolen, all })
    }

    /// Shares of all CPU time since then: busy, and stolen by other machines on the same host.
    fn shares_since(&self, before: &Self) -> (f64, f64) {
        let all = (self.all - before.all).max(1) as f64;
        ((self.busy - before.busy) as f64 / all, (self.stolen - before.stolen) as f64 / all)
    }

    /// Warns when other machines have taken CPU time away since then.
    pub fn warn_of_theft_since(before: Option<Self>, during: &str) {
        if let (Some(before), Some(now)) = (before, Self::now())
            && let (_, stolen) = now.shares_since(&before)
            && stolen > QUIET_SHARE
        {
            eprintln!("warning: {:.1} % of the CPU time was stolen during {during}: measure again", 100.0 * stolen);
        }
    }
}

/// Warns of what makes figures worthless: a debug build, and a machine that does something else.
pub fn warn() {
    if cfg!(debug_assertions) {
        eprintln!("warning: debug assertions are on; these figures mean nothing");
    }
    let load = read("/proc/loadavg");
    let before = CpuTimes::now();
    std::thread::sleep(Duration::from_secs(1));
    if let (Some(before), Some(now)) = (before, CpuTimes::now()) {
        let (busy, stolen) = now.shares_since(&before);
        if busy > QUIET_SHARE || stolen > QUIET_SHARE {
            eprintln!(
                "warning: the machine is not quiet: {:.0} % of its CPU time is used and {:.0} % stolen while nothing is measured (load average {})",
                100.0 * busy,
                100.0 * stolen,
                load.split_whitespace().next().unwrap_or("unknown")
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_cpu_time_leave_out_what_is_idle_or_stolen() {
        let parse = |text| CpuTimes::parse(text).unwrap();
        let before = parse("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 2 3 4 5 6 7 8\n");
        let after = parse("cpu  120 0 60 850 50 5 5 10 7 0\n");
        assert_eq!(after.shares_since(&before), (0.4, 0.1));
        assert_eq!((CpuTimes::parse("cpu 1 2 3"), CpuTimes::parse("")), (None, None));
        assert!(CpuTimes::now().is_some());
    }

    #[test]
    fn values_are_found_by_their_names() {
        let text = "model\t\t: 106\nmodel name\t: A CPU: fast\nlto = \"thin\"\n";
        assert_eq!(value_of(text, "model name"), Some("A CPU: fast"));
        assert_eq!((value_of(text, "lto"), value_of(text, "flags")), (Some("thin"), None));
        // The manifest says it where it is looked for.
        assert!(value_of(MANIFEST, "lto").is_some());
    }
}
