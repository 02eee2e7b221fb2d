//! Reads a command log back: every transaction that was made durable, in the order of commit.
//!
//! Groups are synced one after the other, so at most the last one before a crash can be torn, and its transactions were never acknowledged. Where the
//! log was resumed after a crash, the new segment says from which record on what lies before it does not count. A bad group that a good one follows in
//! the same life of the log, records that no segment holds, a damaged header of a segment that others follow: that is not what a crash leaves, and an
//! error.
//!
//! Segments are removed from the front, and a crash may bring some of them back: the log begins behind the last gap in their numbers.

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use chunk::{Chunks, HandOut};
use group::{Group, search};

use super::beside::beside;
use super::segment::{Header, file_name, numbers};
use crate::io::files::Files;
use crate::io::read_ahead::ReadAhead;
use crate::io::{DIRECT_IO_ALIGN_BYTES, aligned_buf};

mod chunk;
mod group;
mod record;

pub use record::{Following, Multi, Record};

/// How far a segment without a header is searched for groups, which should not be there.
const SEARCHED_BYTES: u64 = 64 << 20;

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
    /// Their bytes, padding included.
    pub bytes: u64,
    /// Records handed out.
    pub records: u64,
    /// Records that the log was resumed without.
    pub dropped: u64,
    /// Whether a torn group follows.
    pub torn: bool,
    /// Sequence of the record that would follow; at least the one asked for.
    pub next_sequence: u64,
    /// Highest number of a segment file, with or without records in it.
    pub last_segment: Option<u64>,
    /// Segment and byte where the last group read ends.
    pub end: Option<(u64, u64)>,
}

impl LogSummary {
    /// The first segment number that is free for [`super::command_log::CommandLog::resume`].
    pub fn next_segment(&self) -> u64 {
        self.last_segment.map_or(0, |last| last + 1)
    }
}

/// Why a segment cannot be read.
enum Trouble {
    Io(io::Error),
    Damaged(String),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<String> for Trouble {
    fn from(problem: String) -> Self {
        Self::Damaged(problem)
    }
}

impl Trouble {
    fn of(self, path: &Path) -> LogError {
        let path = path.display().to_string();
        match self {
            Self::Io(source) => LogError::Io { path, source },
            Self::Damaged(problem) => LogError::Damaged { path, problem },
        }
    }
}

/// A segment file and what its header says; no header in one that was being made when a crash came.
struct Head {
    number: u64,
    path: PathBuf,
    header: Option<Header>,
    /// Its records from this sequence on do not count.
    limit: u64,
}

impl Head {
    /// Whether anything of it may count. What a restart has given up as a whole does not, and what it followed may be gone: old segments are removed one
    /// by one, oldest first, and a crash may come between.
    fn counts(&self, header: &Header) -> bool {
        header.first_sequence < self.limit
    }
}

/// Reads all that is there of the log of one partition; `on_record` gets its transactions.
///
/// # Errors
/// A log that is more than torn at its end; records before the damage have been handed out by then.
pub fn read_log(
    files: &dyn Files,
    directory: &Path,
    partition: u32,
    on_record: impl FnMut(Record<'_>) -> ControlFlow<()>,
) -> Result<LogSummary, LogError> {
    read_with(Reader::new(files, directory, partition, None)?, on_record)
}

/// Reads the log of one partition; `on_record` gets its transactions from `from_sequence` on, in order and without a gap, and may stop the reading:
/// the summary then describes the log up to there.
///
/// # Errors
/// As [`read_log`], and when records from `from_sequence` on are missing.
pub fn read_log_from(
    files: &dyn Files,
    directory: &Path,
    partition: u32,
    from_sequence: u64,
    on_record: impl FnMut(Record<'_>) -> ControlFlow<()>,
) -> Result<LogSummary, LogError> {
    read_with(Reader::new(files, directory, partition, Some(from_sequence))?, on_record)
}

fn read_with(reader: Reader<'_>, on_record: impl FnMut(Record<'_>) -> ControlFlow<()>) -> Result<LogSummary, LogError> {
    let (files, directory) = (reader.files, reader.directory);
    let mut hand_out = HandOut::new(reader.from.unwrap_or(0), on_record);
    let read = beside(files, |lane| reader.read(Chunks::new(lane)), |chunk| hand_out.chunk(chunk));
    let refused = |error| Trouble::from(io::Error::other(format!("starting a thread that reads it: {error}")));
    hand_out.summary(read.map_err(|error| refused(error).of(directory))?)
}

/// Reads segment by segment and group by group, checks them, and hands them over in chunks.
struct Reader<'files> {
    files: &'files dyn Files,
    directory: &'files Path,
    from: Option<u64>,
    heads: Vec<Arc<Head>>,
    summary: LogSummary,
    /// Sequence of the next record as the groups count it; None until the first group of a log whose beginning was removed.
    next: Option<u64>,
    /// The same for groups.
    next_group: Option<u64>,
    /// Sequence behind the records of the segments of which something counts.
    reached: Option<u64>,
}

impl<'files> Reader<'files> {
    fn new(
        files: &'files dyn Files,
        directory: &'files Path,
        partition: u32,
        from: Option<u64>,
    ) -> Result<Self, LogError> {
        let (heads, last_segment) = heads_of(files, directory, partition)?;
        let summary = LogSummary { last_segment, ..LogSummary::default() };
        let heads = heads.into_iter().map(Arc::new).collect();
        Ok(Self { files, directory, from, heads, summary, next: None, next_group: None, reached: None })
    }

