use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::io::files::{read_file, replace_file};
use crate::io::{AlignedBuf, aligned_buf};

const PAGE: usize = 4096;
const SECTOR: usize = 512;
const PAGES: usize = 8;

fn pages(count: usize, with: u8) -> AlignedBuf {
    let mut buffer = aligned_buf(count * PAGE);
    buffer.fill(with);
    buffer
}

fn disk(seed: u64) -> (SimulatedDisk, Arc<dyn Files>) {
    let disk = SimulatedDisk::new(seed);
    let files = disk.files();
    crate::io::files::create_directory(&*files, Path::new("/d")).unwrap();
    (disk, files)
}

/// A file of `PAGES` pages of zeros, durable with its name.
fn durable_file(files: &Arc<dyn Files>, name: &str) -> Arc<dyn DiskFile> {
    let file = files.create(&Path::new("/d").join(name)).unwrap();
    file.write_all_at(&pages(PAGES, 0), 0).unwrap();
    file.sync().unwrap();
    files.sync_dir(Path::new("/d")).unwrap();
    file
}

fn content(files: &Arc<dyn Files>, name: &str) -> AlignedBuf {
    read_file(&**files, &Path::new("/d").join(name)).unwrap()
}

fn rule(file: &str, operation: Operation, after: u64, error: Fault, times: u64) -> FaultRule {
    FaultRule { file: file.to_owned(), operation, after, error, times }
}

#[derive(Debug, Clone)]
enum Step {
    Write { page: usize, count: usize },
    RingWrite { page: usize, count: usize, durable: bool },
    RingSync,
    Reap,
    Sync,
}

fn step() -> impl Strategy<Value = Step> {
    let (page, count) = (0..PAGES, 1..4usize);
    prop_oneof![
        3 => (page.clone(), count.clone()).prop_map(|(page, count)| Step::Write { page, count }),
        3 => (page, count, any::<bool>()).prop_map(|(page, count, durable)| Step::RingWrite { page, count, durable }),
        1 => Just(Step::RingSync),
        3 => Just(Step::Reap),
        1 => Just(Step::Sync),
    ]
}

/// What a ring has in flight.
#[derive(Debug, Clone)]
enum Aloft {
    Write {
        page: usize,
        count: usize,
        number: u8,
        durable: bool,
    },
    /// How many contents each sector had had when it started.
    Sync {
        had: Vec<usize>,
    },
}

/// A sector's contents, which are numbered, in the order in which they landed, and since which of them it is durable.
#[derive(Debug, Clone)]
struct Sector {
    landed: Vec<u8>,
    durable: usize,
}

struct Model {
    sectors: Vec<Sector>,
    /// By tag.
    aloft: Vec<Option<Aloft>>,
}

impl Model {
    fn new() -> Self {
        Self { sectors: vec![Sector { landed: vec![0], durable: 0 }; PAGES * PAGE / SECTOR], aloft: Vec::new() }
    }

    fn write(&mut self, page: usize, count: usize, number: u8, durable: bool) {
        for sector in &mut self.sectors[page * PAGE / SECTOR..(page + count) * PAGE / SECTOR] {
            sector.landed.push(number);
            if durable {
                sector.durable = sector.landed.len() - 1;
            }
        }
    }

    fn sync(&mut self, had: &[usize]) {
        for (sector, had) in self.sectors.iter_mut().zip(had) {
            sector.durable = sector.durable.max(had - 1);
        }
    }

    fn had(&self) -> Vec<usize> {
        self.sectors.iter().map(|sector| sector.landed.len()).collect()
    }

    fn land(&mut self, tag: u64) {
        match self.aloft[tag as usize].take().unwrap() {
            Aloft::Write { page, count, number, durable } => self.write(page, count, number, durable),
            Aloft::Sync { had } => self.sync(&had),
        }
    }

