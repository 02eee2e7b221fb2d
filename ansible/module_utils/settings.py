"""Comparing the settings that a server reports with those that were asked for."""

from __future__ import annotations


def differences(expected: dict[str, object], actual: dict[str, str]) -> list[str]:
    """One text per setting that differs: name, actual and wanted value, compared as the server prints them."""
    return [
        f"{name} is {actual[name]!r}, wanted {str(value)!r}" if name in actual else f"{name} is unknown to the server"
        for name, value in expected.items()
        if actual.get(name) != str(value)
    ]
