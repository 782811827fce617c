"""What others wrote, on a terminal: shown, never obeyed."""

import json
import logging
import os
import re
import subprocess
import sys

import pytest
from rich.table import Table
from rich.text import Text

from clog.cli import output
from clog.storage import Log
from clog.storage.format import documents

TITLE = "\x1b]0;owned\x07"
"""Sets the title of a window."""
OVERRIDE = "\u202e\u2066\u2069"
"""Makes a terminal show what follows from right to left."""
NASTY = f"{TITLE}\x9b31m\x08\r\u2028{OVERRIDE}z"
CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069"

RUN = """
import sys
from clog.cli.app import app
url, damaged = sys.argv[1:]
for arguments in (
    ["consume", url, "--print", "headers,key,value"], ["consume", url, "--json"],
    ["describe", url], ["describe", url, "--json"], ["describe", url, "commit", "--json"],
    *(["describe", url, what] for what in ("commit", "history", "objects", "segments")),
    ["verify", url, "--quick"], ["verify", url, "--json", "--quick"], ["consume", damaged],
):
    try:
        app(arguments)
    except SystemExit:
        print("====")
"""


def rewrite(store, version, change):
    """Changes the body of a commit."""
    path = documents.commit_path(version)
    body = documents.decode("commit", store.get(path), where=path)
    change(body)
    store.put(path, documents.encode("commit", body))


@pytest.fixture
def logs(tmp_path):
    """A log in which all that may be text of others is nasty; one of which an object is gone."""
    for name in ("orders", "damaged"):
        log = Log.create(str(tmp_path / name), partitions=1)
        value = NASTY.encode() + b"\xff\x9b"
        log.append(
            [{"key": NASTY, "value": value, "headers": [(NASTY, value)]}], producer=(NASTY, 1)
        )
    store = log.handle.store
    rewrite(store, 1, lambda body: body["edit"]["add"]["objects"][0].update(path=f"data/{NASTY}"))
    store = Log.open(str(tmp_path / "orders")).handle.store
    rewrite(store, 1, lambda body: body.update(operation=NASTY, id=NASTY))
    return tmp_path / "orders", tmp_path / "damaged"


def on_a_terminal(*arguments):
    """What a program writes to its terminal, standard error too."""
    ours, its = os.openpty()
    with subprocess.Popen([sys.executable, *arguments], stdout=its, stderr=its) as process:
        os.close(its)
        written = b""
        try:
            while some := os.read(ours, 1 << 16):
                written += some
        except OSError:
            pass  # How the end of a terminal reads.
        process.wait(60)
    os.close(ours)
    return written.decode()


def test_nothing_of_others_reaches_a_terminal_as_a_command(logs):
    """Keys, values, headers, ids, operations, configs, errors, as lines, tables and JSON: of all
    characters that control a line there are only its end, TAB, and colours of our own.
    """
    written = on_a_terminal("-c", RUN, *map(str, logs))
    assert written.count("====") == 12
    assert r"\u001b]0;owned\u0007\u009b31m\u0008\u000d\u2028\u202e\u2066\u2069z" in written
    assert written.count(r"\u001b]0;owned") > 15
    assert re.search(r"error: .*data/\\u001b]0;owned.* is missing", written)
    assert r"z\xff\x9b" in written
    ours = re.sub(r"\x1b\[[0-9;]*m|\r\n|\t", "", written)
    assert not re.findall(f"[{CONTROLS}\t\n]", ours)


def test_what_goes_to_a_pipe_stays_as_it_is(logs):
    """Bytes are data there."""
    command = [sys.executable, "-c", "from clog.cli.app import app; app()", "consume", logs[0]]
    done = subprocess.run(command, capture_output=True, check=True)
    assert done.stdout == NASTY.encode() + b"\t" + NASTY.encode() + b"\xff\x9b\n"


def test_json_on_a_terminal_is_the_same_json():
    """What is spelt out is an equal string."""
    text = json.dumps({NASTY: [NASTY]}, ensure_ascii=False)
    assert output.shown(text) != text
    assert json.loads(output.shown(text)) == {NASTY: [NASTY]}


def test_text_and_tables_of_rich(monkeypatch, capsys):
    """Whatever is printed, and however it is nested; colours and links of ours stay."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    table = Table(title=NASTY)
    table.add_column(NASTY)
    table.add_row(Text(NASTY, style="red"))
    output.stdout().print(table)
    output.print_error(NASTY)
    written = "".join(capsys.readouterr())
    assert TITLE not in written
    assert "\x1b[31m" in written
    assert not re.findall(f"[{CONTROLS}\t]", re.sub(r"\x1b\[[0-9;]*m", "", written))


def test_warnings_and_notes_are_json_where_errors_are(capsys):
    """So that with --json each line of standard error is an object: also beside a warning of the
    store's, which each command on some servers gives.
    """
    record = logging.makeLogRecord({"msg": "passed, which is no proof", "levelno": logging.WARNING})
    before = output.ERRORS_AS.set("json")
    try:
        line = output.WarningFormatter().format(record)
        output.print_note("exported 1 record")
    finally:
        output.ERRORS_AS.reset(before)
    assert json.loads(line) == {"warning": {"message": "passed, which is no proof"}}
    assert json.loads(capsys.readouterr().err) == {"note": {"message": "exported 1 record"}}
    assert output.WarningFormatter().format(record) == "passed, which is no proof"
    output.print_note("exported 1 record")
    assert capsys.readouterr().err == "exported 1 record\n"
