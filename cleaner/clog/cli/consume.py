"""`clog consume`: records as lines or as a file for other programs, from a position on, for a named
reader, or of the table, also the latest values of some keys.
"""

import base64
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeAlias

import click

from clog.cli.lines import (
    check_base64,
    format_jsonl,
    format_text,
    headers_json,
    keys_given,
    texts_of,
)
from clog.cli.options import (
    PARTITION,
    URL,
    Code,
    Given,
    choice,
    command,
    duration_given,
    flag,
    integer,
    option,
    parse_time_ms,
    quoted,
    record_count,
    typed_schema,
    usage_errors,
)
from clog.cli.output import (
    counted,
    counting,
    note_left_out,
    print_error,
    print_note,
    size,
    write_lines,
)
from clog.storage.types.rows import RECORD_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

    from clog.storage import Log, NamedReader, Table
    from clog.storage.commit.handle import Handle
    from clog.storage.format.manifest import Manifest

    _ToLines = Callable[[pa.RecordBatch, "_Form"], Iterator[bytes]]


_NAMED_MAX = 5
"""At most this many keys without a value are named."""
_UNINDEXED_MAX = 100
"""If a command reads all keys of more objects than this, for lack of indexes, it prints a note."""
_WHERE = (
    "earliest, latest, an offset, or @TIME (epoch ms or ISO 8601): the first record at or after"
    " that time."
)


def _reader_name(text: str) -> str:
    from clog.storage.readers import check_name

    with usage_errors():
        return check_name(text)


def _where(text: str) -> str:
    """Returns a position as it was given; raises if its form is wrong."""
    if text.startswith("@"):
        parse_time_ms(text[1:])
    elif text.isdecimal():
        integer()(text)
    elif text not in ("earliest", "latest"):
        raise click.BadParameter(
            f"--from {quoted(text)} is not a position; give earliest, latest, an offset, or @TIME"
        )
    return text


_COLUMNS = ("partition", "offset", "timestamp", "headers", "key", "value")


def _fields(text: str) -> Sequence[str]:
    """Returns the columns of text lines."""
    named = text.split(",")
    for name in named:
        if name not in _COLUMNS:
            raise click.BadParameter(f"{quoted(name)} is unknown; allowed: {', '.join(_COLUMNS)}")
    return named


_START = option(
    "--from WHERE",
    f"{_WHERE} With --reader, only for a new reader.",
    _where,
    shown="earliest",
)
_KEY = option(
    "--key -k KEY",
    "Print only records with this key; may be repeated. With --table, a look-up: the exit code"
    " is 1 if a key has no value.",
)
_READER = option(
    "--reader NAME",
    "Continue where the reader of this name stopped, and record its progress in the log; a"
    " new reader begins at --from.",
    _reader_name,
)
_HOLD = option(
    "--hold TIME",
    "How long after each report the cleaner waits for the reader, so that it misses no"
    " delete; at most the log's reader.hold.max.ms.",
    duration_given,
)
_FIELDS = option(
    "--print FIELDS",
    "What text lines have: partition, offset, timestamp, headers, key and value, in any order.",
    _fields,
    default="key,value",
)


