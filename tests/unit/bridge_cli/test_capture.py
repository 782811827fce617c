"""What `clog capture` reports about a capture, over HTTP and in lines, and what it refuses."""

import sys

import pytest

from clog.bridge import Captured, CapturedTable
from clog.bridge_cli.capture import Watched, _pace


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
    """Lag in bytes and seconds, what the slot keeps, rows per table."""
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
    """A load is healthy; a quarter of an hour without progress is not."""
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


@pytest.mark.parametrize(
    "more",
    [
        ["--events"],
        ["--publication", "p"],
        ["--slot-max-mib", "9"],
        ["--reload", "shop.a"],
    ],
)
def test_what_is_of_postgresql_alone_is_refused_for_mysql(cli, tmp_path, more):
    """With a message, before anything is queried or written."""
    refused = cli("capture", "mysql://clog@db/shop", tmp_path / "shop", *more, code=2)
    assert "only for PostgreSQL" in " ".join(refused.stderr.replace("│", " ").split())
    assert not (tmp_path / "shop").exists()


def test_a_client_that_is_missing_is_no_usage_error(cli, tmp_path, monkeypatch):
    """The command line is right; exit code 1, as for each other package."""
    monkeypatch.setitem(sys.modules, "psycopg2", None)
    refused = cli("capture", "postgres://clog@db/shop", tmp_path / "shop", code=1)
    assert "error: PostgreSQL needs psycopg2: " in refused.stderr
    assert "Usage" not in refused.stderr


def test_what_a_source_does_not_know_is_not_told():
    """MySQL has no slot, and does not report how many rows a table has."""
    table = CapturedTable("s3://b/shop.t", 3, loaded=10, is_loading=True)
    assert _pace(Captured("s3://b", {"shop.t": table}, None)) == "loading shop.t 10 rows"
    assert "slot" not in _pace(Captured("s3://b", {}, "000001:4"))
    assert "the slot keeps 4.0 KiB" in _pace(Captured("s3://b", {}, "0/1", slot_bytes=4096))


def test_a_password_in_an_address_of_mysql_is_not_shown(cli, tmp_path):
    """Wherever it is in the URL."""
    for source in ("mysql://clog:hunter2@db/shop", "mysql://clog@db:hunter2/shop"):
        refused = cli("capture", source, tmp_path / "shop", code=2)
        assert "MYSQL_PWD" in refused.stderr
        assert "hunter2" not in refused.stderr + refused.stdout
