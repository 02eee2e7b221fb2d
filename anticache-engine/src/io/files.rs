//! The file layer: everything that the engine stores goes through [`Files`] and [`DiskFile`], so that tests can run the same engine on a
//! simulated disk ([`super::simulated`]).
//!
//! What is promised after a power cut, by both implementations: the bytes of a file after [`DiskFile::sync`], its name after [`Files::sync_dir`] of its
//! directory; neither promises the other.

use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use super::ring::IoRing;
use super::simulated::SimulatedHandle;
use super::{AlignedBuf, DIRECT_IO_ALIGN_BYTES, aligned_buf};

/// A place to store files.
pub trait Files: Send + Sync + Debug {
    /// A new file, or an existing one made empty, for reading and writing past the page cache. A file system that refuses direct I/O is an error,
    /// never a silent fall-back: the page cache would serve evicted data from memory that the budget does not know of (design, fairness rule 2).
    ///
    /// # Errors
    /// What the system says, with advice where direct I/O is refused.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// An existing file, as it is, for reading and writing past the page cache.
    ///
    /// # Errors
    /// As [`Files::create`], and when there is none.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// Names of everything in a directory, sorted.
    ///
    /// # Errors
    /// What the system says.
    fn list(&self, directory: &Path) -> io::Result<Vec<String>>;

    /// Gives a file another name in one step, replacing what had that name; durable after [`Files::sync_dir`].
    ///
    /// # Errors
    /// What the system says.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file; durable after [`Files::sync_dir`]. Whoever has it open can still use it.
    ///
    /// # Errors
    /// What the system says.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Whether there is a file or directory of this name.
    ///
    /// # Errors
    /// What the system says, other than that there is none.
    fn exists(&self, path: &Path) -> io::Result<bool>;

    /// Creates a directory and those above it where they are missing; each durable after [`Files::sync_dir`] of the one above it.
    ///
    /// # Errors
    /// What the system says.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a directory durable.
    ///
    /// # Errors
    /// What the system says.
    fn sync_dir(&self, directory: &Path) -> io::Result<()>;

    /// Keeps everybody else out who asks for the same, until the lock is dropped or the process has ended; none = somebody has it.
    ///
    /// # Errors
    /// What the system says.
    fn lock(&self, directory: &Path) -> io::Result<Option<DirectoryLock>>;

    /// A ring for at most `depth` operations in flight on files of this place.
    ///
    /// # Errors
    /// When the kernel refuses io_uring (too old, or disabled by `kernel.io_uring_disabled` or a seccomp filter).
    fn ring(&self, depth: u32) -> io::Result<IoRing>;

    /// Whether this is a simulation, in which everything must happen in an order that the seed decides: nothing is done by threads beside.
    fn is_simulated(&self) -> bool {
        false
    }
}

/// A directory that is nobody else's. The kernel's belongs to the open directory, so it ends with the process that has it, however that ends.
#[derive(Debug)]
pub struct DirectoryLock {
    /// None on a simulated disk, which has one process at a time.
    _directory: Option<File>,
}

impl DirectoryLock {
    pub(super) fn simulated() -> Self {
        Self { _directory: None }
    }
}

/// An open file. Buffers, offsets and lengths of reads and writes are multiples of [`DIRECT_IO_ALIGN_BYTES`].
pub trait DiskFile: Send + Sync + Debug {
    /// Reads what lies at `offset` up to the end of the buffer or of the file; the number of bytes read.
    ///
    /// # Errors
    /// What the system says.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all of `bytes` at `offset`; durable after [`DiskFile::sync`].
    ///
    /// # Errors
    /// What the system says; part of it may have been written then.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes content and length durable. After an error nothing written before is ever certain to be: a later success does not cover it.
    ///
    /// # Errors
    /// What the system says.
    fn sync(&self) -> io::Result<()>;

    /// Cuts the file, or lengthens it with zeros.
    ///
    /// # Errors
    /// What the system says.
    fn set_len(&self, bytes: u64) -> io::Result<()>;

    /// Length in bytes.
    ///
    /// # Errors
    /// What the system says.
    fn len(&self) -> io::Result<u64>;

    /// Whether it has no bytes.
    ///
    /// # Errors
    /// As [`DiskFile::len`].
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Reserves the first `bytes` of the file, lengthening it with zeros where it is shorter.
    ///
    /// # Errors
    /// When the disk is full, and what else the system says.
    fn allocate(&self, bytes: u64) -> io::Result<()>;

    /// How a ring addresses the file.
    fn handle(&self) -> Handle<'_>;
}

/// How a ring addresses a file.
#[derive(Debug, Clone, Copy)]
pub enum Handle<'file> {
    /// A file of the kernel.
    Kernel(BorrowedFd<'file>),
    /// A file of a simulated disk.
    Simulated(SimulatedHandle),
}

/// The kernel's files.
#[derive(Debug, Clone, Copy, Default)]
pub struct KernelFiles {
    inspecting: bool,
}

impl KernelFiles {
    /// Past the page cache, as the engine uses them.
    pub fn new() -> Self {
        Self::default()
    }

