"""Locks and a forked child: a thread that holds one in the parent is not there to release it.

So in a child each lock is made anew, before the child's own code runs. What another thread was
changing while the process forked may be half changed: its owner registers, too, and forgets it.

Not here: connections to a store, which fsspec's classes refuse in a child, or make anew.
"""

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol


class ForkAware(Protocol):
    """Whoever has something to forget in a forked child."""

    def after_fork(self) -> None:
        """Forgets it. No requests: the child has not begun yet."""
        ...


_owners: "weakref.WeakSet[ForkAware]" = weakref.WeakSet()


def register(owner: ForkAware) -> None:
    """Calls the owner's `after_fork` in each child that is forked while it lives."""
    _owners.add(owner)


class Lock:
    """A lock that nobody holds in a forked child. By default a thread may enter it again."""

    __slots__ = ("__weakref__", "_lock", "_made")

    def __init__(self, made: Callable[[], Any] = threading.RLock) -> None:
        self._made = made
        self._lock = made()
        register(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def after_fork(self) -> None:
        """Makes the lock anew."""
        self._lock = self._made()


def _after_fork() -> None:
    for owner in list(_owners):
        owner.after_fork()


os.register_at_fork(after_in_child=_after_fork)
