"""`clog verify URL --store`: the axioms on a user's store."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clog.storage.store import conformance
from clog.storage.store.local import LocalStore


@pytest.fixture(autouse=True)
def few_checks(monkeypatch):
    """Races have their own tests."""
    wanted = {"creates", "puts", "listings", "absent-objects"}
    chosen = tuple(check for check in conformance.CHECKS if check.name in wanted)
    assert len(chosen) == 4
    monkeypatch.setattr(conformance, "CHECKS", chosen)


def test_a_good_store_passes(cli, tmp_path):
    """Each check on a line, and nothing is left behind."""
    said = cli("verify", tmp_path, "--store").stdout
    assert "ok   A2 A create writes once" in said
    assert said.endswith("all 4 checks passed: many writers are safe here\n")
    assert not [p for p in Path(tmp_path).rglob("*") if p.is_file()]


def test_a_store_that_overwrites_fails(cli, tmp_path, monkeypatch):
    """The axiom, what was expected, and exit code 1; the other checks are run all the same."""
    monkeypatch.setattr(LocalStore, "create", LocalStore.put)
    told = cli.json("verify", tmp_path, "--store", code=1)["checks"]
    assert len(told) == 4
    (failed,) = [check for check in told if check["problem"]]
    assert (failed["check"], failed["axiom"]) == ("creates", "A2")
    assert "ObjectExistsError was expected" in failed["problem"]
    text = cli("verify", tmp_path, "--store", code=1).stdout
    assert "1 of 4 checks failed: many writers are not safe here" in text


def test_a_filesystem_without_a_create_is_refused(cli):
    """It is reported once, with the reason."""
    said = cli("verify", f"simplecache::memory://verify-{os.getpid()}", "--store", code=1).stdout
    assert "refused: SimpleCacheFileSystem" in said
    assert "pass the filesystem inside it" in said


def test_nothing_is_left(cli, tmp_path):
    """No file, no folder; a folder that existed before stays."""
    (tmp_path / "there").mkdir()
    for place in ("there", "made/deep"):
        cli("verify", tmp_path / place, "--store", "--rounds", 1)
    assert list((tmp_path / "there").iterdir()) == []
    assert not (tmp_path / "made/deep").exists()


def test_the_checks_need_no_package_for_tests():
    """An installation has no pytest: `clog verify URL --store` and `clog cost` work without it."""
    code = "import sys; sys.modules['pytest'] = None; import clog.storage.store.conformance"
    subprocess.run([sys.executable, "-c", code], check=True)
