"""`clog diff`: what changed in the table between two versions, as lines, as JSON or counted."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from clog.cli.lines import as_json, json_records, json_text
from clog.cli.options import URL, Given, command, flag, option, parse_time_ms
from clog.cli.output import counted, print_json, print_json_line, say, stdout

if TYPE_CHECKING:
    import pyarrow as pa


_POINT = (
    "a version; a time, as @TIME (epoch ms or ISO 8601); or a named cut, as NAME of this log or"
    " HOME_URL#NAME."
)
_ALWAYS_OTHER = frozenset({"partition", "offset", "timestamp"})
"""Columns of records, of which two of a key always differ."""
_Change = tuple[dict[str, Any] | None, dict[str, Any] | None, int, Any]
"""The row before, the row after, the version and its time."""


def _point(text: str) -> str:
    if text.startswith("@"):
        parse_time_ms(text[1:])
    return text


@command
def diff(
    url: str = URL,
    *,
    start: str = option("--from POINT", f"Changes after this: {_POINT}", _point, ...),
    end: str | None = option("--to POINT", "Changes up to this.", _point, shown="the newest"),
    each: bool = flag("--each", "The changes by each record, not only by the last of a key."),
    stat: bool = flag("--stat", "Only how many rows and columns changed."),
    given: Given,
) -> None:
    r"""Show what changed in the table between two versions.

    A line is a row that was deleted (-), inserted (+), or updated (~): then it has the key, and the
    columns that differ. With --json, a line is an object with the row before and after.

    \b
    clog diff ./orders --from 41
    clog diff ./orders --from @2026-01-31T12:00:00Z --to month-end --stat
    clog diff ./orders --from 41 --to 44 --each --json
    """
    log = given.open(url)
    since, since_ms = _asked(start)
    until, until_ms = (None, None) if end is None else _asked(end)
    found = log.changes(
        since=since,
        until=until,
        since_time_ms=since_ms,
        until_time_ms=until_ms,
        mode="each" if each else "net",
    )
    kinds: Counter[str] = Counter(dict.fromkeys(("deleted", "inserted", "updated"), 0))
    columns: Counter[str] = Counter()
    keys = log.config["table.key.columns"].split(",")
    console = stdout()
    for change in _changes(found):
        old, new, version, time = change
        differ = _differing(old, new)
        kind = "inserted" if old is None else "deleted" if new is None else "updated"
        kinds[kind] += 1
        columns.update(differ if kind == "updated" else ())
        if stat:
            continue
        if given.json:
            about = {"change": kind, "version": version, "time": time}
            print_json_line({**about, "before": old, "after": new})
        else:
            style = {"deleted": "red", "inserted": "green", "updated": "yellow"}[kind]
            console.print(_line(old, new, differ, keys), style=style, soft_wrap=True)
    if stat and given.json:
        print_json({**kinds, "columns": dict(sorted(columns.items()))})
    elif not given.json:
        say(", ".join(f"{number:,} {kind}" for kind, number in kinds.items()))
        for name, number in sorted(columns.items()) if stat else ():
            say(f"  {name} in {counted(number, 'row')}")


def _asked(text: str) -> tuple[int | str | None, int | None]:
    """Returns the version, or the name of a cut, and the time that a text gives."""
    if text.startswith("@"):
        return None, parse_time_ms(text[1:])
    return (int(text) if text.isdecimal() else text), None


def _changes(found: "Iterator[pa.RecordBatch]") -> Iterator[_Change]:
    """Yields changes: an update's images are two rows, the first directly before the other."""
    before: dict[str, Any] | None = None
    for batch in found:
        rows = _rows(batch.select(range(batch.num_columns - 3)))
        about = (column.to_pylist() for column in batch.columns[-3:])
        for row, kind, version, time in zip(rows, *about, strict=True):
            at = version, time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
            if kind == "update_preimage":
                before = row
            elif kind == "delete":
                yield row, None, *at
            else:
                yield before, row, *at
                before = None


def _rows(batch: "pa.RecordBatch") -> list[dict[str, Any]]:
    """Returns rows as JSON has them."""
    if {"key", "value", "offset"} <= {*batch.schema.names}:
        return list(json_records(batch))
    columns = [as_json(column) for column in batch.columns]
    return [dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def _differing(old: dict[str, Any] | None, new: dict[str, Any] | None) -> list[str]:
    """Returns the columns in which a row before and after differ."""
    old, new = old or {}, new or {}
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return [name for name in names if name not in _ALWAYS_OTHER] or names


def _line(
    old: dict[str, Any] | None, new: dict[str, Any] | None, differ: list[str], keys: list[str]
) -> str:
    row = new or old or {}
    if old is None or new is None:
        sign = "+" if old is None else "-"
        shown = [name for name in row if name not in _ALWAYS_OTHER]
        return f"{sign} " + " ".join(f"{name}={json_text(row[name])}" for name in shown)
    named = [name for name in row if name in keys] or [name for name in row if name[:3] == "key"]
    key = " ".join(f"{name}={json_text(row[name])}" for name in named)
    how = (f"{name}: {json_text(old.get(name))} → {json_text(new.get(name))}" for name in differ)
    return f"~ {key}  " + ", ".join(how)
