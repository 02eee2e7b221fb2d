//! Arm, platters and the read-ahead buffer: what it takes to get to a sector, exactly, at a given time.

use super::SECTOR_BYTES;
use super::cache::Run;
use super::geometry::{Geometry, Place, SeekCurve, ns_of_ms};
use crate::profile::{MechanicsProfile, ReadAheadProfile};

/// Sectors in the read buffer.
#[derive(Debug, Clone, Copy)]
struct Segment {
    run: Run,
    /// For the choice of the one to give up.
    last_used: u64,
}

/// The heads reading on, with nobody waiting.
#[derive(Debug, Clone, Copy)]
struct Stream {
    segment: usize,
    first: u64,
    began_ns: u64,
    /// Where it ends.
    end: u64,
}

/// When an operation on the platters moves its data.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pass {
    pub begin_ns: u64,
    pub end_ns: u64,
    /// Cylinders that the arm moved.
    pub distance: u64,
    /// A read whose beginning had been read ahead.
    pub read_ahead: bool,
}

/// The mechanical part of a drive.
#[derive(Debug)]
pub(super) struct Mechanics {
    geometry: Geometry,
    curve: SeekCurve,
    head_switch_ns: u64,
    write_settle_ns: u64,
    /// The angle of the platters at time 0.
    phase_ns: u64,
    position: Place,
    segments: Vec<Segment>,
    read_ahead_sectors: u64,
    stream: Option<Stream>,
    /// The segment that would be read on when there is nothing else to do, and how far.
    wanted: Option<(usize, u64)>,
    uses: u64,
}

impl Mechanics {
    pub fn new(mechanics: &MechanicsProfile, read_ahead: &ReadAheadProfile, seed: u64) -> Mechanics {
        let geometry = Geometry::new(mechanics);
        let nothing = Segment { run: Run { first: 0, end: 0 }, last_used: 0 };
        Mechanics {
            curve: SeekCurve::new(mechanics, geometry.cylinders),
            head_switch_ns: ns_of_ms(mechanics.head_switch_ms),
            write_settle_ns: ns_of_ms(mechanics.write_settle_ms),
            phase_ns: seed % geometry.rotation_ns,
            position: geometry.locate(0),
            segments: vec![nothing; read_ahead.segments],
            read_ahead_sectors: read_ahead.size_kib * 1024 / SECTOR_BYTES,
            stream: None,
            wanted: None,
            uses: 0,
            geometry,
        }
    }

    /// When the head, at `from` at a time, is at the start of `to`.
    fn reach_ns(&self, from: &Place, to: &Place, write: bool, at_ns: u64) -> u64 {
        let distance = from.cylinder.abs_diff(to.cylinder);
        let switch_ns = if from.head == to.head { 0 } else { self.head_switch_ns };
        // A step to the neighbouring cylinder ends within the skew for writes too, or no stream of writes could go on.
        let settle_ns = if write && distance > 1 { self.write_settle_ns } else { 0 };
        let arrival_ns = at_ns + self.curve.time_ns(distance).max(switch_ns) + settle_ns;
        let rotation_ns = self.geometry.rotation_ns;
        let angle_ns = (arrival_ns + self.phase_ns) % rotation_ns;
        let wait_ns = (self.geometry.angle_ns(to) + rotation_ns - angle_ns) % rotation_ns;
        // A run that goes on is never missed by a nanosecond: passes and angles are both rounded down, and the sum of two numbers
        // that were rounded down is no more than their sum rounded down.
        arrival_ns + wait_ns
    }

    /// When the last of the sectors has passed, if the first begins to at a time.
    fn pass_end_ns(&self, mut first: u64, mut sectors: u64, mut begin_ns: u64) -> u64 {
        while sectors > 0 {
            let (ns, passed) = self.geometry.pass_ns(&self.geometry.locate(first), sectors);
            begin_ns += ns;
            first += passed;
            sectors -= passed;
            if sectors > 0 {
                let (last, next) = (self.geometry.locate(first - 1), self.geometry.locate(first));
                begin_ns = self.reach_ns(&last, &next, false, begin_ns);
            }
        }
        begin_ns
    }

