//! What the simulated disk is at a moment: files, names, operations in flight, faults to come, power.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use super::chance::Chance;
use super::image::{Fate, Image};
use super::{Fault, FaultRule, Operation, SimulatedHandle};
use crate::io::DIRECT_IO_ALIGN_BYTES;

/// Number of a file, whatever its name is.
pub(super) type FileId = u64;
/// Ring and operation.
pub(super) type FlightId = (u64, usize);

/// An operation that a ring has submitted.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) handle: SimulatedHandle,
    pub(super) kind: FlightKind,
}

#[derive(Debug)]
pub(super) enum FlightKind {
    Read { offset: u64, bytes: usize },
    Write { offset: u64, bytes: Vec<u8>, durable: bool },
    Sync { stamp: u64 },
}

#[derive(Debug)]
struct Stored {
    /// The last name that it was given, for fault rules.
    name: String,
    image: Image,
}

impl Stored {
    fn length(&self) -> u64 {
        self.image.current.len() as u64
    }
}

#[derive(Debug)]
enum NameChange {
    Link(PathBuf, FileId),
    Unlink(PathBuf),
    Rename(PathBuf, PathBuf, FileId),
}

impl NameChange {
    fn is_in(&self, directory: &Path) -> bool {
        let inside = |path: &PathBuf| path.parent() == Some(directory);
        match self {
            Self::Link(path, _) | Self::Unlink(path) => inside(path),
            Self::Rename(from, to, _) => inside(from) || inside(to),
        }
    }

    fn apply(&self, names: &mut BTreeMap<PathBuf, FileId>) {
        match self {
            Self::Link(path, id) => {
                names.insert(path.clone(), *id);
            }
            Self::Unlink(path) => {
                names.remove(path);
            }
            Self::Rename(from, to, id) => {
                names.remove(from);
                names.insert(to.clone(), *id);
            }
        }
    }
}

/// Whether an operation may take place.
enum Verdict {
    Proceed,
    Fails(Fault),
    /// The power fails, or the process dies, in the middle of it.
    Ends,
}

/// How a process ends that does not end by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    PowerCut,
    Kill,
}

pub(super) fn power_is_off() -> io::Error {
    io::Error::other("the simulated disk has no power, or the process that opened the file has died")
}

fn system(error: rustix::io::Errno) -> io::Error {
    io::Error::from_raw_os_error(error.raw_os_error())
}

fn refused(fault: Fault) -> io::Error {
    match fault {
        Fault::NoSpace => system(rustix::io::Errno::NOSPC),
        Fault::Io | Fault::ShortRead => system(rustix::io::Errno::IO),
    }
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) chance: Chance,
    pub(super) generation: u64,
    powered: bool,
    /// Before which operation, and how.
    pub(super) ends_at: Option<(u64, End)>,
    pub(super) capacity_bytes: u64,
    pub(super) counts: [u64; Operation::COUNT],
    pub(super) rules: Vec<FaultRule>,
    stamp: u64,
    pub(super) rings: u64,
    files: BTreeMap<FileId, Stored>,
    next_file: FileId,
    directories: BTreeSet<PathBuf>,
    durable_directories: BTreeSet<PathBuf>,
    names: BTreeMap<PathBuf, FileId>,
    durable_names: BTreeMap<PathBuf, FileId>,
    name_changes: Vec<NameChange>,
    pub(super) flights: BTreeMap<FlightId, Flight>,
}

