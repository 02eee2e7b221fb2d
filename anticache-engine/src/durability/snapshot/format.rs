//! The snapshot file of a partition, byte by byte.
//!
//! `snapshot-PPPP-NNNNNNNN.db` (partition, generation): one extent behind the other, direct I/O, little-endian numbers. An extent is at most as long as
//! the first one says and padded with zeros to a multiple of 4096:
//!
//! ```text
//!  0  magic "ACSX"       4        24  bytes of the payload   4
//!  4  format version (2) 2        28  zero                  28
//!  6  kind               2        56  partition              4
//!  8  generation         8        60  checksum               4   over the header (this field zero) and the payload
//! 16  number, from 0     4        64  payload
//! 20  items              4
//!
//! kind 0, beginning   sequence:8 begun:8 (µs of 1970) extent bytes:4 block bytes:4 block ids:4, for each table entries:4 tuples:4
//! kind 1, rows        items: table:2 length:2 serialized row
//! kind 2, entries     items: table:2 length:2 entry:4 block:4 offset:4 indexed columns
//! kind 3, blocks      items: block:4 table:2 zero:2 tuples:4 created:8 used bytes:4
//! kind 4, end         rows:8 entries:8 blocks:8
//! ```
//!
//! The beginning comes first, the end last, the others in any order. Rows and entries are those of [`crate::storage::table::capture::Item`]. `sequence`: the
//! records of the command log below it are contained. `block ids` and `entries`: every block id and every entry's number is below, so that recovery can
//! give out others while it reads; `tuples` says how many come, in memory or evicted, for which it makes room at once. Blocks themselves are not in the file; a block's identity is what its header in the block file shows.

use crate::anticache::block::BlockIdentity;
use crate::io::{AlignedBuf, DIRECT_IO_ALIGN_BYTES};

/// Bytes of an extent's header.
pub const EXTENT_HEADER_BYTES: usize = 64;
/// Bytes of a block in a snapshot.
pub const BLOCK_ITEM_BYTES: usize = 24;
const MAGIC: [u8; 4] = *b"ACSX";
const VERSION: u16 = 2;

/// Name of a snapshot file.
pub fn file_name(partition: u32, generation: u64) -> String {
    format!("snapshot-{partition:04}-{generation:08}.db")
}

/// What an extent holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// What the snapshot is.
    Beginning = 0,
    /// Tuples in memory.
    Rows = 1,
    /// Evicted Table entries.
    Entries = 2,
    /// The Block Table.
    Blocks = 3,
    /// Totals: a file that was cut off has none.
    End = 4,
}

impl Kind {
    fn of(number: u16) -> Option<Self> {
        [Self::Beginning, Self::Rows, Self::Entries, Self::Blocks, Self::End]
            .into_iter()
            .find(|&kind| kind as u16 == number)
    }
}

/// Whose extents they are; the same in every extent of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// Partition.
    pub partition: u32,
    /// Generation of the snapshot.
    pub generation: u64,
}

/// What does not fit in a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("found {found}, expected {expected}")]
pub struct Damage {
    /// What should be there.
    pub expected: String,
    /// What is there.
    pub found: String,
}

/// Fills an extent.
#[derive(Debug)]
pub struct ExtentBuilder {
    buffer: AlignedBuf,
    kind: Kind,
    used: usize,
    items: u32,
}

impl ExtentBuilder {
    /// Starts an extent in `buffer`, whose length is its greatest.
    pub fn new(buffer: AlignedBuf, kind: Kind) -> Self {
        Self { buffer, kind, used: EXTENT_HEADER_BYTES, items: 0 }
    }

    /// What it holds.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether an item of `bytes` fits.
    pub fn fits(&self, bytes: usize) -> bool {
        self.used + bytes <= self.buffer.len()
    }

    /// Appends an item of `bytes`, written by `write`.
    ///
    /// # Panics
    /// If it does not fit.
    pub fn push(&mut self, bytes: usize, write: impl FnOnce(&mut [u8])) {
        write(&mut self.buffer[self.used..self.used + bytes]);
        self.used += bytes;
        self.items += 1;
    }

