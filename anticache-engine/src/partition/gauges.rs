//! What a partition tells about itself.

use super::Partition;
use crate::anticache::AntiCache;
use crate::anticache::block::BLOCK_HEADER_BYTES;
use crate::stats::Gauges;
use crate::storage::table::Table;
use crate::storage::var_heap::VarHeap;

impl Partition {
    /// Gauges now.
    pub fn gauges(&self) -> Gauges {
        let sum = |each: fn(&Table) -> usize| self.tables.iter().map(|table| each(table) as u64).sum();
        let blocks = self.anticache.as_ref().map(|anticache| &anticache.blocks);
        let staging = self.anticache.as_ref().map_or(0, AntiCache::staging_bytes) + self.snapshots.counted_bytes();
        Gauges {
            tuples_resident: self.tables.iter().map(|table| table.tuples().live()).sum(),
            tuples_evicted: self.tables.iter().map(|table| table.evicted().live()).sum(),
            blocks_live: blocks.map_or(0, |blocks| blocks.live() as u64),
            blocks_needed: self.blocks_needed(),
            blocks_high_water: blocks.map_or(0, |blocks| blocks.high_water() as u64),
            block_holes: blocks.map_or(0, |blocks| blocks.iter().map(|block| u64::from(block.holes)).sum()),
            waiting: (self.waiting.len() - self.free_waiting.len()) as u64,
            waiting_bytes: self.waiting_bytes,
            waiting_peak_bytes: self.waiting_peak_bytes,
            log_groups: self.log.as_ref().map_or(0, |log| log.groups_written),
            log_bytes: self.log.as_ref().map_or(0, |log| log.bytes_written),
            system_calls_disk: self.ring.system_calls(),
            memory_tuples_bytes: sum(|table| table.tuples().allocated_bytes()),
            memory_index_bytes: sum(Table::index_bytes),
            memory_values_bytes: sum(|table| table.values().map_or(0, VarHeap::allocated_bytes)),
            memory_evicted_table_bytes: sum(|table| table.evicted().allocated_bytes()),
            memory_staging_bytes: staging,
            memory_total_bytes: self.meter.used_bytes(),
            memory_peak_bytes: self.meter.peak_bytes(),
            memory_budget_bytes: self.meter.budget_bytes(),
        }
    }

    /// Blocks that the tuples in blocks would fill, table by table.
    fn blocks_needed(&self) -> u64 {
        let Some(anticache) = &self.anticache else {
            return 0;
        };
        let mut live_bytes = vec![0; self.tables.len()];
        for state in anticache.blocks.iter() {
            live_bytes[usize::from(state.identity.table)] += state.live_bytes();
        }
        let capacity_bytes = (anticache.blocks.block_bytes() - BLOCK_HEADER_BYTES) as u64;
        live_bytes.into_iter().map(|bytes: u64| bytes.div_ceil(capacity_bytes)).sum()
    }

    /// Counters, gauges and pauses as one JSON object.
    pub fn stats(&self) -> serde_json::Map<String, serde_json::Value> {
        let mut all = serde_json::Map::new();
        for part in [serde_json::to_value(self.counters), serde_json::to_value(self.gauges())] {
            if let Ok(serde_json::Value::Object(part)) = part {
                all.extend(part);
            }
        }
        all.extend(self.pauses.report());
        all
    }
}