    fn read(mut self, mut chunks: Chunks<'_, '_>) -> Result<LogSummary, LogError> {
        for (place, head) in std::mem::take(&mut self.heads).iter().enumerate() {
            let read = self.read_segment(place == 0, head, &mut chunks);
            if read.map_err(|trouble| trouble.of(&head.path))?.is_break() {
                break;
            }
        }
        self.summary.next_sequence = self.next.unwrap_or(0).max(self.from.unwrap_or(0));
        Ok(self.summary)
    }

    fn read_segment(
        &mut self,
        first: bool,
        head: &Arc<Head>,
        chunks: &mut Chunks<'_, '_>,
    ) -> Result<ControlFlow<()>, Trouble> {
        let mut file = ReadAhead::new(self.files, self.files.open(&head.path)?)?;
        let header_bytes = file.peek(DIRECT_IO_ALIGN_BYTES)?.len();
        file.advance(header_bytes);
        let Some(header) = &head.header else {
            // It was handed out to nobody, so it holds no group.
            return match search(&mut file, None, SEARCHED_BYTES)?.group_at {
                Some(at) => Err(format!("its header is damaged, and a whole group lies at byte {at}").into()),
                None => Ok(ControlFlow::Continue(())),
            };
        };
        let begins = header.resumed || head.number == 0;
        if first || begins {
            self.enter(begins, head, header)?;
        }
        let read = self.read_groups(&mut file, head, header, chunks);
        // Whatever the trouble is, what lies before it counts.
        let flushed = chunks.flush();
        if head.counts(header) {
            self.reached = self.next;
        }
        if read?.is_break() || flushed.is_break() {
            return Ok(ControlFlow::Break(()));
        }
        let offset = file.position();
        let found = search(&mut file, Some(header.salt), header.longest_group_bytes)?;
        if let Some(at) = found.group_at {
            return Err(format!("a whole group lies at byte {at}, behind a damaged one at byte {offset}").into());
        }
        self.summary.torn |= found.anything;
        Ok(ControlFlow::Continue(()))
    }

    fn read_groups(
        &mut self,
        file: &mut ReadAhead,
        head: &Arc<Head>,
        header: &Header,
        chunks: &mut Chunks<'_, '_>,
    ) -> Result<ControlFlow<()>, Trouble> {
        let before = self.summary.groups;
        loop {
            let (offset, left_bytes) = (file.position(), file.left_bytes());
            let Some(group) = Group::read(file, Some(header.salt))? else { return Ok(ControlFlow::Continue(())) };
            self.check(head, header, &group, offset)?;
            if !group.is_sound(header.procedure_names.len()) {
                return Err(format!("group {} at byte {offset} holds records that cannot be read", group.number).into());
            }
            let bytes = group.padded_bytes() as u64;
            self.summary.groups += 1;
            self.summary.bytes += bytes;
            self.next_group = Some(group.number + 1);
            self.next = Some(group.first_sequence + u64::from(group.records));
            self.summary.end = Some((head.number, offset + bytes));
            self.summary.segments += u64::from(self.summary.groups == before + 1);
            if chunks.push(head, &group, self.summary).is_break() {
                return Ok(ControlFlow::Break(()));
            }
            file.advance(bytes.min(left_bytes) as usize);
        }
    }

    /// Checks that a segment joins on to what is known; where the log `begins` or goes on anew in it, its header says with which record.
    fn enter(&mut self, begins: bool, head: &Head, header: &Header) -> Result<(), String> {
        // What lies before the record asked for may be missing: a snapshot has made it superfluous. Nothing is known to be missing from a log that is
        // read from wherever it begins.
        let wanted = self.reached.or(self.from).map(|reached| reached.max(self.from.unwrap_or(0)));
        if let Some(wanted) = wanted.filter(|&wanted| wanted < header.first_sequence && head.counts(header)) {
            return Err(missing(head.number, wanted, header.first_sequence));
        }
        if begins {
            (self.next, self.next_group) = (Some(header.first_sequence), Some(0));
            self.summary.torn = false;
        }
        Ok(())
    }

