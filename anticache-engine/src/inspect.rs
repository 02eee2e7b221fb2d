//! What tools ask a server beside transactions: events, descriptions, whole tables.

use crate::anticache::scan::rows_of_page;
use crate::catalog::TableId;
use crate::client::{Client, ClientError};
use crate::events::Stream;
use crate::net::admin::END_OF_SCAN;
use crate::net::frame::{DESCRIBE_PROCEDURE, EVENTS_PROCEDURE, SCAN_PROCEDURE};

impl Client {
    /// The events of a partition's stream from the one numbered `from`: `{"next", "lost", "events"}`, see [`crate::events`].
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn events(&mut self, partition: u32, stream: Stream, from: u64) -> Result<serde_json::Value, ClientError> {
        let params = [&[stream as u8][..], &from.to_le_bytes()].concat();
        let reply = self.call(partition, EVENTS_PROCEDURE, &params)?;
        serde_json::from_slice(&reply).map_err(|error| ClientError::NotCommitted(format!("events: {error}")))
    }

    /// A partition's data structures, at most `limit` of each kind, see [`crate::describe`].
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn describe(&mut self, partition: u32, limit: u32) -> Result<serde_json::Value, ClientError> {
        let reply = self.call(partition, DESCRIBE_PROCEDURE, &limit.to_le_bytes())?;
        serde_json::from_slice(&reply).map_err(|error| ClientError::NotCommitted(format!("description: {error}")))
    }

    /// Every row of a table at a partition, serialized, evicted ones included. Let no transaction run meanwhile.
    ///
    /// # Errors
    /// As [`Client::call`]; a damaged block is one.
    pub fn scan(&mut self, partition: u32, table: TableId, mut row: impl FnMut(&[u8])) -> Result<(), ClientError> {
        let mut cursor = 0u64;
        while cursor != END_OF_SCAN {
            let mut params = table.to_le_bytes().to_vec();
            params.extend_from_slice(&cursor.to_le_bytes());
            let reply = self.call(partition, SCAN_PROCEDURE, &params)?;
            let Some((next, page)) = reply.split_first_chunk() else {
                return Err(ClientError::NotCommitted(format!("a page of {} bytes", reply.len())));
            };
            cursor = u64::from_le_bytes(*next);
            rows_of_page(page).for_each(&mut row);
        }
        Ok(())
    }
}