    /// Each sector holds something since it was last durable (after a power cut), or what landed last, or something still in flight.
    fn is_possible(&self, content: &[u8], power_cut: bool) -> bool {
        content.len() == PAGES * PAGE
            && content.chunks(SECTOR).zip(&self.sectors).enumerate().all(|(place, (found, sector))| {
                let since = if power_cut { sector.durable } else { sector.landed.len() - 1 };
                let in_flight = self.aloft.iter().flatten().any(|aloft| match aloft {
                    Aloft::Write { page, count, number, .. } => {
                        *number == found[0] && (*page..page + count).contains(&(place * SECTOR / PAGE))
                    }
                    Aloft::Sync { .. } => false,
                });
                found.iter().all(|byte| *byte == found[0]) && (in_flight || sector.landed[since..].contains(&found[0]))
            })
    }
}

fn run(seed: u64, steps: &[Step], end: impl Fn(&SimulatedDisk)) -> (Model, AlignedBuf) {
    let (disk, files) = disk(seed);
    let file = durable_file(&files, "f");
    let mut ring = files.ring(64).unwrap();
    let mut model = Model::new();
    let mut done = Vec::new();
    for (number, step) in (1u8..).zip(steps) {
        let tag = model.aloft.len() as u64;
        match *step {
            Step::Write { page, count } => {
                let count = count.min(PAGES - page);
                file.write_all_at(&pages(count, number), (page * PAGE) as u64).unwrap();
                model.write(page, count, number, false);
            }
            Step::RingWrite { page, count, durable } => {
                let count = count.min(PAGES - page);
                ring.write(&file, (page * PAGE) as u64, vec![pages(count, number)], durable, tag);
                model.aloft.push(Some(Aloft::Write { page, count, number, durable }));
            }
            Step::RingSync => {
                ring.fsync(&file, tag);
                model.aloft.push(Some(Aloft::Sync { had: model.had() }));
            }
            Step::Sync => {
                file.sync().unwrap();
                model.sync(&model.had());
            }
            Step::Reap => ring.reap(&mut done),
        }
        ring.submit().unwrap();
        for completion in done.drain(..) {
            completion.result.unwrap();
            model.land(completion.tag);
        }
    }
    end(&disk);
    drop(ring);
    disk.restart();
    (model, content(&files, "f"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn after_a_crash_each_sector_is_what_it_may_be(seed: u64, steps in prop::collection::vec(step(), 1..40), power: bool) {
        let crash = |disk: &SimulatedDisk| if power { disk.power_cut() } else { disk.kill() };
        let (model, found) = run(seed, &steps, crash);
        prop_assert!(model.is_possible(&found, power));
        prop_assert_eq!(&*found, &*run(seed, &steps, crash).1, "the same seed gives the same disk");
    }
}

/// What remains of three pages of ones over zeros when `before` was done and then the power failed.
fn remains(seed: u64, before: impl FnOnce(&Arc<dyn Files>, &Arc<dyn DiskFile>)) -> AlignedBuf {
    let (disk, files) = disk(seed);
    let file = durable_file(&files, "f");
    file.write_all_at(&pages(3, 1), 0).unwrap();
    before(&files, &file);
    disk.power_cut();
    assert!(file.read_at(&mut aligned_buf(PAGE), 0).is_err() && files.open(Path::new("/d/f")).is_err());
    disk.restart();
    assert!(file.read_at(&mut aligned_buf(PAGE), 0).is_err(), "handles from before stay dead");
    content(&files, "f")
}

#[test]
fn synced_data_survives_and_unsynced_data_may_be_there_gone_or_torn() {
    let (mut whole, mut none, mut torn) = (0, 0, 0);
    for seed in 0..200 {
        assert!(remains(seed, |_, file| file.sync().unwrap())[..3 * PAGE].iter().all(|&byte| byte == 1));
        let found = remains(seed, |_, _| {});
        match found.iter().filter(|&&byte| byte == 1).count() {
            0 => none += 1,
            bytes if bytes == 3 * PAGE => whole += 1,
            bytes => {
                assert!(bytes.is_multiple_of(SECTOR));
                torn += 1;
            }
        }
    }
    assert!(whole > 20 && none > 20 && torn > 10, "{whole} whole, {none} gone, {torn} torn");
}

#[test]
fn later_writes_may_survive_without_earlier_ones() {
    let mut reordered = 0;
    for seed in 0..200 {
        let found = remains(seed, |_, file| file.write_all_at(&pages(1, 2), 5 * PAGE as u64).unwrap());
        reordered += u32::from(found[5 * PAGE] == 2 && found[..3 * PAGE].iter().all(|&byte| byte == 0));
    }
    assert!(reordered > 5, "{reordered}");
}

#[test]
fn a_durable_ring_write_that_was_reaped_survives_and_one_in_flight_need_not() {
    let mut lost = 0;
    for seed in 0..100 {
        for reaped in [true, false] {
            let (disk, files) = disk(seed);
            let file = durable_file(&files, "f");
            let mut ring = files.ring(4).unwrap();
            ring.write(&file, 0, vec![pages(1, 7), pages(1, 7)], true, 0);
            ring.submit().unwrap();
            let mut done = Vec::new();
            if reaped {
                ring.wait(&mut done).unwrap();
                done.remove(0).result.unwrap();
            }
            disk.power_cut();
            ring.wait(&mut done).unwrap();
            assert_eq!(done.len(), usize::from(!reaped));
            assert!(done.iter().all(|completion| completion.result.is_err()));
            disk.restart();
            let kept = content(&files, "f")[..2 * PAGE].iter().all(|&byte| byte == 7);
            assert!(kept || !reaped);
            lost += u32::from(!kept);
        }
    }
    assert!(lost > 10, "{lost}");
}

#[test]
fn a_ring_completes_in_any_order_and_its_event_fires_until_all_is_reaped() {
    let mut orders = BTreeSet::new();
    for seed in 0..50 {
        let (_, files) = disk(seed);
        let file = durable_file(&files, "f");
        let mut ring = files.ring(4).unwrap();
        for tag in 0..3 {
            ring.read(&file, tag * PAGE as u64, aligned_buf(PAGE), tag);
        }
        ring.submit().unwrap();
        let mut done = Vec::new();
        while ring.in_flight() > 0 {
            let mut polled = [rustix::event::PollFd::from_borrowed_fd(ring.event(), rustix::event::PollFlags::IN)];
            let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
            assert_eq!(rustix::event::poll(&mut polled, Some(&now)).unwrap(), 1);
            ring.clear_event();
            ring.reap(&mut done);
        }
        orders.insert(done.iter().map(|completion| completion.tag).collect::<Vec<_>>());
    }
    assert_eq!(orders.len(), 6, "all orders of three");
}

#[test]
fn killing_the_process_keeps_what_was_completed_but_does_not_make_it_durable() {
    let mut lost = 0;
    for seed in 0..100 {
        let (disk, files) = disk(seed);
        let file = durable_file(&files, "f");
        file.write_all_at(&pages(1, 1), 0).unwrap();
        files.create(Path::new("/d/new")).unwrap();
        disk.kill();
        disk.restart();
        assert_eq!((content(&files, "f")[0], files.exists(Path::new("/d/new")).unwrap()), (1, true));
        disk.power_cut();
        disk.restart();
        lost += u32::from(content(&files, "f")[0] == 0) + u32::from(!files.exists(Path::new("/d/new")).unwrap());
    }
    assert!(lost > 30, "{lost}");
}

#[test]
fn names_are_durable_after_the_sync_of_their_directory() {
    let (mut kept, mut lost) = (0, 0);
    for seed in 0..100 {
        let (disk, files) = disk(seed);
        durable_file(&files, "old");
        durable_file(&files, "gone");
        files.rename(Path::new("/d/old"), Path::new("/d/new")).unwrap();
        files.remove(Path::new("/d/gone")).unwrap();
        files.sync_dir(Path::new("/d")).unwrap();
        files.create(Path::new("/d/perhaps")).unwrap();
        disk.power_cut();
        disk.restart();
        let names = files.list(Path::new("/d")).unwrap();
        assert!(names == ["new"] || names == ["new", "perhaps"], "{names:?}");
        *(if names.len() == 2 { &mut kept } else { &mut lost }) += 1;
    }
    assert!(kept > 10 && lost > 10, "{kept} {lost}");
}

#[test]
fn a_failed_sync_is_not_made_good_by_the_next_one() {
    let mut lost = 0;
    for seed in 0..100 {
        let (disk, files) = disk(seed);
        let file = durable_file(&files, "f");
        disk.fail(rule("f", Operation::Sync, 0, Fault::Io, 1));
        file.write_all_at(&pages(1, 1), 0).unwrap();
        assert_eq!(file.sync().unwrap_err().raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()));
        file.write_all_at(&pages(1, 2), PAGE as u64).unwrap();
        file.sync().unwrap();
        disk.power_cut();
        disk.restart();
        let found = content(&files, "f");
        assert_eq!(found[PAGE], 2);
        lost += u32::from(found[0] == 0);
    }
    assert!(lost > 10, "{lost}");
}

#[test]
fn faults_come_where_and_as_often_as_asked_for() {
    let (disk, files) = disk(1);
    let file = durable_file(&files, "blocks-0");
    disk.fail(rule("blocks", Operation::Read, 1, Fault::ShortRead, 1));
    disk.fail(rule("blocks", Operation::Write, 0, Fault::NoSpace, 1));
    disk.fail(rule("log", Operation::Create, 0, Fault::Io, 1));
    let mut page = aligned_buf(PAGE);
    let reads: Vec<_> = (0..3).map(|_| file.read_at(&mut page, 0).unwrap()).collect();
    assert_eq!(reads, [PAGE, PAGE / 2, PAGE]);
    let full = file.write_all_at(&page, 0).unwrap_err();
    assert_eq!(full.kind(), io::ErrorKind::StorageFull);
    file.write_all_at(&page, 0).unwrap();
    assert!(files.create(Path::new("/d/log")).is_err() && files.create(Path::new("/d/log")).is_ok());
    disk.set_capacity((PAGES * PAGE) as u64);
    assert_eq!(file.allocate((PAGES * PAGE) as u64 + 1).unwrap_err().kind(), io::ErrorKind::StorageFull);
    file.write_all_at(&page, 0).unwrap();
    disk.fail(rule("", Operation::Allocate, 0, Fault::NoSpace, u64::MAX));
    assert!(file.allocate(1).is_err());
    disk.heal();
    file.allocate(1).unwrap();
    assert_eq!(file.write_all_at(&[0; 100], 0).unwrap_err().kind(), io::ErrorKind::InvalidInput, "not aligned");
    disk.flip_bit(Path::new("/d/blocks-0"), 5, 3).unwrap();
    assert_eq!(content(&files, "blocks-0")[5], 8);
    disk.truncate(Path::new("/d/blocks-0"), 100).unwrap();
    assert_eq!((file.len().unwrap(), content(&files, "blocks-0").len()), (100, 100));
    assert!(disk.flip_bit(Path::new("/d/blocks-0"), 100, 0).is_err());
}

/// Wherever the power fails, a replaced file is the old one or the new one, and the new one as soon as the call has returned.
#[test]
fn a_replaced_file_is_whole_at_every_moment() {
    let (mut old_found, mut new_found) = (0, 0);
    for seed in 0..40 {
        for cut in 0.. {
            let (disk, files) = disk(seed);
            let path = Path::new("/d/manifest");
            replace_file(&*files, path, &[1; 5000]).unwrap();
            disk.cut_after(disk.operations() + cut);
            let returned = replace_file(&*files, path, &[2; 9000]).is_ok();
            disk.power_cut();
            disk.restart();
            let found = content(&files, "manifest");
            match (found.len(), found[0]) {
                (5000, 1) if !returned => old_found += 1,
                (9000, 2) => new_found += 1,
                other => panic!("seed {seed}, cut {cut}: {other:?}, returned: {returned}"),
            }
            assert!(found.iter().all(|byte| *byte == found[0]));
            if returned {
                break;
            }
        }
    }
    assert!(old_found > 50 && new_found > 50, "{old_found} {new_found}");
}
