"""FORMAT.md §21 by the second reader: it derives the same answers from the edits as each head has,
and reads the records of a commit that holds the appends of many.
"""

import agreement
import pytest

from clog.storage import Log, ManualClock
from clog.storage.env import SeededIds


class Racing(ManualClock):
    """A clock by which the next sleeper is passed by another, once."""

    then = None

    def sleep_ms(self, ms):
        super().sleep_ms(ms)
        then, self.then = self.then, None
        if then is not None:
            then()


def test_both_readers_find_the_same_in_a_log_of_many(tmp_path):
    """Applied, withdrawn and forgotten: at each version, from edits and from snapshots."""
    root, seeds = str(tmp_path / "log"), iter(range(1, 1000))

    def opened(now_ms):
        return Log.open(root, clock=Racing(now_ms), ids=SeededIds(next(seeds)))

    Log.create(root, 2, {"segment.chunks": 8}, clock=Racing(1_000_000), ids=SeededIds(0))

    def row(value):
        return [{"key": f"k{len(value) % 3}", "value": value}]

    for n in range(40):
        now_ms = 1_000_000 + 4_000 * n
        a, b, c = (opened(now_ms) for _ in range(3))
        b.append(row("b"), n % 2, ("p", n))
        c.handle.clock.advance(n % 5)
        a.handle.clock.then = lambda c=c, n=n: c.append(row("c" * 30), n % 2)
        a.append(row("a" * (n % 7)), 0)
    left = opened(now_ms)
    opened(now_ms).append(row("race"))

    def interrupt():
        raise KeyboardInterrupt

    combiner = left.handle._committing[1]
    combiner._cycle_ms, combiner._place = 1_000.0, lambda *_: 9  # Others come first.
    left.handle.clock.then = interrupt
    with pytest.raises(KeyboardInterrupt):
        left.append(row("left"))
    left.alter({"retention.ms": "1000000000"})
    combined = opened(now_ms).handle.tip.head.combined
    assert combined.first > 0
    assert len(combined.authors) > 2
    assert not all(answer.is_applied for answer in combined.authors)
    agreement.agree(tmp_path / "log", opened(now_ms))
