//! The daemon: serves one disk through FUSE and takes commands on a socket.

pub mod arm;
pub mod buffer;
pub mod disk;
pub mod fuse;
pub mod image;
pub mod late;
pub mod overlay;
pub mod platter;
pub mod scheduling;
pub mod serve;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`. A panic ends the daemon (panic = abort), so a poisoned lock is met in tests only.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
