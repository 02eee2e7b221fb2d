//! Loop device, file system, mounts: what lies between the daemon's file and the servers' directory.

use std::fs;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::layout::Layout;
use crate::model::SECTOR_BYTES;
use crate::process::{holders, run, wait_until};

/// Making a file system in `bypass` takes a second or two; on a busy host more.
const MKFS_LIMIT: Duration = Duration::from_secs(300);
const HELPER_LIMIT: Duration = Duration::from_secs(60);

/// Which file system to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mkfs {
    /// Make ext4, whatever is there.
    Ext4,
    /// Make xfs, whatever is there.
    Xfs,
    /// Keep what is there; make ext4 when there is nothing.
    Keep,
}

/// One line of `/proc/self/mountinfo`.
#[derive(Debug, Clone)]
pub struct Mount {
    /// Minor number of the mounted device.
    pub minor: u32,
    /// Where.
    pub mountpoint: PathBuf,
    /// What.
    pub source: PathBuf,
    /// Type of the file system.
    pub kind: String,
}

/// The mounts that this process sees. Reads no mounted file system, so a frozen one does not hang it.
pub fn mounts() -> Result<Vec<Mount>> {
    mounts_of("self").context("/proc/self/mountinfo")
}

/// The mounts that another process sees.
fn mounts_of(process: &str) -> std::io::Result<Vec<Mount>> {
    let text = fs::read_to_string(format!("/proc/{process}/mountinfo"))?;
    Ok(text.lines().filter_map(parse_mount).collect())
}

/// Takes copies of a mount out of other mount namespaces: whoever made one meanwhile (a container, a service of its own) would
/// hold the disk for as long as it lives, without ever using it. One that cannot be taken out, because something is mounted over
/// it there, still holds the disk afterwards.
fn unmount_copies(mount: &Mount) {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    let mut seen = vec![namespace("self")];
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(process) = entry.file_name().to_str().filter(|name| name.parse::<u32>().is_ok()).map(str::to_owned)
        else {
            continue;
        };
        let found = namespace(&process);
        if found.is_none() || seen.contains(&found) {
            continue;
        }
        seen.push(found);
        let copies = mounts_of(&process).unwrap_or_default();
        for copy in copies.iter().filter(|copy| copy.minor == mount.minor && copy.source == mount.source) {
            let (place, target) = (format!("--mount=/proc/{process}/ns/mnt"), copy.mountpoint.to_string_lossy());
            let arguments = [&place, "--", "umount", "--no-canonicalize", "--internal-only", "--lazy", &target];
            let _ = run("nsenter", &arguments, HELPER_LIMIT);
        }
    }
}

fn parse_mount(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let (left, right): (Vec<&str>, Vec<&str>) = (left.split(' ').collect(), right.split(' ').collect());
    let minor = left.get(2)?.split_once(':')?.1.parse().ok()?;
    let mountpoint = PathBuf::from(unescape(left.get(4)?));
    Some(Mount {
        minor,
        mountpoint,
        source: PathBuf::from(unescape(right.get(1)?)),
        kind: (*right.first()?).to_owned(),
    })
}

/// The kernel writes space, tab, newline and backslash as octal escapes.
fn unescape(text: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.iter().fold(text.to_owned(), |text, (escape, character)| text.replace(escape, character))
}

/// Says what this machine lacks for an emulated disk.
pub fn check_machine() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("an emulated disk needs root (mounts, loop devices): run as root, or use DISK=none");
    }
    for (node, module) in [("/dev/fuse", "fuse"), ("/dev/loop-control", "loop")] {
        if let Err(error) = fs::OpenOptions::new().read(true).write(true).open(node) {
            bail!(
                "cannot open {node} ({error}): modprobe {module}; in a container, pass the device in; or use DISK=none"
            );
        }
    }
    Ok(())
}

/// Loop devices that are backed by the disk's file, but those that only wait for their last user to end.
pub fn loops(layout: &Layout) -> Result<Vec<PathBuf>> {
    let wanted = layout.fuse_file();
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/block").context("/sys/block")?.flatten() {
        let name = entry.file_name();
        let backing = fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
        let backing = backing.trim_end_matches('\n');
        let going = fs::read_to_string(entry.path().join("loop/autoclear")).is_ok_and(|clear| clear.trim() == "1");
        if !going && Path::new(backing.strip_suffix(" (deleted)").unwrap_or(backing)) == wanted {
            found.push(Path::new("/dev").join(name));
        }
    }
    found.sort();
    Ok(found)
}

