"""`clog export`: a log, or its table, as one file that other tools read."""

import base64
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple, TypeAlias

import typer

from clog.cli.consume import AS_TABLE, AT, START, check_table, positions
from clog.cli.lines import format_jsonl, headers_json, texts_of
from clog.cli.options import PARTITION, URL, Given, argument, choice, command, flag, option
from clog.cli.output import counted, counting, print_note, size, tell_left_out
from clog.storage.types.rows import RECORD_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

    from clog.storage import Log

_Write = Callable[["pa.RecordBatch"], None]
_Rows: TypeAlias = "pa.RecordBatch | pa.Table"
_BY_ENDING = {".parquet": "parquet", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}


class _Form(NamedTuple):
    """How bytes are written: as text in Parquet, as base64 in CSV."""

    strings: bool
    is_base64: bool


@command()
def export(
    url: str = URL,
    out: str = argument("FILE", "A local file, or - for standard output."),
    *,
    file_format: str | None = option(
        "--format parquet|csv|jsonl",
        "Format of the file; default: by its ending.",
        choice("parquet", "csv", "jsonl"),
    ),
    table: bool = AS_TABLE,
    at: int | None = AT,
    start: str = START,
    partition: int | None = PARTITION,
    strings: bool = flag("--strings", "Keys and values are text in Parquet, not binary."),
    is_base64: bool = flag(
        "--base64", "Keys and values are base64 in CSV, for those that are no text."
    ),
    overwrite: bool = flag("--overwrite", "Replace a file that is there."),
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
        raise typer.BadParameter("--strings and --base64 contradict each other; leave one out")
    chosen = _checked(out, file_format, overwrite=overwrite)
    log = given.open(url)
    batches = (
        log.table(partition, at).to_batches(columns=RECORD_COLUMNS)
        if table
        else _records(log, partition, start)
    )
    schema = log.handle.tip.head.log.schema
    total = None if table else sum(d["records"] for d in log.describe()["partition_details"])
    records = 0
    if at is None:
        tell_left_out(log)
    with (
        counting("exporting", total) as more,
        _file(out) as stream,
        _WRITERS[chosen](stream, read_schema(schema), _Form(strings, is_base64)) as write,
    ):
        for batch in batches:
            write(batch)
            records += batch.num_rows
            more(batch.num_rows)
    told = f"exported {counted(records, 'record')}"
    if out == "-":
        print_note(told)
        return
    stored = Path(out).stat().st_size
    given.tell(
        {"url": log.url, "file": out, "records": records, "size_bytes": stored},
        f"{told} to {out}, {size(stored)}",
    )


def _checked(out: str, file_format: str | None, *, overwrite: bool) -> str:
    """Returns the format to write; the file can be made."""
    chosen = file_format or _BY_ENDING.get(Path(out).suffix.lower())
    if chosen is None:
        raise typer.BadParameter(f"the ending of {out!r} tells no format; give --format")
    if out == "-":
        return chosen
    path = Path(out)
    if not path.absolute().parent.is_dir():
        raise typer.BadParameter(f"the folder of {out!r} does not exist; create it first")
    if path.exists() and not path.is_file():
        raise typer.BadParameter(f"{out!r} is not a file; give one, or - for standard output")
    if path.exists() and not overwrite:
        raise typer.BadParameter(f"{out} is there already; --overwrite replaces it")
    return chosen


def _records(log: "Log", partition: int | None, where: str) -> "Iterator[pa.RecordBatch]":
    ends = log.stable_offsets()
    for p, start in positions(log, partition, where).items():
        yield from log.read(partition=p, start=start, end=ends[p])


@contextmanager
def _file(out: str) -> Iterator[IO[bytes]]:
    """Yields what to write to: standard output, or a file that gets its name when it is whole."""
    if out == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()  # What is counted as exported has been written.
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

    written = _as_text(schema.empty_table()).schema if form.strings else schema
    with parquet.ParquetWriter(stream, written, compression="zstd") as writer:
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
    """Returns the rows with keys and values as text; of one that is none its place is told, not its
    bytes.
    """
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
    """Returns which of key and value are bytes: in a typed log they may be anything."""
    import pyarrow as pa

    return [name for name in ("key", "value") if pa.types.is_binary(rows.column(name).type)]


def _flat(rows: _Rows) -> _Rows:
    """Returns the rows with what CSV has no place for as JSON, in the form of `lines`: headers,
    and structs, lists and bytes of a typed log; null where there is none.
    """
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
