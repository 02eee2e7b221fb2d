//! What the tests share: databases in process, on simulated disks and behind a socket, with models of what they must hold.

pub mod cluster;
pub mod database;
pub mod durable;
pub mod effort;
pub mod lists;
pub mod notes;
pub mod replies;
pub mod served;
