"""docs/state-tables.md tells the truth: its examples run, in an empty folder each."""

import re
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[3] / "docs" / "state-tables.md").read_text()
EXAMPLES = re.findall(r"```python\n(?!# spark)(.*?)```", TEXT, re.DOTALL)


def test_there_are_examples():
    assert len(EXAMPLES) == 3


@pytest.mark.parametrize("code", EXAMPLES)
def test_the_examples_run(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "docs/state-tables.md", "exec"), {})
