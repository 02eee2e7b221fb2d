//! Reads a command log back: every transaction that was made durable, in the order of commit.
//!
//! Groups are synced one after the other, so at most the last one can be torn, and its transactions were never acknowledged. A bad group that is
//! followed by a good one, a missing segment, a damaged header of a segment that others follow: that is not what a crash leaves, and an error.

use std::io;
use std::path::{Path, PathBuf};

use super::command_log::{GROUP_HEADER_BYTES, GROUP_MAGIC};
use super::segment;
use crate::io::DIRECT_IO_ALIGN_BYTES;

/// A log that cannot be trusted.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A file or directory cannot be read.
    #[error("command log {path}: {source}")]
    Io {
        /// Which.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// The files contradict each other.
    #[error("command log {path}: {problem}")]
    Damaged {
        /// Which file or directory.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
}

/// What a log held.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct LogSummary {
    /// Segments that hold at least one group.
    pub segments: u64,
    /// Whole groups.
    pub groups: u64,
    /// Their transactions.
    pub records: u64,
    /// Whether a torn group follows them.
    pub torn: bool,
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn short(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// A group that lies whole at the beginning of `bytes`.
struct Group<'log> {
    number: u64,
    first_sequence: u64,
    records: u32,
    body: &'log [u8],
}

impl<'log> Group<'log> {
    fn parse(bytes: &'log [u8]) -> Option<Self> {
        let head = bytes.get(..GROUP_HEADER_BYTES)?;
        let used = short(head, 4) as usize;
        if head[..4] != GROUP_MAGIC || used < GROUP_HEADER_BYTES {
            return None;
        }
        let body = bytes.get(GROUP_HEADER_BYTES..used)?;
        let mut unsummed = [0; GROUP_HEADER_BYTES];
        unsummed.copy_from_slice(head);
        unsummed[28..].fill(0);
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&unsummed), body);
        (checksum == short(head, 28)).then(|| Self {
            number: number(head, 8),
            first_sequence: number(head, 16),
            records: short(head, 24),
            body,
        })
    }

    fn padded_bytes(&self) -> usize {
        (GROUP_HEADER_BYTES + self.body.len()).next_multiple_of(DIRECT_IO_ALIGN_BYTES)
    }

    /// Hands out (sequence, procedure, parameters); false when the body does not hold the records that its header promises.
    fn records(&self, mut on_record: impl FnMut(u64, u16, &[u8])) -> bool {
        let mut rest = self.body;
        for place in 0..u64::from(self.records) {
            let Some((head, tail)) = rest.split_at_checked(6) else { return false };
            let params = (short(head, 0) as usize).checked_sub(2).and_then(|bytes| tail.split_at_checked(bytes));
            let Some((params, after)) = params else { return false };
            on_record(self.first_sequence + place, u16::from_le_bytes([head[4], head[5]]), params);
            rest = after;
        }
        rest.is_empty()
    }
}

/// Reads the log of one partition from its beginning; `on_record` gets sequence number, procedure name and parameters of each transaction.
///
/// # Errors
/// A log that is more than torn at its end; records before the damage have been handed out by then.
pub fn read_log(
    directory: &Path,
    partition: u32,
    mut on_record: impl FnMut(u64, &str, &[u8]),
) -> Result<LogSummary, LogError> {
    let mut summary = LogSummary::default();
    let mut next_sequence = 0;
    let segments = segments_of(directory, partition)?;
    for (place, path) in segments.iter().enumerate() {
        let bytes = std::fs::read(path).map_err(|source| LogError::Io { path: path.display().to_string(), source })?;
        let damaged = |problem: String| LogError::Damaged { path: path.display().to_string(), problem };
        let Some(names) = segment::parse_header(&bytes, partition, place as u64) else {
            if place + 1 == segments.len() {
                break; // it was being made
            }
            return Err(damaged("its header is damaged".to_owned()));
        };
        let mut offset = DIRECT_IO_ALIGN_BYTES;
        let before = summary.groups;
        while let Some(group) = bytes.get(offset..).and_then(Group::parse) {
            if summary.torn || group.number != summary.groups || group.first_sequence != next_sequence {
                let problem = format!(
                    "group {} (transactions from {}) at byte {offset}, wanted group {} (from {next_sequence}){}",
                    group.number,
                    group.first_sequence,
                    summary.groups,
                    if summary.torn { "; a damaged group lies before it" } else { "" }
                );
                return Err(damaged(problem));
            }
            let mut unknown = None;
            let whole = group.records(|sequence, procedure, params| match names.get(usize::from(procedure)) {
                Some(name) => on_record(sequence, name, params),
                None => unknown = Some(procedure),
            });
            if !whole || unknown.is_some() {
                return Err(damaged(format!(
                    "group {} at byte {offset} holds records that cannot be read",
                    group.number
                )));
            }
            next_sequence += u64::from(group.records);
            summary.groups += 1;
            summary.records += u64::from(group.records);
            offset += group.padded_bytes();
        }
        summary.segments += u64::from(summary.groups > before);
        summary.torn |= remains(&bytes, offset, summary.groups).map_err(damaged)?;
    }
    Ok(summary)
}

