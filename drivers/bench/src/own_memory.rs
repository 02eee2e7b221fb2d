//! The machine's memory: whether the processor translates addresses by huge pages.
//!
//! Lines are visited in an order that cannot be foreseen, each load telling the next one's place. The same number of them lies side by side, or one in
//! each 4 KiB of huge pages. Both are in the second-level cache; where huge pages are translated as a whole, eight of them are eight entries, and the
//! two take the same time. A virtual machine whose host backs its memory by small pages has no such translations, whatever its own kernel does.

use std::hint::black_box;
use std::time::Instant;

use anticache_engine::storage::region::RegionVec;
use rand::seq::SliceRandom;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

use crate::harness::{Report, median};

/// Lines that are visited: 256 KiB of the second-level cache.
const LINES: usize = 4096;
const LINE_BYTES: usize = 64;
const SMALL_PAGE_BYTES: usize = 4096;
/// Places in memory that are tried.
const PLACES: usize = 64;
/// Times that each of them is gone through, of which the fastest counts.
const TIMES: usize = 40;

/// Where the lines lie, from the beginning of a place.
fn side_by_side(line: usize) -> usize {
    line * LINE_BYTES
}

/// One in each small page, so that all sets of the cache have as many of them.
fn apart(line: usize) -> usize {
    line * SMALL_PAGE_BYTES + line * LINE_BYTES % SMALL_PAGE_BYTES
}

/// Bytes of a place with lines that lie apart.
const PLACE_BYTES: usize = LINES * SMALL_PAGE_BYTES;

/// Makes a ring of the lines at a place; returns where it begins.
fn link(memory: &mut [u64], place: usize, offset: fn(usize) -> usize, rng: &mut Xoshiro256PlusPlus) -> usize {
    let mut order: Vec<usize> = (0..LINES).map(|line| (place + offset(line)) / size_of::<u64>()).collect();
    order.shuffle(rng);
    for (at, &from) in order.iter().enumerate() {
        memory[from] = order[(at + 1) % LINES] as u64;
    }
    order[0]
}

/// Nanoseconds for each load of a ring, the fastest of some times.
fn load_ns(memory: &[u64], start: usize) -> f64 {
    let times = (0..TIMES).map(|_| {
        let (began, mut at) = (Instant::now(), start);
        for _ in 0..LINES {
            at = memory[at] as usize;
        }
        black_box(at);
        began.elapsed().as_nanos() as f64 / LINES as f64
    });
    times.fold(f64::INFINITY, f64::min)
}

/// Adds both to the report.
pub fn run(report: &mut Report) -> anyhow::Result<()> {
    let words = PLACES * PLACE_BYTES / size_of::<u64>();
    let mut array = RegionVec::<u64>::with_reserved(words)?;
    array.grow(words);
    let memory = array.as_mut_slice();
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
    let mut measure = |offset: fn(usize) -> usize| {
        let places = (0..PLACES).map(|place| place * PLACE_BYTES);
        let loads = places.map(|place| {
            let start = link(memory, place, offset, &mut rng);
            load_ns(memory, start)
        });
        median(&loads.collect::<Vec<f64>>())
    };
    let (near, far) = (measure(side_by_side), measure(apart));
    let settings = format!(
        "{LINES} lines of {LINE_BYTES} B, each load needs the one before, median of {PLACES} places, fastest of {TIMES} times at each"
    );
    let name = "own memory: a load of a line beside the others";
    report.add(name, near, "ns", None, &settings);
    let name = "own memory: a load of a line, one in each 4 KiB of huge pages";
    report.add(name, far, "ns", Some(("beside the others", far / near)), &settings);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_has_every_line_once() {
        for offset in [side_by_side, apart] {
            let mut memory = vec![0; 2 * PLACE_BYTES / size_of::<u64>()];
            let start = link(&mut memory, PLACE_BYTES, offset, &mut Xoshiro256PlusPlus::seed_from_u64(2));
            let mut seen = vec![start];
            while memory[seen[seen.len() - 1]] as usize != start {
                seen.push(memory[seen[seen.len() - 1]] as usize);
            }
            seen.sort_unstable();
            let mut lines: Vec<usize> =
                (0..LINES).map(|line| (PLACE_BYTES + offset(line)) / size_of::<u64>()).collect();
            lines.sort_unstable();
            assert_eq!(seen, lines);
        }
    }
}