impl State {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            chance: Chance::new(seed),
            generation: 0,
            powered: true,
            ends_at: None,
            capacity_bytes: u64::MAX,
            counts: [0; Operation::COUNT],
            rules: Vec::new(),
            stamp: 0,
            rings: 0,
            files: BTreeMap::new(),
            next_file: 0,
            directories: BTreeSet::from([PathBuf::from("/")]),
            durable_directories: BTreeSet::from([PathBuf::from("/")]),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            name_changes: Vec::new(),
            flights: BTreeMap::new(),
        }
    }

    pub(super) fn operations(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub(super) fn has_power(&self, generation: u64) -> io::Result<()> {
        if self.powered && self.generation == generation { Ok(()) } else { Err(power_is_off()) }
    }

    /// Counts an operation and decides about it.
    fn begin(&mut self, operation: Operation, name: &str) -> io::Result<Verdict> {
        if !self.powered {
            return Err(power_is_off());
        }
        let ends = self.ends_at.is_some_and(|(at, _)| at == self.operations());
        self.counts[operation as usize] += 1;
        if ends {
            return Ok(Verdict::Ends);
        }
        for rule in self.rules.iter_mut().filter(|rule| rule.operation == operation && name.contains(&rule.file)) {
            if rule.after > 0 {
                rule.after -= 1;
            } else if rule.times > 0 {
                rule.times -= 1;
                return Ok(Verdict::Fails(rule.error));
            }
        }
        Ok(Verdict::Proceed)
    }

    /// The moment has come that `ends_at` names.
    fn end(&mut self) -> io::Error {
        match self.ends_at {
            Some((_, End::Kill)) => self.kill(),
            _ => self.power_cut(),
        }
        power_is_off()
    }

    /// As [`State::begin`] for an operation that a crash or a fault ends without any effect.
    fn begin_whole(&mut self, operation: Operation, name: &str) -> io::Result<()> {
        match self.begin(operation, name)? {
            Verdict::Proceed => Ok(()),
            Verdict::Fails(fault) => Err(refused(fault)),
            Verdict::Ends => Err(self.end()),
        }
    }

    pub(super) fn next_stamp(&mut self) -> u64 {
        self.stamp += 1;
        self.stamp
    }

    fn stored(&self, handle: SimulatedHandle) -> io::Result<&Stored> {
        self.has_power(handle.generation)?;
        self.files.get(&handle.file).ok_or_else(power_is_off)
    }

    fn image(&mut self, handle: SimulatedHandle) -> io::Result<&mut Image> {
        self.has_power(handle.generation)?;
        self.files.get_mut(&handle.file).map(|stored| &mut stored.image).ok_or_else(power_is_off)
    }

    fn name_of(&self, handle: SimulatedHandle) -> io::Result<String> {
        Ok(self.stored(handle)?.name.clone())
    }

    fn parent_exists(&self, path: &Path) -> io::Result<()> {
        let known = path.parent().is_some_and(|parent| self.directories.contains(parent));
        if known { Ok(()) } else { Err(system(rustix::io::Errno::NOENT)) }
    }

    fn fits(&self, handle: SimulatedHandle, length: u64) -> io::Result<()> {
        let grows_by = length.saturating_sub(self.stored(handle)?.length());
        let named: BTreeSet<_> = self.names.values().collect();
        let used: u64 = self.files.iter().filter(|(id, _)| named.contains(id)).map(|(_, stored)| stored.length()).sum();
        let fits = grows_by == 0 || used + grows_by <= self.capacity_bytes;
        if fits { Ok(()) } else { Err(system(rustix::io::Errno::NOSPC)) }
    }

    pub(super) fn find(&self, path: &Path) -> io::Result<FileId> {
        self.names.get(path).copied().ok_or_else(|| system(rustix::io::Errno::NOENT))
    }

    pub(super) fn create(&mut self, path: &Path) -> io::Result<SimulatedHandle> {
        let verdict = self.begin(Operation::Create, &name(path))?;
        self.parent_exists(path)?;
        if let Verdict::Fails(fault) = verdict {
            return Err(refused(fault));
        }
        let stamp = self.next_stamp();
        let id = match self.find(path) {
            Ok(id) => id,
            Err(_) => {
                let id = self.next_file;
                self.next_file += 1;
                self.files.insert(id, Stored { name: name(path), image: Image::default() });
                self.change_names(NameChange::Link(path.to_owned(), id));
                id
            }
        };
        let handle = SimulatedHandle { file: id, generation: self.generation };
        let image = self.image(handle)?;
        if !image.current.is_empty() {
            image.set_length(stamp, 0);
        }
        self.finish(&verdict)?;
        Ok(handle)
    }

    fn change_names(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.name_changes.push(change);
    }

    /// Ends an operation that has taken effect, not durably: what remains of it after a power cut, chance decides.
    fn finish(&mut self, verdict: &Verdict) -> io::Result<()> {
        if matches!(verdict, Verdict::Ends) { Err(self.end()) } else { Ok(()) }
    }

    pub(super) fn open(&mut self, path: &Path) -> io::Result<SimulatedHandle> {
        self.begin_whole(Operation::Open, &name(path))?;
        Ok(SimulatedHandle { file: self.find(path)?, generation: self.generation })
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let verdict = self.begin(Operation::Rename, &name(from))?;
        self.parent_exists(to)?;
        let id = self.find(from)?;
        if let Verdict::Fails(fault) = verdict {
            return Err(refused(fault));
        }
        self.change_names(NameChange::Rename(from.to_owned(), to.to_owned(), id));
        if let Some(stored) = self.files.get_mut(&id) {
            stored.name = name(to);
        }
        self.finish(&verdict)
    }

    pub(super) fn remove(&mut self, path: &Path) -> io::Result<()> {
        let verdict = self.begin(Operation::Remove, &name(path))?;
        self.find(path)?;
        if let Verdict::Fails(fault) = verdict {
            return Err(refused(fault));
        }
        self.change_names(NameChange::Unlink(path.to_owned()));
        self.finish(&verdict)
    }

    pub(super) fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        self.has_power(self.generation)?;
        if !self.directories.contains(directory) {
            return Err(system(rustix::io::Errno::NOENT));
        }
        let all = self.names.keys().chain(&self.directories);
        let inside = all.filter(|path| path.parent() == Some(directory));
        let names: BTreeSet<String> = inside.map(|path| name(path)).collect();
        Ok(names.into_iter().collect())
    }

    pub(super) fn exists(&self, path: &Path) -> io::Result<bool> {
        self.has_power(self.generation)?;
        Ok(self.names.contains_key(path) || self.directories.contains(path))
    }

    pub(super) fn create_dir_all(&mut self, path: &Path) -> io::Result<()> {
        self.has_power(self.generation)?;
        self.directories.extend(path.ancestors().map(Path::to_owned));
        Ok(())
    }

    pub(super) fn sync_dir(&mut self, directory: &Path) -> io::Result<()> {
        self.begin_whole(Operation::SyncDirectory, &name(directory))?;
        let (synced, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.name_changes).into_iter().partition(|change| change.is_in(directory));
        synced.into_iter().for_each(|change| change.apply(&mut self.durable_names));
        let inside = self.directories.iter().filter(|path| path.parent() == Some(directory));
        self.durable_directories.extend(inside.cloned());
        self.name_changes = others;
        Ok(())
    }

    pub(super) fn read(&mut self, handle: SimulatedHandle, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let name = self.name_of(handle)?;
        aligned(offset, buffer.len())?;
        let short = match self.begin(Operation::Read, &name)? {
            Verdict::Proceed => false,
            Verdict::Fails(Fault::ShortRead) => true,
            Verdict::Fails(fault) => return Err(refused(fault)),
            Verdict::Ends => return Err(self.end()),
        };
        let current = &self.stored(handle)?.image.current;
        let start = (offset as usize).min(current.len());
        let mut bytes = buffer.len().min(current.len() - start);
        if short {
            bytes /= 2;
        }
        buffer[..bytes].copy_from_slice(&current[start..start + bytes]);
        Ok(bytes)
    }

    pub(super) fn write(
        &mut self,
        handle: SimulatedHandle,
        offset: u64,
        bytes: &[u8],
        durable: bool,
    ) -> io::Result<()> {
        let name = self.name_of(handle)?;
        aligned(offset, bytes.len())?;
        let verdict = self.begin(Operation::Write, &name)?;
        let stamp = self.next_stamp();
        match verdict {
            Verdict::Fails(Fault::NoSpace) => return Err(refused(Fault::NoSpace)),
            Verdict::Fails(fault) => {
                self.write_partly(handle, stamp, offset, bytes)?;
                return Err(refused(fault));
            }
            Verdict::Ends => {
                self.write_partly(handle, stamp, offset, bytes)?;
                return Err(self.end());
            }
            Verdict::Proceed => self.fits(handle, offset + bytes.len() as u64)?,
        }
        self.image(handle)?.write(stamp, offset, bytes, durable);
        Ok(())
    }

    fn write_partly(&mut self, handle: SimulatedHandle, stamp: u64, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.has_power(handle.generation)?;
        let fate = Fate::draw(&mut self.chance);
        if let Some(stored) = self.files.get_mut(&handle.file) {
            stored.image.write_partly(stamp, offset, bytes, fate, &mut self.chance);
        }
        Ok(())
    }

    pub(super) fn sync(&mut self, handle: SimulatedHandle, stamp: u64) -> io::Result<()> {
        let name = self.name_of(handle)?;
        match self.begin(Operation::Sync, &name)? {
            Verdict::Proceed => self.image(handle)?.sync(stamp),
            Verdict::Fails(fault) => {
                self.image(handle)?.abandon();
                return Err(refused(fault));
            }
            Verdict::Ends => return Err(self.end()),
        }
        Ok(())
    }

    pub(super) fn set_length(&mut self, handle: SimulatedHandle, length: u64) -> io::Result<()> {
        self.resize(handle, Operation::SetLength, |_| length)
    }

    pub(super) fn allocate(&mut self, handle: SimulatedHandle, bytes: u64) -> io::Result<()> {
        self.resize(handle, Operation::Allocate, |length| length.max(bytes))
    }

    fn resize(
        &mut self,
        handle: SimulatedHandle,
        operation: Operation,
        new_length: impl FnOnce(u64) -> u64,
    ) -> io::Result<()> {
        let name = self.name_of(handle)?;
        let verdict = self.begin(operation, &name)?;
        if let Verdict::Fails(fault) = verdict {
            return Err(refused(fault));
        }
        let stamp = self.next_stamp();
        let old = self.length(handle)?;
        let length = new_length(old);
        self.fits(handle, length)?;
        if length != old {
            self.image(handle)?.set_length(stamp, length);
        }
        self.finish(&verdict)
    }

    pub(super) fn length(&self, handle: SimulatedHandle) -> io::Result<u64> {
        Ok(self.stored(handle)?.length())
    }

    /// Carries out a submitted operation; `read` gets what a read finds.
    pub(super) fn land(&mut self, id: FlightId, read: impl FnOnce(&[u8])) -> io::Result<()> {
        // Until it has landed it stays among those that a power cut may leave half done, which is what `write` does at a cut as well.
        let Some(flight) = self.flights.remove(&id) else { return Err(power_is_off()) };
        match flight.kind {
            FlightKind::Read { offset, bytes } => {
                let mut found = vec![0; bytes];
                let filled = self.read(flight.handle, &mut found, offset)?;
                read(&found[..filled]);
                if filled < bytes {
                    return Err(io::Error::other(format!("short transfer: {filled} of {bytes} bytes")));
                }
                Ok(())
            }
            FlightKind::Write { offset, bytes, durable } => self.write(flight.handle, offset, &bytes, durable),
            FlightKind::Sync { stamp } => self.sync(flight.handle, stamp),
        }
    }

    /// Writes in flight end anywhere: they become ordinary unsynced writes, or parts of them do.
    fn drop_flights(&mut self) {
        for flight in std::mem::take(&mut self.flights).into_values() {
            if let FlightKind::Write { offset, bytes, .. } = flight.kind {
                let stamp = self.next_stamp();
                // A file of a generation that is gone has no operations in flight.
                let _ = self.write_partly(flight.handle, stamp, offset, &bytes);
            }
        }
    }

    pub(super) fn power_cut(&mut self) {
        if !self.powered {
            return;
        }
        self.drop_flights();
        // One cut in three spares everything, one nothing: the two ends are what most mistakes show at.
        let mood = [Some(Fate::All), Some(Fate::None), None][self.chance.below(3) as usize];
        for stored in self.files.values_mut() {
            stored.image.cut(mood, &mut self.chance);
        }
        for change in std::mem::take(&mut self.name_changes) {
            if mood.unwrap_or(Fate::Some).spares(&mut self.chance) {
                change.apply(&mut self.durable_names);
            }
        }
        self.lose_directories(mood);
        self.names.clone_from(&self.durable_names);
        self.files.retain(|id, _| self.names.values().any(|named| named == id));
        self.powered = false;
        self.ends_at = None;
    }

    fn lose_directories(&mut self, mood: Option<Fate>) {
        let mut left = BTreeSet::new();
        for path in std::mem::take(&mut self.directories) {
            // In their order, one comes behind the one that it is in.
            let spared =
                self.durable_directories.contains(&path) || mood.unwrap_or(Fate::Some).spares(&mut self.chance);
            if spared && path.parent().is_none_or(|above| left.contains(above)) {
                left.insert(path);
            }
        }
        self.durable_names.retain(|path, _| path.parent().is_some_and(|directory| left.contains(directory)));
        self.durable_directories.clone_from(&left);
        self.directories = left;
    }

    pub(super) fn kill(&mut self) {
        if self.powered {
            self.drop_flights();
            self.powered = false;
            self.ends_at = None;
        }
    }

    pub(super) fn restart(&mut self) {
        self.powered = true;
        self.generation += 1;
    }

    /// Changes a file behind the engine's back.
    pub(super) fn tamper(&mut self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let id = self.find(path)?;
        if let Some(stored) = self.files.get_mut(&id) {
            stored.image.tamper(change);
        }
        Ok(())
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Direct I/O refuses what is not aligned, and so does the simulation.
fn aligned(offset: u64, bytes: usize) -> io::Result<()> {
    let whole = bytes.is_multiple_of(DIRECT_IO_ALIGN_BYTES) && offset.is_multiple_of(DIRECT_IO_ALIGN_BYTES as u64);
    if whole { Ok(()) } else { Err(system(rustix::io::Errno::INVAL)) }
}