@command
def consume(  # noqa: PLR0913 - one for each option
    url: str = URL,
    *,
    start: str | None = _START,
    partition: int | None = PARTITION,
    maximum: int | None = option("--max -n N", "Stop after this many records.", integer()),
    follow: bool = flag("--follow -f", "At the end, wait for more records until Ctrl-C."),
    poll: int = option(
        "--poll MS",
        "How often --follow polls; each poll is one small request.",
        integer(1),
        default=1000,
    ),
    table: bool = flag("--table", "Only the latest value of each key, without deleted keys."),
    at: int | None = option("--at VERSION", "The table as of this version.", integer()),
    key: list[str] | None = _KEY,
    reader: str | None = _READER,
    hold: int | None = _HOLD,
    line_format: str | None = option(
        "--format text|jsonl|csv|parquet",
        "Format of the output. Default: by the extension of --to, else text.",
        choice("text", "jsonl", "csv", "parquet"),
    ),
    fields: Sequence[str] = _FIELDS,
    null_marker: str | None = option("--null-marker TEXT", "Text to print for null."),
    is_base64: bool = flag(
        "--base64", "Keys given are base64, and keys and values in CSV are written so."
    ),
    strings: bool = flag("--strings", "Keys and values in Parquet are text, not binary."),
    out: str | None = option(
        "--to FILE", "Write to this file, which appears once it is complete.", shown="the output"
    ),
    overwrite: bool = flag("--overwrite", "Replace an existing file."),
    given: Given,
) -> Code | None:
    r"""Print records as lines, or write them to a file.

    Records are printed partition by partition, in offset order. Text lines are key, TAB, value; a
    tombstone is the key alone. JSON lines (--json is short for --format jsonl) have everything,
    and clog produce --format jsonl reads them back without loss. CSV and Parquet have the columns
    partition, offset, timestamp, key, value and headers.

    \b
    clog consume ./orders --table
    clog consume ./orders --table --key alice   # a look-up
    clog consume ./orders --from latest --follow
    clog consume ./orders --reader billing   # what is new since the last time
    clog consume ./orders --key alice --print offset,value   # its history
    clog consume ./orders --from @2026-01-31T12:00:00Z --json
    clog consume ./orders --table --to orders.parquet --strings
    """
    from clog.storage.readers import holding_reader

    check_table(start or "earliest", at, table=table)
    if hold is not None and reader is None:
        raise click.BadParameter("--hold needs --reader")
    if reader is not None and (table or key):
        raise click.BadParameter("--reader reads all records; omit --table and --key")
    if strings and is_base64 and not key:
        raise click.BadParameter("--strings and --base64 contradict each other; leave one out")
    file = None if out in (None, "-") else out
    chosen = line_format or _format_of(file, json=given.json)
    form = _Form(file, chosen, fields, null_marker, strings=strings, is_base64=is_base64)
    if form.is_whole and (follow or reader is not None):
        raise click.BadParameter("a file is complete once: omit --follow and --reader")
    if file is not None:
        _check_file(file, overwrite=overwrite)
    check_base64(key or (), is_base64=is_base64)
    log = given.open(url)
    asked = _Asked(log, partition, start, key or [], at, table=table, is_base64=is_base64)
    named = holding_reader(log.handle, reader, hold or 0) if reader else None
    with named or nullcontext():
        batches = limited(asked.batches(poll if follow else None, named), maximum)
        if not form.is_whole:
            code = _print(batches, form, named)
            return code or (None if follow else asked.missed())
        _export(log, batches, asked.total(), form, given)
    return asked.missed()


def _print(
    batches: "Iterator[pa.RecordBatch]",
    form: "_Form",
    reader: "NamedReader | None",
) -> Code | None:
    from clog.storage.read.following import offsets_after

    try:
        for batch in batches:
            write_lines(b"".join(_LINES[form.name](batch, form)))
            if reader is not None:
                reader.commit(offsets_after(batch))
    except KeyboardInterrupt:
        return Code.INTERRUPTED  # The way to end --follow.
    return None


def check_table(start: str, at: int | None, *, table: bool) -> None:
    """Raises if options of the log and of its table are mixed."""
    if at is not None and not table:
        raise click.BadParameter("--at needs --table")
    if table and start != "earliest":
        raise click.BadParameter("--table always starts at the earliest offset; omit --from")


def limited(batches: "Iterator[pa.RecordBatch]", maximum: int | None) -> "Iterator[pa.RecordBatch]":
    """Yields batches up to ``maximum`` records; requests no more once it has them."""
    if maximum is None:
        yield from batches
        return
    left = maximum
    while left > 0 and (batch := next(batches, None)) is not None:
        yield batch.slice(0, left)
        left -= batch.num_rows


def positions(log: "Log", partition: int | None, where: str) -> dict[int, int]:
    """Returns the offset to start from in each partition."""
    from clog.storage.read.scan import partitions_named

    _where(where)
    wanted = partitions_named(log.handle.tip.head, partition, url=log.url)
    if where.isdecimal():
        return dict.fromkeys(wanted, int(where))
    ends = log.stable_offsets()
    if where == "earliest":
        starts = log.start_offsets()
        return {p: starts[p] for p in wanted}
    if where == "latest":
        return {p: ends[p] for p in wanted}
    found = log.offsets_for_times(dict.fromkeys(wanted, parse_time_ms(where[1:])))
    # No record is that late, but the next one may be (S39).
    return {p: ends[p] if (offset := found[p]) is None else offset for p in wanted}