/// Attaches the disk's file to a loop device that behaves as the drive's host adapter would.
pub fn attach(layout: &Layout, rotational: bool) -> Result<PathBuf> {
    let file = layout.fuse_file();
    let arguments = ["--find", "--show", "--sector-size", "4096", "--direct-io=on", path(&file)?];
    let printed = run("losetup", &arguments, HELPER_LIMIT).context(
        "no loop device: modprobe loop; in a container, /dev/loop-control and a free /dev/loopN must be passed in",
    )?;
    let device = PathBuf::from(printed.trim());
    if let Err(error) = tune(&device, rotational) {
        if let Err(detaching) = detach(&device, false) {
            eprintln!("spindle: {detaching:#}");
        }
        return Err(error);
    }
    Ok(device)
}

fn tune(device: &Path, rotational: bool) -> Result<()> {
    let sys = Path::new("/sys/block").join(device.file_name().context("a loop device without a name")?);
    let dio = fs::read_to_string(sys.join("loop/dio")).unwrap_or_default();
    if dio.trim() != "1" {
        bail!(
            "{}: direct I/O is off, so the queue would have a depth of 1; this kernel's loop driver refuses it",
            device.display()
        );
    }
    let settings = [
        ("scheduler", "mq-deadline"),
        ("rotational", if rotational { "1" } else { "0" }),
        ("wbt_lat_usec", "0"),
        ("max_sectors_kb", "512"),
        ("nr_requests", "64"),
    ];
    for (name, value) in settings {
        let setting = sys.join("queue").join(name);
        if name == "wbt_lat_usec" && fs::read_to_string(&setting).is_err() {
            continue; // A kernel without write-back throttling.
        }
        let failed = || format!("{} cannot be set to {value}", setting.display());
        fs::write(&setting, value).with_context(failed)?;
        let now = fs::read_to_string(&setting).with_context(failed)?;
        let now = now.trim();
        if now != value && !now.contains(&format!("[{value}]")) {
            bail!("{} is {now} after it was set to {value}", setting.display());
        }
    }
    Ok(())
}

/// Detaches a loop device, and waits until it is free; `force` leaves that to its last user when the disk is gone.
pub fn detach(device: &Path, force: bool) -> Result<bool> {
    run("losetup", &["--detach", path(device)?], HELPER_LIMIT)?;
    let backing = Path::new("/sys/block").join(device.file_name().unwrap_or_default()).join("loop/backing_file");
    // The kernel waits for the last user of an open device.
    let limit = Duration::from_secs(if force { 2 } else { 10 });
    if wait_until(limit, || Ok(!backing.exists()))? {
        return Ok(true);
    }
    let held_by = holders(device).join(", ");
    if !force && !held_by.is_empty() {
        bail!("{} stays in use after losetup --detach; held by: {held_by}", device.display());
    }
    let held_by = if held_by.is_empty() { "a mount namespace of its own" } else { &held_by };
    eprintln!("spindle: {} is free when its last user has ended ({held_by})", device.display());
    Ok(false)
}

