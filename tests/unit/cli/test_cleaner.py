"""`clog cleaner`."""

import json
import os
import pickle
import signal
import sys
import urllib.error
import urllib.request
import warnings
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from clog.cleaner import Cleaner, MaintenanceResult
from clog.cleaner.daemon import broker_config, metrics
from clog.cleaner.selection import PassResult, PassStats
from clog.cli.clean import maintenance_lines, view
from clog.storage import Log, ManualClock, StoreUnavailableError, SystemClock
from clog.storage import env as clock_module
from clog.storage.store.contract import WrappingStore

NOW = SystemClock().now_ms()


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def log(url):
    """A log in which the next round cleans: three of eight sealed records are superseded."""
    config = {"min.cleanable.dirty.ratio": "0.1"}
    log = Log.create(url, partitions=1, config=config, clock=ManualClock(NOW))
    for value in "1234":
        log.append([{"key": "a", "value": value}, {"key": f"b{value}", "value": value}])
    log.roll()
    return log


@pytest.fixture
def asleep(monkeypatch):
    """What happens during the daemon's first sleep, instead of sleeping."""

    @contextmanager
    def asleep(happens):
        class Clock(ManualClock):
            def sleep_ms(self, ms):
                happens()

        monkeypatch.setattr(clock_module, "SystemClock", lambda: Clock(NOW))
        before = {n: signal.getsignal(n) for n in SIGNALS}
        try:
            yield
        finally:
            for n, handler in before.items():
                signal.signal(n, handler)

    return asleep


def stop():
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("number", SIGNALS)
def test_it_runs_until_it_is_stopped(cli, url, log, asleep, number):
    """It logs each pass, sleeps, and ends on a signal with exit code 0."""
    with asleep(lambda: os.kill(os.getpid(), number)):
        signal.signal(number, signal.SIG_DFL)  # Tests may run under nohup.
        result = cli("cleaner", url, "--json")
    (line,) = result.stdout.splitlines()
    assert json.loads(line)["url"] == log.url
    assert json.loads(line)["stats"]["records_removed"] == 3
    told = {"note": {"message": "cleaning 1 log; Ctrl-C stops within seconds"}}
    assert json.loads(result.stderr.splitlines()[0]) == told


def test_sighup_under_nohup(cli, url, log, asleep):
    """If the signal is ignored when the daemon starts, it stays ignored."""
    signals = [signal.SIGHUP, signal.SIGTERM]
    with asleep(lambda: os.kill(os.getpid(), signals.pop(0))):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        cli("cleaner", url)
    assert signals == []


def test_once(cli, url, log):
    """One round, then it ends."""
    assert "removed 3 records" in cli("cleaner", url, "--once").stdout
    assert cli("cleaner", url, "--once").stdout == "nothing was due in 1 log\n"
    assert cli.json("cleaner", url, "--once") == {"logs": 1, "nothing_due": True}


def test_passes_as_spark_tasks(cli, url, log, monkeypatch):
    """With --spark each pass is a job, and log.cleaner.threads says how many run at once, else as
    many as there is capacity for; everything else is the same. The store is sent without the
    daemon's counters.
    """
    from clog.jobs import cleaning

    tasks, room = [], []

    def run_job(spark, task, _tag):
        assert spark == "session"
        tasks.append(pickle.loads(pickle.dumps(task)))
        return [tasks[-1].execute(i) for i in range(len(task.stretches))]

    monkeypatch.setattr(cleaning, "spark_session", lambda: "session")
    monkeypatch.setattr(cleaning, "room_for_tasks", lambda spark: room.append(spark) or 2)
    monkeypatch.setattr(cleaning, "run_job", run_job)
    buffer = "log.cleaner.dedupe.buffer.size=1000000"
    assert "removed 3 records" in cli("cleaner", url, "--spark", "--once", "-c", buffer).stdout
    assert (room, [task.map_bytes for task in tasks]) == (["session"], [1_000_000])
    config = ("-c", "log.cleaner.threads=1")
    told = cli("cleaner", url, "--spark", "--once", *config).stdout
    assert told == "nothing was due in 1 log\n"
    assert len(room) == len(tasks) == 1
    told = cli("cleaner", url, "--spark", "--once", "--single-writer", *config, code=1)
    assert "opened with single_writer" in told.stderr


def test_spark_that_is_not_installed(cli, url, log, monkeypatch):
    """It says what to install."""
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    told = cli("cleaner", url, "--spark", "--once", code=1)
    assert "pyspark" in told.stderr


