"""The commands that a person has to learn, their old names, and what a wrong one is answered."""

import inspect
import json
import os
import re
import shlex
import subprocess
import sys

import click
import pytest

from clog.cli.app import COMMANDS, OTHER_OPTIONS, app
from clog.cli.describe import WHATS
from clog.cli.details import DETAILS
from clog.cli.options import SHARED
from clog.cli.renamed import OLD, OLD_OPTIONS, renewed, without_secrets
from clog.storage import Log

COMMANDS_MAX, OPTIONS_MAX = 20, 160


def options(parameters):
    return [p for p in parameters if isinstance(p, click.Option)]


def test_words_of_other_systems_lead_to_ours(cli):
    """Also what no command does: a restore is a copy of files."""
    from clog.cli.app import ELSEWHERE

    assert "docs/moving-a-log.md" in cli("restore", "./orders", code=2).stderr
    for word in ELSEWHERE:
        told = " ".join(cli(word, code=2).stderr.split())
        assert ELSEWHERE[word] in told.replace("│ ", ""), told


def test_a_person_has_few_commands_and_options_to_learn():
    """Those of each command, and once those that all of them take."""
    names = [name for rows in COMMANDS.values() for name in rows]
    assert len(names) <= COMMANDS_MAX
    own = sum(len(options(app.commands[name].params)) for name in names)
    assert own + len(options(SHARED)) + len(options(app.params)) <= OPTIONS_MAX


def test_every_command_takes_the_shared_options():
    """In its parser and at TAB; only `clog --help` explains them."""
    for name in app.commands:
        taken = app.commands[name].get_params(click.Context(app.commands[name]))
        assert {*SHARED} <= {*taken}


def test_describe_lists_what_it_says():
    """Each word has a function, and a line in the help."""
    assert set(WHATS) == DETAILS.keys()
    shown = inspect.cleandoc(app.commands["describe"].help)
    assert re.findall(r"(?m)^([a-z]+)  ", shown) == [*WHATS]


@pytest.fixture
def log(url, tmp_path, monkeypatch):
    """A log of bytes with two records, and a schema for what it contains."""
    monkeypatch.chdir(tmp_path)
    log = Log.create(url, 1)
    log.append([{"key": "a", "value": '"1"'}, {"key": "b", "value": '"2"'}])
    (tmp_path / "s.json").write_text('{"key": "string", "value": "string"}')
    return log


FORMS = {
    "get URL a --values": "consume URL --table --print value --key a",
    "get URL a b": "consume URL --table --key a --key b",
    "export URL x.csv --table": "consume URL --to x.csv --table",
    "offsets URL --time 0": "describe URL offsets --time 0",
    "segments -p 0 URL": "describe URL segments -p 0",
    "readers URL": "describe URL readers",
    "readers URL --forget r": "alter URL --forget r",
    "transactions URL": "describe URL transactions",
    "transactions URL --abort t --force": "alter URL --abort t --force",
    "erasures URL": "describe URL erasures",
    "erasures URL --to receipts": "erase URL --receipts receipts",
    "upgrade URL": "describe URL features",
    "upgrade URL --feature dead-rows": "alter URL --feature dead-rows",
    "dump URL": "describe URL commit",
    "dump URL --version=1": "describe URL commit --at 1",
    "dump URL --commits": "describe URL history",
    "dump URL --objects": "describe URL objects",
    "dump URL --transactions": "describe URL markers",
    "roll URL": "alter URL --roll all",
    "roll URL -p 0": "alter URL --roll 0",
    "delete-records URL 0:1": "alter URL --delete-records 0:1",
    "reset-times URL": "alter URL --reset-times",
    "sweep URL --dry-run": "clean URL --sweep --dry-run",
    "convert URL typed --schema s.json": "copy URL typed --decode json --schema s.json",
    "convert URL to --avro-schema 7=a": "copy URL to --decode avro --avro-schema 7=a",
    "verify-store URL --rounds 2": "verify URL --store --rounds 2",
    "verify-erasure r.json URL --keys k": "verify URL --receipt r.json --keys k",
}
OPTION_FORMS = {
    "clean URL --threads 2 --buffer=3": "clean URL -c log.cleaner.threads=2"
    " -c log.cleaner.dedupe.buffer.size=3m",
    "cleaner URL --log-format json --threads=4": "cleaner URL --json -c log.cleaner.threads=4",
    "ui URL --port 0": "ui URL --listen 0",
    "consume URL --offsets": "consume URL --print partition,offset,timestamp,key,value",
}


