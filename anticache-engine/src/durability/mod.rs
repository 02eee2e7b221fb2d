//! Durability: the command log, snapshots, and recovery from both (paper §3.6).

mod beside;
pub mod command_log;
pub mod group;
pub mod log_reader;
pub mod manifest;
pub mod multi_recovery;
pub mod recovery;
mod replay;
pub mod segment;
pub mod snapshot;
pub mod verify;
