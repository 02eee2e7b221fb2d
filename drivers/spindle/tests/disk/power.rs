//! A power cut loses what was not flushed, and nothing else.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

use crate::common::{TestDisk, open_direct, read_versions, run, spindle, write_sectors};

const SECTORS: u64 = 2048;

/// What a sector may hold after a power cut.
struct Written {
    /// The version that the last successful flush covers: nothing older may come back.
    flushed: Vec<u64>,
    /// The newest that was handed over, acknowledged or not.
    newest: Vec<u64>,
    next: u64,
}

impl Written {
    /// Writes and flushes until the power goes.
    fn until_cut(&mut self, device: &Path, random: &mut Xoshiro256PlusPlus) {
        let file = open_direct(device);
        loop {
            let count = random.random_range(1..=16_u64);
            let first = random.random_range(0..SECTORS - count);
            self.newest[first as usize..(first + count) as usize].fill(self.next);
            if write_sectors(&file, first, count, self.next).is_err() {
                return;
            }
            self.next += 1;
            if random.random_range(0..40) == 0 {
                // Only this thread writes, so all that was handed over is covered.
                let covered = self.newest.clone();
                if file.sync_data().is_err() {
                    return;
                }
                self.flushed = covered;
            }
        }
    }

    /// Checks the disk after the cut; returns how many sectors lost their newest version.
    fn check(&mut self, device: &Path) -> usize {
        let found = read_versions(&open_direct(device), 0, 256);
        let rest = (256..SECTORS).step_by(256).flat_map(|first| read_versions(&open_direct(device), first, 256));
        let found: Vec<u64> = found.into_iter().chain(rest).collect();
        for (sector, version) in found.iter().enumerate() {
            let (flushed, newest) = (self.flushed[sector], self.newest[sector]);
            assert!((flushed..=newest).contains(version), "sector {sector}: {version} not in {flushed}..={newest}");
        }
        let lost = found.iter().zip(&self.newest).filter(|(found, newest)| found < newest).count();
        // What is there now has been read after a restart: it is what counts from here on.
        (self.flushed, self.newest) = (found.clone(), found);
        lost
    }
}

fn cuts_on_a_raw_device(profile: &str, write_cache: &str) -> usize {
    let Some(disk) = TestDisk::new(profile, "64MiB") else { return 1 };
    let mut device = disk.mount_raw();
    let zeros = || vec![0; SECTORS as usize];
    let mut written = Written { flushed: zeros(), newest: zeros(), next: 1 };
    let mut random = Xoshiro256PlusPlus::seed_from_u64(5);
    let mut lost = 0;
    for _ in 0..5 {
        disk.mode("model", write_cache);
        let pause = Duration::from_millis(random.random_range(30..400));
        std::thread::scope(|scope| {
            let cut = scope.spawn(|| {
                std::thread::sleep(pause);
                run(&["powercut", &disk.dir()]);
            });
            written.until_cut(&device, &mut random);
            cut.join().expect("the cut");
        });
        let dead = open_direct(&device).read_at(&mut spindle::daemon::buffer::Buffer::take(4096), 0);
        assert!(dead.is_err(), "a disk without power answers");
        assert_eq!(disk.stats()["powered"], false);
        device = run(&["poweron", &disk.dir()]).into();
        lost += written.check(&device);
    }
    assert!(written.next > 20, "{} writes test little", written.next);
    lost
}

#[test]
fn flushed_data_survive_power_cuts_of_a_mechanical_disk() {
    let lost = cuts_on_a_raw_device("hdd-7200", "on");
    assert!(lost > 0, "a write cache that loses nothing was not cut off");
}

#[test]
fn flushed_data_survive_power_cuts_of_flash() {
    cuts_on_a_raw_device("sata-ssd", "on");
}

#[test]
fn without_a_write_cache_only_the_write_under_way_is_lost() {
    let lost = cuts_on_a_raw_device("hdd-7200", "off");
    assert!(lost <= 5 * 16, "{lost} sectors lost in 5 cuts, of writes of at most 16 sectors, one at a time");
}

/// Writes and syncs files until the power goes; returns how many syncs were acknowledged.
fn sync_files_until_cut(disk: &TestDisk, at: &Path) -> u64 {
    let acknowledged = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let cut = scope.spawn(|| {
            // Not before there is something to lose.
            while acknowledged.load(Ordering::Relaxed) < 40 {
                std::thread::sleep(Duration::from_millis(5));
            }
            run(&["powercut", &disk.dir()]);
        });
        for number in 0.. {
            let synced = File::create(at.join(format!("f{number}"))).and_then(|file| {
                file.write_all_at(&vec![number as u8 | 1; 256 << 10], 0)?;
                file.sync_all()
            });
            if synced.is_err() {
                break;
            }
            acknowledged.fetch_add(1, Ordering::Relaxed);
        }
        cut.join().expect("the cut");
    });
    acknowledged.into_inner()
}

fn intact(at: &Path, number: u64) -> bool {
    std::fs::read(at.join(format!("f{number}"))).is_ok_and(|read| read == vec![number as u8 | 1; 256 << 10])
}

#[test]
fn synced_files_survive_a_power_cut() {
    let Some(disk) = TestDisk::new("hdd-7200", "512MiB") else { return };
    let at = disk.mount(&[]);
    disk.mode("model", "on");
    let acknowledged = sync_files_until_cut(&disk, &at);
    run(&["poweron", &disk.dir()]);
    let lost: Vec<u64> = (0..acknowledged).filter(|number| !intact(&at, *number)).collect();
    assert!(lost.is_empty(), "of {acknowledged} synced files these are lost: {lost:?}");
}

/// The control: the same without barriers must lose files, or the test above could not fail.
#[test]
fn without_barriers_synced_files_are_lost() {
    let Some(disk) = TestDisk::new("hdd-7200", "512MiB") else { return };
    let at = disk.mount(&["--no-barriers-for-tests"]);
    disk.mode("model", "on");
    let acknowledged = sync_files_until_cut(&disk, &at);
    // The file system may be so damaged that it cannot be mounted: that is a loss as well.
    let mounted = spindle(&["poweron", &disk.dir()]).status.success();
    let lost = (0..acknowledged).filter(|number| !mounted || !intact(&at, *number)).count();
    assert!(lost > 0, "none of {acknowledged} files was lost without barriers");
}
