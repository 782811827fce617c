"""Cleaners beside each other, one for each store, so that a silent one stops no other.

What the logs of one store wait for takes no thread, no turn and no time of another's: each store
has a cleaner of its own (`cleaner`), with its search for logs (`broker_config`), in a thread of its
own. They share the threads for passes, the memory, the limit and the monitor; passes take turns,
and the turns of a store that is silent are lent. With a single store all is done in the caller's
thread.

The threads are daemons: a process ends although a store is silent.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager
from contextvars import copy_context
from functools import partial
from typing import Generic, TypeVar

from clog.cleaner.cleaner import Cleaner
from clog.cleaner.selection import PassResult
from clog.cleaner.threads import NAP_MS

_T = TypeVar("_T")

SILENT_MS = 30_000
"""A store of which nothing has come for so long counts as silent."""
LENT_MS = 10_000
"""For so long its passes keep their turns."""


class _Begun(Generic[_T]):
    """A call in a daemon thread of its own."""

    def __init__(self, call: Callable[[], _T], name: str) -> None:
        self._future: Future[_T] = Future()
        context = copy_context()
        self._call: Callable[[], _T] = lambda: context.run(call)
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        try:
            self._future.set_result(self._call())
        except BaseException as e:  # noqa: BLE001 - raised to the caller that waits
            self._future.set_exception(e)

    def is_over(self, wait_s: float = 0.0) -> bool:
        """Returns whether the call has ended, at the latest after that time."""
        return bool(wait([self._future], wait_s).done)

    def has_failed(self) -> bool:
        """Returns whether it has ended with an error."""
        return self._future.done() and self._future.exception() is not None

    def result(self) -> _T:
        """Waits for the result, or raises the error."""
        return self._future.result()


class ByStore:
    """Cleaners by the name of their store. They are beside each other.

    Attributes:
        monitor: of all of them.
        backoff_ms: of each of them.
    """

    def __init__(self, cleaners: Mapping[str, Cleaner]) -> None:
        self._cleaners = dict(cleaners)
        first = next(iter(self._cleaners.values()))
        self.monitor = first.monitor
        self.backoff_ms = first.backoff_ms

    @property
    def moved_ms(self) -> int:
        """When one of them last moved a byte or began or ended a round."""
        return max(cleaner.moved_ms for cleaner in self._cleaners.values())

    def silences(self) -> Mapping[str, int]:
        """Returns the stores that have been silent for `SILENT_MS` or longer, and for how long."""
        found = {store: cleaner.silent_ms for store, cleaner in self._cleaners.items()}
        return {store: ms for store, ms in found.items() if ms >= SILENT_MS}

    def asking(self, store: str) -> AbstractContextManager[None]:
        """Notes that the block may wait for a store."""
        return self._cleaners[store].asking()

    def run(
        self,
        begin: Callable[[str], None] = lambda _: None,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        """Does rounds until `stop` is called; if one of the cleaners fails, the others stop.

        Args:
            begin: called with each store before its first round, and may wait for it.
            ready: called in this thread once a signal handler may call `stop`.
        """
        if len(self._cleaners) > 1:
            ready()

        def run(store: str, cleaner: Cleaner) -> None:
            begin(store)
            if len(self._cleaners) == 1:
                ready()
            cleaner.run()

        self._each(run, may_fail=False)

    def run_once(self, begin: Callable[[str], None] = lambda _: None) -> list[PassResult]:
        """Does one round over all logs; raises, at the end, the error of the first that failed."""

        def run_once(store: str, cleaner: Cleaner) -> list[PassResult]:
            begin(store)
            return cleaner.run_once()

        return [one for results in self._each(run_once, may_fail=True) for one in results]

    def stop(self) -> None:
        """Makes `run` return before the next request; safe from a signal handler."""
        for cleaner in self._cleaners.values():
            cleaner.stop()

    def _each(self, do: Callable[[str, Cleaner], _T], *, may_fail: bool) -> Sequence[_T]:
        """Does it with each, and lends the turns of those whose store is silent."""
        if len(self._cleaners) == 1:
            return [do(store, cleaner) for store, cleaner in self._cleaners.items()]
        begun = [_Begun(partial(do, *pair), pair[0]) for pair in self._cleaners.items()]
        try:
            while waiting := [one for one in begun if not one.is_over()]:
                waiting[0].is_over(NAP_MS / 1000)
                for cleaner in self._cleaners.values():
                    cleaner.lend(is_lent=cleaner.silent_ms >= LENT_MS)
                if not may_fail and any(one.has_failed() for one in begun):
                    self.stop()
        except BaseException:
            self.stop()  # They end by themselves; an interrupt must not wait for a silent store.
            raise
        return [one.result() for one in begun]