    /// Writes the header and gives the extent, cut to whole pages.
    pub fn finish(mut self, owner: Owner, number: u32) -> AlignedBuf {
        let bytes = self.used.next_multiple_of(DIRECT_IO_ALIGN_BYTES);
        self.buffer.truncate(bytes);
        self.buffer[self.used..].fill(0);
        let payload = (self.used - EXTENT_HEADER_BYTES) as u32;
        let header = &mut self.buffer[..EXTENT_HEADER_BYTES];
        header.fill(0);
        header[0..4].copy_from_slice(&MAGIC);
        header[4..6].copy_from_slice(&VERSION.to_le_bytes());
        header[6..8].copy_from_slice(&(self.kind as u16).to_le_bytes());
        header[8..16].copy_from_slice(&owner.generation.to_le_bytes());
        header[16..20].copy_from_slice(&number.to_le_bytes());
        header[20..24].copy_from_slice(&self.items.to_le_bytes());
        header[24..28].copy_from_slice(&payload.to_le_bytes());
        header[56..60].copy_from_slice(&owner.partition.to_le_bytes());
        let checksum = crc32c::crc32c(&self.buffer[..self.used]);
        self.buffer[60..64].copy_from_slice(&checksum.to_le_bytes());
        self.buffer
    }

    /// Gives the buffer back unused.
    pub fn into_buffer(self) -> AlignedBuf {
        self.buffer
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |four| u32::from_le_bytes(*four))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |eight| u64::from_le_bytes(*eight))
}

/// An extent that was read and is whole.
#[derive(Debug, Clone, Copy)]
pub struct ExtentView<'bytes> {
    /// What it holds.
    pub kind: Kind,
    /// Number of items.
    pub items: u32,
    /// The items.
    pub payload: &'bytes [u8],
}

impl<'bytes> ExtentView<'bytes> {
    /// Length on disk of the extent that begins with these bytes, at least a header, as far as its header can be believed.
    pub fn padded_bytes(bytes: &[u8]) -> usize {
        (EXTENT_HEADER_BYTES + u32_at(bytes, 24) as usize).next_multiple_of(DIRECT_IO_ALIGN_BYTES)
    }

    /// The extent `number` of a snapshot.
    ///
    /// # Errors
    /// What does not fit.
    pub fn open(bytes: &'bytes [u8], owner: Owner, number: u32) -> Result<Self, Damage> {
        let damage = |expected: String, found: String| Err(Damage { expected, found });
        if bytes.len() < EXTENT_HEADER_BYTES || bytes[0..4] != MAGIC {
            let found = format!("{:02x?}", &bytes[..bytes.len().min(4)]);
            return damage(format!("extent {number}, which begins with {MAGIC:02x?}"), found);
        }
        if u16_at(bytes, 4) != VERSION {
            return damage(format!("format version {VERSION}"), u16_at(bytes, 4).to_string());
        }
        let used = EXTENT_HEADER_BYTES + u32_at(bytes, 24) as usize;
        if used > bytes.len() {
            return damage(format!("an extent of at most {} bytes", bytes.len()), format!("one of {used}"));
        }
        let mut header = [0; EXTENT_HEADER_BYTES];
        header.copy_from_slice(&bytes[..EXTENT_HEADER_BYTES]);
        header[60..].fill(0);
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&header), &bytes[EXTENT_HEADER_BYTES..used]);
        if checksum != u32_at(bytes, 60) {
            return damage(format!("checksum {checksum:#010x}"), format!("{:#010x}", u32_at(bytes, 60)));
        }
        let (of, at) = (Owner { partition: u32_at(bytes, 56), generation: u64_at(bytes, 8) }, u32_at(bytes, 16));
        if (of, at) != (owner, number) {
            return damage(format!("extent {number} of {owner:?}"), format!("extent {at} of {of:?}"));
        }
        let Some(kind) = Kind::of(u16_at(bytes, 6)) else {
            return damage("a kind from 0 to 4".to_owned(), u16_at(bytes, 6).to_string());
        };
        Ok(Self { kind, items: u32_at(bytes, 20), payload: &bytes[EXTENT_HEADER_BYTES..used] })
    }

    /// Hands out the items, each with its offset in the extent. `parse` gives the item at the beginning of some bytes, and how many it takes.
    ///
    /// # Errors
    /// Items that are not as many as announced, or what `each` says.
    pub fn each<T>(
        &self,
        parse: impl Fn(&'bytes [u8]) -> Option<(T, usize)>,
        mut each: impl FnMut(T) -> Result<(), Damage>,
    ) -> Result<(), Damage> {
        let mut rest = self.payload;
        for item in 0..self.items {
            let (parsed, bytes) = parse(rest).ok_or_else(|| Damage {
                expected: format!("{} items", self.items),
                found: format!("{item}, and {} bytes that are none", rest.len()),
            })?;
            each(parsed)?;
            rest = &rest[bytes..];
        }
        if rest.is_empty() {
            return Ok(());
        }
        Err(Damage { expected: format!("{} items", self.items), found: format!("{} bytes behind them", rest.len()) })
    }
}

