"""Ansible action: a JSON file on the controlling machine that only its user can read, because it holds passwords.

An action and no module: the file lies where Ansible runs. Arguments: ``path``, ``content`` (what is written as JSON).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

OWNER_ONLY = 0o600


def write(path: Path, text: str) -> bool:
    """Write a file in one step, unless it is like that already; returns whether it was written. Raises OSError."""
    if path.exists() and path.stat().st_mode & 0o777 == OWNER_ONLY and path.read_text(encoding="utf-8") == text:
        return False
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY), "w", encoding="utf-8") as file:
        file.write(text)
    partial.replace(path)
    return True


class ActionModule(ActionBase):  # type: ignore[misc]  # Ansible is untyped
    """The action, by the name that Ansible looks for."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Entry point called by Ansible."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        path, content = Path(self._task.args["path"]), self._task.args["content"]
        try:
            changed = write(path, json.dumps(content, indent=4, sort_keys=True) + "\n")
        except OSError as error:
            return {**result, "failed": True, "msg": f"{path} cannot be written: {error.strerror}"}
        return {**result, "changed": changed}
