#!/usr/bin/python
"""Ansible module: memory can be limited on this node."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.control_groups import ControlGroupError, Node, detect, probe

DOCUMENTATION = r"""
module: control_group_check
short_description: Check that a deployment's control group can be made
description:
  - Makes a control group with a limit and a CPU set, asks the kernel for both, and removes it again.
  - Fails with what to do where that does not work. Changes nothing; in check mode it only looks.
options: {}
author: [anticache-eval]
"""

EXAMPLES = r"""
- name: Check that memory can be limited
  control_group_check:
"""

RETURN = r"""
version:
  description: Version of the control groups, 1 or 2.
  type: int
  returned: success
manager:
  description: Whose they are; empty, or "system" or "user" for systemd's managers.
  type: str
  returned: success
why_no_cpuset:
  description: Why the CPU set is the processes' affinity alone; empty when the group has it too.
  type: str
  returned: success
"""


def main() -> None:
    """Entry point called by Ansible."""
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    try:
        kind = detect(Node()) if module.check_mode else probe()
    except (ControlGroupError, OSError) as error:
        module.fail_json(msg=f"memory cannot be limited on this node: {error}")
    module.exit_json(changed=False, version=kind.version, manager=kind.manager, why_no_cpuset=kind.why_no_cpuset)


if __name__ == "__main__":
    main()
