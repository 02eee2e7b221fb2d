//! Disk I/O: one file layer for everything that the engine writes ([`files`]), operations that do not block ([`ring`]), and the aligned buffers
//! that direct I/O needs. The layer has two implementations: the kernel's files, and a simulated disk for tests ([`simulated`]).

use aligned_vec::{AVec, ConstAlign};

pub mod files;
mod kernel_ring;
pub mod ring;
pub mod simulated;

/// Alignment of buffers, offsets and lengths for direct I/O: the page size, which every block device accepts.
pub const DIRECT_IO_ALIGN_BYTES: usize = 4096;

/// A page-aligned byte buffer.
pub type AlignedBuf = AVec<u8, ConstAlign<DIRECT_IO_ALIGN_BYTES>>;

/// A zeroed buffer of `bytes`.
pub fn aligned_buf(bytes: usize) -> AlignedBuf {
    AVec::from_iter(DIRECT_IO_ALIGN_BYTES, std::iter::repeat_n(0, bytes))
}
