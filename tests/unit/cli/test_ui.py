"""`clog ui`: what the server responds."""

import base64
import http.client
import json
import shutil
import threading
from types import SimpleNamespace
from urllib.parse import urlencode

import pyarrow as pa
import pytest

from clog.cleaner import Cleaner
from clog.cli.masking import MASKED
from clog.cli.page import COMMITS_MAX, LOOK_MS, AskedKey, ShownLogs, Sought
from clog.cli.serving import Access
from clog.storage import InvalidInputError, Log, ManualClock, StoreUnavailableError
from clog.storage.administration import delete_log
from clog.storage.store import opening
from clog_testing.counting import CountingStore
from clog_testing.undecided import append_undecided

pytest.importorskip("starlette", reason="needs the extra ui")
pytest.importorskip("uvicorn", reason="needs the extra ui")


@pytest.fixture
def log(url):
    log = Log.create(url, partitions=2)
    log.append([{"key": k, "value": v} for k, v in (("a", "1"), ("b", "2"), ("a", "3"))])
    log.append([{"key": "b", "value": None}, {"key": b"\xff", "value": b"\0\xfe"}])
    return log


@pytest.fixture
def shown(url, log):
    return ShownLogs([url], (), {}, clock=ManualClock())


@pytest.fixture
def ask(shown, serving):
    """Sends a request to a server of these logs: (status, headers, body)."""
    with serving(shown) as port:

        def ask(path, method="GET", host=None):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request(method, path, headers={"Host": host} if host else {})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode()

        yield ask


@pytest.fixture
def get(ask):
    """The JSON of a path."""

    def get(path, code=200, **asked):
        status, _, body = ask(f"{path}?{urlencode(asked)}" if asked else path)
        assert status == code, body
        return json.loads(body)

    return get


def test_the_page_loads_nothing_from_elsewhere(ask):
    """Its files are served here, and the browser is told to load no others."""
    _, headers, page = ask("/")
    assert headers["content-security-policy"].startswith("default-src 'self'")
    assert headers["cache-control"] == "no-store"
    for name in ("app.js", "style.css", "icon.svg"):
        assert f"/static/{name}" in page
        status, _, text = ask(f"/static/{name}")
        assert status == 200
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page


@pytest.mark.parametrize(
    ("source", "position", "shown"),
    [
        ("postgresql:77/5", 0x1_0000_02A0, "1/2A0"),
        ("mysql:ab/shop", (3 << 40) + 157, "000003:157"),
        ("kafka:c/t", 42, "42"),
    ],
)
def test_how_far_a_copy_is_in_what_it_copies(tmp_path, source, position, shown):
    """The position in the source's terms, and when it was committed: not when another writer
    committed, nor when the writer was restarted.
    """
    clock = ManualClock(1_700_000_000_000)
    log = Log.create(str(tmp_path / "copy"), partitions=1, clock=clock)
    page = ShownLogs([log.url], (), {}, clock=clock)
    assert page.details(0)["sources"] == []
    with log.transaction("clog-copy") as work:
        work.positions(source, {0: (position, "1")})
    clock.advance(5000)
    log.append([{"key": "a", "value": "1"}])
    with Log.open(log.url, clock=clock).transaction("clog-copy") as work:
        work.abort()
    (told,) = page.details(0)["sources"]
    assert told == {
        "writer": "clog-copy",
        "name": source,
        "positions": {"0": shown},
        "committed_ms": 1_700_000_000_000,
    }


def test_only_this_machine_is_answered(ask):
    """A name that leads here by a trick of DNS is not accepted; nothing can be changed."""
    assert ask("/api/logs", host="evil.example")[0] == 400
    assert ask("/api/logs", host="localhost:8470")[0] == 200
    for path in ("/", "/api/logs", "/api/logs/0"):
        for method in ("POST", "PUT", "DELETE"):
            assert ask(path, method)[0] == 405


def test_logs_and_their_details(get, log, url):
    """What describe prints, and what each commit did."""
    answer = get("/api/logs")
    (line,) = answer["logs"]
    assert answer["cleaner"] is None
    assert (line["url"], line["version"], line["records"], line["partitions"]) == (url, 2, 5, 2)
    found = get("/api/logs/0")
    assert found["log_id"] == log.handle.standing.log_id
    assert len(found["partition_details"]) == 2
    assert [c["operation"] for c in found["commits"]] == ["create", "append", "append"]
    log.roll()
    assert get("/api/logs/0")["commits"][-1]["operation"] == "roll"


