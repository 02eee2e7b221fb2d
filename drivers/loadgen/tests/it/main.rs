//! Integration tests: they call the built binary.

#![allow(clippy::unwrap_used)]

mod bad_input;
mod common;
mod endpoint;
mod open_loop;
mod prewarm;
// The engine's tests hold the procedures to the same implementation, so all systems agree with each other.
mod quiesce;
#[path = "../../../../anticache-engine/tests/engine/tpcc/reference.rs"]
mod reference;
mod secret;
mod served;
mod servers;
mod settings;
mod stopped;
mod tpcc;
mod tpcc_mysql;
mod tpcc_trouble;
mod trials;
mod ycsb_mysql;
