"""Errors are explicit: bad logs, paths and records each have their error, and nothing is
half done.
"""

import copy
import json
import pickle
import tempfile

import pytest
import xxhash

from clog.storage import (
    AlreadyExistsError,
    CorruptionError,
    InvalidInputError,
    Log,
    NotFoundError,
    UnsupportedFormatError,
)
from clog.storage.errors import CommitStateUnknownError
from clog.storage.format.commits import encode_commit, read_commit
from clog_testing.crash import inside
from clog_testing.faults import Fault, FaultKind, Faults, FaultyStore

FIRST = "commits/00000000000000000000.json"
SECOND = "commits/00000000000000000001.json"
ONE = [{"key": "a", "value": "1"}]


def rewrite(store, path, change):
    """Changes the body of a document of a log and corrects its header."""
    header, _, body = inside(store).get(path).partition(b"\n")
    assert json.loads(header)["encoding"] == "json"
    value = json.loads(body)
    change(value)
    body = json.dumps(value).encode()
    head = {**json.loads(header), "bytes": len(body), "xxh3_128": xxhash.xxh3_128_hexdigest(body)}
    inside(store).put(path, json.dumps(head).encode() + b"\n" + body)


def test_no_log(store):
    """A path without a log: the error says how to create one; opening leaves nothing behind."""
    with pytest.raises(NotFoundError, match=r"no log at memory://.*; create one with Log\.create"):
        Log.open(store)
    assert list(store.list("")) == []
    with tempfile.TemporaryDirectory() as folder, pytest.raises(NotFoundError, match=folder):
        Log.open(f"{folder}/none")


def test_what_is_open_is_not_pickled(tmp_path):
    """A reader, a transaction: the error has the log and what to pass instead, and no option, which
    may be a secret.
    """
    url = f"file://{tmp_path}/log"
    log = Log.create(url, partitions=1, storage_options={"auto_mkdir": True})
    log.append(ONE)
    with log.transaction("copies") as t:
        for one in (log.reader("billing"), t):
            with pytest.raises(InvalidInputError, match=r"/log is open .* call Log\.open") as e:
                pickle.dumps(one)
            assert "auto_mkdir" not in str(e.value)


def test_a_log_and_its_table_are_pickled_by_url(tmp_path):
    """Another process opens the log again, and reads the table at the same version; options that
    may be secrets are not passed.
    """
    url, secret = f"file://{tmp_path}/log", {"password": "hunter22", "auto_mkdir": True}
    log = Log.create(url, partitions=2, storage_options=secret)
    log.append(ONE)
    table, part = log.table(), log.table(partition=1)
    log.append([{"key": "later", "value": "b"}])
    data = pickle.dumps((log, table, part))
    assert b"hunter22" not in data
    other, shown, of_part = pickle.loads(data)
    assert (other.id, other.version, shown.version) == (log.id, 2, 1)
    assert shown.to_pylist() == table.to_pylist()
    assert of_part.offsets == part.offsets
    assert copy.deepcopy(log).id == log.id
    with pytest.raises(InvalidInputError, match=r"latest records of .* cannot be pickled"):
        pickle.dumps(log.latest(0))


def test_a_log_with_a_store_of_its_own_is_not_pickled(make_log):
    """A log that another process could not open is refused with a message."""
    with pytest.raises(InvalidInputError, match="opened with a custom store or clock"):
        pickle.dumps(make_log())


def test_a_log_is_there(make_log, open_log, store):
    log = make_log()
    log.append(ONE)
    with pytest.raises(AlreadyExistsError, match=r"open it with Log\.open"):
        make_log(partitions=7)
    assert open_log().partitions == 1


def test_two_creators_race(make_log, open_log, store):
    """One creates the log; the other gets an error that it exists."""
    late = FaultyStore(
        store, Faults(Fault(FaultKind.MEANWHILE, "create", run=lambda: make_log(partitions=2)))
    )
    with pytest.raises(AlreadyExistsError):
        make_log(partitions=3, on=late)
    assert open_log().partitions == 2


