"""Jinja filter: a password as MySQL 5.6 keeps it in its table of accounts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable


def mysql_native_hash(password: str) -> str:
    """What PASSWORD() of MySQL 4.1 to 5.6 returns: a star and the upper-case digits of SHA1(SHA1(password)).

    With it the DB node gets accounts without ever holding a password: from its hash, 190 random bits are not found.
    """
    # Not a choice of ours: the server knows nothing else.
    inner = hashlib.sha1(password.encode(), usedforsecurity=False).digest()
    return "*" + hashlib.sha1(inner, usedforsecurity=False).hexdigest().upper()


class FilterModule:
    """Registers the filters of this file."""

    def filters(self) -> dict[str, Callable[[str], str]]:
        """Name -> function, as Ansible asks for it."""
        return {"mysql_native_hash": mysql_native_hash}
