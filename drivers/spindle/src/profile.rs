//! Profiles: every number that shapes what an emulated drive does, read from a TOML file.

use std::path::Path;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::model::SECTOR_BYTES;

/// The profiles that are compiled in: name and text. The first is the default.
const BUILT_IN: [(&str, &str); 6] = [
    ("hdd-7200", include_str!("../profiles/hdd-7200.toml")),
    ("hdd-297mb", include_str!("../profiles/hdd-297mb.toml")),
    ("hdd-15k", include_str!("../profiles/hdd-15k.toml")),
    ("sata-ssd", include_str!("../profiles/sata-ssd.toml")),
    ("nvme", include_str!("../profiles/nvme.toml")),
    ("none", include_str!("../profiles/none.toml")),
];
const NAMES: [&str; 6] = [BUILT_IN[0].0, BUILT_IN[1].0, BUILT_IN[2].0, BUILT_IN[3].0, BUILT_IN[4].0, BUILT_IN[5].0];

/// Why a profile, or a drive after it, cannot be had.
#[derive(Debug, Error)]
pub enum ProfileError {
    /// Neither a built-in name nor a file.
    #[error("no disk profile {name:?}: it is neither built in ({}) nor a readable file: {source}", NAMES.join(", "))]
    Unknown {
        /// As asked for.
        name: String,
        /// Of reading the file.
        source: std::io::Error,
    },
    /// Not TOML, a key too many or too few, or a value of another type.
    #[error("disk profile {file}: {message}")]
    Syntax {
        /// Path, or name of a built-in profile.
        file: String,
        /// With line, key and what is allowed.
        message: String,
    },
    /// A value outside its range.
    #[error("disk profile {file}: {key} = {value} is not allowed: {allowed}")]
    Value {
        /// Path, or name of a built-in profile.
        file: String,
        /// Section and key.
        key: &'static str,
        /// As found.
        value: String,
        /// What would be allowed.
        allowed: String,
    },
    /// A section is missing, or does not belong to the kind of drive.
    #[error("disk profile {file}: kind = \"{kind}\" {problem}")]
    Section {
        /// Path, or name of a built-in profile.
        file: String,
        /// The drive's kind.
        kind: Kind,
        /// Which section, and what to do.
        problem: String,
    },
    /// The profile `none` describes no drive.
    #[error("disk profile {name}: kind = none has no model; use the image without a drive")]
    NoModel {
        /// Of the profile.
        name: String,
    },
    /// The region does not fit.
    #[error(
        "a region of {region_sectors} sectors of 4096 bytes does not fit disk profile {name}: 1 to {capacity_sectors} are allowed"
    )]
    Region {
        /// Of the profile.
        name: String,
        /// As asked for.
        region_sectors: u64,
        /// What the drive has.
        capacity_sectors: u64,
    },
}

/// The kind of drive, which decides the sections that a profile has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Rotating platters: needs `[mechanics]` and `[read_ahead]`.
    Disk,
    /// Flash: needs `[flash]`.
    Flash,
    /// No model.
    None,
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Kind::Disk => "disk",
            Kind::Flash => "flash",
            Kind::None => "none",
        })
    }
}

/// A drive's description.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Short name, recorded with results.
    pub name: String,
    /// Kind of drive.
    pub kind: Kind,
    /// The interface and the controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<Host>,
    /// The write cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_cache: Option<WriteCacheProfile>,
    /// Platters, heads and arm.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mechanics: Option<MechanicsProfile>,
    /// Reading ahead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_ahead: Option<ReadAheadProfile>,
    /// Flash.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flash: Option<FlashProfile>,
}

/// The interface and the controller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Rate of transfers between host and buffer.
    pub interface_mb_s: f64,
    /// Time that the controller needs for each command, one after another.
    pub command_overhead_us: f64,
    /// Commands that the drive holds; further ones wait outside in the order of arrival.
    pub queue_depth: usize,
    /// Whether a flush is alone in the drive, as in SATA.
    pub exclusive_flush: bool,
}

/// The write cache.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteCacheProfile {
    /// Size.
    pub size_mib: u64,
    /// Whether it is on at first.
    pub enabled: bool,
    /// The drive destages when it has had nothing else to do for this long.
    pub destage_idle_ms: f64,
    /// From this age on dirty data compete with requests for the platters.
    pub destage_deadline_ms: f64,
    /// What such data are set back by against a request that waits.
    pub destage_handicap_ms: f64,
    /// The longest run that is destaged at once.
    pub largest_destage_kib: u64,
}

/// Platters, heads and arm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MechanicsProfile {
    /// Capacity in 10^9 bytes.
    pub capacity_gb: f64,
    /// Revolutions per minute.
    pub rpm: f64,
    /// Recording surfaces.
    pub heads: u64,
    /// Zones of equally many cylinders.
    pub zones: u64,
    /// Sustained rate of the outermost zone.
    pub outer_mb_s: f64,
    /// Sustained rate of the innermost zone; those between lie on a line.
    pub inner_mb_s: f64,
    /// A seek by one cylinder.
    pub track_to_track_ms: f64,
    /// The mean over all pairs of cylinders.
    pub average_seek_ms: f64,
    /// A seek across all cylinders.
    pub full_stroke_ms: f64,
    /// What a write needs more than a read after a seek of more than one cylinder.
    pub write_settle_ms: f64,
    /// From one surface to another of the same cylinder.
    pub head_switch_ms: f64,
    /// Weight of waiting against positioning in the choice of the next request.
    pub ageing: f64,
    /// A request that has waited longer goes first.
    pub longest_wait_ms: f64,
    /// A contiguous run, or a row of destages, lets somebody else go first after this time.
    pub longest_run_ms: f64,
}

