"""Old names of commands and options, which this release still takes.

A command line with an old name is rewritten into the new one, before anything is parsed, and a note
says so: nothing is implemented twice. With the next release the names go, and this module.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import click

_WITHOUT_VALUE = frozenset(
    (
        *("-h", "--help", "--json", "--single-writer", "--force", "--dry-run"),
        *("--values", "--base64", "--table", "--strings", "--overwrite"),
        *("--commits", "--snapshots", "--objects", "--transactions"),
    )
)
_SECRET = frozenset(("-o", "--option", "--storage-option", "--target-option"))
"""Options whose values are never printed."""


class Old(NamedTuple):
    """What a command was renamed to.

    ``now``: the new words, with ``{0}`` and ``{1}`` for those given; ``rest``: the option of each
    further word; ``instead``: other words if an option is given; ``options``: what these are now.
    """

    now: str
    rest: str = ""
    instead: Mapping[str, str] = {}
    options: Mapping[str, str] = {}


OLD: Mapping[str, Old] = {
    "get": Old("consume {0} --table", rest="--key", options={"--values": "--print value"}),
    "export": Old("consume {0} --to {1}"),
    "offsets": Old("describe {0} offsets"),
    "segments": Old("describe {0} segments"),
    "readers": Old("describe {0} readers", instead={"--forget": "alter {0}"}),
    "transactions": Old("describe {0} transactions", instead={"--abort": "alter {0}"}),
    "erasures": Old(
        "describe {0} erasures",
        instead={"--to": "erase {0}"},
        options={"--to": "--receipts"},
    ),
    "upgrade": Old("describe {0} features", instead={"--feature": "alter {0}"}),
    "dump": Old(
        "describe {0} commit",
        instead={
            "--commits": "describe {0} history",
            "--snapshots": "describe {0} history",
            "--objects": "describe {0} objects",
            "--transactions": "describe {0} markers",
        },
        options={
            "--version": "--at",
            **dict.fromkeys(("--commits", "--snapshots", "--objects", "--transactions"), ""),
        },
    ),
    "roll": Old(
        "alter {0} --roll all",
        instead=dict.fromkeys(("-p", "--partition"), "alter {0}"),
        options=dict.fromkeys(("-p", "--partition"), "--roll"),
    ),
    "delete-records": Old("alter {0}", rest="--delete-records"),
    "reset-times": Old("alter {0} --reset-times"),
    "sweep": Old("clean {0} --sweep"),
    "convert": Old(
        "copy {0} {1} --decode json", instead={"--avro-schema": "copy {0} {1} --decode avro"}
    ),
    "verify-store": Old("verify {0} --store"),
    "verify-erasure": Old("verify {1} --receipt {0}"),
}
OLD_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "consume": {
        "--offsets": "--print partition,offset,timestamp,key,value",
        "--headers": "--print headers,key,value",
    },
    "clean": {
        "--threads": "-c log.cleaner.threads={}",
        "--buffer": "-c log.cleaner.dedupe.buffer.size={}m",
        "--io-limit": "-c log.cleaner.io.max.bytes.per.second={}m",
    },
    "cleaner": {
        "--threads": "-c log.cleaner.threads={}",
        "--log-format=json": "--json",
        "--log-format=text": "",
    },
    "ui": {"--port": "--listen {}"},
}
"""What options of a command are now, with ``{}`` for their values, or by their values."""


def renewed(args: Sequence[str]) -> list[str]:
    """Returns what a command line with old names is now.

    >>> renewed(["get", "./orders", "alice", "--values"])
    ['consume', './orders', '--table', '--print', 'value', '--key', 'alice']
    >>> renewed(["cleaner", "./orders", "--threads", "2", "--log-format=json"])
    ['cleaner', './orders', '-c', 'log.cleaner.threads=2', '--json']
    """
    name, *given = args
    if name in OLD:
        return _renamed(name, given, OLD[name])
    return [name, *_with_new_options(name, given)]


def _renamed(name: str, given: Sequence[str], old: Old) -> list[str]:
    words: list[str] = []
    options: list[str] = []
    template, left = old.now, list(given)
    while left:
        word = left.pop(0)
        if word == "--":
            words += left
            break
        if not word.startswith("-") or word == "-":
            words.append(word)
            continue
        option, equals, value = word.partition("=")
        template = old.instead.get(option, template)
        options += old.options.get(option, option).split()
        if equals:
            options.append(value)
        elif option not in _WITHOUT_VALUE and (option.startswith("--") or len(option) == 2):
            options += left[:1]
            del left[:1]
    needed = template.count("{") + bool(old.rest)
    if len(words) < needed and not {"-h", "--help"} & {*options}:
        form = " ".join((template, f"{old.rest} …" if old.rest else ""))
        raise click.UsageError(f"clog {name} is now: clog {form.format('URL', 'FILE').strip()}")
    filled = [part.format(*words, "", "") for part in template.split()]
    more = words[template.count("{") :]
    if old.rest:
        more = [part for word in more for part in (old.rest, word)]
    return [*filter(None, filled), *options, *more]


def _with_new_options(name: str, given: Sequence[str]) -> list[str]:
    now = OLD_OPTIONS.get(name, {})
    by_value = {option.partition("=")[0] for option in now if "=" in option}
    made: list[str] = []
    left = list(given)
    while left:
        word = left.pop(0)
        if word == "--":
            return [*made, word, *left]
        option, equals, value = word.partition("=")
        takes = option in by_value or "{}" in now.get(option, "")
        if takes and not equals and left:
            value = left.pop(0)
        new = now.get(f"{option}={value}", now.get(option))
        made += [word] if new is None else new.format(value).split()
    if (twice := made.count("--print")) > given.count("--print") + 1:
        raise click.UsageError(f"{twice} options of clog {name} are now one: --print FIELDS")
    return made


def without_secrets(words: Sequence[str]) -> list[str]:
    """Returns words of a command line without the values that are never printed."""
    from clog.storage.store.opening import redact

    made = [redact(word) if "://" in word else word for word in words]
    for i, word in enumerate(words):
        option, equals, _ = word.partition("=")
        if equals and option in _SECRET:
            made[i] = f"{option}=…"
        elif i and words[i - 1] in _SECRET:
            made[i] = "…"
    return made
