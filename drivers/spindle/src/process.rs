//! Processes: the daemon's identity, helpers that must end in time, who holds a mount.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::layout::Layout;

/// The daemon as it recorded itself; a process id alone may be another's by now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recorded {
    /// Process id.
    pub pid: i32,
    /// Start time in clock ticks since boot (field 22 of `/proc/<pid>/stat`).
    pub start_ticks: u64,
}

/// Writes this process's identity into the disk's directory.
pub fn record(layout: &Layout) -> Result<()> {
    let pid = std::process::id() as i32;
    let recorded = Recorded { pid, start_ticks: start_ticks(pid).context("/proc is not mounted")? };
    let path = layout.file("daemon.json");
    fs::write(&path, serde_json::to_string(&recorded)? + "\n").with_context(|| format!("{}", path.display()))
}

/// The daemon that recorded itself, if that process still lives.
pub fn recorded(layout: &Layout) -> Option<Recorded> {
    let text = fs::read_to_string(layout.file("daemon.json")).ok()?;
    let recorded: Recorded = serde_json::from_str(&text).ok()?;
    (start_ticks(recorded.pid) == Some(recorded.start_ticks)).then_some(recorded)
}

/// Kills the recorded daemon.
pub fn kill(recorded: Recorded) -> Result<()> {
    let pid = Pid::from_raw(recorded.pid).context("the recorded process id is 0")?;
    if start_ticks(recorded.pid) == Some(recorded.start_ticks) {
        kill_process(pid, Signal::KILL).with_context(|| format!("cannot kill process {}", recorded.pid))?;
    }
    Ok(())
}

fn start_ticks(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in brackets, may hold anything; field 3 follows the last bracket.
    let mut fields = stat.rsplit_once(") ")?.1.split_whitespace();
    let state = fields.next()?;
    if state == "Z" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Runs a helper and returns what it prints. One that does not end in time is killed, and not waited for: it may hang in
/// the kernel.
pub fn run(program: &str, arguments: &[&str], limit: Duration) -> Result<String> {
    let shown = format!("{program} {}", arguments.join(" "));
    let mut output = tempfile::tempfile().context("no temporary file for a helper's output")?;
    let mut command = Command::new(program);
    // Debian keeps these in directories that a user's PATH may lack.
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin:/usr/bin:/bin")).env("LC_ALL", "C");
    command.args(arguments).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output.try_clone()?);
    let mut child = command.spawn().with_context(|| format!("cannot run {program}: is it installed?"))?;
    let until = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > until {
            // It may have ended just now.
            let _ = child.kill();
            bail!("{shown}: has not ended for {} s", limit.as_secs());
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let mut text = String::new();
    std::io::Seek::rewind(&mut output)?;
    std::io::Read::read_to_string(&mut output, &mut text).with_context(|| format!("output of {shown}"))?;
    if !status.success() {
        bail!("{shown}: {} ({status})", text.trim().replace('\n', "; "));
    }
    Ok(text)
}

/// Processes that have something open below `path`, as `name (pid)`.
pub fn holders(path: &Path) -> Vec<String> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let holds = |pid: &i32| {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let links = ["cwd", "root"].map(|name| PathBuf::from(format!("/proc/{pid}/{name}")));
        let mut open = descriptors.map(|entry| entry.path()).chain(links);
        open.any(|link| fs::read_link(link).is_ok_and(|target| target.starts_with(path)))
    };
    let name = |pid: i32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned();
    pids.filter(holds).map(|pid| format!("{} ({pid})", name(pid))).collect()
}

/// Waits until `condition` holds, and says whether it did in time.
pub fn wait_until(limit: Duration, mut condition: impl FnMut() -> Result<bool>) -> Result<bool> {
    let until = Instant::now() + limit;
    loop {
        if condition()? {
            return Ok(true);
        }
        if Instant::now() > until {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_helper_that_hangs_is_given_up() {
        let error = run("sleep", &["60"], Duration::from_millis(100)).map_err(|e| e.to_string());
        assert!(error.is_err_and(|e| e.contains("sleep 60: has not ended")));
    }

    #[test]
    fn a_helper_that_fails_is_quoted() {
        let error = run("ls", &["/nonexistent"], Duration::from_secs(20)).map_err(|e| e.to_string());
        assert!(error.is_err_and(|e| e.contains("/nonexistent") && e.contains("No such file")));
    }

    #[test]
    fn another_process_with_the_recorded_id_is_not_ours() {
        let me = std::process::id() as i32;
        let ticks = start_ticks(me).expect("this process is in /proc");
        assert!(kill(Recorded { pid: me, start_ticks: ticks + 1 }).is_ok(), "and this test goes on");
    }
}
