//! The disk as a whole, on real FUSE, loop devices and file systems. Needs root, `/dev/fuse` and loop devices: without them the
//! tests say so and are skipped, unless `SPINDLE_TESTS_REQUIRED=1`.

mod commands;
mod common;
mod integrity;
mod power;
mod recovery;
