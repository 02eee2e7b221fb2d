//! The server over TCP.

mod connections;
mod inspect;
mod partitions;
mod secret;
