"""A log with a topic's offsets, in Spark: gaps, an emptied partition, a cut (S75)."""

import pytest

from clog.storage import Log, snapshot

pytestmark = pytest.mark.nightly


def mirrored(log, offsets, ends, starts=None):
    with log.transaction("clog-mirror") as t:
        t.cover(ends, start=starts or {})
        t.append([{"key": f"k{at % 3}", "value": str(at)} for at in offsets], 0, offsets=offsets)
        t.positions("kafka:cluster/topic", {p: (end, "1") for p, end in ends.items()})


@pytest.fixture
def log(url):
    """Records at 3, 4, 9 of a partition that ends at 16, and an empty one that ends at 5,000."""
    made = Log.create(url, 2, features=["given-offsets"])
    mirrored(made, [3, 4, 9], {0: 16, 1: 5000}, {0: 2, 1: 5000})
    return made


def test_offsets_of_the_topic_are_those_of_queries(queries, log):
    """In gaps, at ends that no record marks, in the emptied partition; other ones are refused as
    for any log.
    """
    found = queries.collected(queries.read(log.url))
    assert found == [(0, 3, "3"), (0, 4, "4"), (0, 9, "9")]
    for start, end, expected in ((5, 16, [9]), (4, 9, [4]), (9, 10, [9]), (10, 16, [])):
        offsets = {
            "startingOffsets": f'{{"0": {start}, "1": 5000}}',
            "endingOffsets": f'{{"0": {end}, "1": 5000}}',
        }
        rows = queries.collected(queries.read(log.url, **offsets))
        assert [at for _, at, _ in rows] == expected


def test_a_stream_goes_on_at_the_topics_offsets(queries, log, tmp_path):
    """Where a Kafka query stopped, after a marker; and over ends that rise without a record."""
    target, checkpoint = tmp_path / "target", tmp_path / "checkpoint"
    starting = {"startingOffsets": '{"0": 5, "1": 5000}'}
    queries.run(log.url, target, checkpoint, **starting)
    mirrored(log, [], {0: 20, 1: 6000})
    queries.run(log.url, target, checkpoint, **starting)
    mirrored(log, [23, 24], {0: 30})
    queries.run(log.url, target, checkpoint, **starting)
    assert sorted(queries.values(target)) == ["23", "24", "9"]


def test_the_table_at_a_cut(queries, log):
    """The newest one has what was added since."""
    snapshot(log.url, "then")
    mirrored(log, [20, 21], {0: 25})

    def table(**options):
        rows = queries.read(log.url, view="table", **options).collect()
        return {bytes(row.key): bytes(row.value) for row in rows}

    assert table(asOfCut=f"{log.url}#then") == {b"k0": b"9", b"k1": b"4"}
    assert table() == {b"k0": b"21", b"k1": b"4", b"k2": b"20"}
