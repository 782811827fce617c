"""What the daemon reports about itself: metrics, health, JSON lines."""

import errno
import json
import logging
import re
import socket
import sys
import threading
import urllib.error
import urllib.request
from dataclasses import fields
from http.client import HTTPConnection
from pathlib import Path

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from clog.cleaner import Cleaner
from clog.cleaner.cleaner import FoundLogs
from clog.cleaner.daemon import metrics
from clog.cleaner.daemon.metrics import (
    FAILURES_MAX,
    STALLED_MS,
    MonitorServer,
    ailments,
    neglects,
    notices,
    registry,
)
from clog.cleaner.log_round import CleanerSettings
from clog.cleaner.selection import PassStats
from clog.cleaner.threads import RequestMeter
from clog.cli.output import JsonFormatter
from clog.storage import CorruptionError, InvalidInputError, StoreUnavailableError
from clog.storage.commit.proposals import Proposal, encode_proposal
from clog.storage.cuts import drop_cut, name_cut
from clog.storage.publications.delta import DeltaView
from clog.storage.store.contract import WrappingStore
from clog_testing.crash import inside
from clog_testing.faults import Fault, FaultKind, Faults, FaultyStore

KAFKAS = (
    "max_dirty_ratio",
    "recopy_ratio",
    "max_clean_time_seconds",
    "max_compaction_delay_seconds",
    "max_buffer_utilization_ratio",
    "time_since_last_run_seconds",
    "uncleanable_partitions_count",
    "uncleanable_bytes",
)


def values(cleaner, stores=None):
    """Every sample, by its name and its labels' values except the log's."""
    text = generate_latest(registry(cleaner, stores or {})).decode()
    return {
        (s.name, *(v for k, v in s.labels.items() if k != "log")): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def state_of(cleaner):
    """The results of the two checks, as metrics."""
    found = values(cleaner)
    return {name: found[f"clog_cleaner_{name}",] for name in ("healthy", "ready")}


@pytest.fixture
def dirty(make_log, put):
    log = make_log(2, min_cleanable_dirty_ratio=0)
    for p in range(2):
        put(log, "a=1 b=1 a=2", partition=p)
    log.roll()
    return log


def test_the_metrics_of_a_round(dirty, open_log, store, clock):
    """Kafka's metrics, the sums over the passes, and the requests by kind."""
    measured = RequestMeter(store)
    cleaner = Cleaner(open_log(measured), dedupe_buffer_bytes=24 * 10)
    before = values(cleaner)
    assert {f"clog_cleaner_{name}" for name in KAFKAS} - {name for name, *_ in before} == {
        "clog_cleaner_uncleanable_partitions_count",  # those by log: there is none yet
        "clog_cleaner_uncleanable_bytes",
    }
    cleaner.run_once()
    clock.advance(700)
    found = values(cleaner, {"x": measured})
    assert found["clog_cleaner_passes_total",] == 2
    assert found["clog_cleaner_records_superseded_total",] == 2
    assert found["clog_cleaner_map_records_total",] == 6
    assert found["clog_cleaner_max_dirty_ratio",] == 0
    assert found["clog_cleaner_max_buffer_utilization_ratio",] == pytest.approx(0.2)
    assert found["clog_cleaner_time_since_last_run_seconds",] == 0.7
    assert found["clog_cleaner_dirty_ratio", "1"] == 0
    assert {name for name, *_ in found} >= {"clog_build_info"}
    assert found["clog_cleaner_healthy",] == 1
    assert found["clog_store_requests_total", "create"] >= 2
    assert found["clog_store_bytes_total", "put"] > 0
    assert 0 < found["clog_cleaner_recopy_ratio",] < 1


def test_the_dashboard_asks_for_what_there_is(dirty):
    """cleaner/grafana.json: every metric and label is one that the daemon has, and every panel has
    its own place.
    """
    dashboard = json.loads((Path(__file__).parents[4] / "cleaner" / "grafana.json").read_text())
    labels = {"log", "partition", "operation"}
    known = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in registry(Cleaner(dirty), {}).collect()
    }
    expressions = [t["expr"] for panel in dashboard["panels"] for t in panel["targets"]]
    expressions += [v["query"] for v in dashboard["templating"]["list"] if v["type"] == "query"]
    named = {name for text in expressions for name in re.findall(r"clog_\w+", text)}
    assert {f"clog_cleaner_{name}" for name in KAFKAS} - {"clog_cleaner_max_dirty_ratio"} <= named
    assert named <= known
    assert {x for text in expressions for x in re.findall(r"by \((\w+)\)", text)} <= labels
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in dashboard["panels"]}
    assert len(places) == len(dashboard["panels"])