/// How much of a table a snapshot has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableSize {
    /// Every Evicted Table entry has a lower number.
    pub entries: u32,
    /// Tuples, in memory or evicted.
    pub tuples: u32,
}

/// What the first extent says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beginning {
    /// Records of the command log below this one are contained.
    pub sequence: u64,
    /// When the snapshot began, in microseconds since 1970.
    pub begun_us: u64,
    /// Greatest length of an extent.
    pub extent_bytes: u32,
    /// Size of a block; 0 without anti-caching.
    pub block_bytes: u32,
    /// Every block id is below.
    pub block_ids: u32,
    /// Of each table.
    pub tables: Vec<TableSize>,
}

const BEGINNING_FIXED_BYTES: usize = 28;
const TABLE_SIZE_BYTES: usize = 8;

impl Beginning {
    /// Bytes of the payload.
    pub fn bytes(&self) -> usize {
        BEGINNING_FIXED_BYTES + TABLE_SIZE_BYTES * self.tables.len()
    }

    /// Its form in a snapshot.
    pub fn write(&self, out: &mut [u8]) {
        out[0..8].copy_from_slice(&self.sequence.to_le_bytes());
        out[8..16].copy_from_slice(&self.begun_us.to_le_bytes());
        out[16..20].copy_from_slice(&self.extent_bytes.to_le_bytes());
        out[20..24].copy_from_slice(&self.block_bytes.to_le_bytes());
        out[24..28].copy_from_slice(&self.block_ids.to_le_bytes());
        for (place, table) in out[BEGINNING_FIXED_BYTES..].chunks_exact_mut(TABLE_SIZE_BYTES).zip(&self.tables) {
            place[..4].copy_from_slice(&table.entries.to_le_bytes());
            place[4..].copy_from_slice(&table.tuples.to_le_bytes());
        }
    }

    /// The payload of the first extent.
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let tables = payload.get(BEGINNING_FIXED_BYTES..).filter(|rest| rest.len().is_multiple_of(TABLE_SIZE_BYTES))?;
        let size_of = |bytes: &[u8]| TableSize { entries: u32_at(bytes, 0), tuples: u32_at(bytes, 4) };
        Some(Self {
            sequence: u64_at(payload, 0),
            begun_us: u64_at(payload, 8),
            extent_bytes: u32_at(payload, 16),
            block_bytes: u32_at(payload, 20),
            block_ids: u32_at(payload, 24),
            tables: tables.chunks_exact(TABLE_SIZE_BYTES).map(size_of).collect(),
        })
    }
}

/// A block as a snapshot names it.
pub fn write_block(identity: &BlockIdentity, tuples: u32, used_bytes: u32, out: &mut [u8]) {
    out[0..4].copy_from_slice(&identity.block_id.to_le_bytes());
    out[4..6].copy_from_slice(&identity.table.to_le_bytes());
    out[6..8].fill(0);
    out[8..12].copy_from_slice(&tuples.to_le_bytes());
    out[12..20].copy_from_slice(&identity.created_us.to_le_bytes());
    out[20..24].copy_from_slice(&used_bytes.to_le_bytes());
}

/// The block at the beginning of `bytes` with its tuples and the bytes used of it, and what it takes here.
pub fn parse_block(partition: u32, bytes: &[u8]) -> Option<((BlockIdentity, u32, u32), usize)> {
    let bytes = bytes.get(..BLOCK_ITEM_BYTES)?;
    let (block_id, table, created_us) = (u32_at(bytes, 0), u16_at(bytes, 4), u64_at(bytes, 12));
    let identity = BlockIdentity { partition, block_id, table, created_us };
    Some(((identity, u32_at(bytes, 8), u32_at(bytes, 20)), BLOCK_ITEM_BYTES))
}

/// What a snapshot contains altogether.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Tuples in memory.
    pub rows: u64,
    /// Evicted tuples.
    pub entries: u64,
    /// Blocks referred to.
    pub blocks: u64,
}

