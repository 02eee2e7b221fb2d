//! Eviction, fetches and compaction.

mod budget;
mod compaction;
mod eviction;
