"""Ctrl-C, SIGTERM and the end of the terminal end the sweep in order, not the process at once."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Remembers that somebody asked to stop; the work looks at it between and within its steps."""

    def __init__(self) -> None:
        """Start un-asked."""
        self.asked = False
        self._asked_at = 0.0
        self.on_ask: Callable[[], None] = lambda: None

    def __call__(self) -> bool:
        """Tell whether to stop."""
        return self.asked

    def patience_over(self, seconds: float = 20.0) -> bool:
        """Tell whether the request is `seconds` old: a play that starts a server had better end by itself."""
        return self.asked and time.monotonic() - self._asked_at > seconds

    @contextmanager
    def listening(self) -> Iterator[Interrupt]:
        """Take SIGINT, SIGTERM and SIGHUP while the context lasts; under `nohup` the last one stays without effect."""
        numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
        if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
            numbers.remove(signal.SIGHUP)
        before = {number: signal.signal(number, self._handle) for number in numbers}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if not self.asked:
            self.asked, self._asked_at = True, time.monotonic()
            self.on_ask()
