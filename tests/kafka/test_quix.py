"""quix-streams with its state in logs, in an environment of its own and with a real broker."""

import collections
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from clog.storage import Log

pytestmark = pytest.mark.nightly

ROUNDS = 8
HERE = Path(__file__).parent
WORDS = [f"w{i}" for i in range(40)]


@pytest.fixture(scope="session")
def python(kafka_broker):
    """The Python of the environment, which pip makes where it is missing."""
    from peers.environments import UnavailableError, python_of

    try:
        return python_of("quix")
    except UnavailableError as e:
        pytest.skip(str(e))


def start(python, *arguments):
    root = HERE.parent.parent
    path = os.pathsep.join(str(root / name) for name in ("storage", "cleaner", "connector"))
    return subprocess.Popen(
        [str(python), str(HERE / "count_words.py"), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(python, *arguments):
    process = start(python, *arguments, 8)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said


def counts(url, topic, partitions):
    """What the logs say: keys have a store, a family, a prefix and the key."""
    found = collections.Counter()
    for p in range(partitions):
        for row in Log.open(f"{url}/{topic}/{p}").table().to_arrow().to_pylist():
            name = row["key"].split(b"|")[-1].strip(b'"').decode()
            if row["key"].startswith(b"default\0default\0") and not name.startswith("seen-"):
                found[name] += json.loads(row["value"][8:])
    return dict(found)


@pytest.mark.timeout(900)  # nine starts of an application, with pip's environment of it
def test_words_are_counted_exactly_whatever_is_killed(kafka, python, url, tmp_path):
    """Eight rounds of kill -9 at random moments, the local files thrown away in some: each record
    is counted once, by the log alone.
    """
    topic = kafka.topic(2)
    expected = collections.Counter()
    chance = random.Random(7)
    for round_ in range(ROUNDS):
        cache = tmp_path / f"cache-{round_ // 3}"
        process = start(python, kafka.address, topic, url, cache)
        end = time.monotonic() + 4 + 4 * chance.random()
        while time.monotonic() < end:
            some = chance.choices(WORDS, k=20)
            expected.update(some)
            for p in range(2):
                records = [{"key": b"k", "value": word.encode()} for word in some[p::2]]
                kafka.produce(topic, records, partition=p)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    finish(python, kafka.address, topic, url, tmp_path / "cache-last")
    assert counts(url, topic, 2) == dict(expected)
    versions = [Log.open(f"{url}/{topic}/{p}").version for p in range(2)]
    assert min(versions) > ROUNDS


def test_a_position_that_the_topic_lost_is_a_stop(kafka, python, url, tmp_path):
    """Deleted and made again: the state is not wiped, nor does it go on."""
    topic = kafka.topic()
    kafka.produce(topic, [{"key": b"k", "value": b"w1"}] * 5)
    finish(python, kafka.address, topic, url, tmp_path / "cache")
    assert counts(url, topic, 1) == {"w1": 5}
    kafka.delete(topic)
    kafka.topic(name=topic)
    kafka.produce(topic, [{"key": b"k", "value": b"w1"}])
    process = start(python, kafka.address, topic, url, tmp_path / "cache", 8)
    _, said = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "was cut short, or deleted and made again" in said
    assert counts(url, topic, 1) == {"w1": 5}