    /// How many of the sectors have passed at a time.
    pub fn passed(&self, first: u64, sectors: u64, begin_ns: u64, at_ns: u64) -> u64 {
        let (mut done, mut beyond) = (0, sectors + 1);
        while beyond - done > 1 {
            let middle = done + (beyond - done) / 2;
            if self.pass_end_ns(first, middle, begin_ns) <= at_ns { done = middle } else { beyond = middle }
        }
        done
    }

    /// Brings the read-ahead buffer up to date.
    fn settle(&mut self, now_ns: u64) {
        let Some(stream) = self.stream else { return };
        let wanted = stream.end - stream.first;
        let passed = self.passed(stream.first, wanted, stream.began_ns, now_ns);
        let run = &mut self.segments[stream.segment].run;
        run.end = stream.first + passed;
        run.first = run.first.max(run.end.saturating_sub(2 * self.read_ahead_sectors));
        if passed == wanted {
            self.position = self.geometry.locate(stream.end - 1);
            self.stream = None;
        }
    }

    /// Where the head is, with the buffer up to date.
    fn here(&self) -> Place {
        match self.stream {
            Some(stream) => self.geometry.locate(self.segments[stream.segment].run.end),
            None => self.position,
        }
    }

    /// The sector under the head, about.
    pub fn sector_here(&mut self, now_ns: u64) -> u64 {
        self.settle(now_ns);
        self.geometry.first_of_track(&self.here())
    }

    /// Ends reading ahead.
    fn halt(&mut self, now_ns: u64) {
        self.settle(now_ns);
        self.position = self.here();
        self.stream = None;
        self.wanted = None;
    }

    /// The segment that holds the sector or ends just before it.
    fn segment_at(&self, sector: u64) -> Option<usize> {
        self.segments.iter().position(|s| s.run.first < s.run.end && (s.run.first..=s.run.end).contains(&sector))
    }

    /// Whether the read can be answered from the buffer; if so, reading ahead is extended past it.
    pub fn buffered(&mut self, run: &Run, now_ns: u64) -> bool {
        self.settle(now_ns);
        let Some(segment) = self.segments.iter().position(|segment| segment.run.contains(run)) else { return false };
        self.uses += 1;
        self.segments[segment].last_used = self.uses;
        let end = self.ahead_of(run.end);
        self.wanted = Some((segment, end));
        if let Some(stream) = self.stream.as_mut().filter(|stream| stream.segment == segment) {
            stream.end = stream.end.max(end);
        }
        true
    }

    fn ahead_of(&self, sector: u64) -> u64 {
        (sector + self.read_ahead_sectors).min(self.geometry.sectors)
    }

    /// How long until the first sector of an operation passes under the head, were it started now.
    pub fn approach_ns(&mut self, run: &Run, write: bool, now_ns: u64) -> u64 {
        self.settle(now_ns);
        let first = match self.segment_at(run.first).filter(|_| !write) {
            Some(segment) if self.stream.is_some_and(|stream| stream.segment == segment) => return 0,
            Some(segment) => self.segments[segment].run.end.clamp(run.first, run.end - 1),
            None => run.first,
        };
        self.reach_ns(&self.here(), &self.geometry.locate(first), write, now_ns) - now_ns
    }

    /// Starts to read; what the buffer holds of the run's beginning is not read again.
    pub fn start_read(&mut self, run: &Run, now_ns: u64) -> Pass {
        self.settle(now_ns);
        let segment = self.segment_at(run.first);
        if let Some(stream) = self.stream.filter(|stream| Some(stream.segment) == segment) {
            self.stream = None;
            let end_ns = self.pass_end_ns(stream.first, run.end - stream.first, stream.began_ns);
            return Pass { begin_ns: stream.began_ns, end_ns, distance: 0, read_ahead: true };
        }
        self.halt(now_ns);
        let first = segment.map_or(run.first, |segment| self.segments[segment].run.end.clamp(run.first, run.end - 1));
        self.start(&Run { first, end: run.end }, false, now_ns)
    }

