"""The order of the tests."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files whose tests start servers first: they take longest, and begun last would leave a worker idle."""
    with_servers = {item.path for item in items if item.get_closest_marker("servers")}
    items.sort(key=lambda item: item.path not in with_servers)
