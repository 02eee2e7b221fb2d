//! An emulated disk: a mechanical model in virtual or real time, served as a block device.

pub mod model;
pub mod profile;
