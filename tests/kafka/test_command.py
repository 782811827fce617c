"""`clog mirror` in a shell, with a real broker."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from clog.storage import Log

pytestmark = pytest.mark.nightly

WAIT_S = 30


def run(*arguments, code=0, **environment):
    done = subprocess.run(
        [sys.executable, "-m", "clog_command", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == code, done.stderr
    return done


def test_once_says_what_it_did(kafka, url):
    """Records, how far, and what deserves a note; as JSON everything in `MirroredTopic`."""
    topic = kafka.topic(min_insync_replicas=1)
    kafka.produce(topic, [b"a", b"b", {"key": "c", "value": "c", "timestamp": -1}])
    done = run("mirror", kafka.url(topic), url, "--once")
    assert done.stdout == (
        f"mirrored 3 records of {topic} into {url}; up to 0: 3; 0 offsets behind\n"
    )
    assert "clog.mirror.timestamp" in done.stderr
    assert "config min.insync.replicas is not copied" in done.stderr
    kafka.produce(topic, [b"d"])
    (told,) = json.loads(run("mirror", kafka.url(topic), url, "--once", "--json").stdout)["topics"]
    assert (told["records"], told["offsets"], told["lag"]) == (1, {"0": 4}, 0)


def test_a_stop_is_one_line_with_the_remedy(kafka, url):
    """And exit code 1; a wrong command line is 2."""
    topic = kafka.topic()
    kafka.produce(topic, [b"a", b"b"])
    run("mirror", kafka.url(topic), url, "--once")
    kafka.produce(topic, [b"c"])
    kafka.delete_records(topic, 3)
    done = run("mirror", kafka.url(topic), url, "--once", code=1)
    assert done.stderr.count("\n") == 1
    assert "--skip-purged" in done.stderr
    run("mirror", "orders", url, code=2)
    run("mirror", kafka.url(topic), url, "--force", code=2)
    run("mirror", kafka.url(topic), url, "--config", "retention=1", code=2)


def test_options_of_the_client_come_from_the_environment_and_are_not_shown(kafka, url):
    """A password that is refused, and an option that does not exist."""
    topic = kafka.topic()
    secret = json.dumps({"security.protocol": "hunter2"})
    done = run("mirror", kafka.url(topic), url, "--once", code=1, CLOG_KAFKA_OPTIONS=secret)
    assert "security.protocol" in done.stderr
    assert "hunter2" not in done.stderr
    run("mirror", kafka.url(topic), url, "--once", "--kafka-option", "client.id=me")


def test_a_log_first_and_a_topic_second_sends(kafka, url):
    """The way back, with the same command; options of the other direction are refused."""
    topic = kafka.topic(retention_ms=-1)
    Log.create(url, 1).append([{"key": "a", "value": "1"}, {"key": "b", "value": "2"}])
    done = run("mirror", url, kafka.url(topic), "--once")
    assert done.stdout == f"sent 2 records of {url} to {topic}; up to 0: 2; 0 offsets behind\n"
    run("mirror", url, kafka.url(topic), "--verify", code=2)
    run("mirror", kafka.url(topic), url, "--from-bound", code=2)


def test_brokers_that_are_dead_are_named_after_five_seconds(tmp_path):
    """Not silence: which broker, and what to do; then --wait ends the command."""
    began = time.monotonic()
    arguments = ["mirror", "kafka://127.0.0.1:1/orders", str(tmp_path / "log"), "--wait", "6s"]
    process = subprocess.Popen(
        [sys.executable, "-m", "clog_command", *arguments], stderr=subprocess.PIPE, text=True
    )
    word = process.stderr.readline()
    assert word.startswith("127.0.0.1:1 has not sent topic orders for 5 s (the client says:")
    assert "waiting for up to 6 s; check the address" in word
    said = process.stderr.read()
    assert (process.wait(), said.count("\n")) == (1, 1)
    assert "then run it again" in said
    assert time.monotonic() > began + 6


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_mirror_with_all_committed_that_was_read(kafka, url, number):
    """It reports how far it is, and exits as interrupted."""
    topic = kafka.topic()
    kafka.many(topic, 1000)
    command = [sys.executable, "-m", "clog_command", "mirror", kafka.url(topic), url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    kafka.until(lambda: ends(url) == {0: 1000})
    process.send_signal(number)
    out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 128 + number, err
    assert "up to 0: 1000; 0 offsets behind" in out


def ends(url):
    try:
        return Log.open(url).end_offsets()
    except LookupError:
        return None
