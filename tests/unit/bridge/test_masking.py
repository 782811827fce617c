"""The key of hashed columns: where it comes from, and what is not a key."""

import pytest

from clog.bridge.capturing.tables import hash_key
from clog.storage import InvalidInputError

SECRET = "0123456789abcdef"


@pytest.fixture
def path(tmp_path, monkeypatch):
    """From a file that the environment names, and that does not exist."""
    monkeypatch.setenv("CLOG_CAPTURE_HASH_KEY", SECRET.upper())
    monkeypatch.setenv("CLOG_CAPTURE_HASH_KEY_FILE", str(tmp_path / "key"))
    return tmp_path / "key"


def test_a_file_comes_before_the_environment(path, monkeypatch):
    """Without the line feed at its end, which an editor leaves."""
    path.write_text(f"{SECRET}\n")
    assert hash_key(["hash"]) == SECRET.encode()
    assert hash_key(["drop"]) == b""
    monkeypatch.delenv("CLOG_CAPTURE_HASH_KEY_FILE")
    assert hash_key(["hash"]) == SECRET.upper().encode()


def test_a_key_that_is_short_or_cannot_be_read_is_refused(path):
    """No hash without a key; the file is named, its contents are not."""
    with pytest.raises(InvalidInputError, match=r"_HASH_KEY_FILE names .*key, which"):
        hash_key(["hash"])
    path.write_text("hunter2")
    with pytest.raises(InvalidInputError, match="a key of 16 bytes or more") as error:
        hash_key(["hash"])
    assert "hunter2" not in str(error.value)
