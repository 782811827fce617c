"""The axioms of a store (`clog.storage.store.base`) as pytest tests, for any filesystem.

Subclass in a test module, give a fixture ``store``, and run it where it counts: on the
filesystem, the mount options, the server and the version that you have::

    class TestOurServer(StoreConformance):
        @pytest.fixture
        def store(self):
            return open_store("s3://bucket/conformance-1", {"endpoint_url": "https://…"})

The root must be empty at the start of each test. Set ``processes = False`` for a store that lives
in one process, and ``secrets`` to what must appear in no message.
"""

import multiprocessing
import pickle
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ClassVar, TypeVar

import pytest

from clog.storage.errors import InvalidInputError
from clog.storage.store.base import ObjectExistsError, Store

_T = TypeVar("_T")

THREADS = 16
PROCESSES = 8
RACE_TIMEOUT_S = 120
BIG_BYTES = 300_000
"""More than one buffer of anything: what is visible too early shows."""
RACE_BYTES = 20_000

_MIB = 1 << 20


class StoreConformance:
    """Subclass it and give the fixture ``store``."""

    processes: ClassVar[bool] = True
    thread_rounds: ClassVar[int] = 20
    process_rounds: ClassVar[int] = 25
    secrets: ClassVar[Sequence[str]] = ()

    @pytest.fixture
    def store(self) -> Store:
        """The store under test, empty."""
        raise NotImplementedError("give a fixture named store")

    # Reading

    @pytest.mark.parametrize("path", ["a", "a/b", "a/b/c.json"])
    def test_an_absent_object_is_file_not_found(self, store: Store, path: str) -> None:
        """Whole, by range and by ranges; the error names the path."""
        for read in (
            lambda: store.get(path),
            lambda: store.get(path, 0, 10),
            lambda: store.get_ranges(path, [(0, 1), (5 * _MIB, 6 * _MIB)]),
        ):
            with pytest.raises(FileNotFoundError) as raised:
                read()
            assert raised.value.filename == path

    def test_a_folder_is_no_object(self, store: Store) -> None:
        """``a/b`` does not make ``a`` readable, and ``a/b`` hides nothing below it."""
        store.put("a/b", b"1")
        with pytest.raises(FileNotFoundError):
            store.get("a")
        with pytest.raises(FileNotFoundError):
            store.get("a/b/c")

    @pytest.mark.parametrize(
        ("start", "end", "expected"),
        [
            (None, None, b"0123456789"),
            (0, None, b"0123456789"),
            (3, None, b"3456789"),
            (None, 3, b"012"),
            (3, 5, b"34"),
            (3, 1_000_000, b"3456789"),
            (10, 20, b""),
            (10, None, b""),
            (50, 60, b""),
            (5, 5, b""),
            (7, 3, b""),
        ],
    )
    def test_ranges_are_half_open_and_may_pass_the_end(
        self, store: Store, start: int | None, end: int | None, expected: bytes
    ) -> None:
        """``[start, end)``, cut at the end of the object."""
        store.put("object", b"0123456789")
        assert store.get("object", start, end) == expected

    @pytest.mark.parametrize(("start", "end"), [(-3, None), (0, -1), (None, -1)])
    def test_counting_from_the_end_is_refused(
        self, store: Store, start: int | None, end: int | None
    ) -> None:
        """Not every filesystem can."""
        store.put("object", b"0123456789")
        with pytest.raises(InvalidInputError):
            store.get("object", start, end)

    def test_several_ranges_come_back_in_their_order(self, store: Store) -> None:
        """Near and far, overlapping, empty and past the end."""
        data = bytes(range(256)) * (3 * _MIB // 256)
        store.put("big", data)
        ranges = [
            (2 * _MIB + 7, 2 * _MIB + 19),
            (0, 10),
            (5, 15),
            (4, 4),
            (3 * _MIB - 3, 3 * _MIB + 10),
            (9 * _MIB, 9 * _MIB + 1),
        ]
        assert store.get_ranges("big", ranges) == [data[start:end] for start, end in ranges]
        assert store.get_ranges("big", []) == []

    def test_an_empty_object_is_an_object(self, store: Store) -> None:
        """It is there, and has no bytes."""
        store.put("empty", b"")
        assert store.get("empty") == b""
        assert store.get("empty", 0, 10) == b""
        assert [(o.path, o.size_bytes) for o in store.list("")] == [("empty", 0)]

    # Writing

    def test_a_put_replaces(self, store: Store) -> None:
        """The last one stays, also when it is shorter; views are written as bytes are."""
        store.put("object", b"first, and long")
        store.put("object", memoryview(b"second"))
        assert store.get("object") == b"second"

    def test_a_create_writes_once(self, store: Store) -> None:
        """The second is refused and changes nothing (A2)."""
        store.create("deep/down/object", b"first")
        with pytest.raises(ObjectExistsError):
            store.create("deep/down/object", b"second")
        assert store.get("deep/down/object") == b"first"

    def test_a_create_after_a_put_is_refused(self, store: Store) -> None:
        """Whoever wrote it."""
        store.put("object", b"put")
        with pytest.raises(ObjectExistsError):
            store.create("object", b"created")
        assert store.get("object") == b"put"

    def test_absence_is_not_remembered(self, store: Store) -> None:
        """Another store of the same root writes what this one missed before (A3)."""
        other: Store = pickle.loads(pickle.dumps(store))  # noqa: S301 - our own
        with pytest.raises(FileNotFoundError):
            store.get("folder/late")
        assert list(store.list("folder/")) == []
        other.create("folder/late", b"1")
        assert store.get("folder/late") == b"1"
        assert [o.path for o in store.list("folder/")] == ["folder/late"]

    def test_presence_is_not_remembered(self, store: Store) -> None:
        """Another store of the same root deletes and writes anew (A3)."""
        other: Store = pickle.loads(pickle.dumps(store))  # noqa: S301 - our own
        store.create("object", b"first")
        other.delete("object")
        with pytest.raises(FileNotFoundError):
            store.get("object")
        other.create("object", b"second and longer")
        assert store.get("object") == b"second and longer"

    def test_deleting_is_idempotent(self, store: Store) -> None:
        """Absent objects and absent folders are fine (A5)."""
        store.put("a/object", b"1")
        store.delete("a/object")
        store.delete("a/object")
        store.delete("never/was/there")
        with pytest.raises(FileNotFoundError):
            store.get("a/object")

    # Listing

    @pytest.mark.parametrize(
        ("prefix", "expected"),
        [
            ("", ["a/1", "a/2", "a/b/3", "ab/4", "c"]),
            ("a", ["a/1", "a/2", "a/b/3", "ab/4"]),
            ("a/", ["a/1", "a/2", "a/b/3"]),
            ("a/b/", ["a/b/3"]),
            ("a/2", ["a/2"]),
            ("c", ["c"]),
            ("nothing/", []),
        ],
    )
    def test_a_listing_has_what_begins_with_the_prefix(
        self, store: Store, prefix: str, expected: Sequence[str]
    ) -> None:
        """Paths relative to the root, with sizes and times (A4)."""
        for path in ("a/1", "a/2", "a/b/3", "ab/4", "c"):
            store.put(path, path.encode())
        found = list(store.list(prefix))
        assert sorted(o.path for o in found) == expected
        assert all(o.size_bytes == len(o.path) for o in found)
        assert all(o.modified_ms > 1_500_000_000_000 for o in found)

    def test_a_listing_shows_no_temporary_files(self, store: Store) -> None:
        """They begin with a dot, and have a listing of their own for the sweep."""
        store.put("a/.object.0123.tmp", b"left by a crash")
        store.put("a/object", b"1")
        assert [o.path for o in store.list("")] == ["a/object"]
        assert {o.path for o in store.list_temporary()} <= {"a/.object.0123.tmp"}

    def test_writes_leave_nothing_behind(self, store: Store) -> None:
        """Neither puts nor creates, won or refused."""
        for i in range(3):
            store.put("a/put", b"%d" % i)
            try:
                store.create("a/created", b"%d" % i)
            except ObjectExistsError:
                assert i > 0
        assert list(store.list_temporary()) == []

    # Safety

    @pytest.mark.parametrize(
        "path",
        ["", "/etc/passwd", "../x", "a/../../x", "a/..", ".", "./a", "a//b", "a/", "a\\b", "a\0b",
         "s3://bucket/x"],
    )  # fmt: skip
    def test_a_path_out_of_the_root_is_refused(self, store: Store, path: str) -> None:
        """By every operation, before any request."""
        operations: list[Callable[[], object]] = [
            lambda: store.get(path),
            lambda: store.get_ranges(path, [(0, 1), (5 * _MIB, 6 * _MIB)]),
            lambda: store.put(path, b"1"),
            lambda: store.create(path, b"1"),
            lambda: store.delete(path),
        ]
        for operation in operations:
            with pytest.raises(InvalidInputError):
                operation()
        if path not in ("", "a/"):
            with pytest.raises(InvalidInputError):
                list(store.list(path))

    def test_it_travels(self, store: Store) -> None:
        """A pickled store reads and writes the same root, and bears the same URL."""
        store.put("object", b"1")
        other: Store = pickle.loads(pickle.dumps(store))  # noqa: S301 - our own
        assert other.get("object") == b"1"
        assert other.url == store.url

    def test_secrets_are_not_shown(self, store: Store) -> None:
        """Neither by its texts nor by its errors."""
        with pytest.raises(FileNotFoundError) as raised:
            store.get("absent")
        texts = [repr(store), str(store), store.url, str(raised.value), repr(raised.value)]
        assert not [text for text in texts for secret in self.secrets if secret in text]

    # Races

    def test_one_of_many_threads_creates(self, store: Store) -> None:
        """16 threads, round by round: one wins, and its bytes are there (A1, A2, A3)."""
        barrier = threading.Barrier(THREADS)
        won = _together(
            [partial(_race, store, racer, self.thread_rounds, barrier) for racer in range(THREADS)]
        )
        _check_winners(store, dict(enumerate(won)), self.thread_rounds)

    def test_one_of_many_processes_creates(self, store: Store) -> None:
        """8 processes, round by round: one wins, and its bytes are there (A1, A2, A3)."""
        if not self.processes:
            pytest.skip("this store lives in one process")
        context = multiprocessing.get_context("spawn")
        barrier, results = context.Barrier(PROCESSES), context.Queue()
        racers = [
            context.Process(
                target=_race_in_process, args=(store, racer, self.process_rounds, barrier, results)
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
        _check_winners(store, won, self.process_rounds)

    def test_readers_see_whole_objects_only(self, store: Store) -> None:
        """While 300 kB are created and replaced, a reader sees nothing, or all of one (A1)."""
        done = threading.Event()

        def write() -> int:
            try:
                for i in range(self.thread_rounds):
                    store.create(f"created/{i}", _payload(i, BIG_BYTES))
                    store.put("replaced", _payload(i, BIG_BYTES))
            finally:
                done.set()
            return 0

        def read() -> int:
            seen = 0
            while not done.is_set() or seen == 0:
                for i in range(self.thread_rounds):
                    for path in (f"created/{i}", "replaced"):
                        seen += _sees_a_whole(store, path)
            return seen

        assert min(_together([write, read, read])[1:]) > 0


def _race(store: Store, racer: int, rounds: int, barrier: Any) -> set[int]:
    """The rounds in which this racer won."""
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
        barrier.abort()  # nobody waits for who has failed
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
    """Runs each in a thread of its own; raises a cause rather than its consequences."""
    with ThreadPoolExecutor(len(functions)) as pool:
        futures = [pool.submit(function) for function in functions]
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda e: isinstance(e, threading.BrokenBarrierError)):
        raise error
    return [future.result() for future in futures]
