//! Counters of a partition, readable over the wire.

use serde::Serialize;

mod pauses;

pub use pauses::{PauseKind, Pauses};

/// Everything counted since the start. Names are those of the statistics' JSON.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Counters {
    /// Transactions committed (those that wrote: and durable, when the log is on).
    pub committed: u64,
    /// Transactions aborted by their procedure.
    pub aborted: u64,
    /// Transactions that the engine could not serve.
    pub failed: u64,
    /// Times that a transaction was rolled back after a pre-pass and re-queued.
    pub restarted: u64,
    /// Times that a waiting transaction lost the tuples that it kept in memory to an older one.
    pub robbed: u64,
    /// Of the committed ones, those that took place at several partitions.
    pub multi_partition: u64,
    /// Microseconds that the partition waited for others in such transactions.
    pub multi_wait_us: u64,
    /// Transactions that updated the LRU chain.
    pub sampled: u64,
    /// Eviction transactions.
    pub evictions: u64,
    /// Of these, begun by a check between transactions.
    pub evictions_by_check: u64,
    /// Of these, begun because a transaction or a merge found no memory.
    pub evictions_on_demand: u64,
    /// Blocks written by them.
    pub evicted_blocks: u64,
    /// Tuples evicted.
    pub evicted_tuples: u64,
    /// Bytes of blocks written.
    pub evicted_bytes: u64,
    /// Times that the partition had to wait until an eviction's write completed.
    pub eviction_stalls: u64,
    /// Microseconds of those waits.
    pub eviction_stall_us: u64,
    /// Times that the partition had to wait because the command log did not keep up.
    pub log_stalls: u64,
    /// Microseconds of those waits.
    pub log_stall_us: u64,
    /// Longest construction of a block, in microseconds.
    pub eviction_us_max: u64,
    /// Microseconds of all constructions of blocks.
    pub eviction_us: u64,
    /// Blocks fetched from disk.
    pub fetched_blocks: u64,
    /// Bytes of these that were read.
    pub fetched_bytes: u64,
    /// Blocks taken from the buffer in which they waited to be written.
    pub fetched_from_buffer: u64,
    /// Tuples merged back.
    pub merged_tuples: u64,
    /// Of these, tuples that a transaction wanted.
    pub merged_wanted: u64,
    /// Blocks merged whole because of their holes (lazy compaction).
    pub compactions: u64,
    /// Blocks that background compaction has written and put in place of others.
    pub compactions_background: u64,
    /// Blocks that it has read to take their tuples.
    pub compacted_blocks: u64,
    /// Tuples that it has moved from one block to another.
    pub compacted_tuples: u64,
    /// Bytes that it has read.
    pub compaction_read_bytes: u64,
    /// Bytes that it has written.
    pub compaction_written_bytes: u64,
    /// Microseconds of all merges (stop-and-copy).
    pub merge_us: u64,
    /// Longest merge, in microseconds.
    pub merge_us_max: u64,
    /// Blocks that could not be read or failed their checks.
    pub block_errors: u64,
    /// Writes of blocks that failed, an eviction's or a compaction's.
    pub write_errors: u64,
    /// Times that a table gave memory back: chunks of tuple memory or a slab of variable-length data.
    pub released_chunks: u64,
    /// Snapshots that became durable.
    pub snapshots: u64,
    /// Snapshots that were given up.
    pub snapshot_errors: u64,
    /// Bytes of the snapshots that became durable.
    pub snapshot_bytes: u64,
    /// Longest step of a snapshot, in microseconds.
    pub snapshot_step_us_max: u64,
    /// Times that the partition had to wait because a snapshot's writes did not keep up with what had to be saved ahead.
    pub snapshot_stalls: u64,
    /// Microseconds of those waits.
    pub snapshot_stall_us: u64,
    /// Blocks that a durable snapshot refers to and the one before did not.
    pub snapshot_blocks_added: u64,
    /// Blocks that a durable snapshot does not refer to any more and the one before did.
    pub snapshot_blocks_removed: u64,
    /// Microseconds that recovery took at the start.
    pub recovery_us: u64,
    /// Bytes of the snapshot that recovery read.
    pub recovered_snapshot_bytes: u64,
    /// Tuples of that snapshot, in memory and evicted.
    pub recovered_tuples: u64,
    /// Transactions of the command log that recovery replayed.
    pub recovered_log_records: u64,
    /// How often recovery let something use more than the memory budget for a while, at most an eighth more, because it found no room.
    pub recovered_beyond_budget: u64,
    /// Bytes of the command log that recovery read.
    pub recovered_log_bytes: u64,
}

