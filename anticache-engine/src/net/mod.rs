//! The wire: frames, and the server that answers them.

mod acceptor;
pub mod admin;
pub mod frame;
pub mod handshake;
mod keeper;
pub mod server;
