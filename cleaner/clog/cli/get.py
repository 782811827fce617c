"""`clog get`: the values of keys."""

from typing import TYPE_CHECKING, Annotated

import typer

from clog.cli.arguments import Json, Options, Url, integer, open_log, typed_schema
from clog.cli.lines import check_base64, keys_given
from clog.cli.output import print_error, write_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

NAMED_MAX = 5
"""Keys without a value that are named."""

Keys = Annotated[list[str], typer.Argument(metavar="KEY…", help="The keys.", show_default=False)]
Base64 = Annotated[
    bool, typer.Option("--base64", help="The keys are given in base64, for keys that are no text.")
]
At = Annotated[
    int | None,
    typer.Option(
        parser=integer(),
        metavar="VERSION",
        help="The values as of this version.",
        show_default=False,
    ),
]
OnlyValues = Annotated[bool, typer.Option("--values", help="Print the values without their keys.")]


def get(
    url: Url,
    keys: Keys,
    *,
    at: At = None,
    values: OnlyValues = False,
    is_base64: Base64 = False,
    options: Options = None,
    json: Json = False,
) -> None:
    r"""Print the latest value of each key.

    A line is key, TAB, value; with --json, an object as printed by clog consume --json. Reads only
    objects whose key index says that the key may be there. The exit code is 1 if a key has no
    value.

    \b
    clog get ./orders alice bob
    clog get ./orders alice --values
    clog get ./orders alice --at 12 --json
    """
    from clog.storage.objects.conforming import asked_keys

    check_base64(keys, is_base64=is_base64)
    log = open_log(url, options)
    given = keys_given(keys, is_base64=is_base64, schema=typed_schema(log))
    wanted = dict(zip(asked_keys(given, log.handle.tip.head.log.schema), keys, strict=True))
    rows, missing = _latest(log.table(at=at).of_keys(given), list(wanted))
    write_lines(b"".join(_lines(rows, values=values, json=json)))
    if missing:
        when = "" if at is None else f" at version {at}"
        print_error(f"no value in {log.url}{when} for {_named([wanted[key] for key in missing])}")
        raise typer.Exit(1)


def _named(keys: list[str]) -> str:
    """Returns keys as they were given, or the first of many.

    >>> _named(["a"]), _named(list("abcdefg"))
    ("the key 'a'", "7 keys: 'a', 'b', 'c', 'd', 'e' and 2 more")
    """
    shown = [repr(key) for key in keys]
    if len(keys) == 1:
        return f"the key {shown[0]}"
    more = len(keys) - NAMED_MAX
    rest = f" and {more} more" if more > 0 else ""
    return f"{len(keys)} keys: {', '.join(shown[:NAMED_MAX])}{rest}"


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
    from clog.cli.lines import format_jsonl, format_text, texts_of

    for batch in rows.to_batches():
        if json:
            yield from format_jsonl(batch)
        elif values:
            yield from ((value or b"") + b"\n" for value in texts_of(batch.column("value")))
        else:
            yield from format_text(batch)
