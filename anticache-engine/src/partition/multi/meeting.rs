//! How the threads of participants come together.
//!
//! Every participant puts its partition on the table. The last one takes them all, runs what they came for, and puts them back. Who waits spins for a
//! moment, then sleeps; it takes its own partition back when its disk has done something, as long as not all are there.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::coordinator::{Coordinator, Item};
use super::lock;
use crate::partition::{Partition, ReplySink};

/// A participant's place at a meeting.
#[derive(Clone, Copy)]
pub(super) struct Chair<'a> {
    pub(super) meeting: &'a Meeting,
    pub(super) participants: &'a [u16],
    /// Which of the participants it is.
    pub(super) place: usize,
    /// The event of its ring.
    pub(super) disk: BorrowedFd<'a>,
}

/// How long a participant spins before it sleeps: about what waking a thread costs.
const SPIN: Duration = Duration::from_micros(5);
/// Bounds a sleep, for partitions with something to do at a certain time.
const LONGEST_SLEEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// The table of one item.
pub(super) struct Meeting {
    table: Mutex<Table>,
    ended: AtomicBool,
}

struct Table {
    partitions: Vec<Option<Box<Partition>>>,
    missing: usize,
}

/// What a participant that waits finds.
enum Back {
    /// It has ended.
    Ended(Box<Partition>),
    /// Others are missing.
    Missing(Box<Partition>),
    /// All are there: it is being run.
    Running,
}

impl Meeting {
    pub(super) fn new(participants: usize) -> Self {
        let partitions = (0..participants).map(|_| None).collect();
        Self { table: Mutex::new(Table { partitions, missing: participants }), ended: AtomicBool::new(false) }
    }

    /// Puts a partition at its place; the last one gets all.
    fn arrive(&self, place: usize, partition: Box<Partition>) -> Option<Vec<Box<Partition>>> {
        let mut table = lock(&self.table);
        table.partitions[place] = Some(partition);
        table.missing -= 1;
        (table.missing == 0).then(|| table.partitions.iter_mut().filter_map(Option::take).collect())
    }

    fn take_back(&self, place: usize) -> Back {
        let mut table = lock(&self.table);
        match table.partitions[place].take() {
            Some(partition) if self.ended.load(Ordering::Acquire) => Back::Ended(partition),
            Some(partition) => {
                table.missing += 1;
                Back::Missing(partition)
            }
            None => Back::Running,
        }
    }

    /// Puts all back but one's own, which is returned.
    fn end(&self, place: usize, partitions: Vec<Box<Partition>>) -> Option<Box<Partition>> {
        let mut table = lock(&self.table);
        table.partitions = partitions.into_iter().map(Some).collect();
        let own = table.partitions[place].take();
        self.ended.store(true, Ordering::Release);
        own
    }

    /// Whether it ends within a moment.
    fn spin(&self) -> bool {
        let started = Instant::now();
        while !self.ended.load(Ordering::Acquire) {
            if started.elapsed() > SPIN {
                return false;
            }
            std::hint::spin_loop();
        }
        true
    }
}

impl Coordinator {
    /// Takes part in an item with a partition's whole state, which comes back when it has ended. `disk` is the event of the partition's ring.
    ///
    /// `None` = the partition is lost, because the thread that ran the item has died.
    pub fn meet<S: ReplySink>(
        &self,
        item: &Arc<Item>,
        mut partition: Box<Partition>,
        disk: BorrowedFd<'_>,
        sink: &mut S,
    ) -> Option<Box<Partition>> {
        let id = partition.id();
        let place = item.participants.iter().position(|&participant| u32::from(participant) == id)?;
        partition.bound_group(sink);
        partition.bound_snapshot(sink);
        let chair = Chair { meeting: &item.meeting, participants: &item.participants, place, disk };
        let run = |partitions: &mut [&mut Partition]| self.run_with_next(item, partitions);
        let started = Instant::now();
        match self.come_together(chair, partition, sink, run) {
            Ok((mut partition, waited)) => {
                partition.counters.multi_wait_us += if waited { started.elapsed().as_micros() as u64 } else { 0 };
                Some(partition)
            }
            Err(partition) => {
                // A participant is gone, and nobody will run the item.
                let mut partition = partition?;
                partition.drop_item(item, self);
                Some(partition)
            }
        }
    }

    /// Waits until all participants are there and has one of them run something. Returns the own partition, and whether another one ran it; an
    /// error when a participant has left, with the partition unless it is lost.
    pub(super) fn come_together<S: ReplySink>(
        &self,
        chair: Chair<'_>,
        partition: Box<Partition>,
        sink: &mut S,
        run: impl Fn(&mut [&mut Partition]),
    ) -> Result<(Box<Partition>, bool), Option<Box<Partition>>> {
        let Chair { meeting, participants, place, .. } = chair;
        let id = u32::from(participants[place]);
        let mut own = partition;
        loop {
            if let Some(mut partitions) = meeting.arrive(place, own) {
                run(&mut partitions.iter_mut().map(|partition| &mut **partition).collect::<Vec<_>>());
                let own = meeting.end(place, partitions);
                let others = participants.iter().map(|&other| u32::from(other)).filter(|&other| other != id);
                others.for_each(|other| self.notify(other));
                return own.map(|own| (own, false)).ok_or(None);
            }
            let back = self.wait_at(chair);
            own = match back.ok_or(None)? {
                Back::Ended(partition) => return Ok((partition, true)),
                Back::Missing(partition) if self.has_left(participants) => return Err(Some(partition)),
                Back::Missing(partition) => partition,
                Back::Running => return Err(None),
            };
            own.poll_disk(sink);
        }
    }

    /// Waits until an item has ended, or its own disk or somebody else has done something; never longer while it is being run than that takes.
    fn wait_at(&self, chair: Chair<'_>) -> Option<Back> {
        let Chair { meeting, participants, place, disk } = chair;
        let id = u32::from(participants[place]);
        if !meeting.spin() {
            self.sleep(id, Some(disk));
        }
        loop {
            // Asked first: who ran it may leave right after the end.
            let left = self.has_left(participants);
            match meeting.take_back(place) {
                Back::Running if left => return None,
                Back::Running => self.sleep(id, None),
                back => return Some(back),
            }
        }
    }

    /// Sleeps until somebody tells the partition something, or its disk has done something.
    pub(super) fn sleep(&self, partition: u32, disk: Option<BorrowedFd<'_>>) {
        if self.may_sleep(partition) {
            let mut fds = vec![PollFd::from_borrowed_fd(self.event(partition), PollFlags::IN)];
            fds.extend(disk.map(|disk| PollFd::from_borrowed_fd(disk, PollFlags::IN)));
            // Woken for nothing, or not: the caller looks.
            let _ = rustix::event::poll(&mut fds, Some(&LONGEST_SLEEP));
            self.awake(partition);
            self.clear_event(partition);
        }
    }
}
