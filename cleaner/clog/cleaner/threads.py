"""The threads of a cleaner, and what those without a pass of their own do for the others.

Where fewer partitions are dirty than there are threads, a pass lets the others work ahead: hash the
keys of the next objects, judge and decode the next chunk while it encodes one, write the next
group. It takes the results in order, so what is committed, and when, is the same.

- Passes come first: nothing is begun ahead while one waits for a thread.
- What was done ahead and nobody has taken yet holds at most `AHEAD_BYTES` for each thread but the
  first, all passes together.
- Who would wait for another thread takes up what comes next meanwhile.
- With one thread nothing is begun ahead: each call is made when its result is asked for.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Generic, TypeVar

from clog.storage.store.ahead import begin_in_thread

AHEAD_BYTES = 128 << 20
WORTH_BYTES = 1 << 20
"""What moves less is not worth a thread."""

_T = TypeVar("_T")
Call = tuple[Callable[[], _T], int]
"""What is to be done, and the bytes that it holds until its result is taken."""


class CleanerThreads:
    """So many threads, and the memory of their maps.

    Args:
        count: how many.
        map_bytes: of the map of one pass.
    """

    def __init__(self, count: int, map_bytes: int) -> None:
        self.count = count
        self.map_bytes = map_bytes
        self._condition = threading.Condition()
        self._free = count
        self._passes_waiting = 0
        self._bytes_left = (count - 1) * AHEAD_BYTES

    @contextmanager
    def of_a_pass(self) -> Iterator[None]:
        """Takes a thread for a pass; waits until one that works ahead for another is done."""
        with self._condition:
            self._passes_waiting += 1
            self._condition.wait_for(lambda: self._free)
            self._passes_waiting -= 1
            self._free -= 1
        try:
            yield
        finally:
            self._end()

    @contextmanager
    def in_turn(
        self, calls: Iterable[Call[_T]], *, settled: Callable[[_T], _T] = lambda result: result
    ) -> Iterator[Iterator[Callable[[], _T]]]:
        """Gives an iterator that yields, for each call, what returns its result, or raises its
        error; to be called before the next one is asked for.

        ``settled`` makes of a result what holds when it is taken later, such as a list of an
        iterator. At the end what is still under way is waited for, and dropped.
        """
        turns = deque[_Turn[_T]]()
        try:
            yield self._results(turns, iter(calls), settled)
        finally:
            for turn in turns:
                turn.drop()

    def together(self, calls: Sequence[Call[_T]]) -> Iterator[_T]:
        """Yields what the calls return, in their order; free threads make some of them."""
        with self.in_turn(calls) as turns:
            for turn in turns:
                yield turn()

    def _results(
        self,
        turns: "deque[_Turn[_T]]",
        coming: Iterator[Call[_T]],
        settled: Callable[[_T], _T],
    ) -> Iterator[Callable[[], _T]]:
        while True:
            room = self.count - len(turns)
            turns.extend(_Turn(self, *call, settled) for call in islice(coming, room))
            if not turns:
                return
            for turn in [*turns][1:]:
                turn.begin()
            first = turns.popleft()
            yield partial(first.result, turns)

    def begin(self, call: Callable[[], _T], size_bytes: int) -> Callable[[], _T] | None:
        """Begins a call in a thread that is free; None where none is, or it is not worth it, or
        too much was begun.
        """
        with self._condition:
            can = self._free > 0 and not self._passes_waiting and size_bytes >= WORTH_BYTES
            if not can or not self._took(size_bytes):
                return None
            self._free -= 1

        def run() -> _T:
            try:
                return call()
            finally:
                self._end()

        try:
            return begin_in_thread(run)
        except RuntimeError:  # The system gives no more of them.
            self.gave(size_bytes)
            self._end()
            return None

    def took(self, size_bytes: int) -> bool:
        """Takes room for what is done ahead, if there is as much."""
        with self._condition:
            return self._took(size_bytes)

    def gave(self, size_bytes: int) -> None:
        """Gives it back."""
        with self._condition:
            self._bytes_left += size_bytes

    def _took(self, size_bytes: int) -> bool:
        if size_bytes > self._bytes_left:
            return False
        self._bytes_left -= size_bytes
        return True

    def _end(self) -> None:
        with self._condition:
            self._free += 1
            self._condition.notify()


ALONE = CleanerThreads(1, 0)
"""For who has no other threads: everything is done in turn."""


class _Turn(Generic[_T]):
    """A call that waits for its turn, is under way, or done."""

    def __init__(
        self,
        threads: CleanerThreads,
        call: Callable[[], _T],
        size_bytes: int,
        settled: Callable[[_T], _T],
    ) -> None:
        self._threads = threads
        self._call = call
        self._size_bytes = size_bytes
        self._settled = settled
        self._begun: Callable[[], _T] | None = None
        self._is_done = threading.Event()

    def begin(self) -> None:
        """Has it done by another thread, if one is free."""
        if self._begun is None:
            self._begun = self._threads.begin(self._done, self._size_bytes)

    def result(self, others: Iterable["_Turn[_T]"]) -> _T:
        """Returns the result, in its turn; while it is under way elsewhere others are done."""
        if self._begun is None:
            return self._call()
        for other in others:
            if self._is_done.is_set():
                break
            other.do()
        try:
            return self._begun()
        finally:
            self._threads.gave(self._size_bytes)

    def do(self) -> None:
        """Does it here and now, before its turn, if nobody does and there is room for its
        result.
        """
        if self._begun is not None or not self._threads.took(self._size_bytes):
            return
        future = Future[_T]()
        self._begun = future.result
        try:
            future.set_result(self._done())
        except Exception as e:  # noqa: BLE001 - it is raised in its turn
            future.set_exception(e)

    def drop(self) -> None:
        """Waits for what is under way."""
        if self._begun is not None:
            self._is_done.wait()
            self._threads.gave(self._size_bytes)

    def _done(self) -> _T:
        try:
            return self._settled(self._call())
        finally:
            self._is_done.set()
