"""How the text of arguments is read, and what is told while a store is waited for."""

import json
import threading

import click
import pytest

from clog.cli import options
from clog.cli.options import configs, pairs, parse_offsets, parse_time_ms, storage_options
from clog.storage import Log, StoreUnavailableError


@pytest.mark.parametrize(
    ("given", "address"),
    [
        (["-o", "endpoint_url=http://me:hunter2@10.0.0.1:9000"], " at http://***@10.0.0.1:9000"),
        (["-o", 'client_kwargs={"endpoint_url": "http://10.0.0.1"}'], " at http://10.0.0.1"),
        ([], ""),
    ],
)
def test_a_store_that_does_not_answer_is_named(cli, monkeypatch, given, address):
    """A command that waits says for whom, and at which address, long before its client gives up; in
    the form of its errors, and without what may be secret.
    """
    told = threading.Event()
    tell = options.print_note

    def note(text):
        tell(text)
        told.set()

    def silent(*_, **__):
        assert told.wait(60)
        raise StoreUnavailableError("no answer")

    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.setattr(options, "print_note", note)
    monkeypatch.setattr(options, "PATIENCE_S", 0.0)
    monkeypatch.setattr(Log, "open", silent)
    lines = cli("describe", "s3://b/orders", "--json", *given, code=1).stderr.splitlines()
    note, error = map(json.loads, lines)
    start = f"still waiting for s3://b/orders{address} after 0 s; "
    assert note["note"]["message"].startswith(start)
    assert error["error"]["kind"] == "store_unavailable"


def test_a_store_that_answers_is_not_named(cli, monkeypatch, tmp_path):
    """Nothing is told afterwards, either."""
    timers = []
    timer = threading.Timer

    def kept(*given):
        timers.append(timer(*given))
        return timers[-1]

    monkeypatch.setattr(options.threading, "Timer", kept)
    cli("create", tmp_path)
    assert cli("describe", tmp_path).stderr == ""
    assert len(timers) == 2
    assert all(each.finished.is_set() for each in timers)


def test_options_are_text_but_for_json_that_is_no_number():
    """true, false, null, lists and objects are JSON; an access key of digits stays text."""
    given = ["anon=false", "key=123", "a==", 'client_kwargs={"region_name": "x"}', "b={x", "n=null"]
    assert storage_options(given) == {
        "anon": False,
        "key": "123",
        "a": "=",
        "client_kwargs": {"region_name": "x"},
        "b": "{x",
        "n": None,
    }


def test_options_of_the_environment_yield_to_those_of_the_command_line(monkeypatch):
    """Secrets can stay out of the process list; the nearer one wins."""
    monkeypatch.setenv("CLOG_STORAGE_OPTIONS", '{"key": "a", "secret": "b", "port": 22}')
    assert storage_options(["key=c"]) == {"key": "c", "secret": "b", "port": 22}


@pytest.mark.parametrize("text", ["hunter2", "[]", "[1, 2]", "{hunter2", "5"])
def test_a_wrong_environment_is_refused_without_its_text(monkeypatch, text):
    """It must be a JSON object; what it holds is never shown."""
    monkeypatch.setenv("CLOG_STORAGE_OPTIONS", text)
    with pytest.raises(click.BadParameter, match="not a JSON object") as caught:
        storage_options([])
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("text", ["hunter2", "=hunter2"])
def test_an_option_without_a_name_is_refused_without_its_text(text):
    """It may be a secret that lost its name: only its position is told."""
    with pytest.raises(click.BadParameter, match="--option number 2") as caught:
        storage_options(["a=b", text])
    assert "hunter2" not in str(caught.value)


def test_configs_keep_what_follows_the_first_equals_sign():
    """A config's value may be a list, or empty."""
    given = ["cleanup.policy=compact,delete", "a=", "b=c=d"]
    assert pairs(given) == {"cleanup.policy": "compact,delete", "a": "", "b": "c=d"}
    assert configs(["cleanup.policy=", "segment.ms=1d"]) == {
        "cleanup.policy": "",
        "segment.ms": "1d",
    }
    with pytest.raises(click.BadParameter, match=r"'segment\.ms'"):
        configs(["segment.ms"])


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("0", 0),
        ("1769860800000", 1_769_860_800_000),
        ("2026-01-31T12:00:00Z", 1_769_860_800_000),
        ("2026-01-31 12:00", 1_769_860_800_000),
        ("2026-01-31T13:00:00.0019+01:00", 1_769_860_800_001),
    ],
)
def test_times_are_epoch_ms_or_iso(text, time_ms):
    """Without a zone it is UTC; what is below a millisecond is cut off."""
    assert parse_time_ms(text) == time_ms


@pytest.mark.parametrize("text", ["", "now", "-5", "2026-13-01"])
def test_what_is_no_time_is_refused(text):
    """The error says what a time looks like."""
    with pytest.raises(click.BadParameter, match="ISO 8601"):
        parse_time_ms(text)


@pytest.mark.parametrize("text", ["0", "0:", ":5", "a:5", "0:b", "0:-", "-1:5", "0:1:2"])
def test_what_is_no_offset_of_a_partition_is_refused(text):
    """The error shows the form."""
    with pytest.raises(click.BadParameter, match="PARTITION:OFFSET"):
        parse_offsets([text])


def test_a_partition_can_be_named_once():
    """Two offsets for one partition have no meaning."""
    assert parse_offsets(["0:5", "1:-1", "2:end"]) == {0: 5, 1: -1, 2: -1}
    with pytest.raises(click.BadParameter, match="partition 0 is given twice"):
        parse_offsets(["0:5", "0:6"])
