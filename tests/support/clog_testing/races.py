"""Several processes append to one log at once: the test of a filesystem's exclusive create.

`append_in_processes` starts writers, which append in turn as fast as they can, each with its own
handle. `check_races` asserts what must hold then: every record once, dense offsets, and in each
partition every writer's records in its order. The log is of bytes, or has the schema `TYPED`.
"""

import multiprocessing
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from threading import BrokenBarrierError
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from clog.storage.errors import ClogError
from clog.storage.log import Log
from clog_testing.model import rows_in

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

TYPED = pa.schema(
    [
        ("key", pa.struct([("writer", pa.int32()), ("n", pa.int64())])),
        ("value", pa.struct([("writer", pa.int32()), ("number", pa.int64())])),
    ]
)
RECORDS = 3
"""Records of each append, spread over the partitions by key."""
_DONE_S = 3_600


class RaceError(AssertionError):
    """A writer failed, or the log does not hold what was appended."""


def append_in_processes(
    url: str,
    storage_options: Mapping[str, object] | None = None,
    *,
    processes: int = 8,
    commits: int = 40,
) -> None:
    """Lets so many processes append to a log that exists, each so many times.

    Raises:
        RaceError: a writer did not get through.
    """
    context = multiprocessing.get_context("forkserver")
    # One process imports what all need; pandas since Arrow does, where there is one.
    context.set_forkserver_preload([__name__, "pandas"])
    gate = context.Barrier(processes)
    failures = context.Queue()
    tasks = [_Task(url, dict(storage_options or {}), i, commits) for i in range(processes)]
    writers = [context.Process(target=_write, args=(task, gate, failures)) for task in tasks]
    for writer in writers:
        writer.start()
    told = [failures.get(timeout=_DONE_S) for _ in writers]
    for writer in writers:
        writer.join()
    errors = [message for message in told if message]
    if errors:
        raise RaceError(f"{len(errors)} of {processes} writers failed: {errors}")


def check_races(log: Log, *, processes: int = 8, commits: int = 40) -> None:
    """Checks a log that holds what `append_in_processes` appended, and nothing else.

    Raises:
        RaceError: it does not.
    """
    rows = rows_in(log.read())
    seen: dict[tuple[int, int], list[int]] = {}
    written = [_written(record.value) for _, _, record in rows]
    for (p, _, _), (writer, number) in zip(rows, written, strict=True):
        seen.setdefault((p, writer), []).append(number)
    expected = [(w, n) for w in range(processes) for n in range(commits * RECORDS)]
    _require(sorted(written) == expected, "records are missing, or there twice")
    ends = log.end_offsets()
    for p, end in ends.items():
        offsets = [offset for q, offset, _ in rows if q == p]
        _require(offsets == list(range(end)), f"offsets of partition {p} have gaps")
    for (p, writer), numbers in seen.items():
        _require(numbers == sorted(numbers), f"writer {writer} is out of order in {p}")
    # Appends that meet share a commit.
    _require(commits <= log.version <= processes * commits, f"{log.version} commits were made")


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise RaceError(message)


@dataclass(frozen=True, slots=True)
class _Task:
    """What one writer does."""

    url: str
    storage_options: dict[str, object]
    writer: int
    commits: int


def _record(writer: int, n: int, *, is_typed: bool) -> dict[str, object]:
    if is_typed:
        key = {"writer": writer, "n": n % 7}
        return {"key": key, "value": {"writer": writer, "number": n}}
    return {"key": f"key-{writer}-{n % 7}", "value": f"{writer}:{n}"}


def _written(value: Any) -> tuple[int, int]:
    """Returns the writer and the number in a value of `_record`."""
    if isinstance(value, dict):
        return value["writer"], value["number"]
    writer, number = value.split(b":")
    return int(writer), int(number)


def _write(task: _Task, gate: Barrier, failures: "Queue[str]") -> None:
    try:
        log = Log.open(task.url, task.storage_options)
        gate.wait()
        for commit in range(task.commits):
            numbers = range(commit * RECORDS, (commit + 1) * RECORDS)
            log.append(
                [_record(task.writer, n, is_typed=log.schema == TYPED) for n in numbers],
                producer=(f"writer-{task.writer}", commit),
            )
    except (ClogError, OSError, BrokenBarrierError) as e:
        gate.abort()
        failures.put(f"writer {task.writer}: {type(e).__name__}: {e}")
    else:
        failures.put("")
