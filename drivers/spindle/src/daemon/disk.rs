//! The disk as its users see it: reads, writes and flushes that are answered at once (`bypass`) or when the model says so.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::arm::{Arm, Inbox, Pending, ReadSlot};
use super::buffer::{Buffer, LARGEST_BYTES};
use super::image::Image;
use super::late::{self, Kind, Late};
use super::lock;
use super::overlay::Overlay;
use super::platter::{Platter, write_to_image};
use super::scheduling::{ARM_PRIORITY, REQUEST_PRIORITY, become_real_time};
use crate::model::{Drive, Operation, Request, SECTOR_BYTES};
use crate::profile::Profile;

/// Answers an operation: with the data of a read (empty otherwise), or an errno.
pub type Done = Box<dyn FnOnce(Result<&[u8], i32>) + Send>;

/// A write waits when the overlay holds more than this: the host writes slower than the model does.
const OVERLAY_LIMIT_BYTES: u64 = 256 << 20;
/// How long it waits before it fails.
const OVERLAY_PATIENCE: Duration = Duration::from_secs(10);
const WARNINGS_KEPT: usize = 50;
/// A path that takes longer than this is a slow machine's, and stays visible.
const LONGEST_PATH: Duration = Duration::from_micros(500);

/// How operations are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// As fast as the host can.
    Bypass,
    /// When the model says so.
    Model,
}

#[derive(Debug, Clone, Copy)]
struct Gate {
    mode: Mode,
    powered: bool,
    write_cache: bool,
}

/// What the threads share.
pub struct Shared {
    /// The platters' contents.
    pub image: Image,
    /// The write cache's contents.
    pub overlay: Mutex<Overlay>,
    /// Messages to the arm thread.
    pub inbox: Inbox,
    overlay_room: Condvar,
    late: Mutex<Late>,
    in_flight: AtomicU64,
    failed: AtomicU64,
    warnings: Mutex<Vec<String>>,
    /// What the host's own path takes from a request to its reply, the drive left out: as measured when the disk was mounted.
    path_ns: AtomicU64,
    started: Instant,
}

impl Shared {
    /// Nanoseconds since the daemon started: the model's time.
    pub fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// What the host's own path takes.
    pub fn path_ns(&self) -> u64 {
        self.path_ns.load(Ordering::Relaxed)
    }

    /// An operation's reply has left.
    pub fn replied(&self, kind: Kind, due_ns: u64) {
        let left_ns = self.now_ns();
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        lock(&self.late).record(kind, due_ns, left_ns);
    }

