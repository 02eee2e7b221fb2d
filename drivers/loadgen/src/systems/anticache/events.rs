//! What the engine says that it does besides transactions: evictions, merges, fetches … of all partitions.

use std::net::SocketAddr;

use anticache_engine::client::Client;
use anticache_engine::events::Stream;
use serde_json::Value;

use super::{AnticacheSystem, system_error};
use crate::system::{EventSource, SystemError, SystemEvent};

/// Reads both streams of every partition over a connection of its own.
pub(super) struct PartitionEvents {
    address: SocketAddr,
    client: Client,
    /// Partition, stream, number of the next event.
    positions: Vec<(u32, Stream, u64)>,
}

impl PartitionEvents {
    /// Begins behind what has happened before.
    pub(super) fn open(system: &AnticacheSystem) -> Result<PartitionEvents, SystemError> {
        let address = system.address;
        let mut client = system.client()?;
        let mut positions = Vec::new();
        for partition in 0..client.partitions() {
            for stream in [Stream::Maintenance, Stream::Traffic] {
                let page = client.events(partition, stream, u64::MAX).map_err(|error| system_error(address, &error))?;
                positions.push((partition, stream, number(&page, "next")));
            }
        }
        Ok(PartitionEvents { address, client, positions })
    }
}

impl EventSource for PartitionEvents {
    /// At most a page of each stream: what a poll costs a partition is bounded.
    fn poll(&mut self, events: &mut Vec<SystemEvent>) -> Result<u64, SystemError> {
        let mut lost = 0;
        for (partition, stream, from) in &mut self.positions {
            let page = self.client.events(*partition, *stream, *from);
            let page = page.map_err(|error| system_error(self.address, &error))?;
            *from = number(&page, "next");
            lost += number(&page, "lost");
            events.extend(page["events"].as_array().into_iter().flatten().map(|event| SystemEvent {
                at_us: number(event, "at_us"),
                partition: *partition,
                kind: event["kind"].as_str().unwrap_or_default().to_owned(),
                tuples: number(event, "tuples"),
                blocks: number(event, "blocks"),
                bytes: number(event, "bytes"),
                took_us: number(event, "took_us"),
            }));
        }
        Ok(lost)
    }
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or(0)
}
