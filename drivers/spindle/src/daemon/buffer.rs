//! Page-aligned memory for direct I/O, reused: an allocation for every request would be mapped, zeroed and unmapped anew.

use aligned_vec::{AVec, ConstAlign};
use std::ops::{Deref, DerefMut};
use std::sync::Mutex;

use super::lock;

/// Alignment that direct I/O asks for, at most.
const ALIGNMENT: usize = 4096;
/// The largest request: what the FUSE connection is told as its largest write.
pub const LARGEST_BYTES: usize = 1 << 20;
const SMALL_BYTES: usize = 64 << 10;
/// Buffers of a kind that are kept: as many as requests can be in flight.
const KEPT: usize = 128;

type Memory = AVec<u8, ConstAlign<ALIGNMENT>>;

static SMALL: Mutex<Vec<Memory>> = Mutex::new(Vec::new());
static LARGE: Mutex<Vec<Memory>> = Mutex::new(Vec::new());

/// Aligned bytes. Their contents are whatever the last user left: who takes a buffer fills it.
#[derive(Debug)]
pub struct Buffer {
    memory: Memory,
    len: usize,
}

impl Buffer {
    /// A buffer of `len` bytes.
    pub fn take(len: usize) -> Self {
        let (kept, capacity) = if len <= SMALL_BYTES { (&SMALL, SMALL_BYTES) } else { (&LARGE, LARGEST_BYTES) };
        let reused = if len <= LARGEST_BYTES { lock(kept).pop() } else { None };
        let memory = reused.unwrap_or_else(|| {
            let mut memory = Memory::new(ALIGNMENT);
            memory.resize(capacity.max(len), 0);
            memory
        });
        Self { memory, len }
    }

    /// An aligned copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut buffer = Self::take(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[..self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[..self.len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let memory = std::mem::replace(&mut self.memory, Memory::new(ALIGNMENT));
        let kept = match memory.len() {
            SMALL_BYTES => &SMALL,
            LARGEST_BYTES => &LARGE,
            _ => return,
        };
        let mut kept = lock(kept);
        if kept.len() < KEPT {
            kept.push(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_as_long_as_asked_for() {
        for len in [512, SMALL_BYTES, SMALL_BYTES + 1, LARGEST_BYTES, LARGEST_BYTES + 4096] {
            for _ in 0..2 {
                let buffer = Buffer::take(len);
                assert_eq!(buffer.len(), len);
                assert_eq!(buffer.as_ptr() as usize % ALIGNMENT, 0, "{len}");
            }
        }
    }
}
