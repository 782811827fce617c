"""The examples of docs/cli.md, run in order."""

import re
import shlex
import subprocess
from pathlib import Path

DOCUMENT = Path(__file__).parents[3] / "docs" / "cli.md"


def examples():
    """(command, what it prints) of every console block."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", DOCUMENT.read_text(), re.DOTALL):
        for example in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = example.partition("\n")
            found.append((command, output))
    return found


def schema_of_the_document():
    """The file that commands call trips.json."""
    return re.findall(r"```json\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)[0]


def run(cli, command):
    """What a pipeline of printf and `clog` prints; an earlier failure is ignored."""
    data, errors = b"", ""
    for part in command.split(" | "):
        words = shlex.split(part)
        if words[0] == "printf":
            data = subprocess.run(words, check=True, capture_output=True).stdout
            continue
        assert words[0] == "clog"
        result = cli._runner.invoke(_app(), words[1:], input=data)
        assert result.exit_code in (0, 1, 2), result.output
        data, errors = result.stdout_bytes, result.stderr
    return data.decode() + errors


def _app():
    from clog.cli.app import app

    return app


def test_every_example_prints_what_it_says(cli, tmp_path, monkeypatch):
    """An ellipsis matches anything, alone on a line any lines; the log's path is printed as it
    resolves.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trips.json").write_text(schema_of_the_document())
    assert len(examples()) > 10
    for command, output in examples():
        printed = run(cli, command).replace(f"{tmp_path}/", "./")
        pattern = re.sub(r"(?m)^…\\\n", "(?:.*\\n)*", re.escape(output)).replace("…", ".*")
        assert re.fullmatch(pattern, printed), f"{command}\n{printed}"


def test_every_command_is_in_the_document():
    """The document mentions all of them."""
    text = DOCUMENT.read_text()
    for name in _app().commands:
        assert re.search(rf"`clog {name}|\$ clog {name}|\| clog {name}", text)
