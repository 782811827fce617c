"""`clog get`: the values of keys."""

from typing import TYPE_CHECKING

from clog.cli.lines import check_base64, format_jsonl, format_text, keys_given, texts_of
from clog.cli.options import (
    URL,
    Code,
    Given,
    argument,
    command,
    flag,
    integer,
    option,
    typed_schema,
)
from clog.cli.output import print_error, print_note, write_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

_NAMED_MAX = 5
"""Keys without a value that are named."""
_UNINDEXED_MAX = 100
"""Objects without key indexes, of which a command reads all keys: more are worth a note."""


@command()
def get(
    url: str = URL,
    keys: list[str] = argument("KEY…", "The keys."),
    *,
    at: int | None = option("--at VERSION", "The values as of this version.", integer()),
    values: bool = flag("--values", "Print the values without their keys."),
    is_base64: bool = flag("--base64", "The keys are given in base64, for keys that are no text."),
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
            f"the keys of {unindexed} objects were read, as small appends leave them:"
            f' "clog clean {log.url} --roll" makes them few, with key indexes'
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
    """Returns one row for each key that is there, in the order asked (where it is in several
    partitions, the one with the latest timestamp), and the keys that are not there.
    """
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
