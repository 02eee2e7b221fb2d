"""What stands for paths, hosts and addresses wherever a run is published."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from runner.store import Run

UNPUBLISHED_KEYS = frozenset({"hostname", "boot_id", "endpoint", "load_average", "node_root_device"})
"""Of JSON records, at any depth: what names or describes a machine at a moment, and serves no figure."""
_PATH = re.compile(r"(?<![\w.…/:])/(?!dev/|sys/|proc/)[\w.+@-]+(?:/[\w.+@-]+)+/?")
_ADDRESS = re.compile(r"\b(?!127\.|0\.0\.0\.0)\d{1,3}(?:\.\d{1,3}){3}\b(?!\.\d)")


def inventory_name(name: str) -> str:
    """Return an inventory's name as it is published: of a path the last part."""
    return Path(name).name if "/" in name else name


class Hidden:
    """What stands for paths, hosts and addresses of a run; what is hidden already stays as it is."""

    def __init__(self, run: Run) -> None:
        """Number the hosts of the run's lanes in the order of the lanes."""
        lanes = run.meta.get("lanes", {})
        hosts = [lanes[lane].get("hosts", {}).get(role) for lane in sorted(lanes) for role in ("dbms", "clients")]
        others = [host for host in dict.fromkeys(hosts) if host not in (None, "localhost")]
        self._hosts = {host: f"node {number}" for number, host in enumerate(others, start=1)}
        self._inventory = inventory_name(run.meta["key"]["inventory"])

    def of(self, value: Any) -> Any:
        """Return a JSON value as it may be published; ``lane`` and ``inventory`` keep their names."""
        if isinstance(value, dict):
            return {
                k: self._inventory if k == "inventory" else self.of(v)
                for k, v in value.items()
                if k not in UNPUBLISHED_KEYS
            }
        if isinstance(value, list):
            return [self.of(each) for each in value]
        return self._text(value) if isinstance(value, str) else value

    def _text(self, text: str) -> str:
        for host, name in self._hosts.items():
            text = re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", name, text)
        text = _PATH.sub(lambda path: "…/" + path[0].rstrip("/").rsplit("/", 1)[-1], text)
        return _ADDRESS.sub("ADDRESS", text)
