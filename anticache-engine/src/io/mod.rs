//! Disk I/O: one file layer for everything that the engine writes ([`files`]), operations that do not block ([`ring`]), files read from beginning to end
//! ([`read_ahead`]), and the aligned buffers that direct I/O needs. The layer has two implementations: the kernel's files, and a simulated disk for tests ([`simulated`]).

use aligned_vec::{AVec, ConstAlign};

pub mod files;
mod kernel_ring;
pub mod read_ahead;
pub mod ring;
pub mod simulated;

/// Alignment of buffers, offsets and lengths for direct I/O: the page size, which every block device accepts.
pub const DIRECT_IO_ALIGN_BYTES: usize = 4096;

/// A page of zeros.
pub(crate) static ZEROS: [u8; DIRECT_IO_ALIGN_BYTES] = [0; DIRECT_IO_ALIGN_BYTES];

/// A page-aligned byte buffer.
pub type AlignedBuf = AVec<u8, ConstAlign<DIRECT_IO_ALIGN_BYTES>>;

/// A zeroed buffer of `bytes`.
pub fn aligned_buf(bytes: usize) -> AlignedBuf {
    let mut buffer = AlignedBuf::with_capacity(DIRECT_IO_ALIGN_BYTES, bytes);
    // Filled with one value it would be written byte by byte, which takes several times as long.
    for start in (0..bytes).step_by(DIRECT_IO_ALIGN_BYTES) {
        buffer.extend_from_slice(&ZEROS[..DIRECT_IO_ALIGN_BYTES.min(bytes - start)]);
    }
    buffer
}
