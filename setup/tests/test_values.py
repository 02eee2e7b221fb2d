"""CPU lists and the comparison of settings."""

from __future__ import annotations

import cpus
import pytest
import server_settings
from ansible.errors import AnsibleFilterError
from daemons import DaemonError, split_address


@pytest.mark.parametrize(
    ("text", "numbers"), [("0", [0]), ("0,2-3", [0, 2, 3]), (" 3, 1 ", [1, 3]), ("", []), ("2-2,2", [2])]
)
def test_cpu_list(text: str, numbers: list[int]) -> None:
    assert cpus.cpu_list(text) == numbers


@pytest.mark.parametrize("text", ["a", "1-", "-1", "3-2", "1;2", "0x1"])
def test_an_impossible_cpu_list_is_refused_by_value(text: str) -> None:
    with pytest.raises(AnsibleFilterError, match=f'CPU list "{text}"'):
        cpus.cpu_list(text)


def test_differences_name_setting_wanted_and_actual_value() -> None:
    wanted: dict[str, object] = {"same": 1, "other": 2, "unknown": "ON"}
    assert server_settings.differences(wanted, {"same": "1", "other": "3", "more": "x"}) == [
        "other is '3', wanted '2'",
        "unknown is unknown to the server",
    ]


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:", ":23061", "host:port"])
def test_an_address_without_host_or_port_is_refused(address: str) -> None:
    with pytest.raises(DaemonError, match="host:port"):
        split_address(address)
