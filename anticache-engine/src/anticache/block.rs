//! The format of a block: a fixed-size unit of evicted tuples of one table (paper §3.1).
//!
//! All numbers are little-endian.
//!
//! ```text
//! header, 64 bytes                          then for every tuple
//!  0  magic "ACB1"        4                  0  length of the row       4
//!  4  format version (3)  2                  4  checksum                4
//!  6  table id            2                  8  Evicted Table entry     4
//!  8  block id            4                 12  serialized row, see the catalog
//! 12  number of tuples    4
//! 16  created, µs of 1970 8
//! 24  bytes used          4
//! 28  partition           4
//! 32  zero               28
//! 60  checksum of 0..60   4
//! ```
//!
//! A tuple that would lie in one sector more than it has to begins with the next sector, if that leaves little empty: its fetch then reads one less. The gap
//! has the length 0xffffffff, if there is room for one. Version 2, which is read as well, had no gaps.
//!
//! The number of its Evicted Table entry tells whether a tuple is still here: the entry then refers to this block and offset.
//!
//! A tuple's checksum covers block id, creation time, offset, entry, length and row, so that a stale or misplaced block, or a wrong offset, is
//! noticed for each tuple alone: tuple-merge verifies only what it takes, and a later reader may fetch only the sectors it needs.

use super::checksum::checksum;
use super::evicted_table::EvictedId;
use crate::catalog::TableId;
use crate::error::BlockError;
use crate::io::{AlignedBuf, DIRECT_IO_ALIGN_BYTES as SECTOR_BYTES};

/// Bytes of a block's header.
pub const BLOCK_HEADER_BYTES: usize = 64;
/// Bytes before each row in a block.
pub const TUPLE_PREFIX_BYTES: usize = 12;

const MAGIC: [u8; 4] = *b"ACB1";
const VERSION: u16 = 3;
/// The version before, without gaps.
const WITHOUT_GAPS: u16 = 2;
/// What stands in a gap in the place of a length.
const GAP: u32 = u32::MAX;
const LENGTH_BYTES: usize = 4;
/// The tuple behind a gap is so many times as long at least.
const GAPS_OF_A_TUPLE: usize = 16;

/// Where a tuple with a row of `row_bytes` begins when those before it end at `used`: there, or with the next sector.
fn beginning(used: usize, row_bytes: usize) -> usize {
    let bytes = TUPLE_PREFIX_BYTES + row_bytes;
    let next = used.next_multiple_of(SECTOR_BYTES);
    let sectors = |at: usize| (at + bytes).div_ceil(SECTOR_BYTES) - at / SECTOR_BYTES;
    let is_worth_it = (next - used) * GAPS_OF_A_TUPLE <= bytes && sectors(next) < sectors(used);
    // Where a length does not fit, a tuple's could not be told from a gap's.
    if is_worth_it || next - used < LENGTH_BYTES { next } else { used }
}

/// What identifies a block; kept in memory by the Block Table and compared with the header at every read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockIdentity {
    /// Partition that wrote it.
    pub partition: u32,
    /// Its id.
    pub block_id: u32,
    /// The table that its tuples belong to.
    pub table: TableId,
    /// When it was made, in microseconds since 1970; distinguishes the users of a reused id.
    pub created_us: u64,
}

impl BlockIdentity {
    fn tuple_checksum(&self, offset: u32, entry: EvictedId, row: &[u8]) -> u32 {
        // Little-endian: block id, creation time, offset, length of the row, entry.
        let head = [
            u64::from(self.block_id) | self.created_us << 32,
            self.created_us >> 32 | u64::from(offset) << 32,
            row.len() as u64 | u64::from(entry) << 32,
        ];
        checksum(head, row)
    }
}

/// Fills a block.
#[derive(Debug)]
pub struct BlockBuilder {
    identity: BlockIdentity,
    buffer: AlignedBuf,
    used: usize,
    tuples: u32,
}

impl BlockBuilder {
    /// Starts a block in `buffer`, whose length is the block size.
    pub fn new(identity: BlockIdentity, buffer: AlignedBuf) -> Self {
        Self { identity, buffer, used: BLOCK_HEADER_BYTES, tuples: 0 }
    }

