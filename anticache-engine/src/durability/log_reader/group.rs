//! Groups of the command log as they lie in a segment's file.

use std::io;

use super::record::{Records, number, short};
use crate::durability::group::{GROUP_HEADER_BYTES, GROUP_MAGIC};
use crate::io::read_ahead::ReadAhead;
use crate::io::{DIRECT_IO_ALIGN_BYTES, ZEROS};

/// A group that lies whole at the beginning of `bytes`.
pub(super) struct Group<'log> {
    pub(super) number: u64,
    pub(super) first_sequence: u64,
    pub(super) records: u32,
    pub(super) body: &'log [u8],
}

impl<'log> Group<'log> {
    /// The group that lies where the file was passed over to; `salt` is that of the segment, if it is known.
    pub(super) fn read(file: &'log mut ReadAhead, salt: Option<u64>) -> io::Result<Option<Self>> {
        let left_bytes = file.left_bytes();
        match Self::claimed_bytes(file.peek(GROUP_HEADER_BYTES)?, salt) {
            Some(bytes) if bytes as u64 <= left_bytes => Ok(Self::parse(file.peek(bytes)?, salt)),
            _ => Ok(None),
        }
    }

    /// Its length without padding, if these bytes may be its header.
    fn claimed_bytes(bytes: &[u8], salt: Option<u64>) -> Option<usize> {
        let head = bytes.get(..GROUP_HEADER_BYTES)?;
        let used = short(head, 4) as usize;
        let may_be = head[..4] == GROUP_MAGIC && salt.is_none_or(|salt| salt == number(head, 32));
        (may_be && used >= GROUP_HEADER_BYTES).then_some(used)
    }

    pub(super) fn parse(bytes: &'log [u8], salt: Option<u64>) -> Option<Self> {
        let used = Self::claimed_bytes(bytes, salt)?;
        let head = bytes.get(..GROUP_HEADER_BYTES)?;
        let body = bytes.get(GROUP_HEADER_BYTES..used)?;
        let mut unsummed = [0; GROUP_HEADER_BYTES];
        unsummed.copy_from_slice(head);
        unsummed[28..32].fill(0);
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&unsummed), body);
        (checksum == short(head, 28)).then(|| Self {
            number: number(head, 8),
            first_sequence: number(head, 16),
            records: short(head, 24),
            body,
        })
    }

    pub(super) fn padded_bytes(&self) -> usize {
        (GROUP_HEADER_BYTES + self.body.len()).next_multiple_of(DIRECT_IO_ALIGN_BYTES)
    }

    /// Whether the body holds the records that its header promises, of so many procedures.
    pub(super) fn is_sound(&self, procedures: usize) -> bool {
        let mut records = Records(self.body);
        let known = records.by_ref().take(self.records as usize).filter(|raw| usize::from(raw.procedure) < procedures);
        known.count() == self.records as usize && records.0.is_empty()
    }
}

/// What lies behind the end of a segment's groups.
pub(super) struct Behind {
    /// Where a whole group lies.
    pub(super) group_at: Option<u64>,
    /// Whether there is anything but zeros.
    pub(super) anything: bool,
}

/// Passes over what lies behind the end of a segment's groups, as far as a whole group at a page that begins within so many `bytes`.
pub(super) fn search(file: &mut ReadAhead, salt: Option<u64>, bytes: u64) -> io::Result<Behind> {
    let end = file.position().saturating_add(bytes);
    let mut anything = false;
    while file.left_bytes() > 0 && file.position() <= end {
        let at = file.position();
        if Group::read(file, salt)?.is_some() {
            return Ok(Behind { group_at: Some(at), anything: true });
        }
        let page = file.peek(DIRECT_IO_ALIGN_BYTES)?;
        anything |= page != &ZEROS[..page.len()];
        let bytes = page.len();
        file.advance(bytes);
    }
    Ok(Behind { group_at: None, anything })
}
