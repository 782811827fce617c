"""Commands over records: in, out, and the forms that they have outside."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from clog.cli.arguments import (
    Json,
    Options,
    Partition,
    Url,
    choice,
    integer,
    open_log,
    parse_time_ms,
    quoted,
    typed_schema,
    usage_errors,
)
from clog.cli.lines import check_base64, keys_given
from clog.cli.output import print_note, write_lines
from clog.storage.config import definitions

if TYPE_CHECKING:
    import pyarrow as pa

    from clog.storage import Log, NamedReader, Table

LineFormat = Literal["text", "jsonl"]
ToLines = Callable[[Any], Iterator[bytes]]
"""Makes the lines of a batch."""


def _hold_ms(text: str) -> int:
    try:
        return definitions.duration_ms(text)
    except ValueError:
        raise typer.BadParameter(
            f"{quoted(text)} is not a length of time; use 90s, 15min, 8h or 7d"
        ) from None


def _reader_name(text: str) -> str:
    from clog.storage.readers import check_name

    with usage_errors():
        return check_name(text)


_WHERE = (
    "earliest, latest, an offset, or @TIME (epoch ms or ISO 8601): the first record at or after"
    " that time."
)


def _where(text: str) -> str:
    """Returns a position as it was given, whose form was looked at.

    Raises:
        typer.BadParameter: it is none.
    """
    if text.startswith("@"):
        parse_time_ms(text[1:])
    elif text.isdecimal():
        integer()(text)
    elif text not in ("earliest", "latest"):
        raise typer.BadParameter(
            f"--from {quoted(text)} is not a position; give earliest, latest, an offset, or @TIME"
        )
    return text


Start = Annotated[str, typer.Option("--from", parser=_where, metavar="WHERE", help=_WHERE)]
ReaderStart = Annotated[
    str | None,
    typer.Option(
        "--from",
        parser=_where,
        metavar="WHERE",
        show_default="earliest",
        help=f"{_WHERE} With --reader, only where a new reader begins.",
    ),
]
Maximum = Annotated[
    int | None,
    typer.Option(
        "--max",
        "-n",
        parser=integer(),
        metavar="N",
        help="Stop after this many records.",
        show_default=False,
    ),
]
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="At the end, wait for more records, until Ctrl-C.")
]
Poll = Annotated[
    int,
    typer.Option(
        parser=integer(1),
        metavar="MS",
        help="How often --follow polls; each poll is one small request.",
    ),
]
AsTable = Annotated[
    bool,
    typer.Option("--table", help="Print only the latest value of each key, without deleted keys."),
]
At = Annotated[
    int | None,
    typer.Option(
        parser=integer(),
        metavar="VERSION",
        help="The table as of this version.",
        show_default=False,
    ),
]
Keys = Annotated[
    list[str] | None,
    typer.Option(
        "--key",
        "-k",
        metavar="KEY",
        help="Print only records of this key; may be given more than once.",
        show_default=False,
    ),
]
ReaderName = Annotated[
    str | None,
    typer.Option(
        "--reader",
        parser=_reader_name,
        metavar="NAME",
        help="Continue where the reader of this name stopped, and record in the log how far it has"
        " read; a new one begins at --from.",
        show_default=False,
    ),
]
Hold = Annotated[
    int | None,
    typer.Option(
        parser=_hold_ms,
        metavar="TIME",
        help="How long the cleaner waits for the reader after each time it reports, so that it"
        " misses no delete; at most the log's reader.hold.max.ms.",
        show_default=False,
    ),
]
Base64 = Annotated[
    bool, typer.Option("--base64", help="--key is given in base64, for keys that are no text.")
]
Format = Annotated[
    LineFormat,
    typer.Option(
        "--format",
        parser=choice(*get_args(LineFormat)),
        metavar="|".join(get_args(LineFormat)),
        help="Format of the output lines.",
    ),
]
NullMarker = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Text to print for null.", show_default=False)
]
WithOffsets = Annotated[
    bool,
    typer.Option("--offsets", help="Print partition, offset and timestamp before each text line."),
]
WithHeaders = Annotated[
    bool, typer.Option("--headers", help="Print the headers before the key of each text line.")
]


def consume(  # noqa: PLR0913 - one for each option
    url: Url,
    *,
    start: ReaderStart = None,
    partition: Partition = None,
    maximum: Maximum = None,
    follow: Follow = False,
    poll: Poll = 1000,
    table: AsTable = False,
    at: At = None,
    key: Keys = None,
    reader: ReaderName = None,
    hold: Hold = None,
    is_base64: Base64 = False,
    line_format: Format = "text",
    null_marker: NullMarker = None,
    offsets: WithOffsets = False,
    headers: WithHeaders = False,
    options: Options = None,
    json: Json = False,
) -> None:
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
    from clog.cli.lines import format_jsonl
    from clog.storage.readers import holding_reader

    check_table(start or "earliest", at, table=table)
    _check_reader(reader, hold, all_records=not (table or key))
    check_base64(key or (), is_base64=is_base64)
    log = open_log(url, options)
    keys = keys_given(key, is_base64=is_base64, schema=typed_schema(log)) if key else None
    is_json = json or line_format == "jsonl"
    to_lines = format_jsonl if is_json else _text(null_marker, offsets=offsets, headers=headers)
    view = log.table(partition=partition, at=at) if table else None
    named = holding_reader(log.handle, reader, hold or 0) if reader else None
    found = _table(log, view, keys) if view else _log(log, partition, start, keys, named)
    with named or nullcontext():
        _print(limited(found(poll if follow else None), maximum), to_lines, named)


def _text(null_marker: str | None, *, offsets: bool, headers: bool) -> ToLines:
    from clog.cli.lines import format_text

    marker = null_marker.encode() if null_marker is not None else None
    return partial(format_text, null_marker=marker, with_offsets=offsets, with_headers=headers)


def check_table(start: str, at: int | None, *, table: bool) -> None:
    """Raises if options of the log and of its table are mixed.

    Raises:
        typer.BadParameter: they are.
    """
    if at is not None and not table:
        raise typer.BadParameter("--at needs --table")
    if table and start != "earliest":
        raise typer.BadParameter("--table always starts at the earliest offset; omit --from")


def _check_reader(name: str | None, hold_ms: int | None, *, all_records: bool) -> None:
    if hold_ms is not None and name is None:
        raise typer.BadParameter("--hold needs --reader")
    if name is not None and not all_records:
        raise typer.BadParameter("--reader reads all records; omit --table and --key")


def limited(batches: "Iterator[pa.RecordBatch]", maximum: int | None) -> "Iterator[pa.RecordBatch]":
    """Yields the batches up to ``maximum`` records; stops as soon as it has them."""
    if maximum is None:
        yield from batches
        return
    left = maximum
    while left > 0 and (batch := next(batches, None)) is not None:
        yield batch.slice(0, left)
        left -= batch.num_rows


def positions(log: "Log", partition: int | None, where: str) -> dict[int, int]:
    """Returns the offset to start from in each partition.

    Raises:
        typer.BadParameter: ``where`` names no position.
    """
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
    # No record is that late: the next one may be (S39).
    return {p: ends[p] if (offset := found[p]) is None else offset for p in wanted}


_Source = Callable[[int | None], "Iterator[pa.RecordBatch]"]


def _log(
    log: "Log",
    partition: int | None,
    where: str | None,
    keys: list[Any] | None,
    reader: "NamedReader | None",
) -> _Source:
    starts = positions(log, partition, where or "earliest")
    if reader is not None:
        starts = _starts_of(log, reader, where, starts)
    return lambda poll_ms: _read_on(log, starts, poll_ms, keys, reader)


def _starts_of(
    log: "Log", reader: "NamedReader", where: str | None, starts: dict[int, int]
) -> dict[int, int]:
    """Returns where a reader goes on in these partitions; a new one begins at ``starts``, from then
    on, whatever it reads of them before it stops.
    """
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
            f"reader {reader.name} goes on where it stopped: --from {where} is for a new reader,"
            f" which it is after {forget}"
        )
    try:
        return {p: offset for p, offset in reader.next_offsets().items() if p in starts}
    except NotFoundError as e:
        raise NotFoundError(
            f"reader {reader.name} cannot go on where it stopped, at {reader.position}: {e}; in the"
            f" shell: {forget}, and then --from says where it begins"
        ) from e


def _table(log: "Log", view: "Table", keys: list[Any] | None) -> _Source:
    def batches(poll_ms: int | None) -> "Iterator[pa.RecordBatch]":
        yield from view.to_batches() if keys is None else view.of_keys(keys).to_batches()
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
    """Yields the records from the offsets on; at the end stops, or looks again every ``poll_ms``,
    of which ``reader`` tells the log where that is due.
    """
    at = dict(offsets)
    while True:
        ends = log.stable_offsets()
        for p, start in at.items():
            if start == ends[p]:
                continue
            yield from _read(log, p, start, ends[p], keys)
            at[p] = max(start, ends[p])
        if poll_ms is None:
            return
        if reader is not None:  # Who waits for records is not forgotten, and waited for.
            reader.commit_at(at, log.handle.tip.version, log.handle.tip.record.commit_id)
        log.handle.clock.sleep_ms(poll_ms)


def _read(
    log: "Log", partition: int, start: int, end: int, keys: list[Any] | None
) -> "Iterator[pa.RecordBatch]":
    if keys is None:
        return log.read(partition=partition, start=start, end=end)
    from clog.storage.read.lookup import records_of_keys
    from clog.storage.read.scan import ranges

    manifest = log.handle.manifest()
    asked = ranges(manifest.head, partition, start, end, url=log.url)
    return records_of_keys(log.handle.store, manifest, asked, keys)


def _print(
    batches: "Iterator[pa.RecordBatch]",
    to_lines: ToLines,
    reader: "NamedReader | None",
) -> None:
    try:
        for batch in batches:
            write_lines(b"".join(to_lines(batch)))
            if reader is not None:
                reader.commit(_after(batch))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None  # How one stops to follow.


def _after(batch: "pa.RecordBatch") -> dict[int, int]:
    """Returns the offsets after a batch, whose partitions are in ascending order."""
    import numpy as np

    partitions = batch.column("partition").to_numpy()
    lasts = np.append(np.flatnonzero(np.diff(partitions)), len(partitions) - 1)
    offsets = batch.column("offset").to_numpy()
    return {int(partitions[i]): int(offsets[i]) + 1 for i in lasts if len(partitions)}
