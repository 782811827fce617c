"""`clog produce`: lines of standard input become records.

Lines are available as soon as their line feeds arrive, from a terminal, a pipe or a file, with a
limit on the wait. Ctrl-C and SIGTERM end the input: the first one is noted instead of raised.
"""

import io
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field
from types import FrameType
from typing import TYPE_CHECKING, Any, BinaryIO

from clog.cli.lines import LINE_FORMAT, parse_jsonl, parse_text
from clog.cli.options import (
    URL,
    Code,
    Given,
    choice,
    command,
    flag,
    integer,
    note_signal,
    option,
    typed_schema,
)
from clog.cli.output import count, counted, print_note, stderr
from clog.storage.env import dataclass

if TYPE_CHECKING:
    import pyarrow as pa

    from clog.cli.lines import Rows
    from clog.storage import Clock, Log
    from clog.storage.append import AppendResult

    _Parse = Callable[[list[bytes], int, pa.Schema | None], Rows]

BATCH_BYTES_MAX = 64 << 20
"""A batch is appended once it has this many bytes, however few records they are."""
_BLOCK_BYTES = 1 << 20
_PROMPTS: dict[str, str] = {
    "text": "type key, TAB, value; a key alone deletes it; Ctrl-D ends",
    "jsonl": 'type JSON lines such as {"key": "alice", "value": "1"}; Ctrl-D ends',
}
"""The prompts on a terminal."""


@dataclass(slots=True)
class Summary:
    """The records appended so far, and their ``offsets`` by partition, half-open."""

    records: int = 0
    commits: int = 0
    skipped: int = 0
    version: int | None = None
    offsets: dict[int, tuple[int, int]] = field(default_factory=dict)

    def add(self, rows: int, result: "AppendResult") -> None:
        """Counts one append; a duplicate was already in the log."""
        self.version = result.version
        if result.duplicate:
            self.skipped += rows
            return
        self.records += rows
        self.commits += 1
        for p, (base, end) in result.offsets.items():
            self.offsets[p] = (self.offsets.get(p, (base, 0))[0], end)

    def as_json(self) -> dict[str, Any]:
        """Returns the summary for programs."""
        return {
            "records": self.records,
            "commits": self.commits,
            "skipped": self.skipped,
            "version": self.version,
            "partitions": [
                {"partition": p, "start_offset": base, "end_offset": end}
                for p, (base, end) in sorted(self.offsets.items())
            ],
        }

    def __str__(self) -> str:
        text = f"appended {counted(self.records, 'record')} in {counted(self.commits, 'commit')}"
        if self.skipped:
            text += f", skipped {count(self.skipped)} already there"
        ranges = [f"{p} [{base}, {end})" for p, (base, end) in sorted(self.offsets.items())]
        return text + (f"; offsets by partition: {', '.join(ranges)}" if ranges else "")


@command
def produce(
    url: str = URL,
    *,
    line_format: str = option(
        LINE_FORMAT, "Format of the input lines.", choice("text", "jsonl"), default="text"
    ),
    null_marker: str | None = option("--null-marker TEXT", "Text that means a null key or value."),
    partition: int | None = option(
        "--partition -p N", "Append all records to this partition.", integer()
    ),
    ignore_partition: bool = flag(
        "--ignore-partition", "Place records by their keys, even if JSON lines give a partition."
    ),
    batch_size: int = option(
        "--batch-size N",
        "Records per commit; 0 puts all input into one.",
        integer(),
        default=10_000,
    ),
    linger: int = option(
        "--linger MS",
        "How long an incomplete batch waits for more records.",
        integer(),
        default=1000,
    ),
    producer_id: str | None = option(
        "--producer-id ID",
        "Let a restart with the same input continue where it stopped: each record is appended"
        " once.",
    ),
    quiet: bool = flag("--quiet -q", "Print neither progress nor a summary."),
    given: Given,
) -> Code | None:
    r"""Append the lines of standard input.

    Each batch of lines is one atomic commit. Text lines are key, TAB, value. A key and a TAB is an
    empty value; a key alone is a tombstone, which deletes the key. JSON lines have key and value
    (or key_b64 and value_b64; null means null), and may have headers, timestamp and partition.
    A typed log takes only JSON lines, with key and value as clog consume --json prints them.
    Empty lines are skipped. Ctrl-C and SIGTERM append the complete lines read so far, and report
    what was done.

    \b
    printf 'alice\t1\nbob\t\ncarol\n' | clog produce ./orders
    clog consume ./orders --json | clog produce ./copy --format jsonl
    clog produce ./orders --format jsonl --producer-id load-2026-01 < orders.jsonl
    """
    log = given.open(url)
    parse = _parser(line_format, null_marker, typed=typed_schema(log) is not None)
    run = _Run(log, parse, producer_id, partition, ignores_rows=ignore_partition)
    with noting_interrupts() as interrupts:
        reader = LineReader(sys.stdin.buffer, interrupts.fd)
        if sys.stdin.isatty() and not quiet:
            stderr().print(_PROMPTS[line_format], style="dim", soft_wrap=True)
        _append_all(run, reader, log.handle.clock, batch_size, linger, quiet=quiet)
    if line_format == "text" and not quiet and run.tombstones == run.done.records > 0:
        print_note(
            "no line has a TAB and a value, so each record is a tombstone, which deletes its key"
        )
    if given.json or not quiet:
        message = f"interrupted: {run.done}" if interrupts.came else str(run.done)
        given.emit({"url": log.url, "interrupted": interrupts.came} | run.done.as_json(), message)
    return Code.INTERRUPTED if interrupts.came else None


