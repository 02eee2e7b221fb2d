//! Loaders and benchmark terminals, in a closed loop or an open one, for every system under test (design §6).
//!
//! Where to start: [`spec`] says what a call is; [`workload`] and [`ycsb`] make the operations, from
//! (seed, terminal) alone, and [`arrivals`] when they come in an open loop; [`system`] is the waist that the adapters in [`systems`] fit; [`trial`] runs
//! the terminals and writes the results.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod arrivals;
pub mod check;
pub mod cpus;
pub mod data_check;
pub mod interrupt;
pub mod parallel;
pub mod progress;
pub mod row_hash;
pub mod spec;
pub mod streams;
pub mod system;
pub mod systems;
pub mod tpcc;
pub mod trial;
pub mod workload;
pub mod ycsb;