def test_the_json_format_is_json_alone(cli, url, log, asleep):
    """Notices, warnings and what was done, on both outputs; and errors."""

    def warn():
        warnings.warn("something", UserWarning, stacklevel=1)
        stop()

    with asleep(warn), warnings.catch_warnings():
        warnings.simplefilter("always")
        result = cli("cleaner", url, "--json", "--listen", "127.0.0.1:0")
    lines = [json.loads(line) for line in (result.stdout + result.stderr).splitlines()]
    said = {(line.get("note") or line).get("message", "").split(";")[0] for line in lines}
    assert "cleaning 1 log" in said
    assert any("something" in message for message in said)
    assert any(line.get("url") == log.url for line in lines)
    missing = cli("cleaner", url + "x", "--once", "--json", code=1)
    (line,) = missing.stderr.splitlines()
    assert json.loads(line)["error"]["kind"] == "not_found"
    wrong = cli("cleaner", url, "-c", "x", "--json", code=2)
    assert "NAME=VALUE" in json.loads(wrong.stderr)["error"]["message"]
    assert "--live" in cli("cleaner", url, "--live", "--json", code=2).stderr


@pytest.mark.parametrize("address", ["abc", "localhost", ":", "1:99999", "-1"])
def test_what_is_no_address_is_refused(cli, url, log, address):
    """Even if nothing is served, before anything is done: exit code 2."""
    for more in ([], ["--once"], ["--dry-run"]):
        told = cli("cleaner", url, f"--listen={address}", *more, code=2)
        assert "[HOST:]PORT" in told.stderr


def test_listen_is_for_a_cleaner_that_stays(cli, url, log):
    """With --once and --dry-run, which are added to a command to try it, nothing is served, and a
    note says so.
    """
    for more in ("--once", "--dry-run"):
        assert "has no effect with --once" in cli("cleaner", url, "--listen=9404", more).stderr


def test_a_wrong_command_line_is_json_too(cli, url, log):
    """With --json nothing else is on standard error, and an old name says so in the same form."""
    for form in (["--json"], ["--log-format=json"]):
        *before, told = map(
            json.loads, cli("cleaner", url, "--listen=abc", *form, code=2).stderr.splitlines()
        )
        assert [*map(list, before)] == [["note"]] * (form != ["--json"])
        assert told["error"]["kind"] == "usage"
        assert "'abc' is not [HOST:]PORT" in told["error"]["message"]


def test_once_beside_an_uncleanable_partition(cli, url, log):
    """S28: a scheduler of rounds learns from the exit code that a round had errors."""
    path = log.handle.manifest().segments[0][0].chunks[0].object.path
    log.handle.store.put(path, b"x")
    told = cli("cleaner", url, "--once", code=1)
    assert "partitions [0]" in told.stderr
    assert "uncleanable" in told.stderr
    assert "nothing was due" not in told.stdout


def test_retention_and_sealing_are_told(cli, url):
    """S8, S32: like passes, as text and as JSON; in the round's own result too."""
    config = {"cleanup.policy": "delete", "retention.ms": 1000, "segment.ms": 1000}
    log = Log.create(url, partitions=2, config=config, clock=ManualClock(NOW - 5000))
    rows = [{"key": "a", "value": "1", "timestamp": NOW - 5000}] * 3
    for partition in range(2):
        log.append(rows, partition=partition)
    told = json.loads(cli.lines("cleaner", url, "--once", "--json")[0])
    assert told["sealed"] == [0, 1]
    cut = [(e["partition"], e["start_offset"], e["records"]) for e in told["retention"]]
    assert cut == [(0, 3, 3), (1, 3, 3)]
    log.append(rows, partition=1)
    lines = cli("cleaner", url, "--once").stdout.splitlines()
    assert any("removed 3 records" in line and "below offset 6" in line for line in lines)
    log.append(rows, partition=0)
    (gone,) = cli.json("clean", url)["retention"]
    assert (gone["partition"], gone["records"]) == (0, 3)
    log.append(rows, partition=0)
    assert "below offset 9: retention" in cli("clean", url).stdout
    assert maintenance_lines([MaintenanceResult([1])]) == [
        "sealed the active segment of partition 1: it was idle"
    ]