class _Asked:
    """The records that are asked for: of the log from a position on, or of its table; of all keys,
    or of those given, which a look-up in the table finds, or has ``missed``.
    """

    def __init__(
        self,
        log: "Log",
        partition: int | None,
        where: str | None,
        keys: list[str],
        at: int | None,
        *,
        table: bool,
        is_base64: bool,
    ) -> None:
        self._log = log
        self._partition = partition
        self._where = where
        self._at = at
        self._texts = keys
        schema = typed_schema(log)
        self._keys = keys_given(keys, is_base64=is_base64, schema=schema) if keys else None
        self._view = log.table(partition=partition, at=at) if table else None
        self._missing: list[str] = []

    def batches(
        self, poll_ms: int | None, reader: "NamedReader | None"
    ) -> "Iterator[pa.RecordBatch]":
        """Returns the records; at the end stops, or polls every ``poll_ms``."""
        if self._view is not None:
            return self._of_table(self._view, poll_ms)
        starts = positions(self._log, self._partition, self._where or "earliest")
        if reader is not None:
            starts = _starts_of(self._log, reader, self._where, starts)
        return _read_on(self._log, starts, poll_ms, self._keys, reader)

    def _of_table(self, view: "Table", poll_ms: int | None) -> "Iterator[pa.RecordBatch]":
        if self._keys is None:
            yield from view.to_batches(columns=RECORD_COLUMNS)
        else:
            yield from self._looked_up(view, self._keys).to_batches()
        if poll_ms is not None:
            yield from _read_on(self._log, view.offsets, poll_ms, self._keys)

    def _looked_up(self, view: "Table", keys: list[Any]) -> "pa.Table":
        from clog.storage.read.lookup import asked_keys

        schema = self._log.handle.tip.head.log.schema
        wanted = dict(zip(asked_keys(keys, schema), self._texts, strict=True))
        rows, missing = _latest(view.of_keys(keys), list(wanted))
        self._missing = [wanted[key] for key in missing]
        return rows

    def total(self) -> int | None:
        """Returns the number of records if it is known; notes which are left out."""
        if self._at is None:
            note_left_out(self._log)
        return None if self._view or self._keys else record_count(self._log)

    def missed(self) -> Code | None:
        """Reports keys of a look-up that have no value."""
        if self._view is None or self._keys is None:
            return None
        _note_unindexed(self._log)
        if not self._missing:
            return None
        when = "" if self._at is None else f" at version {self._at}"
        print_error(f"no value in {self._log.url}{when} for {_named(self._missing)}")
        return Code.FAILED


def _starts_of(
    log: "Log", reader: "NamedReader", where: str | None, starts: dict[int, int]
) -> dict[int, int]:
    """Returns where a reader continues in these partitions; a new one begins at ``starts``."""
    from clog.storage.errors import NotFoundError
    from clog.storage.read.scan import check_start

    forget = f"clog alter {log.url} --forget {reader.name}"
    if not reader.position:
        for p, offset in starts.items():
            check_start(log.handle.tip.head, p, offset, url=log.url)
        reader.commit(starts)
        return starts
    if where is not None:
        print_note(
            f"reader {reader.name} continues where it stopped: --from {where} is only for a new"
            f" reader; to start over, run {forget}"
        )
    try:
        return {p: offset for p, offset in reader.next_offsets().items() if p in starts}
    except NotFoundError as e:
        raise NotFoundError(
            f"reader {reader.name} cannot continue where it stopped, at {reader.position}: {e};"
            f" to start over, run {forget}, and use --from"
        ) from e


def _read_on(
    log: "Log",
    offsets: Mapping[int, int],
    poll_ms: int | None,
    keys: list[Any] | None,
    reader: "NamedReader | None" = None,
) -> "Iterator[pa.RecordBatch]":
    """Yields records from the offsets on; at the end stops, or polls every ``poll_ms``."""
    from clog.storage.read.following import Followed, Following, reading_of

    read = reading_of(log.handle.tip.head.log.schema, None)
    if keys is not None:
        read = partial(_read_keys, keys)
    source = Followed(log.handle, offsets, read, reader)
    return iter(Following([source], lambda _, batch: batch, poll_ms=poll_ms))


def _read_keys(
    keys: list[Any], handle: "Handle", manifest: "Manifest", ranges: Any
) -> "Iterator[pa.RecordBatch]":
    from clog.storage.read.lookup import records_of_keys

    return records_of_keys(handle.store, manifest, ranges, keys)


