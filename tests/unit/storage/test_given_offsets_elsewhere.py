"""Logs with given offsets, with gaps and partitions that are empty far from 0, as other parts see
them: engines, cuts, published views, copies, repairs (S75).
"""

import pytest
from tests.unit.storage.diagnostics.test_repair import Overwriting

from clog.storage import Log, snapshot
from clog.storage.diagnostics.repair import repair_log
from clog.storage.diagnostics.verify import verify_log
from clog_testing.crash import discard, memory_store
from clog_testing.invariants import check_log

TOPIC = "kafka:cluster/topic"


def mirrored(log, offsets, ends, starts=None, value=str):
    """A mirror's commit: records of partition 0, and how far the topic is covered."""
    with log.transaction("clog-mirror") as t:
        t.cover(ends, start=starts or {})
        records = [{"key": f"k{at % 3}", "value": value(at)} for at in offsets]
        t.append(records, 0, offsets=offsets)
        t.positions(TOPIC, {p: (end, "1") for p, end in ends.items()})


@pytest.fixture
def log(tmp_path):
    """Gaps before, between and after records; a partition whose records were all purged."""
    made = Log.create(str(tmp_path / "log"), 2, features=["given-offsets"])
    mirrored(made, [3, 4, 9], {0: 16, 1: 5000}, {0: 2, 1: 5000})
    return made


FIRST = {b"k0": b"9", b"k1": b"4"}
THEN = {b"k0": b"21", b"k1": b"4", b"k2": b"20"}


def by_duckdb(table):
    return dict(table.to_duckdb().project("key, value").fetchall())


def by_polars(table):
    return dict(table.to_polars().select("key", "value").iter_rows())


def by_pandas(table):
    frame = table.to_pandas()
    return dict(zip(frame["key"], frame["value"], strict=True))


@pytest.mark.parametrize("read", [by_duckdb, by_polars, by_pandas])
def test_engines_read_the_table_now_and_at_a_cut(log, read):
    """And the records with the topic's offsets."""
    cut = snapshot(log.url, "then")
    mirrored(log, [20, 21], {0: 25, 1: 6000}, {1: 5500})
    assert (read(log.table(at=cut)), read(log.table())) == (FIRST, THEN)
    assert cut.changed() == [log.url], "a start has moved"
    found = log.read().to_polars() if read is by_polars else log.read().to_arrow()
    column = found["offset"]
    offsets = column.to_list() if read is by_polars else column.to_pylist()
    assert offsets == [3, 4, 9, 20, 21]
    assert (log.start_offsets(), log.end_offsets()) == ({0: 2, 1: 5500}, {0: 25, 1: 6000})


def test_other_engines_read_its_views_at_the_cut(log):
    """Published at the cut's version, although the log continued, including its gaps."""
    deltalake = pytest.importorskip("deltalake")
    polars = pytest.importorskip("polars")
    cut = snapshot(log.url, "then", publish=["delta"])
    mirrored(log, [20, 21], {0: 25})
    log.publish("delta")
    number = cut.views()[log.url]["delta"]
    assert deltalake.DeltaTable(log.url).version() > number
    for version, expected in ((number, FIRST), (None, THEN)):
        rows = polars.read_delta(log.url, version=version).select("key", "value")
        assert dict(rows.iter_rows()) == expected


def test_a_repair_keeps_the_offsets(make_log, open_log, store):
    """Given offsets, ends without records, the position: the mirror continues there."""
    log = make_log(partitions=2, features=["given-offsets"])
    mirrored(log, [3, 4, 9], {0: 16, 1: 5000}, {0: 2, 1: 5000})
    mirrored(log, [20, 21], {0: 25})
    second = open_log(Overwriting(store))
    mirrored(log, [26], {0: 29})
    second.append([{"key": "k", "value": "lost"}], 0, ("other", 1), offsets=[27])
    for i in range(8):
        mirrored(log, [30 + 2 * i], {0: 32 + 2 * i})
    assert verify_log(store).findings
    copy = memory_store()
    report = repair_log(store, copy)
    assert report.verified.findings == ()
    made = open_log(copy)
    offsets = [o for batch in made.read(0) for o in batch.column("offset").to_pylist()]
    assert offsets == [3, 4, 9, 20, 21, 26, *range(30, 46, 2)]
    assert made.start_offsets() == {0: 2, 1: 5000}
    ends = made.end_offsets()
    assert ends == {0: 46, 1: 5000}
    assert made.positions("clog-mirror") == {TOPIC: ends}
    mirrored(made, [ends[0] + 7], {0: ends[0] + 9})
    check_log(copy)
    discard(copy)


def test_a_copy_has_the_records_in_their_order(log, tmp_path, cli):
    """`clog copy` makes an ordinary log, without gaps; `clog consume --table` has the table."""
    cli("copy", log.url, target := str(tmp_path / "copy"))
    made = Log.open(target)
    assert made.table().to_arrow().num_rows == 2
    assert [r["value"] for b in made.read(0) for r in b.to_pylist()] == [b"3", b"4", b"9"]
    assert made.end_offsets() == {0: 3, 1: 0}
    made.append([{"key": "k0", "value": "mine"}])
    assert made.table().get("k0") == b"mine"