/// Whether something lies behind the last whole group; an error when that holds another whole group of this log.
fn remains(bytes: &[u8], offset: usize, next_group: u64) -> Result<bool, String> {
    let rest = bytes.get(offset..).unwrap_or_default();
    for (page, chunk) in rest.chunks(DIRECT_IO_ALIGN_BYTES).enumerate() {
        let at = page * DIRECT_IO_ALIGN_BYTES;
        if chunk.starts_with(&GROUP_MAGIC) && Group::parse(&rest[at..]).is_some_and(|group| group.number >= next_group)
        {
            return Err(format!("a whole group lies at byte {}, behind a damaged one at byte {offset}", offset + at));
        }
    }
    Ok(rest.iter().any(|&byte| byte != 0))
}

fn segments_of(directory: &Path, partition: u32) -> Result<Vec<PathBuf>, LogError> {
    let failed = |source| LogError::Io { path: directory.display().to_string(), source };
    let prefix = format!("command-{partition:04}-");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if let Some(digits) = name.strip_prefix(&prefix).and_then(|rest| rest.strip_suffix(".log")) {
            found.push((digits.parse::<u64>().ok(), path));
        }
    }
    found.sort();
    for (place, (segment, path)) in found.iter().enumerate() {
        if *segment != Some(place as u64) {
            let problem = format!("segment {place} is missing before it");
            return Err(LogError::Damaged { path: path.display().to_string(), problem });
        }
    }
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durability::command_log::CommandLog;
    use crate::io::ring::IoRing;

    /// Writes 12 groups of 1 to 3 records over several segments and returns their parameters.
    fn write(directory: &Path) -> Vec<Vec<u8>> {
        let mut ring = IoRing::new(4).unwrap();
        let names = vec!["first".to_owned(), "second".to_owned()];
        let mut log = CommandLog::create(directory, 1, 32 << 10, names).unwrap();
        let mut written = Vec::new();
        for n in 0..12usize {
            for k in 0..=n % 3 {
                let params = vec![n as u8; 1000 * (k + 1)];
                log.append(1, &params);
                written.push(params);
            }
            log.flush(&mut ring, 0).unwrap();
            let mut done = Vec::new();
            while done.is_empty() {
                ring.wait(&mut done).unwrap();
            }
            let (group, _) = log.complete(done.remove(0).buffers.remove(0)).unwrap();
            log.recycle(group);
        }
        written
    }

    fn read(directory: &Path) -> (Vec<Vec<u8>>, Result<LogSummary, LogError>) {
        let mut found = Vec::new();
        let summary = read_log(directory, 1, |sequence, name, params| {
            assert_eq!((sequence, name), (found.len() as u64, "second"));
            found.push(params.to_vec());
        });
        (found, summary)
    }

    fn segment(directory: &Path, number: u64) -> PathBuf {
        directory.join(format!("command-0001-{number:08}.log"))
    }

    #[test]
    fn what_was_written_is_read_in_order() {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let written = write(directory.path());
        let (found, summary) = read(directory.path());
        let summary = summary.unwrap();
        assert_eq!(found, written);
        assert_eq!((summary.groups, summary.records, summary.torn), (12, written.len() as u64, false));
        assert!(summary.segments > 1);
    }

    #[test]
    fn a_log_cut_anywhere_in_its_last_group_gives_all_groups_before_it() {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let written = write(directory.path());
        let last = (0..100).rev().map(|n| segment(directory.path(), n)).find(|path| {
            std::fs::read(path).is_ok_and(|bytes| bytes.get(4096..).is_some_and(|rest| rest.starts_with(&GROUP_MAGIC)))
        });
        let (last, mut bytes) = (last.clone().unwrap(), std::fs::read(last.unwrap()).unwrap());
        let mut at = 4096;
        while let Some(group) = Group::parse(&bytes[at..]).filter(|group| group.number < 11) {
            at += group.padded_bytes();
        }
        bytes[at + 4096..].fill(0);
        std::fs::write(&last, &bytes).unwrap();
        let (found, summary) = read(directory.path());
        let summary = summary.unwrap();
        assert_eq!((summary.groups, summary.torn), (11, true));
        assert_eq!(found[..], written[..found.len()]);
        assert_eq!(found.len(), written.len() - 3);
    }

    #[test]
    fn damage_that_no_crash_leaves_is_an_error() {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        write(directory.path());
        let path = segment(directory.path(), 0);
        let good = std::fs::read(&path).unwrap();
        let mut bytes = good.clone();
        bytes[4096 + 100] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert!(read(directory.path()).1.unwrap_err().to_string().contains("behind a damaged one"));
        bytes.clone_from(&good);
        bytes[20] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert!(read(directory.path()).1.unwrap_err().to_string().contains("header is damaged"));
        std::fs::remove_file(&path).unwrap();
        assert!(read(directory.path()).1.unwrap_err().to_string().contains("segment 0 is missing"));
    }
}
