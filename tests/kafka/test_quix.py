"""quix-streams with its state in logs, in a separate environment and with a real broker."""

import collections
import json
import os
import random
import subprocess
import time
from pathlib import Path

import pytest

from clog.storage import Log, NotFoundError

pytestmark = pytest.mark.nightly

ROUNDS = 5
WAIT_S = 120
HERE = Path(__file__).parent
WORDS = [f"w{i}" for i in range(40)]


@pytest.fixture(scope="session")
def python(kafka_broker):
    """The Python of the environment, which pip creates if it is missing."""
    from peers.environments import UnavailableError, python_of

    try:
        return python_of("quix")
    except UnavailableError as e:
        pytest.skip(str(e))


def start(python, *arguments):
    root = HERE.parent.parent
    path = os.pathsep.join(
        str(root / name) for name in ("storage", "cleaner", "connector", "bridge")
    )
    return subprocess.Popen(
        [str(python), str(HERE / "count_words.py"), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def told(process):
    """What it printed until it was ended."""
    _, said = process.communicate(timeout=WAIT_S)
    return said


def waits_for(holds, process):
    """Waits until it holds, for as long as it takes; not for a process that has ended."""
    while not holds():
        assert process.poll() is None, told(process)
        time.sleep(0.05)


def finish(python, topic, url, ends, *arguments):
    """Runs it until its state has the topic up to its ends, by partition."""
    process = start(python, *arguments)
    waits_for(lambda: [position(url, topic, p) for p in range(len(ends))] == ends, process)
    process.terminate()
    told(process)


def position(url, topic, partition):
    """How far a log has the state; -1 if there is none."""
    try:
        found = Log.open(f"{url}/{topic}/{partition}").table().get(b"position")
    except NotFoundError:
        return -1
    return -1 if found is None else json.loads(found)["offsets"].get(topic, -1)


def counts(url, topic, partitions):
    """What the logs contain: keys have a store, a family, a prefix and the key."""
    found = collections.Counter()
    for p in range(partitions):
        for row in Log.open(f"{url}/{topic}/{p}").table().to_arrow().to_pylist():
            name = row["key"].split(b"|")[-1].strip(b'"').decode()
            if row["key"].startswith(b"default\0default\0") and not name.startswith("seen-"):
                found[name] += json.loads(row["value"][8:])
    return dict(found)


@pytest.mark.timeout(900)  # With pip's environment of it.
def test_words_are_counted_exactly_whatever_is_killed(kafka, python, url, tmp_path):
    """Rounds of kill -9 while it works, a random number of commits after its state started to
    advance; the local files are discarded in some. Each record is counted once, by the log alone.
    """
    topic = kafka.topic(2)
    expected = collections.Counter()
    chance = random.Random(7)
    sent = [0, 0]

    def versions():
        return [0 if position(url, topic, p) < 0 else opened(p).version for p in range(2)]

    def opened(p):
        return Log.open(f"{url}/{topic}/{p}")

    def more():
        some = chance.choices(WORDS, k=400)
        expected.update(some)
        for p in range(2):
            kafka.produce_all(topic, [(b"k", word.encode()) for word in some[p::2]], p)
            sent[p] += len(some[p::2])

    for round_ in range(ROUNDS):
        more()
        before, commits = versions(), chance.randint(1, 5)
        process = start(python, kafka.address, topic, url, tmp_path / f"cache-{round_ // 3}")

        def has_moved(before=before, commits=commits):
            if [position(url, topic, p) for p in range(2)] == sent:
                more()
            return max(now - then for now, then in zip(versions(), before, strict=True)) > commits

        waits_for(has_moved, process)
        time.sleep(chance.random() / 5)
        process.kill()
        told(process)
    finish(python, topic, url, sent, kafka.address, topic, url, tmp_path / "cache-last")
    assert counts(url, topic, 2) == dict(expected)


def test_a_process_that_dies_between_kafkas_first_commit_and_the_states_loses_nothing(
    kafka, python, url, tmp_path
):
    """The state has a position before a record is processed: an offset of the group without
    state is no reason to pass over the records below it.
    """
    from confluent_kafka import Consumer

    topic = kafka.topic()
    arguments = (kafka.address, topic, url, tmp_path / "cache")
    process = start(python, *arguments)
    waits_for((Path(url) / topic / "0").exists, process)
    process.terminate()  # It has the partition, but no record.
    told(process)
    kafka.produce_all(topic, [(b"k", b"w1")] * 3)
    same = {"group.id": f"count-{topic}", "group.instance.id": f"counts-{topic}"}
    dying = Consumer({**kafka.client, **same, "auto.offset.reset": "earliest"})
    dying.subscribe([topic])
    dying.commit(dying.poll(WAIT_S), asynchronous=False)
    dying.close()
    finish(python, topic, url, [3], *arguments)
    assert counts(url, topic, 1) == {"w1": 3}


def test_records_that_no_state_sees_move_the_position_too(kafka, python, url, tmp_path):
    """Where only those were purged, nothing was lost, and the application continues."""
    topic = kafka.topic()
    arguments = (kafka.address, topic, url, tmp_path / "cache")
    kafka.produce_all(topic, [(b"k", b"w1")])
    finish(python, topic, url, [1], *arguments)
    kafka.produce_all(topic, [(b"k", b"unseen")] * 3)
    process = start(python, *arguments)
    waits_for(lambda: committed(kafka, topic) == 4, process)
    process.terminate()
    told(process)
    kafka.delete_records(topic, 4)
    kafka.produce_all(topic, [(b"k", b"w1")])
    finish(python, topic, url, [5], *arguments)
    assert counts(url, topic, 1) == {"w1": 2}


def committed(kafka, topic):
    """The offset of the application's group."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({**kafka.client, "group.id": f"count-{topic}"})
    (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=WAIT_S)
    consumer.close()
    return found.offset


def test_streams_with_state_share_no_topic(kafka, python, url, tmp_path):
    """Their logs are not committed at once: a process that is killed between them would leave one
    position too low for one or too high for the other.
    """
    topic = kafka.topic()
    process = start(python, kafka.address, topic, url, tmp_path / "cache", "grouped")
    assert f"of topic '{topic}' both have state" in told(process)
    assert process.returncode != 0


def test_a_position_that_the_topic_lost_is_a_stop(kafka, python, url, tmp_path):
    """Deleted and created again: the state is not wiped, but it does not continue either."""
    topic = kafka.topic()
    kafka.produce_all(topic, [(b"k", b"w1")] * 5)
    arguments = (kafka.address, topic, url, tmp_path / "cache")
    finish(python, topic, url, [5], *arguments)
    assert counts(url, topic, 1) == {"w1": 5}
    kafka.delete(topic)
    kafka.topic(name=topic)
    kafka.produce_all(topic, [(b"k", b"w1")])
    process = start(python, *arguments)
    said = told(process)
    assert process.returncode != 0
    assert "was truncated, or deleted and created again" in said
    assert counts(url, topic, 1) == {"w1": 5}
