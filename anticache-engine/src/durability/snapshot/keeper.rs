//! The site's part in snapshots: it owns the data directory's manifest, creates the files of a generation, and decides when it counts.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::format::file_name;
use super::run::{Ended, PartSnapshot, Verdict};
use crate::catalog::Catalog;
use crate::config::{Config, Log};
use crate::durability::manifest::{FILE_NAME, Manifest, NEW_FILE_NAME, Part};
use crate::error::RecoveryError;
use crate::io::files::{DirectoryLock, DiskFile, Files, NotReplaced, create_directory};

/// The keeper of a data directory. Everything here may wait for the disk: a server gives it a thread of its own.
#[derive(Debug)]
pub struct Keeper {
    files: Arc<dyn Files>,
    directory: PathBuf,
    lock: Arc<DirectoryLock>,
    /// The manifest that counts, as far as is known.
    manifest: Manifest,
    /// Generations whose files may be referred to by the manifest that a crash would find.
    kept: BTreeSet<u64>,
    next_generation: u64,
    run: Option<Run>,
}

#[derive(Debug)]
struct Run {
    generation: u64,
    parts: Vec<Option<Result<PartSnapshot, String>>>,
}

/// A generation that all partitions have to begin.
#[derive(Debug)]
pub struct Begun {
    /// Its number.
    pub generation: u64,
    /// An empty file for each partition.
    pub files: Vec<Arc<dyn DiskFile>>,
}

/// A generation that all partitions have ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Its number.
    pub generation: u64,
    /// To be told to every partition.
    pub verdict: Verdict,
    /// Why it is not durable.
    pub problem: Option<String>,
}

impl Keeper {
    /// Looks at a data directory, creating it where it is missing; the keeper, and whether there is a database to be recovered. If there is not, the
    /// partitions are to be created next, and then [`Keeper::ready`] to be called.
    ///
    /// # Errors
    /// When the directory holds something else, or a database that the configuration does not fit, or that cannot be recovered. Nothing was changed.
    pub fn open(
        files: &Arc<dyn Files>,
        directory: &Path,
        config: &Config,
        catalog: &Catalog,
        schema: &str,
    ) -> Result<(Self, bool), RecoveryError> {
        create_directory(&**files, directory).map_err(RecoveryError::io(directory))?;
        let refuse = |problem: String| Err(RecoveryError::Directory { directory: directory.to_owned(), problem });
        let Some(lock) = files.lock(directory).map_err(RecoveryError::io(directory))? else {
            return refuse("another server is using it: stop that one, or give another directory".to_owned());
        };
        let lock = Arc::new(lock);
        let names = files.list(directory).map_err(RecoveryError::io(directory))?;
        if !names.iter().any(|name| name == FILE_NAME) {
            if let Some(name) = names.iter().find(|name| *name != NEW_FILE_NAME) {
                return refuse(format!(
                    "it holds `{name}` and no {FILE_NAME}: give an empty directory, or one that a server of this kind has left"
                ));
            }
            return Self::new_database(files, (directory, lock), config, schema).map(|keeper| (keeper, false));
        }
        let manifest = Manifest::read(&**files, directory)?;
        let partitions = manifest.partitions.len();
        if let Some(name) = names.iter().find(|name| !is_ours(name, partitions)) {
            return refuse(format!("it holds `{name}`, which no server of this kind has left: remove it"));
        }
        manifest.check(directory, config, catalog)?;
        if !manifest.ready {
            return Self::new_database(files, (directory, lock), config, schema).map(|keeper| (keeper, false));
        }
        if manifest.log == Log::Off && manifest.generation == 0 {
            return refuse(
                "it was written with `log` = off and no snapshot was taken: nothing of it can be recovered; give an empty directory"
                    .to_owned(),
            );
        }
        // After a process died the manifest may be there to read and its name not be durable. Recovery takes places in the block file that only the one
        // before refers to, so a power cut must not bring that one back.
        files.sync_dir(directory).map_err(RecoveryError::io(directory))?;
        let generations = names.iter().filter_map(|name| generation_of(name));
        let next_generation = generations.chain([manifest.generation]).max().unwrap_or(0) + 1;
        let kept = BTreeSet::from([manifest.generation]);
        let (files, directory) = (Arc::clone(files), directory.to_owned());
        Ok((Self { files, directory, lock, manifest, kept, next_generation, run: None }, true))
    }

