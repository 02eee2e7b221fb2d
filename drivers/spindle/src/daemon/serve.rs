//! The daemon's life: lock, mount, serve, and an image that is complete at the end.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use fuser::{Config, MountOption, Session};
use rustix::mount::UnmountFlags;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::disk::Disk;
use super::fuse::DiskFile;
use super::image::Image;
use super::scheduling::{REQUEST_PRIORITY, become_real_time, prepare_process};
use crate::control;
use crate::layout::Layout;
use crate::process::wait_until;
use crate::profile::Profile;

/// Threads that take requests: each does the host's I/O for its request, so this is the host's queue depth.
const FUSE_THREADS: usize = 16;
/// How long a daemon that starts waits for the lock of its disk.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

/// Serves the disk in the foreground until it is unmounted.
pub fn serve(layout: &Layout) -> Result<()> {
    let root = layout.root().display();
    // Who looks whether a daemon lives, as the command that starts this one does, holds the lock for an instant.
    let mut lock = None;
    let locked = || {
        lock = layout.try_daemon_lock()?;
        Ok(lock.is_some())
    };
    if !wait_until(LOCK_PATIENCE, locked)? {
        bail!("{root} has a daemon already (spindle status {root})");
    }
    crate::process::record(layout)?;
    let description = layout.description()?;
    let profile = Profile::load(&description.profile).with_context(|| format!("profile of {root}"))?;
    let warnings = prepare_process();
    warnings.iter().for_each(|warning| eprintln!("spindle: {warning}"));
    let image = Image::open(&layout.image(), description.region_bytes)?;
    let disk = Arc::new(Disk::start(image, profile, description.seed, warnings)?);
    let session = mount(layout, &disk)?;
    end_on_signals(layout, &disk)?;
    control::listen(layout, &disk)?;
    let served = run(session, &disk);
    disk.end()?;
    control::remove_socket(layout)?;
    served
}

fn mount(layout: &Layout, disk: &Arc<Disk>) -> Result<Session<DiskFile>> {
    let mountpoint = layout.fuse();
    std::fs::create_dir_all(&mountpoint).with_context(|| {
        format!(
            "{}: a daemon that died left its mount? spindle unmount {}",
            mountpoint.display(),
            layout.root().display()
        )
    })?;
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("spindle".to_owned()), MountOption::NoAtime, MountOption::NoExec];
    config.n_threads = Some(FUSE_THREADS);
    config.clone_fd = true;
    Session::new(DiskFile::new(Arc::clone(disk)), &mountpoint, &config)
        .with_context(|| format!("cannot mount {} through /dev/fuse", mountpoint.display()))
}

/// Runs the session on a thread of its own, whose threads inherit its scheduling.
fn run(session: Session<DiskFile>, disk: &Arc<Disk>) -> Result<()> {
    let disk = Arc::clone(disk);
    let thread = std::thread::Builder::new().name("spindle-fuse".to_owned()).spawn(move || {
        if let Some(warning) = become_real_time(REQUEST_PRIORITY, "FUSE threads") {
            disk.warn(warning);
        }
        session.run()
    })?;
    match thread.join() {
        Ok(served) => served.context("the FUSE session ended with an error"),
        Err(_) => bail!("a thread of the FUSE session panicked"),
    }
}

/// SIGTERM and SIGINT unmount; when the loop device still holds the file, the image is completed and the process ends, as
/// a disk does whose cable is pulled after it became quiet.
fn end_on_signals(layout: &Layout, disk: &Arc<Disk>) -> Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let (mountpoint, disk) = (layout.fuse(), Arc::clone(disk));
    let body = move || {
        if signals.forever().next().is_none() || rustix::mount::unmount(&mountpoint, UnmountFlags::empty()).is_ok() {
            return;
        }
        eprintln!("spindle: told to end while the disk is in use; completing the image");
        if let Err(error) = disk.end() {
            eprintln!("spindle: {error:#}");
        }
        std::process::exit(1);
    };
    std::thread::Builder::new().name("spindle-signals".to_owned()).spawn(body)?;
    Ok(())
}
