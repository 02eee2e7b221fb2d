"""Hosts made of namespaces: each with a network address, processes, a name and an SSH server of its own.

They share kernel, disk and packages with this machine, so that each gets a directory of its own for its files, the
home of who logs in among them: what somebody's shell does here at its start (bash reads ~/.bashrc for a command over
SSH too) is no business of theirs, and it can take a minute (pyenv, whose lock somebody left). One machine with several
hosts needs root. Everything ends with `close`, also what a host's programs left running: they die
with the first process of their namespace.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

SSHD = "/usr/sbin/sshd"
SSHD_CONFIG = """\
ListenAddress {address}
HostKey {directory}/host_key
AuthorizedKeysFile {directory}/authorized_keys
PidFile none
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
PasswordAuthentication no
MaxStartups 100
SetEnv HOME={directory}/home
Subsystem sftp internal-sftp
"""


def run(*command: str | Path) -> None:
    """Run a command that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(map(str, command))}: {done.stderr.strip() or done.stdout.strip()}")


def free_network() -> str:
    """Return the first three numbers of a network that no interface here has: several labs may be up at once."""
    taken = subprocess.run(["ip", "-4", "-brief", "address"], capture_output=True, text=True, check=True).stdout
    for number in random.sample(range(256), 256):
        if f"10.213.{number}." not in taken:
            return f"10.213.{number}"
    raise OSError("no network 10.213.N.0/24 is free")


@dataclass
class NetHost:
    """One host: its SSH server is the first process of its process namespace."""

    name: str
    address: str
    directory: Path
    namespace: str
    link: str
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Make the network, then the processes; returns when SSH answers."""
        run("ip", "netns", "add", self.namespace)
        run("ip", "link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", self.namespace)
        run("ip", "-n", self.namespace, "address", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            run("ip", "-n", self.namespace, "link", "set", device, "up")
        (self.directory / "sshd_config").write_text(
            SSHD_CONFIG.format(address=self.address, directory=self.directory), encoding="ascii"
        )
        (self.directory / "home").mkdir()
        (self.directory / "boot_id").write_text(f"{uuid.uuid4()}\n", encoding="ascii")
        inside = (
            f"hostname {self.name} && mount --bind {self.directory}/boot_id /proc/sys/kernel/random/boot_id"
            f" && exec {SSHD} -D -e -f {self.directory}/sshd_config"
        )
        # Not `ip netns exec`, which mounts another /sys: the host's servers need the control groups of this machine.
        network = f"--net=/run/netns/{self.namespace}"
        command = ["nsenter", network, "unshare", "--mount", "--uts", "--pid", "--fork"]
        with (self.directory / "sshd.log").open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--kill-child", "--mount-proc", "sh", "-c", inside],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def unplug(self) -> None:
        """Take the network away: nothing is answered, nothing is refused."""
        run("ip", "link", "set", self.link, "down")

    def plug(self) -> None:
        """Give the network back."""
        run("ip", "link", "set", self.link, "up")

    def first_process(self) -> int:
        """Return the host's first process as this machine numbers it."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text(encoding="ascii")
        return int(children.split()[0])

    def listening(self) -> list[str]:
        """Return the addresses on which TCP servers of the host listen."""
        command = ["ip", "netns", "exec", self.namespace, "ss", "-Htln"]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return sorted(line.split()[3] for line in found.splitlines())

    def close(self) -> None:
        """End every process of the host and take its network away."""
        if self.process is not None:
            with contextlib.suppress(OSError, IndexError):
                os.kill(self.first_process(), signal.SIGKILL)
            self.process.kill()
            self.process.wait()
        for command in (["ip", "link", "del", self.link], ["ip", "netns", "del", self.namespace]):
            subprocess.run(command, capture_output=True, check=False)


class NetLab:
    """Several hosts on one bridge, which this machine reaches with a key."""

    def __init__(self, place: Path, names: list[str]) -> None:
        """Make keys and hosts; raises OSError where that cannot be."""
        self.place = place
        self.key = place / "key"
        self.known_hosts = place / "known_hosts"
        self._bridge = f"br-{os.getpid()}"
        self.network = free_network()  # of a bridge that leads nowhere else
        self.hosts: dict[str, NetHost] = {}
        try:
            self._make(names)
        except BaseException:
            self.close()
            raise

    def _make(self, names: list[str]) -> None:
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd wants it; a service manager would have made it
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.key)
        run("ip", "link", "add", self._bridge, "type", "bridge")
        run("ip", "address", "add", f"{self.network}.1/24", "dev", self._bridge)
        run("ip", "link", "set", self._bridge, "up")
        known = []
        for number, name in enumerate(names):
            directory = self.place / name
            directory.mkdir()
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", directory / "host_key")
            shutil.copy(self.key.with_suffix(".pub"), directory / "authorized_keys")
            unique = f"{os.getpid()}-{number}"
            host = NetHost(name, f"{self.network}.{11 + number}", directory, f"lab-{unique}", f"v{unique}"[:15])
            self.hosts[name] = host
            host.start()
            run("ip", "link", "set", host.link, "master", self._bridge, "up")
            known.append(f"{host.address} {(directory / 'host_key.pub').read_text(encoding='ascii')}")
        self.known_hosts.write_text("".join(known), encoding="ascii")
        for host in self.hosts.values():
            self._wait(host)

    def _wait(self, host: NetHost) -> None:
        options = ["-i", str(self.key), "-oBatchMode=yes", f"-oUserKnownHostsFile={self.known_hosts}"]
        deadline_s = time.monotonic() + 30
        while True:
            done = subprocess.run(
                ["ssh", *options, "-oConnectTimeout=5", f"root@{host.address}", "hostname"],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode == 0 and done.stdout.strip() == host.name:
                return
            if time.monotonic() > deadline_s:
                log = (host.directory / "sshd.log").read_text(encoding="utf-8", errors="replace")
                raise OSError(f"{host.name} is not reached over SSH: {done.stderr.strip()}; sshd: {log}")
            time.sleep(0.1)

    def close(self) -> None:
        """Remove everything."""
        for host in self.hosts.values():
            host.close()
        subprocess.run(["ip", "link", "del", self._bridge], capture_output=True, check=False)
