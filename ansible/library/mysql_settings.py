#!/usr/bin/python
"""Ansible module: a running MySQL server has the settings that were asked for; the server itself is asked."""

from __future__ import annotations

from pathlib import Path

import pymysql
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.settings import differences

DOCUMENTATION = r"""
module: mysql_settings
short_description: Compare or set the global variables of a MySQL server
description:
  - Reads C(SHOW GLOBAL VARIABLES) and fails with name, wanted and actual value of every difference from O(expected).
  - Sets the variables of O(assign) first; only those that differ count as a change.
options:
  address:
    description: Where the server listens, C(host:port).
    type: str
    required: true
  user:
    description: Account.
    type: str
    required: true
  password_file:
    description: File with its password, where the module runs. No password is an argument, so none is logged.
    type: path
    required: true
  expected:
    description: Variable name to value, as the server prints it.
    type: dict
    default: {}
  assign:
    description: Dynamic global variables to set, name to integer.
    type: dict
    default: {}
author: [anticache-eval]
"""

EXAMPLES = r"""
- name: Check the settings
  mysql_settings:
    address: 127.0.0.1:23061
    user: terminals
    password_file: var/secrets/local/mysql_terminals
    expected: {tx_isolation: SERIALIZABLE}
"""

RETURN = r"""
checked:
  description: Number of variables compared.
  type: int
  returned: always
"""


def global_variables(cursor: pymysql.cursors.Cursor) -> dict[str, str]:
    """Every global variable as the server prints it."""
    cursor.execute("SHOW GLOBAL VARIABLES")
    return {str(name): str(value) for name, value in cursor.fetchall()}


def assign_variables(cursor: pymysql.cursors.Cursor, wanted: dict[str, int], check_mode: bool) -> bool:
    """Sets the variables that differ; returns whether there were any. Names come from the roles, never from data."""
    current = global_variables(cursor)
    differing = {name: int(value) for name, value in wanted.items() if current.get(name) != str(int(value))}
    for name, value in differing.items():
        if not check_mode:
            cursor.execute(f"SET GLOBAL {name} = %s", (value,))
    return bool(differing)


def main() -> None:
    """Entry point called by Ansible."""
    module = AnsibleModule(
        argument_spec={
            "address": {"type": "str", "required": True},
            "user": {"type": "str", "required": True},
            "password_file": {"type": "path", "required": True, "no_log": False},
            "expected": {"type": "dict", "default": {}},
            "assign": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    options = module.params
    host, _, port = options["address"].rpartition(":")
    try:
        password = Path(options["password_file"]).read_text(encoding="utf-8").strip()
        with (
            pymysql.connect(
                host=host, port=int(port), user=options["user"], password=password, connect_timeout=10
            ) as connection,
            connection.cursor() as cursor,
        ):
            changed = assign_variables(cursor, options["assign"], module.check_mode)
            actual = global_variables(cursor)
    except (OSError, pymysql.MySQLError, ValueError) as error:
        module.fail_json(msg=f"MySQL at {options['address']} cannot be asked for its settings: {error}")
    problems = differences(options["expected"], actual)
    if problems:
        module.fail_json(msg=f"MySQL at {options['address']} runs with other settings: {'; '.join(problems)}")
    module.exit_json(changed=changed, checked=len(options["expected"]))


if __name__ == "__main__":
    main()