    /// An operation was answered with an error.
    pub fn failed(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// Keeps a warning for the statistics; each once.
    pub fn warn(&self, warning: String) {
        let mut warnings = lock(&self.warnings);
        if !warnings.contains(&warning) && warnings.len() < WARNINGS_KEPT {
            eprintln!("spindle: {warning}");
            warnings.push(warning);
        }
    }

    /// Wakes writes that wait for room.
    pub fn overlay_shrank(&self) {
        self.overlay_room.notify_all();
    }

    /// Puts a write's data into the overlay, when there is room; returns how long that took to come, or nothing when it
    /// does not come.
    fn insert(&self, first_sector: u64, data: &[u8]) -> Option<u64> {
        let before_ns = self.now_ns();
        let overlay = lock(&self.overlay);
        let full = |overlay: &mut Overlay| overlay.bytes() >= OVERLAY_LIMIT_BYTES;
        let waited = self.overlay_room.wait_timeout_while(overlay, OVERLAY_PATIENCE, full);
        let (mut overlay, patience) = waited.unwrap_or_else(PoisonError::into_inner);
        if patience.timed_out() {
            return None;
        }
        overlay.insert(first_sector, data);
        Some(self.now_ns() - before_ns)
    }
}

/// The disk's statistics.
#[derive(Debug, Serialize)]
pub struct Stats {
    format: u32,
    profile: String,
    profile_values: Profile,
    mode: Mode,
    powered: bool,
    region_bytes: u64,
    write_cache: bool,
    model: serde_json::Value,
    late: late::Report,
    in_flight: u64,
    failed_operations: u64,
    host_io_errors: u64,
    overlay_bytes: u64,
    path_us: f64,
    daemon_cpu_s: f64,
    uptime_s: f64,
    warnings: Vec<String>,
}

/// The disk.
pub struct Disk {
    shared: Arc<Shared>,
    /// Held for reading while an operation is taken in (in `bypass`, until it is answered), for writing while a switch is
    /// made: a switch sees no operation that is half one thing and half the other.
    gate: RwLock<Gate>,
    next_id: AtomicU64,
    profile: Profile,
    seed: u64,
    arm: Mutex<Option<JoinHandle<()>>>,
}

impl Disk {
    /// A disk over `image`, in mode `bypass`, with its threads; `warnings` are those met so far.
    pub fn start(image: Image, profile: Profile, seed: u64, warnings: Vec<String>) -> Result<Self> {
        let drive = new_drive(&profile, image.bytes(), seed)?;
        let write_cache = profile.write_cache.as_ref().is_some_and(|cache| cache.enabled);
        let shared = Arc::new(Shared {
            image,
            overlay: Mutex::default(),
            inbox: Inbox::default(),
            overlay_room: Condvar::new(),
            late: Mutex::default(),
            in_flight: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            warnings: Mutex::new(warnings),
            path_ns: AtomicU64::new(0),
            started: Instant::now(),
        });
        let (platter, jobs) = mpsc::channel();
        spawn("platter", REQUEST_PRIORITY, &shared, move |shared| Platter::run(shared, &jobs))?;
        let arm = spawn("arm", ARM_PRIORITY, &shared, move |shared| Arm::run(shared, platter, drive))?;
        let gate = RwLock::new(Gate { mode: Mode::Bypass, powered: true, write_cache });
        Ok(Self { shared, gate, next_id: AtomicU64::new(1), profile, seed, arm: Mutex::new(Some(arm)) })
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.shared.image.bytes()
    }

    /// Takes what the host's own path takes out of the drive's time, at most `LONGEST_PATH`.
    pub fn set_path(&self, path: Duration) {
        self.shared.path_ns.store(path.min(LONGEST_PATH).as_nanos() as u64, Ordering::Relaxed);
    }

    /// Adds to the warnings of the statistics.
    pub fn warn(&self, warning: String) {
        self.shared.warn(warning);
    }

    /// Reads `bytes` at `offset`.
    pub fn read(&self, offset: u64, bytes: usize, done: Done) {
        let arrival_ns = self.shared.now_ns();
        let gate = self.pass();
        let Some((first_sector, sectors)) = self.sectors(&gate, offset, bytes) else {
            return done(Err(if gate.powered { libc::EINVAL } else { libc::EIO }));
        };
        self.shared.in_flight.fetch_add(1, Ordering::Relaxed);
        if gate.mode == Mode::Bypass {
            let mut buffer = Buffer::take(bytes);
            let result = self.shared.image.read(&mut buffer, offset);
            return self.answer(done, result.map(|()| &buffer[..]));
        }
        let slot = ReadSlot::new(done);
        let request = self.request(Operation::Read, first_sector, sectors);
        self.shared.inbox.submit(arrival_ns, request, Pending::Read(Arc::clone(&slot)));
        // The overlay first: a sector that is destaged between the two is then seen twice; the other way round, not at all.
        let held = lock(&self.shared.overlay).snapshot(first_sector, sectors);
        let mut buffer = Buffer::take(bytes);
        let read = if held.is_complete() { Ok(()) } else { self.shared.image.read(&mut buffer, offset) };
        slot.supply(
            &self.shared,
            read.map_err(|_| libc::EIO).map(|()| {
                held.patch(&mut buffer);
                buffer
            }),
        );
    }

