"""The world of everything (`integration/world`): it draws the whole API, and all is right."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import clog.cleaner
import clog.state
import clog.storage

FOLDER = Path(__file__).parents[2] / "integration" / "world"
NOT_DRAWN = {
    "Cleaner": "asking lend moved_ms run silent_ms stop",
    "Cut": "home ids logs name time_ms until_ms views",
    "Following": "stop",
    "Log": "append_objects give_offsets handle object_writer url",
    "NamedReader": "commit commit_at end flush followed name next_offsets position",
    "StateStore": "after_fork follow get_many is_standby next_offsets positions put_many refresh"
    " url version",
    "StateTable": "follow get_many offsets url version",
    "Table": "narrowed of_key_bytes to_duckdb to_pandas to_polars",
    "Transaction": "append_objects cover epoch id is_open name_cut note_content number started_ms"
    " timeout_ms",
    "clog.storage": "follow",
}
"""What no row draws: attributes, loops that do not end, connectors' own, and what is still missing:
given offsets, positions by hand, other forms of a table, standbys."""


def run(*options):
    """Runs the command; its exit code and output."""
    command = [sys.executable, str(FOLDER / "run.py"), *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("first", "seeds"),
    [(0, 3), *(pytest.param(100 * i, 100, marks=pytest.mark.nightly) for i in range(1, 4))],
)
def test_the_model_and_the_logs_agree(first, seeds):
    """S1 to S62, as far as a caller sees them: whatever was done before, by whichever handle."""
    code, output = run("--first", first, "--seeds", seeds)
    assert code == 0, output
    assert f"{seeds} worlds, 0 failed" in output


def test_every_public_operation_is_drawn():
    """A method that is added gets a row, a question, or a reason."""
    text = (FOLDER / "operations.py").read_text() + (FOLDER / "questions.py").read_text()
    drawn = set(re.findall(r'"((?:[A-Z]\w+\.)?[a-z_]+)"', text))
    classes = [
        *(clog.storage.Log, clog.storage.Table, clog.storage.Transaction),
        *(clog.storage.NamedReader, clog.storage.Following, clog.storage.Cut),
        *(clog.state.StateTable, clog.state.StateStore, clog.cleaner.Cleaner),
    ]
    public = {
        f"{cls.__name__}.{name}" for cls in classes for name in dir(cls) if name[:1].isalpha()
    }
    public |= {"snapshot", "snapshots", "drop_snapshot", "clog.storage.follow"}
    left_out = {f"{cls}.{name}" for cls, names in NOT_DRAWN.items() for name in names.split()}
    assert public - drawn == left_out
