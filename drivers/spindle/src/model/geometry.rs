//! Where a sector lies: zones, cylinders, tracks, skew; and how long the platters take to pass over a run of sectors.

use super::SECTOR_BYTES;
use crate::profile::MechanicsProfile;

/// A sector's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    zone: usize,
    /// Counted from the zone's first.
    track: u64,
    /// On the track.
    index: u64,
    pub cylinder: u64,
    pub head: u64,
}

/// Cylinders with equally many sectors on each track.
#[derive(Debug)]
struct Zone {
    first_sector: u64,
    end_sector: u64,
    first_cylinder: u64,
    sectors_per_track: u64,
    /// Sectors that pass while the heads are switched: the next track begins that much later.
    track_skew: u64,
    /// The same for a step to the next cylinder.
    cylinder_skew: u64,
}

/// The layout of a drive.
#[derive(Debug)]
pub(super) struct Geometry {
    pub rotation_ns: u64,
    pub sectors: u64,
    pub cylinders: u64,
    heads: u64,
    zones: Vec<Zone>,
}

pub(super) fn ns_of_ms(ms: f64) -> u64 {
    (ms * 1e6).round() as u64
}

impl Geometry {
    pub fn new(mechanics: &MechanicsProfile) -> Geometry {
        let rotation_ns = (60e9 / mechanics.rpm).round() as u64;
        let sectors = (mechanics.capacity_gb * 1e9) as u64 / SECTOR_BYTES;
        let mut zones: Vec<Zone> =
            (0..mechanics.zones).map(|zone| Zone::of_rate(mechanics, zone, rotation_ns)).collect();
        let per_cylinder: u64 = zones.iter().map(|zone| zone.sectors_per_track * mechanics.heads).sum();
        let cylinders = sectors.div_ceil(per_cylinder);
        let mut next_sector = 0;
        for (number, zone) in (0..).zip(&mut zones) {
            zone.first_cylinder = number * cylinders;
            zone.first_sector = next_sector;
            next_sector = sectors.min(next_sector + cylinders * mechanics.heads * zone.sectors_per_track);
            zone.end_sector = next_sector;
        }
        Geometry { rotation_ns, sectors, cylinders: cylinders * mechanics.zones, heads: mechanics.heads, zones }
    }

    pub fn locate(&self, sector: u64) -> Place {
        let zone = self.zones.partition_point(|zone| zone.end_sector <= sector).min(self.zones.len() - 1);
        let Zone { first_sector, first_cylinder, sectors_per_track, .. } = self.zones[zone];
        let track = (sector - first_sector) / sectors_per_track;
        Place {
            zone,
            track,
            index: (sector - first_sector) % sectors_per_track,
            cylinder: first_cylinder + track / self.heads,
            head: track % self.heads,
        }
    }

    /// The first sector of a place's track.
    pub fn first_of_track(&self, place: &Place) -> u64 {
        let zone = &self.zones[place.zone];
        zone.first_sector + place.track * zone.sectors_per_track
    }

    /// The angle at which the sector begins, as time since the index mark.
    pub fn angle_ns(&self, place: &Place) -> u64 {
        let zone = &self.zones[place.zone];
        let slot = (place.index + self.skew(zone, place.track)) % zone.sectors_per_track;
        slot * self.rotation_ns / zone.sectors_per_track
    }

    /// How long it takes from the start of a sector until the end of the last of `sectors`, track switches included; no further
    /// than the zone's end. Returns the time and the number of sectors that it is for.
    pub fn pass_ns(&self, place: &Place, sectors: u64) -> (u64, u64) {
        let zone = &self.zones[place.zone];
        let first = self.first_of_track(place) + place.index;
        let sectors = sectors.min(zone.end_sector - first);
        let last_track = place.track + (place.index + sectors - 1) / zone.sectors_per_track;
        let slots = sectors + self.skew(zone, last_track) - self.skew(zone, place.track);
        (slots * self.rotation_ns / zone.sectors_per_track, sectors)
    }

    /// Sum of all skews before a track of the zone.
    fn skew(&self, zone: &Zone, track: u64) -> u64 {
        track * zone.track_skew + track / self.heads * (zone.cylinder_skew - zone.track_skew)
    }
}

impl Zone {
    /// The zone with the number of sectors per track that comes closest to the sustained rate that the profile asks for.
    fn of_rate(mechanics: &MechanicsProfile, number: u64, rotation_ns: u64) -> Zone {
        let share = if mechanics.zones > 1 { number as f64 / (mechanics.zones - 1) as f64 } else { 0.0 };
        let wanted_mb_s = mechanics.outer_mb_s + (mechanics.inner_mb_s - mechanics.outer_mb_s) * share;
        let track_bytes = wanted_mb_s * 1e6 * rotation_ns as f64 / 1e9;
        let least = (track_bytes / SECTOR_BYTES as f64).floor().max(1.0) as u64;
        // A track switch takes at most one revolution, so that a track has at most twice the sectors of one without.
        let error = |zone: &Zone| (zone.rate_mb_s(mechanics.heads, rotation_ns) - wanted_mb_s).abs();
        let mut best = Zone::of_track(mechanics, least, rotation_ns);
        for sectors_per_track in least + 1..=2 * least + 2 {
            let zone = Zone::of_track(mechanics, sectors_per_track, rotation_ns);
            if error(&zone) < error(&best) {
                best = zone;
            }
        }
        best
    }

    fn of_track(mechanics: &MechanicsProfile, sectors_per_track: u64, rotation_ns: u64) -> Zone {
        let skew = |switch_ms: f64| (ns_of_ms(switch_ms) * sectors_per_track).div_ceil(rotation_ns);
        Zone {
            first_sector: 0,
            end_sector: 0,
            first_cylinder: 0,
            sectors_per_track,
            track_skew: skew(mechanics.head_switch_ms),
            cylinder_skew: skew(mechanics.head_switch_ms.max(mechanics.track_to_track_ms)),
        }
    }

    /// The sustained rate of the zone.
    fn rate_mb_s(&self, heads: u64, rotation_ns: u64) -> f64 {
        let sectors = heads * self.sectors_per_track;
        let slots = sectors + (heads - 1) * self.track_skew + self.cylinder_skew;
        let time_ns = slots as f64 * rotation_ns as f64 / self.sectors_per_track as f64;
        sectors as f64 * SECTOR_BYTES as f64 / time_ns * 1e3
    }
}

/// Seek times by the three-point curve of Lee and Katz (1993): through the shortest, the average and the longest seek.
#[derive(Debug)]
pub(super) struct SeekCurve {
    root_ns: f64,
    slope_ns: f64,
    least_ns: f64,
}

impl SeekCurve {
    pub fn new(mechanics: &MechanicsProfile, cylinders: u64) -> SeekCurve {
        let MechanicsProfile { track_to_track_ms: least, average_seek_ms: average, full_stroke_ms: most, .. } =
            *mechanics;
        let span = cylinders.max(2) as f64;
        SeekCurve {
            root_ns: 1e6 * (-10.0 * least + 15.0 * average - 5.0 * most).max(0.0) / (3.0 * span.sqrt()),
            slope_ns: 1e6 * (7.0 * least - 15.0 * average + 8.0 * most).max(0.0) / (3.0 * span),
            least_ns: 1e6 * least,
        }
    }

    /// The time for a seek by so many cylinders.
    pub fn time_ns(&self, distance: u64) -> u64 {
        if distance == 0 {
            return 0;
        }
        let steps = (distance - 1) as f64;
        (self.root_ns * steps.sqrt() + self.slope_ns * steps + self.least_ns) as u64
    }
}
