//! Disk I/O: one file layer for everything that the engine writes ([`files`]), operations that do not block ([`ring`]), files read from beginning to end
//! ([`read_ahead`]), and the aligned buffers that direct I/O needs. The layer has two implementations: the kernel's files, and a simulated disk for tests ([`simulated`]).

mod buffer;
pub mod files;
mod kernel_ring;
pub mod read_ahead;
pub mod ring;
pub mod simulated;

/// Alignment of buffers, offsets and lengths for direct I/O: the page size, which every block device accepts.
pub const DIRECT_IO_ALIGN_BYTES: usize = 4096;

pub(crate) use buffer::ZEROS;
pub use buffer::{AlignedBuf, GrowingBuf, aligned_buf, aligned_bufs};