    fn new_database(
        files: &Arc<dyn Files>,
        (directory, lock): (&Path, Arc<DirectoryLock>),
        config: &Config,
        schema: &str,
    ) -> Result<Self, RecoveryError> {
        let manifest = Manifest::of_new(config, schema);
        let written = manifest.write(&**files, directory).map_err(io::Error::from);
        written.map_err(RecoveryError::io(&directory.join(FILE_NAME)))?;
        let (files, directory) = (Arc::clone(files), directory.to_owned());
        let kept = BTreeSet::from([0]);
        Ok(Self { files, directory, lock, manifest, kept, next_generation: 1, run: None })
    }

    /// All partitions are there, created or recovered, with the segments in which their command logs go on: makes their files' names durable and the manifest say so, and removes what belongs to nothing.
    ///
    /// # Errors
    /// What the system says.
    pub fn ready(
        &mut self,
        config: &Config,
        first_segments: impl Iterator<Item = Option<u64>>,
    ) -> Result<(), RecoveryError> {
        self.files.sync_dir(&self.directory).map_err(RecoveryError::io(&self.directory))?;
        if !self.manifest.ready || self.manifest.log != config.log {
            self.manifest.ready = true;
            self.manifest.log = config.log;
            for (part, first_segment) in self.manifest.partitions.iter_mut().zip(first_segments) {
                part.first_segment = first_segment;
            }
            let path = self.directory.join(FILE_NAME);
            let written = self.manifest.write(&*self.files, &self.directory).map_err(io::Error::from);
            written.map_err(RecoveryError::io(&path))?;
        }
        self.remove_others().map_err(RecoveryError::io(&self.directory))
    }

    /// What keeps other servers out of the directory: to be kept by everybody who writes to it.
    pub(crate) fn lock(&self) -> Arc<DirectoryLock> {
        Arc::clone(&self.lock)
    }

    /// From where a partition is recovered.
    pub fn part(&self, partition: u32) -> &Part {
        &self.manifest.partitions[partition as usize]
    }

    /// Above the number of every multi-partition transaction that the snapshot contains, or that recovery has seen.
    pub fn next_transaction(&self) -> u64 {
        self.manifest.next_transaction
    }

    /// Recovery has seen numbers of multi-partition transactions up to below this one in the logs.
    pub(crate) fn seen_below(&mut self, next_transaction: u64) {
        self.manifest.next_transaction = self.manifest.next_transaction.max(next_transaction);
    }

    /// Generation of the last durable snapshot; 0 = none.
    pub fn generation(&self) -> u64 {
        self.manifest.generation
    }

    /// Whether a generation is under way.
    pub fn is_busy(&self) -> bool {
        self.run.is_some()
    }

    /// Begins a generation: [`crate::partition::Partition::begin_snapshot`] is to be called for every partition, in a barrier
    /// ([`crate::partition::multi::Coordinator::barrier`]).
    ///
    /// # Errors
    /// When the files cannot be created, a generation is under way, or it cannot be made certain that the one before does not count.
    pub fn begin(&mut self) -> io::Result<Begun> {
        if let Some(run) = &self.run {
            return Err(io::Error::other(format!("snapshot {} is under way", run.generation)));
        }
        self.settle()?;
        let generation = self.next_generation;
        self.next_generation += 1;
        let partitions = self.manifest.partitions.len();
        let create = |partition| {
            let path = self.directory.join(file_name(partition, generation));
            self.files
                .create(&path)
                .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
        };
        let files: io::Result<Vec<_>> = (0..partitions as u32).map(create).collect();
        // The manifest will name them: their names must be durable before it can.
        let files = files.and_then(|files| self.files.sync_dir(&self.directory).map(|()| files));
        match files {
            Ok(files) => {
                self.run = Some(Run { generation, parts: vec![None; partitions] });
                Ok(Begun { generation, files })
            }
            Err(error) => {
                self.remove_others_later();
                Err(error)
            }
        }
    }

    /// Ends the doubt which manifest a crash would find, by writing again the one that certainly counts: as long as that fails, nothing new is begun, or
    /// each attempt would leave the files of another generation that may count.
    fn settle(&mut self) -> io::Result<()> {
        if self.kept.len() > 1 {
            self.manifest.write(&*self.files, &self.directory).map_err(|problem| {
                io::Error::new(problem.error.kind(), format!("writing {FILE_NAME} again: {problem}"))
            })?;
            self.kept = BTreeSet::from([self.manifest.generation]);
            self.remove_others_later();
        }
        Ok(())
    }

