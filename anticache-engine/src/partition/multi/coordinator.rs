//! The order of multi-partition transactions of a site, and what its partitions tell each other.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use rustix::event::EventfdFlags;

use super::meeting::Meeting;
use super::votes::Votes;
use super::{MultiRequest, lock};
use crate::partition::Partition;

/// What a barrier does at each partition.
type EachPartition = Box<dyn Fn(&mut Partition) + Send + Sync>;

/// What participants do together.
pub(super) enum Work {
    Transaction(Arc<MultiRequest>),
    Barrier(EachPartition),
}

/// Something in the order: a multi-partition transaction, once for each time that it is run, or a barrier.
pub struct Item {
    /// Its timestamp. From 1.
    pub(super) number: u64,
    /// Base partition first.
    pub(super) participants: Arc<[u16]>,
    pub(super) work: Work,
    pub(super) meeting: Meeting,
    /// By participant, whether it is next there.
    reached: Box<[AtomicBool]>,
    /// How many of them have reached it.
    reached_count: AtomicU32,
}

impl Item {
    /// The partitions that it needs, the base partition first.
    pub fn participants(&self) -> &[u16] {
        &self.participants
    }
}

struct Order {
    next_number: u64,
    /// By partition.
    queues: Vec<VecDeque<Arc<Item>>>,
}

/// What others tell a partition. On cache lines of its own, because every turn of its event loop looks at it.
#[repr(align(128))]
struct Seat {
    queued: AtomicU32,
    resolved_through: AtomicU64,
    /// Something has changed since the partition looked.
    news: AtomicBool,
    /// It sleeps, or is about to, and must be woken by its event.
    asleep: AtomicBool,
    event: OwnedFd,
    failure: OnceLock<String>,
    left: AtomicBool,
}

impl Seat {
    fn new() -> io::Result<Self> {
        Ok(Self {
            queued: AtomicU32::new(0),
            resolved_through: AtomicU64::new(0),
            news: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            event: rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            failure: OnceLock::new(),
            left: AtomicBool::new(false),
        })
    }
}

/// Brings the multi-partition transactions of a site into one order. Its locks are held for the length of a queue operation, and taken only for these
/// transactions and once per log group that has part in one.
pub struct Coordinator {
    seats: Box<[Seat]>,
    order: Mutex<Order>,
    votes: Mutex<Votes>,
    next_request: AtomicU64,
    /// Requests not answered and barriers not passed.
    outstanding: AtomicU64,
    /// Partitions that take no more requests.
    closed: AtomicU32,
}

impl Coordinator {
    /// For so many partitions. `first_number` is 1, or after recovery above every number in the logs.
    ///
    /// # Errors
    /// When the system gives no event objects.
    pub fn new(partitions: u32, first_number: u64) -> io::Result<Self> {
        let seats: io::Result<Vec<Seat>> = (0..partitions).map(|_| Seat::new()).collect();
        let queues = (0..partitions).map(|_| VecDeque::new()).collect();
        Ok(Self {
            seats: seats?.into(),
            order: Mutex::new(Order { next_number: first_number.max(1), queues }),
            votes: Mutex::new(Votes::new(partitions as usize)),
            next_request: AtomicU64::new(0),
            outstanding: AtomicU64::new(0),
            closed: AtomicU32::new(0),
        })
    }

    /// Partitions of the site.
    pub fn partitions(&self) -> u32 {
        self.seats.len() as u32
    }

    fn seat(&self, partition: u32) -> &Seat {
        &self.seats[partition as usize]
    }

