//! Integration tests: they call the built binary.

#![allow(clippy::unwrap_used)]

mod bad_input;
mod common;
mod endpoint;
mod prewarm;
mod secret;
mod served;
mod tpcc;
mod trials;
