"""How far a query is behind, from its progress."""

from types import SimpleNamespace

from clog.connector import lag

SOURCE = {
    "startOffset": '{"0": 0, "1": 0, "version": 1}',
    "endOffset": '{"0": 5, "1": 10, "from": {"0": 0, "1": 0}, "version": 1}',
    "latestOffset": '{"0": 25, "1": 10}',
}


def test_lag_has_kafkas_three_numbers():
    """Over the partitions: least, most, mean."""
    (one,) = lag({"sources": [SOURCE]})
    assert one.partitions == {0: 20, 1: 0}
    assert one.min_offsets_behind_latest == 0
    assert one.max_offsets_behind_latest == 20
    assert one.avg_offsets_behind_latest == 10.0


def test_lag_names_the_log():
    """A query may read several; offsets of an older clog do not contain it."""
    end = '{"0": 5, "1": 10, "log": "orders", "log_id": "6f", "planned": 3, "version": 1}'
    one, other = lag({"sources": [{**SOURCE, "endOffset": end}, SOURCE]})
    assert (one.log, other.log) == ("orders", "")
    assert one.partitions == other.partitions


def test_progress_may_be_an_object():
    """A listener gets objects, `lastProgress` may be a dict."""
    progress = SimpleNamespace(sources=[SimpleNamespace(**SOURCE)])
    assert lag(progress) == lag({"sources": [SOURCE]})


def test_other_sources_are_passed_over():
    """A rate or file source has offsets of another form; before the first batch there are none."""
    others = [{"endOffset": "7", "latestOffset": "9"}, {"endOffset": None, "latestOffset": None}]
    assert len(lag({"sources": [*others, SOURCE]})) == 1
    assert lag(None) == []
