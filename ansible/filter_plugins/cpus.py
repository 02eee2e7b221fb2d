"""Jinja filter: CPU lists in the notation of taskset."""

from __future__ import annotations

from collections.abc import Callable

from ansible.errors import AnsibleFilterError


def cpu_list(cpus: object) -> list[int]:
    """CPU numbers of a list such as "0,2-3"; none for an empty text. Anything else is an error of the deployment."""
    numbers: set[int] = set()
    for part in filter(None, (piece.strip() for piece in str(cpus).split(","))):
        first, dash, last = part.partition("-")
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
            raise AnsibleFilterError(f'CPU list "{cpus}": "{part}" is neither a number nor a range such as 2-3')
        numbers.update(range(int(first), int(last) + 1))
    return sorted(numbers)


class FilterModule:
    """Registers the filters of this file."""

    def filters(self) -> dict[str, Callable[[object], list[int]]]:
        """Name -> function, as Ansible asks for it."""
        return {"cpu_list": cpu_list}
