"""The child's side of a kill: a `KillPoint` from the environment, around every store it opens.

The code under test stays as it is: `arm` puts another `open_store` in the place of the real one.
"""

import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import clog.storage.store as stores
from clog_testing.killing import KillingStore, KillPoint, KillSwitch, kill_this_process

ENVIRONMENT = "CLOG_KILL"
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
    """Wraps the stores that are opened from now on; nothing without the environment's say."""
    if ENVIRONMENT not in os.environ or _armed:
        return
    settings = json.loads(os.environ[ENVIRONMENT])
    point = settings["point"]
    since = None if point["since"] is None else tuple(point["since"])
    switch = KillSwitch(KillPoint(**{**point, "since": since}), lambda: _die(settings))
    _armed.append(switch)

    def open_store(*args: Any, **kwargs: Any) -> stores.Store:
        return KillingStore(_OPEN(*args, **kwargs), switch)

    stores.open_store = open_store
    if (log := sys.modules.get("clog.storage.log")) is not None:
        log.open_store = open_store


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