def test_what_each_partition_waits_for(get, log):
    """In words, as `clog describe` has it: a dirty ratio of zero says nothing to a person."""
    said = {d["next_action"] for d in get("/api/logs/0")["partition_details"]}
    (sealed,) = said
    assert sealed.startswith("clean after the active segment has been sealed, at segment.bytes=")
    log.alter({"min.cleanable.dirty.ratio": 0})
    log.roll()
    said = {d["next_action"] for d in get("/api/logs/0")["partition_details"]}
    assert any(words.startswith("clean now: dirty ratio ") for words in said)


def test_a_log_has_one_address(tmp_path, monkeypatch):
    """However its folder is named: what the list calls it leads back to it."""
    Log.create(tmp_path / "logs/orders", 1)
    monkeypatch.chdir(tmp_path)
    named = ShownLogs(
        ["logs/orders", f"{tmp_path}/logs/orders"], ("logs",), {}, clock=ManualClock()
    )
    assert [line["url"] for line in named.overview()] == [f"{tmp_path}/logs/orders"]
    assert named.details(0)["url"] == f"{tmp_path}/logs/orders"


def test_commits_over_time(tmp_path):
    """In spans of five minutes: what they appended and removed, and how much of the log was dirty
    after the last of them; how far a reader was behind, each time it was looked at.
    """
    clock = ManualClock(1_700_000_100_000)
    log = Log.create(str(tmp_path / "timed"), partitions=1, clock=clock)
    reader = log.reader("billing")
    for _ in range(2):
        log.append([{"key": "a", "value": "1"}, {"key": "b", "value": "2"}])
    log.roll()
    clock.advance(600_000)
    Cleaner(log, clock=clock).run_once(force=True)
    reader.commit({0: 3})
    shown = ShownLogs([log.url], (), {}, clock=clock)
    first, last = shown.details(0)["spans"]
    assert (first["records"], first["removed_bytes"], last["records"]) == (4, 0, 0)
    assert first["size_bytes"] == first["log_bytes"] == first["dirty_bytes"] == 4 * 14
    assert (last["removed_bytes"], last["log_bytes"], last["dirty_bytes"]) == (28, 28, 0)
    assert last["from_ms"] - first["from_ms"] == 600_000
    shown.users(0)
    clock.advance(60_000)
    (told,) = shown.users(0)["readers"]
    assert [behind for _, behind in told["lags"]] == [1, 1]


def test_records_by_position(get, log):
    """As in JSON lines: earliest, latest, an offset, a time; no more than requested."""
    everything = get("/api/logs/0/records", **{"from": "earliest"})
    assert len(everything) == 5
    assert {"/v4=", "AP4="} & {r.get("value_b64") for r in everything}
    assert len(get("/api/logs/0/records", limit=2)) == 2
    assert get("/api/logs/0/records", **{"from": "@2100-01-01"}) == []
    ends = log.end_offsets()
    p = max(ends, key=ends.get)
    (last,) = get("/api/logs/0/records", partition=p, **{"from": str(ends[p] - 1)})
    assert (last["partition"], last["offset"]) == (p, ends[p] - 1)


def test_a_key_and_the_table(get):
    """The history of a key, the table now and at a version, keys that are not text."""
    assert [r["value"] for r in get("/api/logs/0/key", key="a")] == ["1", "3"]
    keys = {r.get("key") for r in get("/api/logs/0/table")}
    assert keys == {"a", None}  # the other one is no text
    assert {r["key"] for r in get("/api/logs/0/table", at=1)} == {"a", "b"}
    (row,) = get("/api/logs/0/table", key_b64=base64.b64encode(b"\xff").decode())
    assert row["value_b64"] == "AP4="


def test_a_typed_log(tmp_path):
    """Keys are given as they are written, values are JSON; the newest come first."""
    schema = {"key": pa.int64(), "value": pa.struct([("n", pa.int32())])}
    log = Log.create(str(tmp_path / "typed"), partitions=2, schema=schema)
    for i in range(3):
        log.append([{"key": 7, "value": {"n": i}, "timestamp": 1_769_860_800_000 + i}])
    shown = ShownLogs([log.url], (), {}, clock=ManualClock())
    seven = AskedKey("7", is_base64=False)
    newest = shown.records(0, None, "latest", 9)
    assert [json.loads(r["value_json"]) for r in newest] == [{"n": 2}, {"n": 1}, {"n": 0}]
    history = shown.history_of_key(0, seven, 9)
    assert [json.loads(r["value_json"])["n"] for r in history] == [0, 1, 2]
    (row,) = shown.table(0, None, seven, 9)
    assert (row["key_json"], row["value_json"]) == ("7", '{"n": 2}')
    with pytest.raises(InvalidInputError, match="this log is typed"):
        shown.table(0, None, AskedKey("Nw==", is_base64=True), 9)