    /// What the block is known by.
    pub fn identity(&self) -> BlockIdentity {
        self.identity
    }

    /// Rows of `row_bytes` that fit in a block of `block_bytes`.
    pub fn capacity(block_bytes: usize, row_bytes: usize) -> usize {
        let end = |used: usize| beginning(used, row_bytes) + TUPLE_PREFIX_BYTES + row_bytes;
        std::iter::successors(Some(BLOCK_HEADER_BYTES), |&used| Some(end(used)).filter(|&end| end <= block_bytes))
            .skip(1)
            .count()
    }

    /// Offset that a row of `row_bytes` would get; `None` when the block is full.
    pub fn place_for(&self, row_bytes: usize) -> Option<u32> {
        let at = beginning(self.used, row_bytes);
        (at + TUPLE_PREFIX_BYTES + row_bytes <= self.buffer.len()).then_some(at as u32)
    }

    /// Appends the serialized row of an Evicted Table entry.
    ///
    /// # Panics
    /// If the block is full, see [`BlockBuilder::place_for`].
    pub fn push(&mut self, entry: EvictedId, row: &[u8]) {
        let at = beginning(self.used, row.len());
        self.buffer[self.used..at].fill(GAP as u8);
        let (offset, end) = (at as u32, at + TUPLE_PREFIX_BYTES + row.len());
        let slot = &mut self.buffer[at..end];
        slot[0..4].copy_from_slice(&(row.len() as u32).to_le_bytes());
        slot[4..8].copy_from_slice(&self.identity.tuple_checksum(offset, entry, row).to_le_bytes());
        slot[8..12].copy_from_slice(&entry.to_le_bytes());
        slot[12..].copy_from_slice(row);
        self.used = end;
        self.tuples += 1;
    }

    /// Tuples so far.
    pub fn tuples(&self) -> u32 {
        self.tuples
    }

    /// Bytes used so far, header included.
    pub fn used_bytes(&self) -> u32 {
        self.used as u32
    }

    /// Writes the header and gives the block.
    pub fn finish(mut self) -> AlignedBuf {
        self.buffer[self.used..].fill(0);
        let header = &mut self.buffer[..BLOCK_HEADER_BYTES];
        header.fill(0);
        header[0..4].copy_from_slice(&MAGIC);
        header[4..6].copy_from_slice(&VERSION.to_le_bytes());
        header[6..8].copy_from_slice(&self.identity.table.to_le_bytes());
        header[8..12].copy_from_slice(&self.identity.block_id.to_le_bytes());
        header[12..16].copy_from_slice(&self.tuples.to_le_bytes());
        header[16..24].copy_from_slice(&self.identity.created_us.to_le_bytes());
        header[24..28].copy_from_slice(&(self.used as u32).to_le_bytes());
        header[28..32].copy_from_slice(&self.identity.partition.to_le_bytes());
        let checksum = crc32c::crc32c(&header[..60]);
        header[60..64].copy_from_slice(&checksum.to_le_bytes());
        self.buffer
    }

    /// Gives the buffer back unused.
    pub fn into_buffer(self) -> AlignedBuf {
        self.buffer
    }
}

/// A block that was read and whose header is that of the wanted block.
#[derive(Debug, Clone, Copy)]
pub struct BlockView<'block> {
    identity: BlockIdentity,
    /// What was read of it.
    bytes: &'block [u8],
    /// Where that lies in the block.
    start: usize,
    /// Where its first readable tuple may begin, in the block.
    first: usize,
    /// Where its last one ends.
    used: usize,
    tuples: u32,
    has_gaps: bool,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(number)
}

