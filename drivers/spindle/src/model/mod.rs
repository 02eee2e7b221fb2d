//! The drive as a discrete-event model: requests in, events out, time given by the caller.

use serde::{Deserialize, Serialize};

mod cache;
mod counters;
mod drive;
mod flash;
mod geometry;
mod mechanics;
mod platters;
pub mod simulate;
pub mod workload;

pub use counters::{Counters, ServiceTimes};
pub use drive::Drive;

/// Size of a sector: the unit in which the drive is addressed and in which its writes are atomic.
pub const SECTOR_BYTES: u64 = 4096;

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// Read sectors.
    Read,
    /// Write sectors.
    Write,
    /// Empty the write cache.
    Flush,
}

/// One request of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Chosen by the caller, returned in [`Event::Completed`].
    pub id: u64,
    /// What to do.
    pub operation: Operation,
    /// First sector; 0 for a flush.
    pub first_sector: u64,
    /// Number of sectors, at least 1; 0 for a flush.
    pub sectors: u32,
}

/// What happened in the drive, in the order of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A request has ended: its reply is due.
    Completed {
        /// Of the request.
        id: u64,
        /// When, in nanoseconds.
        at_ns: u64,
    },
    /// The drive begins to move these sectors from the write cache to the platters, with their contents of now.
    DestageBegan {
        /// First sector.
        first_sector: u64,
        /// Number of sectors.
        sectors: u32,
        /// When, in nanoseconds.
        at_ns: u64,
    },
    /// The sectors of the last [`Event::DestageBegan`] are on the platters.
    DestageEnded {
        /// First sector.
        first_sector: u64,
        /// Number of sectors.
        sectors: u32,
        /// When, in nanoseconds.
        at_ns: u64,
    },
}

/// What a power cut left undone.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct PowerCut {
    /// Ids of the requests that will never complete.
    pub requests: Vec<u64>,
    /// The write or destage that was under way: first sector, and how many sectors had reached the platters.
    pub interrupted: Option<(u64, u32)>,
}
