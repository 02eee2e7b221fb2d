//! Disk I/O that does not block: io_uring with direct I/O, and the aligned buffers that it needs.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use aligned_vec::{AVec, ConstAlign};

pub mod ring;

/// Alignment of buffers, offsets and lengths for direct I/O: the page size, which every block device accepts.
pub const DIRECT_IO_ALIGN_BYTES: usize = 4096;

/// A page-aligned byte buffer.
pub type AlignedBuf = AVec<u8, ConstAlign<DIRECT_IO_ALIGN_BYTES>>;

/// A zeroed buffer of `bytes`.
pub fn aligned_buf(bytes: usize) -> AlignedBuf {
    AVec::from_iter(DIRECT_IO_ALIGN_BYTES, std::iter::repeat_n(0, bytes))
}

/// Opens (and creates, empty) a file past the page cache. A file system that refuses direct I/O is an error, never a silent fall-back: the
/// page cache would serve evicted data from memory that the budget does not know of (design, fairness rule 2).
///
/// # Errors
/// What the system says, with advice where direct I/O is refused.
pub fn open_direct(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    OpenOptions::new().read(true).write(true).create(true).truncate(true).custom_flags(flags).open(path).map_err(|error| {
        if error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) {
            io::Error::new(error.kind(), "the file system refuses direct I/O (O_DIRECT); choose a data directory on ext4 or xfs, not on tmpfs")
        } else {
            error
        }
    })
}
