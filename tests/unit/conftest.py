"""What unit tests of all packages share."""

import errno

import pytest
from fsspec.implementations.local import LocalFileSystem


@pytest.fixture
def url(tmp_path):
    """Where a log may be made."""
    return str(tmp_path / "log")


@pytest.fixture
def forbidden(monkeypatch):
    """Makes local folders unlistable, whoever runs the tests: a set of their paths."""
    list_folder, folders = LocalFileSystem.ls, set()

    def ls(self, path, *args, **kwargs):
        if str(path) in folders:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return list_folder(self, path, *args, **kwargs)

    monkeypatch.setattr(LocalFileSystem, "ls", ls)
    return folders
