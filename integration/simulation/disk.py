"""The disk of a simulated world, and what each process has: a way to it, and a clock."""

import builtins
import errno
from collections.abc import Iterator, Mapping, Sequence

from clog.storage.format import documents
from clog.storage.store import contract
from clog.storage.store.contract import ObjectExistsError, StoredObject, Within
from clog_testing.faults import FaultyStore


class Disk:
    """A store that keeps the axioms to the letter.

    Attributes:
        observer: hears of every change, at once.
        failed: called with what the observer raised; raises what nobody catches.
    """

    create_is_proven = True

    def __init__(self, clock, objects: Mapping[str, tuple[bytes, int]], number: int = 0) -> None:
        self._clock = clock
        self.url = f"simulated://log-{number}"
        self._objects = dict(objects)
        self.observer = None
        self.failed = None

    @property
    def objects(self) -> Mapping[str, tuple[bytes, int]]:
        """Bytes and time of writing in ms, by path."""
        return self._objects

    def __contains__(self, path: str) -> bool:
        return path in self._objects

    def get(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        try:
            data = self._objects[path][0]
        except KeyError:
            raise contract.not_found(path, self.url) from None
        return data[start:end]

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        return [self.get(path, start, end) for start, end in ranges]

    def begin(self, call):
        return call

    def put(self, path: str, data: bytes | memoryview) -> None:
        before = self._objects.get(path)
        self._objects[path] = (bytes(data), self._clock.now_ms())
        if before is None or before[0] != data:
            self._tell("written", path, is_new=before is None)

    def create(self, path: str, data: bytes) -> None:
        if path in self._objects:
            raise ObjectExistsError(errno.EEXIST, f"exists in {self.url}", path)
        self.put(path, data)

    def delete(self, path: str) -> None:
        if self._objects.pop(path, None) is not None:
            self._tell("deleted", path)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        for path, (data, modified_ms) in sorted(self._objects.items()):
            if path.startswith(prefix):
                yield StoredObject(path, len(data), modified_ms)

    def list_temporary(self, _prefix: str) -> Iterator[StoredObject]:
        return iter(())

    def forget_old(self, _prefix: str, _before_ms: int) -> bool:
        """It keeps no old versions."""
        return True

    def forget_strangers(self, names: Sequence[str], paths: Sequence[str]) -> None:
        """Strangers take files away: those of these names, out of whatever folder, and paths."""
        for path in list(self._objects):
            if folder_and_name(path)[1] in names or path in paths:
                del self._objects[path]

    def _tell(self, what: str, path: str, **more) -> None:
        if self.observer is not None:
            try:
                getattr(self.observer, what)(path, **more)
            except Exception as e:
                self.failed(e)


class Folder(Within):
    """The folder of the one log of a disk."""

    def __init__(self, disk: Disk, folder: str) -> None:
        super().__init__(disk, folder)
        self.folder = folder

    def __contains__(self, path: str) -> bool:
        return self._whole(path) in self.inner


def folder_and_name(path: str) -> tuple[str, str]:
    """Splits a path of the disk into the folder of a log and the path in it; no folder where it is
    in none.
    """
    folder, _, name = path.removeprefix(documents.FOLDERS).partition("/")
    return (documents.folder_of(folder), name) if documents.is_log_id(folder) else ("", path)


class Clock:
    """An actor's clock: the world's, and a little off. Sleeping lets the world's go on."""

    def __init__(self, world_clock, off_ms: int) -> None:
        self._clock, self._off_ms = world_clock, off_ms

    def now_ms(self) -> int:
        return self._clock.now_ms() + self._off_ms

    def now_us(self) -> int:
        return self.now_ms() * 1000

    def monotonic_ms(self) -> int:
        return self._clock.monotonic_ms()

    def sleep_ms(self, ms: int) -> None:
        self._clock.advance(ms)


class ActorStore(FaultyStore):
    """A process's way to the disk: before each call its plan lets others come first, and knows what
    is asked for or written, and when what was begun is done.
    """

    def begin(self, call):
        return self.plan.begin(call)

    def get(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        self.plan.ranges = "" if start is None and end is None else f" {start}:{end}"
        return super().get(path, start, end)

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        self.plan.ranges = "".join(f" {start}:{end}" for start, end in ranges)
        return super().get_ranges(path, ranges)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        return self.plan.listed(prefix, super().list(prefix))

    def put(self, path: str, data: bytes | memoryview) -> None:
        self.plan.data = data
        super().put(path, data)

    def create(self, path: str, data: bytes) -> None:
        self.plan.data = data
        super().create(path, data)
