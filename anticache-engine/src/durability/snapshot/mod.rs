//! Snapshots (paper §3.6): the state of every partition at one point, so that recovery need not replay the whole command log.
//!
//! A snapshot of a partition is its state between two transactions: every tuple in memory, every Evicted Table entry and the Block Table. It is written in
//! steps while transactions go on; what they change first is saved before ([`crate::storage::table::capture`]). Unlike in the paper, tuples are evicted,
//! merged and compacted meanwhile as at any time: the snapshot refers to blocks by their identity, and the Block Table keeps the place of those that it
//! refers to. So the delta of the paper costs nothing but a sync of the block file: blocks added since the last snapshot are made durable by it, and the
//! places of those removed can be used again when it is durable.
//!
//! ```text
//! site's keeper                              each partition
//! creates the files of generation N ───────▶ begins in a barrier across all partitions: its sequence S is the next record of its command log
//!                                            steps, one extent each: rows, entries, blocks, end
//!                                            waits until the blocks are in their file and the log is durable up to S; syncs snapshot and block file
//! all ended: replaces MANIFEST ◀──────────── ended
//! removes older snapshots ─────────────────▶ releases blocks, truncates the command log before S
//! ```
//!
//! **Several partitions.** The barrier is one point in the order of multi-partition transactions, and each of these is executed at all its participants at
//! once: it is in the snapshots of all of them, with records below S in all their logs, or in none, with records from S on in all. What is in the snapshot
//! may be executed and not resolved yet ([`crate::partition::multi`]): a record of it may be missing in a log when a crash comes. Would the generation
//! count then, one partition's state would contain what the others have lost. So a partition ends its part only when its log is durable up to S, and the
//! manifest is replaced only when all have ended: by then every record below every S is durable. Hence every multi-partition transaction in the
//! snapshot is durable at all its participants, and so is every one before it, since those are in the snapshot too: all of them are resolved, and the
//! single-partition transactions between them depend on nothing that a crash could take. (The logs go one step further: a group leaves
//! [`crate::durability::command_log`] only when it is resolved, and counts as durable only then.) The cuts that recovery makes in the logs
//! from S on ([`crate::durability::multi_recovery`]) therefore never reach below an S. A partition that cannot begin or end its part gives the generation up
//! for all.
//!
//! A generation counts when the manifest names it. Whatever fails before abandons it: the generation before stays in force, and the next one is begun when
//! its time comes. When replacing the manifest fails nobody knows which of the two a crash would find; both keep their files and blocks, and the log is not
//! truncated, until a later generation is durable.

pub mod format;
pub mod keeper;
pub mod reader;
mod run;
mod stream;

pub(crate) use run::Snapshots;
pub use run::{Ended, PartSnapshot, Verdict};
