//! Flash: latencies, channels and rates; nothing moves.

use super::SECTOR_BYTES;
use super::cache::Run;
use super::mechanics::Pass;
use crate::profile::FlashProfile;

/// The flash part of a drive.
#[derive(Debug)]
pub(super) struct Flash {
    pub channels: usize,
    pub flush_ns: u64,
    read_latency_ns: u64,
    write_latency_ns: u64,
    destage_ns: u64,
    read_ns_per_sector: f64,
    write_ns_per_sector: f64,
    /// All channels share one path for the data of reads and one for those of writes.
    read_path_free_ns: u64,
    write_path_free_ns: u64,
    last_destaged: u64,
}

/// Time of one sector at a rate in 10^6 bytes per second.
pub(super) fn ns_per_sector(mb_s: f64) -> f64 {
    SECTOR_BYTES as f64 * 1e3 / mb_s
}

fn ns_of_us(us: f64) -> u64 {
    (us * 1e3).round() as u64
}

impl Flash {
    pub fn new(flash: &FlashProfile) -> Flash {
        Flash {
            channels: flash.channels,
            flush_ns: ns_of_us(flash.flush_us),
            read_latency_ns: ns_of_us(flash.read_latency_us),
            write_latency_ns: ns_of_us(flash.write_latency_us),
            destage_ns: ns_of_us(flash.destage_us),
            read_ns_per_sector: ns_per_sector(flash.read_mb_s),
            write_ns_per_sector: ns_per_sector(flash.write_mb_s),
            read_path_free_ns: 0,
            write_path_free_ns: 0,
            last_destaged: 0,
        }
    }

    pub fn last_destaged(&self) -> u64 {
        self.last_destaged
    }

    pub fn start_read(&mut self, run: &Run, now_ns: u64) -> Pass {
        let begin_ns = (now_ns + self.read_latency_ns).max(self.read_path_free_ns);
        self.read_path_free_ns = begin_ns + (f64::from(run.sectors()) * self.read_ns_per_sector) as u64;
        Pass { begin_ns, end_ns: self.read_path_free_ns, distance: 0, read_ahead: false }
    }

    pub fn start_write(&mut self, run: &Run, now_ns: u64) -> Pass {
        let begin_ns = (now_ns + self.write_latency_ns).max(self.write_path_free_ns);
        self.write_path_free_ns = begin_ns + (f64::from(run.sectors()) * self.write_ns_per_sector) as u64;
        Pass { begin_ns, end_ns: self.write_path_free_ns, distance: 0, read_ahead: false }
    }

    pub fn start_destage(&mut self, run: &Run, now_ns: u64) -> Pass {
        let transfer_ns = (f64::from(run.sectors()) * self.write_ns_per_sector) as u64;
        let begin_ns = now_ns.max(self.write_path_free_ns);
        self.write_path_free_ns = begin_ns + transfer_ns.max(self.destage_ns);
        self.last_destaged = run.end;
        Pass { begin_ns, end_ns: self.write_path_free_ns, distance: 0, read_ahead: false }
    }

    /// How many of a pass's sectors are stored at a time.
    pub fn passed(&self, pass: &Pass, sectors: u64, at_ns: u64) -> u64 {
        let share =
            at_ns.saturating_sub(pass.begin_ns) as f64 / pass.end_ns.saturating_sub(pass.begin_ns).max(1) as f64;
        ((sectors as f64 * share) as u64).min(sectors)
    }
}
