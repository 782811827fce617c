"""Dead letters that are replayed: each once, and none over a later record of its key."""

import numpy as np
import pyarrow as pa
import pytest

from clog.bridge import Decoding, replay
from clog.bridge.decoding import LETTERS_CONFIG, OFFSET, PARTITION, REASON, SOURCE, letters_of
from clog.bridge.replaying import played
from clog.bridge.target import ID
from clog.storage import InvalidInputError, Log, ManualClock
from clog.storage.env import SeededIds
from clog_testing.crash import Folder, crash_runs, discard

SCHEMA = {"key": pa.string(), "value": pa.struct([("n", pa.int64())])}
TOPIC = "kafka:cluster/topic"
JSON = Decoding(values="json", keys="string")


@pytest.fixture
def urls(request):
    found = [f"memory://replaying/{name}" for name in ("letters", "log", "other")]
    yield found
    for url in found:
        try:
            discard(Log.open(url).handle.standing.root)
        except LookupError:
            pass


def letter(offset, key, value, partition=0):
    rows = pa.table(
        {
            "key": pa.array([key], pa.binary()),
            "value": pa.array([value], pa.binary()),
            "timestamp": pa.array([offset], pa.timestamp("us", "UTC")),
        }
    )
    where = {SOURCE: TOPIC, PARTITION: partition, OFFSET: offset}
    return letters_of(rows, {0: "is what it is"}, lambda _: where)


def mirrored(url, rows, *, end, config=None):
    """A log as an ended mirror leaves it."""
    log = Log.create(url, 2, config, schema=SCHEMA, features=["given-offsets"])
    with log.transaction(ID) as t:
        t.cover({0: end})
        offsets = np.array([offset for offset, *_ in rows])
        t.append([{"key": k, "value": v} for _, k, v in rows], partition=0, offsets=offsets)
        t.positions(TOPIC, {0: (end, "1")})
    return log


def rows(log):
    return [row for batch in log.read() for row in batch.to_pylist()]


def table(log):
    return {row["key"]: row["value"] for row in log.table().to_arrow().to_pylist()}


def test_letters_go_where_they_were_meant_to_go(urls):
    """Those whose key has a later record are not; what does not decode is a dead letter again, with
    the new reason and its old place. A second run finds nothing new but these.
    """
    letters = Log.create(urls[0], 1, LETTERS_CONFIG)
    log = mirrored(urls[1], [(1, "c", {"n": 1})], end=10)
    with log.transaction(ID) as t:
        t.append([{"key": "a", "value": {"n": 13}}], partition=0, offsets=np.array([13]))
        t.append([{"key": "b", "value": None}], partition=0, offsets=np.array([14]))
    log.give_offsets()
    letters.append(letter(2, b"a", b'{"n": 2}'))
    letters.append(letter(4, b"b", b'{"n": 4}'))
    letters.append(letter(5, b"c", b'{"n": 5}'))
    letters.append(letter(6, b"d", b"{"))
    done = replay(*urls[:2], decode=JSON)
    assert (done.records, done.superseded, done.dead_letters) == (1, 2, 1)
    assert table(log) == {"a": {"n": 13}, "c": {"n": 5}}
    *_, again = rows(letters)
    told = {h["key"]: h["value"].decode() for h in again["headers"]}
    assert told.pop(REASON).startswith("has a value that is not JSON")
    assert told == {SOURCE: TOPIC, PARTITION: "0", OFFSET: "6"}
    for _ in range(2):
        done = replay(*urls[:2], decode=JSON)
        assert (done.records, done.superseded, done.dead_letters) == (0, 0, 1)


def test_what_was_played_counts_as_where_it_stood(urls):
    """A letter that decodes later than an older one of its key is not superseded by it."""
    letters = Log.create(urls[0], 1, LETTERS_CONFIG)
    log = mirrored(urls[1], [(1, "x", {"n": 1})], end=10)
    log.give_offsets()
    letters.append(letter(2, b"a", b'{"n": 2}'))
    letters.append(letter(4, b"a", b'{"n": "4"}'))
    assert replay(*urls[:2], decode=JSON).records == 1
    lenient = Decoding(values=lambda data, _: {"n": 4}, keys="string")
    done = replay(*urls[:2], decode=lenient)
    assert (done.records, done.superseded) == (1, 0)
    assert table(log)["a"] == {"n": 4}


def test_letters_are_decoded_for_the_columns_that_there_are(urls):
    """S62: also where a float is widened between decoding and appending: none is rounded."""
    letters = Log.create(urls[0], 1, LETTERS_CONFIG)
    letters.append(letter(2, b"a", b"16777217.0"))
    Log.create(urls[1], 1, schema={**SCHEMA, "value": pa.struct([("x", pa.float32())])})

    def decode(data, _):
        if Log.open(urls[1]).schema.field("value").type.field("x").type == pa.float32():
            Log.open(urls[1]).evolve(widen={"value.x": pa.float64()})
        return {"x": float(data)}

    assert replay(*urls[:2], decode=Decoding(values=decode, keys="string")).records == 1
    assert table(Log.open(urls[1])) == {"a": {"x": 16777217.0}}