@pytest.mark.parametrize("path", ["*/commits/*", "_clog/log"])
@pytest.mark.parametrize("kind", [FaultKind.FAIL_BEFORE, FaultKind.FAIL_AFTER, FaultKind.REPEAT])
def test_creating_survives_lost_replies(make_log, open_log, store, kind, path):
    make_log(on=FaultyStore(store, Faults(Fault(kind, "create", path))))
    assert open_log().version == 0


def test_creating_on_a_dead_store(make_log, store):
    """Nothing can be read back: the state is unknown."""
    dead = Faults(
        Fault(FaultKind.FAIL_AFTER, "create", "*/commits/*", times=99),
        Fault(FaultKind.FAIL_BEFORE, "get", "_clog/?*/commits/*", times=99),
    )
    with pytest.raises(CommitStateUnknownError, match="commit 0 of"):
        make_log(on=FaultyStore(store, dead))


@pytest.mark.parametrize("partitions", [0, -1, 10_001, "4", 1.0, True, None])
def test_numbers_of_partitions(make_log, partitions):
    with pytest.raises(InvalidInputError, match=r"partitions=.* allowed: 1 to 10000"):
        make_log(partitions=partitions)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda log: Log(log.url), r"Log\(…\) takes no str; open a log with Log\.open"),
        (lambda log: Log.create("memory://x", config="a=b"), r"config='a=b' is not a mapping"),
        (lambda log: log.alter("cleanup.policy"), r"config='cleanup.policy' is not a mapping"),
        (lambda _: Log.create("memory://x", features="proposals"), r"give a list, \['proposals'\]"),
        (lambda log: log.upgrade("proposals"), r"give a list, \['proposals'\]"),
        (lambda log: log.erase(1), "give (a list of keys|at least one key)"),
        (lambda log: log.erase("alice"), "give (a list of keys|at least one key)"),
    ],
)
def test_one_thing_in_place_of_another(make_log, call, words):
    """A URL for a log, a text for a mapping or a list: the error says what to give."""
    log = make_log()
    with pytest.raises(InvalidInputError, match=words):
        call(log)
    assert log.version == 0


@pytest.mark.parametrize("cut", [0, 10, 200, -1])
def test_a_truncated_commit(make_log, open_log, store, cut):
    """Length and hash show it; the error names the file."""
    make_log().append(ONE)
    inside(store).put(SECOND, inside(store).get(SECOND)[:cut])
    with pytest.raises(CorruptionError, match=SECOND):
        open_log()


def test_a_corrupt_commit(make_log, open_log, store):
    make_log().append(ONE)
    inside(store).put(SECOND, inside(store).get(SECOND).replace(b'"append"', b'"appenD"'))
    with pytest.raises(CorruptionError, match=f"checksum mismatch in {SECOND}"):
        open_log()


def test_a_commit_under_another_name(make_log, open_log, store):
    """A copy of a version is not the next one."""
    make_log().append(ONE)
    inside(store).put("commits/00000000000000000002.json", inside(store).get(SECOND))
    with pytest.raises(CorruptionError, match="holds version 1"):
        open_log()


def test_a_head_that_does_not_follow(make_log, open_log, store):
    """The result of the edits and the head must be the same."""
    make_log().append(ONE)
    rewrite(store, SECOND, lambda body: body["head"]["partitions"].update(end=[2]))
    with pytest.raises(CorruptionError, match="does not match its edits"):
        open_log().segments(0)


def test_a_newer_format(make_log, open_log, store):
    """Refused before the body is parsed."""
    make_log()
    inside(store).put(FIRST, inside(store).get(FIRST).replace(b'"format":1', b'"format":2'))
    with pytest.raises(
        UnsupportedFormatError, match=r"format 2, but this clog reads up to 1; upgrade"
    ):
        open_log()


