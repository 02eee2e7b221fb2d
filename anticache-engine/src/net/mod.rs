//! The wire: frames, and the server that answers them.

pub mod frame;
pub mod server;