    pub(super) fn new_request_id(&self) -> u64 {
        self.next_request.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn next_request_id(&self) -> u64 {
        self.next_request.load(Ordering::Relaxed)
    }

    pub(super) fn submit_new(&self, request: MultiRequest) {
        self.outstanding.fetch_add(1, Ordering::AcqRel);
        self.submit(Arc::new(request));
    }

    /// Queues a request at all its participants.
    pub(super) fn submit(&self, request: Arc<MultiRequest>) {
        self.queue(Arc::clone(&request.participants), Work::Transaction(request));
    }

    /// Has a function called for each partition while none of them executes anything: at one point of the order of multi-partition transactions.
    pub fn barrier(&self, each: impl Fn(&mut Partition) + Send + Sync + 'static) {
        self.outstanding.fetch_add(1, Ordering::AcqRel);
        self.queue((0..self.partitions() as u16).collect(), Work::Barrier(Box::new(each)));
    }

    /// The number that the next item gets.
    pub(super) fn next_number(&self) -> u64 {
        lock(&self.order).next_number
    }

    fn queue(&self, participants: Arc<[u16]>, work: Work) {
        let mut order = lock(&self.order);
        let number = order.next_number;
        order.next_number += 1;
        let meeting = Meeting::new(participants.len());
        let reached = participants.iter().map(|_| AtomicBool::new(false)).collect();
        let (participants_of, reached_count) = (Arc::clone(&participants), AtomicU32::new(0));
        let item = Arc::new(Item { number, participants: participants_of, work, meeting, reached, reached_count });
        for &partition in &*participants {
            order.queues[usize::from(partition)].push_back(Arc::clone(&item));
            self.seats[usize::from(partition)].queued.fetch_add(1, Ordering::Release);
        }
        drop(order);
        for &partition in &*participants {
            self.notify(u32::from(partition));
        }
    }

    /// Whether something waits for a partition to take part.
    #[inline]
    pub fn has_queued(&self, partition: u32) -> bool {
        self.seat(partition).queued.load(Ordering::Acquire) > 0
    }

    /// What a partition has to take part in next.
    pub fn front(&self, partition: u32) -> Option<Arc<Item>> {
        if !self.has_queued(partition) {
            return None;
        }
        lock(&self.order).queues[partition as usize].front().cloned()
    }

    /// What a partition must meet the others for now: it is next here, and all its participants have reached it. Tells the others that this one has.
    pub fn due(&self, partition: u32) -> Option<Arc<Item>> {
        let item = self.front(partition)?;
        let place = item.participants.iter().position(|&participant| u32::from(participant) == partition)?;
        let all = item.participants.len() as u32;
        if !item.reached[place].swap(true, Ordering::AcqRel)
            && item.reached_count.fetch_add(1, Ordering::AcqRel) + 1 == all
        {
            let others = item.participants.iter().map(|&other| u32::from(other)).filter(|&other| other != partition);
            others.for_each(|other| self.notify(other));
        }
        // One that has ended will not come: the meeting finds that out.
        let due = item.reached_count.load(Ordering::Acquire) == all || self.has_left(&item.participants);
        due.then_some(item)
    }

    /// Takes the item that is next at all its participants.
    pub(super) fn take(&self, item: &Item) {
        let mut order = lock(&self.order);
        for &partition in &*item.participants {
            let taken = order.queues[usize::from(partition)].pop_front();
            debug_assert_eq!(taken.map(|taken| taken.number), Some(item.number));
            self.seats[usize::from(partition)].queued.fetch_sub(1, Ordering::Release);
        }
    }

    /// The next item, when these partitions are all that it needs; it is taken.
    pub(super) fn take_next_within(&self, partitions: &[u16]) -> Option<Arc<Item>> {
        if !partitions.iter().any(|&partition| self.has_queued(u32::from(partition))) {
            return None;
        }
        let order = lock(&self.order);
        // The lowest number is the first at each of its participants.
        let fronts = partitions.iter().filter_map(|&partition| order.queues[usize::from(partition)].front());
        let next = Arc::clone(fronts.min_by_key(|item| item.number)?);
        drop(order);
        if !next.participants.iter().all(|partition| partitions.contains(partition)) {
            return None;
        }
        self.take(&next);
        Some(next)
    }

    /// Records that a transaction was executed, whose reply waits until it is resolved. A participant's log may have failed since it began.
    pub(super) fn executed(&self, number: u64, participants: &Arc<[u16]>) {
        let mut all = Vec::new();
        lock(&self.votes).executed(number, Arc::clone(participants), |partition| all.push(partition));
        self.tell_failed(all, || "a transaction shared with a partition whose log failed is not durable".to_owned());
    }

    /// What a partition executed up to a number is durable there.
    pub(super) fn durable(&self, partition: u16, through: u64) {
        let mut advanced = Vec::new();
        lock(&self.votes).durable(partition, through, |partition, number| {
            self.seats[usize::from(partition)].resolved_through.store(number, Ordering::Release);
            advanced.push(partition);
        });
        advanced.sort_unstable();
        advanced.dedup();
        advanced.into_iter().for_each(|partition| self.notify(u32::from(partition)));
    }

    /// Up to which number everything that a partition executed is resolved.
    #[inline]
    pub(super) fn resolved_through(&self, partition: u32) -> u64 {
        self.seat(partition).resolved_through.load(Ordering::Acquire)
    }

    /// A partition's log has failed.
    pub(super) fn fail(&self, partition: u16, reason: &str) {
        // The first reason stays.
        let _ = self.seats[usize::from(partition)].failure.set(reason.to_owned());
        let mut all = Vec::new();
        lock(&self.votes).fail(partition, |partition| all.push(partition));
        self.tell_failed(all, || {
            format!("a transaction shared with partition {partition}, whose log failed, is not durable: {reason}")
        });
    }

    fn tell_failed(&self, partitions: Vec<u16>, reason: impl Fn() -> String) {
        for failed in partitions {
            let _ = self.seats[usize::from(failed)].failure.set(reason());
            self.notify(u32::from(failed));
        }
    }

    /// Why a partition can commit nothing any more.
    pub(super) fn failure(&self, partition: u32) -> Option<String> {
        self.seat(partition).failure.get().cloned()
    }

    pub(super) fn answered(&self) {
        self.outstanding.fetch_sub(1, Ordering::AcqRel);
        if self.is_quiet() {
            (0..self.partitions()).for_each(|partition| self.notify(partition));
        }
    }

    /// A partition takes no more requests: the server stops.
    pub fn close(&self) {
        self.closed.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether each partition may end: all are closed and nothing is under way, or the thread of one has ended all the same.
    pub fn is_quiet(&self) -> bool {
        let left = self.seats.iter().any(|seat| seat.left.load(Ordering::SeqCst));
        left || self.closed.load(Ordering::Acquire) >= self.partitions()
            && self.outstanding.load(Ordering::Acquire) == 0
    }

    /// A partition's thread ends: whoever meets it waits in vain.
    pub fn leave(&self, partition: u32) {
        self.seat(partition).left.store(true, Ordering::SeqCst);
        (0..self.partitions()).for_each(|partition| self.notify(partition));
    }

    /// Whether the thread of one of these partitions has ended.
    pub(super) fn has_left(&self, partitions: &[u16]) -> bool {
        partitions.iter().any(|&partition| self.seats[usize::from(partition)].left.load(Ordering::SeqCst))
    }

    /// Takes an item that nobody will run out of one partition's queue.
    pub(super) fn give_up_front(&self, partition: u32) {
        let mut order = lock(&self.order);
        if order.queues[partition as usize].pop_front().is_some() {
            self.seat(partition).queued.fetch_sub(1, Ordering::Release);
        }
    }

    /// What a sleeping partition waits for.
    pub fn event(&self, partition: u32) -> BorrowedFd<'_> {
        self.seat(partition).event.as_fd()
    }

    /// Tells a partition to look, and wakes it if it sleeps.
    pub(super) fn notify(&self, partition: u32) {
        let seat = self.seat(partition);
        seat.news.store(true, Ordering::SeqCst);
        if seat.asleep.swap(false, Ordering::SeqCst) {
            // The counter cannot be full: only the one who changes the flag writes it.
            let _ = rustix::io::write(&seat.event, &1u64.to_ne_bytes());
        }
    }

    /// A partition is about to wait for its events; false when there is news, and it must look first. What is told from now on wakes it, until
    /// [`Coordinator::awake`].
    pub fn may_sleep(&self, partition: u32) -> bool {
        let seat = self.seat(partition);
        seat.asleep.store(true, Ordering::SeqCst);
        let news = seat.news.swap(false, Ordering::SeqCst);
        if news {
            seat.asleep.store(false, Ordering::SeqCst);
        }
        !news
    }

    /// A partition waits no more.
    pub fn awake(&self, partition: u32) {
        self.seat(partition).asleep.store(false, Ordering::Relaxed);
    }

    /// Resets a partition's event.
    pub fn clear_event(&self, partition: u32) {
        let mut counter = [0u8; 8];
        // Nothing to read means nothing to reset.
        let _ = rustix::io::read(&self.seat(partition).event, &mut counter);
    }
}
