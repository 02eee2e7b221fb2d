//! An emulated disk: a mechanical model in virtual or real time, served as a block device.

pub mod control;
pub mod daemon;
pub mod device;
pub mod layout;
pub mod lifecycle;
pub mod model;
pub mod process;
pub mod profile;
pub mod selftest;