def _note_unindexed(log: "Log") -> None:
    """Notes that the keys of many objects had to be read."""
    chunks = (c for all_of in log.handle.manifest().segments for s in all_of for c in s.chunks)
    unindexed = len({c.object.path for c in chunks if not c.object.index_bytes})
    if unindexed > _UNINDEXED_MAX:
        print_note(
            f"the keys of {unindexed} objects without key indexes were read, as small appends"
            f' leave them: "clog clean {log.url} --roll" merges them into few objects with key'
            " indexes"
        )


def _named(keys: list[str]) -> str:
    """Returns keys as they were given, or the first of many.

    >>> _named(["a"]), _named(list("abcdefg"))
    ("the key 'a'", "7 keys: 'a', 'b', 'c', 'd', 'e' and 2 more")
    """
    shown = [repr(key) for key in keys]
    if len(keys) == 1:
        return f"the key {shown[0]}"
    more = len(keys) - _NAMED_MAX
    rest = f" and {more} more" if more > 0 else ""
    return f"{len(keys)} keys: {', '.join(shown[:_NAMED_MAX])}{rest}"


def _latest(rows: "pa.Table", wanted: list[bytes]) -> "tuple[pa.Table, list[bytes]]":
    """Returns the latest row of each key that exists, in the given order, and the other keys."""
    import pyarrow as pa

    from clog.storage.keys.hashing import key_bytes

    ordered = rows.sort_by("timestamp")
    found = (key for chunk in ordered.column("key").chunks for key in key_bytes(chunk).to_pylist())
    at = {key: i for i, key in enumerate(found)}
    there = pa.array([at[key] for key in wanted if key in at], pa.int64())
    return ordered.take(there), [key for key in wanted if key not in at]


_Write = Callable[["pa.RecordBatch"], None]
_Rows: TypeAlias = "pa.RecordBatch | pa.Table"
_BY_ENDING = {".parquet": "parquet", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}


class _Form(NamedTuple):
    """What is written and where: ``out`` is None for standard output; bytes are text in Parquet if
    ``strings``, base64 in CSV; the rest is for text lines.
    """

    out: str | None
    name: str
    fields: Sequence[str]
    null_marker: str | None
    strings: bool
    is_base64: bool

    @property
    def is_whole(self) -> bool:
        """Whether it is of no use before its end."""
        return self.out is not None or self.name not in _LINES


def _export(
    log: "Log",
    batches: "Iterator[pa.RecordBatch]",
    total: int | None,
    form: _Form,
    given: Given,
) -> None:
    """Writes a file, or to standard output."""
    from clog.storage.read.scan import read_schema

    schema, records = read_schema(log.handle.tip.head.log.schema), 0
    with (
        counting("exporting", total) as more,
        _file(form.out) as stream,
        _WRITERS[form.name](stream, schema, form) as write,
    ):
        for batch in batches:
            write(batch)
            records += batch.num_rows
            more(batch.num_rows)
    exported = f"exported {counted(records, 'record')}"
    if form.out is None:
        print_note(exported)
        return
    stored = Path(form.out).stat().st_size
    given.emit(
        {"url": log.url, "file": form.out, "records": records, "size_bytes": stored},
        f"{exported} to {form.out}, {size(stored)}",
    )


def _format_of(out: str | None, *, json: bool) -> str:
    """Returns the format that is implied by the file, or by ``--json``."""
    if out is None:
        return "jsonl" if json else "text"
    found = _BY_ENDING.get(Path(out).suffix.lower())
    if found is None:
        raise click.BadParameter(f"the extension of {out!r} does not imply a format; give --format")
    return found


def _check_file(out: str, *, overwrite: bool) -> None:
    """Raises if the file cannot be created."""
    from clog.storage.store.opening import absolute

    path = Path(out)
    with usage_errors():
        folder = Path(absolute(out)).parent
    if not folder.is_dir():
        raise click.BadParameter(f"the folder of {out!r} does not exist; create it first")
    if path.exists() and not path.is_file():
        raise click.BadParameter(f"{out!r} is not a file; give one, or - for standard output")
    if path.exists() and not overwrite:
        raise click.BadParameter(f"{out} already exists; --overwrite replaces it")


