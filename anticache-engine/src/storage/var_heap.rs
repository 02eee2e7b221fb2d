//! Memory for the variable-length values (VARCHAR columns) of one table at one partition.
//!
//! A tuple's row holds a 4-byte ref; the value lies out of line, in a cell:
//!
//! ```text
//! cell   offset 0       4            6            7           8
//!               | owner | length (2) | column (1) | class (1) | value | unused |
//! ```
//!
//! Cells of one size class lie side by side in slabs; what is known of a slab lies apart, so that looking for a place touches no cell. In a
//! free cell `class` is 0 and `owner` links the free list of its slab.
//!
//! New cells go to the fullest of their class's partial slabs: the emptiest are left alone, and run empty by themselves as values are freed.
//! What stays scattered is moved together by [`VarHeap::release_one`], which is why a cell knows who refers to it.

use std::io;

use self::frames::Frames;
use self::size_class::{
    BINS, CLASS_COUNT, CLASSES, FRAME_BYTES, FRAME_UNITS, HEADER_BYTES, LARGE_FRAMES, SizeClass, UNIT_BYTES, class_of,
};
use super::region::{LINE_BYTES, Region, RegionVec, ZeroValid, backed_bytes, prefetch};
use super::tuples::TupleId;

mod frames;
mod size_class;
#[cfg(test)]
mod tests;

pub use self::size_class::MAX_VALUE_BYTES;

/// Place of a value: its cell's offset in units of 16 bytes.
pub type VarRef = u32;

/// The empty value, which has no cell.
pub const EMPTY_VALUE: VarRef = 0;

/// Address space that 4-byte refs reach.
const REACH_BYTES: usize = UNIT_BYTES << 32;
/// No cell; ends the free list of a slab.
const NO_CELL: u16 = u16::MAX;
/// No slab; ends the lists of slabs. The first frames are never given out.
const NO_SLAB: u32 = 0;

/// The first bytes of a cell.
#[derive(Debug, Clone, Copy)]
struct Header {
    owner: u32,
    len: u16,
    column: u8,
    class: u8,
}

impl Header {
    #[inline]
    fn decode(bytes: [u8; HEADER_BYTES]) -> Self {
        let [o0, o1, o2, o3, l0, l1, column, class] = bytes;
        Self { owner: u32::from_le_bytes([o0, o1, o2, o3]), len: u16::from_le_bytes([l0, l1]), column, class }
    }

    #[inline]
    fn encode(self) -> [u8; HEADER_BYTES] {
        let [o0, o1, o2, o3] = self.owner.to_le_bytes();
        let [l0, l1] = self.len.to_le_bytes();
        [o0, o1, o2, o3, l0, l1, self.column, self.class]
    }

    /// Bytes of the cell that hold something.
    #[inline]
    fn occupied_bytes(self) -> usize {
        HEADER_BYTES + usize::from(self.len)
    }
}

/// What is known of a frame. A slab of several frames is described by its first; the others have its class and nothing else.
#[derive(Debug, Clone, Copy)]
struct Slab {
    /// Neighbours in the list of its bin.
    next: u32,
    prev: u32,
    /// Cells in use.
    used: u16,
    /// Cells used so far, counted from the slab's first; those behind were never touched.
    touched: u16,
    /// First of the list of freed cells.
    free_head: u16,
    /// 0: belongs to no slab.
    class: u8,
}

// SAFETY: plain integers.
unsafe impl ZeroValid for Slab {}

/// The partial slabs of a class, by how full they are.
#[derive(Debug, Clone, Copy)]
struct Partial {
    heads: [u32; BINS],
    /// Bit per bin: whether its list has a slab.
    filled: u16,
    /// Free cells of all of them.
    free: u32,
}

/// A cell in use that a ref led to.
struct Found {
    header: Header,
    class: usize,
    /// First frame of its slab.
    slab: u32,
}

