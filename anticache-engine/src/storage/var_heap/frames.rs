//! Which frames of the address space belong to slabs.

use super::size_class::LARGE_FRAMES;

/// One bit per frame, set when it is taken or must not be.
#[derive(Debug)]
pub struct Frames {
    taken: Vec<u64>,
    /// No word before has a free frame.
    first_small: usize,
    /// No word before has a free run of [`LARGE_FRAMES`].
    first_large: usize,
}

/// The first bit of every aligned run of [`LARGE_FRAMES`].
const RUN_STARTS: u64 = 0x1111_1111_1111_1111;

impl Frames {
    /// All frames free but for the first run, which has the place of the ref that means "no cell". `words` × 64 frames.
    pub fn new(words: usize) -> Self {
        let mut taken = vec![0; words.max(1)];
        taken[0] = (1 << LARGE_FRAMES) - 1;
        Self { taken, first_small: 0, first_large: 0 }
    }

    /// The word of the lowest free frame, or run of [`LARGE_FRAMES`], and the frame.
    fn find(&self, frames: u32) -> Option<(usize, u32)> {
        let first = if frames == 1 { self.first_small } else { self.first_large };
        self.taken[first..].iter().enumerate().find_map(|(skipped, taken)| {
            let free = !taken;
            let starts = if frames == 1 { free } else { free & (free >> 1) & (free >> 2) & (free >> 3) & RUN_STARTS };
            let word = first + skipped;
            (starts != 0).then(|| (word, word as u32 * 64 + starts.trailing_zeros()))
        })
    }

    /// The frame that [`Frames::take`] would return.
    pub fn lowest(&self, frames: u32) -> Option<u32> {
        self.find(frames).map(|(_, frame)| frame)
    }

    /// Takes the lowest free frame, or run of [`LARGE_FRAMES`]; `None` when there is none.
    pub fn take(&mut self, frames: u32) -> Option<u32> {
        let (word, frame) = self.find(frames)?;
        self.taken[word] |= Self::bits(frame, frames);
        *(if frames == 1 { &mut self.first_small } else { &mut self.first_large }) = word;
        Some(frame)
    }

    /// Frees what [`Frames::take`] returned.
    pub fn put(&mut self, frame: u32, frames: u32) {
        let word = (frame / 64) as usize;
        self.taken[word] &= !Self::bits(frame, frames);
        self.first_small = self.first_small.min(word);
        self.first_large = self.first_large.min(word);
    }

    /// The bits of a run that does not cross a word.
    fn bits(frame: u32, frames: u32) -> u64 {
        ((1 << frames) - 1) << (frame % 64)
    }

    #[cfg(test)]
    pub fn is_taken(&self, frame: u32) -> bool {
        self.taken[(frame / 64) as usize] & Self::bits(frame, 1) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_fit_is_taken_and_the_end_is_noticed() {
        let mut frames = Frames::new(2);
        assert_eq!((frames.take(1), frames.take(4), frames.take(1)), (Some(4), Some(8), Some(5)));
        frames.put(8, 4);
        assert_eq!((frames.lowest(1), frames.take(1)), (Some(6), Some(6)));
        let large: Vec<_> = std::iter::from_fn(|| frames.take(4)).collect();
        assert_eq!(large, (2..32).map(|run| run * 4).collect::<Vec<_>>());
        assert_eq!((frames.take(1), frames.take(1), frames.lowest(4)), (Some(7), None, None));
        frames.put(100, 4);
        assert_eq!((frames.take(1), frames.take(4)), (Some(100), None));
        frames.put(100, 1);
        assert_eq!(frames.take(4), Some(100));
    }
}
