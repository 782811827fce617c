"""The installed command in a real shell: pipes, signals, exit codes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clog.storage import Log

COMMAND = Path(sys.executable).parent / "clog"


@pytest.fixture
def shell(tmp_path):
    """Runs a script in bash, with `clog` in its path."""
    if not COMMAND.exists() or shutil.which("bash") is None:
        pytest.skip("needs bash, and clog installed beside the interpreter")
    environment = os.environ | {"PATH": f"{COMMAND.parent}:{os.environ['PATH']}"}

    def run(script):
        return subprocess.run(
            ["bash", "-o", "pipefail", "-c", script],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


def test_a_log_goes_through_a_pipe_without_loss(shell, tmp_path):
    """consume | produce: JSON lines of one log make another whose JSON lines are the same."""
    log = Log.create(str(tmp_path / "a"), partitions=2)
    log.append(
        [
            {
                "key": f"k{i}".encode() + b"\xff" * (i % 2),
                "value": None if i % 7 == 0 else b"\0" * i,
            }
            for i in range(500)
        ]
    )
    done = shell(
        "clog create b --partitions 2 > /dev/null"
        " && clog consume a --json | tee one | clog produce b --format jsonl --batch-size 100"
        " && clog consume b --json > two && cmp one two && wc -l < two"
    )
    assert done.returncode == 0, done.stderr
    assert "appended 500 records in 5 commits" in done.stdout
    assert done.stdout.split()[-1] == "500"
    assert done.stderr == ""


@pytest.mark.parametrize(
    "command",
    [
        "consume a",
        *(
            pytest.param(command, marks=pytest.mark.nightly)
            for command in ("consume a --json", "dump a --objects", "ls")
        ),
    ],
)
def test_a_reader_that_leaves_is_no_error(shell, tmp_path, command):
    """`clog consume | head` ends with 0, without a traceback, however little was printed."""
    log = Log.create(str(tmp_path / "a"), partitions=1)
    log.append([{"key": f"k{i}", "value": "v" * 200} for i in range(5000)])
    done = shell(f"clog {command} | head -n 0; echo ${{PIPESTATUS[0]}}")
    assert done.stdout == "0\n"
    assert done.stderr == ""
    done = shell("clog consume a | head -n 2")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [f"k{i}\t{'v' * 200}" for i in range(2)]


@pytest.mark.nightly
def test_ctrl_c_appends_what_waits(shell, tmp_path):
    """Complete lines are committed, a line without its end is not; it prints what it did, and exits
    with an interrupt's code.
    """
    Log.create(str(tmp_path / "a"), partitions=1)
    done = shell(
        "mkfifo pipe; exec 3<>pipe;"
        " clog produce a --batch-size 1 --linger 3600000 < pipe > out & first=$!;"
        " printf 'a\\t1\\nb' >&3;"
        " until clog consume a | grep -q a; do :; done;"
        " kill -INT $first; wait $first; echo $?; cat out; clog consume a"
    )
    assert done.stdout.splitlines()[0] == "130", done
    assert "interrupted: appended 1 record in 1 commit" in done.stdout
    assert done.stdout.splitlines()[-1] == "a\t1"


@pytest.mark.nightly
def test_output_that_cannot_be_written_is_told(shell, tmp_path):
    """A full disk, a missing folder: one line, and no mention of damage to the log."""
    log = Log.create(str(tmp_path / "a"), partitions=1)
    log.append([{"key": "k", "value": "v"}])
    for command in ("consume a", "describe a", "describe a --json", "export a - --format csv"):
        done = shell(f"clog {command} > /dev/full")
        told = "the output cannot be written or read: No space left on device"
        assert (done.returncode, told in done.stderr) == (1, True), done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr
    wrong = "clog consume a --to none/a.csv; clog consume a --to file/a.csv"
    done = shell(f"touch file; mkdir folder; {wrong}")
    assert done.stderr.count("does not exist; create it first") == 2
    done = shell("clog consume a --to folder --format csv --overwrite; ls -A folder; ls *.part")
    assert "is not a file" in done.stderr
    done = shell("clog consume a --to /dev/null --format csv --overwrite; test -c /dev/null")
    assert (done.returncode, "is not a file" in done.stderr) == (0, True)


@pytest.mark.nightly
def test_closed_streams_are_no_error(shell, tmp_path):
    """For programs that are started with nothing to write to, or to read from."""
    Log.create(str(tmp_path / "a"), partitions=1)
    done = shell(
        "printf 'k\\tv\\n' | clog produce a >&- && printf 'l\\tw\\n' | clog produce a 2>&- &&"
        " clog produce a <&- && clog describe a >&- && clog consume a >&- 2>&- <&-"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert shell("clog consume a | wc -l").stdout == "2\n"


def test_a_terminal_that_is_no_utf_8_gets_all_of_it(shell, tmp_path):
    """Names for which it has no letters are escaped."""
    Log.create(str(tmp_path / "лог"), partitions=1)
    done = shell("export PYTHONIOENCODING=ascii; clog ls . && clog ls --json")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("./\\u043b\\u043e\\u0433\n")
    assert json.loads(done.stdout[done.stdout.rindex("\n{") :])["logs"] == [{"url": "./лог"}]


@pytest.mark.nightly
def test_exit_codes_are_those_of_the_document(shell):
    """0, 1 for what clog refuses, 2 for a wrong command line."""
    done = shell(
        "clog --version; echo $?; clog describe none; echo $?; clog describe --nonsense; echo $?"
    )
    assert done.stdout.splitlines()[1:] == ["0", "1", "2"]
    assert "Traceback" not in done.stderr
