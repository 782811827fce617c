"""`clog create alter describe`, what they change and list, and errors."""

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from clog.cli import output
from clog.cli.options import Given
from clog.storage import Log, ManualClock, administration
from clog.storage.config.units import moment
from clog.storage.format.log_info import FEATURES
from clog_testing.older import as_before
from clog_testing.undecided import append_undecided

T0 = 1_769_860_800_000


def fill(url, *, partitions=2, config=None):
    """Three sealed segments and an active one in partition 0; partition 1 is empty."""
    clock = ManualClock(T0)
    log = Log.create(url, partitions=partitions, config=config, clock=clock)
    for i in range(4):
        clock.advance(1000)
        log.append([{"key": f"k{i % 2}", "value": "v" * 20}] * 2, partition=0)
        if i < 3:
            log.roll(0)
    return log


def test_create_makes_a_log(cli, url):
    """With partitions and configs; the JSON says what holds."""
    made = cli.json("create", url, "--partitions", 3, "-c", "cleanup.policy=compact,delete")
    log = Log.open(url)
    assert (made["url"], made["partitions"]) == (log.url, 3)
    assert made["config"] == log.config
    assert log.config["cleanup.policy"] == "compact,delete"


def test_create_says_what_it_made(cli, url):
    """In one line."""
    assert cli("create", url).stdout == f"created {url} with 4 partitions\n"


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        (["-c", "segmnt.ms=5"], 2, "segment.ms"),
        (["-c", "segment.ms=-5"], 2, 'segment.ms="-5" is refused; allowed'),
        (["-c", "segment.ms"], 2, "NAME=VALUE"),
        (["--partitions", "0"], 2, "partitions"),
        (["--partitions", "10001"], 2, "1 to 10000"),
    ],
)
def test_create_refuses_what_is_wrong_and_makes_nothing(cli, url, tmp_path, given, code, said):
    """Configs come with the nearest name or the range (S43); a wrong command line is code 2."""
    result = cli("create", url, *given, code=code)
    assert said in result.stderr
    assert result.stdout == ""
    assert not list(tmp_path.iterdir())


def test_an_error_is_one_line_and_the_next_step(cli, url):
    """Exit code 1; nothing on standard output, no traceback."""
    cli("create", url)
    result = cli("create", url, code=1)
    error, hint = result.stderr.splitlines()
    assert error.startswith(f"error: a log already exists at {url}")
    assert hint == 'next: check the log with "clog describe"'
    missing = cli("describe", url + "x", code=1)
    assert (
        missing.stderr.splitlines()[1] == 'next: check the URL and the name; "clog ls" lists logs'
    )


def test_a_full_disk_is_not_told_to_check_its_url(cli, url, monkeypatch):
    """What helps is room."""
    cli("create", url)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    error, hint = cli("produce", url, stdin=b"a\t1\n", code=1).stderr.splitlines()[-2:]
    assert "No space left on device; nothing was written" in error
    assert hint == "next: free space on the log's disk, or raise its quota"


def test_remedies_are_those_of_a_shell(cli, url):
    """Messages of the library name calls in Python, which the command line has options for."""
    cli("create", url)
    assert "; use it, or use another URL\n" in cli("create", url, code=1).stderr
    assert '; create one with "clog create"\n' in cli("describe", url + "x", code=1).stderr
    library = "".join(p.read_text() for p in Path(administration.__file__).parent.rglob("*.py"))
    messages = re.sub(r'"\s*\n\s*f?"', "", library).replace("{{", "{")
    assert [python for python in output._IN_SHELL if python not in messages] == []


@pytest.mark.parametrize("place", [".", "./", "{url}", "_clog", "{url}/orders/_clog/x"])
def test_a_folder_near_a_log_tells_where_the_log_is(cli, tmp_path, monkeypatch, place):
    """The folder above logs, and the files of one, are what a newcomer tries first."""
    for name in ("orders", "shop/users"):
        Log.create(tmp_path / name, 1)
    inside = "_clog" in place
    monkeypatch.chdir(tmp_path / "orders" if inside else tmp_path)
    told = cli("describe", place.format(url=tmp_path), code=1).stderr
    if inside:
        assert f", but files of the log at {tmp_path}/orders\n" in told
    else:
        assert re.search(r"; there are logs below: \S*orders, \S*shop/users\n", told)


