"""Calls that each make requests of a store, begun before their results are asked for.

A request to an object store takes long, whatever it brings, so who reads many small things one
after the other waits for most of the time. `ahead` begins the next ones meanwhile:

- at most `CALLS_MAX` at a time, and the first few slowly: who stops early has asked for little in
  vain;
- as long as what they fetch, and nobody has taken yet, is at most `BYTES_MAX`; one call always,
  which is under way while the result before it is worked on;
- results come in the order of the calls, and so do their errors; a single call is made as it is.

Whether a begun call is under way at once is the store's to say (`Store.begin`): where requests are
short, on local disks and in memory, nothing is begun before it is asked for, and no thread is made.
A thread lives as long as its call: nothing is left for a forked child to miss, nor for a process to
wait for.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

from clog.storage.store.base import Store

CALLS_MAX = 16
BYTES_MAX = 32 << 20
_CALLS_FIRST = 4

_T = TypeVar("_T")


def ahead(store: Store, calls: Iterable[tuple[Callable[[], _T], int]]) -> Iterator[_T]:
    """Yields what the calls return, in their order. Each comes with the bytes that it fetches, as
    far as they are known.

    Raises:
        whatever a call raises, in its turn.
    """
    begun: deque[tuple[Callable[[], _T], int]] = deque()
    held = taken = 0
    waiting = iter(calls)
    following = next(waiting, None)

    def begin(call: Callable[[], _T], size_bytes: int, *, is_alone: bool) -> None:
        nonlocal following, held
        following = next(waiting, None)
        is_alone = is_alone and following is None and not begun
        begun.append((call if is_alone else store.begin(call), size_bytes))
        held += size_bytes

    while begun or following is not None:
        room = min(CALLS_MAX, _CALLS_FIRST * (taken + 1))
        while following is not None and len(begun) < room:
            if begun and held + following[1] > BYTES_MAX:
                break
            begin(*following, is_alone=True)
        result, size_bytes = begun.popleft()
        held -= size_bytes
        taken += 1
        found = result()
        if not begun and following is not None:
            begin(*following, is_alone=False)
        yield found


def begin_in_thread(call: Callable[[], _T]) -> Callable[[], _T]:
    """Begins a call in a thread of its own; what is returned waits for its result."""
    future: Future[_T] = Future()

    def run() -> None:
        try:
            found = call()
        except BaseException as e:  # noqa: BLE001 - it is for whoever asks for the result
            future.set_exception(e)
        else:
            future.set_result(found)

    Thread(target=run, name="clog-ahead", daemon=True).start()
    return future.result
