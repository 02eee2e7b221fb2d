//! Mounting and unmounting a disk, whatever state the last user left it in.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;

use crate::control::{self, Command};
use crate::daemon::disk::Mode;
use crate::device::{self, Mkfs};
use crate::layout::Layout;
use crate::process::{self, wait_until};
use crate::profile::{Kind, Profile};

/// The daemon answers a ping at once, whatever the disk does.
const PING_LIMIT: Duration = Duration::from_secs(3);
/// Draining writes at most the write cache; the host may be busy.
pub const SWITCH_LIMIT: Duration = Duration::from_secs(120);

/// Whether a daemon serves the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Daemon {
    /// No.
    Absent,
    /// Yes.
    Answers,
    /// There is one, and it does not answer: stopped, or hanging.
    Silent,
}

/// What there is of a disk now.
#[derive(Debug, Serialize)]
pub struct Status {
    /// The directory.
    pub directory: PathBuf,
    /// Whether the daemon runs.
    pub daemon: Daemon,
    /// Its process id.
    pub pid: Option<i32>,
    /// Block devices backed by the disk.
    pub devices: Vec<PathBuf>,
    /// Where they are mounted.
    pub mountpoints: Vec<PathBuf>,
    /// Whether the daemon's file system is mounted.
    pub fuse_mounted: bool,
}

impl Status {
    /// Looks.
    pub fn of(layout: &Layout) -> Result<Self> {
        let devices = device::loops(layout)?;
        let mounts = device::mounts()?;
        let of_disk = mounts.iter().filter(|mount| devices.contains(&mount.source));
        Ok(Self {
            directory: layout.root().to_owned(),
            daemon: probe(layout)?,
            pid: process::recorded(layout).map(|daemon| daemon.pid),
            mountpoints: of_disk.map(|mount| mount.mountpoint.clone()).collect(),
            fuse_mounted: mounts.iter().any(|mount| mount.mountpoint == layout.fuse()),
            devices,
        })
    }

    fn has_leftovers(&self) -> bool {
        self.fuse_mounted || !self.devices.is_empty()
    }
}

fn probe(layout: &Layout) -> Result<Daemon> {
    if layout.try_daemon_lock()?.is_some() {
        return Ok(Daemon::Absent);
    }
    Ok(if control::send(layout, &Command::Ping, PING_LIMIT).is_ok() { Daemon::Answers } else { Daemon::Silent })
}

/// How to mount.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// Where; nothing stops at the block device.
    pub at: Option<PathBuf>,
    /// Which file system.
    pub mkfs: Mkfs,
    /// Whether the file system may rely on flushes.
    pub barriers: bool,
}

/// Brings the disk up, in mode `bypass`, and returns its block device. A disk that is up as asked is left as it is.
pub fn mount(layout: &Layout, options: &MountOptions) -> Result<PathBuf> {
    device::check_machine()?;
    let _lock = layout.command_lock()?;
    let root = layout.root().display();
    let mut status = Status::of(layout)?;
    match status.daemon {
        Daemon::Silent => {
            bail!("the daemon of {root} does not answer (stopped, or hanging): spindle unmount {root} first")
        }
        Daemon::Absent if status.has_leftovers() => {
            eprintln!("spindle: cleaning up after a daemon of {root} that died");
            take_down(layout, &status)?;
            status = Status::of(layout)?;
        }
        _ => {}
    }
    if let [device] = &status.devices[..] {
        let as_asked = match &options.at {
            Some(at) => status.mountpoints == [absolute(at)?],
            None => status.mountpoints.is_empty(),
        };
        if as_asked {
            return Ok(device.clone());
        }
        if !status.mountpoints.is_empty() {
            bail!("{root} is mounted already, at {:?}: spindle unmount {root} first", status.mountpoints);
        }
    }
    let result = bring_up(layout, options, &status);
    if result.is_err() && status.daemon == Daemon::Absent {
        // What failed is reported; that cleaning up failed as well, beside it.
        let cleaned = Status::of(layout).and_then(|status| take_down(layout, &status));
        cleaned.unwrap_or_else(|error| eprintln!("spindle: while cleaning up: {error:#}"));
    }
    result
}

fn bring_up(layout: &Layout, options: &MountOptions, status: &Status) -> Result<PathBuf> {
    let at = options.at.as_deref().map(mountpoint).transpose()?;
    if status.daemon == Daemon::Absent {
        start(layout)?;
    }
    let device = match status.devices.first() {
        Some(device) => device.clone(),
        None => device::attach(layout, is_rotational(layout)?)?,
    };
    let path_ns = device::path_of(&device)?.as_nanos() as u64;
    control::send(layout, &Command::Path { path_ns }, PING_LIMIT)?;
    if let Some(at) = at {
        let kind = device::make_file_system(&device, options.mkfs)?;
        device::mount(&device, &at, &kind, options.barriers)?;
    }
    Ok(device)
}

fn is_rotational(layout: &Layout) -> Result<bool> {
    Ok(Profile::load(&layout.description()?.profile)?.kind == Kind::Disk)
}

fn absolute(path: &Path) -> Result<PathBuf> {
    // Also of a directory that is not there yet.
    match path.canonicalize() {
        Ok(path) => Ok(path),
        Err(_) => std::path::absolute(path).with_context(|| format!("{}", path.display())),
    }
}

