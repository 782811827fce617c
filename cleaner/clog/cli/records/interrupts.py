"""Ctrl-C as the end of an input: what waits is still done."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupts:
    """Whether Ctrl-C came.

    Attributes:
        fd: a descriptor in which there is something to read once it came.
        came: whether it did.
    """

    def __init__(self) -> None:
        self.fd, self._signalled = os.pipe()
        self.came = False

    def note(self, number: int, _frame: FrameType | None) -> None:
        """Notes it; the next one interrupts as ever."""
        self.came = True
        signal.signal(number, signal.default_int_handler)
        os.write(self._signalled, b"\0")

    def close(self) -> None:
        """Closes its descriptors."""
        os.close(self.fd)
        os.close(self._signalled)


@contextmanager
def noting_interrupts() -> Iterator[Interrupts]:
    """Notes Ctrl-C in the block, once, instead of raising."""
    interrupts = Interrupts()
    before = signal.signal(signal.SIGINT, interrupts.note)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)
        interrupts.close()
