"""Hints on what to install: a working command, whatever clog was installed from."""

import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from clog.storage import env

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"
EXTRAS = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]


def needs(extra: str) -> set[Requirement]:
    """Those of pyproject.toml, and of the extras that it names."""
    found = {Requirement(need) for need in EXTRAS[extra]}
    inner = {need for need in found if need.name == "pyspark-clog"}
    return (found - inner).union(*(needs(name) for need in inner for name in need.extras))


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_packages_of_an_extra_are_named(extra):
    """As in pyproject.toml, each in quotes for the shell; clog itself is in no index."""
    command = env.install_extra(extra)
    assert command.startswith('run pip install "')
    assert command.endswith(f" (the extra {extra})")
    named = command.split('"')[1::2]
    assert set(map(Requirement, named)) == needs(extra)
    assert "clog" not in command


def test_without_an_installation_the_file_is_named(monkeypatch):
    """As on a Spark cluster, which gets a zip."""

    def nothing(_name):
        raise PackageNotFoundError

    monkeypatch.setattr("importlib.metadata.requires", nothing)
    assert env.install_extra("s3") == 'install the packages of the extra "s3" in pyproject.toml'