def test_what_changed_since_a_version(get, tmp_path):
    """The rows of a key before and after, in a log of bytes and in one of plain columns; a search
    looks at both; pages go on where they ended; what is masked stays hidden.
    """
    found = {row["change"]: row for row in get("/api/logs/0/changes", since=1)}
    assert set(found) == {"delete", "insert"}
    gone = found["delete"]
    assert (gone["key"], gone["before"], gone["value"], gone["version"]) == ("b", "2", None, 2)
    rows = [{"id": i, "city": "Riga", "minutes": i} for i in range(3)]
    log = Log.create(str(tmp_path / "trips"), 1, key="id", like=rows)
    since = log.append(rows).version
    log.append([{"id": 1, "city": "Oslo", "minutes": 1}, {"id": 7, "city": "Bonn", "minutes": 2}])
    page = ShownLogs([log.url], (), {}, clock=ManualClock(), masks=["value.minutes"])
    first = page.changes(0, since, 1)
    (update,) = first
    assert (update["change"], update["key_json"], update["version"]) == ("update", "1", log.version)
    assert json.loads(update["before_json"]) == {"city": "Riga", "minutes": MASKED}
    assert json.loads(update["value_json"]) == {"city": "Oslo", "minutes": MASKED}
    (insert,) = page.changes(0, since, 1, after=first.next)
    assert (insert["change"], insert["key_json"], insert["before"]) == ("insert", "7", None)
    for city, changes in (("Riga", ["update"]), ("Bonn", ["insert"]), ("Rome", [])):
        found = page.changes(0, since, 9, sought=Sought(city, "city"))
        assert [change["change"] for change in found] == changes


def test_an_open_transaction_is_marked_in_the_list(get, log):
    """And what waits for it is said, in the list of logs and of its partitions."""

    def told():
        (line,) = get("/api/logs")["logs"]
        return line["transactions"], get("/api/logs/0")["partition_details"][1]["next_action"]

    append_undecided(log, [{"key": "c", "value": "4"}], partition=1)
    log.roll()
    many, why = told()
    assert many == 1
    assert "wait for the end of a transaction" in why


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/api/logs/0/changes?since=99", "does not exist yet"),
        ("/api/logs/7", "there is no log number 7"),
        ("/api/logs/0/table?at=99", "does not exist yet"),
        ("/api/logs/0/records?partition=9", "partition 9 does not exist"),
        ("/api/logs/0/records?partition=x", "partition: 'x' is out of range"),
        (f"/api/logs/0/records?partition={'9' * 5000}", "partition: a text of 5000 characters"),
        (f"/api/logs/0/records?limit={'9' * 5000}", "limit: a text of 5000 characters"),
        (f"/api/logs/0/records?from={'9' * 5000}", "a text of 5000 characters is out of range"),
        (f"/api/logs/0/records?from=@{'9' * 5000}", "is not a time"),
        (f"/api/logs/0/records?from={2**63 - 1}", "beyond the end offset"),
        (f"/api/logs/0/table?at={'9' * 5000}", "at: a text of 5000 characters"),
        (f"/api/logs/0/table?at={2**63 - 1}", "does not exist yet"),
        (f"/api/logs/0/cost?readers={'9' * 5000}", "readers: a text of 5000 characters"),
        (f"/api/logs/{'9' * 5000}", "log: a text of 5000 characters"),
        ("/api/logs/first", "log: 'first' is out of range"),
        ("/api/logs/0/records?from=soon", "not a position"),
        ("/api/logs/0/key", "give a key"),
        ("/api/logs/0/key?key_b64=?", "a key is not base64"),
    ],
)
def test_what_cannot_be_shown_is_a_sentence(get, path, said):
    """Whatever the request was for."""
    assert said in get(path, code=400)["error"]


def test_a_log_that_is_gone_is_told_among_the_others(get, url, shown, tmp_path):
    """It hides no other; one that recovers is shown again."""
    shown._urls.append(str(tmp_path / "none"))
    lines = get("/api/logs")["logs"]
    assert "error" not in lines[0]
    assert "no log at" in lines[1]["error"]
    assert "--discover shows all logs in a folder" in lines[1]["error"]
    Log.create(str(tmp_path / "none"), partitions=1)
    assert "error" not in get("/api/logs")["logs"][1]


