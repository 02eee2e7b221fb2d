//! Daemons that died or hang, and what is left of them.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{TestDisk, fails, open_direct, read_versions, run, spindle, write_sectors};

fn send(daemon: i32, signal: Signal) {
    kill_process(Pid::from_raw(daemon).expect("a process id"), signal).expect("the daemon gets the signal");
}

/// Stops the daemon. A signal returns before it acts: on a busy machine a thread of the daemon could still serve a
/// request, so this waits until the kernel shows every thread as stopped.
fn freeze(daemon: i32) {
    send(daemon, Signal::STOP);
    let stopped = |thread: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(thread.expect("a thread").path().join("stat")).expect("a thread's state");
        stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'))
    };
    for _ in 0..1000 {
        if std::fs::read_dir(format!("/proc/{daemon}/task")).expect("the daemon's threads").all(stopped) {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("the daemon (process {daemon}) still runs 10 s after SIGSTOP");
}

fn wait_for_death(disk: &TestDisk) {
    for _ in 0..1000 {
        if run(&["status", &disk.dir()]).contains("died") {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{}", run(&["status", &disk.dir()]));
}

#[test]
fn what_a_killed_daemon_leaves_is_cleaned_up() {
    let Some(disk) = TestDisk::new("hdd-7200", "256MiB") else { return };
    let at = disk.mount(&[]);
    disk.mode("model", "on");
    let file = std::fs::File::create(at.join("kept")).expect("a file");
    file.write_all_at(b"kept", 0).expect("a write");
    file.sync_all().expect("a sync");
    std::fs::File::open(&at).and_then(|directory| directory.sync_all()).expect("a sync");
    send(disk.daemon(), Signal::KILL);
    wait_for_death(&disk);
    assert!(fails(&["stats", &disk.dir()]).contains("no daemon answers"));
    // The file is still open here: the mount is in use, and must go all the same.
    run(&["unmount", &disk.dir()]);
    drop(file);
    disk.assert_gone();
    let at = disk.mount(&[]);
    assert_eq!(std::fs::read(at.join("kept")).expect("the synced file"), b"kept");
}

#[test]
fn mounting_again_after_a_killed_daemon_cleans_up_first() {
    let Some(disk) = TestDisk::new("hdd-7200", "256MiB") else { return };
    disk.mount(&[]);
    send(disk.daemon(), Signal::KILL);
    wait_for_death(&disk);
    let at = disk.mount(&[]);
    std::fs::write(at.join("new"), "new").expect("the file system can be written again");
}

#[test]
fn a_frozen_daemon_is_noticed_and_removed() {
    let Some(disk) = TestDisk::new("hdd-7200", "256MiB") else { return };
    let device = disk.mount_raw();
    let daemon = disk.daemon();
    let file = open_direct(&device);
    freeze(daemon);
    let reader = std::thread::spawn(move || {
        let mut buffer = spindle::daemon::buffer::Buffer::take(4096);
        file.read_at(&mut buffer, 0)
    });
    std::thread::sleep(Duration::from_millis(100));
    assert!(!reader.is_finished(), "a read of a frozen disk ended");
    let at = disk.path().join("mnt").display().to_string();
    assert!(fails(&["mount", &disk.dir(), "--at", &at]).contains("does not answer"));
    run(&["unmount", &disk.dir()]);
    assert!(reader.join().expect("the reader ends").is_err(), "the read cannot have succeeded");
    disk.assert_gone();
    assert!(!Path::new(&format!("/proc/{daemon}/fd/0")).exists(), "the daemon is dead");
    let device = disk.mount_raw();
    write_sectors(&open_direct(&device), 3, 4, 1).expect("the disk works again");
}

#[test]
fn a_frozen_file_system_is_removed() {
    let Some(disk) = TestDisk::new("hdd-7200", "256MiB") else { return };
    let at = disk.mount(&[]);
    std::fs::write(at.join("dirty"), vec![1; 1 << 20]).expect("a write");
    freeze(disk.daemon());
    run(&["unmount", &disk.dir()]);
    disk.assert_gone();
}

#[test]
fn a_daemon_that_is_told_to_end_completes_the_image() {
    let Some(disk) = TestDisk::new("hdd-7200", "64MiB") else { return };
    let device = disk.mount_raw();
    disk.mode("model", "on");
    write_sectors(&open_direct(&device), 9, 50, 2).expect("a write");
    send(disk.daemon(), Signal::TERM);
    wait_for_death(&disk);
    run(&["unmount", &disk.dir()]);
    let image = open_direct(Path::new(&disk.dir()).join("disk.img").as_path());
    assert_eq!(read_versions(&image, 9, 50), vec![2; 50]);
}

#[test]
fn two_daemons_do_not_serve_one_disk() {
    let Some(disk) = TestDisk::new("none", "64MiB") else { return };
    let device = disk.mount_raw();
    let daemon = disk.daemon();
    assert!(fails(&["serve", &disk.dir()]).contains("has a daemon already"));
    assert_eq!(Path::new(&run(&["mount", &disk.dir(), "--raw"])), device, "mounting again changes nothing");
    assert_eq!(disk.daemon(), daemon);
    assert!(fails(&["mode", &disk.dir(), "model"]).contains("has no model"));
    assert!(spindle(&["unmount", &disk.dir()]).status.success());
    assert!(spindle(&["unmount", &disk.dir()]).status.success(), "unmounting again changes nothing");
}

/// A program that started meanwhile in a mount namespace of its own has a copy of every mount.
#[test]
fn copies_of_the_mounts_in_other_namespaces_do_not_hold_the_disk() {
    let Some(disk) = TestDisk::new("hdd-7200", "256MiB") else { return };
    let at = disk.mount(&[]);
    let mut other = Command::new("unshare").args(["--mount", "sleep", "60"]).spawn().expect("unshare runs");
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    while namespace(&other.id().to_string()) == namespace("self") {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::fs::write(at.join("kept"), "kept").expect("a write");
    let unmounted = spindle(&["unmount", &disk.dir()]);
    other.kill().and_then(|()| other.wait()).expect("the other namespace ends");
    assert!(unmounted.status.success(), "{}", String::from_utf8_lossy(&unmounted.stderr));
    disk.assert_gone();
    let at = disk.mount(&[]);
    assert_eq!(std::fs::read(at.join("kept")).expect("the file, which was synced before"), b"kept");
}
