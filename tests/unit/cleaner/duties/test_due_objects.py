"""Which released objects may be deleted (S27, FORMAT.md §6)."""

from dataclasses import replace

from clog.cleaner.duties.sweep import due_objects
from clog.storage.config.log_config import LogConfig
from clog.storage.format.chunks import Released
from clog_testing.histories import fresh_manifest

CONFIG = LogConfig.from_overrides({"file.delete.delay.ms": "100"})


def test_an_object_is_dead_since_it_lost_its_last_chunk():
    """Released at version 3 by one partition and at version 9 by another: only the last counts."""
    released = (
        Released("data/a", 10, 3, 1_000),
        Released("data/b", 10, 4, 1_000),
        Released("data/a", 10, 9, 2_000),
    )
    manifest = replace(fresh_manifest(), released=released)
    due = {now: due_objects(manifest, CONFIG, now_ms=now) for now in (1_100, 1_101, 2_100, 2_101)}
    assert due == {
        1_100: [],
        1_101: [released[1]],
        2_100: [released[1]],
        2_101: [released[2], released[1]],
    }
