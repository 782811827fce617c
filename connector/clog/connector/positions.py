"""Where a read starts and ends, as given by its options; and where a stream is, as Spark's
checkpoint keeps it.

*Offsets of a stream.* Spark compares them as JSON *strings*, so each has only one form:
partitions in numeric order, then the other fields. Three kinds:

- *initial*: ``{"init": "latest"}``. Constant, because Spark asks for it more than once before it
  makes the first batch durable.
- *first*: ``{"0": 7, "1": 9, "commit": "b1…", "from": {"0": 5, "1": 9}, "log": "orders", "log_id":
  "6f…", "planned": 57, "version": 41}``. The next offset to read by partition; ``from`` is what the
  initial offset was resolved to, so a crash in the first batch does not resolve "latest" again;
  ``version`` is the log's version at that moment, or that of ``sinceVersion`` (S41).
- *later*: the same without ``from``: the preceding offset says where the batch starts.

``left_out``, if there, is the next offset of each partition that the stream read once and reads no
more, because option ``partitions`` excludes it (S38): read again, it continues there.

``planned`` is the version of the log that the batch was planned at: a repeated batch reads that
version, and so the same records, even if they were cleaned since. ``log_id`` and ``commit`` (of
that version) say which log it was, and which history of it (S47). Offsets that an older clog wrote,
without these four, are accepted too.

A stream that has nothing to read gets its own offsets back, unchanged.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Literal

from clog.storage.config import units
from clog.storage.env import dataclass
from clog.storage.errors import InvalidInputError, OptionError

EARLIEST, LATEST = -2, -1
Position = Literal["earliest", "latest"] | Mapping[int, int]
"""Where to start or end: the same everywhere, or by partition (-2: earliest, -1: latest)."""


@dataclass(frozen=True, slots=True)
class Times:
    """Where to start or end by time: the first record that is not earlier, at one time everywhere
    or by partition. If no record is that late, ``or_latest`` means the end of the log; otherwise
    that is an error.
    """

    ms: int | Mapping[int, int]
    or_latest: bool


@dataclass(frozen=True, slots=True)
class Since:
    """Where to start by version: at its end offsets, so with what was appended after it."""

    version: int


_NAMES = ("commit", "from", "left_out", "log", "log_id", "planned", "version")


@dataclass(frozen=True, slots=True)
class Planned:
    """The version of a log that a batch was planned at: ``log`` is the log's name, for people."""

    log: str
    log_id: str
    version: int
    commit_id: str


@dataclass(frozen=True, slots=True)
class StreamOffsets:
    """Where a stream is: the next offset to read, by partition.

    ``version`` is the version of the log at which the query began; ``start`` is where it began,
    only in the first offsets of a log; ``planned`` is None in offsets that an older clog wrote;
    ``left_out`` is where it stopped in partitions that it reads no more.
    """

    next: Mapping[int, int]
    version: int
    start: Mapping[int, int] | None = None
    planned: Planned | None = None
    left_out: Mapping[int, int] = field(default_factory=dict)

    @property
    def known(self) -> Mapping[int, int]:
        """The next offset in each partition that the stream has ever read."""
        return {**self.left_out, **self.next}

    def to_json(self) -> dict[str, Any]:
        """Returns the offsets as Spark stores them.

        >>> StreamOffsets({1: 9, 0: 7}, 41).to_json()
        {'0': 7, '1': 9, 'version': 41}
        """
        out: dict[str, Any] = by_partition_json(self.next)
        named: dict[str, Any] = {"version": self.version}
        if self.start is not None:
            named["from"] = by_partition_json(self.start)
        if self.left_out:
            named["left_out"] = by_partition_json(self.left_out)
        if (planned := self.planned) is not None:
            named |= {"log": planned.log, "log_id": planned.log_id}
            named |= {"planned": planned.version, "commit": planned.commit_id}
        return out | {name: named[name] for name in sorted(named)}


