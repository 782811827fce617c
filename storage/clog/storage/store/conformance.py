"""The axioms of a store (`clog.storage.store.contract`) as checks that need no test runner.

Each takes an empty store and raises AssertionError if an axiom does not hold. The tests run them
under pytest, `clog verify URL --store` on any store::

    for check in CHECKS:
        check.run(open_store(f"{url}/{check.name}"), Effort())
"""

import multiprocessing
import pickle
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from clog.storage.env import dataclass
from clog.storage.errors import InvalidInputError
from clog.storage.store.contract import ObjectExistsError, Store, StoredObject, temporary_name

_T = TypeVar("_T")
_E = TypeVar("_E", bound=Exception)

THREADS = 16
PROCESSES = 8
RACE_TIMEOUT_S = 120
BIG_BYTES = 300_000
"""More than any buffer holds, so that data visible too early is noticed."""
RACE_BYTES = 20_000

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Effort:
    """The number of rounds in each race."""

    thread_rounds: int = 20
    process_rounds: int = 25


@dataclass(frozen=True, slots=True)
class Check:
    """One check: ``axiom`` is A1 to A5, or empty; ``fact`` is what holds if it passes.

    ``races_processes``: whether it needs a store that several processes share.
    """

    name: str
    axiom: str
    fact: str
    run: Callable[[Store, Effort], None]
    races_processes: bool = False


def absent_objects(store: Store, _: Effort) -> None:
    """Checks that any read of an absent object raises FileNotFoundError with the path."""
    for path in ("a", "a/b", "a/b/c.json"):
        for read in (
            partial(store.get, path),
            partial(store.get, path, 0, 10),
            partial(store.get_ranges, path, [(0, 1), (5 * _MIB, 6 * _MIB)]),
        ):
            error = _raised(FileNotFoundError, read)
            _same(error.filename, path)


def folders(store: Store, _: Effort) -> None:
    """Checks that a folder is not an object: ``a/b`` does not make ``a`` readable, or hide it."""
    store.put("a/b", b"1")
    _raised(FileNotFoundError, lambda: store.get("a"))
    _raised(FileNotFoundError, lambda: store.get("a/b/c"))


def ranges(store: Store, _: Effort) -> None:
    """Checks that ranges are half-open, and end with the object."""
    data = b"0123456789"
    store.put("object", data)
    for start, end in (
        *((None, None), (0, None), (3, None), (None, 3), (3, 5), (3, 1_000_000)),
        *((10, 20), (10, None), (50, 60), (5, 5), (7, 3)),
    ):
        _same(store.get("object", start, end), data[start:end])


def negative_ranges(store: Store, _: Effort) -> None:
    """Checks that ranges counted from the end are refused: not every filesystem has them."""
    store.put("object", b"0123456789")
    for start, end in ((-3, None), (0, -1), (None, -1)):
        _raised(InvalidInputError, partial(store.get, "object", start, end))


