"""What may be written by many, by one, or only read."""

import os
import pickle
from types import SimpleNamespace
from typing import ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from clog.storage import UnsupportedFilesystemError
from clog.storage.store import open_store, remote
from clog.storage.store.contract import ObjectExistsError
from clog.storage.store.failures import secrets_in, short
from clog.storage.store.kinds import KINDS, gcs, kind_of_class
from clog.storage.store.local import LocalStore
from clog.storage.store.memory import MemoryStore


class OtherFileSystem(MemoryFileSystem):
    """A class that nobody knows; its create looks and then writes, as fsspec's base does."""

    protocol = "other"
    store: ClassVar = {}
    pseudo_dirs: ClassVar = [""]


@pytest.fixture(autouse=True)
def other_filesystem():
    fsspec.register_implementation("other", OtherFileSystem, clobber=True)
    OtherFileSystem.store.clear()


def test_an_unknown_class_can_be_read():
    """And written to, listed and deleted from: none of these needs a guarantee."""
    store = open_store("other://place/log")
    store.put("a/b", b"0123")
    assert store.get("a/b", 1, 3) == b"12"
    assert store.get_ranges("a/b", [(0, 1), (3 << 20, 4 << 20)]) == [b"0", b""]
    assert [(o.path, o.size_bytes) for o in store.list("a/")] == [("a/b", 4)]
    store.delete("a/b")
    store.delete("a/b")
    with pytest.raises(FileNotFoundError):
        store.get("a/b")


def test_an_unknown_class_is_refused_for_many_writers():
    """With what could happen, and what to do."""
    store = open_store("other://place/log")
    with pytest.raises(UnsupportedFilesystemError) as raised:
        store.create("a", b"1")
    assert str(raised.value) == (
        "OtherFileSystem for other://place/log cannot create a file only if it is absent, so"
        " concurrent writers could overwrite each other's commits; use local files, S3,"
        " GCS, Azure or SFTP, or open with single_writer=True"
    )
    assert list(store.list("")) == []


def test_a_single_writer_is_warned_and_may_write():
    """Once per store; a second create of a path is still a conflict."""
    store = open_store("other://place/log", single_writer=True)
    with pytest.warns(RuntimeWarning, match="a second writer would overwrite commits"):
        store.create("a/b", b"1")
    with pytest.raises(ObjectExistsError):
        store.create("a/b", b"2")
    assert store.get("a/b") == b"1"


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("simplecache::other://place/log", "pass the filesystem inside it"),
        ("filecache::other://place/log", "pass the filesystem inside it"),
        ("blockcache::other://place/log", "pass the filesystem inside it"),
    ],
)
def test_caches_are_refused_with_a_hint(url, hint):
    """They lose the mode on the way to what they cache."""
    with pytest.raises(UnsupportedFilesystemError, match=hint):
        open_store(url).create("a", b"1")


@pytest.mark.parametrize(
    "class_name",
    [
        "fsspec.implementations.reference.ReferenceFileSystem",
        "fsspec.implementations.ftp.FTPFileSystem",
        "fsspec.implementations.smb.SMBFileSystem",
        "fsspec.implementations.http.HTTPFileSystem",
        "fsspec.implementations.webhdfs.WebHDFS",
        "fsspec.implementations.arrow.ArrowFSWrapper",
        "fsspec.implementations.arrow.HadoopFileSystem",
        "obstore.fsspec.FsspecStore",
    ],
)
def test_classes_that_overwrite_are_not_in_the_table(class_name):
    """They check and then write, or ignore the mode."""
    assert class_name not in [name for kind in KINDS for name in kind.classes]


def test_only_what_the_conformance_suite_covers_has_a_create():
    """Local files and memory have stores of their own; HDFS alone is listed with a caution."""
    able = {name: kind for kind in KINDS for name in kind.classes if kind.create is not None}
    assert {name for name, kind in able.items() if not kind.caution} == {
        "s3fs.core.S3FileSystem",
        "gcsfs.core.GCSFileSystem",
        "gcsfs.extended_gcsfs.ExtendedGcsFileSystem",
        "adlfs.spec.AzureBlobFileSystem",
        "fsspec.implementations.sftp.SFTPFileSystem",
    }
    assert "hdfs_native.fsspec.HdfsFileSystem" in able


class HdfsFileSystem(OtherFileSystem):
    """A stand-in under the name in the table: a rename that refuses unless configured otherwise."""

    __module__ = "hdfs_native.fsspec"
    protocol = "hdfs-stand-in"
    host, port = "namenode", 8020
    refused: ClassVar = []

    def mv(self, old, new, overwrite=False):
        if new in self.store and not overwrite:
            self.refused.append(new)
            raise RuntimeError("destination exists")
        self.store[new] = self.store.pop(old)