/// The values of one table's VARCHAR columns.
#[derive(Debug)]
pub struct VarHeap {
    region: Region,
    /// By frame; frames behind the last were never taken.
    slabs: RegionVec<Slab>,
    frames: Frames,
    partial: [Partial; CLASS_COUNT],
    slab_bytes: usize,
    used_bytes: usize,
    value_bytes: usize,
    live: u64,
}

impl VarHeap {
    /// An empty heap for a table that may grow to `limit_bytes`.
    ///
    /// The address space is four times as large, as far as refs reach (64 GiB): a slab of one frame may keep three others from being used for
    /// a slab of four, and even then the limit shall be met before the address space ends.
    ///
    /// # Errors
    /// As [`Region::reserve`].
    pub fn new(limit_bytes: usize) -> io::Result<Self> {
        let runs_bytes = limit_bytes.saturating_add(FRAME_BYTES).saturating_mul(LARGE_FRAMES as usize);
        let region = Region::reserve_small_pages(runs_bytes.min(REACH_BYTES))?;
        let frame_count = region.reserved_bytes() / FRAME_BYTES;
        Ok(Self {
            slabs: RegionVec::with_reserved(frame_count)?,
            frames: Frames::new(frame_count / 64),
            region,
            partial: [Partial { heads: [NO_SLAB; BINS], filled: 0, free: 0 }; CLASS_COUNT],
            slab_bytes: 0,
            used_bytes: 0,
            value_bytes: 0,
            live: 0,
        })
    }

    /// All bytes of the address space. This and [`VarHeap::memory_mut`] are the only ways to cells, so that no access can leave it.
    #[inline(always)]
    fn memory(&self) -> &[u8] {
        // SAFETY: the region's bytes are mapped until it is dropped, and were written or read as zero; writing takes `&mut self`.
        unsafe { std::slice::from_raw_parts(self.region.base(), self.region.reserved_bytes()) }
    }