def several_ranges(store: Store, _: Effort) -> None:
    """Checks that ranges come in order: near, far, overlapping, empty, past the end."""
    data = bytes(range(256)) * (3 * _MIB // 256)
    store.put("big", data)
    wanted = [
        *((2 * _MIB + 7, 2 * _MIB + 19), (0, 10), (5, 15), (4, 4)),
        *((3 * _MIB - 3, 3 * _MIB + 10), (9 * _MIB, 9 * _MIB + 1)),
    ]
    _same(store.get_ranges("big", wanted), [data[start:end] for start, end in wanted])
    _same(store.get_ranges("big", []), [])


def empty_objects(store: Store, _: Effort) -> None:
    """Checks that an empty object is an object."""
    store.put("empty", b"")
    _same(store.get("empty"), b"")
    _same(store.get("empty", 0, 10), b"")
    _same([(o.path, o.size_bytes) for o in store.list("")], [("empty", 0)])


def puts(store: Store, _: Effort) -> None:
    """Checks that a put leaves no old bytes, even of a longer object, and accepts views."""
    store.put("object", b"first, and long")
    store.put("object", memoryview(b"second"))
    _same(store.get("object"), b"second")


def creates(store: Store, _: Effort) -> None:
    """Checks that a create writes once: the second is refused and changes nothing."""
    store.create("deep/down/object", b"first")
    _raised(ObjectExistsError, lambda: store.create("deep/down/object", b"second"))
    _same(store.get("deep/down/object"), b"first")


def creates_after_puts(store: Store, _: Effort) -> None:
    """Checks that a create after a put is refused."""
    store.put("object", b"put")
    _raised(ObjectExistsError, lambda: store.create("object", b"created"))
    _same(store.get("object"), b"put")


def absence(store: Store, _: Effort) -> None:
    """Checks that absence is not cached: another store writes an object missing in this one."""
    other = _travelled(store)
    _raised(FileNotFoundError, lambda: store.get("folder/late"))
    _same(list(store.list("folder/")), [])
    other.create("folder/late", b"1")
    _same(store.get("folder/late"), b"1")
    _same([o.path for o in store.list("folder/")], ["folder/late"])


def presence(store: Store, _: Effort) -> None:
    """Checks that presence is not cached: another store deletes an object and writes it again."""
    other = _travelled(store)
    store.create("object", b"first")
    other.delete("object")
    _raised(FileNotFoundError, lambda: store.get("object"))
    other.create("object", b"second and longer")
    _same(store.get("object"), b"second and longer")


def deletes(store: Store, _: Effort) -> None:
    """Checks that deleting is idempotent: absent objects and absent folders are fine."""
    store.put("a/object", b"1")
    store.delete("a/object")
    store.delete("a/object")
    store.delete("never/was/there")
    _raised(FileNotFoundError, lambda: store.get("a/object"))


def listings(store: Store, _: Effort) -> None:
    """Checks that a listing has all paths with a prefix, relative to the root, sizes and times."""
    paths = ["a/1", "a/2", "a/b/3", "ab/4", "c"]
    for path in paths:
        store.put(path, path.encode())
    for prefix in ("", "a", "a/", "a/b/", "a/2", "c", "nothing/"):
        found = sorted(store.list(prefix), key=lambda o: o.path)
        _same([o.path for o in found], [path for path in paths if path.startswith(prefix)])
        _same([o.size_bytes for o in found], [len(o.path) for o in found])
        assert all(o.modified_ms > 1_500_000_000_000 for o in found), found


def temporary_files(store: Store, _: Effort) -> None:
    """Checks that a listing omits temporary files, which have their own listing, for the sweep."""
    left = "a/" + temporary_name("object", "0123456789abcdef" * 2)
    store.put(left, b"left by a crash")
    for path in ("a/.hidden", "a/object"):
        store.put(path, b"1")
    _same(sorted(o.path for o in store.list("")), ["a/.hidden", "a/object"])
    assert {o.path for o in store.list_temporary("a/")} <= {left}
    _same(list(store.list_temporary("b/")), [])


def nothing_left(store: Store, _: Effort) -> None:
    """Writes leave nothing behind: neither puts nor creates, won or refused."""
    for i in range(3):
        store.put("a/put", b"%d" % i)
        try:
            store.create("a/created", b"%d" % i)
        except ObjectExistsError:
            assert i > 0, "the first create was refused"
    _same(list(store.list_temporary("")), [])


def paths_outside(store: Store, _: Effort) -> None:
    """Checks that every operation refuses a path out of the root, before any request."""
    for path in (
        *("", "/etc/passwd", "../x", "a/../../x", "a/..", ".", "./a", "a//b", "a/", "a\\b"),
        *("a\0b", "s3://bucket/x"),
    ):
        _raised(InvalidInputError, partial(store.get, path))
        _raised(InvalidInputError, partial(store.get_ranges, path, [(0, 1), (5 * _MIB, 6 * _MIB)]))
        _raised(InvalidInputError, partial(store.put, path, b"1"))
        _raised(InvalidInputError, partial(store.create, path, b"1"))
        _raised(InvalidInputError, partial(store.delete, path))
        if path not in ("", "a/"):
            _raised(InvalidInputError, partial(_list, store, path))


def travelling(store: Store, _: Effort) -> None:
    """Checks that a pickled store reads the same root, and has the same URL."""
    store.put("object", b"1")
    other = _travelled(store)
    _same(other.get("object"), b"1")
    _same(other.url, store.url)


def thread_races(store: Store, effort: Effort) -> None:
    """Checks that in every round one of 16 threads creates the object, with its own bytes."""
    barrier = threading.Barrier(THREADS)
    won = _together(
        [partial(_race, store, racer, effort.thread_rounds, barrier) for racer in range(THREADS)]
    )
    _check_winners(store, dict(enumerate(won)), effort.thread_rounds)


def process_races(store: Store, effort: Effort) -> None:
    """Checks that in every round one of 8 processes creates the object, with its own bytes."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(PROCESSES), context.Queue()
    racers = [
        context.Process(
            target=_race_in_process, args=(store, racer, effort.process_rounds, barrier, results)
        )
        for racer in range(PROCESSES)
    ]
    for process in racers:
        process.start()
    try:
        won = dict(results.get(timeout=RACE_TIMEOUT_S) for _ in racers)
    finally:
        for process in racers:
            process.terminate()
            process.join()
    _check_winners(store, won, effort.process_rounds)


def whole_objects(store: Store, effort: Effort) -> None:
    """Checks that readers of 300 kB being created and replaced see all of one write or none."""
    done, failed = threading.Event(), threading.Event()

    def write() -> int:
        try:
            for i in range(effort.thread_rounds):
                store.create(f"created/{i}", _payload(i, BIG_BYTES))
                store.put("replaced", _payload(i, BIG_BYTES))
        except BaseException:
            failed.set()  # Then there may be nothing to see.
            raise
        finally:
            done.set()
        return 0

    def read() -> int:
        seen = 0
        while not done.is_set() or (seen == 0 and not failed.is_set()):
            for i in range(effort.thread_rounds):
                for path in (f"created/{i}", "replaced"):
                    seen += _sees_a_whole(store, path)
        return seen

    assert min(_together([write, read, read])[1:]) > 0


def _check(run: Callable[[Store, Effort], None], axiom: str = "") -> Check:
    name = run.__name__.replace("_", "-")
    told = " ".join((run.__doc__ or "").replace("``", '"').split()).removeprefix("Checks that ")
    fact = told[:1].upper() + told[1:]
    return Check(name, axiom, fact, run, races_processes=run is process_races)


CHECKS = (
    *(_check(absent_objects), _check(folders), _check(ranges), _check(negative_ranges)),
    *(_check(several_ranges), _check(empty_objects), _check(puts), _check(travelling)),
    *(_check(creates, "A2"), _check(creates_after_puts, "A2")),
    *(_check(absence, "A3"), _check(presence, "A3"), _check(listings, "A4")),
    *(_check(deletes, "A5"), _check(temporary_files), _check(nothing_left)),
    *(_check(paths_outside), _check(whole_objects, "A1")),
    *(_check(thread_races, "A2"), _check(process_races, "A2")),
)
"""All checks; the races come last."""


def _raised(error: type[_E], call: Callable[[], object]) -> _E:
    """Returns the error of a call that must raise it."""
    try:
        answer = call()
    except error as e:
        return e
    raise AssertionError(f"{error.__name__} was expected, the answer was {answer!r:.200}")


def _same(found: object, expected: object) -> None:
    assert found == expected, f"{expected!r:.200} was expected, found {found!r:.200}"


def _list(store: Store, prefix: str) -> list[StoredObject]:
    return list(store.list(prefix))


def _travelled(store: Store) -> Store:
    other: Store = pickle.loads(pickle.dumps(store))  # noqa: S301 - our own
    return other


def _race(store: Store, racer: int, rounds: int, barrier: Any) -> set[int]:
    """Returns the rounds in which this racer won."""
    won = set()
    try:
        for i in range(rounds):
            path = f"race/{i}"
            barrier.wait(RACE_TIMEOUT_S)
            try:
                store.create(path, _payload(racer, RACE_BYTES))
                won.add(i)
            except ObjectExistsError:
                pass
            data = store.get(path)
            assert len(data) == RACE_BYTES, f"{path} was seen with {len(data)} bytes"
            assert data == _payload(data[0], RACE_BYTES), f"{path} has bytes of two writers"
    except BaseException:
        barrier.abort()  # the others must not wait for a failed one
        raise
    return won


def _race_in_process(store: Store, racer: int, rounds: int, barrier: Any, results: Any) -> None:
    try:
        results.put((racer, _race(store, racer, rounds, barrier)))
    except Exception as e:
        results.put((racer, f"{type(e).__name__}: {e}"))
        raise


def _check_winners(store: Store, won: dict[int, Any], rounds: int) -> None:
    failed = [outcome for outcome in won.values() if isinstance(outcome, str)]
    assert not failed, failed
    for i in range(rounds):
        winners = [racer for racer, those in won.items() if i in those]
        assert len(winners) == 1, f"round {i} had the winners {winners}"
        assert store.get(f"race/{i}") == _payload(winners[0], RACE_BYTES)


def _sees_a_whole(store: Store, path: str) -> bool:
    try:
        data = store.get(path)
    except FileNotFoundError:
        return False
    assert len(data) == BIG_BYTES, f"{path} was seen with {len(data)} bytes"
    assert data == _payload(data[0], BIG_BYTES), f"{path} was seen with bytes of two writes"
    return True


def _payload(number: int, size_bytes: int) -> bytes:
    return bytes([number]) * size_bytes


def _together(functions: Sequence[Callable[[], _T]]) -> list[_T]:
    """Runs each in its own thread; raises a cause rather than its consequences."""
    with ThreadPoolExecutor(len(functions)) as pool:
        futures = [pool.submit(function) for function in functions]
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda e: isinstance(e, threading.BrokenBarrierError)):
        raise error
    return [future.result() for future in futures]