@pytest.mark.parametrize(("old", "new"), FORMS.items())
def test_an_old_name_is_the_new_form(old, new):
    """For every name, with the options that moved; the new form is one that is parsed."""
    assert renewed(old.split()) == new.split()
    command, *words = new.split()
    parser = app.commands[command].make_parser(click.Context(app.commands[command]))
    parser.parse_args(words)


@pytest.mark.parametrize(("old", "new"), OPTION_FORMS.items())
def test_an_old_option_is_the_new_form(old, new):
    """The others of the command are left alone."""
    assert renewed(old.split()) == new.split()


def test_every_old_name_has_a_form_here():
    """None is left out, and none is a command of now."""
    assert {form.split()[0] for form in FORMS} == OLD.keys()
    assert {form.split()[0] for form in OPTION_FORMS} == OLD_OPTIONS.keys() == OTHER_OPTIONS
    assert not OLD.keys() & {*app.commands}


def test_an_old_name_prints_the_new_one_once(cli, url, log):
    """On standard error, as JSON where errors are; the rest is what the new form prints."""
    for old, new in (("get URL a", FORMS["get URL a b"][:-8]), ("dump URL --json", "")):
        done = cli(*old.replace("URL", url).split())
        (line,) = done.stderr.splitlines()
        if "--json" in old:
            line = json.loads(line)["note"]["message"]
        assert line.startswith(f"clog {old.split()[0]} … is now: clog ")
        if new:
            assert done.stdout == cli(*new.replace("URL", url).split()).stdout


def test_no_secret_of_an_old_name_is_printed(cli, url, log):
    """S30: nor one in a URL; values of storage options are replaced by an ellipsis."""
    for words in (["-o", "token=s3cret"], ["--option=token=s3cret"]):
        done = cli("offsets", "memory://none", *words, code=1)
        assert "s3cret" not in done.stderr
        assert "…" in done.stderr
    assert without_secrets(["describe", "sftp://me:s3cret@h/x"]) == ["describe", "sftp://***@h/x"]


def test_an_old_name_without_its_words_says_the_new_form(cli):
    """A look-up without a key must not become the whole table; help is that of the new one."""
    error = cli("get", "x", code=2).stderr
    assert "clog get is now: clog consume URL --table --key …" in error
    assert "clog consume ./orders" in cli("get", "--help").stdout


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("descirbe", "clog describe"),
        ("histroy", "clog describe URL history"),
        ("xyz", "clog --help"),
    ],
)
def test_an_unknown_command_names_the_nearest(cli, wrong, right):
    """Of the commands, and of what `describe` lists."""
    assert right in cli(wrong, "x", code=2).stderr


def test_what_is_listed_and_what_is_old_at_tab(url, log):
    """Words and shared options are completed; old names are not."""

    def completed(line):
        words = shlex.split(line) + [""] * line.endswith(" ")
        done = subprocess.run(
            [sys.executable, "-m", "clog_command"],
            env={**os.environ, "_CLOG_COMPLETE": "bash_complete", "COMP_WORDS": line}
            | {"COMP_CWORD": str(len(words) - 1)},
            capture_output=True,
            text=True,
            check=False,
        )
        return [one.partition(",")[2] for one in done.stdout.split()]

    assert completed("clog describe log se") == ["segments"]
    assert "--timeout" in completed("clog describe log --t")
    assert completed("clog g") == []
