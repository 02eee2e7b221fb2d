//! Buffers for direct I/O.
//!
//! What the kernel reads or writes at once is told to the disk piece by piece, a piece for each run of pages that follow each other in physical memory. A
//! disk has room for so many pieces only: a mebibyte that is scattered over small pages is 256 of them, which is all that a virtual disk takes, so that
//! everything else waits until nothing is under way, and then until that one is done. Buffers of which several are made together therefore lie in huge
//! pages, where each is one piece.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use aligned_vec::{AVec, ConstAlign};

use super::DIRECT_IO_ALIGN_BYTES;
use crate::storage::region::{HUGE_PAGE_BYTES, Region};

/// A page of zeros.
pub(crate) static ZEROS: [u8; DIRECT_IO_ALIGN_BYTES] = [0; DIRECT_IO_ALIGN_BYTES];

/// A page-aligned byte buffer of its own that can grow.
pub type GrowingBuf = AVec<u8, ConstAlign<DIRECT_IO_ALIGN_BYTES>>;

/// A page-aligned byte buffer. Its bytes stay where they are when it is moved.
#[derive(Debug)]
pub struct AlignedBuf(Memory);

#[derive(Debug)]
enum Memory {
    Own(GrowingBuf),
    Part(Part),
}

/// A part of huge pages.
///
/// Invariants that the unsafe code here relies on:
/// 1. `[start, start + most_bytes)` lies in the region `pages`, which is mapped until the last part of it is dropped, and `bytes` are no more.
/// 2. No other part has any of these bytes, and nobody reads or writes them but through this one.
#[derive(Debug)]
struct Part {
    start: *mut u8,
    bytes: usize,
    most_bytes: usize,
    _pages: Arc<Pages>,
}

// SAFETY: whoever has the part has the only access to its bytes (invariant 2), and nothing is done with the region that it keeps but to drop it.
unsafe impl Send for Part {}
// SAFETY: what is shared can only be read.
unsafe impl Sync for Part {}

/// Kept mapped, and of no other use.
#[derive(Debug)]
struct Pages(Region);

// SAFETY: nothing is done with a shared region; the last part drops it.
unsafe impl Sync for Pages {}

impl AlignedBuf {
    /// Cuts what is behind so many bytes off.
    pub fn truncate(&mut self, bytes: usize) {
        match &mut self.0 {
            Memory::Own(buffer) => buffer.truncate(bytes),
            Memory::Part(part) => part.bytes = part.bytes.min(bytes),
        }
    }

    /// Makes it as long again as it was made; what was cut off is zero or what it was.
    ///
    /// # Panics
    /// If it was not made so long.
    pub fn restore(&mut self, bytes: usize) {
        match &mut self.0 {
            Memory::Own(buffer) => buffer.resize(bytes, 0),
            Memory::Part(part) => {
                assert!(bytes <= part.most_bytes, "{bytes} of {} bytes", part.most_bytes);
                part.bytes = bytes;
            }
        }
    }

    /// The same bytes, to grow; of its own they are not copied.
    pub fn into_growing(self) -> GrowingBuf {
        match self.0 {
            Memory::Own(buffer) => buffer,
            Memory::Part(_) => GrowingBuf::from_slice(DIRECT_IO_ALIGN_BYTES, &self),
        }
    }
}

impl Clone for AlignedBuf {
    /// A copy in memory of its own.
    fn clone(&self) -> Self {
        GrowingBuf::from_slice(DIRECT_IO_ALIGN_BYTES, self).into()
    }
}

impl From<GrowingBuf> for AlignedBuf {
    fn from(buffer: GrowingBuf) -> Self {
        Self(Memory::Own(buffer))
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Memory::Own(buffer) => buffer,
            // SAFETY: the bytes are mapped (invariant 1), zero or written, and only this part gives access to them (invariant 2).
            Memory::Part(part) => unsafe { std::slice::from_raw_parts(part.start, part.bytes) },
        }
    }
}

impl DerefMut for AlignedBuf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Memory::Own(buffer) => buffer,
            // SAFETY: as in `deref`; `&mut self` makes it the only access.
            Memory::Part(part) => unsafe { std::slice::from_raw_parts_mut(part.start, part.bytes) },
        }
    }
}

/// A zeroed buffer of `bytes`.
pub fn aligned_buf(bytes: usize) -> AlignedBuf {
    let mut buffer = GrowingBuf::with_capacity(DIRECT_IO_ALIGN_BYTES, bytes);
    // Filled with one value it would be written byte by byte, which takes several times as long.
    for start in (0..bytes).step_by(DIRECT_IO_ALIGN_BYTES) {
        buffer.extend_from_slice(&ZEROS[..DIRECT_IO_ALIGN_BYTES.min(bytes - start)]);
    }
    buffer.into()
}

/// Some zeroed buffers of `bytes`, `count` at most and one at least, which fill huge pages; a single one of small pages when `count` of them do not.
///
/// # Panics
/// If `bytes` are not whole pages.
pub fn aligned_bufs(count: usize, bytes: usize) -> Vec<AlignedBuf> {
    assert!(bytes.is_multiple_of(DIRECT_IO_ALIGN_BYTES), "{bytes} bytes are not whole pages");
    let together = (HUGE_PAGE_BYTES / bytes.max(1)).max(1);
    if together > count || !(together * bytes).is_multiple_of(HUGE_PAGE_BYTES) {
        return vec![aligned_buf(bytes)];
    }
    // The heap says what is to be done where there is no memory.
    let Ok(region) = Region::reserve_huge_pages(together * bytes) else { return vec![aligned_buf(bytes)] };
    let pages = Arc::new(Pages(region));
    let part = |number: usize| {
        let start = pages.0.base().wrapping_add(number * bytes);
        AlignedBuf(Memory::Part(Part { start, bytes, most_bytes: bytes, _pages: Arc::clone(&pages) }))
    };
    (0..together).map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_of_huge_pages_are_zero_and_apart() {
        for (count, bytes) in [(2, 1 << 20), (600, 4096), (1, 8 << 20), (3, 2 << 20)] {
            let mut buffers = aligned_bufs(count, bytes);
            assert_eq!(buffers.len(), (HUGE_PAGE_BYTES / bytes).max(1));
            for (number, buffer) in buffers.iter_mut().enumerate() {
                assert_eq!((buffer.len(), buffer.as_ptr().align_offset(DIRECT_IO_ALIGN_BYTES)), (bytes, 0));
                assert!(buffer.iter().all(|&byte| byte == 0));
                buffer.fill((number as u8).wrapping_add(1));
            }
            // One that is left keeps its pages.
            let mut last = buffers.pop().unwrap();
            last.truncate(4096);
            assert_eq!(last.clone().len(), 4096);
            last.restore(bytes);
            let number = (buffers.len() as u8).wrapping_add(1);
            drop(buffers);
            assert!(last.iter().all(|&byte| byte == number));
            assert!(last.into_growing().iter().all(|&byte| byte == number));
        }
    }

    #[test]
    fn what_does_not_fill_huge_pages_takes_small_ones() {
        for (count, bytes) in [(1, 1 << 20), (511, 4096), (0, 4096), (9, 12 << 10)] {
            let buffers = aligned_bufs(count, bytes);
            assert_eq!((buffers.len(), buffers[0].len()), (1, bytes));
            assert!(matches!(buffers[0].0, Memory::Own(_)));
        }
    }
}