def test_an_uncleanable_partition(dirty, store):
    """S28: it is in the metrics with its bytes; the daemon is healthy all the same."""
    path = dirty.handle.manifest().segments[0][0].chunks[0].object.path
    inside(store).put(path, b"\0" * 100)
    cleaner = Cleaner(dirty)
    cleaner.run_once()
    found = values(cleaner)
    assert found["clog_cleaner_uncleanable_partitions_count",] == 1
    assert found["clog_cleaner_uncleanable_bytes",] == 42
    assert found["clog_cleaner_max_dirty_ratio",] == 1
    assert ailments(cleaner) == []


def test_retention_and_sealing_are_counted(make_log, put, clock):
    """S8, S32: by log, beside the passes."""
    log = make_log(2, cleanup_policy="delete", retention_ms=5000, segment_ms=1000)
    put(log, "a=1 b=1", partition=0)
    put(log, "c=1", partition=1)
    cleaner = Cleaner(log)
    for _ in range(2):
        clock.advance(3000)
        cleaner.run_once()
    found = values(cleaner)
    assert found["clog_cleaner_segments_sealed_total",] == 2
    assert found["clog_cleaner_retention_records_total",] == 3
    assert found["clog_cleaner_retention_bytes_total",] == 3 * 14


def test_a_log_that_keeps_failing(dirty, store, open_log):
    """After three failed rounds in a row the daemon is not ready, and says why, until one succeeds;
    it is healthy all the time: a restart would only end the passes of other logs.
    """

    class Away:
        fails = None

        def fault(self, call):
            return self.fails

    plan = Away()
    measured = RequestMeter(FaultyStore(store, plan))
    cleaner = Cleaner(open_log(measured))
    plan.fails = Fault(FaultKind.FAIL_BEFORE)
    for _ in range(FAILURES_MAX):
        assert neglects(cleaner) == []
        with pytest.raises(StoreUnavailableError):
            cleaner.run_once()
    assert measured.failures["get"] == FAILURES_MAX
    (reason,) = neglects(cleaner)
    assert "3 rounds failed in a row, most recently with StoreUnavailableError: " in reason
    assert ailments(cleaner) == []
    assert state_of(cleaner) == {"healthy": 1, "ready": 0}
    plan.fails = None
    cleaner.run_once()
    assert neglects(cleaner) == []
    assert state_of(cleaner) == {"healthy": 1, "ready": 1}


def test_damage_is_no_reason_to_start_again(make_log, store):
    """A restart would not help, and would end the passes of all other logs, again and again; the
    metrics show that rounds fail, and so does the readiness of each log.
    """
    log = make_log()
    log.append([{"key": "a", "value": "1"}] * 2)
    log.roll()
    log.delete_records({0: 1})
    inside(store).put(log.handle.manifest().segments[0][0].chunks[0].object.path, b"")
    cleaner = Cleaner(log)
    for _ in range(FAILURES_MAX):
        with pytest.raises(CorruptionError):
            cleaner.run_once()
    assert ailments(cleaner) == []
    assert "most recently with CorruptionError: " in neglects(cleaner)[0]
    assert values(cleaner)["clog_cleaner_failed_rounds_total",] == FAILURES_MAX


def test_a_cleaner_that_hangs(dirty, clock):
    """After this long without a sign of life it is unhealthy."""
    cleaner = Cleaner(dirty)
    cleaner.run_once()
    clock.advance(STALLED_MS + cleaner.backoff_ms)
    assert ailments(cleaner) == []
    clock.advance(1)
    assert "no activity" in ailments(cleaner)[0]
    assert neglects(cleaner) == ailments(cleaner)
    assert state_of(cleaner) == {"healthy": 0, "ready": 0}