    /// Whether a group is the one that must follow.
    fn check(&self, head: &Head, header: &Header, group: &Group<'_>, offset: u64) -> Result<(), String> {
        let lacks = self.next.is_none() && self.from.is_some_and(|from| from < group.first_sequence);
        if lacks && head.counts(header) {
            return Err(missing(head.number, self.from.unwrap_or(0), group.first_sequence));
        }
        let number = self.next_group.unwrap_or(group.number);
        let sequence = self.next.unwrap_or(group.first_sequence);
        let follows = group.number == number && group.first_sequence == sequence;
        if follows && !self.summary.torn && sequence >= header.first_sequence {
            return Ok(());
        }
        Err(format!(
            "group {} (transactions from {}) at byte {offset}, wanted group {number} (from {sequence}){}",
            group.number,
            group.first_sequence,
            if self.summary.torn { "; a damaged group lies before it" } else { "" }
        ))
    }
}

fn missing(segment: u64, from: u64, to: u64) -> String {
    let before = segment.saturating_sub(1);
    format!("segment {before} is missing or has lost its end: transactions {from} to {} are in no segment", to - 1)
}

/// The segments behind the last gap, and the highest number of all.
fn heads_of(files: &dyn Files, directory: &Path, partition: u32) -> Result<(Vec<Head>, Option<u64>), LogError> {
    let listed = files.list(directory);
    let names = listed.map_err(|source| LogError::Io { path: directory.display().to_string(), source })?;
    let numbers = numbers(&names, partition);
    let gap = numbers.windows(2).rposition(|pair| pair[0] + 1 != pair[1]);
    let mut heads = Vec::new();
    for &number in &numbers[gap.map_or(0, |place| place + 1)..] {
        let path = directory.join(file_name(partition, number));
        let header = header_of(files, &path, partition, number)?;
        heads.push(Head { number, path, header, limit: u64::MAX });
    }
    let (mut limit, mut follower_resumed) = (u64::MAX, true);
    for head in heads.iter_mut().rev() {
        head.limit = limit;
        if head.header.is_none() && !follower_resumed {
            let problem = "its header is damaged, and the log goes on behind it".to_owned();
            return Err(LogError::Damaged { path: head.path.display().to_string(), problem });
        }
        if let Some(header) = &head.header {
            follower_resumed = header.resumed;
            limit = if header.resumed { limit.min(header.first_sequence) } else { limit };
        }
    }
    Ok((heads, numbers.last().copied()))
}

/// The header of a segment; None when it is damaged or was not written yet.
fn header_of(files: &dyn Files, path: &Path, partition: u32, number: u64) -> Result<Option<Header>, LogError> {
    let mut page = aligned_buf(DIRECT_IO_ALIGN_BYTES);
    let read = files.open(path).and_then(|file| file.read_at(&mut page, 0));
    let read = read.map_err(|source| LogError::Io { path: path.display().to_string(), source })?;
    let problem = match Header::parse(&page[..read]) {
        None => return Ok(None),
        Some(Ok(header)) if (header.partition, header.number) == (partition, number) => return Ok(Some(header)),
        Some(Ok(header)) => format!("its header is that of partition {}, segment {}", header.partition, header.number),
        Some(Err(version)) => format!("its format has version {version}, which this program cannot read"),
    };
    Err(LogError::Damaged { path: path.display().to_string(), problem })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durability::command_log::CommandLog;
    use crate::durability::group::GROUP_MAGIC;
    use crate::io::files::KernelFiles;

    /// Writes 12 groups of 1 to 3 records over several segments and returns their parameters.
    fn write(directory: &Path) -> Vec<Vec<u8>> {
        let files: std::sync::Arc<dyn Files> = std::sync::Arc::new(KernelFiles::new());
        let mut ring = files.ring(4).unwrap();
        let names = vec!["first".to_owned(), "second".to_owned()];
        let mut log = CommandLog::create(&files, directory, 1, 32 << 10, names).unwrap();
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
        let summary = read_log_from(&KernelFiles::inspecting(), directory, 1, 0, |record| {
            assert_eq!((record.sequence, record.procedure, record.multi), (found.len() as u64, "second", None));
            found.push(record.params.to_vec());
            ControlFlow::Continue(())
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
        while let Some(group) = Group::parse(&bytes[at..], None).filter(|group| group.number < 11) {
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
