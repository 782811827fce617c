"""What is of this process and its machine: time, chance, locks, memory, and how clog was installed.

Time and randomness are arguments: only this module asks the operating system what time it is, and
draws random numbers. `SystemClock` is real time, `ManualClock` moves when it is told to, so that
tests wait for a week of retention in no time. `SystemIds` draws from the operating system, so that
two processes forked from one never agree; `SeededIds` repeats itself, for tests and simulations.

Locks outlive a fork and an interrupt. In a forked child a thread that holds one in the parent is
not there to release it. So in a child each lock is made anew, before the child's own code runs.
What another thread was changing while the process forked may be half changed: its owner registers,
and forgets it.

An interrupt (Ctrl-C, a signal handler that raises) comes between two steps of Python code, in a
method written in Python, too. A lock that is entered and left by C code (`lock`) is held in its
``with`` block and nowhere else. ``threading.Condition`` and ``threading.Event`` are Python code:
one that was interrupted as it entered or left stays taken, and whoever comes next waits for ever.
They have no place in what lives on after an interrupt.

Who may share what is told by type: values, which are frozen, anybody; what is `Shared`, all threads
of a process; anything else is a worker, of the one that made it.

Who can write to a log chooses how much memory its files take, within the format's limits:
`enough_memory` makes an error of ours of it where it is too much.

Clog comes as a wheel or a checkout, and is in no index, so that its extras cannot be installed by
name: `install_extra` says what to install where something is missing.
"""

import os
import random
import re
import secrets
import threading
import time
import weakref
from typing import Protocol

from clog.storage.errors import InvalidInputError, OutOfMemoryError


class Clock(Protocol):
    """Where clog takes times from."""

    def now_ms(self) -> int:
        """Returns the wall clock: ms since 1970, UTC. May jump, also backwards."""
        ...

    def now_us(self) -> int:
        """Returns the wall clock: µs since 1970, UTC."""
        ...

    def monotonic_ms(self) -> int:
        """Returns the ms since some fixed moment; never goes back. For durations and deadlines."""
        ...

    def sleep_ms(self, ms: int) -> None:
        """Waits for ``ms`` milliseconds."""
        ...


class SystemClock:
    """The clock of this host."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def now_us(self) -> int:
        return time.time_ns() // 1_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def sleep_ms(self, ms: int) -> None:
        time.sleep(ms / 1000)


class ManualClock:
    """A clock that moves when `advance` or `sleep_ms` is called, and at no other time.

    >>> clock = ManualClock(now_ms=1_000)
    >>> clock.advance(500)
    >>> clock.now_ms(), clock.monotonic_ms()
    (1500, 500)
    """

    __slots__ = ("_elapsed_ms", "_start_ms")

    def __init__(self, now_ms: int = 0) -> None:
        self._start_ms = now_ms
        self._elapsed_ms = 0

    def advance(self, ms: int) -> None:
        """Moves the clock forward by ``ms`` milliseconds.

        Raises:
            InvalidInputError: ``ms`` is negative.
        """
        if ms < 0:
            raise InvalidInputError(f"the clock cannot go back by {-ms} ms; advance by 0 or more")
        self._elapsed_ms += ms

    def now_ms(self) -> int:
        return self._start_ms + self._elapsed_ms

    def now_us(self) -> int:
        return self.now_ms() * 1_000

    def monotonic_ms(self) -> int:
        return self._elapsed_ms

    def sleep_ms(self, ms: int) -> None:
        self.advance(ms)


_ID_HEX_DIGITS = 32
"""Length of an id: 128 random bits, in lower-case hex."""


class Ids(Protocol):
    """Where clog takes random numbers from."""

    def new_id(self) -> str:
        """Returns 32 unique hex digits: commit ids, names of objects."""
        ...

    def uniform(self) -> float:
        """Returns a number in [0, 1), for jitter."""
        ...

    def seed(self) -> int:
        """Returns a number in [0, 2**64), for hashes that nobody may predict."""
        ...


class SystemIds:
    """Ids from the operating system."""

    __slots__ = ()

    def new_id(self) -> str:
        return secrets.token_hex(_ID_HEX_DIGITS // 2)

    def uniform(self) -> float:
        return secrets.randbits(53) / (1 << 53)

    def seed(self) -> int:
        return secrets.randbits(64)


class SeededIds:
    """Ids that follow from a seed.

    >>> SeededIds(7).new_id() == SeededIds(7).new_id()
    True
    """

    __slots__ = ("_random",)

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - it is to be repeatable

    def new_id(self) -> str:
        return f"{self._random.getrandbits(4 * _ID_HEX_DIGITS):0{_ID_HEX_DIGITS}x}"

    def uniform(self) -> float:
        return self._random.random()

    def seed(self) -> int:
        return self._random.getrandbits(64)


class ForkAware(Protocol):
    """Whoever has something to forget in a forked child."""

    def after_fork(self) -> None:
        """Forgets it. No requests: the child has not begun yet."""
        ...


_owners: "weakref.WeakSet[ForkAware]" = weakref.WeakSet()
_locks: "weakref.WeakSet[threading.RLock]" = weakref.WeakSet()


def register(owner: ForkAware) -> None:
    """Calls the owner's `after_fork` in each child that is forked while it lives."""
    _owners.add(owner)


def lock() -> threading.RLock:
    """Returns a lock that nobody holds in a forked child; a thread may enter it again."""
    made = threading.RLock()
    _locks.add(made)
    return made


class Shared:
    """What threads may share. It has one lock: what its methods change they change under it, or in
    a single step; and what it holds is values, others that may be shared, or its own alone.
    """

    def __init__(self) -> None:
        self._lock = lock()


def _after_fork() -> None:
    for held in list(_locks):
        held._at_fork_reinit()  # type: ignore[attr-defined] # noqa: SLF001 - as CPython
    for owner in list(_owners):
        owner.after_fork()


os.register_at_fork(after_in_child=_after_fork)


class enough_memory:  # noqa: N801 - a context manager, as a class: it costs less
    """Makes an error of ours of what NumPy and Arrow raise where something takes more memory than
    there is. By default it is a file: who can write to a log chooses how much of it a reader needs,
    within the format's limits.
    """

    __slots__ = ("remedy", "where")

    def __init__(
        self,
        where: str,
        remedy: str = "read it where there is more, and no logs of people whom you do not trust",
    ) -> None:
        self.where = where
        self.remedy = remedy

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, e: BaseException | None, trace: object) -> None:
        if isinstance(e, MemoryError) and not isinstance(e, OutOfMemoryError):
            what = f"{self.where} takes more memory than there is; {self.remedy}"
            raise OutOfMemoryError(what) from e


_DISTRIBUTION = "pyspark-clog"
UPGRADE = "upgrade clog: install a newer wheel, or update the checkout"


def install_extra(extra: str) -> str:
    """Returns the command that installs what an extra of clog names."""
    # Here, where something is missing anyway: to import it takes a tenth of what clog does.
    from importlib.metadata import PackageNotFoundError, requires

    try:
        stated = requires(_DISTRIBUTION) or []
    except PackageNotFoundError:  # A zip of the sources, on a Spark cluster.
        stated = []
    marker = re.compile(rf"""\s*;\s*extra\s*==\s*["']{extra}["']""")
    named = [f'"{marker.sub("", one)}"' for one in stated if marker.search(one)]
    if not named:
        return f'install what the extra "{extra}" in pyproject.toml names'
    return f"run pip install {' '.join(named)}"
