//! The drive: interface, controller, write cache and flushes around a storage medium, as a discrete-event model.

use std::collections::VecDeque;

use super::cache::{Run, WriteCache};
use super::counters::Counters;
use super::flash::ns_per_sector;
use super::geometry::ns_of_ms;
use super::platters::{Busy, Command, Platters, Urgency, Work};
use super::{Event, Operation, PowerCut, Request, SECTOR_BYTES};
use crate::profile::{Profile, ProfileError};

/// A drive. The caller owns the clock: it tells the time with every call, and asks when to come back.
///
/// A write belongs to the cache or goes past it as the cache was on or off when the write was *submitted*. The data of a cached write
/// are in the cache from its [`Event::Completed`] on, not before: whoever keeps them applies them then.
#[derive(Debug)]
pub struct Drive {
    region_sectors: u64,
    queue_depth: usize,
    exclusive_flush: bool,
    overhead_ns: u64,
    interface_ns_per_sector: f64,
    destage_idle_ns: u64,
    destage_deadline_ns: u64,
    cache_on: bool,

    now_ns: u64,
    submitted: u64,
    /// The controller takes in one command after another.
    controller_free_ns: u64,
    interface_free_ns: u64,
    /// When a request of the host last used the medium or its buffer.
    last_access_ns: u64,

    // A request is in exactly one of these, or in one of the two lists of `platters`.
    outside: VecDeque<Command>,
    taken_in: VecDeque<Command>,
    transfers: VecDeque<(u64, Command)>,
    waiting_for_room: VecDeque<Command>,
    flushes: VecDeque<(u64, Command)>,
    finishing: VecDeque<(u64, Command)>,
    platters: Platters,
    cache: WriteCache,
    counters: Counters,
}

/// The things that can happen next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    MediumEnds,
    TransferEnds,
    FlushEnds,
    CommandTakenIn,
    DestageDue,
}

impl Drive {
    /// A drive of which the first `region_sectors` sectors (the outer tracks) are used. The seed sets the angle of the platters.
    pub fn new(profile: &Profile, region_sectors: u64, seed: u64) -> Result<Drive, ProfileError> {
        let (Some(host), Some(cache)) = (&profile.host, &profile.write_cache) else {
            return Err(ProfileError::NoModel { name: profile.name.clone() });
        };
        let platters = Platters::new(profile, cache, seed)?;
        let capacity_sectors = profile.capacity_sectors().unwrap_or(0);
        if region_sectors == 0 || region_sectors > capacity_sectors {
            let name = profile.name.clone();
            return Err(ProfileError::Region { name, region_sectors, capacity_sectors });
        }
        Ok(Drive {
            region_sectors,
            queue_depth: host.queue_depth,
            exclusive_flush: host.exclusive_flush,
            overhead_ns: (host.command_overhead_us * 1e3).round() as u64,
            interface_ns_per_sector: ns_per_sector(host.interface_mb_s),
            destage_idle_ns: ns_of_ms(cache.destage_idle_ms),
            destage_deadline_ns: ns_of_ms(cache.destage_deadline_ms),
            cache_on: cache.enabled,
            now_ns: 0,
            submitted: 0,
            controller_free_ns: 0,
            interface_free_ns: 0,
            last_access_ns: 0,
            outside: VecDeque::new(),
            taken_in: VecDeque::new(),
            transfers: VecDeque::new(),
            waiting_for_room: VecDeque::new(),
            flushes: VecDeque::new(),
            finishing: VecDeque::new(),
            platters,
            cache: WriteCache::new((cache.size_mib << 20) / SECTOR_BYTES),
            counters: Counters::default(),
        })
    }

    /// Gives the drive a request. The caller has called [`Drive::advance`] for `now_ns` before, and times never go back.
    ///
    /// # Panics
    /// If the request lies outside the region, or has no sectors and is no flush: the caller's fault.
    pub fn submit(&mut self, now_ns: u64, request: Request) {
        let flush = request.operation == Operation::Flush;
        let end = request.first_sector.checked_add(u64::from(request.sectors));
        let inside = end.is_some_and(|end| end <= self.region_sectors);
        assert!(
            flush || (request.sectors > 0 && inside),
            "{request:?} lies outside the region of {} sectors",
            self.region_sectors
        );
        self.pass_time(now_ns);
        let mut command = Command::new(request, self.submitted, now_ns, self.cache_on);
        if flush {
            command.run = Run { first: 0, end: 0 };
        }
        self.submitted += 1;
        self.outside.push_back(command);
        self.counters.submitted(self.depth());
        self.take_in();
    }