@dataclass(frozen=True, slots=True)
class ChangesOffsets:
    """Where a stream of changes is. ``{"0": 7, "1": 9, "changes": 57, "commit": "b1…", "log":
    "orders", "log_id": "6f…"}``: it has delivered all changes up to version 57, whose stable
    offsets ``next`` are.

    ``is_part`` (``"rows": true``): it began with the rows of that version, and has delivered those
    below the offsets. ``since`` (``from``): the version that the query began after, only in its
    first offsets, and not if it began with rows.
    """

    next: Mapping[int, int]
    planned: Planned
    is_part: bool = False
    since: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the offsets as Spark stores them."""
        planned = self.planned
        named: dict[str, Any] = {"changes": planned.version, "commit": planned.commit_id}
        if self.since is not None:
            named["from"] = self.since
        named |= {"log": planned.log, "log_id": planned.log_id}
        if self.is_part:
            named["rows"] = True
        return by_partition_json(self.next) | named


def parse_changes(value: Mapping[str, Any]) -> ChangesOffsets | None:
    """Returns the offsets that a checkpoint of changes holds; None for the initial offset."""
    if "init" in value:
        return None
    try:
        planned = _planned({**value, "planned": value["changes"]})
        since = value.get("from")
        return ChangesOffsets(
            _offsets({name: v for name, v in value.items() if name.isdigit()}),
            planned,
            is_part=value.get("rows", False) is True,
            since=since if type(since) is int else None,
        )
    except (ValueError, KeyError) as e:
        raise InvalidInputError(
            'the checkpoint\'s offsets are not those of a stream of view "changes"; if the view or'
            " the source of this query was changed, give it a new checkpointLocation"
        ) from e


def initial_json(position: Position | Times | Since) -> dict[str, Any]:
    """Returns the initial offset, which is symbolic and therefore always the same."""
    if isinstance(position, str):
        return {"init": position}
    if isinstance(position, Times):
        ms = position.ms
        return {"init": {"timestamp": ms if isinstance(ms, int) else by_partition_json(ms)}}
    if isinstance(position, Since):
        return {"init": {"since": position.version}}
    return {"init": by_partition_json(position)}


def by_partition_json(offsets: Mapping[int, int]) -> dict[str, Any]:
    """Returns one number by partition, in numeric order."""
    return {str(p): offsets[p] for p in sorted(offsets)}


def parse_offsets(value: Mapping[str, Any]) -> StreamOffsets | None:
    """Returns the offsets that a checkpoint holds; None for the initial offset."""
    if "init" in value:
        return None
    rest = {name: v for name, v in value.items() if name not in _NAMES}
    try:
        start = value.get("from")
        return StreamOffsets(
            _offsets(rest),
            _whole(value["version"]),
            None if start is None else _offsets(start),
            _planned(value) if "planned" in value else None,
            _offsets(value.get("left_out", {})),
        )
    except (ValueError, KeyError, AttributeError) as e:
        raise InvalidInputError(
            "the checkpoint's offsets are not those of a clog stream; if the source of this query"
            " was changed, give it a new checkpointLocation"
        ) from e


def resolve(
    position: Position, starts: Mapping[int, int], ends: Mapping[int, int], *, option: str
) -> dict[int, int]:
    """Returns the offset that a position names in each partition of ``starts`` and ``ends``."""
    if position == "earliest":
        return dict(starts)
    if position == "latest":
        return dict(ends)
    check_all_named(position, list(starts), option=option)
    special = {EARLIEST: starts, LATEST: ends}
    return {p: special[o][p] if o in special else o for p, o in position.items()}


def check_all_named(position: Mapping[int, int], partitions: Sequence[int], *, option: str) -> None:
    """Raises if a partition has no number, or a number is for no partition."""
    missing = [p for p in partitions if p not in position]
    unknown = [p for p in position if p not in partitions]
    if unknown:
        raise OptionError(
            f'option "{option}" names partitions {unknown}, which are not read;'
            f" read are {list(partitions)}"
        )
    if missing:
        raise OptionError(
            f'option "{option}" does not name partitions {missing}; name all that are read'
            f" ({list(partitions)}); among offsets, -1 is latest and -2 earliest"
        )


def parse_position(value: str, log_name: str) -> Position:
    """Reads where to start or end, by offset; also in Kafka's form, by topic, of this log only."""
    must = (
        'earliest, latest, or JSON by partition such as {"0": 23, "1": -2};'
        " -2 is earliest, -1 latest"
    )
    word = (_of_the_log(value, log_name) or value).lower()
    if word == "earliest":
        return "earliest"
    if word == "latest":
        return "latest"
    return _by_partition(value, log_name, EARLIEST, must)


def parse_times(value: str, log_name: str) -> Mapping[int, int]:
    """Reads moments by partition, as `parse_position` reads offsets."""
    must = (
        "JSON by partition, milliseconds since 1970 or ISO 8601,"
        ' such as {"0": 1767225600000, "1": "2026-01-01T00:00:00Z"}'
    )
    return _by_partition(value, log_name, 0, must, number_of=units.time_ms)


def _of_the_log(value: str, log_name: str) -> str | None:
    """Returns the word in ``{"<log>": "<word>"}``."""
    try:
        parsed = json.loads(value)
    except ValueError:
        return None
    if not isinstance(parsed, dict) or list(parsed) != [log_name]:
        return None
    word = parsed[log_name]
    return word if isinstance(word, str) else None


def _by_partition(
    value: str,
    log_name: str,
    smallest: int,
    must: str,
    *,
    number_of: Callable[[str], int] | None = None,
) -> dict[int, int]:
    """Reads numbers by partition; ``number_of`` parses those that are given as text."""
    try:
        parsed = json.loads(value)
    except ValueError:
        raise ValueError(must) from None
    if isinstance(parsed, dict) and list(parsed) == [log_name] and type(parsed[log_name]) is dict:
        parsed = parsed[log_name]  # Kafka's form: by topic first.
    if isinstance(parsed, dict) and dict in map(type, parsed.values()):
        raise ValueError(f'of the log "{log_name}" alone, such as {{"{log_name}": {{"0": 23}}}}')
    if not isinstance(parsed, dict) or not parsed:
        raise ValueError(must)
    numbers: dict[int, int] = {}
    for p, given in parsed.items():
        number = number_of(given) if number_of and isinstance(given, str) else given
        if not (p.isascii() and p.isdigit()) or type(number) is not int or number < smallest:
            raise ValueError(must)
        numbers[int(p)] = number
    return dict(sorted(numbers.items()))


def _offsets(by_partition: Mapping[str, Any]) -> dict[int, int]:
    return {int(p): _whole(offset) for p, offset in by_partition.items()}


def _planned(value: Mapping[str, Any]) -> Planned:
    log, log_id, commit_id = (str(value[name]) for name in ("log", "log_id", "commit"))
    return Planned(log, log_id, _whole(value["planned"]), commit_id)


def _whole(number: Any) -> int:
    if type(number) is not int:
        raise ValueError(number)
    return number
