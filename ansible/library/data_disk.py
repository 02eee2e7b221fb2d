#!/usr/bin/python
"""Ansible module: an empty file system on the disk under test, or none at all."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: data_disk
short_description: Mount an empty file system on an emulated or a real disk
description:
  - C(state=fresh) makes a new file system and mounts it, so that every deployment meets the same layout on the disk.
    An emulated disk is made anew (its image is a sparse file) and is left in bypass mode.
  - C(state=absent) unmounts; the image of an emulated disk is removed, a real disk keeps its last file system.
  - A real disk is formatted only when it is empty or carries the label of this harness.
options:
  state:
    description: What is wanted.
    type: str
    choices: [fresh, absent]
    required: true
  directory:
    description: Where an emulated disk keeps its image and control socket.
    type: path
    required: true
  mount_point:
    description: Where the file system is mounted.
    type: path
    required: true
  owner:
    description: User that the root of the file system belongs to.
    type: str
  program:
    description: The spindle binary; needed for an emulated disk.
    type: path
  profile:
    description: Profile of the emulated disk.
    type: str
  region_bytes:
    description: Size of the emulated disk, its outermost tracks.
    type: int
  device:
    description: A real disk or partition instead.
    type: path
  file_system:
    description: What to make.
    type: str
    choices: [ext4, xfs]
    default: ext4
author: [anticache-eval]
"""

EXAMPLES = r"""
- name: An empty 7200 RPM disk of 32 GiB
  data_disk:
    state: fresh
    directory: /srv/var/disk
    mount_point: /srv/var/disk/files
    program: /srv/tools/spindle
    profile: hdd-7200
    region_bytes: 34359738368
"""

RETURN = r"""
device:
  description: The block device below the file system; empty with C(state=absent).
  type: str
  returned: always
"""

