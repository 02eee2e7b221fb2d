//! Reserved address ranges that grow in place.
//!
//! Tuples, index buckets and evicted-tuple entries are addressed by 4-byte ids, so their memory has to stay where it is while it
//! grows: a region reserves address space once and lets the kernel back it page by page. Growing never copies, never stalls, and
//! never needs twice the memory for a moment, which matters to a system that promises to stay within a budget.

use std::ffi::c_void;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// The first bytes of a region are backed by small pages until enough of them are in use ([`Region::set_used`]), what lies behind asks for transparent
/// huge pages: small tables waste nothing on them, large ones have the processor translate their addresses quickly.
const SMALL_PAGES_BYTES: usize = 4 << 20;
/// Huge pages that could take the place of small ones.
const EXCHANGEABLE: usize = SMALL_PAGES_BYTES / HUGE_PAGE_BYTES;
/// So much more than a huge page must be in use before it takes the place of small ones, which come back with any less than the page: a table that
/// gains and loses a little does not have them exchanged each time.
const BEYOND_BYTES: usize = HUGE_PAGE_BYTES / 2;
/// Bytes of a transparent huge page.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Growth within the small pages is accounted page by page.
const GROWTH_STEP_BYTES: usize = 4 << 10;

/// Bytes that the kernel may have backed when the first `bytes` of a region are in use: what counts against a budget.
#[inline]
pub fn backed_bytes(bytes: usize) -> usize {
    bytes.next_multiple_of(if bytes <= SMALL_PAGES_BYTES { GROWTH_STEP_BYTES } else { HUGE_PAGE_BYTES })
}

/// A reserved, zero-filled, page-aligned address range owned by one partition.
///
/// Invariants that the unsafe code here and in the modules that use `base` relies on:
/// 1. `[base, base + reserved_bytes)` lies in one private anonymous read-write mapping until drop; it never moves. The mapping is one huge page
///    longer, so that `base` can be aligned to huge pages, as the accounting by them assumes.
/// 2. Bytes that were never written, or were released, read as zero.
/// 3. Only the owner holds the pointer; it is handed out by reference with the owner's borrow.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    reserved_bytes: usize,
    /// Huge pages in the place of small ones, at the beginning; at most [`EXCHANGEABLE`].
    exchanged: usize,
    mapped: NonNull<u8>,
    mapped_bytes: usize,
}

// SAFETY: the mapping is private to the owner (invariant 3), and moving the owner to another thread moves the only access to it.
unsafe impl Send for Region {}

impl Region {
    /// Reserves `bytes` of address space (rounded up to whole huge pages); memory is taken only when it is first written.
    ///
    /// # Errors
    /// What the kernel says when the address space or the overcommit limit does not allow it.
    pub fn reserve(bytes: usize) -> io::Result<Self> {
        Self::map(bytes, SMALL_PAGES_BYTES)
    }

    /// The same, but never backed by huge pages: for memory that is given back in small pieces, each of which would split a huge page.
    ///
    /// # Errors
    /// As [`Region::reserve`].
    pub fn reserve_small_pages(bytes: usize) -> io::Result<Self> {
        Self::map(bytes, usize::MAX)
    }

    /// The same, all of huge pages: for what is taken as a whole. [`Region::set_used`] is not for it.
    ///
    /// # Errors
    /// As [`Region::reserve`].
    pub fn reserve_huge_pages(bytes: usize) -> io::Result<Self> {
        Self::map(bytes, 0)
    }

    /// A region whose first `small_bytes` are backed by small pages.
    fn map(bytes: usize, small_bytes: usize) -> io::Result<Self> {
        let reserved_bytes = bytes.max(1).next_multiple_of(HUGE_PAGE_BYTES);
        let mapped_bytes = reserved_bytes + HUGE_PAGE_BYTES;
        // SAFETY: an anonymous mapping at an address that the kernel chooses aliases nothing.
        let address = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                mapped_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        let mapped = NonNull::new(address.cast::<u8>())
            .ok_or_else(|| io::Error::other("the kernel mapped a region at address zero"))?;
        let skipped = mapped.as_ptr().align_offset(HUGE_PAGE_BYTES);
        // SAFETY: at most a huge page less one byte is skipped, and the mapping is one huge page longer than what is reserved.
        let base = unsafe { mapped.add(skipped) };
        let mut region = Self { base, reserved_bytes, exchanged: 0, mapped, mapped_bytes };
        #[cfg(test)]
        audit::mapped(small_bytes > 0).with_borrow_mut(|ranges| ranges.push(region.range()));
        let small = small_bytes.min(reserved_bytes);
        region.advise(0..small, Advice::LinuxNoHugepage);
        region.advise(small..reserved_bytes, Advice::LinuxHugepage);
        Ok(region)
    }

