"""Hints on what to install: a working command, whatever clog was installed from."""

import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from clog.storage import env

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"
EXTRAS = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", ["s3", "gcs", "azure", "sftp", "hdfs", "cli", "metrics", "spark"])
def test_the_packages_of_an_extra_are_named(extra):
    """As in pyproject.toml, each in quotes for the shell; clog itself is in no index."""
    command = env.install_extra(extra)
    assert command.startswith('run pip install "')
    named = command.split('"')[1::2]
    assert set(map(Requirement, named)) == set(map(Requirement, EXTRAS[extra]))
    assert "clog" not in command


def test_without_an_installation_the_file_is_named(monkeypatch):
    """As on a Spark cluster, which gets a zip."""

    def nothing(_name):
        raise PackageNotFoundError

    monkeypatch.setattr("importlib.metadata.requires", nothing)
    assert env.install_extra("s3") == 'install the packages of the extra "s3" in pyproject.toml'
