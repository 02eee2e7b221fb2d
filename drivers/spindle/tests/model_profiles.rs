//! Profiles: what is built in, and what is said about a bad one.

use spindle::model::Drive;
use spindle::profile::{Profile, ProfileError};

#[test]
fn every_built_in_profile_loads_under_its_name_and_makes_a_drive() {
    assert_eq!(Profile::built_in()[0], "hdd-7200");
    for name in Profile::built_in() {
        let profile = Profile::load(name).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(profile.name, *name);
        assert_eq!(profile.is_none(), *name == "none");
        match profile.capacity_sectors() {
            Some(sectors) => {
                Drive::new(&profile, sectors, 1).unwrap_or_else(|error| panic!("{error}"));
                let error = Drive::new(&profile, sectors + 1, 1).err().map(|error| error.to_string());
                assert!(error.is_some_and(|error| error.contains(&sectors.to_string()) && error.contains(name)));
            }
            None => assert!(matches!(Drive::new(&profile, 1, 1), Err(ProfileError::NoModel { .. }))),
        }
    }
}

#[test]
fn a_profile_is_read_from_a_file_and_recorded_as_it_was() {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let text = include_str!("../profiles/hdd-7200.toml").replace("rpm = 7200", "rpm = 5400");
    std::fs::write(file.path(), text).expect("written");
    let profile = Profile::load(&file.path().to_string_lossy()).expect("a profile");
    assert_eq!(profile.mechanics.as_ref().map(|mechanics| mechanics.rpm), Some(5400.0));
    let recorded = serde_json::to_string(&profile).expect("plain values");
    assert_eq!(serde_json::from_str::<Profile>(&recorded).expect("the same"), profile);
}

fn fault(from: &str, to: &str) -> String {
    let text = include_str!("../profiles/hdd-7200.toml");
    assert!(text.contains(from), "{from}");
    Profile::parse(&text.replace(from, to), "my.toml").map_or_else(|error| error.to_string(), |_| String::new())
}

#[test]
fn a_bad_profile_is_refused_with_file_key_value_and_what_is_allowed() {
    for (from, to, said) in [
        ("rpm = 7200", "rpm = 0", "my.toml: mechanics.rpm = 0 is not allowed: a number from 1000 to 100000"),
        ("rpm = 7200", "rpn = 7200", "unknown field `rpn`"),
        ("rpm = 7200", "", "missing field `rpm`"),
        ("rpm = 7200", "rpm = \"fast\"", "invalid type: string \"fast\""),
        ("rpm = 7200", "rpm = nan", "mechanics.rpm = NaN"),
        (
            "average_seek_ms = 8.5",
            "average_seek_ms = 17.0",
            "mechanics.average_seek_ms = 17 is not allowed: a number from 6.6",
        ),
        (
            "inner_mb_s = 75.0",
            "inner_mb_s = 175.0",
            "mechanics.inner_mb_s = 175 is not allowed: a number from 1 to 150",
        ),
        ("head_switch_ms = 1.0", "head_switch_ms = 9.0", "mechanics.head_switch_ms = 9 is not allowed"),
        ("queue_depth = 32", "queue_depth = 0", "host.queue_depth = 0 is not allowed: a whole number from 1"),
        ("size_mib = 16", "size_mib = 0", "write_cache.size_mib = 0 is not allowed"),
        ("kind = \"disk\"", "kind = \"flash\"", "kind = \"flash\" has no section [mechanics]"),
        ("kind = \"disk\"", "kind = \"tape\"", "unknown variant `tape`"),
        ("[read_ahead]", "[read_behind]", "unknown field `read_behind`"),
        ("name = \"hdd-7200\"", "name = \"\"", "a name of at least one letter"),
    ] {
        let message = fault(from, to);
        assert!(message.contains("my.toml") && message.contains(said), "{to}: {message}");
    }
    let message = Profile::load("hdd-7201").map_or_else(|error| error.to_string(), |_| String::new());
    assert!(
        message.contains("hdd-7201") && message.contains("hdd-7200, hdd-297mb, hdd-15k, sata-ssd, nvme, none"),
        "{message}"
    );
}
