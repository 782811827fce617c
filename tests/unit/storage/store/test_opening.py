"""Roots by URL: which filesystem, where on it, and what may be shown."""

import os
import sys
from pathlib import Path

import pytest
from fsspec.registry import _registry

from clog.storage import InvalidInputError, Log, StateTable, StoreUnavailableError, snapshots
from clog.storage.store import open_store, opening
from clog.storage.store.opening import find_logs, parse, redact, store_of


@pytest.mark.parametrize(
    ("url", "protocol", "root", "shown"),
    [
        ("/logs/orders", "file", "/logs/orders", "/logs/orders"),
        ("/logs/orders/", "file", "/logs/orders", "/logs/orders"),
        ("/logs/a b:c@d?e", "file", "/logs/a b:c@d?e", "/logs/a b:c@d?e"),
        ("file:///logs/orders", "file", "/logs/orders", "file:///logs/orders"),
        ("file:/logs/orders", "file", "/logs/orders", "file:///logs/orders"),
        ("local:///logs/orders", "file", "/logs/orders", "file:///logs/orders"),
        ("memory://logs/orders", "memory", "/logs/orders", "memory://logs/orders"),
        ("memory:///logs/orders/", "memory", "/logs/orders", "memory://logs/orders"),
        ("s3://bucket/orders/", "s3", "bucket/orders", "s3://bucket/orders"),
        ("s3a://bucket/orders", "s3", "bucket/orders", "s3a://bucket/orders"),
        ("S3://bucket", "s3", "bucket", "S3://bucket"),
    ],
)
def test_a_url_is_taken_apart(url, protocol, root, shown):
    """By scheme; a path without one is a local file, whatever characters it has."""
    found = parse(url)
    assert (found.protocol, found.root, found.shown) == (protocol, root, shown)