/// The file system on the device, if there is one.
fn file_system(device: &Path) -> Result<Option<String>> {
    match run("blkid", &["--probe", "--match-tag", "TYPE", "--output", "value", path(device)?], HELPER_LIMIT) {
        Ok(kind) => Ok(Some(kind.trim().to_owned())),
        // blkid ends with 2 when it finds nothing.
        Err(error) if format!("{error:#}").contains("exit status: 2") => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes a file system when it is asked for or when there is none; returns its type.
pub fn make_file_system(device: &Path, mkfs: Mkfs) -> Result<String> {
    let kind = match (mkfs, file_system(device)?) {
        (Mkfs::Keep, Some(kind)) if ["ext4", "xfs"].contains(&kind.as_str()) => return Ok(kind),
        (Mkfs::Keep, Some(kind)) => bail!("there is {kind} on the disk, neither ext4 nor xfs; --mkfs ext4 replaces it"),
        (Mkfs::Keep | Mkfs::Ext4, _) => "ext4",
        (Mkfs::Xfs, _) => "xfs",
    };
    let device = path(device)?;
    if kind == "ext4" {
        // Everything is written now, in bypass, not by a background thread during a measurement; few inodes, because
        // databases have few files.
        let extended = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";
        run("mkfs.ext4", &["-q", "-F", "-m", "0", "-i", "1048576", "-E", extended, device], MKFS_LIMIT)?;
    } else {
        run("mkfs.xfs", &["-q", "-f", "-K", device], MKFS_LIMIT).context("mkfs.xfs is in the package xfsprogs")?;
    }
    Ok(kind.to_owned())
}

/// Mounts the device.
pub fn mount(device: &Path, at: &Path, kind: &str, barriers: bool) -> Result<()> {
    let options = match (kind, barriers) {
        (_, true) => "noatime",
        ("ext4", false) => "noatime,barrier=0",
        (kind, false) => bail!("{kind} cannot be mounted without barriers; only ext4 can, for tests"),
    };
    run("mount", &["-t", kind, "-o", options, path(device)?, path(at)?], HELPER_LIMIT).map(drop)
}

/// Unmounts; `force` detaches a mount that is in use, for one whose disk is gone.
pub fn unmount(at: &Path, force: bool) -> Result<()> {
    let gone = || -> Result<bool> { Ok(mounts()?.iter().all(|mount| mount.mountpoint != at)) };
    let mounted = mounts()?.into_iter().rev().find(|mount| mount.mountpoint == at);
    // Neither looks at the path nor calls helpers: both can hang when the disk does.
    let plain = || run("umount", &["--no-canonicalize", "--internal-only", path(at)?], HELPER_LIMIT);
    let mut last = None;
    // Something like an indexer may look at it for a moment.
    let limit = Duration::from_secs(2);
    let done = wait_until(limit, || {
        last = plain().err();
        Ok(last.is_none() || gone()?)
    })?;
    let Some(error) = last.filter(|_| !done) else {
        mounted.iter().for_each(unmount_copies);
        return Ok(());
    };
    let held_by = holders(at).join(", ");
    if !force {
        bail!("{} is in use by: {held_by}; stop them first ({error:#})", at.display());
    }
    eprintln!("spindle: {} was still in use by: {held_by}; detached, end them", at.display());
    run("umount", &["--no-canonicalize", "--internal-only", "--lazy", path(at)?], HELPER_LIMIT).map(drop)
}

/// How long the way of a small read takes through block layer, loop device, FUSE and daemon, wake-ups included: the median of reads of
/// the end of the device, which is a hole of the image as long as nobody has written there. With pauses, as between reads of a disk.
pub fn path_of(device: &Path) -> Result<Duration> {
    const READS: u64 = 40;
    let named = || format!("{}", device.display());
    let file = crate::daemon::image::open_direct(device)?;
    let bytes = (&file).seek(SeekFrom::End(0)).with_context(named)?;
    let mut buffer = crate::daemon::buffer::Buffer::take(SECTOR_BYTES as usize);
    let mut times = Vec::new();
    for read in 1..=READS {
        std::thread::sleep(Duration::from_millis(3));
        let before = Instant::now();
        file.read_exact_at(&mut buffer, bytes - read * SECTOR_BYTES).with_context(named)?;
        times.push(before.elapsed());
    }
    times.sort();
    Ok(times[times.len() / 2])
}

/// Writes everything that the kernel holds for the file system at `at`; an error there is the disk's, for example without power.
pub fn sync(at: &Path) -> Result<()> {
    let place = fs::File::open(at).with_context(|| format!("{}", at.display()))?;
    if let Err(error) = rustix::fs::syncfs(&place) {
        eprintln!("spindle: {} could not be written completely: {error}", at.display());
    }
    Ok(())
}

/// Aborts the FUSE connection that is mounted at `at`: whoever waits for it gets an error.
pub fn abort_fuse(at: &Path) -> Result<()> {
    fuse_connection(at)?.map_or(Ok(()), abort_connection)
}

/// The FUSE connection that is mounted at `at`.
pub fn fuse_connection(at: &Path) -> Result<Option<u32>> {
    Ok(mounts()?.into_iter().find(|mount| mount.mountpoint == at).map(|mount| mount.minor))
}

/// As [`abort_fuse`], for a connection that may be mounted nowhere any more; one that is gone is fine.
pub fn abort_connection(connection: u32) -> Result<()> {
    let connections = Path::new("/sys/fs/fuse/connections");
    let abort = connections.join(connection.to_string()).join("abort");
    if fs::read_dir(connections).is_ok_and(|mut entries| entries.next().is_none()) {
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("fusectl", connections, "fusectl", flags, None).context("cannot mount fusectl")?;
    }
    match fs::write(&abort, "1") {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        written => written.with_context(|| format!("{}", abort.display())),
    }
}

fn path(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_is_understood() {
        let line = "36 35 0:57 / /tmp/a\\040b rw,noatime shared:1 - fuse spindle rw,user_id=0";
        let mount = parse_mount(line).expect("a mount");
        assert_eq!((mount.minor, mount.kind.as_str()), (57, "fuse"));
        assert_eq!((mount.mountpoint, mount.source), (PathBuf::from("/tmp/a b"), PathBuf::from("spindle")));
    }
}