def test_it_finds_logs_below_a_prefix(cli, tmp_path, url, log):
    """The existing ones; a folder in a log is not one. If there is none, it fails: a misspelt
    folder in cron would stay silent for ever.
    """
    place = ("--discover", tmp_path / "none", "--once")
    nothing = cli("cleaner", *place, code=1)
    assert f"there is no log below {tmp_path / 'none'}; correct it" in nothing.stderr
    assert cli("cleaner", *place, "--allow-none").stdout == "nothing was due in 0 logs\n"
    deep = Log.create(str(tmp_path / "a" / "b"), partitions=1, clock=ManualClock(NOW))
    said = cli.json("cleaner", "--discover", tmp_path, "--dry-run")
    assert [entry["url"] for entry in said["logs"]] == [deep.url, log.url]


@pytest.fixture
def asked(monkeypatch):
    """Requests a path from the daemon's server: the status, and the response's text."""
    servers = []

    class Server(metrics.MonitorServer):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            servers.append(self)

    def asked(path):
        try:
            with urllib.request.urlopen(f"http://{servers[0].address}/{path}") as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as e:
            return e.code, e.read().decode()

    monkeypatch.setattr(metrics, "MonitorServer", Server)
    return asked


def test_metrics_and_health(cli, url, log, asleep, asked):
    """They are served while it runs, and agree with what it did."""
    seen = {}

    def look():
        seen.update({path: asked(path) for path in ("metrics", "healthz", "readyz")})
        stop()

    with asleep(look):
        cli("cleaner", url, "--listen", "127.0.0.1:0")
    for path in ("healthz", "readyz"):
        assert json.loads(seen[path][1]) == {"status": "ok", "reasons": [], "notices": []}
    assert f'clog_cleaner_passes_total{{log="{log.url}"}} 1.0' in seen["metrics"][1]
    assert f'clog_cleaner_records_superseded_total{{log="{log.url}"}} 3.0' in seen["metrics"][1]


def test_who_watches_does_not_wait_for_stores(cli, url, asleep, asked, monkeypatch):
    """The server runs, and prints its address, before any store is contacted: a liveness probe
    would otherwise end a daemon again and again while its store is unavailable. It is healthy then,
    and not ready.
    """
    seen = []

    def away(*_, **__):
        seen.append((asked("healthz"), asked("readyz")))
        raise StoreUnavailableError("away")

    monkeypatch.setattr(broker_config, "open_store", away)
    with asleep(stop):
        told = cli("cleaner", url, "--listen", "127.0.0.1:0").stderr
    (health, _), (readiness, text) = seen[0]
    assert (health, readiness) == (200, 503)
    assert json.loads(text)["reasons"] == ["it has not listed all logs yet"]
    assert told.index("/metrics, /healthz and /readyz") < told.index("away")


@pytest.fixture
def neighbours(tmp_path, log):
    """A damaged log and another program's folder beside the log."""
    bad = Log.create(str(tmp_path / "damaged"), 1, clock=ManualClock(NOW)).url
    for path in Path(bad).rglob("commits/*.json"):
        path.write_bytes(b"{")
    foreign = tmp_path / "foreign"
    (foreign / "_clog").mkdir(parents=True)
    (foreign / "_clog" / "index").write_bytes(b"x")
    return bad, str(foreign)


def test_bad_neighbours(cli, tmp_path, log, neighbours, asleep, asked):
    """A daemon that finds a log that it cannot open cleans the others, is healthy, and reports that
    log: in its own log, its metrics, and its readiness.
    """
    seen = {}

    def look():
        seen.update({path: asked(path) for path in ("metrics", "healthz", "readyz")})
        stop()

    with asleep(look):
        done = cli("cleaner", "--discover", tmp_path, "--listen", "127.0.0.1:0")
    assert "removed 3 records" in done.stdout
    assert (seen["healthz"][0], seen["readyz"][0]) == (200, 503)
    reasons = json.loads(seen["readyz"][1])["reasons"]
    for url, reason in zip(neighbours, reasons, strict=True):
        assert done.stderr.count(f"{url} is skipped") == 1
        assert f"{url} cannot be opened: " in reason
        assert f'clog_cleaner_log_opened{{log="{url}"}} 0.0' in seen["metrics"][1]
    assert f'clog_cleaner_log_opened{{log="{log.url}"}} 1.0' in seen["metrics"][1]


