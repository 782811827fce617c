"""HDFS: a temporary file, and the name node's rename, which can refuse or replace a target."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from clog.storage.env import from_extra
from clog.storage.store.contract import ObjectExistsError
from clog.storage.store.kinds.kind import Kind, Location, temporary


def _create(fs: Any, path: str, data: bytes) -> None:
    with temporary(fs, path, data) as beside:
        try:
            fs.mv(beside, path)
        except Exception as e:
            if fs.exists(path):
                raise ObjectExistsError from e
            raise


def _put(fs: Any, path: str, data: bytes) -> None:
    with temporary(fs, path, data) as beside:
        fs.mv(beside, path, overwrite=True)


def _config(location: Location, given: Mapping[str, object]) -> dict[str, Any]:
    """Without hdfs-native, fsspec takes Arrow's client, and that looks for a Java's libraries."""
    with from_extra("hdfs", location.shown, "hdfs_native"):
        import_module("hdfs_native.fsspec")
    return {**given}


KIND = Kind(
    protocols=("hdfs", "viewfs"),
    classes=("hdfs_native.fsspec.HdfsFileSystem",),
    create=_create,
    put=_put,
    config=_config,
    endpoint=lambda fs: f"hdfs://{fs.host}:{fs.port}",
    caches=False,
    extra="hdfs",
    authority="user@host",
    folders="made",
    hadoop="hdfs",
    caution="HDFS is experimental: the conformance suite has not run on a cluster; run"
    ' "clog verify URL --store" on yours',
)
