"""Every Python block of the README runs, in a folder of its own; those of Spark with its tests."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def blocks(path: str, *, spark: bool) -> list[str]:
    found = BLOCK.findall((ROOT / path).read_text())
    return [code for code in found if code.startswith("# spark") == spark]


@pytest.mark.parametrize("code", blocks("README.md", spark=False))
def test_the_python_of_the_readme_runs(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})


def test_the_readme_names_the_two_commands():
    text = (ROOT / "README.md").read_text()
    assert "./demo " in text
    assert "./test " in text
    assert (ROOT / "demo").stat().st_mode & 0o111
    assert (ROOT / "test").stat().st_mode & 0o111