    /// Lets everything happen up to and including a time, and appends it to `events` in its order.
    pub fn advance(&mut self, until_ns: u64, events: &mut Vec<Event>) {
        while let Some((at_ns, step)) = self.next_step().filter(|(at_ns, _)| *at_ns <= until_ns) {
            self.pass_time(at_ns);
            match step {
                Step::MediumEnds => self.medium_ends(events),
                Step::TransferEnds => self.transfer_ends(events),
                Step::FlushEnds => self.finishing.pop_front().map_or((), |(_, flush)| self.complete(&flush, events)),
                Step::CommandTakenIn => self.command_taken_in(events),
                Step::DestageDue => {}
            }
            self.take_in();
            self.start_medium(events);
        }
        self.pass_time(until_ns);
    }

    /// When to call [`Drive::advance`] next; `None`: nothing will happen until a request comes.
    pub fn next_event_ns(&self) -> Option<u64> {
        self.next_step().map(|(at_ns, _)| at_ns)
    }

    /// Switches the write cache for the requests to come. Switched off, it is emptied at once, and writes past it wait for that.
    pub fn set_write_cache(&mut self, on: bool) {
        self.cache_on = on;
    }

    /// Whether writes go to the cache.
    pub fn write_cache(&self) -> bool {
        self.cache_on
    }

    /// What the drive has counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Counts from zero, from now on.
    pub fn reset_counters(&mut self) {
        self.counters = Counters::default();
        self.counters.submitted(self.depth());
    }

    /// Completes everything and empties the cache at once, in no time. Leaves an idle drive.
    pub fn drain(&mut self, now_ns: u64, events: &mut Vec<Event>) {
        self.advance(now_ns, events);
        if let Some(run) = self.cache.end_destage() {
            events.push(destage_ended(&run, now_ns));
        }
        // Room is given up and taken again below, so that each write is counted once, however far it had come.
        let mut commands = self.commands();
        commands.sort_by_key(|command| command.number);
        self.clear_queues();
        self.cache.release_reserved();
        for command in commands.iter().filter(|command| command.operation != Operation::Flush) {
            if command.cached {
                self.cache.reserve_regardless(u64::from(command.run.sectors()));
                self.cache.insert(command.run, now_ns);
            } else if command.operation == Operation::Write {
                self.destage_at_once(events);
            }
            self.complete(command, events);
        }
        self.destage_at_once(events);
        commands
            .iter()
            .filter(|command| command.operation == Operation::Flush)
            .for_each(|flush| self.complete(flush, events));
    }

    /// Cuts the power: queue and cache are lost. The caller has called [`Drive::advance`] for `now_ns` before. Idle afterwards.
    pub fn cut_power(&mut self, now_ns: u64) -> PowerCut {
        self.pass_time(now_ns);
        let writes = |busy: &&Busy| !matches!(&busy.work, Work::Host(command) if command.operation != Operation::Write);
        let interrupted = self.platters.busy.iter().find(writes).map(|busy| {
            let run = match &busy.work {
                Work::Host(command) => command.run,
                Work::Destage(run) => *run,
            };
            (run.first, self.platters.passed(busy, now_ns))
        });
        let mut commands = self.commands();
        commands.sort_by_key(|command| command.number);
        self.clear_queues();
        self.cache.clear();
        PowerCut { requests: commands.iter().map(|command| command.id).collect(), interrupted }
    }

    /// All requests, wherever they are.
    fn commands(&self) -> Vec<Command> {
        let timed = [&self.transfers, &self.flushes, &self.finishing];
        let waiting = [&self.outside, &self.taken_in, &self.waiting_for_room];
        let busy = self.platters.busy.iter().filter_map(|busy| match busy.work {
            Work::Host(command) => Some(command),
            Work::Destage(_) => None,
        });
        let timed = timed.into_iter().flatten().map(|(_, command)| *command);
        timed
            .chain(waiting.into_iter().flatten().copied())
            .chain(self.platters.queue.iter().copied())
            .chain(busy)
            .collect()
    }

