#!/usr/bin/python
"""Ansible module: no server that this harness started runs under a node root, but those that are wanted."""

from __future__ import annotations

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.daemons import Daemon, DaemonError, running_state, stop

DOCUMENTATION = r"""
module: daemon_stop
short_description: Stop every server started by daemon_start under a directory
description:
  - Reads the state files C(*/*.daemon.json) under O(root) and ends their processes with SIGTERM.
  - Daemons listed in O(keep) go on if they run with exactly that configuration.
  - Removes the endpoint files C(*/endpoint.json) of what it stopped.
options:
  root:
    description: The node root.
    type: path
    required: true
  keep:
    description: Daemons to leave alone (same keys as O(daemon) of M(daemon_start)).
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
- name: Stop everything
  daemon_stop:
    root: /srv/var
"""

RETURN = r"""
stopped:
  description: Names of the servers that were stopped.
  type: list
  elements: str
  returned: always
kept:
  description: Names of the servers that go on.
  type: list
  elements: str
  returned: always
"""


def wanted_fingerprints(keep: list[dict[str, object]]) -> dict[Path, str]:
    """State file -> fingerprint of the daemons that may go on."""
    daemons = [Daemon.from_options(options) for options in keep]
    return {daemon.state_path: daemon.fingerprint() for daemon in daemons}


def main() -> None:
    """Entry point called by Ansible."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "keep": {"type": "list", "elements": "dict", "default": []},
            "timeout_s": {"type": "float", "default": 120.0},
        },
        supports_check_mode=True,
    )
    root = Path(module.params["root"])
    stopped: list[str] = []
    kept: list[str] = []
    try:
        wanted = wanted_fingerprints(module.params["keep"])
        for state_path in sorted(root.glob("*/*.daemon.json")):
            name = state_path.name.removesuffix(".daemon.json")
            state = running_state(state_path)
            if state is not None and state["fingerprint"] == wanted.get(state_path):
                kept.append(name)
            elif module.check_mode:
                stopped += [name] if state is not None else []
            elif stop(state_path, module.params["timeout_s"]):
                stopped.append(name)
    except (DaemonError, OSError, KeyError, TypeError) as error:
        module.fail_json(msg=str(error), stopped=stopped, kept=kept)
    if stopped and not module.check_mode:
        for endpoint in root.glob("*/endpoint.json"):
            endpoint.unlink(missing_ok=True)
    module.exit_json(changed=bool(stopped), stopped=stopped, kept=kept)


if __name__ == "__main__":
    main()
