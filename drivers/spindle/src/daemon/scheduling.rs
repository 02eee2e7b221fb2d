//! What keeps the daemon punctual: real-time scheduling, exact timers, memory that stays.

use rustix::mm::MlockAllFlags;
use rustix::process::{Resource, configure_io_flusher_behavior, getrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_current_timer_slack};
use std::num::NonZeroU64;

/// Priority of the arm thread: above the threads that take requests, which are above everything ordinary.
pub const ARM_PRIORITY: i32 = 3;
/// Priority of the threads that take requests and write the image.
pub const REQUEST_PRIORITY: i32 = 2;

/// Settings of the whole process, made before it has threads: they inherit them. Returns what could not be had.
pub fn prepare_process() -> Vec<String> {
    let mut warnings = Vec::new();
    if let Err(error) = lock_memory() {
        warnings.push(format!("memory is not locked ({error}): page faults may delay operations"));
    }
    if let Err(error) = configure_io_flusher_behavior(true) {
        warnings.push(format!("PR_SET_IO_FLUSHER refused ({error}; needs CAP_SYS_RESOURCE): under memory pressure the daemon may wait for its own disk"));
    }
    if let Err(error) = set_current_timer_slack(NonZeroU64::new(1)) {
        warnings.push(format!("the timer slack could not be set ({error}): wake-ups are up to 50 us later"));
    }
    warnings
}

fn lock_memory() -> Result<(), String> {
    let capable = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    if !capable && getrlimit(Resource::Memlock).current.is_some() {
        // It would succeed now, and the memory of later threads would be refused.
        return Err("no CAP_IPC_LOCK, and RLIMIT_MEMLOCK is limited".to_owned());
    }
    // Only what is touched is locked: each FUSE thread has a buffer of 16 MiB of which it uses 1 MiB.
    let flags = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    rustix::mm::mlockall(flags).map_err(|error| error.to_string())
}

/// Puts the calling thread, and the threads that it starts, under SCHED_FIFO.
pub fn become_real_time(priority: i32, who: &str) -> Option<String> {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: `parameters` is a valid sched_param that lives through the call, which only reads it; pid 0 is the calling thread.
    let refused = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) } != 0;
    refused.then(|| {
        let error = std::io::Error::last_os_error();
        format!("{who}: no SCHED_FIFO ({error}): other work on the machine may delay operations")
    })
}

/// Marks every file that the caller left open, but standard input and output, to be closed by an exec, and closes it here.
pub fn keep_no_inherited_files() {
    // SAFETY: called before this process has opened a file of its own that it still uses (standard streams aside), so no
    // owner of a descriptor is left without it. It takes no pointers.
    let closed = unsafe { libc::close_range(3, libc::c_uint::MAX, 0) };
    if closed != 0 {
        eprintln!("spindle: inherited files stay open: {}", std::io::Error::last_os_error());
    }
}
