//! Commands that cannot do what they are told say what is wrong and what to do.

use crate::common::{TestDisk, directory, fails, run, spindle};

fn path(directory: &tempfile::TempDir, name: &str) -> String {
    directory.path().join(name).display().to_string()
}

#[test]
fn a_directory_that_is_no_disk_is_named() {
    let directory = directory();
    let empty = directory.path().display().to_string();
    for verb in ["stats", "status", "unmount", "powercut", "poweron", "serve"] {
        assert!(fails(&[verb, &empty]).contains("is not a disk (no spindle.json)"), "{verb}");
    }
    assert!(fails(&["status", &path(&directory, "absent")]).contains("No such file"));
}

#[test]
fn a_disk_that_cannot_be_is_refused() {
    let directory = directory();
    let create = |region: &str, profile: &str| {
        fails(&["create", &path(&directory, "d"), "--region-bytes", region, "--profile", profile])
    };
    assert!(create("1GiB", "hdd-9000").contains("no disk profile \"hdd-9000\""));
    assert!(create("2TiB", "hdd-7200").contains("does not fit disk profile hdd-7200"));
    assert!(create("1000", "hdd-7200").contains("multiple of 4096"));
    assert!(!directory.path().join("d").exists(), "a refused disk leaves nothing");
    let unit = spindle(&["create", &path(&directory, "d"), "--region-bytes", "1GB"]);
    assert!(!unit.status.success() && String::from_utf8_lossy(&unit.stderr).contains("KiB, MiB, GiB, TiB"));
    let word = spindle(&["mode", &path(&directory, "d"), "fast"]);
    assert!(!word.status.success() && String::from_utf8_lossy(&word.stderr).contains("bypass, model"));
}

#[test]
fn a_disk_is_created_once() {
    let directory = directory();
    let disk = path(&directory, "d");
    run(&["create", &disk, "--region-bytes", "64MiB"]);
    run(&["create", &disk, "--region-bytes", "67108864", "--profile", "hdd-7200"]);
    assert!(fails(&["create", &disk, "--region-bytes", "32MiB"]).contains("is a disk already, of other settings"));
    assert!(fails(&["mode", &disk, "model"]).contains("spindle mount"), "a disk that is down has no mode");
}

#[test]
fn an_image_of_another_size_is_refused() {
    let Some(disk) = TestDisk::new("hdd-7200", "64MiB") else { return };
    let image = std::path::Path::new(&disk.dir()).join("disk.img");
    let file = std::fs::OpenOptions::new().write(true).open(image).expect("the image");
    file.set_len(4096).expect("a shorter image");
    assert!(fails(&["mount", &disk.dir(), "--raw"]).contains("of another disk, or cut off"));
    disk.assert_gone();
}

#[test]
fn a_mounted_disk_is_not_mounted_elsewhere() {
    let Some(disk) = TestDisk::new("hdd-7200", "256MiB") else { return };
    let at = disk.mount(&[]);
    let elsewhere = disk.path().join("elsewhere").display().to_string();
    assert!(fails(&["mount", &disk.dir(), "--at", &elsewhere]).contains("is mounted already"));
    let holder = std::fs::File::create(at.join("open")).expect("a file");
    let busy = fails(&["unmount", &disk.dir()]);
    assert!(busy.contains("is in use by") && busy.contains(&std::process::id().to_string()), "{busy}");
    drop(holder);
    run(&["mount", &disk.dir(), "--at", &at.display().to_string()]);
}

#[test]
fn statistics_start_anew() {
    let Some(disk) = TestDisk::new("sata-ssd", "64MiB") else { return };
    let device = disk.mount_raw();
    disk.mode("model", "on");
    crate::common::write_sectors(&crate::common::open_direct(&device), 0, 4, 1).expect("a write");
    let stats: serde_json::Value =
        serde_json::from_str(&run(&["stats", &disk.dir(), "--json", "--reset"])).expect("JSON");
    assert_eq!(stats["model"]["writes"], 1, "{stats}");
    assert_eq!(
        stats["late"]["operations"],
        stats["late"]["histogram"]
            .as_array()
            .expect("buckets")
            .iter()
            .map(|bucket| bucket["operations"].as_u64().expect("a number"))
            .sum::<u64>()
    );
    assert_eq!(disk.stats()["model"]["writes"], 0);
    assert_eq!(disk.stats()["profile"], "sata-ssd");
}
