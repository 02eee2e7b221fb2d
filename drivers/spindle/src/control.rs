//! The control socket: one JSON object per line and direction.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::daemon::disk::{Disk, Mode};
use crate::layout::Layout;

const SOCKET: &str = "control.socket";
/// The longest line that is read.
const LINE_BYTES: u64 = 64 << 10;

/// A command to the daemon.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "lowercase", deny_unknown_fields)]
pub enum Command {
    /// Is it there? Answers with its process id.
    Ping,
    /// Statistics.
    Stats {
        /// Start the counters anew after reading them.
        #[serde(default)]
        reset: bool,
    },
    /// Switch.
    Mode {
        /// Into this mode.
        mode: Mode,
        /// And the write cache on or off; as it is when absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        write_cache: Option<bool>,
    },
    /// What the host's own path from a request to its reply takes, without the drive.
    Path {
        /// In nanoseconds.
        path_ns: u64,
    },
    /// Cut the power; answers with the bytes that the cache lost.
    PowerCut,
    /// Give it back.
    PowerOn,
}

/// The daemon's answer.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ok: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// The directory's socket by a short path: that of a socket has at most 107 bytes, that of a directory more.
fn socket_path(directory: &std::fs::File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd()))
}

/// Takes commands for `disk`, each connection on a thread of its own, until the process ends.
pub fn listen(layout: &Layout, disk: &Arc<Disk>) -> Result<()> {
    let directory = std::fs::File::open(layout.root())?;
    remove_socket(layout)?;
    let listener = UnixListener::bind(socket_path(&directory))
        .with_context(|| format!("cannot make the socket {}", layout.file(SOCKET).display()))?;
    let disk = Arc::clone(disk);
    std::thread::Builder::new().name("spindle-control".to_owned()).spawn(move || {
        for stream in listener.incoming().flatten() {
            let disk = Arc::clone(&disk);
            // Without a thread the connection is closed, which the other side reports.
            let _ = std::thread::Builder::new().name("spindle-command".to_owned()).spawn(move || serve(&disk, &stream));
        }
    })?;
    Ok(())
}

/// Removes the socket that a daemon left.
pub fn remove_socket(layout: &Layout) -> Result<()> {
    match std::fs::remove_file(layout.file(SOCKET)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).context("cannot remove the stale socket")
        }
        _ => Ok(()),
    }
}

fn serve(disk: &Disk, stream: &UnixStream) {
    // A client that sends nothing would keep its thread for ever.
    if stream.set_read_timeout(Some(Duration::from_secs(60))).is_err() {
        return;
    }
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        match std::io::Read::take(&mut reader, LINE_BYTES).read_line(&mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let answer =
            match serde_json::from_str(&line).context("not a command").and_then(|command| execute(disk, &command)) {
                Ok(value) => Answer { ok: Some(value), error: None },
                Err(error) => Answer { ok: None, error: Some(format!("{error:#}")) },
            };
        let Ok(text) = serde_json::to_string(&answer) else { return };
        if (&mut &*stream).write_all((text + "\n").as_bytes()).is_err() {
            return;
        }
    }
}

fn execute(disk: &Disk, command: &Command) -> Result<serde_json::Value> {
    Ok(match command {
        Command::Ping => serde_json::json!({"pid": std::process::id()}),
        Command::Stats { reset } => serde_json::to_value(disk.stats(*reset)?)?,
        Command::Mode { mode, write_cache } => {
            disk.switch(*mode, *write_cache)?;
            serde_json::json!({"mode": mode})
        }
        Command::Path { path_ns } => {
            disk.set_path(Duration::from_nanos(*path_ns));
            serde_json::json!({})
        }
        Command::PowerCut => serde_json::json!({"lost_bytes": disk.cut_power()?}),
        Command::PowerOn => {
            disk.power_on()?;
            serde_json::json!({})
        }
    })
}

/// Sends `command` to the daemon of the disk and returns its answer.
pub fn send(layout: &Layout, command: &Command, limit: Duration) -> Result<serde_json::Value> {
    let root = layout.root().display();
    let directory = std::fs::File::open(layout.root()).with_context(|| format!("{root}"))?;
    let mut stream = UnixStream::connect(socket_path(&directory)).with_context(|| {
        format!("no daemon answers for {root}: mount the disk first (spindle mount {root} --at MOUNTPOINT)")
    })?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    stream.write_all((serde_json::to_string(command)? + "\n").as_bytes()).context("the daemon does not listen")?;
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).with_context(|| {
        format!(
            "the daemon of {root} has not answered for {} s: it is stopped or hangs; spindle unmount {root} cleans up",
            limit.as_secs()
        )
    })?;
    if line.is_empty() {
        bail!("the daemon of {root} ended without an answer; {} may say why", layout.log().display());
    }
    let answer: Answer = serde_json::from_str(&line).context("the daemon's answer")?;
    match (answer.ok, answer.error) {
        (Some(value), None) => Ok(value),
        (_, error) => bail!("{}", error.unwrap_or_else(|| "an answer without contents".to_owned())),
    }
}
