"""Mirrors that stood still while their topics removed tombstones."""

import subprocess
import sys

import pytest
from tests.kafka.topics import COMPACTED, JSON

from clog.bridge import MirrorSettings, mirror, verify
from clog.bridge.topic import Cluster
from clog.storage import Log, SystemClock
from clog.storage.errors import SourcePurgedError

pytestmark = pytest.mark.nightly

DAY_MS = 86_400_000


class Behind(SystemClock):
    """A clock that is some time behind."""

    def __init__(self, ms):
        self._ms = ms

    def now_ms(self):
        return super().now_ms() - self._ms

    def now_us(self):
        return super().now_us() - 1000 * self._ms


def values(keys):
    return [{"key": key, "value": b'{"n": 1}'} for key in keys]


def until_gone(kafka, topic, *offsets):
    """Writes on until the topic's cleaner has removed what was at these offsets."""

    def are_gone():
        kafka.produce(topic, values("x"))
        return not {row[0] for row in kafka.records(topic)}.intersection(offsets)

    kafka.until(are_gone)


def stood_still(kafka, url, decode=None, keys="ab", **config):
    """A topic of which a mirror has missed the deletes of some of the keys a, b, c."""
    topic = kafka.topic(**COMPACTED | config)
    kafka.produce(topic, values("abc"))
    mirror(kafka.url(topic), url, MirrorSettings(once=True, decode=decode))
    kafka.produce(topic, [{"key": key, "value": None} for key in keys])
    until_gone(kafka, topic, *range(3, 3 + len(keys)))
    return topic


def keys(url):
    """The keys of a log's table, as text."""
    found = Log.open(url).table().to_arrow().column("key").to_pylist()
    return sorted(key if isinstance(key, str) else key.decode() for key in found)


@pytest.mark.parametrize("decode", [None, JSON], ids=["bytes", "json"])
def test_missed_deletes_are_a_stop_and_the_keys_go_when_they_are_compared(kafka, url, decode):
    """S41, S75: before the first missing offset; the tombstones are at offsets of the topic, which
    the comparison of both allows, and readers of the log get them.
    """
    topic = stood_still(kafka, url, decode)
    with pytest.raises(SourcePurgedError, match=r"missed deletes.*--reconcile"):
        mirror(kafka.url(topic), url, MirrorSettings(once=True, decode=decode))
    assert Log.open(url).end_offsets() == {0: 3}
    done = mirror(kafka.url(topic), url, MirrorSettings(once=True, decode=decode, reconcile=True))
    assert (done.topics[topic].reconciled, done.lag) == (2, 0)
    assert keys(url) == ["c", "x"]
    assert not verify(kafka.url(topic), url, decode=decode).differences
    rows = Log.open(url).read(start=3).to_pylist()
    assert [(row["offset"], row["value"]) for row in rows[:2]] == [(3, None), (4, None)]
    assert mirror(kafka.url(topic), url, MirrorSettings(once=True, decode=decode)).records == 0


def test_a_delete_retention_that_was_raised_meanwhile_hides_nothing(kafka, url):
    """S41: the one that was in force when the log last had all counts, too."""
    topic = stood_still(kafka, url)
    kafka.alter(topic, delete_retention_ms=DAY_MS)
    with pytest.raises(SourcePurgedError, match=r"missed deletes.*tombstones 0 ms after"):
        mirror(kafka.url(topic), url, MirrorSettings(once=True))


def test_who_accepts_missed_deletes_goes_on_and_is_told_where_no_place_is_left(kafka, url):
    """S75: a tombstone for the key in the topic is the way then."""
    topic = stood_still(kafka, url)
    mirror(kafka.url(topic), url, MirrorSettings(once=True, skip_purged=True))
    assert keys(url) == ["a", "b", "c", "x"]
    assert mirror(kafka.url(topic), url, MirrorSettings(once=True)).records == 0
    with pytest.raises(SourcePurgedError, match="still has keys"):
        mirror(kafka.url(topic), url, MirrorSettings(once=True, reconcile=True))
    kafka.produce(topic, [{"key": key, "value": None} for key in "ab"])
    mirror(kafka.url(topic), url, MirrorSettings(once=True, reconcile=True))
    assert keys(url) == ["c", "x"]


def test_what_the_topic_has_again_or_by_its_retention_not_any_more_is_not_deleted(kafka, url):
    """S41: a key that was deleted and written again keeps its value; a record below the topic's
    start was not deleted, as far as anybody can say.
    """
    topic = stood_still(kafka, url)
    kafka.produce(topic, values("a"))
    done = mirror(kafka.url(topic), url, MirrorSettings(once=True, reconcile=True))
    assert (done.topics[topic].reconciled, keys(url)) == (1, ["a", "c", "x"])
    kafka.alter(topic, cleanup_policy="compact,delete", retention_ms=-1)
    kafka.delete_records(topic, 3)
    done = mirror(kafka.url(topic), url, MirrorSettings(once=True, reconcile=True))
    assert (done.topics[topic].reconciled, keys(url)) == (0, ["a", "c", "x"])


