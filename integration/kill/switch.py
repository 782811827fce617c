"""The child's side of a kill: a `KillPoint` from the environment, around every store it opens; and
of two other blows: an interrupt that it lives on after, and a clock that is set.

The code under test stays as it is: `arm` puts another `open_store` in the place of the real one,
wherever a module has it, and `follow_clock` another clock in the place of the host's.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import clog.storage.store as stores
from clog.storage import SystemClock
from clog_testing.killing import KillingStore, KillPoint, KillSwitch, kill_this_process

ENVIRONMENT, CLOCK = "CLOG_KILL", "CLOG_CLOCK"
_OPEN = stores.open_store
_armed: list[KillSwitch] = []


def environment_of(
    point: KillPoint, hits: Path, pids: Path | None = None, take: Sequence[int] = ()
) -> dict[str, str]:
    """What makes a child die at the point. ``hits``: where it says so just before; ``take``: which
    of the processes in the file ``pids`` go first.
    """
    settings = {"point": asdict(point), "hits": str(hits), "pids": str(pids), "take": list(take)}
    return {ENVIRONMENT: json.dumps(settings)}


def arm() -> None:
    """Wraps the stores that are opened from now on, and has the clock follow a file; nothing
    without the environment's say.
    """
    if CLOCK in os.environ:
        follow_clock(Path(os.environ[CLOCK]))
    if ENVIRONMENT not in os.environ or _armed:
        return
    settings = json.loads(os.environ[ENVIRONMENT])
    point = settings["point"]
    since = None if point["since"] is None else tuple(point["since"])
    switch = KillSwitch(KillPoint(**{**point, "since": since}), lambda: _die(settings))
    _armed.append(switch)

    def open_store(*args: Any, **kwargs: Any) -> stores.Store:
        return KillingStore(_OPEN(*args, **kwargs), switch)

    for module in [*sys.modules.values()]:
        if vars(module).get("open_store") is _OPEN:
            vars(module)["open_store"] = open_store


def follow_clock(path: Path) -> None:
    """Has this process's wall clock be off by as many ms as the file says at the time."""
    now_us = SystemClock.now_us

    def off_us(clock: SystemClock) -> int:
        off_ms = int(path.read_text() or 0) if path.exists() else 0
        return now_us(clock) + 1000 * off_ms

    SystemClock.now_us = off_us  # type: ignore[method-assign]
    SystemClock.now_ms = lambda clock: off_us(clock) // 1000  # type: ignore[method-assign]


_interrupted: list[bool] = []
"""Empty outside of `interruptible`, and once it was interrupted."""


def take_interrupts() -> None:
    """Has SIGINT do nothing, but inside of `interruptible`."""

    def interrupt(*_: Any) -> None:
        if _interrupted:
            _interrupted.clear()
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)


@contextmanager
def interruptible() -> Iterator[None]:
    """What is done here may end by a KeyboardInterrupt, anywhere."""
    _interrupted.append(True)
    try:
        yield
    finally:
        _interrupted.clear()


def reached(place: str) -> None:
    """Says that the process is at a place that is no call of the store."""
    for switch in _armed:
        switch.reached("place", place)


def _die(settings: Mapping[str, Any]) -> None:
    fd = os.open(settings["hits"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(fd, f"{os.getpid()}\n".encode())
    os.close(fd)
    if settings["take"]:
        pids = Path(settings["pids"]).read_text().split()
        for i in settings["take"]:
            with suppress(ProcessLookupError):
                os.kill(int(pids[i]), signal.SIGKILL)
    kill_this_process()
