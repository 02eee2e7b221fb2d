#!/usr/bin/python
"""Ansible module: an nftables table of our own lets given addresses, and no others, reach given ports."""

from __future__ import annotations

import ipaddress
import re
import shutil
import subprocess

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: nft_table
short_description: Restrict TCP and UDP ports of this node to a list of client addresses
description:
  - Keeps one table of family C(inet) and touches no other. Packets to O(ports) are accepted from loopback and from
    O(clients), and dropped from everybody else, whatever other tables accept.
  - A table that differs in anything from what is wanted is replaced in one transaction, then listed and compared.
  - Fails when nftables cannot be used. It never leaves the ports open silently.
options:
  name:
    description: Name of the table.
    type: str
    required: true
  state:
    description: Whether the table is there.
    type: str
    choices: [present, absent]
    default: present
  ports:
    description: Ports that are restricted.
    type: list
    elements: int
    default: []
  clients:
    description: Addresses, or networks in the notation 192.0.2.0/28, that reach them.
    type: list
    elements: str
    default: []
author: [anticache-eval]
"""

EXAMPLES = r"""
- name: Accept one client
  nft_table:
    name: anticache_eval
    ports: [23061, 23062]
    clients: [192.0.2.20]
"""

RETURN = r"""
table:
  description: The table as nft lists it, without counters; empty when it is absent.
  type: str
  returned: always
"""

HIGHEST_PORT = 65535
WHAT_TO_DO = (
    "Needed are the package nftables, a kernel with nf_tables, and root (node_become: true in the inventory). Without"
    " them, give the node a loopback node_address: no other address is served without a firewall"
)


class NftError(Exception):
    """The table cannot be had; the message says why and what to do."""


def ruleset(name: str, ports: list[int], clients: list[str]) -> str:
    """The wanted table in the language of nft; raises NftError naming the value that cannot be used."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise NftError(f'"{name}" is no name of a table: letters, digits and _')
    if not ports or not all(0 < port <= HIGHEST_PORT for port in ports):
        raise NftError(f"ports {ports}: one or more numbers from 1 to {HIGHEST_PORT} are needed")
    if not clients:
        raise NftError("no client address is given: set client_addresses in the inventory's group_vars")
    networks = []
    for client in clients:
        try:
            networks.append(ipaddress.ip_network(client))
        except ValueError as error:
            raise NftError(f'client address "{client}": {error}; names are not resolved, give addresses') from error
    listed = ", ".join(str(port) for port in sorted(set(ports)))
    restricted = f"meta l4proto {{ tcp, udp }} th dport {{ {listed} }}"
    lines = [f"table inet {name} {{", "chain input {", "type filter hook input priority 0; policy accept;"]
    lines.append('iifname "lo" accept')
    for version, family in ((4, "ip"), (6, "ip6")):
        own = {str(network) for network in networks if network.version == version}
        if own:
            lines.append(f"{restricted} {family} saddr {{ {', '.join(sorted(own))} }} accept")
    lines += [f"{restricted} counter drop", "}", "}", ""]
    return "\n".join(lines)


def run(command: list[str], rules: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command with rules as its input; raises NftError when it is not there."""
    try:
        return subprocess.run(command, input=rules, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NftError(f"{' '.join(command)}: {error}. {WHAT_TO_DO}") from error


def checked(done: subprocess.CompletedProcess[str], what: str) -> str:
    """The output of a command; raises NftError with what it said when it failed."""
    if done.returncode != 0:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise NftError(f"{what}: {said}. {WHAT_TO_DO}")
    return done.stdout


class Nft:
    """The nft program and one table."""

    def __init__(self, name: str) -> None:
        """Look for the program; raises NftError when there is none."""
        program = shutil.which("nft") or shutil.which("nft", path="/usr/sbin:/sbin")
        if program is None:
            raise NftError(f"the program nft is not there. {WHAT_TO_DO}")
        self.program, self.name = program, name

    def listed(self) -> str:
        """The table as it is, without counters; empty when there is none. Raises NftError when nobody may ask."""
        tables = checked(run([self.program, "list", "tables", "inet"]), "nftables cannot be asked for its tables")
        if f"table inet {self.name}" not in tables.splitlines():
            return ""
        listing = run([self.program, "--stateless", "list", "table", "inet", self.name])
        return checked(listing, f"the table {self.name} cannot be listed")

    def as_listed(self, rules: str) -> str:
        """How this nft lists the rules: it reads them into an empty network namespace and lists them there."""
        script = '"$0" --file - && "$0" --stateless list table inet "$1"'
        done = run(["unshare", "--net", "sh", "-c", script, self.program, self.name], rules)
        return checked(done, "the firewall's rules cannot be tried in a network namespace")

    def replace(self, rules: str) -> None:
        """Put the rules in the place of the table, in one transaction; raises NftError."""
        transaction = f"add table inet {self.name}\ndelete table inet {self.name}\n{rules}"
        checked(run([self.program, "--file", "-"], transaction), "the firewall's rules cannot be loaded")


def apply(nft: Nft, state: str, rules: str, check_mode: bool) -> tuple[bool, str]:
    """Bring the table about; returns whether it had to be changed, and the table."""
    wanted = nft.as_listed(rules) if state == "present" else ""
    if nft.listed() == wanted:
        return False, wanted
    if not check_mode:
        nft.replace(rules)
        found = nft.listed()
        if found != wanted:
            raise NftError(f"the table {nft.name} is not what was loaded. Wanted:\n{wanted}\nfound:\n{found}")
    return True, wanted


def main() -> None:
    """Entry point called by Ansible."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "ports": {"type": "list", "elements": "int", "default": []},
            "clients": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    options = module.params
    try:
        present = options["state"] == "present"
        rules = ruleset(options["name"], options["ports"], options["clients"]) if present else ""
        changed, table = apply(Nft(options["name"]), options["state"], rules, module.check_mode)
    except NftError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=changed, table=table)


if __name__ == "__main__":
    main()