def test_relative_paths_are_made_absolute(monkeypatch, tmp_path):
    """A store is sent to workers that run in other folders."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/srv/me")
    assert parse("logs/orders").shown == f"{tmp_path}/logs/orders"
    assert parse("~/orders").root == "/srv/me/orders"
    store = open_store("orders")
    monkeypatch.chdir("/")
    store.put("object", b"1")
    assert (tmp_path / "orders" / "object").read_bytes() == b"1"


def test_a_path_of_pathlib_is_a_folder(tmp_path):
    """As it is for pandas and Arrow; also for cuts, and tables on disk."""
    path = tmp_path / "orders"
    Log.create(path).append([{"key": "a", "value": "1"}])
    assert Log.open(path).url == str(path)
    assert snapshots(path) == []
    with StateTable(path, tmp_path / "table.db") as table:
        table.refresh()
        assert table.get("a") == b"1"


@pytest.mark.parametrize(
    "url",
    [
        *("", "file://", "s3://", "s3:///", "s3://key:secret@bucket/orders"),
        *("/logs/a\0b", "file:///logs/\0", "memory://a\0", "s3://key:secret@bucket/\0"),
    ],
)
def test_a_url_without_a_place_or_with_credentials_is_refused(url):
    """And the message does not repeat the credentials."""
    with pytest.raises(InvalidInputError) as raised:
        open_store(url)
    assert "secret@" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sftp://me:secret@host/log", "sftp://***@host/log"),
        ("sftp://me@host/log", "sftp://me@host/log"),
        ("abfs://container@account.dfs.core.windows.net/log",
         "abfs://container@account.dfs.core.windows.net/log"),
        ("https://token@host/log", "https://***@host/log"),
        ("https://host/log?sig=abc&x=1", "https://host/log?***"),
        ("simplecache::https://me:secret@host/log?sig=abc", "simplecache::https://***@host/log?***"),
        ("s3://bucket/a@b:c/log", "s3://bucket/a@b:c/log"),
        ("sftp://me:sec?ret@host/log", "sftp://***@host/log"),
        ("sftp://me:sec/ret#@host/log", "sftp://***@host/log"),
        ("sftp://#me:secret@host/log", "sftp://***@host/log"),
        ("sftp:///me:secret@host/log", "sftp:///***@host/log"),
        ("sftp://me:secret/log", "sftp://***/log"),
        ("simplecache::sftp://me:a::b@host/log", "simplecache::sftp://***@host/log"),
        ("dir::s3:/key:secret@bucket", "dir::s3:***"),
        ("https://[::1]:80/log", "https://[::1]:80/log"),
        ("https://[2001:db8::1]:80/log?sig=abc", "https://[2001:db8::1]:80/log?***"),
        ("simplecache::https://[::1]/log?sig=abc", "simplecache::https://[::1]/log?***"),
        ("https://host/a::/b?sig=abc", "https://host/a::/b?***"),
        ("./log?x", "./log?x"),
        ("s3://arn:aws:s3:r:1:accesspoint/log", "s3://arn:aws:s3:r:1:accesspoint/log"),
        ("zip://log::file.zip", "zip://log::file.zip"),
    ],
)  # fmt: skip
def test_secrets_in_urls_are_struck_out(url, shown):
    """Passwords, tokens and the values of queries are removed; containers and users stay."""
    assert redact(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        *("s3:/key:secret@bucket/log", "s3:key:secret@bucket", " s3://key:secret@bucket"),
        *("S3 ://key:secret@bucket", "'https://me:secret@host/log'", "sftp:\\me:secret@host"),
        *("sftp://me:sec?secret@host", "https://me:pa/secret@host/x", "s3://key:se/secret@bucket"),
        *("sftp://me:secret/log", "dir::s3://key:secret@bucket", "file:me:secret@log"),
        "simplecache::sftp://me:a::secret@host/log",
    ],
)
def test_a_url_that_is_not_the_one_that_was_meant_is_refused(url):
    """As a path, or with half of its password as a port, it was shown with everything in it."""
    for act in (Log.open, Log.create, find_logs):
        with pytest.raises(InvalidInputError, match=r"malformed|contains credentials") as raised:
            act(url)
        assert "secret@" not in str(raised.value)
        assert "me:" not in str(raised.value)


@pytest.mark.parametrize("options", ["key=secret1", [("key", "secret1")], {1: "secret1"}, 7])
def test_storage_options_are_a_mapping(options):
    """An invalid one is refused with a message, without the values, wherever it is given."""
    for act in (Log.open, Log.create, find_logs):
        with pytest.raises(InvalidInputError, match=r"storage_options .*; pass a dict") as raised:
            act("memory://log", storage_options=options)
        assert "secret" not in str(raised.value)


@pytest.mark.parametrize("cache", ["simplecache", "filecache", "blockcache"])
def test_a_server_that_does_not_answer_is_told_behind_a_cache(cache):
    """The caches of fsspec report a file as absent, whatever happened in between."""
    pytest.importorskip("aiohttp")
    with pytest.raises(StoreUnavailableError, match="Connect call failed"):
        Log.open(f"{cache}::http://127.0.0.1:9/log")


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("nosuchscheme://place/log", "correct the URL"),
        ("gs://bucket/log", 'run pip install "gcsfs>='),
    ],
)
def test_an_unknown_scheme_or_missing_package_is_named(url, remedy, monkeypatch):
    """At the first use, with what to do: opening makes no request and imports nothing."""
    monkeypatch.delitem(_registry, "gs", raising=False)
    monkeypatch.setitem(sys.modules, "gcsfs", None)  # as if it were not installed
    store = open_store(url)
    with pytest.raises(InvalidInputError, match=f"cannot be opened: .*; {remedy}"):
        store.get("object")


def test_a_folder_whose_name_is_not_text_is_named(tmp_path, monkeypatch):
    """No page, metric or log line could show it: one such log hid all others."""
    Log.create(f"{tmp_path}/good")
    folder = Log.create(f"{tmp_path}/odd").url
    odd = os.fsdecode(os.fsencode(folder) + b"\xff")
    Path(folder).rename(odd)
    found = find_logs(str(tmp_path))
    assert found.urls == [f"{tmp_path}/good"]
    ((shown, why),) = found.unlisted.items()
    assert shown == f"{tmp_path}/odd\\udcff"
    assert str(why) == f"the name of {shown} is not UTF-8; rename the folder"
    with pytest.raises(InvalidInputError, match=r"not UTF-8; rename the folder"):
        Log.open(odd)
    monkeypatch.chdir(odd)
    with pytest.raises(InvalidInputError, match=r"not UTF-8; rename the folder"):
        Log.create("log")


@pytest.mark.parametrize("call", [Log.open, Log.create, StateTable, snapshots])
def test_what_is_no_url_is_refused(call, tmp_path):
    """A log in place of its URL, for example; the message says what to give."""
    log = Log.create(tmp_path / "log")
    with pytest.raises(InvalidInputError, match=r"Log is not a URL; give a path .* url of a log"):
        call(log, *([tmp_path / "t.db"] if call is StateTable else []))


@pytest.mark.parametrize(
    ("url", "store"),
    [
        ("s3://bucket/logs/orders", "s3://bucket"),
        ("s3a://bucket/other", "s3://bucket"),
        ("s3://other/logs", "s3://other"),
        ("gs://bucket/logs", "gs://bucket"),
        ("sftp://me:secret@host:22/logs", "sftp://***@host:22"),
        ("memory://a/b", "memory"),
        ("memory://c", "memory"),
    ],
)
def test_the_store_of_a_url(url, store):
    """A bucket, a container or a host, without secrets, in one spelling."""
    assert store_of(url) == store


def test_the_store_of_a_path(monkeypatch):
    """The innermost file system that is mounted above it, by whole names, with blanks; no request
    to any of them is made.
    """
    mounts = "none / ext4 rw\nnas /mnt nfs rw\nnas /mnt/my\\040logs nfs rw\nnas /mnt/a nfs rw\n"
    monkeypatch.setattr(opening.Path, "read_text", lambda *_, **__: mounts)
    found = [store_of(path) for path in ("/mnt/my logs/a", "/mnt/abc", "/mnt/a", "/mntx", "/")]
    assert found == ["/mnt/my logs", "/mnt", "/mnt/a", "/", "/"]


def test_what_is_no_url_has_no_store():
    """It is refused in the same words as when it is opened."""
    with pytest.raises(InvalidInputError, match="does not name a location"):
        store_of("s3://")