def _append_all(
    run: "_Run", reader: "LineReader", clock: "Clock", batch_size: int, linger: int, *, quiet: bool
) -> None:
    """Appends all lines of the input; on an error, prints what was done before it."""
    try:
        for lines in batches(reader.read, batch_size=batch_size, linger_ms=linger, clock=clock):
            run.append(lines)
            _progress(run.done, quiet=quiet)
        _progress(None, quiet=quiet)
    except (Exception, KeyboardInterrupt):
        if run.done.commits:
            print_note(f"before the error: {run.done}")
        raise


def batches(
    read: Callable[[int | None], list[bytes] | None],
    *,
    batch_size: int,
    linger_ms: int,
    clock: "Clock",
) -> Iterator[list[bytes]]:
    """Yields lines in batches: full ones directly, others ``linger_ms`` after their first line."""
    pending: list[bytes] = []
    pending_bytes, due_ms = 0, 0
    waits = batch_size == 0
    while True:
        timeout_ms = max(0, due_ms - clock.monotonic_ms())
        lines = read(None if waits or not pending else timeout_ms)
        if lines is None:
            break
        for line in filter(None, lines):
            if not pending:
                due_ms = clock.monotonic_ms() + linger_ms
            pending.append(line)
            pending_bytes += len(line)
            if not waits and (len(pending) == batch_size or pending_bytes >= BATCH_BYTES_MAX):
                yield pending
                pending, pending_bytes = [], 0
        if pending and not waits and clock.monotonic_ms() >= due_ms:
            yield pending
            pending, pending_bytes = [], 0
    if pending:
        yield pending


class _Run:
    """One run: which records of the input are appended, to which partitions, and the result."""

    def __init__(
        self,
        log: "Log",
        parse: "_Parse",
        producer_id: str | None,
        partition: int | None,
        *,
        ignores_rows: bool,
    ) -> None:
        self.done = Summary()
        self._log = log
        self._parse = parse
        self._partition = partition
        self._ignores_rows = ignores_rows
        self._producer_id = producer_id
        self._read = 0
        self.tombstones = 0
        # A producer's sequence number counts the records of its input, so that a restart may use
        # other batches.
        entry = None if producer_id is None else log.handle.find_writer("producer", producer_id)
        self._skip = 0 if entry is None else entry.sequence

    def append(self, lines: list[bytes]) -> None:
        """Appends the lines that the producer has not appended before."""
        first, self._read = self._read, self._read + len(lines)
        fresh = lines[max(0, self._skip - first) :]
        self.done.skipped += len(lines) - len(fresh)
        if not fresh:
            return
        rows, records = self._records(fresh, self._read - len(fresh) + 1)
        producer = None if self._producer_id is None else (self._producer_id, self._read)
        result = self._log.append(records, partition=self._place(rows), producer=producer)
        self.done.add(len(rows), result)
        self.tombstones += records["value"].null_count

    def _records(self, lines: list[bytes], first: int) -> "tuple[Rows, pa.Table]":
        """Returns the records of lines; refuses one only by the newest schema."""
        from clog.storage.errors import InvalidInputError

        schema = typed_schema(self._log)
        try:
            return self._made(lines, first, schema)
        except InvalidInputError:
            self._log.handle.refresh()
            newest = typed_schema(self._log)
            if newest == schema:
                raise
            return self._made(lines, first, newest)

    def _made(
        self, lines: list[bytes], first: int, schema: "pa.Schema | None"
    ) -> "tuple[Rows, pa.Table]":
        rows = self._parse(lines, first, schema)
        return rows, rows.to_arrow() if schema is None else rows.to_typed(schema, first=first)

    def _place(self, rows: "Rows") -> Any:
        """Returns ``partition`` for `Log.append`: one for all, those that rows name, or None."""
        from clog.storage.errors import InvalidInputError

        named = sum(p is not None for p in rows.partitions)
        if self._partition is not None or self._ignores_rows or not named:
            return self._partition
        if named < len(rows):
            raise InvalidInputError(
                f"{named} of {len(rows)} records of a batch have a partition; give it in all of"
                " them or in none, or place all by their keys with --ignore-partition"
            )
        return rows.partitions