def test_a_log_of_which_nothing_is_left_is_compared_too(kafka, url):
    """S75: what was taken from the log's start needs no tombstone."""
    topic = kafka.topic(**COMPACTED)
    kafka.produce(topic, values("abc"))
    mirror(kafka.url(topic), url, MirrorSettings(once=True))
    Log.open(url).delete_records({0: -1})
    done = mirror(kafka.url(topic), url, MirrorSettings(once=True, reconcile=True))
    assert (done.topics[topic].reconciled, keys(url)) == (0, [])


def test_a_pause_shorter_than_tombstones_stay_is_none(kafka, url):
    """S41: superseded records and markers leave offsets out, and no moment is far back; one of days
    ago is, unless nothing is missing.
    """
    topic = kafka.topic(**COMPACTED | {"delete_retention_ms": DAY_MS})
    kafka.produce(topic, values("abc"))
    mirror(kafka.url(topic), url, MirrorSettings(once=True, clock=Behind(2 * DAY_MS)))
    kafka.produce(topic, values("ab"))
    # The broker may have removed what is superseded by now.
    assert mirror(kafka.url(topic), f"{url}-2", MirrorSettings(once=True)).offsets == {0: 5}
    assert (
        mirror(kafka.url(topic), url, MirrorSettings(once=True, clock=Behind(2 * DAY_MS))).records
        == 2
    )
    kafka.produce(topic, values("xx"))
    until_gone(kafka, topic, 5)
    kafka.transaction(topic, [b"1"])
    with pytest.raises(SourcePurgedError, match=r"missed deletes.* 2 d ago"):
        mirror(kafka.url(topic), url, MirrorSettings(once=True))
    mirror(kafka.url(topic), f"{url}-2", MirrorSettings(once=True))
    assert keys(f"{url}-2") == ["a", "b", "c", "k0", "x"]


def test_a_quiet_topic_is_no_pause(kafka, url):
    """S41: a run that finds nothing new stores that it has all, once, if the last time is long ago;
    so does one that follows.
    """
    topic = kafka.topic(**COMPACTED | {"delete_retention_ms": DAY_MS})
    kafka.produce(topic, values("abc"))
    mirror(kafka.url(topic), url, MirrorSettings(once=True, clock=Behind(2 * DAY_MS)))
    name = Cluster(kafka.address, {}).topic(topic).seen
    before = Log.open(url).positions("clog-mirror")[name][0]
    mirror(kafka.url(topic), url, MirrorSettings(once=True))
    after = Log.open(url).positions("clog-mirror")[name][0]
    assert after - before > DAY_MS
    mirror(kafka.url(topic), url, MirrorSettings(once=True))
    assert Log.open(url).positions("clog-mirror")[name][0] == after
    kafka.transaction(topic, [b"1"])
    mirror(kafka.url(topic), url, MirrorSettings(once=True))
    assert keys(url) == ["a", "b", "c", "k0"]


def test_a_log_of_an_older_release_is_in_doubt_once(kafka, url):
    """S41: it does not say when it last had all."""
    topic = kafka.topic(**COMPACTED | {"delete_retention_ms": DAY_MS})
    source = Cluster(kafka.address, {}).topic(topic).source
    log = Log.create(url, 1, features=["given-offsets"])
    kafka.produce(topic, values("a"))
    with log.transaction("clog-mirror") as t:
        t.cover({0: 1})
        t.positions(source, {0: (1, "0")})
    kafka.transaction(topic, [b"1"])
    kafka.produce(topic, values("b"))
    with pytest.raises(SourcePurgedError, match="it is not known when"):
        mirror(kafka.url(topic), url, MirrorSettings(once=True))


def test_in_a_shell(kafka, url):
    """S41: the stop is exit code 1 with both ways on, and --reconcile is one."""
    topic = stood_still(kafka, url)

    def run(*options):
        command = [sys.executable, "-m", "clog_command", "mirror", kafka.url(topic), url, "--once"]
        return subprocess.run([*command, *options], capture_output=True, text=True, check=False)

    stopped = run()
    assert stopped.returncode == 1
    assert "--reconcile" in stopped.stderr
    assert "--skip-purged" in stopped.stderr
    done = run("--reconcile")
    assert done.returncode == 0, done.stderr
    assert "keys deleted, because the topic no longer has them: 2" in done.stdout + done.stderr
    assert keys(url) == ["c", "x"]
