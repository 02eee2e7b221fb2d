#!/usr/bin/python
"""Ansible module: one server process runs with exactly this configuration."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.daemons import Daemon, DaemonError, group_of_state, running_state, start

DOCUMENTATION = r"""
module: daemon_start
short_description: Start a server in the background, without a service manager
description:
  - Starts O(daemon.argv) in its own session, pinned to O(daemon.cpus), and waits until it answers on O(daemon.listen).
  - A server that runs with the same fingerprint (command, binary, configuration files, CPU set, token, control group)
    is left alone.
  - With O(daemon.control_group) the server is put into a control group before it is executed; see
    module_utils/control_groups.py, class Wanted, for its keys.
  - A failure names the log and prints its end; a port in use is reported with its holder.
options:
  daemon:
    description: What to run; see module_utils/daemons.py, class Daemon, for the keys.
    type: dict
    required: true
author: [anticache-eval]
"""

EXAMPLES = r"""
- name: Start the server
  daemon_start:
    daemon: {name: memcached, directory: /srv/var/memcached, argv: [/usr/bin/memcached, -p, "23062"],
             listen: "127.0.0.1:23062", cpus: [0]}
"""

RETURN = r"""
pid:
  description: Process id of the running server (0 in check mode when it does not run).
  type: int
  returned: always
log:
  description: Path of its log.
  type: str
  returned: always
control_group:
  description: Its control group as the runner reads it from endpoint.json (empty when it has none).
  type: dict
  returned: success
"""

DAEMON_OPTIONS = {
    "name": {"type": "str", "required": True},
    "directory": {"type": "path", "required": True},
    "argv": {"type": "list", "elements": "str", "required": True},
    "listen": {"type": "str", "required": True},
    "config_files": {"type": "list", "elements": "path", "default": []},
    "cpus": {"type": "list", "elements": "int", "default": []},
    "token": {"type": "str", "default": ""},
    "control_group": {"type": "dict", "default": {}},
    "ready_line": {"type": "str", "default": ""},
    "start_timeout_s": {"type": "float", "default": 60.0},
}


def main() -> None:
    """Entry point called by Ansible."""
    module = AnsibleModule(
        argument_spec={"daemon": {"type": "dict", "required": True, "options": DAEMON_OPTIONS}},
        supports_check_mode=True,
    )
    daemon = Daemon.from_options(module.params["daemon"])
    if module.check_mode:
        state = running_state(daemon.state_path)
        same = state is not None and state["fingerprint"] == daemon.fingerprint()
        module.exit_json(changed=not same, pid=state["pid"] if state else 0, log=str(daemon.log_path), control_group={})
    try:
        changed, pid = start(daemon)
    except (DaemonError, OSError) as error:
        module.fail_json(msg=str(error), log=str(daemon.log_path))
    group = group_of_state(daemon.state_path)
    described = group.endpoint() if group is not None else {}
    module.exit_json(changed=changed, pid=pid, log=str(daemon.log_path), control_group=described)


if __name__ == "__main__":
    main()