fn mountpoint(at: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(at).with_context(|| format!("cannot make the mount point {}", at.display()))?;
    let at = absolute(at)?;
    if let Some(other) = device::mounts()?.iter().find(|mount| mount.mountpoint == at) {
        bail!("{} is a mount point already ({} of type {})", at.display(), other.source.display(), other.kind);
    }
    Ok(at)
}

/// Starts the daemon in the background and waits until it serves.
fn start(layout: &Layout) -> Result<()> {
    let log = layout.log();
    let file = OpenOptions::new().create(true).write(true).truncate(true).open(&log);
    let file = file.with_context(|| format!("{}", log.display()))?;
    let program = std::env::current_exe().context("the path of this program")?;
    let mut command = std::process::Command::new(&program);
    command.args(["serve", "--background"]).arg(layout.root());
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    let mut child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
    let failed = |child: &mut Child| -> Result<bool> {
        if let Some(status) = child.try_wait()? {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            let last = said.lines().rfind(|line| line.starts_with("Error: ")).unwrap_or("it said nothing");
            bail!("the daemon did not start ({status}): {}", last.trim_start_matches("Error: "));
        }
        Ok(probe(layout)? == Daemon::Answers)
    };
    if !wait_until(Duration::from_secs(30), || failed(&mut child))? {
        bail!("the daemon has not become ready for 30 s; {} may say why", log.display());
    }
    Ok(())
}

/// Takes the disk down, in whatever state it is; what is left afterwards is the directory.
pub fn unmount(layout: &Layout) -> Result<()> {
    let _lock = layout.command_lock()?;
    take_down(layout, &Status::of(layout)?)
}

fn take_down(layout: &Layout, status: &Status) -> Result<()> {
    let root = layout.root().display();
    match status.daemon {
        Daemon::Answers => {
            // The rest is written at the host's speed.
            let powered = control::send(layout, &Command::Stats { reset: false }, PING_LIMIT)?["powered"] == true;
            if powered {
                let bypass = Command::Mode { mode: Mode::Bypass, write_cache: None };
                control::send(layout, &bypass, SWITCH_LIMIT)?;
            }
        }
        Daemon::Silent => {
            eprintln!("spindle: the daemon of {root} does not answer: aborting its connection and killing it");
            device::abort_fuse(&layout.fuse())?;
            match process::recorded(layout) {
                Some(daemon) => process::kill(daemon)?,
                None => bail!("the daemon of {root} holds its lock, and its process id is not known"),
            }
            if !wait_until(Duration::from_secs(10), || Ok(layout.try_daemon_lock()?.is_some()))? {
                bail!("the daemon of {root} has not ended for 10 s after SIGKILL");
            }
        }
        Daemon::Absent => {}
    }
    let connection = device::fuse_connection(&layout.fuse())?;
    release(layout, status, status.daemon != Daemon::Answers)?;
    // A copy of the mount in another mount namespace would keep it alive.
    if let Some(connection) = connection
        && !wait_until(Duration::from_secs(3), || Ok(layout.try_daemon_lock()?.is_some()))?
    {
        device::abort_connection(connection)?;
    }
    if !wait_until(Duration::from_secs(60), || Ok(layout.try_daemon_lock()?.is_some()))? {
        bail!("the daemon of {root} has not ended for 60 s after its file system was unmounted");
    }
    control::remove_socket(layout)?;
    Ok(())
}

/// File system, loop device, FUSE: in this order, or data that are on their way have nowhere to go.
fn release(layout: &Layout, status: &Status, force: bool) -> Result<()> {
    for at in status.mountpoints.iter().rev() {
        if !force {
            // Unmounting writes only where no other mount namespace has a copy of the mount.
            device::sync(at)?;
        }
        device::unmount(at, force)?;
    }
    let mut held = force;
    for loop_device in &status.devices {
        held |= !device::detach(loop_device, force)?;
    }
    if status.fuse_mounted {
        device::unmount(&layout.fuse(), held)?;
    }
    Ok(())
}

/// Gives the power back after a power cut, as a machine does that starts again: what the kernel still holds for the disk is
/// dropped before, and a file system that was mounted is mounted anew and recovers.
pub fn power_on(layout: &Layout) -> Result<PathBuf> {
    let _lock = layout.command_lock()?;
    let status = Status::of(layout)?;
    if status.daemon != Daemon::Answers {
        bail!(
            "{0} has no daemon that answers: spindle mount {0} brings the disk up, with power",
            layout.root().display()
        );
    }
    let powered = control::send(layout, &Command::Stats { reset: false }, PING_LIMIT)?["powered"] == true;
    if let (true, Some(device)) = (powered, status.devices.first()) {
        return Ok(device.clone());
    }
    // Before the power is back: dirty pages of before the cut must not be written after it.
    for at in status.mountpoints.iter().rev() {
        device::unmount(at, false)?;
    }
    for loop_device in &status.devices {
        if !device::detach(loop_device, false)? {
            bail!(
                "{} has another user: what it still holds must not reach the disk; end that first",
                loop_device.display()
            );
        }
    }
    control::send(layout, &Command::PowerOn, SWITCH_LIMIT)?;
    let bypass = Command::Mode { mode: Mode::Bypass, write_cache: None };
    control::send(layout, &bypass, SWITCH_LIMIT)?;
    let device = device::attach(layout, is_rotational(layout)?)?;
    for at in &status.mountpoints {
        let kind = device::make_file_system(&device, Mkfs::Keep)?;
        device::mount(&device, at, &kind, true)?;
    }
    Ok(device)
}
