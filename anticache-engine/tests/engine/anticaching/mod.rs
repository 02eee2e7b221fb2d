//! Eviction, fetches and compaction.

mod compaction;
mod eviction;