    /// For tools: existing files are opened through the page cache and cannot be written, so that they may lie on any file system.
    pub fn inspecting() -> Self {
        Self { inspecting: true }
    }
}

fn open_direct(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let flags = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    options.read(true).write(true).custom_flags(flags).open(path).map_err(|error| {
        if error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) {
            io::Error::new(
                error.kind(),
                "the file system refuses direct I/O (O_DIRECT); choose a data directory on ext4 or xfs, not on tmpfs",
            )
        } else {
            error
        }
    })
}

impl Files for KernelFiles {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(KernelFile(open_direct(path, OpenOptions::new().create(true).truncate(true))?)))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file = if self.inspecting { File::open(path) } else { open_direct(path, &mut OpenOptions::new()) };
        Ok(Arc::new(KernelFile(file?)))
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let mut names = std::fs::read_dir(directory)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<io::Result<Vec<_>>>()?;
        names.sort();
        Ok(names)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        path.try_exists()
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        std::fs::create_dir_all(path)
    }

    fn sync_dir(&self, directory: &Path) -> io::Result<()> {
        File::open(directory)?.sync_all()
    }

    fn lock(&self, directory: &Path) -> io::Result<Option<DirectoryLock>> {
        let directory = File::open(directory)?;
        match rustix::fs::flock(&directory, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(DirectoryLock { _directory: Some(directory) })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn ring(&self, depth: u32) -> io::Result<IoRing> {
        IoRing::kernel(depth)
    }
}

#[derive(Debug)]
struct KernelFile(File);

impl DiskFile for KernelFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buffer, offset)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.0.set_len(bytes)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        Ok(rustix::fs::fallocate(&self.0, rustix::fs::FallocateFlags::empty(), 0, bytes)?)
    }

    fn handle(&self) -> Handle<'_> {
        Handle::Kernel(self.0.as_fd())
    }
}

/// The whole content of a file.
///
/// # Errors
/// What the system says, also when less can be read than the file is long.
pub fn read_file(files: &dyn Files, path: &Path) -> io::Result<AlignedBuf> {
    let file = files.open(path)?;
    let bytes = file.len()? as usize;
    let mut buffer = aligned_buf(bytes.next_multiple_of(DIRECT_IO_ALIGN_BYTES));
    let mut filled = 0;
    // A direct read ends at a multiple of the alignment unless it met the end of the file.
    while filled < bytes && filled.is_multiple_of(DIRECT_IO_ALIGN_BYTES) {
        match file.read_at(&mut buffer[filled..], filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    if filled < bytes {
        return Err(io::Error::other(format!("short read: {filled} of {bytes} bytes")));
    }
    buffer.truncate(bytes);
    Ok(buffer)
}

/// Creates a directory and those above it where they are missing, durably.
///
/// # Errors
/// What the system says.
pub fn create_directory(files: &dyn Files, directory: &Path) -> io::Result<()> {
    let (here, nothing) = (Path::new("."), Path::new(""));
    let above = |path: &Path| path.parent().map(|above| if above == nothing { here } else { above }.to_owned());
    let mut to_sync = Vec::new();
    for path in directory.ancestors().filter(|path| *path != nothing) {
        if !files.exists(path)? {
            to_sync.extend(above(path));
        }
    }
    files.create_dir_all(directory)?;
    if to_sync.is_empty() {
        // A process that died may have created it just before, and those above it. In all other cases their names are not this process's business.
        for above in directory.ancestors().filter(|path| *path != nothing).filter_map(above) {
            let _ = files.sync_dir(&above);
        }
    }
    to_sync.iter().try_for_each(|above| files.sync_dir(above))
}

/// Replaces the content of a small file in one step: after a crash it is what it was before or `bytes`, and once this returned, durably `bytes`.
/// A crash may leave a file of the same name with `.new` behind it, which nobody reads and the next call overwrites.
///
/// # Errors
/// What the system says, and whether the file may have been replaced.
pub fn replace_file(files: &dyn Files, path: &Path, bytes: &[u8]) -> Result<(), NotReplaced> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    write_small_file(files, &new, bytes).map_err(|error| NotReplaced { error, is_certain: true })?;
    let renamed = files.rename(&new, path).and_then(|()| files.sync_dir(path.parent().unwrap_or(Path::new("."))));
    renamed.map_err(|error| NotReplaced { error, is_certain: false })
}

/// Why [`replace_file`] did not do it.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotReplaced {
    /// What the system says.
    pub error: io::Error,
    /// Whether the file is what it was before, also after a crash; otherwise it may be either.
    pub is_certain: bool,
}

impl From<NotReplaced> for io::Error {
    fn from(problem: NotReplaced) -> Self {
        problem.error
    }
}

fn write_small_file(files: &dyn Files, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let file = files.create(path)?;
    let mut padded = aligned_buf(bytes.len().next_multiple_of(DIRECT_IO_ALIGN_BYTES));
    padded[..bytes.len()].copy_from_slice(bytes);
    file.write_all_at(&padded, 0)?;
    file.set_len(bytes.len() as u64)?;
    file.sync()
}