    fn clear_queues(&mut self) {
        [&mut self.transfers, &mut self.flushes, &mut self.finishing].into_iter().for_each(VecDeque::clear);
        [&mut self.outside, &mut self.taken_in, &mut self.waiting_for_room].into_iter().for_each(VecDeque::clear);
        self.platters.clear(self.now_ns);
        self.controller_free_ns = self.now_ns;
        self.interface_free_ns = self.now_ns;
    }

    fn destage_at_once(&mut self, events: &mut Vec<Event>) {
        while let Some(first) = self.cache.first_dirty() {
            let run = self.cache.begin_destage(first, u64::from(u32::MAX));
            events.push(destage_began(&run, self.now_ns));
            events.push(destage_ended(&run, self.now_ns));
            self.cache.end_destage();
        }
    }

    /// Requests in the drive.
    fn inside(&self) -> usize {
        let hosts = self.platters.busy.iter().filter(|busy| matches!(busy.work, Work::Host(_))).count();
        let waiting = self.waiting_for_room.len() + self.flushes.len() + self.finishing.len();
        self.taken_in.len() + self.transfers.len() + waiting + self.platters.queue.len() + hosts
    }

    /// Requests submitted and not completed.
    fn depth(&self) -> usize {
        self.outside.len() + self.inside()
    }

    fn pass_time(&mut self, to_ns: u64) {
        if to_ns > self.now_ns {
            self.counters.pass(to_ns - self.now_ns, self.depth(), !self.platters.busy.is_empty());
            self.now_ns = to_ns;
        }
    }

    fn next_step(&self) -> Option<(u64, Step)> {
        let steps = [
            self.platters.next_end_ns().map(|at_ns| (at_ns, Step::MediumEnds)),
            self.transfers.front().map(|(at_ns, _)| (*at_ns, Step::TransferEnds)),
            self.finishing.front().map(|(at_ns, _)| (*at_ns, Step::FlushEnds)),
            self.taken_in.front().map(|command| (command.ready_ns, Step::CommandTakenIn)),
            self.destage_due_ns().map(|at_ns| (at_ns.max(self.now_ns), Step::DestageDue)),
        ];
        steps.into_iter().flatten().min()
    }

    /// Moves requests into the drive, in the order of arrival, as long as it has room.
    fn take_in(&mut self) {
        while let Some(command) = self.outside.front() {
            let inside = self.inside();
            let flush = command.operation == Operation::Flush;
            let flush_inside = self.taken_in.iter().any(|command| command.operation == Operation::Flush)
                || !self.flushes.is_empty()
                || !self.finishing.is_empty();
            if inside >= self.queue_depth || (self.exclusive_flush && (flush_inside || (flush && inside > 0))) {
                return;
            }
            let Some(mut command) = self.outside.pop_front() else { return };
            self.controller_free_ns = self.controller_free_ns.max(self.now_ns) + self.overhead_ns;
            command.ready_ns = self.controller_free_ns;
            self.taken_in.push_back(command);
        }
    }

    fn command_taken_in(&mut self, events: &mut Vec<Event>) {
        let Some(command) = self.taken_in.pop_front() else { return };
        match command.operation {
            Operation::Read => self.read_taken_in(command),
            Operation::Write => {
                self.platters.overwritten(&command.run, self.now_ns);
                if command.cached {
                    self.waiting_for_room.push_back(command);
                    self.let_writes_in();
                    self.counters.throttled_writes += u64::from(!self.waiting_for_room.is_empty());
                } else {
                    self.platters.queue.push(command);
                }
            }
            Operation::Flush => {
                let mark = self.cache.mark();
                self.flushes.push_back((mark, command));
                self.end_flushes(events);
            }
        }
    }

    fn read_taken_in(&mut self, command: Command) {
        let cached = self.cache.covers(&command.run);
        if cached || self.platters.buffered(&command.run, self.now_ns) {
            self.counters.cache_hits += u64::from(cached);
            self.counters.read_ahead_hits += u64::from(!cached);
            self.transfer(command);
        } else {
            self.platters.queue.push(command);
        }
    }

    /// Moves data between host and buffer.
    fn transfer(&mut self, command: Command) {
        if command.operation == Operation::Read {
            self.last_access_ns = self.now_ns;
        }
        let transfer_ns = (f64::from(command.run.sectors()) * self.interface_ns_per_sector) as u64;
        self.interface_free_ns = self.interface_free_ns.max(self.now_ns) + transfer_ns;
        self.transfers.push_back((self.interface_free_ns, command));
    }

