//! What was written is read, whatever the disk is switched to meanwhile.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

use crate::common::{TestDisk, open_direct, read_versions, write_sectors};

const WORKERS: u64 = 4;
/// Sectors of a worker lie in stretches of this many, between those of the others.
const STRETCH: u64 = 32;
const STRETCHES: u64 = 64;

/// One worker's sectors: what each must hold.
struct Worker {
    number: u64,
    random: Xoshiro256PlusPlus,
    versions: Vec<u64>,
    next: u64,
}

impl Worker {
    fn new(number: u64) -> Self {
        let random = Xoshiro256PlusPlus::seed_from_u64(number);
        Self { number, random, versions: vec![0; (STRETCH * STRETCHES) as usize], next: 1 }
    }

    fn sector(&self, stretch: u64, within: u64) -> u64 {
        (stretch * WORKERS + self.number) * STRETCH + within
    }

    /// Writes or reads somewhere. Nobody else writes these sectors, so a read must give exactly what was written last.
    fn step(&mut self, device: &File) {
        let (stretch, within) = (self.random.random_range(0..STRETCHES), self.random.random_range(0..STRETCH));
        let count = self.random.random_range(1..=STRETCH - within);
        let first = self.sector(stretch, within);
        let own = (stretch * STRETCH + within) as usize..(stretch * STRETCH + within + count) as usize;
        match self.random.random_range(0..10) {
            0 => device.sync_data().expect("a flush"),
            1..=5 => {
                write_sectors(device, first, count, self.next).expect("a write");
                self.versions[own].fill(self.next);
                self.next += 1;
            }
            _ => assert_eq!(read_versions(device, first, count), &self.versions[own], "from sector {first}"),
        }
    }

    fn check_all(&self, file: &File) {
        for stretch in 0..STRETCHES {
            let own = (stretch * STRETCH) as usize..((stretch + 1) * STRETCH) as usize;
            let first = self.sector(stretch, 0);
            assert_eq!(read_versions(file, first, STRETCH), &self.versions[own], "from sector {first}");
        }
    }
}

fn concurrent_load(profile: &str, duration: Duration) {
    let Some(disk) = TestDisk::new(profile, "64MiB") else { return };
    let device = disk.mount_raw();
    let over = AtomicBool::new(false);
    let mut switches = 0;
    let workers: Vec<Worker> = std::thread::scope(|scope| {
        let (over, device) = (&over, &device);
        let work = |number| {
            move || {
                let (mut worker, file) = (Worker::new(number), open_direct(device));
                while !over.load(Ordering::Relaxed) {
                    worker.step(&file);
                }
                worker
            }
        };
        let threads: Vec<_> = (0..WORKERS).map(|number| scope.spawn(work(number))).collect();
        let began = Instant::now();
        while began.elapsed() < duration && threads.iter().all(|thread| !thread.is_finished()) {
            for (mode, write_cache) in [("model", "on"), ("bypass", "on"), ("model", "off"), ("model", "on")] {
                disk.mode(mode, write_cache);
                std::thread::sleep(Duration::from_millis(60));
                switches += 1;
            }
        }
        over.store(true, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().expect("a worker")).collect()
    });
    // What lies in the cache, then what a switch leaves in the image.
    workers.iter().for_each(|worker| worker.check_all(&open_direct(&device)));
    disk.mode("bypass", "on");
    workers.iter().for_each(|worker| worker.check_all(&open_direct(&device)));
    let stats = disk.stats();
    assert_eq!((&stats["host_io_errors"], &stats["failed_operations"]), (&0.into(), &0.into()), "{stats}");
    assert_eq!(stats["overlay_bytes"], 0, "{stats}");
    let own_faults = stats["warnings"].to_string();
    assert!(!own_faults.contains("model ended") && !own_faults.contains("draining left"), "{own_faults}");
    let written: u64 = workers.iter().map(|worker| worker.next).sum();
    assert!(switches >= 8 && written > 100, "{switches} switches and {written} writes test little");
    // And what the host holds when all is down.
    disk.mode("model", "on");
    drop(device);
    crate::common::run(&["unmount", &disk.dir()]);
    disk.assert_gone();
    let image = open_direct(Path::new(&disk.dir()).join("disk.img").as_path());
    workers.iter().for_each(|worker| worker.check_all(&image));
}

#[test]
fn switching_under_load_loses_nothing_on_a_mechanical_disk() {
    concurrent_load("hdd-7200", Duration::from_secs(4));
}

#[test]
fn switching_under_load_loses_nothing_on_flash() {
    concurrent_load("sata-ssd", Duration::from_secs(4));
}

#[test]
fn unmounting_in_model_mode_leaves_a_complete_image() {
    let Some(disk) = TestDisk::new("hdd-7200", "64MiB") else { return };
    let device = disk.mount_raw();
    disk.mode("model", "on");
    write_sectors(&open_direct(&device), 7, 200, 3).expect("a write");
    crate::common::run(&["unmount", &disk.dir()]);
    let image = open_direct(Path::new(&disk.dir()).join("disk.img").as_path());
    assert_eq!(read_versions(&image, 7, 200), vec![3; 200]);
}

#[test]
fn a_file_system_survives_switches_and_remounts() {
    let Some(disk) = TestDisk::new("sata-ssd", "256MiB") else { return };
    let at = disk.mount(&["--mkfs", "ext4"]);
    let contents = |number: u32| -> Vec<u8> {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(u64::from(number));
        (0..4096 + number * 3001).map(|_| random.random()).collect()
    };
    std::thread::scope(|scope| {
        let (at, contents) = (&at, &contents);
        let writer = scope.spawn(move || {
            for number in 0..60 {
                let file = File::create(at.join(format!("f{number}"))).expect("a file");
                file.write_all_at(&contents(number), 0).expect("a write");
                file.sync_all().expect("a sync");
            }
        });
        while !writer.is_finished() {
            for mode in ["model", "bypass"] {
                disk.mode(mode, "on");
                std::thread::sleep(Duration::from_millis(40));
            }
        }
    });
    disk.mode("model", "on");
    crate::common::run(&["unmount", &disk.dir()]);
    let device = disk.mount_raw();
    let check = Command::new("e2fsck").args(["-fn", &device.display().to_string()]).output().expect("e2fsck runs");
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
    let at = disk.mount(&[]);
    for number in 0..60 {
        let read = std::fs::read(at.join(format!("f{number}"))).expect("a file");
        assert!(read == contents(number), "file {number} of {} bytes differs", read.len());
    }
}