def test_one_round_beside_bad_neighbours(cli, tmp_path, log, neighbours):
    """It does everything that can be done, and the exit code says that something was left out; a
    named log that cannot be opened is an error of its own.
    """
    plans = cli.json("cleaner", "--discover", tmp_path, "--dry-run")
    assert [plan["url"] for plan in plans["logs"]] == [log.url]
    done = cli("cleaner", "--discover", tmp_path, "--once", code=1)
    assert "removed 3 records" in done.stdout
    assert f"skipped, for the reasons above: {', '.join(neighbours)}" in done.stderr
    assert "removed" not in cli("cleaner", log.url, neighbours[0], "--once", code=1).stdout


def test_config_by_a_brokers_names(cli, url, log, monkeypatch):
    """S45: from the command line and the environment; for a wrong name the nearest one is
    suggested.
    """
    log.alter({"min.cleanable.dirty.ratio": None})
    Cleaner(log).run_once(force=True)
    log.append([{"key": "a", "value": "5"}])
    log.roll()
    assert "nothing was due" in cli("cleaner", url, "--once").stdout
    config = "log.cleaner.min.cleanable.ratio=0.1"
    off = "log.cleaner.enable=false"
    assert "nothing was due" in cli("cleaner", url, "--once", "-c", config, "-c", off).stdout
    monkeypatch.setenv("CLOG_CLEANER_CONFIG", '{"log.cleaner.min.cleanable.ratio": 0.1}')
    assert "removed 1 record" in cli("cleaner", url, "--once").stdout
    error = cli("cleaner", url, "--once", "-c", "log.cleaner.thread=2", code=2).stderr
    assert "did you mean log.cleaner.threads?" in error
    monkeypatch.setenv("CLOG_CLEANER_CONFIG", "[]")
    assert "$CLOG_CLEANER_CONFIG is not a JSON object" in cli("cleaner", url, code=2).stderr


def test_a_dry_run_in_words(cli, url, log):
    """What would be done; nothing is done."""
    version = log.version
    said = cli("cleaner", url, "--dry-run").stdout.splitlines()
    assert said[0] == f"{log.url}:"
    assert said[1].startswith("  clean partition 0 (dirty, dirty ratio 1.00): map 8 records in")
    assert log.version == version
    off = ("--config", "log.cleaner.enable=false")
    assert "nothing is due" in cli("cleaner", url, "--dry-run", *off).stdout
    Cleaner(log).run_once()
    assert "nothing is due" in cli("cleaner", url, "--dry-run").stdout


def test_a_dry_run_beside_a_log_that_cannot_be_read(cli, tmp_path, url, log):
    """One that opens, but whose older commits are damaged: the others are planned, and the exit
    code is 1.
    """
    bad = Log.create(str(tmp_path / "bad"), 1, clock=ManualClock(NOW))
    bad.append([{"key": "a", "value": "1"}])
    bad.append([{"key": "a", "value": "2"}])
    (first,) = Path(bad.url).rglob("commits/*0.json")
    first.write_bytes(b"{")
    done = cli("cleaner", "--discover", tmp_path, "--dry-run", code=1)
    assert f"{log.url}:" in done.stdout.splitlines()
    assert f"of {bad.url}" in done.stderr
    once = cli("cleaner", "--discover", tmp_path, "--once", code=1)
    assert "removed 3 records" in once.stdout


def test_a_log_that_is_not_there(cli, url):
    """A wrong URL is an error at once; so is none."""
    assert "no log at" in cli("cleaner", url, code=1).stderr
    assert "--discover PREFIX" in cli("cleaner", code=2).stderr


def test_the_live_view(url, log):
    """Running passes with phase, share, rate and remaining time; then the logs."""
    pages, clock = [], ManualClock(NOW)

    def page():
        console = Console(width=120, file=StringIO())
        console.print(view(cleaner.monitor))
        return console.file.getvalue()

    class Watched(WrappingStore):
        def get(self, path, start=None, end=None):
            if "/data/" in path:
                clock.advance(1000)
                pages.append(page())
            return super().get(path, start, end)

    cleaner = Cleaner(Log.open(Watched(log.handle.standing.root), clock=clock))
    cleaner.run_once()
    assert "mapping" in pages[0]
    assert "0%" in pages[0]
    assert "cleaning" in pages[-1]
    assert "MB/s" not in page()
    assert "well" in page()
    result = PassResult(0, 0, 8, PassStats())
    cleaner.monitor.passed(log.url, result)
    cleaner.monitor.round_ended(log.url, OSError("away"))
    assert "OSError: away" in page()