def test_a_store_that_does_not_answer_holds_up_no_other(url, log, monkeypatch):
    """The others are shown; the page says since when, a single thread retries, and it is shown when
    it responds. A request for such a log gets that error at once.
    """
    asked, answer = [], threading.Event()
    opened = Log.open

    def slow(where, options=None, **more):
        if where == "memory://silent":
            asked.append(where)
            answer.wait(60)
            where = url
        return opened(where, options, **more)

    monkeypatch.setattr(Log, "open", slow)
    clock = ManualClock()
    shown = ShownLogs(["memory://silent", url], (), {}, clock=clock, patience_s=0)

    def answered(number):
        while "error" in (line := shown.overview()[number]):
            pass  # It is being opened.
        return line

    answered(1)
    clock.advance(3000)
    for _ in range(3):
        assert answered(1)["version"] == log.version
        assert shown.overview()[0]["error"] == (
            "its store has not answered for 3 s; the page keeps trying"
        )
    with pytest.raises(StoreUnavailableError, match="not answered for 3 s"):
        shown.details(0)
    assert shown.details(1)["version"] == log.version
    assert asked == ["memory://silent"]
    answer.set()
    answered(0)
    assert shown.details(0)["version"] == log.version


def test_a_store_that_is_away_is_the_servers_fault(get, monkeypatch):
    """An impossible request is refused as such; while the store fails, the same request may succeed
    later.
    """

    def away(*_, **__):
        raise StoreUnavailableError("the store is away")

    assert "there is no log number 1" in get("/api/logs/1", code=400)["error"]
    monkeypatch.setattr(Log, "open", away)
    assert get("/api/logs/0", code=503) == {"error": "the store is away"}


def test_a_large_record_hides_none_after_it(get, log):
    """Of a large key, value or header the beginning is shown, and how many bytes there are: text by
    characters, other bytes by bytes, a typed value as the text of its JSON.
    """
    log.alter({"max.message.bytes": 1 << 26})
    log.append(
        [
            {
                "key": "k" * 30_000,
                "value": "\u00e4" * 5_000_000,
                "headers": [("h", "x" * 5_000_000)],
            },
            {"key": "bytes", "value": b"\xff" * 3_000_000, "headers": [("h", "1")] * 70},
            {"key": "after", "value": "them"},
        ],
        partition=0,
    )
    found = get("/api/logs/0/records", partition=0, **{"from": str(log.end_offsets()[0] - 3)})
    large, binary, after = found
    assert (large["key"], large["key_bytes"]) == ("k" * 20_000, 30_000)
    assert (large["value"], large["value_bytes"]) == ("\u00e4" * 20_000, 10_000_000)
    (header,) = large["headers"]
    assert header == {"key": "h", "value": "x" * 500, "value_bytes": 5_000_000}
    assert base64.b64decode(binary["value_b64"]) == b"\xff" * 20_000
    assert binary["value_bytes"] == 3_000_000
    assert (len(binary["headers"]), binary["headers_left_out"]) == (50, 20)
    assert (after["key"], after["value"]) == ("after", "them")
    assert "value_bytes" not in after


def test_whole_numbers_that_a_browser_would_round_are_text(get, log):
    """Wherever they are in a response; smaller ones are numbers."""
    log.append([{"key": "a", "value": "4"}], producer=("shop", 2**60 + 1))
    log.append([{"key": "a", "value": "5"}], producer=("till", 2**53 - 1))
    writers = {w["id"]: w["sequence"] for w in get("/api/logs/0/users")["writers"]}
    assert writers == {"shop": str(2**60 + 1), "till": 2**53 - 1}


@pytest.mark.parametrize(
    "door",
    [
        lambda shown: shown.records(0, None, "earliest", 9),
        lambda shown: shown.records(0, None, "latest", 9),
        lambda shown: shown.table(0, None, None, 9),
        lambda shown: shown.history_of_key(0, AskedKey("new", is_base64=False), 9),
    ],
    ids=["records", "latest", "table", "history"],
)
def test_a_log_that_was_recreated_is_shown(url, log, shown, door):
    """A page that only asks for records goes on with the log that is there."""
    door(shown)
    delete_log(log.handle.standing.root)
    Log.create(url, partitions=1).append([{"key": "new", "value": "1"}])
    assert [row["key"] for row in door(shown)] == ["new"]


def test_the_newest_records_of_a_wide_log_are_read_once(tmp_path):
    """Partitions share objects: one request per object, not per partition."""
    log = Log.create(str(tmp_path / "wide"), partitions=300)
    log.append([{"key": str(i), "value": "v"} for i in range(3000)])
    shown = ShownLogs([log.url], (), {}, clock=ManualClock())
    counting = CountingStore(log.handle.standing.root)
    shown._opened[log.url] = Log.open(counting)
    with counting.count() as requests:
        assert len(shown.records(0, None, "latest", 100)) == 100
        assert len(shown.records(0, 7, "latest", 1)) == 1
    assert sum(requests.values()) < 20


