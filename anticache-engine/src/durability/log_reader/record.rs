//! The records of a group of the command log.

use crate::durability::command_log::{KIND_MULTI, KIND_SINGLE};

/// A transaction of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record<'log> {
    /// Its place among all records since the database was created, from 0.
    pub sequence: u64,
    /// Name of its procedure.
    pub procedure: &'log str,
    /// What a multi-partition transaction has in addition.
    pub multi: Option<Multi>,
    /// The procedure's parameters.
    pub params: &'log [u8],
    /// What comes behind it.
    pub following: Following<'log>,
}

/// Procedures and parameters of the records behind one, as far as its group reaches: what will be handed out next, unless it does not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Following<'log> {
    pub(super) procedure_names: &'log [String],
    pub(super) records: Records<'log>,
}

impl<'log> Iterator for Following<'log> {
    type Item = (&'log str, &'log [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let record = self.records.next()?;
        Some((self.procedure_names.get(usize::from(record.procedure))?, record.params))
    }
}

/// Of which multi-partition transaction a record is one partition's part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Multi {
    /// Its name, the same at all partitions.
    pub transaction: u64,
    /// The partitions that take part.
    pub participants: Vec<u16>,
}

/// A record as it lies in a group.
pub(super) struct Raw<'log> {
    pub(super) procedure: u16,
    pub(super) multi: Option<Multi>,
    pub(super) params: &'log [u8],
}

impl<'log> Raw<'log> {
    /// The record at the beginning of `bytes`, and what follows it.
    fn parse(bytes: &'log [u8]) -> Option<(Self, &'log [u8])> {
        let (length, rest) = bytes.split_at_checked(4)?;
        let (record, after) = rest.split_at_checked(short(length, 0) as usize)?;
        let (head, params) = record.split_at_checked(3)?;
        let procedure = word(head, 1);
        match head[0] {
            KIND_SINGLE => Some((Self { procedure, multi: None, params }, after)),
            KIND_MULTI => {
                let (head, rest) = params.split_at_checked(10)?;
                let (participants, params) = rest.split_at_checked(2 * usize::from(word(head, 8)))?;
                let participants = participants.chunks_exact(2).map(|bytes| word(bytes, 0)).collect();
                let multi = Multi { transaction: number(head, 0), participants };
                Some((Self { procedure, multi: Some(multi), params }, after))
            }
            _ => None,
        }
    }
}

/// Records one behind the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Records<'log>(pub(super) &'log [u8]);

impl<'log> Iterator for Records<'log> {
    type Item = Raw<'log>;

    fn next(&mut self) -> Option<Raw<'log>> {
        let (record, after) = Raw::parse(self.0)?;
        self.0 = after;
        Some(record)
    }
}

pub(super) fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

pub(super) fn short(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}
