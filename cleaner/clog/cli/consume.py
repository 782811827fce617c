"""`clog consume`: records as lines, from a position on, for a named reader, or of the table;
`clog get`: the values of keys; `clog export`: a log, or its table, as a file for other programs.
"""

import base64
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeAlias

import click

from clog.cli.lines import (
    LINE_FORMAT,
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
    argument,
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

    _Source = Callable[[int | None], Iterator[pa.RecordBatch]]
    _ToLines = Callable[[pa.RecordBatch], Iterator[bytes]]


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


START = option("--from WHERE", _WHERE, _where, default="earliest")
AS_TABLE = flag("--table", "Only the latest value of each key, without deleted keys.")
AT = option("--at VERSION", "The table as of this version.", integer())


@command()
def consume(  # noqa: PLR0913 - one for each option
    url: str = URL,
    *,
    start: str | None = option(
        "--from WHERE",
        f"{_WHERE} With --reader, only for a new reader.",
        _where,
        shown="earliest",
    ),
    partition: int | None = PARTITION,
    maximum: int | None = option("--max -n N", "Stop after this many records.", integer()),
    follow: bool = flag("--follow -f", "At the end, wait for more records until Ctrl-C."),
    poll: int = option(
        "--poll MS",
        "How often --follow polls; each poll is one small request.",
        integer(1),
        default=1000,
    ),
    table: bool = AS_TABLE,
    at: int | None = AT,
    key: list[str] | None = option(
        "--key -k KEY", "Print only records with this key; may be repeated."
    ),
    reader: str | None = option(
        "--reader NAME",
        "Continue where the reader of this name stopped, and record its progress in the log; a"
        " new reader begins at --from.",
        _reader_name,
    ),
    hold: int | None = option(
        "--hold TIME",
        "How long after each report the cleaner waits for the reader, so that it misses no"
        " delete; at most the log's reader.hold.max.ms.",
        duration_given,
    ),
    is_base64: bool = flag("--base64", "--key is base64, for keys that are not text."),
    line_format: str = option(
        LINE_FORMAT, "Format of the output lines.", choice("text", "jsonl"), default="text"
    ),
    null_marker: str | None = option("--null-marker TEXT", "Text to print for null."),
    offsets: bool = flag(
        "--offsets", "Print partition, offset and timestamp before each text line."
    ),
    headers: bool = flag("--headers", "Print the headers before the key of each text line."),
    given: Given,
) -> Code | None:
    r"""Print records as lines.

    Records are printed partition by partition, in offset order. Text lines are key, TAB, value; a
    tombstone is the key alone. JSON lines (--json is short for --format jsonl) have everything,
    and clog produce --format jsonl reads them back without loss.

    \b
    clog consume ./orders --table
    clog consume ./orders --from latest --follow
    clog consume ./orders --reader billing   # what is new since the last time
    clog consume ./orders --reader weekly --hold 8d
    clog consume ./orders --key alice --offsets   # the history of a key
    clog consume ./orders --from @2026-01-31T12:00:00Z --json
    """
    from clog.storage.readers import holding_reader

    check_table(start or "earliest", at, table=table)
    if hold is not None and reader is None:
        raise click.BadParameter("--hold needs --reader")
    if reader is not None and (table or key):
        raise click.BadParameter("--reader reads all records; omit --table and --key")
    check_base64(key or (), is_base64=is_base64)
    log = given.open(url)
    keys = keys_given(key, is_base64=is_base64, schema=typed_schema(log)) if key else None
    is_json = given.json or line_format == "jsonl"
    to_lines = format_jsonl if is_json else _text(null_marker, offsets=offsets, headers=headers)
    view = log.table(partition=partition, at=at) if table else None
    named = holding_reader(log.handle, reader, hold or 0) if reader else None
    found = _table(log, view, keys) if view else _log(log, partition, start, keys, named)
    with named or nullcontext():
        return _print(limited(found(poll if follow else None), maximum), to_lines, named)


def _print(
    batches: "Iterator[pa.RecordBatch]", to_lines: "_ToLines", reader: "NamedReader | None"
) -> Code | None:
    from clog.storage.read.following import offsets_after

    try:
        for batch in batches:
            write_lines(b"".join(to_lines(batch)))
            if reader is not None:
                reader.commit(offsets_after(batch))
    except KeyboardInterrupt:
        return Code.INTERRUPTED  # The way to end --follow.
    return None


def _text(null_marker: str | None, *, offsets: bool, headers: bool) -> "_ToLines":
    marker = null_marker.encode() if null_marker is not None else None
    return partial(format_text, null_marker=marker, with_offsets=offsets, with_headers=headers)


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


def _log(
    log: "Log",
    partition: int | None,
    where: str | None,
    keys: list[Any] | None,
    reader: "NamedReader | None",
) -> "_Source":
    starts = positions(log, partition, where or "earliest")
    if reader is not None:
        starts = _starts_of(log, reader, where, starts)
    return lambda poll_ms: _read_on(log, starts, poll_ms, keys, reader)


def _starts_of(
    log: "Log", reader: "NamedReader", where: str | None, starts: dict[int, int]
) -> dict[int, int]:
    """Returns where a reader continues in these partitions; a new one begins at ``starts``."""
    from clog.storage.errors import NotFoundError
    from clog.storage.read.scan import check_start

    forget = f"clog readers {log.url} --forget {reader.name}"
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


def _table(log: "Log", view: "Table", keys: list[Any] | None) -> "_Source":
    def batches(poll_ms: int | None) -> "Iterator[pa.RecordBatch]":
        yield from (
            view.to_batches(columns=RECORD_COLUMNS)
            if keys is None
            else view.of_keys(keys).to_batches()
        )
        if poll_ms is not None:
            yield from _read_on(log, view.offsets, poll_ms, keys)

    return batches


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


@command()
def get(
    url: str = URL,
    keys: list[str] = argument("KEY…", "The keys."),
    *,
    at: int | None = option("--at VERSION", "The values as of this version.", integer()),
    values: bool = flag("--values", "Print the values without their keys."),
    is_base64: bool = flag("--base64", "The keys are base64, for keys that are not text."),
    given: Given,
) -> Code | None:
    r"""Print the latest value of each key.

    A line is key, TAB, value; with --json, an object as printed by clog consume --json. Reads only
    objects whose key index says that the key may be there. The exit code is 1 if a key has no
    value.

    \b
    clog get ./orders alice bob
    clog get ./orders alice --values
    clog get ./orders alice --at 12 --json
    """
    from clog.storage.read.lookup import asked_keys

    check_base64(keys, is_base64=is_base64)
    log = given.open(url)
    asked = keys_given(keys, is_base64=is_base64, schema=typed_schema(log))
    wanted = dict(zip(asked_keys(asked, log.handle.tip.head.log.schema), keys, strict=True))
    rows, missing = _latest(log.table(at=at).of_keys(asked), list(wanted))
    write_lines(b"".join(_lines(rows, values=values, json=given.json)))
    chunks = (c for all_of in log.handle.manifest().segments for s in all_of for c in s.chunks)
    unindexed = len({c.object.path for c in chunks if not c.object.index_bytes})
    if unindexed > _UNINDEXED_MAX:
        print_note(
            f"the keys of {unindexed} objects without key indexes were read, as small appends"
            f' leave them: "clog clean {log.url} --roll" merges them into few objects with key'
            " indexes"
        )
    if not missing:
        return None
    when = "" if at is None else f" at version {at}"
    print_error(f"no value in {log.url}{when} for {_named([wanted[key] for key in missing])}")
    return Code.FAILED


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


def _lines(rows: "pa.Table", *, values: bool, json: bool) -> "Iterator[bytes]":
    for batch in rows.to_batches():
        if json:
            yield from format_jsonl(batch)
        elif values:
            yield from ((value or b"") + b"\n" for value in texts_of(batch.column("value")))
        else:
            yield from format_text(batch)


_Write = Callable[["pa.RecordBatch"], None]
_Rows: TypeAlias = "pa.RecordBatch | pa.Table"
_BY_ENDING = {".parquet": "parquet", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}


class _Form(NamedTuple):
    """The form of bytes: whether they are text in Parquet, and base64 in CSV."""

    strings: bool
    is_base64: bool


@command()
def export(
    url: str = URL,
    out: str = argument("FILE", "A local file, or - for standard output."),
    *,
    file_format: str | None = option(
        "--format parquet|csv|jsonl",
        "Format of the file; default: by its extension.",
        choice("parquet", "csv", "jsonl"),
    ),
    table: bool = AS_TABLE,
    at: int | None = AT,
    start: str = START,
    partition: int | None = PARTITION,
    strings: bool = flag("--strings", "Write keys and values as text in Parquet, not binary."),
    is_base64: bool = flag(
        "--base64", "Write keys and values as base64 in CSV, for those that are not text."
    ),
    overwrite: bool = flag("--overwrite", "Replace an existing file."),
    given: Given,
) -> None:
    r"""Write records to a Parquet, CSV or JSON lines file.

    All records, or with --table the latest value of each key. The columns are partition, offset,
    timestamp, key, value and headers; in CSV headers are JSON. The file appears once it is
    complete.

    \b
    clog export ./orders orders.parquet --table --strings
    clog export ./orders orders.csv --from @2026-01-31
    clog export ./orders - --format csv --table | head
    """
    from clog.storage.read.scan import read_schema

    check_table(start, at, table=table)
    if strings and is_base64:
        raise click.BadParameter("--strings and --base64 contradict each other; leave one out")
    chosen = _checked(out, file_format, overwrite=overwrite)
    log = given.open(url)
    batches = (
        log.table(partition, at).to_batches(columns=RECORD_COLUMNS)
        if table
        else _records(log, partition, start)
    )
    schema = log.handle.tip.head.log.schema
    total = None if table else record_count(log)
    records = 0
    if at is None:
        note_left_out(log)
    with (
        counting("exporting", total) as more,
        _file(out) as stream,
        _WRITERS[chosen](stream, read_schema(schema), _Form(strings, is_base64)) as write,
    ):
        for batch in batches:
            write(batch)
            records += batch.num_rows
            more(batch.num_rows)
    exported = f"exported {counted(records, 'record')}"
    if out == "-":
        print_note(exported)
        return
    stored = Path(out).stat().st_size
    given.emit(
        {"url": log.url, "file": out, "records": records, "size_bytes": stored},
        f"{exported} to {out}, {size(stored)}",
    )


def _checked(out: str, file_format: str | None, *, overwrite: bool) -> str:
    """Returns the format to write; raises if the file cannot be created."""
    from clog.storage.store.opening import absolute

    chosen = file_format or _BY_ENDING.get(Path(out).suffix.lower())
    if chosen is None:
        raise click.BadParameter(f"the extension of {out!r} does not imply a format; give --format")
    if out == "-":
        return chosen
    path = Path(out)
    with usage_errors():
        folder = Path(absolute(out)).parent
    if not folder.is_dir():
        raise click.BadParameter(f"the folder of {out!r} does not exist; create it first")
    if path.exists() and not path.is_file():
        raise click.BadParameter(f"{out!r} is not a file; give one, or - for standard output")
    if path.exists() and not overwrite:
        raise click.BadParameter(f"{out} already exists; --overwrite replaces it")
    return chosen


def _records(log: "Log", partition: int | None, where: str) -> "Iterator[pa.RecordBatch]":
    ends = log.stable_offsets()
    for p, start in positions(log, partition, where).items():
        yield from log.read(partition=p, start=start, end=ends[p])


@contextmanager
def _file(out: str) -> Iterator[IO[bytes]]:
    """Yields standard output, or a file that gets its name once it is complete."""
    if out == "-":
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


@contextmanager
def _jsonl(stream: IO[bytes], _: "pa.Schema", __: _Form) -> Iterator[_Write]:
    yield lambda batch: stream.writelines(format_jsonl(batch))


_WRITERS = {"parquet": _parquet, "csv": _csv, "jsonl": _jsonl}


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