    /// Writes `data` at `offset`.
    pub fn write(&self, offset: u64, data: &[u8], done: Done) {
        let arrival_ns = self.shared.now_ns();
        let gate = self.pass();
        let Some((first_sector, sectors)) = self.sectors(&gate, offset, data.len()) else {
            return done(Err(if gate.powered { libc::EINVAL } else { libc::EIO }));
        };
        self.shared.in_flight.fetch_add(1, Ordering::Relaxed);
        if gate.mode == Mode::Bypass {
            let result = self.shared.image.write(&Buffer::copy_of(data), offset);
            return self.answer(done, result.map(|()| &[][..]));
        }
        let pending = if gate.write_cache {
            // Before the request is known to the drive, which may destage it as soon as it is.
            let Some(waited_ns) = self.shared.insert(first_sector, data) else {
                self.shared
                    .warn("the host does not take the image's writes: a write failed for want of room".to_owned());
                self.shared.failed();
                return done(Err(libc::EIO));
            };
            if waited_ns > late::THRESHOLD_NS {
                self.shared.warn("writes waited for room: the host writes slower than the profile's drive".to_owned());
                lock(&self.shared.late).record(Kind::Write, 0, waited_ns);
            }
            Pending::CachedWrite(done)
        } else {
            Pending::Write(done, first_sector, Buffer::copy_of(data))
        };
        self.shared.inbox.submit(arrival_ns, self.request(Operation::Write, first_sector, sectors), pending);
    }

    /// Empties the write cache; in `bypass` makes the image durable on the host.
    pub fn flush(&self, done: Done) {
        let arrival_ns = self.shared.now_ns();
        let gate = self.pass();
        if !gate.powered {
            return done(Err(libc::EIO));
        }
        self.shared.in_flight.fetch_add(1, Ordering::Relaxed);
        if gate.mode == Mode::Bypass {
            let result = self.shared.image.sync();
            return self.answer(done, result.map(|()| &[][..]));
        }
        self.shared.inbox.submit(arrival_ns, self.request(Operation::Flush, 0, 0), Pending::Flush(done));
    }

    /// Switches mode and write cache; everything under way ends first, and the image is complete.
    pub fn switch(&self, mode: Mode, write_cache: Option<bool>) -> Result<()> {
        if mode == Mode::Model && self.profile.is_none() {
            bail!("profile {} has no model: this disk can only be in mode bypass", self.profile.name);
        }
        let mut gate = self.stop();
        if !gate.powered {
            bail!("the disk has no power: spindle poweron first");
        }
        let wanted = (mode, write_cache.unwrap_or(gate.write_cache));
        if wanted == (gate.mode, gate.write_cache) {
            return Ok(());
        }
        if gate.mode == Mode::Model {
            self.drain()?;
        }
        self.shared.inbox.ask(move |arm| {
            if let Some(drive) = &mut arm.drive {
                drive.set_write_cache(wanted.1);
            }
        })?;
        (gate.mode, gate.write_cache) = wanted;
        Ok(())
    }

    /// Cuts the power: what the cache holds is lost, and everything fails until [`Self::power_on`]. Returns the bytes lost.
    pub fn cut_power(&self) -> Result<u64> {
        let mut gate = self.stop();
        if !gate.powered {
            return Ok(0);
        }
        gate.powered = false;
        if gate.mode == Mode::Model {
            self.shared.inbox.ask(Arm::cut_power)?;
        }
        let mut overlay = lock(&self.shared.overlay);
        let lost_bytes = overlay.bytes();
        overlay.clear();
        Ok(lost_bytes)
    }

    /// Gives the power back; the drive starts anew, with an empty cache and new counters.
    pub fn power_on(&self) -> Result<()> {
        let mut gate = self.stop();
        if gate.powered {
            return Ok(());
        }
        let mut drive = new_drive(&self.profile, self.bytes(), self.seed)?;
        if let Some(drive) = &mut drive {
            drive.set_write_cache(gate.write_cache);
        }
        self.shared.inbox.ask(move |arm| arm.replace_drive(drive))?;
        gate.powered = true;
        Ok(())
    }

    /// The statistics; `reset` starts the counters anew.
    pub fn stats(&self, reset: bool) -> Result<Stats> {
        let gate = *self.pass();
        let counters = self.shared.inbox.ask(move |arm| {
            let counters = serde_json::to_value(arm.drive.as_ref().map(Drive::counters));
            if let Some(drive) = arm.drive.as_mut().filter(|_| reset) {
                drive.reset_counters();
            }
            counters
        })?;
        let mut late = lock(&self.shared.late);
        let stats = Stats {
            format: 1,
            profile: self.profile.name.clone(),
            profile_values: self.profile.clone(),
            mode: gate.mode,
            powered: gate.powered,
            region_bytes: self.bytes(),
            write_cache: gate.write_cache,
            model: counters.context("the model's counters")?,
            late: late.report(),
            in_flight: self.shared.in_flight.load(Ordering::Relaxed),
            failed_operations: self.shared.failed.load(Ordering::Relaxed),
            host_io_errors: self.shared.image.errors(),
            overlay_bytes: lock(&self.shared.overlay).bytes(),
            path_us: self.shared.path_ns() as f64 / 1000.0,
            daemon_cpu_s: cpu_s(),
            uptime_s: self.shared.started.elapsed().as_secs_f64(),
            warnings: lock(&self.shared.warnings).clone(),
        };
        if reset {
            *late = Late::default();
        }
        Ok(stats)
    }

