"""Which changes of the order of records are refused: those listed in docs/which-record-wins.md, and
no others (S56, S57; FORMAT.md §15).
"""

import itertools
import re
from pathlib import Path

import pytest

from clog.cleaner import Cleaner
from clog.storage import InvalidInputError
from clog_testing.crash import memory_store

PAGE = Path(__file__).parents[3] / "docs/which-record-wins.md"
DAY_MS = 86_400_000
VALUES = {
    "compaction.strategy": ("offset", "timestamp", "header"),
    "compaction.strategy.header": ("", "lsn"),
    "compaction.late": ("keep", "drop"),
    "compaction.late.scope": ("key", "log"),
    "cleanup.policy": ("compact", "compact,delete"),
    "message.timestamp.type": ("CreateTime", "LogAppendTime"),
    "message.timestamp.after.max.ms": ("3600000", str(DAY_MS + 1)),
}
CHANGES = [dict(zip(VALUES, values, strict=True)) for values in itertools.product(*VALUES.values())]
LOGS = {
    "of offsets": {},
    "cleaned": {"min.cleanable.dirty.ratio": "0"},
    "by header": {"compaction.strategy": "header", "compaction.strategy.header": "lsn"},
    "by time": {"compaction.strategy": "timestamp", "compaction.late": "drop"},
    "times of commits": {"message.timestamp.type": "LogAppendTime"},
    "mirror": {},
    "from the future": {"message.timestamp.after.max.ms": "unlimited"},
}


def listed(log, new):
    """The list's answer for a change, row by row."""
    strategy, header, late, scope, policy, times, after_ms = new.values()
    ordered, drops, by_time = strategy != "offset", late == "drop", strategy == "timestamp"
    return [
        (strategy == "header") != bool(header),
        drops and not ordered,
        scope == "log" and strategy != "header",
        drops and strategy == "header" and scope == "key",
        ordered and policy != "compact",
        ordered and log == "mirror",
        by_time and times == "LogAppendTime",
        by_time and int(after_ms) > DAY_MS,
        by_time and log == "from the future",
    ]


def row(key, value, **more):
    return {"key": key, "value": value, "headers": [("lsn", b"\0" * 8)], **more}


@pytest.fixture
def log_of(make_log, clock):
    """Makes a log of a kind, with a record."""

    def make(kind):
        given = {"features": ["given-offsets"]} if kind == "mirror" else {}
        log = make_log(config=LOGS[kind], on=memory_store(), **given)
        if kind == "from the future":
            log.append([row("a", "1", timestamp=clock.now_ms() + 400 * DAY_MS)])
        elif kind == "cleaned":
            log.append([row("a", "1"), row("a", "2")])
            log.roll()
            Cleaner(log).run_once(force=True)
        elif kind != "mirror":
            log.append([row("a", "1")])
        return log

    return make


@pytest.mark.parametrize("kind", LOGS)
def test_a_change_is_refused_where_the_list_says_so(log_of, kind):
    """docs/which-record-wins.md: each change of all, alone and with others; from other logs than
    the first, those that are allowed there.
    """
    log = log_of(kind)
    first = kind == "of offsets"
    for new in (new for new in CHANGES if first or not any(listed("of offsets", new))):
        at = log.version
        if any(listed(kind, new)):
            with pytest.raises(InvalidInputError):
                log.alter(new)
            assert log.version == at, new
        else:
            assert log.alter(new).items() >= new.items()
            assert log.table().get("a") is not None or kind == "mirror"
            log = log_of(kind)


def test_the_list_has_a_row_for_each_reason():
    """None of them is redundant: each is the only refusal somewhere."""
    section = PAGE.read_text().partition("## Changing it")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (?!refused|-)(.+?) \|", section, re.MULTILINE)
    said = [listed(kind, new) for kind in LOGS for new in CHANGES]
    assert len(rows) == len(said[0])
    alone = [reasons.index(True) for reasons in said if sum(reasons) == 1]
    assert set(alone) == set(range(len(rows)))


def test_times_of_commits_are_compared_as_any(log_of, clock):
    """docs/which-record-wins.md: the way they are read counts, in one change or in two."""
    log = log_of("times of commits")
    at_ms = clock.now_ms()
    log.alter({"message.timestamp.type": None, "compaction.strategy": "timestamp"})
    log.append([row("a", "older", timestamp=at_ms - 1)])
    assert log.table().get("a") == b"1"
    log.append([row("a", "newer", timestamp=at_ms + 1)])
    assert log.table().get("a") == b"newer"