    /// A partition has ended its part. When it was the last one: what became of the generation.
    pub fn part_ended(&mut self, partition: u32, ended: Ended) -> Option<Outcome> {
        let run = self.run.as_mut().filter(|run| run.generation == ended.generation)?;
        run.parts[partition as usize] = Some(ended.result);
        if run.parts.iter().any(Option::is_none) {
            return None;
        }
        let Run { generation, parts } = self.run.take()?;
        let parts: Result<Vec<_>, String> = parts.into_iter().flatten().collect();
        let (verdict, problem) = match parts {
            Err(problem) => (Verdict::Abandoned, Some(problem)),
            Ok(parts) => match self.replace_manifest(generation, &parts) {
                Ok(()) => (Verdict::Durable, None),
                Err(problem) => {
                    let verdict = if problem.is_certain { Verdict::Abandoned } else { Verdict::InDoubt };
                    (verdict, Some(format!("replacing {FILE_NAME}: {problem}")))
                }
            },
        };
        if verdict != Verdict::InDoubt {
            self.remove_others_later();
        }
        Some(Outcome { generation, verdict, problem })
    }

    fn replace_manifest(&mut self, generation: u64, parts: &[PartSnapshot]) -> Result<(), NotReplaced> {
        let part = |(partition, part): (usize, &PartSnapshot)| Part {
            snapshot: Some(file_name(partition as u32, generation)),
            bytes: part.bytes,
            sequence: part.sequence,
            first_segment: part.first_segment,
        };
        let partitions = parts.iter().enumerate().map(part).collect();
        let numbers = parts.iter().map(|part| part.next_transaction).chain([self.manifest.next_transaction]);
        let next_transaction = numbers.max().unwrap_or(1);
        let manifest = Manifest { generation, next_transaction, partitions, ..self.manifest.clone() };
        let written = manifest.write(&*self.files, &self.directory);
        if written.as_ref().err().is_some_and(|problem| !problem.is_certain) {
            self.kept.insert(generation);
        }
        written?;
        self.manifest = manifest;
        self.kept = BTreeSet::from([generation]);
        Ok(())
    }

    /// Removes the snapshots that do not count; those that cannot be removed are, at the next occasion.
    fn remove_others_later(&self) {
        // What is left costs space, and the next generation or the next start tries again.
        let _ = self.remove_others();
    }

    fn remove_others(&self) -> io::Result<()> {
        for name in self.files.list(&self.directory)? {
            let superfluous = match generation_of(&name) {
                Some(generation) => !self.kept.contains(&generation),
                None => name == NEW_FILE_NAME,
            };
            if superfluous {
                self.files.remove(&self.directory.join(name))?;
            }
        }
        Ok(())
    }
}

/// Whether a server of this kind leaves files of this name.
fn is_ours(name: &str, partitions: usize) -> bool {
    let numbers = |prefix: &str, suffix: &str| -> Option<Vec<u64>> {
        name.strip_prefix(prefix)?.strip_suffix(suffix)?.split('-').map(|digits| digits.parse().ok()).collect()
    };
    let of_partition = |numbers: Option<Vec<u64>>, count: usize| {
        numbers.is_some_and(|numbers| numbers.len() == count && numbers[0] < partitions as u64)
    };
    [FILE_NAME, NEW_FILE_NAME].contains(&name)
        || of_partition(numbers("blocks-", ".db"), 1)
        || of_partition(numbers("command-", ".log"), 2)
        || of_partition(numbers("snapshot-", ".db"), 2)
}

fn generation_of(name: &str) -> Option<u64> {
    let (_, generation) = name.strip_prefix("snapshot-")?.strip_suffix(".db")?.split_once('-')?;
    generation.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_known_by_their_names() {
        for name in
            ["MANIFEST", "MANIFEST.new", "blocks-0001.db", "command-0000-00000012.log", "snapshot-0001-00000003.db"]
        {
            assert!(is_ours(name, 2), "{name}");
        }
        for name in [
            "manifest",
            "blocks-0002.db",
            "blocks-1.db.old",
            "command-0000.log",
            "snapshot-x-1.db",
            "lost+found",
            "ibdata1",
        ] {
            assert!(!is_ours(name, 2), "{name}");
        }
        assert_eq!((generation_of("snapshot-0001-00000003.db"), generation_of("blocks-0001.db")), (Some(3), None));
    }
}