def test_many_logs_of_a_silent_store_hide_no_other(url, log, monkeypatch):
    """Neither their looks nor what is asked of them take a thread of another store's."""
    answer, opened = threading.Event(), Log.open

    def silent(where, *given, **more):
        if where.startswith("s3:"):
            answer.wait(60)
        return opened(where, *given, **more)

    monkeypatch.setattr(Log, "open", silent)
    urls = [*(f"s3://silent/log{n}" for n in range(40)), url]
    shown = ShownLogs(urls, (), {}, clock=ManualClock(), patience_s=0)
    while "error" in (line := shown.overview()[-1]):
        pass  # It is being opened.
    assert line["version"] == log.version
    answer.set()


def test_a_prefix_that_cannot_be_listed_hides_no_other(tmp_path, monkeypatch):
    """It is told, with the reason; logs below the next one are found, also later, and so are those
    below it once it can be listed.
    """
    clock, found = ManualClock(), opening.find_logs
    Log.create(str(tmp_path / "b" / "log"), partitions=1)
    away = [str(tmp_path / "a")]

    def find(prefix, options):
        if prefix in away:
            raise StoreUnavailableError("it is away")
        return found(prefix, options)

    monkeypatch.setattr(opening, "find_logs", find)
    prefixes = [str(tmp_path / name) for name in "ab"]
    shown = ShownLogs((), prefixes, {}, clock=clock)
    assert len(shown.overview()) == 1
    assert shown.unlisted == {prefixes[0]: "it is away"}
    Log.create(str(tmp_path / "b" / "later"), partitions=1)
    Log.create(str(tmp_path / "a" / "log"), partitions=1)
    clock.advance(LOOK_MS)
    assert len(shown.overview()) == 2
    away.clear()
    clock.advance(LOOK_MS)
    assert (len(shown.overview()), shown.unlisted) == (3, {})


def test_a_prefix_that_does_not_answer(url, log, monkeypatch):
    """The page does not wait for it, and shows the known logs."""
    answer, asked = threading.Event(), []

    def silent(prefix, _options):
        asked.append(prefix)
        answer.wait(60)
        return opening.LogsBelow([], {})

    monkeypatch.setattr(opening, "find_logs", silent)
    shown = ShownLogs([url], ["s3://b/logs"], {}, clock=ManualClock(), patience_s=0)
    shown.look()
    assert [line["url"] for line in shown.overview()] == [url]
    answer.set()


def test_logs_are_found_below_a_prefix(tmp_path):
    """Also later ones, once the interval is over."""
    clock = ManualClock()
    Log.create(str(tmp_path / "a"), partitions=1)
    shown = ShownLogs((), [str(tmp_path)], {}, clock=clock)
    assert len(shown.overview()) == 1
    Log.create(str(tmp_path / "b"), partitions=1)
    assert len(shown.overview()) == 1
    clock.advance(LOOK_MS)
    assert len(shown.overview()) == 2


def test_a_refresh_reads_each_commit_once(url, log, shown):
    """Commits never change: without news a refresh requests only the newest version."""
    counting = CountingStore(log.handle.standing.root)
    shown._opened[url] = Log.open(counting)
    assert len(shown.details(0)["commits"]) == 3
    with counting.count() as requests:
        shown.overview()
        shown.details(0)
    assert sum(requests.values()) <= 3
    for i in range(COMMITS_MAX):
        log.alter({"segment.ms": 1000 + i})
    assert len(shown.details(0)["commits"]) == COMMITS_MAX


def test_a_log_of_1000_partitions_is_read_in_one_answer(tmp_path):
    """A page of it costs no request per partition."""
    log = Log.create(str(tmp_path / "wide"), partitions=1000)
    log.append([{"key": str(i), "value": "v"} for i in range(3000)])
    shown = ShownLogs([log.url], (), {}, clock=ManualClock())
    counting = CountingStore(log.handle.standing.root)
    shown._opened[log.url] = Log.open(counting)
    shown.details(0)
    with counting.count() as requests:
        assert len(shown.details(0)["partition_details"]) == 1000
    assert sum(requests.values()) <= 3


def test_a_port_that_is_taken_is_refused():
    """With the port; --port sets another one."""
    from clog.cleaner.daemon.metrics import listening

    with (
        listening("0") as socket,
        pytest.raises(InvalidInputError, match="cannot listen on"),
        listening(str(socket.getsockname()[1])),
    ):
        pass


def test_the_command_needs_a_log(cli):
    """Or a folder that contains some."""
    assert "--discover" in cli("ui", code=2).stderr