LABEL = "anticache-eval"
# What spindle says of a file system that somebody is in: it stays whole, for them to end and this to go on.
IN_USE = "is in use by"
BLKID_FOUND, BLKID_NOTHING = 0, 2  # exit codes; others: contradicting signatures, errors
MAKE = {
    "ext4": ["mkfs.ext4", "-q", "-F", "-m", "0", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0", "-L", LABEL],
    "xfs": ["mkfs.xfs", "-q", "-f", "-K", "-L", LABEL[:12]],
}


class DataDisk:
    """One disk under test, as the module's options describe it."""

    def __init__(self, module: AnsibleModule) -> None:
        """Read the options."""
        self.module = module
        options = module.params
        self.directory = Path(options["directory"])
        self.mount_point = Path(options["mount_point"])
        self.options = options

    def call(self, *argv: str) -> str:
        """Run a command; its failure is the module's, in the command's own words."""
        code, out, err = self.module.run_command(list(argv))
        if code != 0:
            said = " ".join((err or out).split()) or f"exit code {code}"
            self.module.fail_json(msg=f"{' '.join(argv)}: {said}")
        return str(out)

    def present(self) -> bool:
        """Whether there is something to take away."""
        return self.mount_point.is_mount() or self.emulated()

    def emulated(self) -> bool:
        """Whether an emulated disk lies in the directory."""
        return (self.directory / "spindle.json").exists()

    def remove(self) -> None:
        """Unmount whatever is mounted; an emulated disk goes with its image."""
        if self.emulated():
            if not self.options["program"]:
                self.module.fail_json(msg=f"{self.directory} holds an emulated disk: `program` is needed to unmount it")
            unmount = [self.options["program"], "unmount", str(self.directory)]
            code, out, err = self.module.run_command(unmount)
            if code != 0 and IN_USE in err:
                self.module.fail_json(msg=" ".join((err or out).split()))
            if code != 0:
                # What it still wants to write, to a full disk for example, is not needed any more.
                self.module.run_command([self.options["program"], "powercut", str(self.directory)])
                self.call(*unmount)
        if self.mount_point.is_mount():
            self.call("umount", str(self.mount_point))
        if self.emulated():
            shutil.rmtree(self.directory)

    def make(self) -> str:
        """Make and mount the empty file system; returns its block device."""
        return self.make_real() if self.options["device"] else self.make_emulated()

    def make_emulated(self) -> str:
        """Create the image of the emulated disk, start its daemon and mount it."""
        program, directory = self.options["program"], str(self.directory)
        region, profile = str(self.options["region_bytes"]), self.options["profile"]
        self.call(program, "create", directory, "--region-bytes", region, "--profile", profile)
        self.mount_point.mkdir(parents=True, exist_ok=True)
        self.call(program, "mount", directory, "--at", str(self.mount_point), "--mkfs", self.options["file_system"])
        return self.call("findmnt", "--noheadings", "--output", "SOURCE", "--mountpoint", str(self.mount_point)).strip()

    def make_real(self) -> str:
        """Format a real disk, if it is nobody else's, and mount it."""
        device, file_system = self.options["device"], self.options["file_system"]
        if not Path(device).is_block_device():
            self.module.fail_json(msg=f"{device} is not a block device of this node")
        used = self.call("lsblk", "--noheadings", "--output", "MOUNTPOINTS", device).split()
        if used:
            self.module.fail_json(msg=f"{device} or a partition of it is mounted at {', '.join(used)}: not touched")
        code, found, said = self.module.run_command(["blkid", "-p", "-o", "export", device])
        facts = dict(line.split("=", 1) for line in found.splitlines() if "=" in line)
        content = {name for name in facts if name != "DEVNAME" and not name.startswith("PART_ENTRY_")}
        if code not in (BLKID_FOUND, BLKID_NOTHING):
            self.module.fail_json(
                msg=f"blkid cannot tell what {device} holds (exit code {code}: {said.strip() or 'several signatures'})"
                f": not formatted; if its content can go, clear it yourself: wipefs --all {device}"
            )
        if content and facts.get("LABEL") not in (LABEL, LABEL[:12]):
            what = facts.get("TYPE") or facts.get("PTTYPE") or "something"
            self.module.fail_json(
                msg=f"{device} holds {what} (label {facts.get('LABEL', 'none')!r}) and is not formatted; if its content"
                f" can go, clear it yourself: wipefs --all {device}"
            )
        try:
            os.close(os.open(device, os.O_RDWR | os.O_EXCL))
        except OSError as error:
            self.module.fail_json(msg=f"{device} is used by something else ({error.strerror}): not formatted")
        self.call(*MAKE[file_system], device)
        self.mount_point.mkdir(parents=True, exist_ok=True)
        self.call("mount", "-o", "noatime", device, str(self.mount_point))
        return str(device)


def main() -> None:
    """Entry point called by Ansible."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["fresh", "absent"], "required": True},
            "directory": {"type": "path", "required": True},
            "mount_point": {"type": "path", "required": True},
            "owner": {"type": "str"},
            "program": {"type": "path"},
            "profile": {"type": "str"},
            "region_bytes": {"type": "int"},
            "device": {"type": "path"},
            "file_system": {"type": "str", "choices": ["ext4", "xfs"], "default": "ext4"},
        },
        required_if=[("state", "fresh", ("profile", "device"), True)],
        required_together=[("profile", "region_bytes")],
        required_by={"profile": ("program",)},
        mutually_exclusive=[("profile", "device")],
        supports_check_mode=True,
    )
    disk = DataDisk(module)
    fresh = module.params["state"] == "fresh"
    changed, device = fresh or disk.present(), ""
    try:
        if changed and not module.check_mode:
            disk.remove()
        if fresh and not module.check_mode:
            device = disk.make()
            shutil.chown(disk.mount_point, user=module.params["owner"]) if module.params["owner"] else None
    except (OSError, LookupError) as error:
        module.fail_json(msg=f"{disk.mount_point}: {error}")
    module.exit_json(changed=changed, device=device)


if __name__ == "__main__":
    main()
