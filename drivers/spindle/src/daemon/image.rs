//! The file that holds the platters' contents, past the page cache.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, bail};

/// The backing file, opened for direct I/O: through the page cache the host would hold everything twice, and memory that
/// the systems' budgets do not count.
#[derive(Debug)]
pub struct Image {
    file: File,
    bytes: u64,
    errors: AtomicU64,
}

impl Image {
    /// Opens `path`, which holds `bytes`.
    pub fn open(path: &Path, bytes: u64) -> Result<Self> {
        let file = open_direct(path)?;
        let found = file.metadata().with_context(|| format!("{}", path.display()))?.len();
        if found != bytes {
            bail!(
                "{} has {found} bytes and the disk {bytes}: the image is of another disk, or cut off",
                path.display()
            );
        }
        Ok(Self { file, bytes, errors: AtomicU64::new(0) })
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Host I/O that failed so far.
    pub fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// Reads `buffer`, which is aligned, from `offset`.
    pub fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.counted("read", offset, buffer.len(), self.file.read_exact_at(buffer, offset))
    }

    /// Writes `buffer`, which is aligned, to `offset`.
    pub fn write(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        self.counted("write", offset, buffer.len(), self.file.write_all_at(buffer, offset))
    }

    /// Makes what was written durable on the host.
    pub fn sync(&self) -> io::Result<()> {
        self.counted("sync", 0, 0, self.file.sync_data())
    }

    fn counted(&self, what: &str, offset: u64, bytes: usize, result: io::Result<()>) -> io::Result<()> {
        if let Err(error) = &result
            && self.errors.fetch_add(1, Ordering::Relaxed) < 100
        {
            eprintln!("spindle: {what} of {bytes} bytes at {offset} of the image failed: {error}");
        }
        result
    }
}

/// Opens `path` for direct I/O, or says that its file system refuses that.
pub fn open_direct(path: &Path) -> Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(path).map_err(|error| {
        let explained = match error.raw_os_error() {
            Some(libc::EINVAL) => "its file system refuses O_DIRECT; put the disk on ext4 or xfs",
            _ => "cannot open it",
        };
        anyhow::Error::new(error).context(format!("{}: {explained}", path.display()))
    })
}