    /// Ends everything under way and makes the image complete and durable. The disk answers nothing afterwards.
    pub fn end(&self) -> Result<()> {
        let mut gate = self.stop();
        let drained = match (gate.powered, gate.mode) {
            (true, Mode::Model) => self.drain(),
            (true, Mode::Bypass) => self.shared.image.sync().context("the image could not be synced"),
            (false, _) => Ok(()),
        };
        gate.powered = false;
        self.shared.inbox.stop();
        if let Some(arm) = lock(&self.arm).take() {
            // A panic of that thread has ended the process (panic = abort) or was printed.
            let _ = arm.join();
        }
        drained
    }

    /// Everything ends at once and the overlay goes to the image. The gate is held for writing.
    fn drain(&self) -> Result<()> {
        let refused =
            self.shared.inbox.ask(Arm::drain)?.recv().context("the thread that writes the image has ended")?;
        if refused > 0 {
            bail!(
                "the host refuses to write {refused} runs of cached sectors to the image (full disk?); nothing is lost yet"
            );
        }
        let left = lock(&self.shared.overlay).runs();
        for run in &left {
            write_to_image(&self.shared, run).context("the cache's rest could not be written to the image")?;
            lock(&self.shared.overlay).settle(run);
        }
        if !left.is_empty() {
            self.shared.warn(format!("draining left {} runs in the cache, which were written then", left.len()));
        }
        self.shared.image.sync().context("the image could not be synced")
    }

    fn pass(&self) -> RwLockReadGuard<'_, Gate> {
        self.gate.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn stop(&self) -> RwLockWriteGuard<'_, Gate> {
        self.gate.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, done: Done, result: std::io::Result<&[u8]>) {
        let ok = result.is_ok();
        done(result.map_err(|_| libc::EIO));
        self.shared.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.shared.failed.fetch_add(u64::from(!ok), Ordering::Relaxed);
    }

    /// The sectors of a request, if it is one that the disk can serve now.
    fn sectors(&self, gate: &Gate, offset: u64, bytes: usize) -> Option<(u64, u32)> {
        let aligned = offset.is_multiple_of(SECTOR_BYTES) && (bytes as u64).is_multiple_of(SECTOR_BYTES);
        let inside = offset.checked_add(bytes as u64).is_some_and(|end| end <= self.bytes());
        let fits = bytes > 0 && bytes <= LARGEST_BYTES;
        (gate.powered && aligned && inside && fits)
            .then_some((offset / SECTOR_BYTES, (bytes as u64 / SECTOR_BYTES) as u32))
    }

    fn request(&self, operation: Operation, first_sector: u64, sectors: u32) -> Request {
        Request { id: self.next_id.fetch_add(1, Ordering::Relaxed), operation, first_sector, sectors }
    }
}

/// The profile's drive, if it has one.
pub fn new_drive(profile: &Profile, region_bytes: u64, seed: u64) -> Result<Option<Drive>> {
    if profile.is_none() {
        return Ok(None);
    }
    Ok(Some(Drive::new(profile, region_bytes / SECTOR_BYTES, seed)?))
}

fn spawn(
    name: &str,
    priority: i32,
    shared: &Arc<Shared>,
    body: impl FnOnce(Arc<Shared>) + Send + 'static,
) -> Result<JoinHandle<()>> {
    let (shared, who) = (Arc::clone(shared), format!("{name} thread"));
    let thread = std::thread::Builder::new().name(format!("spindle-{name}"));
    let run = move || {
        if let Some(warning) = become_real_time(priority, &who) {
            shared.warn(warning);
        }
        body(shared);
    };
    thread.spawn(run).with_context(|| format!("the {name} thread could not be started"))
}

/// CPU time of this process, all threads, user and system.
fn cpu_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
