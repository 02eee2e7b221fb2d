//! Size classes: which cell a value of a given length gets, and how cells lie in slabs.
//!
//! Cells grow in steps of 16 bytes up to 256, then by about an eighth: a class beyond 256 bytes is made as large as its number of cells per
//! slab allows, so that no slab ends in space that no cell can use.

/// Longest value that has a cell.
pub const MAX_VALUE_BYTES: usize = 8192;
/// Bytes before a value: its cell's header.
pub const HEADER_BYTES: usize = 8;
/// Cells begin and end at multiples of this, and refs count in it.
pub const UNIT_BYTES: usize = 16;
/// Unit in which memory is taken and given back: a slab of small cells.
pub const FRAME_BYTES: usize = 16 << 10;
/// [`FRAME_BYTES`] in units.
pub const FRAME_UNITS: u32 = (FRAME_BYTES / UNIT_BYTES) as u32;
/// Frames of a slab of large cells. Such slabs begin at a multiple of it.
pub const LARGE_FRAMES: u32 = 4;
/// Lists in which a class keeps its slabs by how full they are.
pub const BINS: usize = 9;
/// Number of classes; class 0 stands for none.
pub const CLASS_COUNT: usize = count_classes();

/// Largest cell in classes 16 bytes apart.
const FINE_UNITS: u32 = 256 / UNIT_BYTES as u32;
/// Largest cell in slabs of one frame; larger ones would leave a sixteenth and more of it unused.
const SMALL_SLAB_UNITS: u32 = 1024 / UNIT_BYTES as u32;
/// Cell of the longest value.
const MAX_UNITS: u32 = (HEADER_BYTES + MAX_VALUE_BYTES).div_ceil(UNIT_BYTES) as u32;

/// How the cells of a class lie in their slabs.
#[derive(Debug, Clone, Copy)]
pub struct SizeClass {
    /// Size of a cell, header included, in units.
    pub cell_units: u32,
    /// Cells of a slab.
    pub cells: u32,
    /// Frames of a slab, 1 or [`LARGE_FRAMES`].
    pub frames: u32,
    /// 65536 × (bins of partial slabs) / cells: turns a number of used cells into a bin without a division.
    bin_factor: u32,
}

impl SizeClass {
    const NONE: Self = Self { cell_units: 1, cells: 0, frames: 1, bin_factor: 0 };

    /// The class behind this one.
    const fn next(self) -> Self {
        if self.cell_units < FINE_UNITS {
            return Self::of(self.cell_units + 1, 1);
        }
        let eighth_more = self.cell_units + self.cell_units / 8;
        let frames = if eighth_more > SMALL_SLAB_UNITS { LARGE_FRAMES } else { 1 };
        let slab_units = frames * FRAME_UNITS;
        // The number of cells nearest to what an eighth more asks for, if that makes them larger at all.
        let nearest = (slab_units + eighth_more / 2) / eighth_more;
        let most = slab_units / (self.cell_units + 1);
        Self::of(slab_units / if nearest < most { nearest } else { most }, frames)
    }

    const fn of(cell_units: u32, frames: u32) -> Self {
        let cells = frames * FRAME_UNITS / cell_units;
        Self { cell_units, cells, frames, bin_factor: ((BINS as u32 - 1) << 16) / cells }
    }

    /// Bytes of a cell, header included.
    #[inline]
    pub const fn cell_bytes(&self) -> usize {
        self.cell_units as usize * UNIT_BYTES
    }

    /// Bytes of a slab.
    #[inline]
    pub const fn slab_bytes(&self) -> usize {
        self.frames as usize * FRAME_BYTES
    }

    /// The bin of a slab with `used` cells in use: 0 when there are none, otherwise the higher the fuller. `None` when it is full.
    #[inline]
    pub const fn bin(&self, used: u32) -> Option<usize> {
        if used == self.cells { None } else { Some(((used * self.bin_factor + 0xFFFF) >> 16) as usize) }
    }
}

/// The smallest cells: a header and up to 8 bytes.
const FIRST: SizeClass = SizeClass::of(1, 1);

const fn count_classes() -> usize {
    let mut class = FIRST;
    let mut count = 2;
    while class.cell_units < MAX_UNITS {
        class = class.next();
        count += 1;
    }
    count
}

/// All classes, smallest first, behind the one that stands for none.
pub static CLASSES: [SizeClass; CLASS_COUNT] = {
    let mut classes = [SizeClass::NONE; CLASS_COUNT];
    classes[1] = FIRST;
    let mut class = 2;
    while class < CLASS_COUNT {
        classes[class] = classes[class - 1].next();
        class += 1;
    }
    classes
};

/// The smallest class whose cells have the number of units that is the position.
static CLASS_OF_UNITS: [u8; MAX_UNITS as usize + 1] = {
    let mut table = [0; MAX_UNITS as usize + 1];
    let (mut class, mut units) = (1, 1);
    while units <= MAX_UNITS {
        if CLASSES[class].cell_units < units {
            class += 1;
        }
        table[units as usize] = class as u8;
        units += 1;
    }
    table
};

/// The class of values of `len` bytes.
///
/// # Panics
/// If `len` is over [`MAX_VALUE_BYTES`].
#[inline]
pub fn class_of(len: usize) -> usize {
    assert!(
        len <= MAX_VALUE_BYTES,
        "a value of {len} bytes is longer than {MAX_VALUE_BYTES}: refuse it when it arrives"
    );
    usize::from(CLASS_OF_UNITS[(HEADER_BYTES + len).div_ceil(UNIT_BYTES)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_gets_the_smallest_cell_that_holds_it_and_wastes_little() {
        for len in 0..=MAX_VALUE_BYTES {
            let class = class_of(len);
            let cell_bytes = CLASSES[class].cell_bytes();
            assert!(cell_bytes >= HEADER_BYTES + len, "{len}");
            assert!(CLASSES[class - 1].cell_bytes() < HEADER_BYTES + len || class == 1, "{len}");
            let slack = cell_bytes - HEADER_BYTES - len;
            assert!(slack < UNIT_BYTES || slack as f64 <= 0.15 * cell_bytes as f64, "{len} in {cell_bytes}");
        }
    }

    #[test]
    fn slabs_are_filled_with_cells() {
        for class in &CLASSES[1..] {
            let used = class.cells as usize * class.cell_bytes();
            assert!(used <= class.slab_bytes() && used * 32 >= class.slab_bytes() * 31, "{class:?}");
            assert!(class.cells >= 7 && class.cells <= FRAME_UNITS, "{class:?}");
        }
    }

    #[test]
    fn bins_rise_with_the_cells_in_use() {
        for class in &CLASSES[1..] {
            assert_eq!((class.bin(0), class.bin(class.cells)), (Some(0), None));
            let bins: Vec<_> = (1..class.cells).map(|used| class.bin(used).unwrap()).collect();
            assert!(bins.is_sorted() && bins[0] >= 1 && *bins.last().unwrap() < BINS, "{class:?} {bins:?}");
        }
    }
}
