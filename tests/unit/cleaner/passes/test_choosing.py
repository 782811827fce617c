"""What is kept of the choice of partitions between two passes (S15)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clog.cleaner import selection
from clog.cleaner.selection import JUDGED_MS, Choosing, candidates
from clog.storage.config.log_config import LogConfig
from clog.storage.format.commits import Edit
from clog_testing.histories import append_edit, applied, fresh_manifest, histories

CONFIG = LogConfig.from_overrides({"min.cleanable.dirty.ratio": "0"})
NOW_MS = 10_000


@pytest.fixture
def judged(monkeypatch):
    """The partitions that were judged."""
    found = []
    judge = selection.candidate

    def counted(manifest, config, partition, **given):
        found.append(partition)
        return judge(manifest, config, partition, **given)

    monkeypatch.setattr(selection, "candidate", counted)
    return found


def dirty(partitions=6):
    """A log with a sealed segment in each partition."""
    manifest = fresh_manifest(partitions)
    for n in range(2):
        rows = dict.fromkeys(range(partitions), 2)
        manifest = applied(manifest, append_edit(manifest, rows, f"{n:032x}", rolls=True))
    return manifest


@given(histories(), st.booleans())
def test_at_one_time_they_are_those_of_a_fresh_look(history, force):
    """At each version of a log, whatever was asked before: what changed is judged again."""
    kept, (newest, edits) = Choosing(), history
    manifest = fresh_manifest(newest.head.log.partitions)
    for edit in (Edit(), *edits):
        manifest = applied(manifest, edit)
        found = kept.candidates(manifest, CONFIG, now_ms=NOW_MS, force=force)
        assert found == candidates(manifest, CONFIG, now_ms=NOW_MS, force=force)


def test_only_what_changed_is_judged_again(judged):
    """By an append, a raised start, a first dirty offset; each alone."""
    kept, manifest = Choosing(), dirty()
    asked = {"now_ms": NOW_MS, "force": False}
    assert len(kept.candidates(manifest, CONFIG, **asked)) == 6
    assert sorted(judged) == [0, 1, 2, 3, 4, 5]
    changes = [
        (append_edit(manifest, {3: 1}, "a" * 32), [3]),
        (Edit(start={1: 1}), [1]),
        (Edit(first_dirty={5: 2}), [5]),
        (Edit(orphan_floor=1), []),
    ]
    for edit, expected in changes:
        judged.clear()
        manifest = applied(manifest, edit)
        found = kept.candidates(manifest, CONFIG, **asked)
        assert judged == expected
        assert found == candidates(manifest, CONFIG, **asked)


@pytest.mark.parametrize("now_ms", [NOW_MS + JUDGED_MS, NOW_MS - 1])
def test_all_are_judged_again_after_a_while(judged, now_ms):
    """Time makes partitions eligible, and a clock may be set back."""
    kept, manifest = Choosing(), dirty()
    kept.candidates(manifest, CONFIG, now_ms=NOW_MS, force=False)
    kept.candidates(manifest, CONFIG, now_ms=NOW_MS + JUDGED_MS - 1, force=False)
    assert len(judged) == 6
    kept.candidates(manifest, CONFIG, now_ms=now_ms, force=False)
    assert len(judged) == 12


def test_another_config_or_an_order_judges_all(judged):
    """What was eligible may not be any more."""
    kept, manifest = Choosing(), dirty()
    kept.candidates(manifest, CONFIG, now_ms=NOW_MS, force=False)
    other = LogConfig.from_overrides({"cleanup.policy": "delete"})
    assert kept.candidates(manifest, other, now_ms=NOW_MS, force=False) == []
    assert len(kept.candidates(manifest, CONFIG, now_ms=NOW_MS, force=True)) == 6
    assert len(judged) == 18