    /// Says what a part's pages should be. A kernel without huge pages refuses, which changes nothing.
    fn advise(&mut self, part: Range<usize>, pages: Advice) {
        assert!(part.start <= part.end && part.end <= self.reserved_bytes);
        debug_assert!(matches!(pages, Advice::LinuxNoHugepage | Advice::LinuxHugepage));
        // SAFETY: the part lies in the mapping (checked above), and its bytes stay what they are.
        let _ = unsafe { madvise(self.base.as_ptr().add(part.start).cast::<c_void>(), part.len(), pages) };
    }

    /// Says how many bytes from the beginning are in use: small pages that are all in use can as well be a huge one. Not for regions made by
    /// [`Region::reserve_small_pages`].
    #[inline]
    pub fn set_used(&mut self, used_bytes: usize) {
        let wanted = (used_bytes / HUGE_PAGE_BYTES).min(EXCHANGEABLE);
        if wanted != self.exchanged {
            self.exchange_pages(wanted, used_bytes);
        }
    }

    #[cold]
    fn exchange_pages(&mut self, wanted: usize, used_bytes: usize) {
        if wanted < self.exchanged {
            // What is released from now on splits the huge pages, and what comes again is small.
            self.advise(wanted * HUGE_PAGE_BYTES..SMALL_PAGES_BYTES, Advice::LinuxNoHugepage);
            self.exchanged = wanted;
        }
        while self.exchanged < wanted && used_bytes >= (self.exchanged + 1) * HUGE_PAGE_BYTES + BEYOND_BYTES {
            self.exchange_small_pages(self.exchanged * HUGE_PAGE_BYTES);
            self.exchanged += 1;
        }
    }

    /// Has a huge page back what small ones do: what is written after a release asks for its pages anew. It takes half a millisecond.
    fn exchange_small_pages(&mut self, start: usize) {
        let part = start..start + HUGE_PAGE_BYTES;
        self.advise(part.clone(), Advice::LinuxHugepage);
        // SAFETY: `advise` has checked that the part lies in the mapping; all of its bytes are zero or were written; `&mut self` makes the slice the
        // only access while it lives.
        let kept = unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(start), part.len()) }.to_vec();
        self.release(start, part.len());
        // SAFETY: as above.
        let page = unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(start), part.len()) };
        page.copy_from_slice(&kept);
    }

    /// First byte of the range.
    #[inline]
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Length of the range in bytes.
    #[inline]
    pub fn reserved_bytes(&self) -> usize {
        self.reserved_bytes
    }

    /// Gives the pages of `[offset, offset + bytes)` back to the kernel; they read as zero afterwards.
    ///
    /// # Panics
    /// If the range is outside the region.
    pub fn release(&mut self, offset: usize, bytes: usize) {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.reserved_bytes));
        // SAFETY: the range lies in the mapping (checked above), and `&mut self` shows that nobody else looks at it.
        let released =
            unsafe { madvise(self.base.as_ptr().add(offset).cast::<c_void>(), bytes, Advice::LinuxDontNeed) };
        released.expect("MADV_DONTNEED on a private anonymous mapping cannot fail");
    }
}

/// What the kernel says of regions, to hold against what is accounted.
#[cfg(test)]
pub mod audit {
    use std::cell::RefCell;
    use std::ops::Range;
    use std::thread::LocalKey;

    use super::Region;

    thread_local! {
        static GROWING: RefCell<Vec<Range<usize>>> = const { RefCell::new(Vec::new()) };
        static WHOLE: RefCell<Vec<Range<usize>>> = const { RefCell::new(Vec::new()) };
    }