/// Gauges taken when the statistics are asked for.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Gauges {
    /// Tuples in memory.
    pub tuples_resident: u64,
    /// Tuples in blocks.
    pub tuples_evicted: u64,
    /// Blocks that exist.
    pub blocks_live: u64,
    /// Blocks that the tuples in blocks would fill, table by table.
    pub blocks_needed: u64,
    /// Length of the block file, in blocks.
    pub blocks_high_water: u64,
    /// Stale entries in blocks.
    pub block_holes: u64,
    /// Transactions that wait for blocks.
    pub waiting: u64,
    /// Bytes that transactions take which wait, for blocks or for other partitions.
    pub waiting_bytes: u64,
    /// The most that they took.
    pub waiting_peak_bytes: u64,
    /// Command-log groups made durable.
    pub log_groups: u64,
    /// Bytes of the command log.
    pub log_bytes: u64,
    /// System calls that hand operations to the disk, or wait for it.
    pub system_calls_disk: u64,
    /// Bytes of tuple memory.
    pub memory_tuples_bytes: u64,
    /// Bytes of memory for variable-length data.
    pub memory_values_bytes: u64,
    /// Bytes of indexes.
    pub memory_index_bytes: u64,
    /// Bytes of Evicted Tables.
    pub memory_evicted_table_bytes: u64,
    /// Bytes reserved for block buffers.
    pub memory_staging_bytes: u64,
    /// Sum of the above.
    pub memory_total_bytes: u64,
    /// The most that the sum was.
    pub memory_peak_bytes: u64,
    /// What is allowed.
    pub memory_budget_bytes: u64,
}

/// System calls of a partition's event loop, by what they are for. With those to the disk ([`Gauges::system_calls_disk`]) these are all that the
/// executor's thread makes for single-partition transactions, except when memory is taken or given back, a log segment ends, or a connection begins
/// or ends.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct SystemCalls {
    /// Waits for sockets, disk and other threads.
    pub system_calls_wait: u64,
    /// Looks before a wait, and offers of the CPU between them ([`Config::idle_poll_us`](crate::config::Config::idle_poll_us)): of a thread that has
    /// nothing else to do.
    pub system_calls_look: u64,
    /// Reads of sockets.
    pub system_calls_receive: u64,
    /// Writes to sockets.
    pub system_calls_send: u64,
    /// Resets of events, and changes of what is waited for.
    pub system_calls_event: u64,
}

/// Adds the integers of `from` to those of `into`, key by key.
pub fn add_up(
    into: &mut serde_json::Map<String, serde_json::Value>,
    from: &serde_json::Map<String, serde_json::Value>,
) {
    for (key, value) in from {
        let Some(number) = value.as_u64() else {
            into.entry(key).or_insert_with(|| value.clone());
            continue;
        };
        let sum = into.get(key).and_then(serde_json::Value::as_u64).unwrap_or(0);
        // A maximum over partitions is their maximum, a percentile at most their largest, everything else is their sum.
        let is_maximum = ["_max", "_p50", "_p99", "_p999", "_p9999"].iter().any(|suffix| key.ends_with(suffix));
        let combined = if is_maximum { sum.max(number) } else { sum + number };
        into.insert(key.clone(), combined.into());
    }
}
