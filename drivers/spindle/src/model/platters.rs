//! What happens on the storage medium, and what happens there next: the choice among waiting requests and dirty runs.

use super::cache::{Run, WriteCache};
use super::flash::Flash;
use super::geometry::ns_of_ms;
use super::mechanics::{Mechanics, Pass};
use super::{Operation, Request};
use crate::profile::{Profile, ProfileError, WriteCacheProfile};

/// A request inside the drive.
#[derive(Debug, Clone, Copy)]
pub(super) struct Command {
    pub id: u64,
    pub operation: Operation,
    pub run: Run,
    /// For the order of arrival.
    pub number: u64,
    pub submitted_ns: u64,
    /// When the controller has understood it.
    pub ready_ns: u64,
    /// A write that goes to the cache: decided when it is submitted.
    pub cached: bool,
}

impl Command {
    pub fn new(request: Request, number: u64, now_ns: u64, cached: bool) -> Command {
        Command {
            id: request.id,
            operation: request.operation,
            run: Run::new(request.first_sector, request.sectors),
            number,
            submitted_ns: now_ns,
            ready_ns: now_ns,
            cached: cached && request.operation == Operation::Write,
        }
    }
}

/// What an operation on the medium is for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Work {
    Host(Command),
    Destage(Run),
}

impl Work {
    fn run(&self) -> &Run {
        match self {
            Work::Host(command) => &command.run,
            Work::Destage(run) => run,
        }
    }
}

/// An operation on the medium.
#[derive(Debug, Clone, Copy)]
pub(super) struct Busy {
    pub work: Work,
    pub pass: Pass,
}

#[derive(Debug)]
enum Medium {
    Disk(Box<Mechanics>),
    Flash(Flash),
}

/// How pressing it is to destage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Urgency {
    /// Since when somebody waits for it; `None` = nobody: only when there is nothing else to do.
    pub since_ns: Option<u64>,
    /// Only what was dirty when this flush arrived.
    pub up_to: u64,
}

/// What keeps the shortest positioning time from being the only rule.
#[derive(Debug, Clone, Copy, Default)]
struct Fairness {
    ageing: f64,
    longest_wait_ns: u64,
    longest_run_ns: u64,
}

/// Work that follows on itself: a contiguous run of requests, or a row of destages.
#[derive(Debug, Clone, Copy)]
struct Turn {
    last: Work,
    began_ns: u64,
}

impl Turn {
    fn goes_on_with(&self, work: &Work) -> bool {
        match (&self.last, work) {
            (Work::Destage(_), Work::Destage(_)) => true,
            (Work::Host(last), Work::Host(next)) => last.operation == next.operation && last.run.end == next.run.first,
            _ => false,
        }
    }
}

/// A candidate for the arm: the lower, the sooner.
type Score = (i64, u64);

/// The score of those who have waited too long: first come, first served.
const OVERDUE: i64 = i64::MIN;
/// The score of those whose turn is over: if nobody else is there.
const HAD_ITS_TURN: i64 = i64::MAX;

/// The medium with its queue.
#[derive(Debug)]
pub(super) struct Platters {
    medium: Medium,
    fairness: Fairness,
    handicap_ns: u64,
    /// The last work of the arm: since when it has been of one piece.
    turn: Option<Turn>,
    largest_destage_sectors: u64,
    /// Reads, and writes past the cache, that wait for the medium.
    pub queue: Vec<Command>,
    pub busy: Vec<Busy>,
    candidates: Vec<u64>,
}

impl Platters {
    pub fn new(profile: &Profile, cache: &WriteCacheProfile, seed: u64) -> Result<Platters, ProfileError> {
        let (medium, fairness) = match (&profile.mechanics, &profile.read_ahead, &profile.flash) {
            (Some(mechanics), Some(read_ahead), _) => {
                let fairness = Fairness {
                    ageing: mechanics.ageing,
                    longest_wait_ns: ns_of_ms(mechanics.longest_wait_ms),
                    longest_run_ns: ns_of_ms(mechanics.longest_run_ms),
                };
                (Medium::Disk(Box::new(Mechanics::new(mechanics, read_ahead, seed))), fairness)
            }
            (_, _, Some(flash)) => (Medium::Flash(Flash::new(flash)), Fairness::default()),
            _ => return Err(ProfileError::NoModel { name: profile.name.clone() }),
        };
        Ok(Platters {
            medium,
            fairness,
            turn: None,
            handicap_ns: ns_of_ms(cache.destage_handicap_ms),
            largest_destage_sectors: cache.largest_destage_kib / 4,
            queue: Vec::new(),
            busy: Vec::new(),
            candidates: Vec::new(),
        })
    }

