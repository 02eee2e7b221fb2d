//! A disk for one test, taken down whatever happens, and sectors that tell what they are.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use spindle::daemon::buffer::Buffer;
use spindle::model::SECTOR_BYTES;
use tempfile::TempDir;

const SECTOR: usize = SECTOR_BYTES as usize;
/// After this a test is given up.
const LIMIT: Duration = Duration::from_secs(90);

/// The program under test.
pub fn spindle(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_spindle")).args(arguments).output().expect("spindle runs")
}

/// Runs a command that must succeed, and returns what it prints.
pub fn run(arguments: &[&str]) -> String {
    let output = spindle(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "spindle {arguments:?}: {error}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Runs a command that must fail with one line, and returns that.
pub fn fails(arguments: &[&str]) -> String {
    let output = spindle(arguments);
    assert!(!output.status.success(), "spindle {arguments:?} succeeded");
    let error = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    assert_eq!(error.lines().count(), 1, "{error}");
    error
}

/// A directory on a disk (not on tmpfs).
pub fn directory() -> TempDir {
    tempfile::Builder::new().prefix("disk-").tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory")
}

/// A disk. Dropping it takes it down.
pub struct TestDisk {
    directory: TempDir,
    watchdog: Option<mpsc::Sender<()>>,
}

impl TestDisk {
    /// Makes a disk, unless this machine cannot have one.
    pub fn new(profile: &str, region: &str) -> Option<Self> {
        if let Err(lacking) = spindle::device::check_machine() {
            assert!(std::env::var_os("SPINDLE_TESTS_REQUIRED").is_none_or(|v| v != "1"), "{lacking:#}");
            // Past the capture of the test harness: a skipped test is seen.
            let _ = writeln!(std::io::stderr(), "SKIPPED, not tested: {lacking:#}");
            return None;
        }
        let (watchdog, ended) = mpsc::channel();
        let disk = Self { directory: directory(), watchdog: Some(watchdog) };
        run(&["create", &disk.dir(), "--region-bytes", region, "--profile", profile]);
        let dir = disk.dir();
        std::thread::spawn(move || {
            if ended.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
                let _ = writeln!(std::io::stderr(), "a test on {dir} hangs; giving up");
                spindle(&["unmount", &dir]);
                std::process::abort();
            }
        });
        Some(disk)
    }

    /// Its directory, as an argument.
    pub fn dir(&self) -> String {
        self.path().join("disk").display().to_string()
    }

    /// A directory for the test's own files.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Brings up the block device.
    pub fn mount_raw(&self) -> PathBuf {
        PathBuf::from(run(&["mount", &self.dir(), "--raw"]))
    }

    /// Mounts a file system.
    pub fn mount(&self, more: &[&str]) -> PathBuf {
        let at = self.path().join("mnt");
        run(&[&["mount", &self.dir(), "--at", &at.display().to_string()], more].concat());
        at
    }

    /// Switches.
    pub fn mode(&self, mode: &str, write_cache: &str) {
        run(&["mode", &self.dir(), mode, "--write-cache", write_cache]);
    }

    /// Process id of the daemon.
    pub fn daemon(&self) -> i32 {
        let status: serde_json::Value = serde_json::from_str(&run(&["status", &self.dir(), "--json"])).expect("JSON");
        status["pid"].as_i64().expect("a daemon") as i32
    }

    /// Statistics.
    pub fn stats(&self) -> serde_json::Value {
        serde_json::from_str(&run(&["stats", &self.dir(), "--json"])).expect("JSON")
    }

    /// What must be true after taking down: nothing of the disk is left in the kernel.
    pub fn assert_gone(&self) {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        assert!(!mounts.contains(&self.path().display().to_string()), "{mounts}");
        let loops = Command::new("losetup").args(["--list", "--noheadings", "--output", "BACK-FILE"]).output();
        let loops = String::from_utf8(loops.expect("losetup runs").stdout).expect("UTF-8");
        assert!(!loops.contains(&self.path().display().to_string()), "{loops}");
    }
}

impl Drop for TestDisk {
    fn drop(&mut self) {
        let output = spindle(&["unmount", &self.dir()]);
        if !output.status.success() {
            let _ = writeln!(std::io::stderr(), "clean-up: {}", String::from_utf8_lossy(&output.stderr));
        }
        self.watchdog.take();
    }
}

/// Opens a block device or file past the page cache.
pub fn open_direct(path: &Path) -> File {
    let options = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(path);
    options.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Fills a sector so that it tells its number and version and shows any damage.
pub fn stamp(bytes: &mut [u8], sector: u64, version: u64) {
    bytes[..8].copy_from_slice(&sector.to_le_bytes());
    bytes[8..16].copy_from_slice(&version.to_le_bytes());
    let fill = (sector ^ version.wrapping_mul(0x9e37_79b9)) as u8;
    bytes[16..SECTOR - 4].fill(fill);
    let sum = crc32c::crc32c(&bytes[..SECTOR - 4]);
    bytes[SECTOR - 4..].copy_from_slice(&sum.to_le_bytes());
}

/// The version that a sector holds: 0 if it was never written.
pub fn version(bytes: &[u8], sector: u64) -> u64 {
    if bytes.iter().all(|byte| *byte == 0) {
        return 0;
    }
    let sum = u32::from_le_bytes(bytes[SECTOR - 4..].try_into().expect("4 bytes"));
    assert_eq!(crc32c::crc32c(&bytes[..SECTOR - 4]), sum, "sector {sector} is damaged");
    let number = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
    assert_eq!(number, sector, "another sector's contents");
    u64::from_le_bytes(bytes[8..16].try_into().expect("8 bytes"))
}

/// Writes one version into sectors that follow each other.
pub fn write_sectors(file: &File, first: u64, count: u64, version: u64) -> std::io::Result<()> {
    let mut buffer = Buffer::take(count as usize * SECTOR);
    for (sector, bytes) in (first..).zip(buffer.chunks_exact_mut(SECTOR)) {
        stamp(bytes, sector, version);
    }
    file.write_all_at(&buffer, first * SECTOR_BYTES)
}

/// Reads the versions of sectors that follow each other.
pub fn read_versions(file: &File, first: u64, count: u64) -> Vec<u64> {
    let mut buffer = Buffer::take(count as usize * SECTOR);
    file.read_exact_at(&mut buffer, first * SECTOR_BYTES).unwrap_or_else(|error| panic!("sector {first}: {error}"));
    (first..).zip(buffer.chunks_exact(SECTOR)).map(|(sector, bytes)| version(bytes, sector)).collect()
}
