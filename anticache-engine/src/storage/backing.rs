//! Memory that is backed before it is needed, by a thread of its own.
//!
//! The kernel clears a page at the first access to it. Recovery fills new memory as fast as its one thread can, and would spend two fifths of its time on
//! that; a thread beside it, which does nothing else, takes it over where there is another processor for it.

use std::ffi::c_void;
use std::io;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use rustix::mm::{Advice, madvise};

use super::region::Region;

/// What is backed in one call: a huge page, so that calls that change the address space meanwhile wait for no more than that.
const STEP_BYTES: usize = 2 << 20;

/// An address and a number of bytes.
type Part = (usize, usize);

/// The thread, from the first part on that it is given. Dropping waits until it has backed all of them.
#[derive(Debug, Default)]
pub struct Backer(Option<Backing>);

#[derive(Debug)]
struct Backing {
    parts: Option<Sender<Part>>,
    thread: Option<JoinHandle<()>>,
}

impl Backer {
    /// Begins to back a part of a region, and does not wait for it. Whatever fails is left to the first access, as ever.
    ///
    /// # Panics
    /// If the part is outside the region.
    pub fn back(&mut self, region: &Region, offset: usize, bytes: usize) {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= region.reserved_bytes()));
        if self.0.is_none() {
            self.0 = Backing::start().ok();
        }
        if let Some(parts) = self.0.as_ref().and_then(|backing| backing.parts.as_ref()) {
            let _ = parts.send((region.base() as usize + offset, bytes));
        }
    }
}

impl Backing {
    fn start() -> io::Result<Self> {
        let (parts, given) = channel();
        let work = move || given.iter().for_each(back_part);
        let thread = std::thread::Builder::new().name("backing".to_owned()).spawn(work)?;
        Ok(Self { parts: Some(parts), thread: Some(thread) })
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        self.parts = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn back_part((address, bytes): Part) {
    for start in (0..bytes).step_by(STEP_BYTES) {
        let step_bytes = STEP_BYTES.min(bytes - start);
        // SAFETY: it changes no byte of whatever lies there, as the kernel promises; where nothing is mapped, it is refused.
        let _ = unsafe { madvise((address + start) as *mut c_void, step_bytes, Advice::LinuxPopulateWrite) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_stays_and_the_rest_is_backed() {
        let region = Region::reserve(16 << 20).unwrap();
        // SAFETY: the page lies in the region.
        unsafe { region.base().add(8 << 20).write(7) };
        let mut backer = Backer::default();
        backer.back(&region, 4 << 20, 8 << 20);
        drop(backer);
        assert_eq!(region.resident_bytes(), 8 << 20);
        // SAFETY: as above.
        unsafe { assert_eq!((region.base().add(8 << 20).read(), region.base().add(5 << 20).read()), (7, 0)) };
    }
}
