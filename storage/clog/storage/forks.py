"""Locks that outlive a fork and an interrupt.

In a forked child a thread that holds one in the parent is not there to release it. So in a child
each lock is made anew, before the child's own code runs. What another thread was changing while the
process forked may be half changed: its owner registers, and forgets it.

An interrupt (Ctrl-C, a signal handler that raises) comes between two steps of Python code, in a
method written in Python, too. A lock that is entered and left by C code (`lock`) is held in its
``with`` block and nowhere else. ``threading.Condition`` and ``threading.Event`` are Python code:
one that was interrupted as it entered or left stays taken, and whoever comes next waits for ever.
They have no place in what lives on after an interrupt.

Not here: connections to a store, which fsspec's classes refuse in a child, or make anew.
"""

import os
import threading
import weakref
from typing import Protocol


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


def _after_fork() -> None:
    for held in list(_locks):
        held._at_fork_reinit()  # type: ignore[attr-defined] # noqa: SLF001 - as CPython
    for owner in list(_owners):
        owner.after_fork()


os.register_at_fork(after_in_child=_after_fork)
