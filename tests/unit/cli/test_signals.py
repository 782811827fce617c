"""Signals and time limits end commands in an orderly way, as separate processes."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from clog.cli import options
from clog.cli.options import config_names
from clog.storage import Log
from clog.storage.store.around import local_logs
from clog_testing.model import rows_in

COMMAND = [sys.executable, "-c", "from clog_command import main; main()"]
SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143}


def started(*arguments, code=COMMAND[2]):
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_the_end_of_what_produce_reads(tmp_path, number):
    """The complete lines that wait are appended, and what was done is printed; the exit code is the
    signal's.
    """
    log = Log.create(str(tmp_path / "orders"), 1)
    command = started("produce", log.url, "--linger", 600_000, "--batch-size", 2)
    command.stdin.write("a\t1\nb\t2\nc\t3\nhalf")
    command.stdin.flush()
    while log.version == 0:  # The first batch is there, so the rest was read with it.
        time.sleep(0.05)
    command.send_signal(number)
    out, err = command.communicate()
    assert (command.returncode, err) == (SIGNALS[number], "")
    assert "interrupted: appended 3 records in 2 commits" in out
    assert [row[2].value for row in rows_in(log.read())] == [b"1", b"2", b"3"]


def test_sigterm_ends_a_command_that_follows(tmp_path):
    """Orderly: without a traceback, and with the code that service managers know."""
    log = Log.create(str(tmp_path / "orders"), 1)
    log.append([{"key": "a", "value": "1"}])
    command = started("consume", log.url, "--follow", "--reader", "billing")
    assert command.stdout.readline() == "a\t1\n"
    log.append([{"key": "b", "value": "2"}])
    assert command.stdout.readline() == "b\t2\n"
    command.send_signal(signal.SIGTERM)
    assert command.communicate() == ("", "")
    assert command.returncode == 143
    assert log.reader("billing").next_offsets()[0] >= 1


@pytest.fixture
def silent():
    """The address of an S3 server that accepts connections, and answers none."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


SOON = "import clog.cli.options as module; module.LEAVE_S = 0.2;" + COMMAND[2]


@pytest.mark.nightly
def test_a_daemon_beside_a_silent_store(tmp_path, silent, monkeypatch):
    """The logs of another store are cleaned, also new ones; SIGTERM ends the process within its
    time, and it says for what it did not wait.
    """
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    for name in ("first", "second"):
        log = Log.create(str(tmp_path / name), 1, {"min.cleanable.dirty.ratio": 0})
        log.append([{"key": "a", "value": "1"}, {"key": "a", "value": "2"}])
        log.roll()
    urls = ["s3://silent/log", "--discover", tmp_path, "-o", f"endpoint_url={silent}"]
    command = started("cleaner", *urls, code=SOON)
    cleaned = {command.stdout.readline().partition(": ")[0] for _ in range(2)}
    assert cleaned == {str(tmp_path / name) for name in ("first", "second")}
    command.send_signal(signal.SIGTERM)
    _, err = command.communicate()
    assert command.returncode == 0, err
    assert "ended without waiting for" in err


@pytest.mark.nightly
def test_a_page_beside_a_silent_store(tmp_path, silent, monkeypatch):
    """It starts, shows the logs of another store, and ends on SIGTERM, while requests to the silent
    one are under way.
    """
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    url = Log.create(str(tmp_path / "log"), 1).url
    urls = [*(f"s3://silent/{n}" for n in range(20)), url, "--discover", "s3://silent/more"]
    command = started("ui", *urls, "--port", 0, "-o", f"endpoint_url={silent}", code=SOON)
    page = command.stdout.readline().split()[0]

    def get(path, timeout):
        with urllib.request.urlopen(f"{page}/api/logs{path}", timeout=timeout) as answer:
            return json.load(answer)

    while "version" not in (found := get("", 60))["logs"][-1]:
        pass  # It is being opened.
    assert found["unlisted"][0]["url"] == "s3://silent/more"
    assert get("/20/records", 60) == []
    command.send_signal(signal.SIGTERM)
    _, err = command.communicate()
    assert command.returncode in (0, 143), err
    assert "Traceback" not in err


