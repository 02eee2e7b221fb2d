//! Work on 0 … total − 1 in chunks by several threads.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::interrupt::Interrupt;
use crate::system::SystemError;

/// In which order the chunks are worked on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Threads take the next chunk of all, so that the whole is worked on nearly in order.
    Shared,
    /// Every thread has a contiguous range of its own and works on it in order.
    Ranges,
}

/// How the work is cut.
#[derive(Debug, Clone, Copy)]
pub struct Chunks {
    pub order: Order,
    pub total: u64,
    /// Pieces that a thread takes at a time.
    pub chunk: u64,
    pub threads: u32,
}

/// What one thread does with its chunks.
pub trait ChunkWorker {
    /// Handles one chunk.
    fn work(&mut self, chunk: Range<u64>) -> Result<(), SystemError>;

    /// Completes what is still pending after the last chunk.
    fn finish(&mut self) -> Result<(), SystemError> {
        Ok(())
    }
}

/// Runs workers, each made by `open` on its own thread, until all chunks are done.
///
/// # Errors
/// The first error of any worker, after which the others stop; [`SystemError::Interrupted`] on SIGINT.
pub fn for_each_chunk<W: ChunkWorker>(
    chunks: Chunks,
    interrupt: &Interrupt,
    open: impl Fn() -> Result<W, SystemError> + Sync,
) -> Result<(), SystemError> {
    let threads = u64::from(chunks.threads.max(1));
    // One range for all threads, or one for each: the position of the next chunk, and the end.
    let parts = if chunks.order == Order::Shared { 1 } else { threads };
    let bound = |part: u64| (u128::from(chunks.total) * u128::from(part) / u128::from(parts)) as u64;
    let ranges: Vec<(AtomicU64, u64)> = (0..parts).map(|part| (AtomicU64::new(bound(part)), bound(part + 1))).collect();
    let failed = AtomicBool::new(false);
    let run = |(next, end): &(AtomicU64, u64)| {
        let mut worker = open()?;
        loop {
            if failed.load(Ordering::Relaxed) {
                return Ok(());
            }
            if interrupt.requested() {
                return Err(SystemError::Interrupted);
            }
            let start = next.fetch_add(chunks.chunk, Ordering::Relaxed);
            if start >= *end {
                return worker.finish();
            }
            worker.work(start..(*end).min(start + chunks.chunk))?;
        }
    };
    let run_and_tell = |range: &(AtomicU64, u64)| run(range).inspect_err(|_| failed.store(true, Ordering::Relaxed));
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            ranges.iter().cycle().take(threads as usize).map(|range| scope.spawn(|| run_and_tell(range))).collect();
        let mut outcome = Ok(());
        for thread in threads {
            let result =
                thread.join().unwrap_or_else(|_| Err(SystemError::Data("a worker thread panicked".to_owned())));
            outcome = outcome.and(result);
        }
        outcome
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    struct Collect<'a>(&'a Mutex<Vec<u64>>, u64);

    impl ChunkWorker for Collect<'_> {
        fn work(&mut self, chunk: Range<u64>) -> Result<(), SystemError> {
            if chunk.contains(&self.1) {
                return Err(SystemError::Data("the bad one".to_owned()));
            }
            self.0.lock().unwrap().extend(chunk);
            Ok(())
        }
    }

    #[test]
    fn every_number_comes_exactly_once() {
        for order in [Order::Shared, Order::Ranges] {
            for (total, chunk, threads) in [(0, 10, 4), (1, 10, 4), (1005, 10, 3), (7, 1, 16)] {
                let seen = Mutex::new(Vec::new());
                let chunks = Chunks { order, total, chunk, threads };
                for_each_chunk(chunks, &Interrupt::default(), || Ok(Collect(&seen, u64::MAX))).unwrap();
                let mut seen = seen.into_inner().unwrap();
                seen.sort_unstable();
                assert_eq!(seen, (0..total).collect::<Vec<_>>(), "{chunks:?}");
            }
        }
    }

    #[test]
    fn the_first_error_ends_the_work() {
        let seen = Mutex::new(Vec::new());
        let chunks = Chunks { order: Order::Shared, total: 1_000_000_000, chunk: 1000, threads: 3 };
        let outcome = for_each_chunk(chunks, &Interrupt::default(), || Ok(Collect(&seen, 5500)));
        assert_eq!(outcome.unwrap_err().to_string(), "the bad one");
    }
}
