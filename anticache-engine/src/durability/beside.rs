//! Bytes that a thread of its own reads and checks, while the thread that asked for them works on those before.
//!
//! Recovery does one thing after the other with what it reads; whatever of that does not need the partition is done beside it, where there is another
//! processor. On a simulated disk, where the order of everything must follow from the seed, the same steps are taken in turn by one thread.

use std::io;
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::Builder;

use crate::io::files::Files;

/// Parts on their way from one thread to the other: enough that neither waits when the other one is interrupted for a moment.
const PARTS_AHEAD: usize = 4;

/// Where what was read is handed over.
pub(super) struct Lane<'consume, T> {
    to: To<'consume, T>,
    spare: Option<T>,
}

enum To<'consume, T> {
    /// Whoever works on it, in this thread.
    Here(&'consume mut dyn FnMut(&mut T) -> ControlFlow<()>),
    /// Another thread, which gives back what it has worked on.
    Thread(SyncSender<T>, Receiver<T>),
}

impl<T> Lane<'_, T> {
    /// Hands a part over; nobody wants another one after a break.
    pub(super) fn send(&mut self, mut part: T) -> ControlFlow<()> {
        match &mut self.to {
            To::Here(consume) => {
                consume(&mut part)?;
                self.spare = Some(part);
            }
            To::Thread(parts, _) => {
                if parts.send(part).is_err() {
                    return ControlFlow::Break(());
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// A part that was worked on, for its memory.
    pub(super) fn spare(&mut self) -> Option<T> {
        match &self.to {
            To::Here(_) => self.spare.take(),
            To::Thread(_, worked_on) => worked_on.try_recv().ok(),
        }
    }
}

/// Lets `produce` read from these files and hand over parts, and `consume` work on them in their order in the calling thread, until it breaks. Gives what
/// `produce` gives in the end.
///
/// # Errors
/// When the system refuses a thread.
pub(super) fn beside<T: Send, R: Send>(
    files: &dyn Files,
    produce: impl FnOnce(&mut Lane<'_, T>) -> R + Send,
    mut consume: impl FnMut(&mut T) -> ControlFlow<()>,
) -> io::Result<R> {
    if files.is_simulated() {
        return Ok(produce(&mut Lane { to: To::Here(&mut consume), spare: None }));
    }
    std::thread::scope(|scope| {
        let (parts, given) = sync_channel(PARTS_AHEAD);
        let (worked_on, spares) = channel();
        let work = move || produce(&mut Lane { to: To::Thread(parts, spares), spare: None });
        let thread = Builder::new().name("reader".to_owned()).spawn_scoped(scope, work)?;
        consume_all(given, &worked_on, &mut consume);
        Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// Takes the receiver, so that the other thread finds nobody behind it.
fn consume_all<T>(given: Receiver<T>, worked_on: &Sender<T>, consume: &mut impl FnMut(&mut T) -> ControlFlow<()>) {
    for mut part in given {
        if consume(&mut part).is_break() {
            return;
        }
        // Whoever reads no more needs no memory.
        let _ = worked_on.send(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::files::KernelFiles;
    use crate::io::simulated::SimulatedDisk;

    /// Hands over 0 to 99, each in a part that was worked on if there is one; gives how many parts were made and how many handed over.
    fn hundred(lane: &mut Lane<'_, Box<u32>>) -> (u32, u32) {
        let mut made = 0;
        for n in 0..100 {
            let mut part = lane.spare().unwrap_or_else(|| {
                made += 1;
                Box::new(0)
            });
            *part = n;
            if lane.send(part).is_break() {
                return (made, n);
            }
        }
        (made, 100)
    }

    #[test]
    fn parts_come_in_order_and_their_memory_is_used_again() {
        let (kernel, disk) = (KernelFiles::new(), SimulatedDisk::new(1));
        for (files, most_made) in [(&kernel as &dyn Files, PARTS_AHEAD as u32 + 2), (&*disk.files(), 1)] {
            let mut found = Vec::new();
            let (made, sent) = beside(files, hundred, |part| {
                found.push(**part);
                ControlFlow::Continue(())
            })
            .unwrap();
            assert_eq!((found, sent), ((0..100).collect(), 100));
            assert!(made <= most_made, "{made} parts");
        }
    }

    #[test]
    fn nothing_is_read_for_nobody() {
        let (kernel, disk) = (KernelFiles::new(), SimulatedDisk::new(1));
        for files in [&kernel as &dyn Files, &*disk.files()] {
            let stop =
                |part: &mut Box<u32>| if **part == 20 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
            let (_, sent) = beside(files, hundred, stop).unwrap();
            assert!((20..=21 + PARTS_AHEAD as u32).contains(&sent), "{sent} sent");
        }
    }
}