    /// The address ranges of the regions that this thread has made and not dropped: of those that grow, or of those that are taken as a whole.
    pub(super) fn mapped(grow: bool) -> &'static LocalKey<RefCell<Vec<Range<usize>>>> {
        if grow { &GROWING } else { &WHOLE }
    }

    impl Region {
        pub(super) fn range(&self) -> Range<usize> {
            self.base() as usize..self.base() as usize + self.reserved_bytes
        }

        /// Bytes of the range that the kernel has backed, by its own account.
        pub fn resident_bytes(&self) -> usize {
            resident_bytes(&[self.range()])
        }
    }

    /// The same for all regions of this thread that grow, or all that do not.
    pub fn resident_bytes_of_this_thread(grow: bool) -> usize {
        mapped(grow).with_borrow(|ranges| resident_bytes(ranges))
    }

    fn resident_bytes(ranges: &[Range<usize>]) -> usize {
        let mut inside = false;
        let mut resident_bytes = 0;
        for line in std::fs::read_to_string("/proc/self/smaps").unwrap().lines() {
            let (first, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            if let Some((start, end)) = first.split_once('-') {
                let [start, end] = [start, end].map(|address| usize::from_str_radix(address, 16).unwrap());
                let range = ranges.iter().find(|range| start < range.end && range.start < end);
                let whole = range.is_none_or(|range| range.start <= start && end <= range.end);
                assert!(whole, "the kernel has joined a region with another mapping: {line}");
                inside = range.is_some();
            } else if inside && matches!(first, "Rss:" | "Swap:") {
                resident_bytes += rest.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10;
            }
        }
        resident_bytes
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        #[cfg(test)]
        for ranges in [true, false].map(audit::mapped) {
            ranges.with_borrow_mut(|ranges| ranges.retain(|range| *range != self.range()));
        }
        // SAFETY: the mapping is ours and nothing borrows from it any more.
        let _ = unsafe { munmap(self.mapped.as_ptr().cast::<c_void>(), self.mapped_bytes) };
    }
}

/// Types for which the all-zero bit pattern is a valid value, and which need no drop.
///
/// # Safety
/// Implement it only for types without references, niches or padding that is read.
pub unsafe trait ZeroValid: Copy {}
// SAFETY: plain integers.
unsafe impl ZeroValid for u8 {}
// SAFETY: plain integers.
unsafe impl ZeroValid for u64 {}

/// A growable array that never moves: new elements are zero.
#[derive(Debug)]
pub struct RegionVec<T> {
    region: Region,
    len: usize,
    element: PhantomData<T>,
}

impl<T: ZeroValid> RegionVec<T> {
    /// An empty array with address space for `capacity` elements.
    ///
    /// # Errors
    /// As [`Region::reserve`].
    pub fn with_reserved(capacity: usize) -> io::Result<Self> {
        let region = Region::reserve(capacity.saturating_mul(size_of::<T>()))?;
        Ok(Self { region, len: 0, element: PhantomData })
    }

    /// Elements that the reserved address space has room for.
    pub fn capacity(&self) -> usize {
        self.region.reserved_bytes() / size_of::<T>()
    }

    /// Appends `count` zero elements.
    ///
    /// # Panics
    /// If the reserved address space is exhausted; callers size it by the 4-byte id space or by their budget.
    pub fn grow(&mut self, count: usize) {
        let len = self.len + count;
        assert!(
            len * size_of::<T>() <= self.region.reserved_bytes(),
            "a region of {} bytes is exhausted",
            self.region.reserved_bytes()
        );
        self.region.set_used(len * size_of::<T>());
        self.len = len;
    }

    /// Number of elements.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no element.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that count for the elements, see [`backed_bytes`].
    #[inline]
    pub fn allocated_bytes(&self) -> usize {
        backed_bytes(self.len * size_of::<T>())
    }

    /// All elements.
    #[inline]
    pub fn as_slice(&self) -> &[T] {
        // SAFETY: the first `len` elements lie in the mapping (checked in `grow`), are zero or were written as `T`, and zero is valid.
        unsafe { std::slice::from_raw_parts(self.region.base().cast::<T>(), self.len) }
    }

    /// All elements, to write.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as in `as_slice`; `&mut self` makes it the only access.
        unsafe { std::slice::from_raw_parts_mut(self.region.base().cast::<T>(), self.len) }
    }
}

/// Bytes of a cache line.
pub const LINE_BYTES: usize = 64;

/// One address in each cache line of some bytes, but for the last line where they do not begin with one.
#[inline(always)]
pub fn lines_of(bytes: &[u8]) -> impl Iterator<Item = *const u8> {
    bytes.chunks(LINE_BYTES).map(<[u8]>::as_ptr)
}

