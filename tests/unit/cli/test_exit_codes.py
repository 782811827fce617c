"""Exit codes: 2 for a command line that is wrong in itself, 1 for what cannot be done."""

import json

import pytest

from clog.cli.app import app
from clog.storage import Log

NEEDED = {
    "erase": ["key"],
    "copy": ["copy"],
    "delete": ["--yes"],
    "diff": ["--from", "0"],
    "alter": ["-c", "segment.ms=1d"],
    "cleaner": ["--once"],
    "mirror": ["kafka://localhost:1/topic"],
}
"""What a command needs besides the URL of a log for its command line to be valid."""
WITHOUT_A_LOG = ("create", "ui", "capture")
"""Commands that may be given a URL where there is none; a page waits for one, and a database comes
before it.
"""
NUMBERS = ("N", "MS", "MIB", "VERSION", "PORT", "TIME", "INTERVAL", "WHERE", "[HOST:]PORT")
"""The placeholder in the help for a value that is parsed."""

COMMANDS = app.commands
READ = [
    (name, max(option.opts, key=len))
    for name, command in COMMANDS.items()
    for option in command.params
    if option.metavar in NUMBERS or "|" in (option.metavar or "")
]
WRONG = [
    "create -c segment.byte=1",
    "create -c segment.ms=soon",
    "create -c segment.ms",
    "create -c min.compaction.lag.ms=2d -c max.compaction.lag.ms=1d",
    "create --partitions 0",
    "create --partitions 10001",
    "create --schema none.json",
    "create --schema wrong.json",
    "create --schema untyped.json",
    "create -o name",
    "alter",
    "alter -c segment.byte=1",
    "alter --delete-config segment.byte",
    "alter --schema none.json",
    "alter --feature none",
    "alter --force",
    "alter --roll soon",
    "copy copy -c segment.byte=1",
    "copy copy --partitions 10001",
    "copy typed --schema wrong.json",
    "copy typed --schema there.csv",
    "copy typed --dead-letters dead",
    "copy typed --decode avro",
    "copy typed --decode json --avro-schema a",
    "copy typed --decode avro --avro-schema none.avsc",
    "copy typed --decode avro --avro-schema a --avro-schema b",
    "copy typed --decode json -c segment.byte=1",
    "delete",
    "consume --from soon",
    "consume --from @soon",
    "consume --at 1",
    "consume --table --from 1",
    "consume --hold 1d",
    "consume --reader a/b",
    "consume --key ? --base64",
    "consume --print keys",
    "consume --to out.none",
    "consume --to none/out.csv",
    "consume --to there.csv",
    "consume --to out.csv --strings --base64",
    "consume --to out.csv --from soon",
    "consume --to out.csv --follow",
    "consume --format csv --reader r",
    "diff",
    "diff --from @soon",
    "describe none",
    "describe offsets --time soon",
    "describe --time 0",
    "describe history --at 1",
    "describe readers -p 0",
    "alter --delete-records 0",
    "erase",
    "erase ? --base64",
    "erase key --receipts folder",
    "alter --delete-records 0:x",
    "alter --delete-records 0:1 --delete-records 0:2",
    "clean --roll --dry-run",
    "clean --sweep --force",
    "clean -c log.cleaner.thread=1",
    "cleaner -c log.cleaner.thread=1",
    "cleaner -c log.cleaner.threads=many",
    "cleaner -c log.cleaner.threads",
    "cleaner --live",
    "publish --format csv",
    "verify --quick --store",
    "verify --keys keys.txt",
    "cost --prices none",
    "cost --trigger 10",
]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with the files that options name, and without a log."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.json").write_text("{")
    (tmp_path / "untyped.json").write_text('{"key": "text", "value": "string"}')
    (tmp_path / "there.csv").write_text("")
    return tmp_path


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_command_line_is_2(cli, here, line):
    """It is found before any log is opened: there is none here. The message is clog's own."""
    name, *given = line.split()
    error = json.loads(cli(name, "none", *given, "--json", code=2).stderr)["error"]
    assert error["kind"] == "usage"
    assert not (here / "none").exists()


@pytest.mark.parametrize(("name", "option"), READ)
def test_a_value_that_is_none_is_2(cli, here, name, option):
    """For every option that takes a number, a time or one of a few words, in clog's own words; a
    long value is not repeated.
    """
    for value in ("1.5x", "9" * 5000):
        line = [name, "none", *NEEDED.get(name, []), option, value, "--json"]
        message = json.loads(cli(*line, code=2).stderr)["error"]["message"]
        assert not any(raw in message for raw in ("Input", "Value error", "int()", "Exceeds"))
        assert len(message) < 400


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - {*WITHOUT_A_LOG, "ls"}))
def test_a_log_that_is_not_there_is_1(cli, here, name):
    """For every command that needs one, before anything is created."""
    error = json.loads(cli(name, "none", *NEEDED.get(name, []), "--json", code=1).stderr)["error"]
    assert error["kind"] == "not_found"
    assert "no log at" in error["message"]
    assert sorted(p.name for p in here.iterdir()) == ["there.csv", "untyped.json", "wrong.json"]


@pytest.mark.parametrize(
    "line",
    [
        "create",
        "consume --from 9",
        "consume -p 7",
        "consume --table --at 99",
        "consume --table --key none",
        "consume --table --key a2V5 --base64",
        "produce",
        "alter --delete-records 7:0",
        "alter --delete-records 0:9",
        "alter --abort none",
        "alter --forget none",
        "describe commit --at 99",
        "copy log --decode json",
        "alter -c partitioner=murmur2",
    ],
)
def test_what_this_log_cannot_do_is_1(cli, here, line):
    """The same command line may be valid for another log, or tomorrow."""
    schema = {"key": "string", "value": "string"}
    (here / "s.json").write_text(json.dumps(schema))
    cli("create", "log", "--schema", "s.json", "--partitions", 1)
    Log.open("log").append([{"key": "a", "value": "1"}])
    name, *given = line.split()
    assert cli(name, "log", *given, code=1).stderr.startswith("error: ")