@pytest.mark.nightly
@pytest.mark.parametrize("direction", ["capture", "mirror", "send"])
def test_a_source_that_does_not_answer_until_the_end_is_no_failure(tmp_path, direction):
    """The exit code is the signal's, however the wait ends."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        host = f"127.0.0.1:{server.getsockname()[1]}"
        log = Log.create(tmp_path / "log")
        ends = {
            "capture": (f"postgres://clog@{host}/shop?connect_timeout=2", tmp_path / "shop"),
            "mirror": (f"kafka://{host}/orders", tmp_path / "orders"),
            "send": (log.url, f"kafka://{host}/orders"),
        }
        command = started(direction.replace("send", "mirror"), *ends[direction])
        connection, _ = server.accept()
        with connection:
            command.send_signal(signal.SIGTERM)
            _, err = command.communicate()
    assert (command.returncode, err) == (143, "")


@pytest.mark.nightly
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("direction", ["capture", "mirror", "send"])
def test_what_follows_ends_beside_a_silent_server(tmp_path, number, direction, monkeypatch):
    """A database, a broker or a store that accepts a connection and answers nothing."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    with socket.create_server(("127.0.0.1", 0)) as server:
        host = f"127.0.0.1:{server.getsockname()[1]}"
        ends = {
            "capture": ("capture", f"postgres://clog@{host}/shop", tmp_path / "shop"),
            "mirror": ("mirror", f"kafka://{host}/orders", tmp_path / "orders"),
            "send": ("mirror", "s3://silent/orders", "kafka://localhost:1/orders"),
        }
        command = started(*ends[direction], "-o", f"endpoint_url=http://{host}", code=SOON)
        connection, _ = server.accept()
        with connection:
            command.send_signal(number)
            _, err = command.communicate()
    assert command.returncode == SIGNALS[number], err
    assert "Traceback" not in err


def test_ctrl_c_while_it_starts_prints_no_traceback(tmp_path):
    """At any moment: the process ends, by the signal or with its code."""
    Log.create(str(tmp_path / "orders"), 1)
    code = "import clog_command; print('begun', flush=True); clog_command.main()"
    for delay_s in (0.02, 0.1, 0.2, 0.4, 0.8):
        command = started("describe", tmp_path / "orders", code=code)
        assert command.stdout.readline() == "begun\n"
        time.sleep(delay_s)
        command.send_signal(signal.SIGINT)
        _, err = command.communicate()
        assert err == "", delay_s
        assert command.returncode in (-signal.SIGINT, 130, 0)


def test_an_ignored_signal_stays_ignored(tmp_path):
    """As a shell expects of what it starts in the background."""
    Log.create(str(tmp_path / "orders"), 1)
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN);" + COMMAND[2]
    command = started("consume", tmp_path / "orders", "--follow", "--timeout", "2s", code=code)
    time.sleep(0.5)
    command.send_signal(signal.SIGINT)
    _, err = command.communicate()
    assert command.returncode == 1
    assert "--timeout" in err


def test_a_command_that_takes_too_long_is_ended(cli, tmp_path):
    """By the given limit, with one line that says so."""
    log = Log.create(str(tmp_path / "orders"), 1)
    before = signal.getsignal(signal.SIGALRM)
    result = cli("consume", log.url, "--follow", "--timeout", "300ms", code=1)
    assert "error: the command took longer than --timeout 300 ms" in result.stderr
    assert signal.getsignal(signal.SIGALRM) is before
    cli("describe", log.url, "--timeout", "5min")
    cli("describe", log.url, "--timeout", "soon", code=2)


def test_names_are_completed(tmp_path, monkeypatch):
    """Configs, and logs on this machine; nothing for what is not a log, so that the shell continues
    with files.
    """
    assert {"segment.ms", "segment.bytes"} <= set(config_names("segment."))
    for name in ("orders", "orders-copy", "deep/er/log", "far/too/deep/log"):
        Log.create(str(tmp_path / name), 1)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    assert local_logs("or") == ["orders", "orders-copy"]
    assert local_logs("deep/e") == ["deep/er/log"]
    assert local_logs(f"{tmp_path}/orders-") == [f"{tmp_path}/orders-copy"]
    assert local_logs("oth") == local_logs("s3://bucket/o") == local_logs("none/") == []
    assert options._settings("segment.m") == ["segment.ms="]
    found = subprocess.run(
        COMMAND,
        env={**os.environ, "_CLOG_COMPLETE": "bash_complete", "COMP_WORDS": "clog describe or"}
        | {"COMP_CWORD": "2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout.split() == ["plain,orders", "plain,orders-copy"]