@pytest.mark.parametrize(
    ("sought", "found"),
    [
        (Sought("pai"), ["1", "4"]),
        (Sought("shop"), ["3"]),
        (Sought("order-2"), ["2"]),
        (Sought("ann", "$.by.name"), ["4"]),
        (Sought("", "by.tags[1]"), ["4"]),
        (Sought("nothing of it"), []),
    ],
)
def test_records_are_sought(tmp_path, sought, found):
    """By a text in the key, the value or a header, or in a part of a value that is JSON; in pages,
    each of which says where the next one starts.
    """
    log = Log.create(str(tmp_path / "log"), partitions=2)
    value = json.dumps({"by": {"name": "ann", "tags": ["x", "y"]}, "state": "paid"})
    rows = [("1", "paid", []), ("2", "\xff", []), ("3", "3", [("from", b"shop")]), ("4", value, [])]
    log.append(
        [{"key": f"order-{k}", "value": v, "headers": h} for k, v, h in rows],
        partition=[0, 1, 0, 1],
    )
    shown = ShownLogs([log.url], (), {}, clock=ManualClock())
    for view in (
        lambda **how: shown.records(0, None, "earliest", 1, **how),
        lambda **how: shown.table(0, None, None, 1, **how),
    ):
        got, after = [], ""
        while True:
            page = view(sought=sought, after=after)
            got += [record["key"].removeprefix("order-") for record in page]
            if page.next is None:
                break
            after = page.next
        assert sorted(got) == found
        everything, after = [], ""
        while (page := view(after=after)) or after == "":
            everything += [record["offset"] for record in page]
            after = page.next or "9:0"
        assert sorted(everything) == [0, 0, 1, 1]


def test_a_search_ends_after_many_records(tmp_path, monkeypatch):
    """The page says so, and the next one continues where it ended."""
    monkeypatch.setattr("clog.cli.page.SCANNED_MAX", 10)
    log = Log.create(str(tmp_path / "log"), partitions=1)
    log.append([{"key": "k", "value": str(i)} for i in range(25)])
    shown = ShownLogs([log.url], (), {}, clock=ManualClock())
    page = shown.records(0, None, "earliest", 5, sought=Sought("24"))
    assert (list(page), page.next) == ([], "0:10")
    page = shown.records(0, None, "earliest", 5, sought=Sought("24"), after="0:20")
    assert [record["value"] for record in page] == ["24"]


def test_masked_columns_are_not_shown(tmp_path):
    """Nor found by a search; of a value that is not JSON nothing is shown."""
    log = Log.create(str(tmp_path / "log"), partitions=1)
    person = {"user": {"mail": "a@b", "n": 1}}
    log.append(
        [
            {"key": "k", "value": json.dumps(person), "headers": [("mail", b"a@b")]},
            {"key": "plain", "value": "a@b"},
        ]
    )
    masks = ["value.user.mail", "headers"]
    shown = ShownLogs([log.url], (), {}, clock=ManualClock(), masks=masks)
    first, second = shown.records(0, None, "earliest", 9)
    assert json.loads(first["value"]) == {"user": {"mail": MASKED, "n": 1}}
    assert second["value"] == MASKED
    assert "headers" not in first
    assert shown.records(0, None, "earliest", 9, sought=Sought("a@b")) == []
    schema = {"key": pa.string(), "value": pa.struct([("mail", pa.string()), ("n", pa.int32())])}
    typed = Log.create(str(tmp_path / "typed"), partitions=1, schema=schema)
    typed.append([{"key": "k", "value": {"mail": "a@b", "n": 1}}])
    shown = ShownLogs([typed.url], (), {}, clock=ManualClock(), masks=["value.mail", "key"])
    (row,) = shown.table(0, None, None, 9)
    assert (row["key"], json.loads(row["value_json"])) == (MASKED, {"mail": MASKED, "n": 1})
    for asked in (shown.history_of_key, lambda *a: shown.table(0, None, *a[1:])):
        with pytest.raises(InvalidInputError, match="keys are masked"):
            asked(0, AskedKey("k", is_base64=False), 9)