def test_hdfs_renames_a_temporary_file():
    """It creates without replacing, overwrites in put, cleans up, and says that it is
    experimental.
    """
    fsspec.register_implementation("hdfs-stand-in", HdfsFileSystem, clobber=True)
    store = open_store("hdfs-stand-in://place/log")
    with pytest.warns(RuntimeWarning, match="HDFS is experimental"):
        store.create("a/b", b"1")
    with pytest.raises(ObjectExistsError):
        store.create("a/b", b"2")
    assert HdfsFileSystem.refused[-1].endswith("a/b")
    assert store.get("a/b") == b"1"
    store.put("a/b", b"3")
    assert store.get("a/b") == b"3"
    assert list(store.list_temporary("")) == []


@pytest.mark.parametrize("zonal", [True, False])
def test_a_zonal_bucket_is_refused(zonal, monkeypatch):
    """Its objects can be read while they grow (A1)."""
    monkeypatch.setattr("fsspec.asyn.sync", lambda loop, function, bucket: function(bucket))
    piped = []
    fs = SimpleNamespace(
        loop=None,
        _is_zonal_bucket=lambda bucket: zonal and bucket == "bucket",
        pipe_file=lambda path, data, **options: piped.append((path, options["mode"])),
    )
    if zonal:
        with pytest.raises(UnsupportedFilesystemError, match="gs://bucket is a zonal bucket"):
            gcs.KIND.create(fs, "bucket/log/a", b"1")
        assert piped == []
    else:
        gcs.KIND.create(fs, "bucket/log/a", b"1")
        assert piped == [("bucket/log/a", "create")]


def test_the_table_is_exact():
    """A subclass may override anything."""

    class S3FileSystem(OtherFileSystem):
        __module__ = "mine"

    assert kind_of_class(S3FileSystem()).create is None


@pytest.mark.parametrize(("inner", "kind"), [("file", LocalStore), ("memory", MemoryStore)])
def test_a_folder_filesystem_is_unwrapped(inner, kind, tmp_path):
    """``dir://`` only prefixes paths: the filesystem inside decides."""
    store = open_store(f"dir://sub::{inner}://{tmp_path}")
    assert type(store) is kind
    store.create("a", b"1")
    assert fsspec.filesystem(inner).cat_file(f"{tmp_path}/sub/a") == b"1"


@pytest.mark.parametrize(
    "endpoint",
    [
        "https://s3.eu-west-1.amazonaws.com",
        "https://storage.googleapis.com",
        "https://account.blob.core.windows.net/",
    ],
)
def test_the_providers_themselves_are_not_asked(endpoint):
    """Their guarantee is documented; the probe would need the permission to delete."""
    remote.probe_endpoint(None, "bucket/log", "s3://bucket/log", endpoint, None)
    evil = endpoint.rstrip("/") + ".evil.example"
    with pytest.raises(TypeError):  # asked, by calling None
        remote.probe_endpoint(None, "bucket/log", "s3://bucket/log", evil, None)


def test_memory_is_refused_in_another_process():
    """It would show an empty log there, or one with a separate history."""
    store = open_store(f"memory://refused-{os.getpid()}/log")
    store.create("a", b"1")
    travelled = pickle.loads(pickle.dumps(store))
    assert travelled.get("a") == b"1"
    travelled._pid += 1
    for operation in (lambda: travelled.get("a"), lambda: travelled.create("b", b"1")):
        with pytest.raises(
            UnsupportedFilesystemError, match="exists only in the memory of process"
        ):
            operation()


@pytest.mark.parametrize(
    ("options", "secrets"),
    [
        ({"key": "AKIA1234", "secret": "abcd1234", "endpoint_url": "https://host"},
         {"AKIA1234", "abcd1234"}),
        ({"client_kwargs": {"aws_session_token": "token-1", "region_name": "eu-west-1"}},
         {"token-1"}),
        ({"connection_string": "AccountName=me;AccountKey=abcd1234;X=1"},
         {"AccountName=me;AccountKey=abcd1234;X=1", "abcd1234"}),
        ({"sas_token": "sv=2024&sig=abcd%2B1234&se=2"},
         {"sv=2024&sig=abcd%2B1234&se=2", "abcd%2B1234"}),
        ({"proxies": {"http": "http://me:abcd1234@proxy:3128"}, "url": "https://a?s=efgh&t=5678#x"},
         {"abcd1234", "efgh", "5678"}),
        ({"url": "sftp://me:ab%2Fcd@host/log"}, {"ab%2Fcd", "ab/cd"}),
        ({"anon": True, "key": "abc", "password": None}, set()),
    ],
)  # fmt: skip
def test_secrets_are_found_in_options(options, secrets):
    """By the names of options, also nested ones; what is shorter than 4 characters is not
    a secret.
    """
    assert set(secrets_in(options)) == secrets


def test_long_causes_are_cut():
    """Some servers respond with a page."""
    assert len(short(OSError("x" * 10_000))) < 300
