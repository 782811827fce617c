"""How far a streaming query is behind its logs, from Spark's progress.

A Python source cannot report metrics of its own, but the progress holds the offsets: the
difference is what Spark's Kafka source calls ``minOffsetsBehindLatest``,
``maxOffsetsBehindLatest`` and ``avgOffsetsBehindLatest``.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Lag:
    """How far one source is behind its log.

    Attributes:
        partitions: by partition, the offsets between the end of the last batch and the end of the
            log.
        log: the log's name; empty where an older clog made the last batch.
    """

    partitions: Mapping[int, int]
    log: str = ""

    @property
    def min_offsets_behind_latest(self) -> int:
        """The smallest lag of a partition; 0 without partitions."""
        return min(self.partitions.values(), default=0)

    @property
    def max_offsets_behind_latest(self) -> int:
        """The lag of the partition that is furthest behind."""
        return max(self.partitions.values(), default=0)

    @property
    def avg_offsets_behind_latest(self) -> float:
        """The mean lag of the partitions."""
        return sum(self.partitions.values()) / max(1, len(self.partitions))


def lag(progress: Any) -> list[Lag]:
    """Returns one `Lag` for each clog source of a query, in the order of its sources.

    Args:
        progress: ``query.lastProgress``, or what a ``StreamingQueryListener`` is given; None,
            before the first progress, has no sources.

    >>> source = {"endOffset": {"0": 5, "1": 9, "version": 3}, "latestOffset": {"0": 7, "1": 9}}
    >>> lag({"sources": [source]})[0].max_offsets_behind_latest
    2
    """
    found = []
    for source in _field(progress, "sources") or ():
        values = (_parsed(_field(source, name)) for name in ("endOffset", "latestOffset"))
        (at, named), (latest, _) = ((_offsets(value), value) for value in values)
        if at and latest:
            behind = {p: max(0, end - at[p]) for p, end in latest.items() if p in at}
            found.append(Lag(behind, str(named.get("log", ""))))
    return found


def _field(holder: Any, name: str) -> Any:
    return holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)


def _parsed(value: Any) -> Mapping[str, Any]:
    """Returns the object that JSON holds; an empty one for anything else."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, Mapping) else {}


def _offsets(value: Mapping[str, Any]) -> dict[int, int]:
    """Returns offsets by partition, of a clog source; nothing for another's."""
    return {int(p): n for p, n in value.items() if p.isdigit() and type(n) is int}