def test_a_pass_that_hangs(dirty, store, clock, open_log):
    """The counterpart of Kafka's DeadThreadCount: while the others progress, one thread whose pass
    does nothing is counted, and reported with its partition; the process is healthy.
    """
    seen = []

    class Hangs(WrappingStore):
        def get(self, path, start=None, end=None):
            if "/data/" in path and not seen:
                clock.advance(STALLED_MS)
                seen.append((values(cleaner)["clog_cleaner_dead_thread_count",], neglects(cleaner)))
                clock.advance(1)
                cleaner.monitor.looked()  # As the rounds of other logs do.
                seen.append((values(cleaner)["clog_cleaner_dead_thread_count",], neglects(cleaner)))
                assert ailments(cleaner) == []
            return super().get(path, start, end)

    log = open_log(Hangs(store))
    cleaner = Cleaner(log)
    cleaner.run_once()
    (before, later) = seen
    assert before == (0, [])
    assert later == (1, [f"{log.url}: the pass over partition 0 is stuck"])
    assert values(cleaner)["clog_cleaner_dead_thread_count",] == 0


def test_what_is_left_out(dirty, clock):
    """A log that cannot be opened has its own series, and unknown numbers have none; folders that
    cannot be listed are counted. The daemon is not ready while there is any, nor before its first
    look, and healthy all the time (Kafka's KIP-112).
    """
    left_out = FoundLogs(unopened={"s3://b/x": "CorruptionError: bad"}, unlisted={"s3://b/y": "no"})
    looks, seen = [left_out, FoundLogs()], []

    def find():
        seen.append((series(cleaner), state_of(cleaner), neglects(cleaner)))
        if not looks:
            cleaner.stop()
            return FoundLogs()
        return looks.pop(0)

    cleaner = Cleaner(dirty, clock=clock, find=find)
    cleaner.run()
    before, first, second = seen
    none, well = {"unopened": 0, "unlisted": 0}, {"healthy": 1, "ready": 1}
    assert before == (none, well | {"ready": 0}, ["it has not listed all logs yet"])
    assert first == (
        {dirty.url: 1, "s3://b/x": 0, "unopened": 1, "unlisted": 1},
        well | {"ready": 0},
        [
            "logs below s3://b/y cannot be listed: no",
            "s3://b/x cannot be opened: CorruptionError: bad",
        ],
    )
    assert second == (none | {dirty.url: 1}, well, [])


def series(cleaner):
    """Which logs are opened, and how much cannot be."""
    text = generate_latest(registry(cleaner, {})).decode()
    samples = [s for f in text_string_to_metric_families(text) for s in f.samples]
    opened = {s.labels["log"]: s.value for s in samples if s.name == "clog_cleaner_log_opened"}
    bad = {s.labels.get("log") for s in samples if s.name == "clog_cleaner_uncleanable_bytes"}
    assert bad == {url for url, value in opened.items() if value}
    counts = {s.name: s.value for s in samples if s.name.endswith("s_count") and not s.labels}
    return opened | {
        "unopened": counts["clog_cleaner_unopened_logs_count"],
        "unlisted": counts["clog_cleaner_unlisted_folders_count"],
    }


def test_a_listing_that_fails(store):
    """Its request is made, and fails, when the result is iterated."""
    fails = Fault(FaultKind.FAIL_BEFORE, "list", times=2)
    measured = RequestMeter(FaultyStore(store, Faults(fails)))
    for listing in measured.list("_clog/"), measured.list("_clog/"):
        with pytest.raises(StoreUnavailableError):
            list(listing)
    assert measured.requests["list"] == measured.failures["list"] == 2


def test_a_cleaner_that_waits_for_logs(clock):
    """With no log to maintain nothing hangs: a restart would not bring any."""

    def find():
        if clock.monotonic_ms() > 2 * STALLED_MS:
            cleaner.stop()
        return FoundLogs()

    cleaner = Cleaner([], clock=clock, find=find)
    cleaner.run()
    assert ailments(cleaner) == []


