//! Has mysqld write back what it has put off, so that no trial pays for the one before it.

use std::time::{Duration, Instant};

use crate::interrupt::Interrupt;
use crate::system::SystemError;

use super::session::{MysqlServer, SERVER, Session, Use};

/// Pages that an idle server writes back in a second while it is quiesced: more than any disk takes.
const PAGES_PER_S: u64 = 100_000;
/// Time between two looks at what is left.
const LOOK: Duration = Duration::from_millis(20);
/// Longest time in which nothing may become less.
const STUCK: Duration = Duration::from_secs(60);

/// Waits until no page of the buffer pool is dirty. Returns what was written, for the log.
///
/// An idle InnoDB writes back `innodb_io_capacity` pages per second; that limit is lifted for the time and then is what it was.
///
/// # Errors
/// [`SystemError::Data`] with the pages that are left when they do not become fewer; [`SystemError::Interrupted`].
pub fn write_back(server: &MysqlServer, interrupt: &Interrupt) -> Result<String, SystemError> {
    let mut session = server.connect_without_database(Use::Inspection)?;
    let found = dirty_pages(&mut session)?;
    if found == 0 {
        return Ok(format!("{SERVER}: no dirty page"));
    }
    let query = "SELECT @@GLOBAL.innodb_io_capacity, @@GLOBAL.innodb_io_capacity_max";
    let missing = || SystemError::Data(format!("{SERVER} at {}: does not tell its innodb_io_capacity", server.address));
    let (usual, most): (u64, u64) = session.query_first(query)?.ok_or_else(missing)?;
    // The server keeps the capacity at or below its maximum, so the order matters both times.
    set(&mut session, &[("innodb_io_capacity_max", PAGES_PER_S), ("innodb_io_capacity", PAGES_PER_S)])?;
    let waited = wait_until_clean(&mut session, server, found, interrupt);
    set(&mut session, &[("innodb_io_capacity", usual), ("innodb_io_capacity_max", most)])?;
    waited.map(|()| format!("{SERVER}: {found} dirty pages written back"))
}

fn wait_until_clean(
    session: &mut Session,
    server: &MysqlServer,
    found: u64,
    interrupt: &Interrupt,
) -> Result<(), SystemError> {
    let (mut fewest, mut since) = (found, Instant::now());
    loop {
        if interrupt.requested() {
            return Err(SystemError::Interrupted);
        }
        let left = dirty_pages(session)?;
        if left == 0 {
            return Ok(());
        }
        if left < fewest {
            (fewest, since) = (left, Instant::now());
        }
        if since.elapsed() > STUCK {
            let problem = format!("{left} dirty pages are left and do not become fewer within {} s", STUCK.as_secs());
            return Err(SystemError::Data(format!("{SERVER} at {}: {problem}", server.address)));
        }
        std::thread::sleep(LOOK);
    }
}

fn dirty_pages(session: &mut Session) -> Result<u64, SystemError> {
    let name = "Innodb_buffer_pool_pages_dirty";
    let status = session.show(&format!("SHOW GLOBAL STATUS LIKE '{name}'"))?;
    let pages = status.get(name).and_then(|value| value.as_str()?.parse().ok());
    pages.ok_or_else(|| SystemError::Data(format!("{SERVER}: does not tell {name}")))
}

fn set(session: &mut Session, variables: &[(&str, u64)]) -> Result<(), SystemError> {
    variables.iter().try_for_each(|(name, value)| session.execute(&format!("SET GLOBAL {name} = {value}")))
}