@pytest.mark.parametrize(
    ("kind", "value", "mask", "left"),
    [
        (pa.map_(pa.string(), pa.string()), {"mail": "a@b", "n": "1"}, "m.mail", ["n"]),
        (pa.map_(pa.string(), pa.string()), {"a.b": "a@b", "n": "1"}, "m.a.b", ["n"]),
        (pa.map_(pa.int32(), pa.string()), {7: "a@b", 8: "1"}, "m.7", [8]),
        (
            pa.map_(pa.string(), pa.struct([("mail", pa.string()), ("n", pa.int32())])),
            {"x": {"mail": "a@b", "n": 1}, "y": {"mail": "a@b", "n": 2}},
            "m.*.mail",
            ["x", "y", "n"],
        ),
        (
            pa.list_(pa.map_(pa.string(), pa.list_(pa.struct([("mail", pa.string())])))),
            [{"x": [{"mail": "a@b"}]}, {"x": [{"mail": "a@b"}]}],
            "m.x.mail",
            ["x", "mail"],
        ),
        (pa.string(), '{"user": {"mail": "a@b", "n": 1}}', "m.user.mail", ["n"]),
        (pa.string(), "it is a@b", "m.user.mail", []),
        (pa.binary(), b"a@b", "m.user.mail", []),
    ],
)
def test_masks_reach_into_maps_lists_and_json(tmp_path, kind, value, mask, left):
    """An entry of a map by its key, each element of a list, the part of a text that is JSON; of a
    text that is none, and of bytes, nothing is shown. What is beside them is.
    """
    schema = {"key": pa.string(), "value": pa.struct([("m", kind)])}
    log = Log.create(str(tmp_path / "log"), partitions=1, schema=schema)
    log.append([{"key": "k", "value": {"m": value}}])
    shown = ShownLogs([log.url], (), {}, clock=ManualClock(), masks=[f"value.{mask}"])
    shown.check_masks()
    (row,) = shown.table(0, None, None, 9)
    text = row["value_json"]
    assert MASKED in text
    assert "a@b" not in text
    assert base64.b64encode(b"a@b").decode() not in text
    assert all(str(name) in text for name in left)
    assert shown.records(0, None, "earliest", 9, sought=Sought("a@b")) == []


def test_masks_of_bytes_logs(tmp_path):
    """A name with dots, JSON within JSON, and one header by its name."""
    log = Log.create(str(tmp_path / "log"), partitions=1)
    inner = json.dumps({"mail": "a@b", "n": 1})
    value = {"user.mail": "a@b", "user": {"mail": "a@b"}, "text": inner, "n": 1}
    headers = [("mail", b"a@b"), ("n", b"1")]
    log.append([{"key": inner, "value": json.dumps(value), "headers": headers}])
    masks = ["key.mail", "value.user.mail", "value.text.mail", "headers.mail"]
    shown = ShownLogs([log.url], (), {}, clock=ManualClock(), masks=masks)
    (row,) = shown.records(0, None, "earliest", 9)
    assert "a@b" not in json.dumps(row)
    assert json.loads(row["key"]) == {"mail": MASKED, "n": 1}
    assert json.loads(row["value"])["user"] == {"mail": MASKED}
    assert row["headers"] == [{"key": "mail", "value": MASKED}, {"key": "n", "value": "1"}]


def test_a_mask_that_matches_nothing_is_refused(cli, tmp_path):
    """The command does not start if no log that it names has such a column; beside others it does,
    and the page tells of which log nothing is hidden.
    """
    schema = {"key": pa.string(), "value": pa.struct([("mail", pa.string()), ("n", pa.int32())])}
    typed = Log.create(str(tmp_path / "typed"), partitions=1, schema=schema)
    for mask in ("value.Mail", "value.n.mail", "key.mail.x.", "value.user.mail", "headers.a.b"):
        error = cli("ui", typed.url, "--listen", 0, "--mask", mask, code=2).stderr
        assert f"--mask {mask}" in error.replace("'", "").replace("\n", " ")
    other = Log.create(str(tmp_path / "other"), partitions=1)
    urls = [typed.url, other.url]
    shown = ShownLogs(urls, (), {}, clock=ManualClock(), masks=["value.user.mail"])
    shown.check_masks()
    assert shown.details(0)["unmatched_masks"] == ["value.user.mail"]
    assert shown.details(1)["unmatched_masks"] == []


def test_a_mask_that_ceases_to_match_shows_nothing(tmp_path):
    """What it hid may be called otherwise in a log that was created in its place: records are
    refused, and not shown unmasked, whether any was shown before or not.
    """
    url = str(tmp_path / "log")

    def created(name):
        schema = {"key": pa.string(), "value": pa.struct({name: pa.string()})}
        log = Log.create(url, 1, schema=schema)
        log.append([{"key": "k", "value": {name: "a@b"}}])

    created("mail")
    pages = [ShownLogs([url], (), {}, clock=ManualClock(), masks=["value.mail"]) for _ in range(2)]
    assert len(pages[0].records(0, None, "earliest", 9)) == 1
    pages[1].check_masks()
    shutil.rmtree(url)
    created("address")
    for shown in pages:
        assert shown.details(0)["unmatched_masks"] == ["value.mail"]
        with pytest.raises(InvalidInputError, match=r"value\.mail, which .* is no longer"):
            shown.records(0, None, "earliest", 9)


