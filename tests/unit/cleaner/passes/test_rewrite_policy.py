"""Mark or rewrite: the formula at its edges (S21, S46)."""

import pytest

from clog.cleaner.passes.judge import Action, JudgedChunk, Removed
from clog.cleaner.passes.rewriter import RewritePolicy
from clog.storage.config.log_config import LogConfig
from clog.storage.format.chunks import Chunk, DeadRows, ObjectRef

DELAY = 700
NOW = 10_000
ROWS = 40


def action(dies, *, older=0, age_ms=0, delay_ms=DELAY, **config):
    """What happens to a chunk of 40 rows in which this many die, and some died before."""
    config = {"dead.rows.delay.ms": str(delay_ms), "object.bytes": "64", **config}
    ref = ObjectRef("data/x.parquet", 1000, 100, "", ROWS, 0, dense=True)
    chunk = Chunk(
        *(ref, 0, ROWS, 0, ROWS, 4000, 0, 0),
        tombstones=0,
        version=1,
        dead=DeadRows(older, b"", NOW - age_ms) if older else None,
    )
    policy = RewritePolicy(LogConfig.from_overrides(config), now_ms=NOW)
    return policy.action(JudgedChunk(chunk, Removed(superseded=dies)))


@pytest.mark.parametrize(
    ("dies", "options", "expected"),
    [
        (0, {}, Action.KEEP),
        (1, {}, Action.MARK),
        (9, {}, Action.MARK),  # 3 × 9 < 31
        (10, {}, Action.REWRITE),  # 3 × 10 = 30
        (ROWS, {}, Action.REWRITE),
        (1, {"older": 8}, Action.MARK),
        (1, {"older": 9}, Action.REWRITE),
        (1, {"older": 4, "age_ms": 350}, Action.MARK),  # 3 × 5 × 2 < 35
        (1, {"older": 5, "age_ms": 350}, Action.REWRITE),  # 3 × 6 × 2 ≥ 34
        (1, {"older": 1, "age_ms": 589}, Action.MARK),  # 6 × 700 = 4200 < 38 × 111
        (1, {"older": 1, "age_ms": 590}, Action.REWRITE),  # ≥ 38 × 110
        (1, {"older": 1, "age_ms": DELAY - 1}, Action.REWRITE),
        (1, {"older": 1, "age_ms": DELAY}, Action.REWRITE),
        (0, {"older": 1, "age_ms": DELAY - 1}, Action.KEEP),  # Its purge will come.
        (8, {"older": 1, "age_ms": -5000}, Action.MARK),  # Marked by a clock that is ahead.
        (9, {"older": 1, "age_ms": -5000}, Action.REWRITE),
        (1, {"delay_ms": 0}, Action.REWRITE),
        (1, {"object.bytes": "99999"}, Action.REWRITE),
    ],
)
def test_the_formula(dies, options, expected):
    """3 × dead × delay ≥ live × left: earlier dead rows count, and the delay runs from the first of
    them.
    """
    assert action(dies, **options) is expected


@pytest.mark.parametrize("share", [1, 5, 10])
def test_uniform_updates_are_marked(share):
    """For a chunk of which this many per cent died, as of one million rows."""
    assert action(ROWS * share // 100 or 1) is Action.MARK


def test_a_third_of_the_keys_is_rewritten():
    """Readers would pay for the dead rows more than one rewrite costs."""
    assert action(ROWS * 30 // 100) is Action.REWRITE


def test_the_chunk_of_uniform_updates_is_rewritten_in_time():
    """10 % at each of ten passes within the delay: every third one rewrites, the last before the
    deadline never leaves bytes beyond it (S46).
    """
    older, since, rewrites = 0, 0, []
    for n in range(10):
        age = (n - since) * DELAY // 10
        if action(4, older=older, age_ms=age) is Action.REWRITE:
            rewrites.append(n)
            older = 0
        else:
            since = since if older else n
            older += 4
    assert rewrites == [2, 5, 8]