@contextmanager
def _file(out: str | None) -> Iterator[IO[bytes]]:
    """Yields standard output, or a file that gets its name once it is complete."""
    if out is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()  # Records counted as exported must be written.
        return
    unfinished = Path(f"{out}.part")
    try:
        with unfinished.open("wb") as stream:
            yield stream
        unfinished.replace(out)
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def _parquet(stream: IO[bytes], schema: "pa.Schema", form: _Form) -> Iterator[_Write]:
    from pyarrow import parquet

    from clog.storage.types.columns import lone_floats, lone_leaves

    written = _as_text(schema.empty_table()).schema if form.strings else schema
    leaves = {path for field in written for path in lone_leaves(field)}
    # Arrow's bounds of floats leave out NaN, and readers take them for bounds of all.
    bounded = sorted(leaves.difference(lone_floats(written)))
    with parquet.ParquetWriter(
        stream, written, compression="zstd", write_statistics=bounded
    ) as writer:
        yield lambda batch: writer.write(_as_text(batch) if form.strings else batch)


@contextmanager
def _csv(stream: IO[bytes], schema: "pa.Schema", form: _Form) -> Iterator[_Write]:
    from pyarrow import csv

    def rows(batch: _Rows) -> _Rows:
        return _flat(_as_base64(batch) if form.is_base64 else _as_text(batch))

    with csv.CSVWriter(stream, rows(schema.empty_table()).schema) as writer:
        yield lambda batch: writer.write(rows(batch))


def _json_lines(batch: "pa.RecordBatch", _: _Form) -> Iterator[bytes]:
    return format_jsonl(batch)


def _text_lines(batch: "pa.RecordBatch", form: _Form) -> Iterator[bytes]:
    marker = None if form.null_marker is None else form.null_marker.encode()
    return format_text(batch, form.fields, null_marker=marker)


_LINES = {"text": _text_lines, "jsonl": _json_lines}


@contextmanager
def _lined(stream: IO[bytes], _: "pa.Schema", form: _Form) -> Iterator[_Write]:
    yield lambda batch: stream.writelines(_LINES[form.name](batch, form))


_WRITERS = {"parquet": _parquet, "csv": _csv, **dict.fromkeys(_LINES, _lined)}


def _as_text(rows: _Rows) -> _Rows:
    """Returns the rows with keys and values as text; if one is not text, says where."""
    import pyarrow as pa

    from clog.storage.errors import InvalidInputError

    for name in _bytes_columns(rows):
        try:
            text = rows.column(name).cast(pa.string())
        except pa.ArrowInvalid:
            offsets, p = rows.column("offset"), rows.column("partition")[0]
            raise InvalidInputError(
                f"a {name} among offsets {offsets[0]} to {offsets[-1]} of partition {p} is not"
                " UTF-8; export to Parquet without --strings, to CSV with --base64, or to JSON"
                " lines"
            ) from None
        rows = _with(rows, name, text)
    return rows


def _as_base64(rows: _Rows) -> _Rows:
    import pyarrow as pa

    for name in _bytes_columns(rows):
        texts = [
            None if value is None else base64.b64encode(value).decode()
            for value in rows.column(name).to_pylist()
        ]
        column = pa.array(texts, pa.string())
        rows = _with(rows, name, column)
    return rows


def _bytes_columns(rows: _Rows) -> list[str]:
    """Returns which of key and value are bytes: in a typed log they may have other types."""
    import pyarrow as pa

    return [name for name in ("key", "value") if pa.types.is_binary(rows.column(name).type)]


def _flat(rows: _Rows) -> _Rows:
    """Returns the rows with nested data, which CSV cannot hold, as JSON in the form of `lines`."""
    import pyarrow as pa

    texts = [
        json.dumps(headers_json(some), ensure_ascii=False) if some else None
        for some in rows.column("headers").to_pylist()
    ]
    flat = {"headers": pa.array(texts, pa.string())}
    for name in ("key", "value"):
        column = rows.column(name)
        if pa.types.is_nested(column.type):
            flat[name] = pa.array(texts_of(column), pa.binary()).cast(pa.string())
    for name, column in flat.items():
        rows = _with(rows, name, column)
    return rows


def _with(rows: _Rows, name: str, column: "pa.Array | pa.ChunkedArray") -> _Rows:
    return rows.set_column(rows.schema.get_field_index(name), name, column)
