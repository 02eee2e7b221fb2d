//! The server over TCP.

mod calls;
mod connections;
mod inspect;
mod partitions;
mod secret;
