//! Requests to a partition itself: what is answered between transactions, without being one.

use super::frame::{DESCRIBE_PROCEDURE, EVENTS_PROCEDURE, SCAN_PROCEDURE, Status};
use crate::events::Stream;
use crate::partition::Partition;

/// Events of one answer.
const EVENTS_PAGE: usize = 4096;
/// Cursor of a scan that has ended.
pub const END_OF_SCAN: u64 = u64::MAX;

/// Answers a request with a number from [`super::frame::FIRST_ADMIN_PROCEDURE`] on that needs nothing but the partition.
pub fn answer(partition: &Partition, procedure: u16, params: &[u8]) -> (Status, Vec<u8>) {
    let wrong = |expected: &str| {
        let problem = format!("parameters of {} bytes; expected {expected}", params.len());
        (Status::Aborted, problem.into_bytes())
    };
    match procedure {
        EVENTS_PROCEDURE => {
            events(partition, params).unwrap_or_else(|| wrong("a stream, 1, and the number of the first event, 8"))
        }
        DESCRIBE_PROCEDURE => match params.try_into() {
            Ok(limit) => {
                let described = partition.describe(u32::from_le_bytes(limit) as usize);
                (Status::Committed, described.to_string().into_bytes())
            }
            Err(_) => wrong("a limit, 4"),
        },
        SCAN_PROCEDURE => scan(partition, params).unwrap_or_else(|| wrong("a table, 2, and a cursor, 8")),
        _ => (Status::Failed, format!("no procedure has the number {procedure}").into_bytes()),
    }
}

fn events(partition: &Partition, params: &[u8]) -> Option<(Status, Vec<u8>)> {
    let (&stream, from) = params.split_first()?;
    let (stream, from) = (Stream::from_wire(stream)?, u64::from_le_bytes(from.try_into().ok()?));
    Some(match serde_json::to_vec(&partition.events().since(stream, from, EVENTS_PAGE)) {
        Ok(page) => (Status::Committed, page),
        Err(error) => (Status::Failed, format!("events: {error}").into_bytes()),
    })
}

fn scan(partition: &Partition, params: &[u8]) -> Option<(Status, Vec<u8>)> {
    let (table, cursor) = params.split_first_chunk::<2>()?;
    let (table, cursor) = (u16::from_le_bytes(*table), u64::from_le_bytes(cursor.try_into().ok()?));
    if usize::from(table) >= partition.tables().len() {
        let problem = format!("table {table}; there are {}", partition.tables().len());
        return Some((Status::Aborted, problem.into_bytes()));
    }
    let mut page = vec![0; 8];
    Some(match partition.scan_page(table, cursor, &mut page) {
        Ok(next) => {
            page[..8].copy_from_slice(&next.unwrap_or(END_OF_SCAN).to_le_bytes());
            (Status::Committed, page)
        }
        Err(error) => (Status::Failed, error.to_string().into_bytes()),
    })
}
