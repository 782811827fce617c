"""`clog export`: a log, or its table, as one file that other tools read."""

import base64
import json as json_module
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Literal, TypeAlias, get_args

import typer

from clog.cli.arguments import Json, Options, Partition, Url, choice, open_log
from clog.cli.consume import AsTable, At, Start, check_table, positions
from clog.cli.output import counted, print_json, print_note, say, size
from clog.cli.views import counting, tell_left_out

if TYPE_CHECKING:
    import pyarrow as pa

    from clog.storage import Log

Format = Literal["parquet", "csv", "jsonl"]
_FORMATS = get_args(Format)
_BY_ENDING: dict[str, Format] = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}

Out = Annotated[
    str,
    typer.Argument(
        metavar="FILE", help="A local file, or - for standard output.", show_default=False
    ),
]
FileFormat = Annotated[
    Format | None,
    typer.Option(
        "--format",
        parser=choice(*_FORMATS),
        metavar="|".join(_FORMATS),
        help="Format of the file; default: by its ending.",
        show_default=False,
    ),
]
Strings = Annotated[
    bool, typer.Option("--strings", help="Keys and values are text in Parquet, not binary.")
]
Base64 = Annotated[
    bool,
    typer.Option("--base64", help="Keys and values are base64 in CSV, for those that are no text."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")]


@dataclass(frozen=True, slots=True)
class _Form:
    """How bytes are written: as text in Parquet, as base64 in CSV."""

    strings: bool
    is_base64: bool


Write = Callable[["pa.RecordBatch"], None]
Rows: TypeAlias = "pa.RecordBatch | pa.Table"


def export(
    url: Url,
    out: Out,
    *,
    file_format: FileFormat = None,
    table: AsTable = False,
    at: At = None,
    start: Start = "earliest",
    partition: Partition = None,
    strings: Strings = False,
    is_base64: Base64 = False,
    overwrite: Overwrite = False,
    options: Options = None,
    json: Json = False,
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
    log = open_log(url, options)
    batches = log.table(partition, at).to_batches() if table else _records(log, partition, start)
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
    _tell(log.url, out, records, json=json)


def _checked(out: str, file_format: Format | None, *, overwrite: bool) -> Format:
    """Returns the format to write.

    Raises:
        typer.BadParameter: nothing tells it, the file is there, or none can be.
    """
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


def _tell(url: str, out: str, records: int, *, json: bool) -> None:
    if out == "-":
        print_note(f"exported {counted(records, 'record')}")
        return
    stored = Path(out).stat().st_size
    if json:
        print_json({"url": url, "file": out, "records": records, "size_bytes": stored})
    else:
        say(f"exported {counted(records, 'record')} to {out}, {size(stored)}")


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
def _parquet(stream: IO[bytes], schema: "pa.Schema", form: _Form) -> Iterator[Write]:
    from pyarrow import parquet

    written = _as_text(schema.empty_table()).schema if form.strings else schema
    with parquet.ParquetWriter(stream, written, compression="zstd") as writer:
        yield lambda batch: writer.write(_as_text(batch) if form.strings else batch)


@contextmanager
def _csv(stream: IO[bytes], schema: "pa.Schema", form: _Form) -> Iterator[Write]:
    from pyarrow import csv

    def rows(batch: Rows) -> Rows:
        return _flat(_as_base64(batch) if form.is_base64 else _as_text(batch))

    with csv.CSVWriter(stream, rows(schema.empty_table()).schema) as writer:
        yield lambda batch: writer.write(rows(batch))


@contextmanager
def _jsonl(stream: IO[bytes], _: "pa.Schema", __: _Form) -> Iterator[Write]:
    from clog.cli.lines import format_jsonl

    yield lambda batch: stream.writelines(format_jsonl(batch))


_WRITERS = {"parquet": _parquet, "csv": _csv, "jsonl": _jsonl}


def _as_text(rows: Rows) -> Rows:
    """Returns the rows with keys and values as text.

    Raises:
        InvalidInputError: one is none. Which record is told, its bytes are not.
    """
    import pyarrow as pa

    from clog.storage.errors import InvalidInputError

    for name in _bytes_columns(rows):
        try:
            text = rows.column(name).cast(pa.string())
        except pa.ArrowInvalid:
            raise InvalidInputError(
                f"a {name} among {_where(rows)} is not UTF-8; export to Parquet without --strings,"
                " to CSV with --base64, or to JSON lines"
            ) from None
        rows = rows.set_column(rows.schema.get_field_index(name), name, text)
    return rows


def _where(rows: Rows) -> str:
    offsets = rows.column("offset")
    return f"offsets {offsets[0]} to {offsets[-1]} of partition {rows.column('partition')[0]}"


def _as_base64(rows: Rows) -> Rows:
    import pyarrow as pa

    for name in _bytes_columns(rows):
        texts = [
            None if value is None else base64.b64encode(value).decode()
            for value in rows.column(name).to_pylist()
        ]
        column = pa.array(texts, pa.string())
        rows = rows.set_column(rows.schema.get_field_index(name), name, column)
    return rows


def _bytes_columns(rows: Rows) -> list[str]:
    """Returns which of key and value are bytes: in a typed log they may be anything."""
    import pyarrow as pa

    return [name for name in ("key", "value") if pa.types.is_binary(rows.column(name).type)]


def _flat(rows: Rows) -> Rows:
    """Returns the rows with what CSV has no place for as JSON, in the form of `lines`: headers,
    and structs, lists and bytes of a typed log; null where there is none.
    """
    import pyarrow as pa

    from clog.cli.lines import headers_json, texts_of

    texts = [
        json_module.dumps(headers_json(some), ensure_ascii=False) if some else None
        for some in rows.column("headers").to_pylist()
    ]
    flat = {"headers": pa.array(texts, pa.string())}
    for name in ("key", "value"):
        column = rows.column(name)
        if pa.types.is_nested(column.type):
            flat[name] = pa.array(texts_of(column), pa.binary()).cast(pa.string())
    for name, column in flat.items():
        rows = rows.set_column(rows.schema.get_field_index(name), name, column)
    return rows
