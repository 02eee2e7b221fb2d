//! What was written and is not in the image yet: the contents of the drive's write cache.

use std::collections::HashMap;
use std::sync::Arc;

use crate::model::SECTOR_BYTES;

const SECTOR: usize = SECTOR_BYTES as usize;

/// One sector's contents and the number of the write that they came with.
#[derive(Debug, Clone)]
pub struct Version {
    number: u64,
    bytes: Arc<[u8]>,
}

impl Version {
    /// The sector's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// A run of sectors, with what the overlay held of them at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// First sector of the run.
    pub first_sector: u64,
    /// One for every sector; `None` where the image is up to date.
    pub versions: Vec<Option<Version>>,
}

impl Snapshot {
    /// Whether no sector has to be read from the image.
    pub fn is_complete(&self) -> bool {
        self.versions.iter().all(Option::is_some)
    }

    /// Puts the sectors that the overlay held over what was read from the image.
    pub fn patch(&self, buffer: &mut [u8]) {
        for (sector, version) in buffer.chunks_exact_mut(SECTOR).zip(&self.versions) {
            if let Some(version) = version {
                sector.copy_from_slice(&version.bytes);
            }
        }
    }

    /// The first `sectors` of it.
    pub fn truncated(mut self, sectors: u32) -> Self {
        self.versions.truncate(sectors as usize);
        self
    }
}

/// Sectors that differ from the image; the newest write wins.
#[derive(Debug, Default)]
pub struct Overlay {
    sectors: HashMap<u64, Version>,
    writes: u64,
}

impl Overlay {
    /// Takes the data of a write.
    pub fn insert(&mut self, first_sector: u64, data: &[u8]) {
        self.writes += 1;
        for (sector, bytes) in (first_sector..).zip(data.chunks_exact(SECTOR)) {
            self.sectors.insert(sector, Version { number: self.writes, bytes: Arc::from(bytes) });
        }
    }

    /// What is held of these sectors now.
    pub fn snapshot(&self, first_sector: u64, sectors: u32) -> Snapshot {
        let versions = if self.sectors.is_empty() {
            vec![None; sectors as usize]
        } else {
            (first_sector..first_sector + u64::from(sectors)).map(|s| self.sectors.get(&s).cloned()).collect()
        };
        Snapshot { first_sector, versions }
    }

    /// Drops the sectors that are in the image now, unless they were written again since.
    pub fn settle(&mut self, snapshot: &Snapshot) {
        for (sector, version) in (snapshot.first_sector..).zip(&snapshot.versions) {
            if let Some(version) = version
                && self.sectors.get(&sector).is_some_and(|held| held.number == version.number)
            {
                self.sectors.remove(&sector);
            }
        }
    }

    /// The snapshot without the versions that are not held any more.
    pub fn still_held(&self, mut snapshot: Snapshot) -> Snapshot {
        for (sector, version) in (snapshot.first_sector..).zip(&mut snapshot.versions) {
            let held = self.sectors.get(&sector).map(|held| held.number);
            version.take_if(|version| held != Some(version.number));
        }
        snapshot
    }

    /// Drops everything: the power is off.
    pub fn clear(&mut self) {
        self.sectors.clear();
    }

    /// Everything that is held, as runs of sectors.
    pub fn runs(&self) -> Vec<Snapshot> {
        let mut held: Vec<u64> = self.sectors.keys().copied().collect();
        held.sort_unstable();
        let runs = held.chunk_by(|a, b| a + 1 == *b);
        runs.map(|run| self.snapshot(run[0], run.len() as u32)).collect()
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.sectors.len() as u64 * SECTOR_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sector(byte: u8) -> Vec<u8> {
        vec![byte; SECTOR]
    }

    #[test]
    fn the_newest_write_wins_and_survives_an_older_destage() {
        let mut overlay = Overlay::default();
        overlay.insert(5, &[sector(1), sector(2)].concat());
        let destaged = overlay.snapshot(5, 2);
        overlay.insert(6, &sector(3));
        overlay.settle(&destaged);
        let left = overlay.snapshot(5, 2);
        assert!(left.versions[0].is_none(), "destaged and not written again");
        assert_eq!(left.versions[1].as_ref().map(|v| v.bytes()[0]), Some(3));
        assert_eq!(overlay.bytes(), SECTOR_BYTES);
    }

    #[test]
    fn a_destage_that_failed_is_not_tried_again_over_newer_data() {
        let mut overlay = Overlay::default();
        overlay.insert(5, &[sector(1), sector(2)].concat());
        let failed = overlay.snapshot(5, 2);
        overlay.insert(5, &sector(3));
        let again = overlay.still_held(failed.clone());
        assert_eq!(again.versions.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true]);
        overlay.clear();
        assert!(overlay.still_held(failed).versions.iter().all(Option::is_none));
    }

    #[test]
    fn a_patch_leaves_the_sectors_of_the_image() {
        let mut overlay = Overlay::default();
        overlay.insert(11, &sector(7));
        let snapshot = overlay.snapshot(10, 3);
        assert!(!snapshot.is_complete());
        let mut read = vec![9; 3 * SECTOR];
        snapshot.patch(&mut read);
        assert_eq!((read[0], read[SECTOR], read[2 * SECTOR]), (9, 7, 9));
    }

    #[test]
    fn runs_are_contiguous() {
        let mut overlay = Overlay::default();
        overlay.insert(3, &[sector(1), sector(1)].concat());
        overlay.insert(9, &sector(1));
        let runs: Vec<_> = overlay.runs().iter().map(|r| (r.first_sector, r.versions.len())).collect();
        assert_eq!(runs, [(3, 2), (9, 1)]);
    }
}