/// Reading ahead.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadAheadProfile {
    /// How far behind the last request the drive reads on; 0 = not at all.
    pub size_kib: u64,
    /// Streams that are told apart.
    pub segments: usize,
}

/// Flash.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlashProfile {
    /// Capacity in 10^9 bytes.
    pub capacity_gb: f64,
    /// Operations at the same time.
    pub channels: usize,
    /// Until the first byte of a read.
    pub read_latency_us: f64,
    /// Until the first byte of a write past the cache is stored.
    pub write_latency_us: f64,
    /// Rate of all reads together.
    pub read_mb_s: f64,
    /// Rate of all writes together.
    pub write_mb_s: f64,
    /// The least time to destage one run.
    pub destage_us: f64,
    /// What a flush costs after the cache is empty.
    pub flush_us: f64,
}

impl Profile {
    /// Names of the profiles that are compiled in, the default first.
    pub fn built_in() -> &'static [&'static str] {
        &NAMES
    }

    /// Loads a built-in profile by its name, or any other from a file.
    pub fn load(name_or_path: &str) -> Result<Profile, ProfileError> {
        if let Some((name, text)) = BUILT_IN.iter().find(|(name, _)| *name == name_or_path) {
            return Profile::parse(text, &format!("{name} (built in)"));
        }
        let text = std::fs::read_to_string(Path::new(name_or_path))
            .map_err(|source| ProfileError::Unknown { name: name_or_path.to_owned(), source })?;
        Profile::parse(&text, name_or_path)
    }

    /// Reads and checks a profile's text; `file` is for messages.
    pub fn parse(text: &str, file: &str) -> Result<Profile, ProfileError> {
        let profile: Profile = toml::from_str(text)
            .map_err(|error| ProfileError::Syntax { file: file.to_owned(), message: error.to_string() })?;
        Check { file, kind: profile.kind }.profile(&profile)?;
        Ok(profile)
    }

    /// Sectors of 4096 bytes that the drive has; `None` without a model.
    pub fn capacity_sectors(&self) -> Option<u64> {
        let mechanics_gb = self.mechanics.as_ref().map(|mechanics| mechanics.capacity_gb);
        let capacity_gb = mechanics_gb.or(self.flash.as_ref().map(|flash| flash.capacity_gb))?;
        Some((capacity_gb * 1e9) as u64 / SECTOR_BYTES)
    }

    /// Whether there is no model, and the disk is as it is.
    pub fn is_none(&self) -> bool {
        self.kind == Kind::None
    }
}

/// Checks values, with the file's name for messages.
struct Check<'a> {
    file: &'a str,
    kind: Kind,
}

/// Longest time that makes sense anywhere in a profile.
const LONGEST_MS: f64 = 10_000.0;
/// Highest rate that makes sense.
const FASTEST_MB_S: f64 = 100_000.0;

