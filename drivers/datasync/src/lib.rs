//! `fsync` as `fdatasync`, put before a server with `LD_PRELOAD` (`workloads/beyond-datasync.yml`).
//!
//! MySQL 5.6 syncs its log with `fsync`, which also commits the file's new time of change to the journal of the file system. `fdatasync` syncs the data,
//! and of the metadata only what is needed to find them, as a new length: no less is durable.

use std::ffi::c_int;

// SAFETY: the signature is the C library's (POSIX.1-2008); any number may be given, and one that is no open file is an error.
unsafe extern "C" {
    safe fn fdatasync(fd: c_int) -> c_int;
}

/// Syncs what was written to a file; -1 with `errno` where it cannot be.
// SAFETY: the name is meant to take the place of the C library's function, and the signature is that one's.
#[unsafe(no_mangle)]
pub extern "C" fn fsync(fd: c_int) -> c_int {
    fdatasync(fd)
}

#[cfg(test)]
mod tests {
    use std::io::{Error, Write};
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn files_are_synced_and_errors_are_told() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"data").unwrap();
        assert_eq!(fsync(file.as_raw_fd()), 0);
        assert_eq!(fsync(-1), -1);
        assert_eq!(Error::last_os_error().raw_os_error(), Some(9), "EBADF");
    }
}
