//! A disk in memory that loses power, fails and lies at chosen points; for tests. The same seed and the same calls give the same disk.
//!
//! What it takes more freely than any one file system, because the engine may rely on no more than [`super::files`] promises:
//! - what was written and not synced survives a power cut whole, in part (sectors of 512 bytes) or not, in any order, also when later writes did;
//! - so do names created, changed or removed since the last sync of their directory, one by one; a directory that is lost takes along what is in it;
//! - a sync covers what was completed before it was started; one that failed leaves everything before it uncertain for good;
//! - operations of a ring complete in any order, some of them at each call; their effect is there from then on, or, after a crash, in part.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::files::{DirectoryLock, DiskFile, Files, Handle};
use super::ring::IoRing;

mod chance;
mod image;
mod ring;
mod state;

pub(super) use ring::SimulatedRing;
use state::{End, State};

/// Kinds of operations, for counts and faults. Asking for names and lengths is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// [`Files::create`].
    Create,
    /// [`Files::open`].
    Open,
    /// A read, of a ring or not.
    Read,
    /// A write, of a ring or not.
    Write,
    /// A sync of a file, of a ring or not.
    Sync,
    /// [`DiskFile::allocate`].
    Allocate,
    /// [`DiskFile::set_len`].
    SetLength,
    /// [`Files::rename`].
    Rename,
    /// [`Files::remove`].
    Remove,
    /// [`Files::sync_dir`].
    SyncDirectory,
}

impl Operation {
    const COUNT: usize = Self::SyncDirectory as usize + 1;
}

/// How an operation fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// EIO. A write that fails so may have been done in part.
    Io,
    /// ENOSPC.
    NoSpace,
    /// A read gives half of what was asked for, without an error of its own; other operations fail with EIO.
    ShortRead,
}

/// Operations that shall fail.
#[derive(Debug, Clone)]
pub struct FaultRule {
    /// What the file's name contains (its last component; the new file's for a creation, the old one's for a renaming).
    pub file: String,
    /// Which operations.
    pub operation: Operation,
    /// How many of them still work.
    pub after: u64,
    /// How the next ones fail.
    pub error: Fault,
    /// How many fail; those behind them work again.
    pub times: u64,
}

/// Which file of a simulated disk a handle stands for, and by which process it was opened.
#[derive(Debug, Clone, Copy)]
pub struct SimulatedHandle {
    file: state::FileId,
    generation: u64,
}

/// The disk. Clones are the same disk.
///
/// A test runs the engine on [`SimulatedDisk::files`], ends it by [`SimulatedDisk::power_cut`], [`SimulatedDisk::kill`] or
/// [`SimulatedDisk::cut_after`] or [`SimulatedDisk::kill_after`] (every operation of the engine fails from then on), drops it, calls [`SimulatedDisk::restart`] and starts the next one.
#[derive(Clone)]
pub struct SimulatedDisk(Arc<Mutex<State>>);

impl std::fmt::Debug for SimulatedDisk {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not what it holds: that may be a hundred megabytes.
        out.write_str("SimulatedDisk")
    }
}

impl SimulatedDisk {
    /// An empty disk, switched on, with the root directory.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State::new(seed))))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere is the test's; the disk is what it was.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The disk, for the engine.
    pub fn files(&self) -> Arc<dyn Files> {
        Arc::new(self.clone())
    }

    /// The power fails: see the module's text for what remains. Nothing works until [`SimulatedDisk::restart`].
    pub fn power_cut(&self) {
        self.state().power_cut();
    }

    /// The process dies: completed writes and all names remain, though not durably; those in flight remain wholly, partly or not. Nothing works
    /// until [`SimulatedDisk::restart`].
    pub fn kill(&self) {
        self.state().kill();
    }

    /// The next process starts: files can be opened again, handles and rings from before stay dead.
    pub fn restart(&self) {
        self.state().restart();
    }

    /// Lets the power fail by itself during the operation that is number `operations` from the beginning, counted from 0 as
    /// [`SimulatedDisk::operations`] does.
    pub fn cut_after(&self, operations: u64) {
        self.state().ends_at = Some((operations, End::PowerCut));
    }

    /// As [`SimulatedDisk::cut_after`], with a process that dies instead of the power.
    pub fn kill_after(&self, operations: u64) {
        self.state().ends_at = Some((operations, End::Kill));
    }

    /// Operations so far.
    pub fn operations(&self) -> u64 {
        self.state().operations()
    }

    /// Operations of one kind so far.
    pub fn count(&self, operation: Operation) -> u64 {
        self.state().counts[operation as usize]
    }

    /// Adds a rule. Rules stay, also over a restart.
    pub fn fail(&self, rule: FaultRule) {
        self.state().rules.push(rule);
    }

    /// Removes all rules.
    pub fn heal(&self) {
        self.state().rules.clear();
    }

    /// Bytes that all files together may have from now on; beyond that, ENOSPC.
    pub fn set_capacity(&self, bytes: u64) {
        self.state().capacity_bytes = bytes;
    }

    /// Turns over one bit of a file, durably, as everything else in it is then.
    ///
    /// # Errors
    /// When there is no such file, or it is not that long.
    pub fn flip_bit(&self, path: &Path, byte: u64, bit: u8) -> io::Result<()> {
        let mut flipped = false;
        self.state().tamper(path, |content| {
            if let Some(place) = content.get_mut(byte as usize) {
                *place ^= 1 << (bit % 8);
                flipped = true;
            }
        })?;
        if flipped { Ok(()) } else { Err(io::Error::other(format!("{} has no byte {byte}", path.display()))) }
    }

    /// Cuts a file, durably, as everything else in it is then.
    ///
    /// # Errors
    /// When there is no such file.
    pub fn truncate(&self, path: &Path, bytes: u64) -> io::Result<()> {
        self.state().tamper(path, |content| content.truncate(bytes as usize))
    }

    fn handle(&self, file: io::Result<SimulatedHandle>) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(SimulatedFile { disk: self.clone(), handle: file? }))
    }
}

impl Files for SimulatedDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let created = self.state().create(path);
        self.handle(created)
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let opened = self.state().open(path);
        self.handle(opened)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        self.state().list(directory)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.state().rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.state().remove(path)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.state().exists(path)
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.state().create_dir_all(path)
    }

    fn sync_dir(&self, directory: &Path) -> io::Result<()> {
        self.state().sync_dir(directory)
    }

    fn lock(&self, _directory: &Path) -> io::Result<Option<DirectoryLock>> {
        Ok(Some(DirectoryLock::simulated()))
    }

    fn ring(&self, depth: u32) -> io::Result<IoRing> {
        Ok(IoRing::simulated(SimulatedRing::new(self.clone(), depth)?))
    }

    fn is_simulated(&self) -> bool {
        true
    }
}

#[derive(Debug)]
struct SimulatedFile {
    disk: SimulatedDisk,
    handle: SimulatedHandle,
}

impl DiskFile for SimulatedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.disk.state().read(self.handle, buffer, offset)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.disk.state().write(self.handle, offset, bytes, false)
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.disk.state();
        let stamp = state.next_stamp();
        state.sync(self.handle, stamp)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.disk.state().set_length(self.handle, bytes)
    }

    fn len(&self) -> io::Result<u64> {
        self.disk.state().length(self.handle)
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        self.disk.state().allocate(self.handle, bytes)
    }

    fn handle(&self) -> Handle<'_> {
        Handle::Simulated(self.handle)
    }
}

#[cfg(test)]
mod tests;
