"""What `clog capture --listen` tells of a capture."""

from clog.bridge import Captured, CapturedTable
from clog.cli.capture import Watched


class Clock:
    def __init__(self):
        self.now = 0

    def monotonic_ms(self):
        return self.now


def told(*, loading=False, position="0/1"):
    table = CapturedTable("s3://b/public.t", 3, loaded=10, is_loading=loading, rows=12)
    return Captured("s3://b", {"public.t": table}, position, 2048, 1500, 4096, transactions=7)


def samples(watched):
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in watched.collect()
        for sample in family.samples
    }


def test_metrics_are_those_of_the_newest_report():
    """Lag in bytes and seconds, what the slot keeps, rows by table."""
    watched = Watched(Clock())
    assert samples(watched) == {}
    watched.take(told())
    found = samples(watched)
    assert found["clog_capture_lag_bytes",] == 2048
    assert found["clog_capture_lag_seconds",] == 1.5
    assert found["clog_capture_slot_bytes",] == 4096
    assert found["clog_capture_transactions_total",] == 7
    assert found["clog_capture_rows_total", "public.t"] == 12
    assert found["clog_capture_loading_tables_count",] == 0


def test_it_is_ready_with_a_cut_and_well_while_something_moves():
    """A load is no ailment; a quarter of an hour without a word is one."""
    clock = Clock()
    watched = Watched(clock)
    assert watched.neglects()
    watched.take(told(loading=True, position=None))
    assert watched.neglects() == ["there is no cut yet", "public.t is being loaded"]
    assert not watched.ailments()
    watched.take(told())
    assert not watched.neglects()
    clock.now = 901_000
    assert "901 s" in watched.ailments()[0]
    assert watched.neglects() == watched.ailments()
