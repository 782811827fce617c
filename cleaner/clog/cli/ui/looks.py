"""Looks at several logs at once: a store that does not answer keeps nobody waiting for the others.

A look that takes longer than `PATIENCE_S` goes on in its thread, and is not begun again; meanwhile
it is said for how long. The threads are those of a server that has others, and end with the
process.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clog.storage.clock import Clock

PATIENCE_S = 2.0
THREADS = 16

Line = dict[str, Any]


@dataclass(slots=True)
class _Look:
    began_ms: int
    ended: threading.Event = field(default_factory=threading.Event)
    line: Line | None = None
    error: Exception | None = None


class Looks:
    """Looks at things by name.

    Args:
        look: how; what it raises is raised to who asks.
        clock: for how long a look takes.
        patience_s: how long is waited for looks that have begun just now.
    """

    def __init__(
        self, look: Callable[[str], Line], clock: "Clock", patience_s: float = PATIENCE_S
    ) -> None:
        self._look = look
        self._clock = clock
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._under_way: dict[str, _Look] = {}
        self._asked: queue.SimpleQueue[tuple[str, _Look]] = queue.SimpleQueue()
        self._threads = 0

    def lines(self, names: Sequence[str]) -> list[Line | None]:
        """Returns what looks find, in the order of the names; None where there is no answer yet."""
        deadline_ms = self._clock.monotonic_ms() + int(self._patience_s * 1000)
        looks = [self._begun(name) for name in names]
        found: list[Line | None] = []
        for name, (look, is_new) in zip(names, looks, strict=True):
            left_ms = deadline_ms - self._clock.monotonic_ms() if is_new else 0
            if not look.ended.wait(max(0, left_ms) / 1000):
                found.append(None)
                continue
            with self._lock:
                self._under_way.pop(name, None)
            if look.error is not None:
                raise look.error
            found.append(look.line)
        return found

    def waiting_ms(self, name: str) -> int:
        """Returns for how long there has been no answer; 0 where nobody waits, or not for long."""
        look = self._under_way.get(name)
        if look is None or look.ended.is_set():
            return 0
        waited_ms = self._clock.monotonic_ms() - look.began_ms
        return waited_ms if waited_ms > self._patience_s * 1000 else 0

    def _begun(self, name: str) -> tuple[_Look, bool]:
        """Returns the look that is under way, or a new one, and which of the two."""
        with self._lock:
            if (look := self._under_way.get(name)) is not None:
                return look, False
            look = self._under_way[name] = _Look(self._clock.monotonic_ms())
            if self._threads < min(THREADS, len(self._under_way)):
                self._threads += 1
                threading.Thread(target=self._work, daemon=True).start()
        self._asked.put((name, look))
        return look, True

    def _work(self) -> None:
        while True:
            name, look = self._asked.get()
            try:
                look.line = self._look(name)
            except Exception as e:  # noqa: BLE001 - raised to who asks
                look.error = e
            look.ended.set()