def _parser(line_format: str, null_marker: str | None, *, typed: bool) -> "_Parse":
    if line_format == "jsonl":
        return lambda lines, first, schema: parse_jsonl(lines, first=first, schema=schema)
    if typed:
        from clog.storage.errors import InvalidInputError

        raise InvalidInputError(
            "text lines contain bytes, but this log is typed: use --format jsonl"
        )
    marker = None if null_marker is None else null_marker.encode()
    return lambda lines, _, __: parse_text(lines, null_marker=marker)


def _progress(done: Summary | None, *, quiet: bool) -> None:
    """Prints one line on a terminal, which each commit overwrites and None clears."""
    if quiet or not sys.stderr.isatty():
        return
    if done is None:
        sys.stderr.write("\r\x1b[K")
    else:
        sys.stderr.write(
            f"\r{counted(done.records, 'record')} in {counted(done.commits, 'commit')} "
        )
        sys.stderr.flush()


class LineReader:
    """Reads a stream in blocks, so that a line is available as soon as its line feed is.

    ``stop`` is a descriptor: once it is readable, the stream has ended, before a line without a
    line feed.
    """

    def __init__(self, stream: BinaryIO, stop: int | None = None) -> None:
        self._stream = stream
        self._stops = [] if stop is None else [stop]
        self._tail = b""
        self._ended = False
        try:
            self._fd: int | None = stream.fileno()
        except (OSError, io.UnsupportedOperation):
            self._fd = None

    def read(self, timeout_ms: int | None) -> list[bytes] | None:
        """Returns the lines that were read; None at the end, empty if none arrived in time."""
        if self._ended:
            return None
        if self._fd is None:
            block = self._stream.read(_BLOCK_BYTES)
        else:
            wait_s = None if timeout_ms is None else timeout_ms / 1000
            ready = select.select([self._fd, *self._stops], [], [], wait_s)[0]
            if not ready:
                return []
            if ready != [self._fd]:
                self._ended = True
                return None
            block = os.read(self._fd, _BLOCK_BYTES)
        if not block:
            self._ended = True
            # Ctrl-C ends the whole pipeline: the last line may be incomplete.
            is_stopped = self._stops and select.select(self._stops, [], [], 0)[0]
            return [self._tail] if self._tail and not is_stopped else None
        *lines, self._tail = (self._tail + block).split(b"\n")
        return lines


class Interrupts:
    """Whether a signal ``came``, after which the descriptor ``fd`` is readable."""

    def __init__(self) -> None:
        self.fd, self.signalled = os.pipe()
        self.came = False
        self.before: dict[int, Any] = {}

    def note(self, number: int, _frame: FrameType | None) -> None:
        """Notes a signal; the next one interrupts as usual."""
        self.came = True
        note_signal(number)
        signal.signal(number, self.before[number])
        os.write(self.signalled, b"\0")


@contextmanager
def noting_interrupts() -> Iterator[Interrupts]:
    """Notes the first Ctrl-C or SIGTERM in the block, instead of raising."""
    interrupts = Interrupts()
    for number in map(int, (signal.SIGINT, signal.SIGTERM)):
        interrupts.before[number] = signal.signal(number, interrupts.note)
    try:
        yield interrupts
    finally:
        for number, handler in interrupts.before.items():
            signal.signal(number, handler)
        os.close(interrupts.fd)
        os.close(interrupts.signalled)