impl<'block> BlockView<'block> {
    /// Checks the header against `identity`.
    ///
    /// # Errors
    /// [`BlockError::Header`] or [`BlockError::HeaderChecksum`].
    pub fn open(identity: BlockIdentity, bytes: &'block [u8]) -> Result<Self, BlockError> {
        let block_id = identity.block_id;
        let wrong = |found: String, expected: String| BlockError::Header { block_id, found, expected };
        if bytes.len() < BLOCK_HEADER_BYTES {
            return Err(wrong(format!("{} bytes", bytes.len()), format!("at least {BLOCK_HEADER_BYTES} bytes")));
        }
        let expected = crc32c::crc32c(&bytes[..60]);
        let found = u32_at(bytes, 60);
        if found != expected {
            return Err(BlockError::HeaderChecksum { block_id, found, expected });
        }
        let version = u16::from_le_bytes([bytes[4], bytes[5]]);
        if bytes[0..4] != MAGIC || ![WITHOUT_GAPS, VERSION].contains(&version) {
            return Err(wrong(
                format!("magic and version {:02x?}", &bytes[0..6]),
                format!("{MAGIC:02x?} and {WITHOUT_GAPS} or {VERSION}"),
            ));
        }
        let mut created = [0; 8];
        created.copy_from_slice(&bytes[16..24]);
        let stored = BlockIdentity {
            partition: u32_at(bytes, 28),
            block_id: u32_at(bytes, 8),
            table: u16::from_le_bytes([bytes[6], bytes[7]]),
            created_us: u64::from_le_bytes(created),
        };
        if stored != identity {
            return Err(wrong(format!("{stored:?}"), format!("{identity:?}")));
        }
        let used = u32_at(bytes, 24) as usize;
        if !(BLOCK_HEADER_BYTES..=bytes.len()).contains(&used) {
            return Err(wrong(format!("{used} bytes used"), format!("at most {}", bytes.len())));
        }
        let (tuples, has_gaps) = (u32_at(bytes, 12), version != WITHOUT_GAPS);
        Ok(Self { identity, bytes, start: 0, first: BLOCK_HEADER_BYTES, used, tuples, has_gaps })
    }

    /// A block of which only the `bytes` from `start` on were read. Without the header, a tuple's own checksum tells whether it is the wanted block's.
    pub fn of_part(identity: BlockIdentity, bytes: &'block [u8], start: usize) -> Self {
        Self {
            identity,
            bytes,
            start,
            first: start.max(BLOCK_HEADER_BYTES),
            used: start + bytes.len(),
            tuples: 0,
            has_gaps: false,
        }
    }

    /// Whether a tuple at this offset begins in what was read.
    pub fn covers(&self, offset: u32) -> bool {
        (self.first..self.used).contains(&(offset as usize))
    }

    /// Tuples that were put into the block, holes included.
    pub fn tuples(&self) -> u32 {
        self.tuples
    }

    /// The tuple at `offset`, verified.
    ///
    /// # Errors
    /// [`BlockError::TupleBounds`] or [`BlockError::TupleChecksum`].
    pub fn tuple(&self, offset: u32) -> Result<BlockTuple<'block>, BlockError> {
        let block_id = self.identity.block_id;
        let start = offset as usize + TUPLE_PREFIX_BYTES;
        if start > self.used || (offset as usize) < self.first {
            return Err(BlockError::TupleBounds { block_id, offset, length: 0 });
        }
        let at = offset as usize - self.start;
        let length = u32_at(self.bytes, at);
        let Some(end) = start.checked_add(length as usize).filter(|&end| end <= self.used) else {
            return Err(BlockError::TupleBounds { block_id, offset, length });
        };
        let row = &self.bytes[start - self.start..end - self.start];
        let entry = u32_at(self.bytes, at + 8);
        let expected = self.identity.tuple_checksum(offset, entry, row);
        let found = u32_at(self.bytes, at + 4);
        if found != expected {
            return Err(BlockError::TupleChecksum { block_id, offset, found, expected });
        }
        Ok(BlockTuple { offset, entry, row })
    }

    /// Where the tuple behind the one that ends at `offset` begins.
    fn behind_gap(&self, offset: u32) -> u32 {
        let next = offset.next_multiple_of(SECTOR_BYTES as u32);
        let is_gap = || (next - offset) < LENGTH_BYTES as u32 || u32_at(self.bytes, offset as usize) == GAP;
        if self.has_gaps && (next as usize) < self.used && is_gap() { next } else { offset }
    }

    /// All tuples, holes included; stops after the first error. That there are fewer than the header says is one: something else was taken for a gap.
    pub fn all(&self) -> impl Iterator<Item = Result<BlockTuple<'block>, BlockError>> + use<'block> {
        let view = *self;
        let (mut at, mut found) = (view.first as u32, 0);
        let mut ended = false;
        std::iter::from_fn(move || {
            if ended {
                return None;
            }
            if at as usize >= view.used {
                ended = true;
                return (found < view.tuples).then(|| Err(view.too_few(found)));
            }
            let tuple = view.tuple(view.behind_gap(at));
            match &tuple {
                Ok(tuple) => at = tuple.offset + (TUPLE_PREFIX_BYTES + tuple.row.len()) as u32,
                Err(_) => ended = true,
            }
            found += 1;
            Some(tuple)
        })
    }

    fn too_few(&self, found: u32) -> BlockError {
        let block_id = self.identity.block_id;
        BlockError::Read { block_id, problem: format!("{found} of its {} tuples are there", self.tuples) }
    }
}

