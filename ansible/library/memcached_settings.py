#!/usr/bin/python
"""Ansible module: a running Memcached has the settings that were asked for; the server itself is asked."""

from __future__ import annotations

import socket

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.settings import differences

DOCUMENTATION = r"""
module: memcached_settings
short_description: Compare the settings of a Memcached server
description:
  - Sends C(stats settings) and fails with name, wanted and actual value of every difference from O(expected).
options:
  address:
    description: Where the server listens, C(host:port).
    type: str
    required: true
  expected:
    description: Setting name to value, as the server prints it.
    type: dict
    required: true
author: [anticache-eval]
"""

EXAMPLES = r"""
- name: Check the settings
  memcached_settings:
    address: 127.0.0.1:23062
    expected: {maxbytes: 67108864}
"""

RETURN = r"""
checked:
  description: Number of settings compared.
  type: int
  returned: always
"""


def settings_of(address: str) -> dict[str, str]:
    """What `stats settings` prints; raises OSError when the server does not answer."""
    host, _, port = address.rpartition(":")
    actual: dict[str, str] = {}
    with socket.create_connection((host, int(port)), timeout=10) as connection, connection.makefile("rwb") as stream:
        stream.write(b"stats settings\r\n")
        stream.flush()
        for line in stream:
            words = line.decode("ascii", "replace").split()
            if words == ["END"]:
                return actual
            if words[:1] == ["STAT"]:
                actual[words[1]] = " ".join(words[2:])
    raise OSError("the connection ended in the middle of the answer")


def main() -> None:
    """Entry point called by Ansible."""
    module = AnsibleModule(
        argument_spec={
            "address": {"type": "str", "required": True},
            "expected": {"type": "dict", "required": True},
        },
        supports_check_mode=True,
    )
    address, expected = module.params["address"], module.params["expected"]
    try:
        actual = settings_of(address)
    except (OSError, ValueError) as error:
        module.fail_json(msg=f"Memcached at {address} cannot be asked for its settings: {error}")
    problems = differences(expected, actual)
    if problems:
        module.fail_json(msg=f"Memcached at {address} runs with other settings: {'; '.join(problems)}")
    module.exit_json(changed=False, checked=len(expected))


if __name__ == "__main__":
    main()
