#!/usr/bin/python
"""Ansible module: the servers of a deployment are configured, started, or stopped.

One module for the three, and all servers at once: what it costs to bring a module to a node and start it there is paid
twice in a deployment, not for every file and every server.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.daemons import (
    Daemon,
    DaemonError,
    files_of_servers,
    group_of_state,
    running_state,
    start,
    stop,
)
from ansible.module_utils.node_files import DataDirectory, NodeFile, NodeFileError

DOCUMENTATION = r"""
module: daemon_state
short_description: Configure, start or stop servers in the background, without a service manager
description:
  - C(state=configured) writes O(files) and ends every server below O(root) that is none of O(daemons) with exactly this
    configuration (command, binary, configuration files, CPU set, token, control group).
  - C(state=started) fills the data directory of each of O(daemons) that does not run, starts it in its own session, and
    waits until it answers on its address; what runs with this configuration is left alone. With a control group the
    server is put into it before it is executed; see module_utils/control_groups.py, class Wanted, for its keys.
    A failure names the log and prints its end; a port in use is reported with its holder.
  - C(state=stopped) ends every server below O(root). Servers are ended with SIGTERM, found by the state files
    C(*/*.daemon.json); the endpoint files C(*/endpoint.json) go with the first that is ended.
options:
  state:
    description: What is wanted.
    type: str
    choices: [configured, started, stopped]
    required: true
  root:
    description: The node root; needed to end servers.
    type: path
  files:
    description: Text files, each with path, content and mode.
    type: list
    elements: dict
    default: []
  daemons:
    description: Servers in starting order; see module_utils/daemons.py, class Daemon, for the keys. C(data) describes
      what is to be in the data directory; see module_utils/node_files.py, class DataDirectory.
    type: list
    elements: dict
    default: []
  timeout_s:
    description: How long a server may take to end before it is killed, which is reported as a failure.
    type: float
    default: 120
author: [anticache-eval]
"""

EXAMPLES = r"""
- name: Start the server
  daemon_state:
    state: started
    daemons:
      - {name: memcached, directory: /srv/var/memcached, argv: [/usr/bin/memcached, -p, "23062"],
         listen: "127.0.0.1:23062", cpus: [0]}

- name: Stop everything
  daemon_state:
    state: stopped
    root: /srv/var
"""

RETURN = r"""
stopped:
  description: Names of the servers that were ended.
  type: list
  elements: str
  returned: state configured or stopped
kept:
  description: Names of the servers that go on.
  type: list
  elements: str
  returned: state configured or stopped
daemons:
  description: For each server its name, pid (0 in check mode when it does not run), log, and control group as the
    runner reads it from endpoint.json (empty when it has none).
  type: list
  elements: dict
  returned: state started
"""

FILE_OPTIONS = {
    "path": {"type": "path", "required": True},
    "content": {"type": "str", "required": True, "no_log": True},
    "mode": {"type": "str", "default": "0644"},
}
DATA_OPTIONS = {
    "path": {"type": "path", "required": True},
    "source": {"type": "str", "default": ""},
    "fresh": {"type": "bool", "default": False},
}
DAEMON_OPTIONS = {
    "name": {"type": "str", "required": True},
    "directory": {"type": "path", "required": True},
    "argv": {"type": "list", "elements": "str", "required": True},
    "listen": {"type": "str", "required": True},
    "config_files": {"type": "list", "elements": "path", "default": []},
    "cpus": {"type": "list", "elements": "int", "default": []},
    "token": {"type": "str", "default": "", "no_log": False},
    "control_group": {"type": "dict", "default": {}},
    "ready_line": {"type": "str", "default": ""},
    "start_timeout_s": {"type": "float", "default": 60.0},
    "data": {"type": "dict", "options": DATA_OPTIONS},
}
ARGUMENTS = {
    "state": {"type": "str", "choices": ["configured", "started", "stopped"], "required": True},
    "root": {"type": "path"},
    "files": {"type": "list", "elements": "dict", "default": [], "options": FILE_OPTIONS},
    "daemons": {"type": "list", "elements": "dict", "default": [], "options": DAEMON_OPTIONS},
    "timeout_s": {"type": "float", "default": 120.0},
}


def daemon_of(options: dict[str, Any]) -> Daemon:
    """The server that an element of `daemons` describes, without its data."""
    return Daemon.from_options({name: value for name, value in options.items() if name != "data"})


def end_others(options: dict[str, Any], keep: dict[Path, str], check_mode: bool) -> dict[str, Any]:
    """Ends every server below the root but those of `keep` (state file to fingerprint)."""
    root, stopped, kept = Path(options["root"]), [], []
    for state_path in files_of_servers(root, "*.daemon.json"):
        name = state_path.name.removesuffix(".daemon.json")
        state = running_state(state_path)
        if state is not None and state["fingerprint"] == keep.get(state_path):
            kept.append(name)
        elif check_mode:
            stopped += [name] if state is not None else []
        elif stop(state_path, options["timeout_s"]):
            stopped.append(name)
    if stopped and not check_mode:
        for endpoint in files_of_servers(root, "endpoint.json"):
            endpoint.unlink(missing_ok=True)
    return {"changed": bool(stopped), "stopped": stopped, "kept": kept}


def stopped(options: dict[str, Any], check_mode: bool) -> dict[str, Any]:
    """State `stopped`."""
    return end_others(options, {}, check_mode)


def configured(options: dict[str, Any], check_mode: bool) -> dict[str, Any]:
    """State `configured`; in check mode a server is judged by the files that are there."""
    missing = [file for file in map(NodeFile.from_options, options["files"]) if not file.is_there()]
    if not check_mode:
        for file in missing:
            file.write()
    daemons = [daemon_of(each) for each in options["daemons"]]
    result = end_others(options, {daemon.state_path: daemon.fingerprint() for daemon in daemons}, check_mode)
    return {**result, "changed": result["changed"] or bool(missing)}


def started(options: dict[str, Any], check_mode: bool) -> dict[str, Any]:
    """State `started`."""
    changed, found = False, []
    for each in options["daemons"]:
        daemon = daemon_of(each)
        state = running_state(daemon.state_path)
        if check_mode:
            changed |= state is None or state["fingerprint"] != daemon.fingerprint()
        else:
            if state is None and each["data"]:
                data = DataDirectory(Path(each["data"]["path"]), each["data"]["source"], each["data"]["fresh"])
                changed |= data.prepare()
            changed |= start(daemon)[0]
            state = running_state(daemon.state_path)
        group = group_of_state(daemon.state_path) if not check_mode else None
        found.append(
            {
                "name": daemon.name,
                "pid": state["pid"] if state else 0,
                "log": str(daemon.log_path),
                "control_group": group.endpoint() if group is not None else {},
            }
        )
    return {"changed": changed, "daemons": found}


STATES: dict[str, Callable[[dict[str, Any], bool], dict[str, Any]]] = {
    "configured": configured,
    "started": started,
    "stopped": stopped,
}


def main() -> None:
    """Entry point called by Ansible."""
    module = AnsibleModule(
        argument_spec=ARGUMENTS,
        required_if=[("state", "configured", ("root",)), ("state", "stopped", ("root",))],
        supports_check_mode=True,
    )
    try:
        result = STATES[module.params["state"]](module.params, module.check_mode)
    except (DaemonError, NodeFileError, OSError, KeyError, TypeError, ValueError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