/// A tuple in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockTuple<'block> {
    /// Offset in the block.
    pub offset: u32,
    /// Its Evicted Table entry when the block was written.
    pub entry: EvictedId,
    /// Serialized row.
    pub row: &'block [u8],
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::io::aligned_buf;

    const IDENTITY: BlockIdentity = BlockIdentity { partition: 3, block_id: 17, table: 2, created_us: 1_234_567 };

    fn build(rows: &[Vec<u8>]) -> (AlignedBuf, Vec<u32>) {
        let mut builder = BlockBuilder::new(IDENTITY, aligned_buf(8192));
        let mut push = |(entry, row): (usize, &Vec<u8>)| {
            let offset = builder.place_for(row.len())?;
            builder.push(entry as u32, row);
            Some(offset)
        };
        let offsets = rows.iter().enumerate().map_while(&mut push).collect();
        (builder.finish(), offsets)
    }

    fn rows(bytes: std::ops::Range<usize>, count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Vec<u8>>> {
        prop::collection::vec(prop::collection::vec(any::<u8>(), bytes), count)
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out(rows in rows(0..300, 0..60)) {
            let (block, offsets) = build(&rows);
            let view = BlockView::open(IDENTITY, &block).unwrap();
            prop_assert_eq!(view.tuples() as usize, offsets.len());
            for (entry, (&offset, row)) in offsets.iter().zip(&rows).enumerate() {
                prop_assert_eq!(view.tuple(offset).unwrap(), BlockTuple { offset, entry: entry as u32, row });
            }
            let all: Result<Vec<_>, _> = view.all().map(|tuple| tuple.map(|tuple| tuple.offset)).collect();
            prop_assert_eq!(all.unwrap(), offsets.clone());
            for (row, offset) in rows.iter().zip(offsets) {
                let bytes = TUPLE_PREFIX_BYTES + row.len();
                let sectors = (offset as usize + bytes).div_ceil(SECTOR_BYTES) - offset as usize / SECTOR_BYTES;
                let room = SECTOR_BYTES - offset as usize % SECTOR_BYTES;
                prop_assert!(sectors == 1 || room * GAPS_OF_A_TUPLE > bytes, "{} bytes at {}", bytes, offset);
            }
        }

        #[test]
        fn one_flipped_bit_never_gives_wrong_data(
            rows in rows(1..200, 1..30),
            position in any::<prop::sample::Index>(),
            bit in 0..8u8,
        ) {
            let (block, offsets) = build(&rows);
            let mut damaged = block.clone();
            damaged[position.index(block.len())] ^= 1 << bit;
            if let Ok(view) = BlockView::open(IDENTITY, &damaged) {
                for (offset, row) in offsets.iter().zip(&rows) {
                    if let Ok(read) = view.tuple(*offset) {
                        prop_assert_eq!(read.row, row.as_slice());
                    }
                }
            }
        }

        #[test]
        fn arbitrary_bytes_are_an_error_not_a_crash(bytes in prop::collection::vec(any::<u8>(), 0..300), offset in any::<u32>()) {
            prop_assert!(BlockView::open(IDENTITY, &bytes).is_err());
            let (block, _) = build(&[bytes]);
            let _ = BlockView::open(IDENTITY, &block).unwrap().tuple(offset);
        }
    }

    /// Rows of YCSB's size, of which but one in a block lies in two sectors.
    #[test]
    fn tuples_keep_to_their_sectors() {
        let capacity = BlockBuilder::capacity(1 << 20, 1000);
        let mut builder = BlockBuilder::new(IDENTITY, aligned_buf(1 << 20));
        let mut offsets = Vec::new();
        while let Some(offset) = builder.place_for(1000) {
            builder.push(offsets.len() as u32, &[1; 1000]);
            offsets.push(offset);
        }
        let crossing = offsets.iter().filter(|&&offset| offset as usize % SECTOR_BYTES + 1012 > SECTOR_BYTES);
        assert_eq!((offsets.len(), crossing.count()), (capacity, 1));
        assert!(capacity > 1020, "{capacity}");
    }

    /// The end of a sector in which every bit was set looks like a gap.
    #[test]
    fn a_tuple_that_is_taken_for_a_gap_is_missed() {
        // Four fill what the header leaves of the first sector.
        let (mut block, offsets) = build(&vec![vec![1; 996]; 7]);
        assert_eq!(offsets[4] as usize, SECTOR_BYTES);
        block[offsets[3] as usize..SECTOR_BYTES].fill(0xff);
        let all: Vec<_> = BlockView::open(IDENTITY, &block).unwrap().all().collect();
        let (last, others) = all.split_last().unwrap();
        assert!(others.len() == 6 && others.iter().all(Result::is_ok), "{all:?}");
        assert!(last.as_ref().unwrap_err().to_string().contains("6 of its 7 tuples"), "{last:?}");
    }

    /// Version 2 is version 3 without gaps, as blocks of rows that need none are.
    #[test]
    fn blocks_of_the_version_before_are_read() {
        let (mut block, offsets) = build(&[b"row".to_vec(), b"another".to_vec()]);
        block[4..6].copy_from_slice(&WITHOUT_GAPS.to_le_bytes());
        let checksum = crc32c::crc32c(&block[..60]);
        block[60..64].copy_from_slice(&checksum.to_le_bytes());
        let all: Result<Vec<_>, _> = BlockView::open(IDENTITY, &block).unwrap().all().collect();
        assert_eq!(all.unwrap().iter().map(|tuple| tuple.offset).collect::<Vec<_>>(), offsets);
        block[4] = 1;
        let checksum = crc32c::crc32c(&block[..60]);
        block[60..64].copy_from_slice(&checksum.to_le_bytes());
        assert!(BlockView::open(IDENTITY, &block).unwrap_err().to_string().contains("version"));
    }

    #[test]
    fn a_block_of_another_life_is_refused() {
        let (block, offsets) = build(&[b"row".to_vec()]);
        for other in [
            BlockIdentity { block_id: 18, ..IDENTITY },
            BlockIdentity { created_us: 1, ..IDENTITY },
            BlockIdentity { table: 3, ..IDENTITY },
            BlockIdentity { partition: 0, ..IDENTITY },
        ] {
            let error = BlockView::open(other, &block).unwrap_err();
            assert!(matches!(error, BlockError::Header { .. }), "{error}");
        }
        assert_eq!(offsets, [BLOCK_HEADER_BYTES as u32]);
    }

    #[test]
    fn a_full_block_refuses_another_row() {
        let capacity = BlockBuilder::capacity(8192, 100);
        let mut builder = BlockBuilder::new(IDENTITY, aligned_buf(8192));
        for _ in 0..capacity {
            assert!(builder.place_for(100).is_some());
            builder.push(0, &[1; 100]);
        }
        assert_eq!(builder.place_for(100), None);
        assert_eq!(builder.tuples() as usize, capacity);
    }
}