def test_a_log_that_does_not_compact(dirty):
    """Kafka's max-dirty-percent is about compacted logs: another is never cleaned, so its ratio
    would only grow, and what was uncleanable in it would never end.
    """
    dirty.alter({"cleanup.policy": "delete"})
    cleaner = Cleaner(dirty)
    cleaner.run_once()
    found = values(cleaner)
    assert found["clog_cleaner_max_dirty_ratio",] == 0
    assert found["clog_cleaner_uncleanable_partitions_count",] == 0
    assert ("clog_cleaner_dirty_ratio", "0") not in found


def test_a_view_that_keeps_objects_too_long_is_told(make_log, put, clock, monkeypatch):
    """S69: in metrics, and in `/healthz` as a notice, as a restart would not help."""
    log = make_log(min_cleanable_dirty_ratio=0, delete_retention_ms=90 * 86_400_000)
    put(log, "a=1 b=1 a=2")
    log.publish("delta")
    log.roll()
    monkeypatch.setattr(DeltaView, "check_installed", missing_package)
    cleaner = Cleaner(log)
    seen = []
    for _ in range(5):
        cleaner.run_once(force=True)
        clock.advance(86_400_000)
        overdue_s = values(cleaner)["clog_cleaner_publish_overdue_seconds", "delta"]
        seen.append((overdue_s // 86_400, len(notices(cleaner))))
        assert not [text for text in ailments(cleaner) if "view" in text]
    assert seen == [(0, 0), (0, 0), (1, 0), (2, 0), (3, 1)]
    assert values(cleaner)["clog_cleaner_publish_kept_bytes", "delta"] > 0
    assert values(cleaner)["clog_cleaner_publications_refused_total",] > 0
    (notice,) = notices(cleaner)
    assert "the delta view keeps" in notice
    server = MonitorServer("0", list, list, None, notices=lambda: notices(cleaner))
    try:
        answer = urllib.request.urlopen(f"http://{server.address}/healthz")
        assert json.loads(answer.read()) == {"status": "ok", "reasons": [], "notices": [notice]}
    finally:
        server.close()
    log.withdraw("delta")
    for _ in range(3):
        clock.advance(86_400_001)
        cleaner.run_once()
    assert notices(cleaner) == []
    assert ("clog_cleaner_publish_kept_bytes", "delta") not in values(cleaner)


def test_what_named_cuts_keep_is_told(make_log, put, clock):
    """S69: the bytes that would have been deleted but for them."""
    log = make_log(min_cleanable_dirty_ratio=0)
    put(log, "a=1 b=1 a=2")
    name_cut(log.handle, "month-end")
    cleaner, seen = Cleaner(log), []
    for _ in range(3):
        log.roll()
        cleaner.run_once(force=True)
        seen.append(values(cleaner)["clog_cleaner_cut_kept_bytes",])
        put(log, "a=3")
        clock.advance(2 * 86_400_000)
    assert seen[0] == 0
    assert seen[-1] > 0
    drop_cut(log.handle, "month-end")
    cleaner.run_once(force=True)
    assert values(cleaner)["clog_cleaner_cut_kept_bytes",] == 0


def test_who_waits_beside_many_writers_is_told(make_log, open_log, put):
    """Who committed recently, what waits and how long it takes, as of the last sweep of proposals;
    a log without them has zeros.
    """
    log = make_log()
    cleaner = Cleaner(log)
    late = open_log()
    put(log, "a=1")
    put(late, "a=2")
    waiting = Proposal(
        author="f" * 16, number=1, stamp=log.version, since=log.version, until_ms=1 << 40
    )
    log.handle.store.create(waiting.path, encode_proposal(waiting))
    cleaner.run_once()
    found = {name[0].removeprefix("clog_cleaner_"): n for name, n in values(cleaner).items()}
    assert found["committers_count"] == 2
    assert found["waiting_proposals_count"] == 1
    assert found["waiting_proposals_seconds"] == found["max_proposal_wait_seconds"] == 0
    assert found["proposal_wait_seconds"] == 0


def missing_package(_view):
    raise InvalidInputError("a package is missing")


def test_who_asks_for_the_head_gets_no_body():
    """Load balancers do: the same status and length as for GET, nothing after it."""
    reasons = []
    server = MonitorServer("0", lambda: reasons, list, None)
    try:
        connection = HTTPConnection(server.address, timeout=30)
        for status in (200, 503):
            connection.request("HEAD", "/healthz")
            answer = connection.getresponse()
            length = int(answer.headers["Content-Length"])
            assert (answer.status, answer.read()) == (status, b"")
            connection.request("GET", "/healthz")
            assert len(connection.getresponse().read()) == length
            reasons.append("s3 is away")
    finally:
        server.close()


def test_the_server():
    """503 with the reasons, for each of the two checks its own; other paths are absent; an address
    that is in use is refused.
    """
    server = MonitorServer("0", lambda: ["it hangs"], lambda: ["s3 is away"], None)
    try:
        told = {"healthz": ("unhealthy", "it hangs"), "readyz": ("not ready", "s3 is away")}
        for path, (status, reason) in told.items():
            with pytest.raises(urllib.error.HTTPError) as unwell:
                urllib.request.urlopen(f"http://{server.address}/{path}")
            assert unwell.value.code == 503
            answer = {"status": status, "reasons": [reason], "notices": []}
            assert json.loads(unwell.value.read()) == answer
        with pytest.raises(urllib.error.HTTPError) as absent:
            urllib.request.urlopen(f"http://{server.address}/metrics")
        assert absent.value.code == 404
        with pytest.raises(InvalidInputError, match="cannot listen on"):
            MonitorServer(server.address, list, list, None)
    finally:
        server.close()
    with pytest.raises(InvalidInputError, match="give HOST:PORT or PORT"):
        MonitorServer("here", list, list, None)


def test_who_says_nothing_is_sent_away(monkeypatch):
    """Otherwise each such connection would keep a thread forever."""
    monkeypatch.setattr(metrics, "PATIENCE_S", 0.01)
    server = MonitorServer("127.0.0.1:0", list, list, None)
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        assert connection.recv(1) == b""
    server.close()


def connected(server):
    host, _, port = server.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def test_who_sends_a_byte_now_and_then_is_sent_away(monkeypatch):
    """The time from the first byte of a request to its last is bounded, whatever comes between."""
    monkeypatch.setattr(metrics, "PATIENCE_S", 0.05)
    server = MonitorServer("127.0.0.1:0", list, list, None)
    try:
        with connected(server) as connection:
            connection.setblocking(False)
            for _ in range(100_000):
                try:
                    connection.send(b"X")
                    if connection.recv(1) == b"":
                        break
                except BlockingIOError:
                    pass
                except ConnectionError:
                    break
            else:
                pytest.fail("it is still connected")
    finally:
        server.close()


def test_who_does_not_read_its_answer_is_sent_away(monkeypatch):
    """Otherwise such clients would hold connections, and what they do not read, for ever."""
    monkeypatch.setattr(metrics, "PATIENCE_S", 0.05)
    server = MonitorServer("127.0.0.1:0", lambda: ["x" * 50_000_000], list, None)
    try:
        with connected(server) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            while not server._server.server_state.total_requests:
                pass  # It is answered, as far as the client lets it.
            while server._server.server_state.connections:
                pass
    finally:
        server.close()


def test_slow_clients_use_up_no_files(monkeypatch):
    """Beyond a number of connections, those that have kept the server waiting for longest are
    closed at once, or the oldest, if it owes each an answer: whoever sends a request gets one.
    """
    monkeypatch.setattr(metrics, "CONNECTIONS_MAX", 4)
    answers = threading.Event()
    server = MonitorServer("127.0.0.1:0", list, lambda: [""] * answers.wait(60), None)
    slow = []
    try:
        for request in (
            b"GET /healthz HTTP/1.1\r\nX: ",
            b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n",
        ):
            for _ in range(20):
                slow.append(connected(server))
                slow[-1].sendall(request)
        answer = urllib.request.urlopen(f"http://{server.address}/healthz")
        assert answer.status == 200
        answers.set()
        assert len(server._server.server_state.connections) <= 4
    finally:
        server.close()
        for connection in slow:
            connection.close()


def test_that_no_connection_is_accepted_is_logged_once(monkeypatch, caplog):
    """If the process may open no more files: asyncio alone would log it thousands of times a
    second, each with a traceback.
    """
    server = MonitorServer("127.0.0.1:0", list, list, None)
    failures = []

    def accept(_):
        failures.append(1)
        raise OSError(errno.EMFILE, "too many open files")

    try:
        monkeypatch.setattr(socket.socket, "accept", accept)
        connection = connected(server)
        while len(failures) < 10:
            pass
        monkeypatch.undo()
        connection.close()
    finally:
        server.close()
    assert caplog.text.count("too many open files") == 1
    assert "Traceback" not in caplog.text


def test_json_lines():
    """One object per line, including the traceback."""
    try:
        raise OSError("away")
    except OSError:
        record = logging.LogRecord("clog", 30, "", 0, "a\n%d", (1,), sys.exc_info())
    (line,) = JsonFormatter().format(record).splitlines()
    said = json.loads(line)
    assert (said["level"], said["message"]) == ("warning", "a\n1")
    assert "OSError: away" in said["error"]


def test_the_metrics_of_named_readers(make_log, put, clock):
    """S64: lag and what overtakes each, checked once a minute, and not at all unless requested: a
    log pays nothing for readers that nobody watches.
    """
    log = make_log()
    put(log, "a=1 b=1")
    log.reader("billing").commit({0: 0})
    unasked = Cleaner(log)
    unasked.run_once()
    assert not [name for name, *_ in values(unasked) if name.startswith("clog_reader")]
    cleaner = Cleaner(log, settings=CleanerSettings(watch_readers_ms=60_000))
    cleaner.run_once()
    ends = sum(log.end_offsets().values())
    found = values(cleaner)
    assert found["clog_reader_lag_records", "billing"] == ends
    assert found["clog_reader_lag_bytes", "billing"] > 0
    assert not [key for key in found if key[0] == "clog_reader_overtaken_in_seconds"]
    put(log, "c=1")
    clock.advance(59_000)
    cleaner.run_once()
    assert values(cleaner)["clog_reader_lag_records", "billing"] == ends
    clock.advance(1_000)
    cleaner.run_once()
    found = values(cleaner)
    assert found["clog_reader_lag_records", "billing"] == ends + 1
    assert found["clog_reader_lag_seconds", "billing"] == 60
    put(log, "a")
    clock.advance(60_000)
    cleaner.run_once()
    until = {key[1:]: n for key, n in values(cleaner).items() if "_overtaken_" in key[0]}
    assert {tuple(sorted(key)): n for key, n in until.items()} == {("billing", "tombstone"): 86_400}


def test_what_the_monitor_hands_out_may_be_changed(dirty):
    """Each observer of a cleaner gets its own copy of the counts: changing it changes no metric."""
    cleaner = Cleaner(dirty)
    results = cleaner.run_once()
    before = values(cleaner)
    (state,) = cleaner.monitor.logs().values()
    state.totals.clear()
    results[-1].stats.records_read = state.last_pass.stats.records_read = 1_000_000
    assert values(cleaner) == before
    assert cleaner.monitor.logs()[dirty.url].last_pass.stats.records_read < 1_000_000


def test_the_readme_names_every_metric():
    """By its name, or by its suffix if several start alike: `records_read`, `_written`."""
    text = (Path(__file__).parents[4] / "cleaner/README.md").read_text()
    named = set(re.findall(r"`(?:clog_[a-z]+_)?(_?[a-z_]+)`", text))

    def is_named(name):
        ends = (name[at:] for at, letter in enumerate(name) if letter == "_")
        return name in text or not named.isdisjoint(ends)

    assert len(metrics._METRICS) > 60
    assert not [row.name for row in metrics._METRICS if not is_named(row.name)]


def test_every_sum_is_of_something_that_is_counted():
    """A metric of a name that nothing counts would be 0 for ever."""
    page = Path(metrics.__file__)
    others = "".join(
        path.read_text() for path in page.parents[1].rglob("*.py") if path.name != page.name
    )
    summed = re.findall(r'_sum\(\s*"(\w+)"', page.read_text())
    counted = {field.name for field in fields(PassStats)}
    for names in re.findall(r'"(\w+)"(?!\])|\b(\w+)=|\["(\w+)"\] =', others):
        counted.update(names)
    assert len(summed) > 20
    assert not set(summed) - counted