    /// Starts to write.
    pub fn start_write(&mut self, run: &Run, now_ns: u64) -> Pass {
        self.halt(now_ns);
        self.start(run, true, now_ns)
    }

    fn start(&mut self, run: &Run, write: bool, now_ns: u64) -> Pass {
        let place = self.geometry.locate(run.first);
        let distance = self.position.cylinder.abs_diff(place.cylinder);
        let begin_ns = self.reach_ns(&self.position, &place, write, now_ns);
        let end_ns = self.pass_end_ns(run.first, run.end - run.first, begin_ns);
        self.position = self.geometry.locate(run.end - 1);
        Pass { begin_ns, end_ns, distance, read_ahead: false }
    }

    /// A read has ended: its sectors are in the buffer.
    pub fn end_read(&mut self, run: &Run) {
        self.position = self.geometry.locate(run.end - 1);
        self.uses += 1;
        let segment = self.segment_at(run.first).unwrap_or_else(|| self.least_used());
        let known = &mut self.segments[segment];
        if known.run.first < known.run.end && (known.run.first..=known.run.end).contains(&run.first) {
            known.run.end = known.run.end.max(run.end);
            known.run.first =
                known.run.first.max(known.run.end.saturating_sub(2 * self.read_ahead_sectors).min(run.first));
        } else {
            known.run = *run;
        }
        known.last_used = self.uses;
        self.wanted = Some((segment, self.ahead_of(run.end)));
    }

    fn least_used(&self) -> usize {
        (0..self.segments.len()).min_by_key(|segment| self.segments[*segment].last_used).unwrap_or(0)
    }

    /// There is nothing to do: read on behind the last read.
    pub fn idle(&mut self, now_ns: u64) {
        self.settle(now_ns);
        let Some((segment, end)) = self.wanted.filter(|_| self.stream.is_none()) else { return };
        let first = self.segments[segment].run.end;
        if first < end {
            let began_ns = self.reach_ns(&self.position, &self.geometry.locate(first), false, now_ns);
            self.stream = Some(Stream { segment, first, began_ns, end });
        }
    }

    /// The host writes these sectors: what the buffer holds of them is out of date.
    pub fn overwritten(&mut self, run: &Run, now_ns: u64) {
        self.settle(now_ns);
        let read_on = |segment: &Segment, stream: Option<Stream>| stream.map_or(segment.run.end, |stream| stream.end);
        for index in 0..self.segments.len() {
            let stream = self.stream.filter(|stream| stream.segment == index);
            let segment = self.segments[index];
            if run.overlaps(&Run { first: segment.run.first, end: read_on(&segment, stream) }) {
                if stream.is_some() {
                    self.halt(now_ns);
                }
                let end = self.segments[index].run.end.min(run.first.max(segment.run.first));
                self.segments[index].run.end = end;
                self.wanted = self.wanted.filter(|(wanted, _)| *wanted != index);
            }
        }
    }

    /// Forgets the read-ahead buffer.
    pub fn forget(&mut self, now_ns: u64) {
        self.halt(now_ns);
        self.segments.iter_mut().for_each(|segment| segment.run = Run { first: 0, end: 0 });
    }
}

#[cfg(test)]
mod tests {
    use rand::RngExt;
    use rand_xoshiro::Xoshiro256PlusPlus;
    use rand_xoshiro::rand_core::SeedableRng;

    use super::*;
    use crate::profile::Profile;

    fn mechanics(seed: u64) -> Mechanics {
        let profile = Profile::load("hdd-7200").expect("built in");
        let (Some(mechanics), Some(read_ahead)) = (profile.mechanics, profile.read_ahead) else { panic!("a disk") };
        Mechanics::new(&mechanics, &read_ahead, seed)
    }