def test_the_first_of_many_logs_below_are_named(cli, tmp_path):
    """The others are counted."""
    for n in range(5):
        Log.create(tmp_path / f"log{n}", 1)
    assert "log0, " in (told := cli("describe", tmp_path, "offsets", code=1).stderr)
    assert "log2 and 2 more\n" in told
    assert "log3" not in told


@pytest.mark.parametrize(
    "command",
    [
        *(["describe"], ["alter", "-c", "segment.ms=5"], ["produce"], ["consume"], ["verify"]),
        *(["describe", "history"], ["clean"], ["clean", "--sweep"]),
    ],
    ids=" ".join,
)
def test_every_command_needs_a_log(cli, url, tmp_path, command):
    """None makes one by the way."""
    name, *rest = command
    assert f"no log at {url}" in cli(name, url, *rest, code=1).stderr
    assert not list(tmp_path.iterdir())


def test_a_log_whose_objects_are_gone_is_told_in_a_line(cli, url, tmp_path):
    """Deleted by a life-cycle rule, say: whichever command needs one, no traceback comes."""
    fill(url, partitions=1, config={"segment.ms": 1 << 62})  # Nothing is idle, whatever the time.
    for found in tmp_path.rglob("*.parquet"):
        found.unlink()
    for command in (["describe", "offsets", "--time", "0"], ["consume"]):
        first, hint = cli(command[0], url, *command[1:], code=1).stderr.splitlines()
        assert first.startswith("error: ")
        assert "is missing" in first or "is gone" in first  # a scan of headers, a read
        assert "clog verify" in hint
    told = cli("clean", url, "--force", code=1)
    assert "partitions [0]" in told.stderr
    assert told.stdout == ""
    assert cli.json("clean", url, code=1)["uncleanable"] == [0]


def test_too_little_memory_is_told_in_one_line(cli, url, monkeypatch):
    """NumPy's and Arrow's own errors of it are raw Python ones, wherever they are raised."""
    cli("create", url)
    errors = [MemoryError(), pa.ArrowMemoryError("malloc of size 64 failed")]
    errors.append(np._core._exceptions._ArrayMemoryError((1 << 24,), np.dtype(np.uint64)))
    for error in errors:

        def fails(*_, error=error, **__):
            raise error

        monkeypatch.setattr(Log, "describe", fails)
        (line,) = cli("describe", url, code=1).stderr.splitlines()
        assert line.startswith("error: the command needs more memory than is available")
        assert line.endswith("; run it where there is more, or on less data")
    assert "128. MiB" in line
    told = json.loads(cli("describe", url, "--json", code=1).stderr)["error"]
    assert told["kind"] == "out_of_memory"


def test_errors_are_json_with_json(cli, url):
    """What clog refuses, and a wrong command line: one object on standard error, the same exit
    codes, nothing on standard output.
    """
    refused = cli("describe", url, "--json", code=1)
    told = json.loads(refused.stderr)["error"]
    assert told["kind"] == "not_found"
    assert told["message"].startswith(f"no log at {url}")
    assert "clog ls" in told["next"]
    assert refused.stdout == ""
    for given in (["create", url, "-c", "x"], ["describe"], ["describe", url, "--nonsense"]):
        wrong = json.loads(cli(*given, "--json", code=2).stderr)["error"]
        assert wrong["kind"] == "usage"
        assert wrong["message"]
    assert cli("describe", url, code=1).stderr.startswith("error: ")