impl Check<'_> {
    fn profile(&self, profile: &Profile) -> Result<(), ProfileError> {
        if profile.name.trim().is_empty() {
            return Err(self.error("name", &profile.name, "a name of at least one letter".to_owned()));
        }
        let kind = self.kind;
        self.section("[host]", profile.host.is_some(), kind != Kind::None)?;
        self.section("[write_cache]", profile.write_cache.is_some(), kind != Kind::None)?;
        self.section("[mechanics]", profile.mechanics.is_some(), kind == Kind::Disk)?;
        self.section("[read_ahead]", profile.read_ahead.is_some(), kind == Kind::Disk)?;
        self.section("[flash]", profile.flash.is_some(), kind == Kind::Flash)?;
        profile.host.as_ref().map_or(Ok(()), |host| self.host(host))?;
        profile.write_cache.as_ref().map_or(Ok(()), |cache| self.write_cache(cache))?;
        profile.mechanics.as_ref().map_or(Ok(()), |mechanics| self.mechanics(mechanics))?;
        profile.read_ahead.as_ref().map_or(Ok(()), |read_ahead| self.read_ahead(read_ahead))?;
        profile.flash.as_ref().map_or(Ok(()), |flash| self.flash(flash))
    }

    fn host(&self, host: &Host) -> Result<(), ProfileError> {
        self.float("host.interface_mb_s", host.interface_mb_s, 1.0, FASTEST_MB_S)?;
        self.float("host.command_overhead_us", host.command_overhead_us, 0.0, LONGEST_MS * 1000.0)?;
        self.whole("host.queue_depth", host.queue_depth as u64, 1, 65_536)
    }

    fn write_cache(&self, cache: &WriteCacheProfile) -> Result<(), ProfileError> {
        self.whole("write_cache.size_mib", cache.size_mib, 1, 65_536)?;
        self.float("write_cache.destage_idle_ms", cache.destage_idle_ms, 0.0, LONGEST_MS)?;
        self.float("write_cache.destage_deadline_ms", cache.destage_deadline_ms, 0.0, LONGEST_MS)?;
        self.float("write_cache.destage_handicap_ms", cache.destage_handicap_ms, 0.0, LONGEST_MS)?;
        self.whole("write_cache.largest_destage_kib", cache.largest_destage_kib, 4, 65_536)
    }

    fn mechanics(&self, mechanics: &MechanicsProfile) -> Result<(), ProfileError> {
        let MechanicsProfile { track_to_track_ms: least, average_seek_ms: average, full_stroke_ms: most, .. } =
            *mechanics;
        self.float("mechanics.capacity_gb", mechanics.capacity_gb, 1.0, 100_000.0)?;
        self.float("mechanics.rpm", mechanics.rpm, 1000.0, 100_000.0)?;
        self.whole("mechanics.heads", mechanics.heads, 1, 64)?;
        self.whole("mechanics.zones", mechanics.zones, 1, 1000)?;
        self.float("mechanics.outer_mb_s", mechanics.outer_mb_s, 1.0, 10_000.0)?;
        self.float("mechanics.inner_mb_s", mechanics.inner_mb_s, 1.0, mechanics.outer_mb_s)?;
        self.float("mechanics.track_to_track_ms", least, 0.01, LONGEST_MS)?;
        self.float("mechanics.full_stroke_ms", most, least, LONGEST_MS)?;
        // Both coefficients of the seek curve must not be negative, or longer seeks would be shorter in places.
        let lowest_ms = (10.0 * least + 5.0 * most) / 15.0;
        let highest_ms = (7.0 * least + 8.0 * most) / 15.0;
        self.float("mechanics.average_seek_ms", average, lowest_ms, highest_ms)?;
        self.float("mechanics.write_settle_ms", mechanics.write_settle_ms, 0.0, LONGEST_MS)?;
        self.float("mechanics.head_switch_ms", mechanics.head_switch_ms, 0.0, 60_000.0 / mechanics.rpm)?;
        self.float("mechanics.track_to_track_ms", least, 0.01, 60_000.0 / mechanics.rpm)?;
        self.float("mechanics.ageing", mechanics.ageing, 0.0, 1000.0)?;
        self.float("mechanics.longest_wait_ms", mechanics.longest_wait_ms, 0.0, LONGEST_MS)?;
        self.float("mechanics.longest_run_ms", mechanics.longest_run_ms, 0.0, LONGEST_MS)
    }

    fn read_ahead(&self, read_ahead: &ReadAheadProfile) -> Result<(), ProfileError> {
        self.whole("read_ahead.size_kib", read_ahead.size_kib, 0, 1 << 20)?;
        self.whole("read_ahead.segments", read_ahead.segments as u64, 1, 64)
    }

    fn flash(&self, flash: &FlashProfile) -> Result<(), ProfileError> {
        self.float("flash.capacity_gb", flash.capacity_gb, 1.0, 100_000.0)?;
        self.whole("flash.channels", flash.channels as u64, 1, 4096)?;
        self.float("flash.read_latency_us", flash.read_latency_us, 0.0, LONGEST_MS * 1000.0)?;
        self.float("flash.write_latency_us", flash.write_latency_us, 0.0, LONGEST_MS * 1000.0)?;
        self.float("flash.read_mb_s", flash.read_mb_s, 1.0, FASTEST_MB_S)?;
        self.float("flash.write_mb_s", flash.write_mb_s, 1.0, FASTEST_MB_S)?;
        self.float("flash.destage_us", flash.destage_us, 0.0, LONGEST_MS * 1000.0)?;
        self.float("flash.flush_us", flash.flush_us, 0.0, LONGEST_MS * 1000.0)
    }

    fn section(&self, name: &str, present: bool, wanted: bool) -> Result<(), ProfileError> {
        let problem = match (present, wanted) {
            (false, true) => format!("needs a section {name}, which is missing"),
            (true, false) => format!("has no section {name}: remove it, or change the kind"),
            _ => return Ok(()),
        };
        Err(ProfileError::Section { file: self.file.to_owned(), kind: self.kind, problem })
    }

    fn float(&self, key: &'static str, value: f64, least: f64, most: f64) -> Result<(), ProfileError> {
        if value.is_finite() && (least..=most).contains(&value) {
            return Ok(());
        }
        Err(self.error(key, value, format!("a number from {least} to {most}")))
    }

    fn whole(&self, key: &'static str, value: u64, least: u64, most: u64) -> Result<(), ProfileError> {
        if (least..=most).contains(&value) {
            return Ok(());
        }
        Err(self.error(key, value, format!("a whole number from {least} to {most}")))
    }

    fn error(&self, key: &'static str, value: impl ToString, allowed: String) -> ProfileError {
        ProfileError::Value { file: self.file.to_owned(), key, value: value.to_string(), allowed }
    }
}
