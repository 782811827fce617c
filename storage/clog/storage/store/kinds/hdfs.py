"""HDFS: a temporary file, and the name node's rename, which can refuse or replace a target."""

from typing import Any

from clog.storage.store.contract import ObjectExistsError
from clog.storage.store.kinds.kind import Kind, temporary


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


KIND = Kind(
    protocols=("hdfs", "viewfs"),
    classes=("hdfs_native.fsspec.HdfsFileSystem",),
    create=_create,
    put=_put,
    endpoint=lambda fs: f"hdfs://{fs.host}:{fs.port}",
    caches=False,
    extra="hdfs",
    authority="user@host",
    folders="made",
    hadoop="hdfs",
    caution='HDFS is experimental: the conformance suite has not run on a cluster; try "clog'
    ' verify-store" on yours',
)
