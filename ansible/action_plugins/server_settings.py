"""Ansible action: a running server has the settings that were asked for; the server itself is asked.

An action and no module: the question comes from the controlling machine, as the terminals' do from theirs, and needs no
Python process of its own.

Arguments: ``server`` (``mysql`` or ``memcached``), ``address`` (``host:port``), ``expected`` (setting name to value, as
the server prints it). For MySQL also ``user``, ``password_file`` (on the controlling machine; no password is an
argument, so none is logged) and ``assign`` (dynamic global variables to set first, name to integer; only those that
differ count as a change).
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pymysql
from ansible.plugins.action import ActionBase

ANSWER_LIMIT_S = 10
KEYS = {
    "mysql": {"server", "address", "expected", "user", "password_file", "assign"},
    "memcached": {"server", "address", "expected"},
}
NAMES = {"mysql": "MySQL", "memcached": "Memcached"}


def differences(expected: dict[str, object], actual: dict[str, str]) -> list[str]:
    """One text per setting that differs: name, actual and wanted value, compared as the server prints them."""
    return [
        f"{name} is {actual[name]!r}, wanted {str(value)!r}" if name in actual else f"{name} is unknown to the server"
        for name, value in expected.items()
        if actual.get(name) != str(value)
    ]


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port``; raises ValueError."""
    host, _, port = address.rpartition(":")
    return host, int(port)


def memcached_settings(address: str) -> dict[str, str]:
    """What `stats settings` prints; raises OSError when the server does not answer."""
    actual: dict[str, str] = {}
    with (
        socket.create_connection(split_address(address), timeout=ANSWER_LIMIT_S) as connection,
        connection.makefile("rwb") as stream,
    ):
        stream.write(b"stats settings\r\n")
        stream.flush()
        for line in stream:
            words = line.decode("ascii", "replace").split()
            if words == ["END"]:
                return actual
            if words[:1] == ["STAT"]:
                actual[words[1]] = " ".join(words[2:])
    raise OSError("the connection ended in the middle of the answer")


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


def mysql_settings(options: dict[str, Any], check_mode: bool) -> tuple[bool, dict[str, str]]:
    """Sets what is to be set; returns whether that changed anything, and every global variable."""
    host, port = split_address(options["address"])
    password = Path(options["password_file"]).read_text(encoding="utf-8").strip()
    with (
        pymysql.connect(
            host=host, port=port, user=options["user"], password=password, connect_timeout=ANSWER_LIMIT_S
        ) as connection,
        connection.cursor() as cursor,
    ):
        changed = assign_variables(cursor, options.get("assign", {}), check_mode)
        return changed, global_variables(cursor)


class ActionModule(ActionBase):  # type: ignore[misc]  # Ansible is untyped
    """The action, by the name that Ansible looks for."""

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Entry point called by Ansible."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        options = dict(self._task.args)
        server = str(options.get("server", ""))
        unknown = set(options) - KEYS.get(server, set())
        if unknown or "address" not in options:
            wrong = ", ".join(sorted(unknown)) or "no address"
            return {**result, "failed": True, "msg": f'server_settings for the server "{server}": {wrong}'}
        where, changed = f"{NAMES[server]} at {options['address']}", False
        try:
            if server == "mysql":
                changed, actual = mysql_settings(options, self._task.check_mode)
            else:
                actual = memcached_settings(options["address"])
        except (OSError, pymysql.MySQLError, ValueError, KeyError) as error:
            return {**result, "failed": True, "msg": f"{where} cannot be asked for its settings: {error}"}
        expected = options.get("expected", {})
        if problems := differences(expected, actual):
            return {**result, "failed": True, "msg": f"{where} runs with other settings: {'; '.join(problems)}"}
        return {**result, "changed": changed, "checked": len(expected)}