    #[test]
    fn the_seek_curve_has_its_three_points_and_their_mean() {
        let mechanics = mechanics(1);
        let (curve, cylinders) = (&mechanics.curve, mechanics.geometry.cylinders);
        assert_eq!(curve.time_ns(0), 0);
        assert_eq!(curve.time_ns(1), 1_000_000);
        assert!(curve.time_ns(cylinders - 1).abs_diff(18_000_000) < 1_000, "{}", curve.time_ns(cylinders - 1));
        let span = cylinders as f64;
        let mean_ns: f64 =
            (1..cylinders).map(|d| 2.0 * (span - d as f64) / span / span * curve.time_ns(d) as f64).sum();
        assert!((mean_ns - 8_500_000.0).abs() < 5_000.0, "{mean_ns}");
        assert!((1..cylinders).all(|distance| curve.time_ns(distance) >= curve.time_ns(distance - 1)));
    }

    #[test]
    fn on_the_same_track_the_mean_wait_is_half_a_revolution() {
        let mechanics = mechanics(7);
        let mut random = Xoshiro256PlusPlus::seed_from_u64(3);
        let (here, samples) = (mechanics.geometry.locate(0), 100_000);
        let waits_ns = (0..samples).map(|_| {
            let (sector, at_ns) = (random.random_range(0..300), random.random_range(1 << 20..1 << 40));
            let wait_ns = mechanics.reach_ns(&here, &mechanics.geometry.locate(sector), false, at_ns) - at_ns;
            assert!(wait_ns < mechanics.geometry.rotation_ns);
            wait_ns as f64
        });
        let mean_ns = waits_ns.sum::<f64>() / f64::from(samples);
        assert!((mean_ns / (60e9 / 7200.0 / 2.0) - 1.0).abs() < 0.01, "{mean_ns}");
    }

    #[test]
    fn every_sector_has_its_own_place_and_tracks_follow_without_a_lost_revolution() {
        let mechanics = mechanics(0);
        let geometry = &mechanics.geometry;
        let last = geometry.locate(geometry.sectors - 1);
        assert!(last.cylinder < geometry.cylinders && last.cylinder > geometry.cylinders - 100, "{last:?}");
        for sector in (0..200_000).chain(geometry.sectors / 2..geometry.sectors / 2 + 10_000) {
            let (place, next) = (geometry.locate(sector), geometry.locate(sector + 1));
            assert_ne!(place, next);
            assert!(next.cylinder - place.cylinder <= 1);
            // From the end of one sector to the start of the next: nothing, or a track switch of 1 ms and a sector at most.
            let end_ns = mechanics.pass_end_ns(sector, 1, mechanics.reach_ns(&place, &place, false, 1 << 30));
            let gap_ns = mechanics.reach_ns(&place, &next, false, end_ns).saturating_sub(end_ns);
            assert!(gap_ns < 1_030_000, "{gap_ns} between {place:?} and {next:?}");
        }
    }

    #[test]
    fn a_long_pass_is_the_sum_of_its_parts_and_can_be_asked_how_far_it_is() {
        let mechanics = mechanics(5);
        let begin_ns = mechanics.reach_ns(&mechanics.position, &mechanics.geometry.locate(1000), false, 1 << 30);
        let end_ns = mechanics.pass_end_ns(1000, 3000, begin_ns);
        let half_ns = mechanics.pass_end_ns(1000, 1500, begin_ns);
        assert_eq!(mechanics.passed(1000, 3000, begin_ns, end_ns), 3000);
        assert_eq!(mechanics.passed(1000, 3000, begin_ns, half_ns), 1500);
        assert_eq!(mechanics.passed(1000, 3000, begin_ns, half_ns - 1), 1499);
        assert_eq!(mechanics.passed(1000, 3000, begin_ns, begin_ns), 0);
        let (last, next) = (mechanics.geometry.locate(2499), mechanics.geometry.locate(2500));
        let rest_ns = mechanics.pass_end_ns(2500, 1500, mechanics.reach_ns(&last, &next, false, half_ns));
        assert!(rest_ns.abs_diff(end_ns) <= 4, "{rest_ns} {end_ns}");
    }
}