    /// What a flush costs after the cache is empty.
    pub fn flush_ns(&self) -> u64 {
        match &self.medium {
            Medium::Disk(_) => 0,
            Medium::Flash(flash) => flash.flush_ns,
        }
    }

    /// Whether nothing keeps a destage from starting but the wish to.
    pub fn can_destage(&self) -> bool {
        match &self.medium {
            Medium::Disk(_) => self.busy.is_empty(),
            Medium::Flash(_) => !self.destages(),
        }
    }

    fn destages(&self) -> bool {
        self.busy.iter().any(|busy| matches!(busy.work, Work::Destage(_)))
    }

    /// Since when a write past the cache has waited.
    pub fn write_waiting_since_ns(&self) -> Option<u64> {
        self.queue.iter().filter(|c| c.operation == Operation::Write).map(|c| c.ready_ns).min()
    }

    /// Whether the read can be answered from the read-ahead buffer.
    pub fn buffered(&mut self, run: &Run, now_ns: u64) -> bool {
        match &mut self.medium {
            Medium::Disk(mechanics) => mechanics.buffered(run, now_ns),
            Medium::Flash(_) => false,
        }
    }

    /// Takes those reads out of the queue that the buffer has come to hold.
    pub fn take_buffered(&mut self, now_ns: u64) -> Vec<Command> {
        let Medium::Disk(mechanics) = &mut self.medium else { return Vec::new() };
        let queue = &mut self.queue;
        queue.extract_if(.., |c| c.operation == Operation::Read && mechanics.buffered(&c.run, now_ns)).collect()
    }

    /// The host writes these sectors.
    pub fn overwritten(&mut self, run: &Run, now_ns: u64) {
        if let Medium::Disk(mechanics) = &mut self.medium {
            mechanics.overwritten(run, now_ns);
        }
    }

    /// Forgets what the read-ahead buffer holds, the queue, and what is under way.
    pub fn clear(&mut self, now_ns: u64) {
        if let Medium::Disk(mechanics) = &mut self.medium {
            mechanics.forget(now_ns);
        }
        self.queue.clear();
        self.busy.clear();
        self.turn = None;
    }

    /// When the next operation ends.
    pub fn next_end_ns(&self) -> Option<u64> {
        self.busy.iter().map(|busy| busy.pass.end_ns).min()
    }

    /// Takes the operation that ends first.
    pub fn end_next(&mut self) -> Option<Busy> {
        let next = (0..self.busy.len()).min_by_key(|index| self.busy[*index].pass.end_ns)?;
        let busy = self.busy.remove(next);
        if let (Medium::Disk(mechanics), Work::Host(Command { operation: Operation::Read, run, .. })) =
            (&mut self.medium, &busy.work)
        {
            mechanics.end_read(run);
        }
        Some(busy)
    }

    /// How many sectors of the operation are on the medium at a time.
    pub fn passed(&self, busy: &Busy, at_ns: u64) -> u32 {
        let run = busy.work.run();
        match &self.medium {
            Medium::Disk(mechanics) => {
                mechanics.passed(run.first, u64::from(run.sectors()), busy.pass.begin_ns, at_ns) as u32
            }
            Medium::Flash(flash) => flash.passed(&busy.pass, u64::from(run.sectors()), at_ns) as u32,
        }
    }

    /// Starts the next operation, if the medium is free for one. `destage` says whether and how urgently the cache wants to be emptied.
    pub fn start_next(&mut self, cache: &mut WriteCache, destage: Option<Urgency>, now_ns: u64) -> Option<Busy> {
        let work = match self.medium {
            Medium::Disk(_) => self.choose_on_disk(cache, destage, now_ns),
            Medium::Flash(_) => self.choose_in_flash(cache, destage),
        };
        let Some(work) = work else {
            if let (Medium::Disk(mechanics), true) = (&mut self.medium, self.busy.is_empty()) {
                mechanics.idle(now_ns);
            }
            return None;
        };
        let reads = matches!(work, Work::Host(Command { operation: Operation::Read, .. }));
        let mut pass = match &mut self.medium {
            Medium::Disk(mechanics) if reads => mechanics.start_read(work.run(), now_ns),
            Medium::Disk(mechanics) => mechanics.start_write(work.run(), now_ns),
            Medium::Flash(flash) if reads => flash.start_read(work.run(), now_ns),
            Medium::Flash(flash) if matches!(work, Work::Host(_)) => flash.start_write(work.run(), now_ns),
            Medium::Flash(flash) => flash.start_destage(work.run(), now_ns),
        };
        pass.end_ns = pass.end_ns.max(now_ns);
        let busy = Busy { work, pass };
        self.busy.push(busy);
        Some(busy)
    }

    /// A write past the cache waits until the cache is empty: what is in there is older.
    fn may_start(cache: &WriteCache, command: &Command) -> bool {
        command.operation == Operation::Read || (cache.is_clean() && cache.in_flight().is_none())
    }