    #[inline(always)]
    fn memory_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `memory`; `&mut self` makes it the only access.
        unsafe { std::slice::from_raw_parts_mut(self.region.base(), self.region.reserved_bytes()) }
    }

    /// Bytes that the kernel may have backed: slabs, and what is known of them.
    pub fn allocated_bytes(&self) -> usize {
        self.slab_bytes + Self::bookkeeping_bytes(self.slabs.len())
    }

    fn bookkeeping_bytes(frames: usize) -> usize {
        backed_bytes(frames * size_of::<Slab>()) + frames.div_ceil(64) * size_of::<u64>()
    }

    /// Bytes of the cells in use, each as large as its class.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes
    }

    /// Bytes of the values held, without headers and rounding.
    pub fn value_bytes(&self) -> usize {
        self.value_bytes
    }

    /// Cells in use; empty values have none.
    pub fn live(&self) -> u64 {
        self.live
    }

    /// Whether [`VarHeap::allocate`] has room for a value of `len` bytes.
    ///
    /// # Panics
    /// If `len` is over [`MAX_VALUE_BYTES`].
    #[inline]
    pub fn fits(&self, len: usize) -> bool {
        len == 0 || self.partial[class_of(len)].filled != 0
    }

    /// Free cells for values as long as `len`; an empty value needs none.
    ///
    /// # Panics
    /// As [`VarHeap::fits`].
    pub fn free_cells(&self, len: usize) -> u32 {
        if len == 0 { u32::MAX } else { self.partial[class_of(len)].free }
    }

    /// Number of the size class of values as long as `len`: those of one class share their free cells.
    ///
    /// # Panics
    /// As [`VarHeap::fits`].
    pub fn class_of(len: usize) -> usize {
        class_of(len)
    }

    /// Bytes that [`VarHeap::add_slab_for`] would add to [`VarHeap::allocated_bytes`]; 0 when it would fail.
    ///
    /// # Panics
    /// As [`VarHeap::fits`].
    pub fn slab_bytes_for(&self, len: usize) -> usize {
        let class = &CLASSES[class_of(len)];
        let held = self.slabs.len();
        self.frames.lowest(class.frames).map_or(0, |slab| {
            let needed = held.max((slab + class.frames) as usize);
            class.slab_bytes() + Self::bookkeeping_bytes(needed) - Self::bookkeeping_bytes(held)
        })
    }

    /// Takes a slab for values as long as `len`, at the lowest free place; false when the address space is used up.
    ///
    /// # Panics
    /// As [`VarHeap::fits`].
    pub fn add_slab_for(&mut self, len: usize) -> bool {
        let number = class_of(len);
        let class = &CLASSES[number];
        let Some(slab) = self.frames.take(class.frames) else {
            return false;
        };
        let end = (slab + class.frames) as usize;
        self.slabs.grow(end.saturating_sub(self.slabs.len()));
        let unused =
            Slab { next: NO_SLAB, prev: NO_SLAB, used: 0, touched: 0, free_head: NO_CELL, class: number as u8 };
        self.slabs.as_mut_slice()[slab as usize..end].fill(unused);
        self.slab_bytes += class.slab_bytes();
        self.partial[number].free += class.cells;
        self.link(number, 0, slab);
        true
    }

    /// A cell with a copy of `value`, which the column `column` (position among the table's VARCHAR columns) of the tuple `owner` will refer to.
    ///
    /// `None` when another slab is needed: whether the budget has room for it ([`VarHeap::slab_bytes_for`]) is for the caller to see, before it
    /// calls [`VarHeap::add_slab_for`]. An empty value never needs one.
    ///
    /// # Panics
    /// If the value is longer than [`MAX_VALUE_BYTES`].
    #[inline]
    pub fn allocate(&mut self, owner: TupleId, column: u8, value: &[u8]) -> Option<VarRef> {
        if value.is_empty() {
            return Some(EMPTY_VALUE);
        }
        let class = class_of(value.len());
        let place = self.take_cell(class)?;
        let header = Header { owner, len: value.len() as u16, column, class: class as u8 };
        let cell = &mut self.memory_mut()[offset_of(place)..][..header.occupied_bytes()];
        cell[..HEADER_BYTES].copy_from_slice(&header.encode());
        cell[HEADER_BYTES..].copy_from_slice(value);
        self.used_bytes += CLASSES[class].cell_bytes();
        self.value_bytes += value.len();
        self.live += 1;
        Some(place)
    }

    /// The value at a ref.
    ///
    /// # Panics
    /// If no value is there: it was freed, or moved by [`VarHeap::release_one`].
    #[inline]
    pub fn get(&self, value: VarRef) -> &[u8] {
        if value == EMPTY_VALUE {
            return &[];
        }
        let header = self.find(value).header;
        &self.memory()[offset_of(value) + HEADER_BYTES..][..usize::from(header.len)]
    }

    /// Brings the beginning of the value at a ref near, which may have `most_bytes`.
    #[inline]
    pub fn prefetch(&self, value: VarRef, most_bytes: usize) {
        let address = self.region.base().wrapping_add(offset_of(value));
        prefetch(address);
        prefetch(address.wrapping_add((HEADER_BYTES + most_bytes).min(LINE_BYTES) - 1));
    }

    /// Tuple and column that a value belongs to; for checks.
    ///
    /// # Panics
    /// As [`VarHeap::get`].
    pub fn owner(&self, value: VarRef) -> (TupleId, u8) {
        let header = self.find(value).header;
        (header.owner, header.column)
    }

    /// Says that a value's tuple has another id now.
    ///
    /// # Panics
    /// As [`VarHeap::get`].
    #[inline]
    pub fn set_owner(&mut self, value: VarRef, owner: TupleId) {
        if value != EMPTY_VALUE {
            let header = self.find(value).header;
            self.write_header(value, Header { owner, ..header });
        }
    }

    /// Frees a value.
    ///
    /// A slab that runs empty goes back to the kernel when its class has another slab's worth of free cells: a table whose size swings around
    /// a slab's end calls the kernel once per slab's worth of values at most. [`VarHeap::release_one`] gives back the rest.
    ///
    /// # Panics
    /// As [`VarHeap::get`].
    #[inline]
    pub fn free(&mut self, value: VarRef) {
        if value == EMPTY_VALUE {
            return;
        }
        let Found { header, class, slab } = self.find(value);
        let size = &CLASSES[class];
        let index = (value - slab * FRAME_UNITS) / size.cell_units;
        let state = &mut self.slabs.as_mut_slice()[slab as usize];
        let (next_free, used) = (state.free_head, u32::from(state.used));
        state.free_head = index as u16;
        state.used -= 1;
        self.write_header(value, Header { owner: u32::from(next_free), len: 0, column: 0, class: 0 });
        self.partial[class].free += 1;
        self.used_bytes -= size.cell_bytes();
        self.value_bytes -= usize::from(header.len);
        self.live -= 1;
        self.change_bin(class, slab, size.bin(used), size.bin(used - 1));
        if used == 1 && self.partial[class].free >= 2 * size.cells {
            self.unlink(class, 0, slab);
            self.partial[class].free -= size.cells;
            self.release_slab(size, slab);
        }
    }

    /// Bytes that calls of [`VarHeap::release_one`] would give back altogether.
    pub fn releasable_bytes(&self) -> usize {
        let slabs_bytes =
            |(partial, size): (&Partial, &SizeClass)| (partial.free / size.cells) as usize * size.slab_bytes();
        self.partial.iter().zip(&CLASSES).skip(1).map(slabs_bytes).sum()
    }

    /// Gives one slab back to the kernel, after moving its values to free cells of its class; returns its bytes, 0 when no class has free
    /// cells for a slab's values and those it keeps: `kept` slabs' worth of others, and as many as are `wanted`, given as a length and a number.
    ///
    /// Among all classes a slab as empty as possible is chosen. `moved` is told the owner, the column and the new ref of each value, which the
    /// owner has to refer to from then on.
    pub fn release_one(
        &mut self,
        kept: u32,
        wanted: &[(usize, u32)],
        mut moved: impl FnMut(TupleId, u8, VarRef),
    ) -> usize {
        // The free cells of a class, those of the emptiest slab included, are a slab's number or more: then the others have room for its values.
        let needed = |class: usize| {
            let wanted = wanted.iter().filter(|&&(len, _)| len > 0 && class_of(len) == class).map(|&(_, cells)| cells);
            CLASSES[class].cells + (CLASSES[class].cells * kept).max(wanted.max().unwrap_or(0))
        };
        let candidates = (1..CLASS_COUNT).filter(|&class| self.partial[class].free >= needed(class));
        let emptiest = candidates.map(|class| (self.partial[class].filled.trailing_zeros() as usize, class)).min();
        let Some((bin, class)) = emptiest else {
            return 0;
        };
        let size = &CLASSES[class];
        let slab = self.partial[class].heads[bin];
        self.unlink(class, bin, slab);
        let Slab { used, touched, .. } = self.slabs.as_slice()[slab as usize];
        self.partial[class].free -= size.cells - u32::from(used);
        for index in 0..u32::from(touched) {
            let from = slab * FRAME_UNITS + index * size.cell_units;
            let header = self.header(from);
            if header.class != 0 {
                let to = self.take_cell(class).expect("the class has a free cell for each value of the slab");
                let source = offset_of(from)..offset_of(from) + header.occupied_bytes();
                self.memory_mut().copy_within(source, offset_of(to));
                moved(header.owner, header.column, to);
            }
        }
        self.release_slab(size, slab);
        size.slab_bytes()
    }

    /// A free cell from the fullest partial slab; its header is undefined. `None` when there is no partial slab.
    #[inline]
    fn take_cell(&mut self, class: usize) -> Option<VarRef> {
        let partial = &mut self.partial[class];
        let bin = partial.filled.checked_ilog2()? as usize;
        let slab = partial.heads[bin];
        partial.free -= 1;
        let size = &CLASSES[class];
        let mut state = self.slabs.as_slice()[slab as usize];
        let first = slab * FRAME_UNITS;
        let place = if state.free_head == NO_CELL {
            state.touched += 1;
            first + (u32::from(state.touched) - 1) * size.cell_units
        } else {
            let place = first + u32::from(state.free_head) * size.cell_units;
            state.free_head = self.header(place).owner as u16;
            place
        };
        state.used += 1;
        self.slabs.as_mut_slice()[slab as usize] = state;
        self.change_bin(class, slab, Some(bin), size.bin(u32::from(state.used)));
        Some(place)
    }

    /// The cell in use at a ref.
    #[inline]
    fn find(&self, value: VarRef) -> Found {
        self.look_for(value)
            .unwrap_or_else(|| panic!("no value at ref {value}: it was freed or moved, look for who kept it"))
    }

    /// The cell in use at a ref, if there is one.
    ///
    /// A wrong ref ends here. The slab says where cells begin, so that no value's bytes are taken for a header; the header, whether the cell is in
    /// use. What cannot be seen is that a cell was freed and is another value's by now.
    #[inline]
    fn look_for(&self, value: VarRef) -> Option<Found> {
        let frame = value / FRAME_UNITS;
        let class = self.slabs.as_slice().get(frame as usize)?.class;
        let size = &CLASSES[usize::from(class)];
        let slab = frame & !(size.frames - 1);
        let begins = (value - slab * FRAME_UNITS).is_multiple_of(size.cell_units);
        let header = self.header(value);
        (class != 0 && begins && header.class == class).then_some(Found { header, class: usize::from(class), slab })
    }

    #[inline]
    fn header(&self, cell: VarRef) -> Header {
        let bytes = self.memory()[offset_of(cell)..].first_chunk();
        Header::decode(*bytes.expect("the address space is a multiple of cell units"))
    }

    #[inline]
    fn write_header(&mut self, cell: VarRef, header: Header) {
        self.memory_mut()[offset_of(cell)..][..HEADER_BYTES].copy_from_slice(&header.encode());
    }

    /// Gives a slab without values, which is in no list any more, back to the kernel.
    fn release_slab(&mut self, size: &SizeClass, slab: u32) {
        let frames = slab as usize..(slab + size.frames) as usize;
        self.region.release(frames.start * FRAME_BYTES, size.slab_bytes());
        self.slabs.as_mut_slice()[frames].iter_mut().for_each(|state| state.class = 0);
        self.frames.put(slab, size.frames);
        self.slab_bytes -= size.slab_bytes();
    }

    /// Moves a slab from one bin to another; a full slab is in none.
    #[inline]
    fn change_bin(&mut self, class: usize, slab: u32, from: Option<usize>, to: Option<usize>) {
        if from == to {
            return;
        }
        if let Some(bin) = from {
            self.unlink(class, bin, slab);
        }
        if let Some(bin) = to {
            self.link(class, bin, slab);
        }
    }

    fn link(&mut self, class: usize, bin: usize, slab: u32) {
        let partial = &mut self.partial[class];
        let next = std::mem::replace(&mut partial.heads[bin], slab);
        partial.filled |= 1 << bin;
        let slabs = self.slabs.as_mut_slice();
        slabs[slab as usize].next = next;
        slabs[slab as usize].prev = NO_SLAB;
        if next != NO_SLAB {
            slabs[next as usize].prev = slab;
        }
    }

    fn unlink(&mut self, class: usize, bin: usize, slab: u32) {
        let slabs = self.slabs.as_mut_slice();
        let Slab { next, prev, .. } = slabs[slab as usize];
        if next != NO_SLAB {
            slabs[next as usize].prev = prev;
        }
        if prev != NO_SLAB {
            slabs[prev as usize].next = next;
            return;
        }
        let partial = &mut self.partial[class];
        partial.heads[bin] = next;
        if next == NO_SLAB {
            partial.filled &= !(1 << bin);
        }
    }
}

/// Offset in the address space of a cell, in bytes.
#[inline]
fn offset_of(cell: VarRef) -> usize {
    cell as usize * UNIT_BYTES
}
