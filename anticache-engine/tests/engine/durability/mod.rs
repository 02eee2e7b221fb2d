//! Command log, snapshots and recovery, with crashes at any moment.

mod crash;
mod kill;
mod log_crash;
mod multi_crash;
mod multi_recovery;
mod multi_restart;
mod recovery;
mod simulated;
