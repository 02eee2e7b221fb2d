//! The directory that is a disk: what lies where in it, and the locks that keep two processes apart.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::daemon::disk::new_drive;
use crate::daemon::image::open_direct;
use crate::model::SECTOR_BYTES;
use crate::profile::Profile;

const FORMAT: u32 = 1;
/// Free space below which a disk is not worth making: a file system and its journal would not fit.
const SMALLEST_FREE_BYTES: u64 = 512 << 20;

/// `spindle.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// Version of this file.
    pub format: u32,
    /// Name of a built-in profile, or path of one.
    pub profile: String,
    /// Size of the disk.
    pub region_bytes: u64,
    /// Seed of the model.
    pub seed: u64,
}

/// Path of a disk's directory, absolute.
#[derive(Debug, Clone)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    /// Makes the directory of a new disk. An equal disk that is there already is left as it is.
    pub fn create(directory: &Path, profile: &str, region_bytes: u64, seed: u64) -> Result<Self> {
        if region_bytes == 0 || !region_bytes.is_multiple_of(SECTOR_BYTES) {
            bail!("--region-bytes {region_bytes}: a disk has a multiple of {SECTOR_BYTES} bytes");
        }
        // A profile by path is found from anywhere afterwards.
        let profile_path = Path::new(profile).canonicalize();
        let is_built_in = Profile::built_in().contains(&profile);
        let profile = match profile_path {
            Ok(path) if !is_built_in => path.display().to_string(),
            _ => profile.to_owned(),
        };
        let loaded = Profile::load(&profile).with_context(|| format!("--profile {profile}"))?;
        new_drive(&loaded, region_bytes, seed).with_context(|| format!("--region-bytes {region_bytes}"))?;
        fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        let layout = Self { root: directory.canonicalize().with_context(|| format!("{}", directory.display()))? };
        let wanted = Description { format: FORMAT, profile, region_bytes, seed };
        if layout.file("spindle.json").exists() {
            let there = layout.description()?;
            let same = serde_json::to_value(&there)? == serde_json::to_value(&wanted)?;
            if !same {
                bail!(
                    "{} is a disk already, of other settings ({there:?}); remove it or take another directory",
                    directory.display()
                );
            }
            return Ok(layout);
        }
        layout.make_image(region_bytes)?;
        // Last, and by renaming: a directory with this file is a complete disk.
        let new = layout.file("spindle.json.new");
        fs::write(&new, serde_json::to_string_pretty(&wanted)? + "\n").with_context(|| format!("{}", new.display()))?;
        fs::rename(&new, layout.file("spindle.json")).with_context(|| format!("{}", new.display()))?;
        Ok(layout)
    }

    fn make_image(&self, region_bytes: u64) -> Result<()> {
        let path = self.image();
        let host = rustix::fs::statfs(&self.root).with_context(|| format!("{}", self.root.display()))?;
        if host.f_type == libc::TMPFS_MAGIC {
            bail!(
                "{} is on tmpfs: the disk's contents would lie in memory; take a directory on a disk",
                self.root.display()
            );
        }
        let free_bytes = host.f_bavail * host.f_bsize as u64;
        if free_bytes < SMALLEST_FREE_BYTES.min(region_bytes) {
            bail!(
                "{} has {free_bytes} bytes free, too few for a disk: make room or take another directory",
                self.root.display()
            );
        }
        if free_bytes < region_bytes {
            let (region, free) = (region_bytes >> 20, free_bytes >> 20);
            eprintln!(
                "spindle: the image can grow to {region} MiB and {free} MiB are free: writes beyond that will fail"
            );
        }
        let file = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
        file.set_len(region_bytes).with_context(|| format!("{} of {region_bytes} bytes", path.display()))?;
        open_direct(&path).map(drop)
    }

    /// Opens the directory of a disk that exists.
    pub fn open(directory: &Path) -> Result<Self> {
        let root = directory.canonicalize().with_context(|| format!("{}", directory.display()))?;
        let layout = Self { root };
        if !layout.file("spindle.json").exists() {
            bail!(
                "{} is not a disk (no spindle.json); make one with: spindle create {0} --profile hdd-7200",
                directory.display()
            );
        }
        layout.description()?;
        Ok(layout)
    }

    /// What the disk is.
    pub fn description(&self) -> Result<Description> {
        let path = self.file("spindle.json");
        let text = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
        let description: Description = serde_json::from_str(&text).with_context(|| format!("{}", path.display()))?;
        if description.format != FORMAT {
            bail!("{} has format {}, this spindle knows {FORMAT}", path.display(), description.format);
        }
        Ok(description)
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The platters' contents.
    pub fn image(&self) -> PathBuf {
        self.file("disk.img")
    }

    /// Where the daemon's file system is mounted.
    pub fn fuse(&self) -> PathBuf {
        self.file("fuse")
    }

    /// The file that the loop device is backed by.
    pub fn fuse_file(&self) -> PathBuf {
        self.fuse().join(crate::daemon::fuse::FILE_NAME)
    }

    /// What the daemon prints.
    pub fn log(&self) -> PathBuf {
        self.file("daemon.log")
    }

    /// A file of the directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Held by the daemon as long as it lives; `None` when another holds it.
    pub fn try_daemon_lock(&self) -> Result<Option<File>> {
        self.try_lock("daemon.lock")
    }

    /// Held by a command that changes mounts; waits a while for another one to end.
    pub fn command_lock(&self) -> Result<File> {
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(lock) = self.try_lock("command.lock")? {
                return Ok(lock);
            }
            if Instant::now() > until {
                bail!("another spindle command has been working on {} for 30 s", self.root.display());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn try_lock(&self, name: &str) -> Result<Option<File>> {
        let path = self.file(name);
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let file = file.with_context(|| format!("{}", path.display()))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot lock {}", path.display())),
        }
    }
}
