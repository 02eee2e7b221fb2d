//! Durability: the command log. Snapshots and recovery (paper §3.6) will live beside it.

pub mod command_log;
pub mod log_reader;
pub mod multi_recovery;
pub mod segment;