def test_errors_are_red_on_a_terminal_only(cli, url, monkeypatch):
    """NO_COLOR and pipes have no escape codes."""
    assert "\x1b" not in cli("describe", url, code=1).stderr
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[1;31merror" in cli("describe", url, code=1).stderr
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[31m" not in cli("describe", url, code=1).stderr


def test_storage_options_reach_the_store_and_are_never_shown(cli, monkeypatch):
    """Neither in errors nor in output, whatever fails."""
    seen = {}

    class Refusing:
        @staticmethod
        def open(url, options, *, single_writer):
            seen.update(options)
            raise OSError("the store is down")

    monkeypatch.setenv("CLOG_STORAGE_OPTIONS", '{"token": "hunter1"}')
    monkeypatch.setattr("clog.storage.log.Log.open", Refusing.open)
    result = cli._runner.invoke(
        __import__("clog.cli.app").cli.app.app,
        ["describe", "s3://b/x", "--option", "secret=hunter2", "-o", "anon=true"],
    )
    assert seen == {"token": "hunter1", "secret": "hunter2", "anon": True}
    assert "hunter" not in result.output


def test_alter_shows_what_changed(cli, url):
    """Old and new; a config goes back to its default; the same again changes nothing."""
    cli("create", url)
    assert cli("alter", url, "-c", "segment.ms=5000").stdout == "segment.ms: 7d -> 5s\n"
    assert "nothing changed" in cli("alter", url, "-c", "segment.ms=5000").stdout
    back = cli.json("alter", url, "--delete-config", "segment.ms")
    assert back["changed"] == {"segment.ms": ["5000", "604800000"]}
    assert Log.open(url).config["segment.ms"] == "604800000"
    assert "nothing to change" in cli("alter", url, code=2).stderr
    assert "-c NAME=VALUE" in cli("alter", url, "segment.ms=5000", code=2).stderr


def test_retention_without_a_policy_that_deletes_is_told(cli, tmp_path):
    """A topic has that policy by default, a log has not (S33)."""
    url = str(tmp_path / "events")
    made = cli("create", url, "-c", "retention.ms=1d").stdout
    told = "retention.ms waits for a policy that deletes: with cleanup.policy=compact nothing"
    assert told in made
    assert told in cli("alter", url, "-c", "retention.ms=2d").stdout
    both = ("-c", "cleanup.policy=compact,delete", "-c", "retention.ms=1d")
    assert "waits" not in cli("alter", url, *both).stdout
    assert "waits" not in cli("alter", url, "-c", "min.cleanable.dirty.ratio=0.1").stdout


def test_alter_says_what_it_did_before_an_error(cli, url):
    """Several changes are several commits: what follows the one that fails is not done."""
    cli("create", url, "--partitions", 1)
    failed = cli(
        "alter", url, "--roll", "all", "-c", "segment.ms=5s", "--delete-records", "0:9", code=1
    )
    assert failed.stderr.startswith("before the error: segment.ms: 7d -> 5s\nerror: ")
    assert failed.stdout == ""


def test_delete_records_is_all_or_nothing(cli, url):
    """-1 is the end; an offset beyond it changes no partition (S36)."""
    log = fill(url)
    refused = cli("alter", url, "--delete-records", "0:3", "--delete-records", "1:1", code=1)
    assert "cannot delete records before offset 1 of partition 1" in refused.stderr
    assert log.start_offsets() == {0: 0, 1: 0}
    assert cli("alter", url, "--delete-records", "0:3").stdout == "partition 0 starts at offset 3\n"
    done = cli.json("alter", url, "--delete-records", "0:end", "--delete-records", "1:-1")
    assert done["partitions"] == [
        {"partition": 0, "start_offset": 8},
        {"partition": 1, "start_offset": 0},
    ]


def test_offsets_tell_what_is_undecided(cli, url):
    """Where readers stop has a column of its own while a transaction has not ended (S51)."""
    append_undecided(fill(url), [{"key": "u", "value": "1"}])
    lines = cli("describe", url, "offsets").stdout.splitlines()
    assert lines[0].split("  ")[-2:] == ["stable offset", "end offset"]
    assert lines[1].split() == ["0", "0", "8", "9"]
    consumed = cli("consume", url).stdout.splitlines()
    assert len(consumed) == 8


def test_offsets_are_listed(cli, url):
    """Start and end; for a time the first record not older, or none (S39)."""
    log = fill(url)
    log.delete_records({0: 1})
    rows = [line.split() for line in cli("describe", url, "offsets").stdout.splitlines()]
    assert rows[1:] == [["0", "1", "8"], ["1", "0", "0"]]
    found = cli.json("describe", url, "offsets", "--time", "2026-01-31T12:00:02Z", "-p", 0)
    assert found["time_ms"] == T0 + 2000
    assert found["partitions"] == [
        {
            "partition": 0,
            "start_offset": 1,
            "stable_offset": 8,
            "end_offset": 8,
            "offset_for_time": 2,
        }
    ]
    late = cli("describe", url, "offsets", "--time", T0 + 10_000).stdout
    assert [line.split()[-1] for line in late.splitlines()[1:]] == ["-", "-"]


def test_segments_are_listed(cli, url):
    """Each with its range, size and state, the active one last."""
    fill(url)
    rows = cli.json("describe", url, "segments", "-p", 0)["segments"]
    assert [(r["base_offset"], r["next_offset"], r["active"]) for r in rows] == [
        *((0, 2, False), (2, 4, False), (4, 6, False)),
        (6, 8, True),
    ]
    text = cli("describe", url, "segments").stdout
    assert text.count("dirty") == 3
    assert text.count("active") == 2
    assert max(map(len, text.splitlines())) <= 80


def test_describe_says_what_comes_next(cli, url):
    """Parts and offsets of each partition; the next action with its reason (S14)."""
    fill(url)
    found = cli.json("describe", url)
    assert [d["next_action"] for d in found["partition_details"]] == [
        "clean now: dirty ratio 1.00 > 0.5",
        "nothing to do",
    ]
    (one,) = cli.json("describe", url, "-p", 1)["partition_details"]
    assert one["partition"] == 1
    text = cli("describe", url).stdout
    assert "0 ▓▓▓▓▓▓▓▓▓" in text
    assert "next: clean now: dirty ratio 1.00 > 0.5" in text
    assert max(map(len, text.splitlines())) <= 80


def test_describe_shows_the_delete_retention_point(cli, url, monkeypatch):
    """After a pass a tombstone is kept up to its horizon; the bar marks where it lies (S23)."""
    from clog.cleaner import Cleaner

    clock = ManualClock(T0)
    log = Log.create(url, partitions=1, clock=clock)
    log.append([{"key": f"k{i}", "value": "v" * 50} for i in range(8)])
    log.roll()
    Cleaner(log).run_once(force=True)
    log.append([{"key": "k0", "value": None}, {"key": "x", "value": "v"}])
    log.roll()
    log.alter({"segment.bytes": "14"})  # nothing is merged
    Cleaner(log).run_once(force=True)
    monkeypatch.setattr(Given, "open", lambda *_: Log.open(url, clock=clock))
    (detail,) = cli.json("describe", url)["partition_details"]
    assert detail["delete_retention_offset"] == 8
    assert detail["delete_horizon_ms"] == T0 + 86_400_000
    assert detail["delete_horizon"] == moment(T0 + 86_400_000)
    assert 0 < detail["delete_retention_bytes"] < detail["size_bytes"]
    text = " ".join(cli("describe", url).stdout.split())
    assert "█│" in text
    assert "tombstones kept from offset 8 on; earliest delete horizon in 1 d" in text


def test_the_version_is_that_of_the_distribution(cli):
    """`clog --version`."""
    from importlib.metadata import version

    assert cli("--version").stdout == f"clog {version('pyspark-clog')}\n"


def test_help_is_there_for_every_command(cli):
    """With examples, in 80 columns; without a command there is help, too."""
    from clog.cli.app import app

    listed = cli("--help").stdout
    commands = list(app.commands)
    assert 10 < len(commands) <= 20
    for command in commands:
        assert f"\n  {command} " in listed
        text = cli(command, "--help").stdout
        assert f"\n  clog {command} " in text or f"| clog {command} " in text
        assert max(map(len, text.splitlines())) <= 80
        assert "--json" in text
    assert "..." not in listed.split("Logs:")[1], "a summary is cut off"


def test_help_and_version_do_not_wait_for_arrow():
    """They are answered without the packages that take long to import."""
    code = (
        "import sys; sys.argv = ['clog', 'consume', '--help']\n"
        "from clog.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print([m for m in ('numpy', 'pyarrow', 'fsspec', 'pyspark') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_without_its_extra_the_command_line_says_so(monkeypatch):
    """click and rich are an extra: what to install is said in one line."""
    monkeypatch.delitem(sys.modules, "clog.cli.app", raising=False)
    monkeypatch.setitem(sys.modules, "click", None)
    from clog.cli import main

    with pytest.raises(SystemExit, match=r'run pip install .*"rich>='):
        main()


def test_the_command_line_needs_no_other_extra(cli, url):
    """Whatever cron runs works with what the extra ``cli`` brings."""
    fill(url)
    code = (
        "import sys\n"
        "for name in ('prometheus_client', 'starlette', 'uvicorn', 'confluent_kafka', 'fastavro',"
        " 'psycopg2', 'pyspark', 'pandas'): sys.modules[name] = None\n"
        "from clog.cli import main\n"
        "main()"
    )
    for command in (["cleaner", url, "--once"], ["cleaner", url, "--dry-run"], ["clean", url]):
        called = [sys.executable, "-c", code, *map(str, command)]
        done = subprocess.run(called, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr


def test_a_missing_file_system_package_is_told(cli, monkeypatch):
    """An import that fails is no traceback."""

    def missing(*_args, **_kwargs):
        raise ModuleNotFoundError("No module named 'gcsfs'", name="gcsfs")

    monkeypatch.setattr(Given, "open", missing)
    assert "a package is missing: No module named 'gcsfs'" in cli("describe", "x", code=1).stderr


def test_json_is_one_document(cli, url):
    """Whatever else is printed goes to standard error."""
    fill(url)
    lists = (["describe", what] for what in ("offsets", "segments", "readers", "commit"))
    for name, *rest in (["describe"], ["verify"], ["clean"], *lists):
        assert isinstance(json.loads(cli(name, url, *rest, "--json").stdout), dict)


def test_reset_times_sets_back_what_a_clock_left(cli, url):
    """FORMAT.md §3.2: the log ends at a time of now, and the cleaner takes it again."""
    fill(url)
    assert "nothing to do" in cli("alter", url, "--reset-times").stdout
    Log.open(url, clock=ManualClock(2 * T0)).append([{"key": "k", "value": "v"}])
    assert "clog alter URL --reset-times" in cli("clean", url, code=1).stderr
    assert cli.json("alter", url, "--reset-times")["ahead_ms"] > 0
    assert [*Log.open(url).history()][-1].time_ms < 2 * T0
    cli("clean", url)


def test_features_are_listed_and_an_older_log_is_brought_up_to_date(cli, url):
    """By `describe` and `alter`; a list changes nothing."""
    with as_before():
        cli("create", url)
    listed = cli("describe", url, "features").stdout
    assert re.search(
        r"^dead-rows +off +a pass may mark .* \(readers and writers\)$", listed, re.MULTILINE
    )
    assert Log.open(url).version == 0
    added = cli("alter", url, "--feature", "dead-rows").stdout
    assert added == f"added {', '.join(n for n in FEATURES if not FEATURES[n].is_choice)}\n"
    again = cli("alter", url, "--feature", "dead-rows").stdout
    assert again == "nothing to add: the log has all of these features\n"
    told = cli.json("describe", url, "features")
    assert Log.open(url).version == 1
    (found,) = [f for f in told["features"] if f["name"] == "dead-rows"]
    assert (found["state"], found["readers"], found["section"]) == ("on", True, "5.4")


def test_alter_refuses_what_it_cannot_add(cli, url):
    """One line, with the nearest name; nothing is changed."""
    cli("create", url)
    error = cli("alter", url, "--feature", "dead_rows", code=2).stderr
    assert "unknown feature 'dead_rows': did you mean 'dead-rows'?" in error
    assert Log.open(url).version == 0


def test_verify_where_the_file_that_makes_a_log_is_damaged(cli, tmp_path):
    """There is no version to speak of, and none is named."""
    (tmp_path / "_clog").mkdir()
    (tmp_path / "_clog" / "log").write_text("garbage")
    shown = cli("verify", tmp_path, code=1).stdout
    assert "None" not in shown
    assert "1 finding in" in shown
    assert "its newest version cannot be read" in " ".join(shown.split())


def test_what_is_described_is_not_cut(cli, url, monkeypatch):
    """A value on two lines is another value."""
    cli("create", url, "--partitions", 1, "-c", "max.message.bytes=12345678")
    monkeypatch.setenv("COLUMNS", "30")
    lines = cli("describe", url, "--all").stdout.splitlines()
    assert any("unlimited" in line for line in lines)
    assert any("12345678" in line for line in lines)