impl Totals {
    /// Bytes of the payload.
    pub const BYTES: usize = 24;

    /// Its form in a snapshot.
    pub fn write(&self, out: &mut [u8]) {
        for (place, number) in out.chunks_exact_mut(8).zip([self.rows, self.entries, self.blocks]) {
            place.copy_from_slice(&number.to_le_bytes());
        }
    }

    /// The payload of the last extent.
    pub fn parse(payload: &[u8]) -> Option<Self> {
        (payload.len() == Self::BYTES).then(|| Self {
            rows: u64_at(payload, 0),
            entries: u64_at(payload, 8),
            blocks: u64_at(payload, 16),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::anticache::evicted_table::Location;
    use crate::io::aligned_buf;
    use crate::storage::table::capture::Item;

    const OWNER: Owner = Owner { partition: 3, generation: 7 };

    fn rows_extent(rows: &[Vec<u8>]) -> AlignedBuf {
        let mut extent = ExtentBuilder::new(aligned_buf(16 << 10), Kind::Rows);
        for row in rows {
            let item = Item::Row { table: 2, row };
            if extent.fits(item.bytes()) {
                extent.push(item.bytes(), |out| item.write(out));
            }
        }
        extent.finish(OWNER, 5)
    }

    fn read(bytes: &[u8]) -> Result<Vec<Vec<u8>>, Damage> {
        let mut found = Vec::new();
        ExtentView::open(bytes, OWNER, 5)?.each(Item::parse_row, |item| {
            if let Item::Row { row, .. } = item {
                found.push(row.to_vec());
            }
            Ok(())
        })?;
        Ok(found)
    }

    proptest! {
        #[test]
        fn rows_come_back_and_no_flipped_bit_gives_others(
            rows in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..40),
            position in any::<prop::sample::Index>(),
            bit in 0..8u8,
        ) {
            let extent = rows_extent(&rows);
            prop_assert_eq!(ExtentView::padded_bytes(&extent), extent.len());
            prop_assert_eq!(read(&extent).unwrap(), rows.clone());
            let mut damaged = extent.clone();
            damaged[position.index(extent.len())] ^= 1 << bit;
            if let Ok(read) = read(&damaged) {
                prop_assert_eq!(read, rows);
            }
        }

        #[test]
        fn arbitrary_bytes_are_an_error_not_a_crash(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(read(&bytes).is_err());
            let _ = (Beginning::parse(&bytes), Totals::parse(&bytes), Item::parse_entry(&bytes), parse_block(0, &bytes));
        }
    }

    #[test]
    fn an_extent_of_another_snapshot_or_place_is_refused() {
        let extent = rows_extent(&[b"row".to_vec()]);
        for (owner, number) in [(Owner { partition: 4, ..OWNER }, 5), (Owner { generation: 8, ..OWNER }, 5), (OWNER, 6)]
        {
            let damage = ExtentView::open(&extent, owner, number).unwrap_err();
            assert_eq!(damage.found, format!("extent 5 of {OWNER:?}"));
        }
    }

    #[test]
    fn what_is_written_is_parsed() {
        let tables = vec![TableSize { entries: 6, tuples: 7 }, TableSize { entries: 8, tuples: 9 }];
        let beginning = Beginning { sequence: 1, begun_us: 2, extent_bytes: 3, block_bytes: 4, block_ids: 5, tables };
        let mut bytes = vec![0; beginning.bytes()];
        beginning.write(&mut bytes);
        assert_eq!(Beginning::parse(&bytes), Some(beginning));
        let identity = BlockIdentity { partition: 3, block_id: 9, table: 8, created_us: 10 };
        let mut bytes = [0; BLOCK_ITEM_BYTES];
        write_block(&identity, 11, 12, &mut bytes);
        assert_eq!(parse_block(3, &bytes), Some(((identity, 11, 12), BLOCK_ITEM_BYTES)));
        let item = Item::Entry { table: 1, id: 2, location: Location { block_id: 3, offset: 64 }, image: b"columns" };
        let mut bytes = vec![0; item.bytes()];
        item.write(&mut bytes);
        assert_eq!(Item::parse_entry(&bytes), Some((item, bytes.len())));
        let totals = Totals { rows: 1, entries: 2, blocks: 3 };
        let mut bytes = [0; Totals::BYTES];
        totals.write(&mut bytes);
        assert_eq!(Totals::parse(&bytes), Some(totals));
    }
}