    fn transfer_ends(&mut self, events: &mut Vec<Event>) {
        let Some((_, command)) = self.transfers.pop_front() else { return };
        if command.operation == Operation::Write {
            self.cache.insert(command.run, self.now_ns);
        }
        self.complete(&command, events);
    }

    /// Gives room in the cache to the writes that wait for it, in their order.
    fn let_writes_in(&mut self) {
        while let Some(command) = self.waiting_for_room.front().copied() {
            if !self.cache.reserve(u64::from(command.run.sectors())) {
                return;
            }
            self.waiting_for_room.pop_front();
            self.transfer(command);
        }
    }

    fn medium_ends(&mut self, events: &mut Vec<Event>) {
        match self.platters.end_next().map(|busy| busy.work) {
            Some(Work::Host(command)) => {
                self.last_access_ns = self.now_ns;
                self.complete(&command, events);
                for hit in self.platters.take_buffered(self.now_ns) {
                    self.counters.read_ahead_hits += 1;
                    self.transfer(hit);
                }
            }
            Some(Work::Destage(run)) => {
                self.cache.end_destage();
                self.counters.destages += 1;
                self.counters.sectors_destaged += u64::from(run.sectors());
                events.push(destage_ended(&run, self.now_ns));
                self.end_flushes(events);
                self.let_writes_in();
            }
            None => {}
        }
    }

    fn end_flushes(&mut self, events: &mut Vec<Event>) {
        while let Some((_, flush)) = self.flushes.front().copied().filter(|(mark, _)| self.cache.flushed(*mark)) {
            self.flushes.pop_front();
            match self.platters.flush_ns() {
                0 => self.complete(&flush, events),
                flush_ns => self.finishing.push_back((self.now_ns + flush_ns, flush)),
            }
        }
    }

    fn complete(&mut self, command: &Command, events: &mut Vec<Event>) {
        self.counters.completed(command.operation, command.run.sectors(), self.now_ns - command.submitted_ns);
        events.push(Event::Completed { id: command.id, at_ns: self.now_ns });
    }

    /// When the drive will begin to destage for want of anything else to do.
    fn destage_due_ns(&self) -> Option<u64> {
        if self.cache.is_clean() || !self.platters.can_destage() {
            return None;
        }
        let idle_ns = self.cache.dirty_since_ns().max(self.last_access_ns) + self.destage_idle_ns;
        Some(if self.urgent_since_ns().is_some() { self.now_ns } else { idle_ns })
    }

    /// Since when somebody waits for the cache to be emptied.
    fn urgent_since_ns(&self) -> Option<u64> {
        let flush_ns = self.flushes.front().map(|(_, flush)| flush.ready_ns);
        let write_ns = self.waiting_for_room.front().map(|write| write.ready_ns);
        let switched_off_ns = (!self.cache_on).then_some(self.cache.dirty_since_ns());
        let deadline_ns = self.cache.dirty_since_ns() + self.destage_deadline_ns;
        let overdue_ns = (deadline_ns <= self.now_ns).then_some(deadline_ns);
        let past_cache_ns = self.platters.write_waiting_since_ns();
        [flush_ns, write_ns, past_cache_ns, switched_off_ns, overdue_ns].into_iter().flatten().min()
    }

    fn start_medium(&mut self, events: &mut Vec<Event>) {
        loop {
            let due = self.destage_due_ns().is_some_and(|at_ns| at_ns <= self.now_ns);
            let destage = due.then(|| Urgency {
                since_ns: self.urgent_since_ns(),
                up_to: self.flushes.front().map_or(u64::MAX, |(mark, _)| *mark),
            });
            let Some(started) = self.platters.start_next(&mut self.cache, destage, self.now_ns) else { return };
            self.counters.moved(started.pass.distance);
            self.counters.read_ahead_hits += u64::from(started.pass.read_ahead);
            if let Work::Destage(run) = started.work {
                events.push(destage_began(&run, self.now_ns));
            }
        }
    }
}

fn destage_began(run: &Run, at_ns: u64) -> Event {
    Event::DestageBegan { first_sector: run.first, sectors: run.sectors(), at_ns }
}

fn destage_ended(run: &Run, at_ns: u64) -> Event {
    Event::DestageEnded { first_sector: run.first, sectors: run.sectors(), at_ns }
}
