//! The wire: frames, and the server that answers them.

mod acceptor;
pub mod admin;
mod event_loop;
pub mod frame;
pub mod handshake;
mod keeper;
pub mod server;