def test_a_newer_format_of_the_next_commit(make_log, open_log, store):
    """Another process was upgraded: ours appends no more, and says why."""
    log = make_log()
    open_log().append(ONE)
    inside(store).put(SECOND, inside(store).get(SECOND).replace(b'"format":1', b'"format":2'))
    for call in (lambda: log.append(ONE), log.end_offsets):
        with pytest.raises(UnsupportedFormatError, match="upgrade clog"):
            call()


def test_an_unknown_feature_of_readers(make_log, open_log, store):
    make_log()
    rewrite(store, FIRST, lambda b: b["head"]["log"]["features"]["read"].append("sounds"))
    with pytest.raises(UnsupportedFormatError, match=r"\['sounds'\]"):
        open_log()


def test_an_unknown_feature_of_writers(make_log, open_log, store):
    """Who does not know it may read, and must not write."""
    make_log().append(ONE)
    rewrite(store, SECOND, lambda b: b["head"]["log"]["features"]["write"].append("sums"))
    log = open_log()
    assert log.end_offsets() == {0: 1}
    for call in (lambda: log.append(ONE), log.roll, lambda: log.alter({"segment.bytes": 99})):
        with pytest.raises(UnsupportedFormatError, match=r"\['sums'\]"):
            call()
    assert log.version == 1


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "data/../../x", "data//x", ""])
def test_paths_that_lead_out(make_log, open_log, store, path):
    """A document that names a path outside of the root is refused, not followed."""
    make_log().append(ONE)

    def escape(body):
        body["edit"]["add"]["objects"][0]["path"] = path

    rewrite(store, SECOND, escape)
    with pytest.raises(CorruptionError, match="not a path in the log's folder"):
        open_log().segments(0)


def test_unknown_fields_stay(make_log, open_log, store):
    """A newer writer of the same format may add fields: readers ignore, writers keep those of the
    head.
    """
    make_log().append(ONE)
    rewrite(store, SECOND, lambda body: body["head"].update(colour="green"))
    rewrite(store, SECOND, lambda body: body.update(more=1))
    log = open_log()
    log.append(ONE)
    assert read_commit(inside(store), 2).head.extra == {"colour": "green"}
    assert b'"colour":"green"' in encode_commit(read_commit(inside(store), 2))


def test_a_damaged_object(make_log, open_log, store):
    """Objects are checked when they are read: what is wrong names the object."""
    log = make_log()
    log.append(ONE)
    (found,) = inside(store).list("data/")
    data = bytearray(inside(store).get(found.path))
    data[8] ^= 1
    inside(store).put(found.path, bytes(data))
    with pytest.raises(CorruptionError, match=found.path):
        list(log.read())


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("text", "cannot append a str"),
        ([1], "record 0 is an int"),
        ([{"key": "a"}], "record 0 has the fields"),
        ([{"key": "a", "value": "b", "colour": 1}], "record 0 has the fields"),
        ([{"key": 1.5, "value": "b"}], "record 0 has a key of type float"),
        ([*ONE, {"key": "a", "value": {1}}], "record 1 has a value of type set"),
        ([{"key": "a", "value": {"n": float("nan")}}], "record 0 has a value that is not JSON"),
        ([{"key": "a", "value": "b", "timestamp": "now"}], "record 0 has a timestamp of type str"),
        ([{"key": "a", "value": "b", "timestamp": -1}], "before 1970"),
        ([{"key": "a", "value": "b", "headers": [1]}], "record 0 has headers"),
        ([{"key": "a", "value": "b", "timestamp": 1 << 62}], "timestamp"),
        ([{"key": "a", "value": "b", "timestamp": -(1 << 62)}], "timestamp"),
        ([{"key": "a", "value": "b", "headers": [(None, b"1")]}], "record 0 has a header name"),
        ([{"key": "a", "value": "b", "headers": {b"h": b"1"}}], "type bytes; it must be str"),
    ],
)
def test_records_that_are_none(make_log, data, words):
    """The error says which record, and what is allowed; nothing is appended."""
    log = make_log()
    with pytest.raises(InvalidInputError, match=words):
        log.append(data)
    assert log.version == 0