def test_events_are_all_played(urls):
    """In a log that is not compacted no record supersedes another."""
    letters = Log.create(urls[0], 1, LETTERS_CONFIG)
    log = mirrored(urls[1], [(5, "a", {"n": 5})], end=10, config={"cleanup.policy": ""})
    log.give_offsets()
    letters.append(letter(2, b"a", b'{"n": 2}'))
    assert replay(*urls[:2], decode=JSON).records == 1


def test_a_letter_of_a_partition_that_the_log_has_not(urls):
    """No record of the log supersedes it, and the log decides where it goes."""
    letters = Log.create(urls[0], 1, LETTERS_CONFIG)
    log = mirrored(urls[1], [(5, "a", {"n": 5})], end=10)
    log.give_offsets()
    letters.append(letter(2, b"a", b'{"n": 2}', partition=10))
    assert replay(*urls[:2], decode=JSON).records == 1
    assert len(rows(log)) == 2


def test_a_mirror_that_goes_on_takes_no_letters(urls):
    """Nor does a log of bytes; both say what to do."""
    Log.create(urls[0], 1, LETTERS_CONFIG)
    mirrored(urls[1], [(1, "x", {"n": 1})], end=10)
    with pytest.raises(InvalidInputError, match=r"mirrors a topic.*--end"):
        replay(*urls[:2], decode=JSON)
    Log.create(urls[2], 1)
    with pytest.raises(InvalidInputError, match="no columns for decoded letters"):
        replay(urls[0], urls[2], decode=JSON)


def test_what_is_no_letter_is_refused(urls):
    """Nothing of its batch is replayed."""
    letters = Log.create(urls[0], 1, LETTERS_CONFIG)
    letters.append([{"key": "a", "value": '{"n": 1}'}])
    log = Log.create(urls[2], 1, schema=SCHEMA)
    with pytest.raises(InvalidInputError, match=r"offset 0 of .* is not a dead letter"):
        replay(urls[0], urls[2], decode=JSON)
    assert not rows(log)


@pytest.mark.nightly
def test_each_letter_is_played_once_whatever_crashes():
    """At every request to the store (L1 to L3); what does not decode is a dead letter
    again, once.
    """

    def of(store, seed):
        made = []
        for i, name in enumerate(("letters", "log")):
            env = {"clock": ManualClock(50_000), "ids": SeededIds(10 * seed + i)}
            made.append(Log.open(Folder(store, name), **env))
            made[-1].handle.reach = lambda url: Folder(store, url.rpartition("/")[2])
        return made

    def begin(store):
        clock = ManualClock(50_000)
        Log.create(Folder(store, "log"), 2, clock=clock, ids=SeededIds(1), schema=SCHEMA)
        made = {"clock": clock, "ids": SeededIds(2)}
        letters = Log.create(Folder(store, "letters"), 1, LETTERS_CONFIG, **made)
        for i in range(3):
            letters.append(letter(i, b"k%d" % i, b'{"n": %d}' % i if i != 1 else b"{"))

    def act(store, seed=10):
        return played(*of(store, seed), JSON)

    runs = 0
    for run in crash_runs(begin, act):
        act(run.store, seed=11)
        letters, log = of(run.store, 12)
        assert sorted(row["key"] for row in rows(log)) == ["k0", "k2"], run
        again = [row["key"] for row in rows(letters)[3:]]
        # Once, or twice where the first run had ended and the second began anew.
        assert again in ([b"k1"], [b"k1", b"k1"]), run
        discard(run.store)
        runs += 1
    assert runs > 50


ODD = {
    SOURCE: [b"\xff", None],
    PARTITION: [b"9" * 30, b"-1", b"1_0", b" 0", None],
    OFFSET: [b"9" * 30, b"x", b"", None],
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, some in ODD.items() for v in some])
def test_anybody_may_have_written_the_headers_of_letters(urls, name, value):
    """For a mirrored record they are not applied, and it counts where it is; a letter that has them
    is refused.
    """
    letters = Log.create(urls[0], 1, dict(LETTERS_CONFIG))
    letters.append(letter(1, b"k", b'{"n": 1}'))
    told = {SOURCE: TOPIC.encode(), PARTITION: b"0", OFFSET: b"0", name: value}
    log = Log.create(urls[1], 1, schema=SCHEMA, features=["given-offsets"])
    with log.transaction(ID) as t:
        t.cover({0: 5})
        record = {"key": "k", "value": {"n": 4}, "headers": list(told.items())}
        t.append([record], partition=0, offsets=np.array([4]))
        t.positions(TOPIC, {0: (5, "1")})
    log.give_offsets()
    assert played(letters, log, JSON).superseded == 1
    letters.append([{"key": b"k", "value": b"{}", "headers": list(told.items())}])
    is_one = name == SOURCE and value is None
    if not is_one:
        with pytest.raises(InvalidInputError, match="is not a dead letter"):
            played(letters, log, JSON)