@pytest.mark.parametrize(
    "value", [b"[" * 100_000, b'{"mail":' * 990 + b"1" + b"}" * 990, rb'{"mail": "\ud800", "n": 1}']
)
def test_a_record_that_is_no_sound_json_hides_none_after_it(url, log, value):
    """Nested too deeply to be parsed, or a text that cannot be written again: it has no parts to
    search, and nothing of it is shown if one is masked.
    """
    log.append([{"key": "odd", "value": value}, {"key": "after", "value": '{"n": 7}'}], partition=0)
    start = str(log.end_offsets()[0] - 2)
    plain, masked = (
        ShownLogs([url], (), {}, clock=ManualClock(), masks=masks) for masks in ((), ["value.n"])
    )
    (found,) = plain.records(0, 0, start, 10, sought=Sought("7", "$.n"))
    assert found["key"] == "after"
    odd, after = masked.records(0, 0, start, 10)
    assert odd["value"] == MASKED
    assert json.loads(after["value"]) == {"n": MASKED}


def test_logs_are_listed_by_pages(tmp_path, monkeypatch):
    """Of a thousand logs only those of a page are requested, and a search covers all."""
    monkeypatch.setattr("clog.cli.page.LOGS_MAX", 2)
    for name in ("a", "b", "c", "other"):
        Log.create(str(tmp_path / name), partitions=1)
    urls = [str(tmp_path / name) for name in ("a", "b", "c", "other")]
    shown = ShownLogs(urls, (), {}, clock=ManualClock())
    assert [line["number"] for line in shown.overview(page=1)] == [2, 3]
    (line,) = shown.overview("OTHER")
    assert (line["number"], line["url"]) == (3, urls[3])
    assert len(shown.matching("no such")) == 0


def asked_with(serving, access, path="/api/logs", **headers):
    shown = ShownLogs([], (), {}, clock=ManualClock())
    with serving(shown, access=access) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()


def test_a_token_opens_the_page(serving):
    """As a header, or once in the address, which turns it into a cookie; nothing else is
    accepted.
    """
    access = Access(("*",), token="s3cret")
    assert asked_with(serving, access)[0] == 401
    assert asked_with(serving, access, "/")[0] == 401
    assert asked_with(serving, access, "/?token=other")[0] == 401
    assert asked_with(serving, access, "/api/logs?token=s3cret")[0] == 401
    assert asked_with(serving, access, Authorization="Bearer s3cret")[0] == 200
    assert asked_with(serving, access, Authorization="Basic s3cret")[0] == 401
    status, headers, _ = asked_with(serving, access, "/?token=s3cret")
    assert (status, headers["location"]) == (303, "/")
    assert {"HttpOnly", "SameSite=strict"} <= set(headers["set-cookie"].split("; "))
    assert asked_with(serving, access, Cookie="clog_token=s3cret")[0] == 200
    assert "s3cret" not in asked_with(serving, access)[2]


def test_a_proxy_says_who_logged_in(serving):
    """By its header; without it nobody is let in. Host names that are not listed are refused."""
    access = Access(("logs.example",), header="X-Forwarded-User")
    assert asked_with(serving, access, Host="logs.example")[0] == 401
    ann = {"X-Forwarded-User": "ann"}
    assert asked_with(serving, access, Host="logs.example", **ann)[0] == 200
    assert asked_with(serving, access, Host="other.example", **ann)[0] == 400


def test_others_are_served_only_behind_something(cli, monkeypatch):
    """Listening for others needs a rule that lets them in, behind a proxy also the name under which
    they come; and masks name columns.
    """
    for wrong in (
        ["--listen", "0.0.0.0:0"],
        ["--token-variable", "NO_SUCH_VARIABLE"],
        ["--mask", "secret"],
        ["--listen", "127.0.0.1:0", "--proxy-header", "X-User"],
    ):
        cli("ui", "memory://x", *wrong, code=2)


def test_the_command_says_who_may_look(cli, monkeypatch):
    """A proxy's header, a token from the environment and host names reach the page."""
    served = []
    monkeypatch.setattr("clog.cli.serving.application", lambda _, access: served.append(access))
    server = SimpleNamespace(run=lambda sockets: None)
    monkeypatch.setattr("clog.cleaner.daemon.metrics.quiet_server", lambda _: server)
    monkeypatch.setenv("PAGE_TOKEN", "s3cret")
    cli("ui", "memory://x", "--listen", "0")
    behind = ["--listen", "127.0.0.1:0", "--proxy-header", "X-User", "--host", "logs.example"]
    cli("ui", "memory://x", *behind)
    cli("ui", "memory://x", "--listen", "127.0.0.1:0", "--token-variable", "PAGE_TOKEN")
    own = list(Access().hosts)
    assert [(list(a.hosts), a.token, a.header) for a in served] == [
        (own + own, "", ""),
        (["logs.example", *own], "", "X-User"),
        (["*", *own], "s3cret", ""),
    ]
