//! A main-memory OLTP engine with anti-caching (DeBrabant et al., PVLDB 6(14), 2013).
//!
//! Memory is the primary storage; cold tuples are evicted to disk in blocks and fetched back without blocking. A partition owns its tables,
//! indexes, LRU chains, Evicted Tables, Block Table, command log and event loop, and one thread runs its transactions one after another.
//!
//! ```text
//! client ─▶ net ─▶ partition ─▶ procedure ─▶ txn ─▶ storage ─▶ reply after group commit (durability)
//!                      ▲  │ evicted tuple met: pre-pass ─▶ rollback ─▶ fetch ─┐
//!                      └──┴───────────── merge, re-queue (anticache) ◀────────┘
//! ```
//!
//! Start reading at [`partition`], then [`txn`], [`anticache`] and [`storage::table`].

pub mod allocator;
pub mod anticache;
pub mod catalog;
pub mod client;
pub mod config;
pub mod describe;
pub mod durability;
pub mod error;
pub mod events;
#[cfg(test)]
mod hot_path;
pub mod inspect;
pub mod io;
#[cfg(test)]
mod memory_audit;
pub mod net;
pub mod partition;
pub mod procedure;
pub mod secret;
pub mod stats;
pub mod storage;
pub mod txn;