/// Asks for a cache line with a hint as `_mm_prefetch` takes it.
#[inline(always)]
fn ask_for<const HINT: i32>(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<HINT>(address.cast::<i8>());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Asks the processor to bring the cache line at `address` near; any address is allowed, wrong ones are ignored.
#[inline(always)]
pub fn prefetch(address: *const u8) {
    const HINT_T0: i32 = 3;
    ask_for::<HINT_T0>(address);
}

/// The same, but not nearer than the cache's second level.
#[inline(always)]
pub fn prefetch_second_level(address: *const u8) {
    const HINT_T1: i32 = 2;
    ask_for::<HINT_T1>(address);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_in_place_and_reads_zero() {
        let mut array = RegionVec::<u64>::with_reserved(1 << 20).unwrap();
        array.grow(10);
        let before = array.as_slice().as_ptr();
        assert!(array.as_slice().iter().all(|&v| v == 0));
        array.as_mut_slice()[9] = 7;
        array.grow(100_000);
        assert_eq!(array.as_slice().as_ptr(), before);
        assert_eq!(array.as_slice()[9], 7);
        assert_eq!(array.as_slice()[50_000], 0);
    }

    #[test]
    #[should_panic(expected = "exhausted")]
    fn a_full_region_says_so() {
        let mut array = RegionVec::<u64>::with_reserved(10).unwrap();
        array.grow(1 << 20);
    }

    #[test]
    fn released_pages_read_zero() {
        let mut region = Region::reserve(4 << 20).unwrap();
        // SAFETY: the first two pages lie in the region.
        unsafe {
            region.base().write(1);
            region.base().add(4096).write(2);
        }
        region.release(0, 4096);
        // SAFETY: as above.
        unsafe {
            assert_eq!(region.base().read(), 0);
            assert_eq!(region.base().add(4096).read(), 2);
        }
    }

    /// Bytes of a region that are backed by huge pages.
    fn huge_bytes(region: &Region) -> usize {
        let base = format!("{:x}-", region.base() as usize);
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let of_region = smaps.lines().skip_while(|line| !line.starts_with(&base));
        let huge = of_region.filter_map(|line| line.strip_prefix("AnonHugePages:")).next().unwrap();
        huge.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    }

    #[test]
    fn a_large_region_has_huge_pages_from_its_beginning_and_the_same_bytes() {
        let mut array = RegionVec::<u64>::with_reserved(4 << 20).unwrap();
        let per_step = HUGE_PAGE_BYTES / size_of::<u64>();
        for step in 1..=4u64 {
            array.grow(per_step);
            let from = array.len() - per_step;
            (0..).zip(&mut array.as_mut_slice()[from..]).for_each(|(at, value)| *value = at ^ step << 40);
            let backed = array.region.resident_bytes();
            assert_eq!(backed, step as usize * HUGE_PAGE_BYTES, "no more than is accounted");
        }
        for (step, values) in (1u64..).zip(array.as_slice().chunks(per_step)) {
            assert!((0..).zip(values).all(|(at, &value)| value == at ^ step << 40), "step {step}");
        }
        assert_eq!(array.region.exchanged, EXCHANGEABLE);
        let modes = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
        if modes.is_ok_and(|modes| !modes.contains("[never]")) {
            // Without an exchange it would be a half; one page may not have been free.
            let huge = huge_bytes(&array.region);
            assert!(huge > 4 * HUGE_PAGE_BYTES / 2, "{huge} bytes in huge pages");
        }
    }

    #[test]
    fn a_region_that_shrinks_takes_small_pages_again() {
        let mut region = Region::reserve(16 << 20).unwrap();
        let write = |region: &mut Region, range: Range<usize>| {
            // SAFETY: the offsets lie in the region.
            range.step_by(4096).for_each(|offset| unsafe { region.base().add(offset).write(1) });
        };
        for _ in 0..3 {
            region.set_used(6 << 20);
            write(&mut region, 0..6 << 20);
            assert_eq!((region.exchanged, region.resident_bytes()), (2, 6 << 20));
            region.release(1 << 20, 5 << 20);
            region.set_used(1 << 20);
            assert_eq!((region.exchanged, region.resident_bytes()), (0, 1 << 20));
            write(&mut region, 3 << 20..(3 << 20) + 1);
            assert_eq!(region.resident_bytes(), (1 << 20) + 4096, "small again");
        }
    }

    #[test]
    fn a_little_more_and_less_does_not_exchange_pages() {
        let mut region = Region::reserve(16 << 20).unwrap();
        region.set_used(HUGE_PAGE_BYTES + BEYOND_BYTES - 1);
        assert_eq!(region.exchanged, 0);
        region.set_used(HUGE_PAGE_BYTES + BEYOND_BYTES);
        assert_eq!(region.exchanged, 1);
        region.set_used(HUGE_PAGE_BYTES);
        assert_eq!(region.exchanged, 1);
        region.set_used(HUGE_PAGE_BYTES - 1);
        assert_eq!(region.exchanged, 0);
    }

    #[test]
    fn small_pages_are_taken_and_given_back_one_by_one() {
        let mut region = Region::reserve_small_pages(16 << 20).unwrap();
        assert_eq!(region.resident_bytes(), 0);
        for offset in [0, 8 << 20, 10 << 20, (16 << 20) - 1] {
            // SAFETY: the offsets lie in the region.
            unsafe { region.base().add(offset).write(1) };
        }
        assert_eq!(region.resident_bytes(), 4 * 4096);
        region.release(8 << 20, 4096);
        assert_eq!(region.resident_bytes(), 3 * 4096);
    }
}
