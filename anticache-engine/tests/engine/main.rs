//! All tests of the engine from outside, in one program: it is linked once, and its tests share the cores.
#![allow(clippy::unwrap_used)] // a test that fails may panic

mod anticaching;
mod durability;
mod server;
mod support;
mod tpcc;
mod transactions;