    /// Only the head of a contiguous run competes: were its tail to go first, the run would cost a revolution for each request.
    fn heads_run(&self, command: &Command) -> bool {
        let precedes = |other: &Command| other.run.end == command.run.first && other.operation == command.operation;
        !self.queue.iter().any(precedes)
    }

    /// Shortest positioning first; waiting counts as a little less positioning, and there are limits to waiting and to turns.
    fn choose_on_disk(&mut self, cache: &mut WriteCache, destage: Option<Urgency>, now_ns: u64) -> Option<Work> {
        if !self.busy.is_empty() {
            return None;
        }
        let request = self.best_request(cache, now_ns);
        let run = destage.filter(|destage| destage.since_ns.is_some() || request.is_none());
        let run = run.and_then(|urgency| self.best_run(cache, urgency, now_ns));
        let work = match (request, run) {
            (None, None) => return None,
            (Some((score, index)), run) if run.is_none_or(|(run_score, _)| score <= run_score) => {
                Work::Host(self.queue.swap_remove(index))
            }
            (_, run) => Work::Destage(cache.begin_destage(run?.1, self.largest_destage_sectors)),
        };
        let began_ns = self.turn.filter(|turn| turn.goes_on_with(&work)).map_or(now_ns, |turn| turn.began_ns);
        self.turn = Some(Turn { last: work, began_ns });
        Some(work)
    }

    /// The request to serve next, and its place in the queue.
    fn best_request(&mut self, cache: &WriteCache, now_ns: u64) -> Option<(Score, usize)> {
        let mut best = None;
        for index in 0..self.queue.len() {
            let command = self.queue[index];
            if !Platters::may_start(cache, &command) || !self.heads_run(&command) {
                continue;
            }
            let approach_ns = self.approach_ns(&command.run, command.operation == Operation::Write, now_ns);
            let score = (self.score(approach_ns, &Work::Host(command), command.ready_ns, now_ns), command.number);
            best = Some(best.map_or((score, index), |known: (Score, usize)| known.min((score, index))));
        }
        best
    }

    /// The dirty run to write next, and its first sector.
    fn best_run(&mut self, cache: &WriteCache, urgency: Urgency, now_ns: u64) -> Option<(Score, u64)> {
        let Medium::Disk(mechanics) = &mut self.medium else { return None };
        let mut candidates = std::mem::take(&mut self.candidates);
        cache.destage_candidates(mechanics.sector_here(now_ns), urgency.up_to, &mut candidates);
        let nearest = candidates
            .iter()
            .map(|first| (self.approach_ns(&Run { first: *first, end: first + 1 }, true, now_ns), *first));
        let nearest = nearest.min();
        self.candidates = candidates;
        let (approach_ns, first) = nearest?;
        let work = Work::Destage(Run { first, end: first + 1 });
        let since_ns = urgency.since_ns.unwrap_or(now_ns);
        Some(((self.score(approach_ns + self.handicap_ns as i64, &work, since_ns, now_ns), first), first))
    }

    fn approach_ns(&mut self, run: &Run, write: bool, now_ns: u64) -> i64 {
        let Medium::Disk(mechanics) = &mut self.medium else { return 0 };
        mechanics.approach_ns(run, write, now_ns) as i64
    }

    fn score(&self, approach_ns: i64, work: &Work, since_ns: u64, now_ns: u64) -> i64 {
        let Fairness { ageing, longest_wait_ns, longest_run_ns } = self.fairness;
        let age_ns = now_ns.saturating_sub(since_ns);
        if self.turn.is_some_and(|turn| turn.goes_on_with(work) && now_ns - turn.began_ns > longest_run_ns) {
            HAD_ITS_TURN
        } else if age_ns > longest_wait_ns {
            OVERDUE
        } else {
            approach_ns - (ageing * age_ns as f64) as i64
        }
    }

    fn choose_in_flash(&mut self, cache: &mut WriteCache, destage: Option<Urgency>) -> Option<Work> {
        let Medium::Flash(flash) = &self.medium else { return None };
        let first = (0..self.queue.len())
            .filter(|index| Platters::may_start(cache, &self.queue[*index]))
            .min_by_key(|index| self.queue[*index].number);
        let hosts = self.busy.iter().filter(|busy| matches!(busy.work, Work::Host(_))).count();
        if let (Some(index), true) = (first, hosts < flash.channels) {
            return Some(Work::Host(self.queue.swap_remove(index)));
        }
        let urgency = destage.filter(|_| !self.destages())?;
        cache.destage_candidates(flash.last_destaged(), urgency.up_to, &mut self.candidates);
        let first = *self.candidates.first()?;
        Some(Work::Destage(cache.begin_destage(first, self.largest_destage_sectors)))
    }
}
