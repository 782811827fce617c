"""How each class of fsspec creates an object exclusively (A2) and writes one complete (A1).

Object stores do both in one request, if it is the right one: an upload in several parts has its
condition ignored by some servers, so whatever decides something goes in one part (S3 has a module
of its own, `s3`). On filesystems with folders the bytes go into a temporary file beside the target,
which a rename then names: one that refuses an existing target for a create, one that replaces it
for a put.
"""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from clog.storage.errors import UnsupportedFilesystemError
from clog.storage.ids import SystemIds
from clog.storage.store import failures
from clog.storage.store.base import ObjectExistsError, temporary_name

ONE_PART = 5 << 30
"""A chunk size that no commit exceeds: some servers ignore the condition of several parts."""

Write = Callable[[Any, str, bytes], None]
"""Writes an object on a filesystem, given its path there."""

_IDS = SystemIds()


def put(fs: Any, path: str, data: bytes) -> None:
    """Writes as the class does it: one request, or several that end in one that shows the
    object.
    """
    fs.pipe_file(path, data)


def create_on_azure(fs: Any, path: str, data: bytes) -> None:
    """Creates by a Put Blob, or above 64 MiB a Put Block List, with ``If-None-Match: *``."""
    fs.pipe_file(path, data, mode="create")


def create_on_gcs(fs: Any, path: str, data: bytes) -> None:
    """Creates by an upload in one part with ``ifGenerationMatch=0``.

    Raises:
        UnsupportedFilesystemError: the bucket is zonal: its objects can be read while they grow.
    """
    if hasattr(fs, "_is_zonal_bucket"):
        from fsspec.asyn import sync

        bucket = path.partition("/")[0]
        if sync(fs.loop, fs._is_zonal_bucket, bucket):  # noqa: SLF001 - no public question
            raise UnsupportedFilesystemError(
                f"gs://{bucket} is a zonal bucket, whose objects are visible before they are"
                " complete; use a regional bucket, or open with single_writer=True"
            )
    fs.pipe_file(path, data, mode="create", chunksize=ONE_PART)


def create_on_sftp(fs: Any, path: str, data: bytes) -> None:
    """Creates by a temporary file, and SSH_FXP_RENAME, which OpenSSH makes of ``link`` and
    ``unlink``.

    Not ``fs.mv``, which is posix-rename@openssh.com and replaces.
    """
    with _temporary(fs, path, data, _upload) as temporary:
        try:
            fs.ftp.rename(temporary, path)
        except OSError as e:
            # The protocol knows no better word for "it is there" than "failure".
            if e.errno is None and fs.exists(path):
                raise ObjectExistsError from e
            raise


def put_on_sftp(fs: Any, path: str, data: bytes) -> None:
    """Writes a temporary file, and renames it over what is there."""
    with _temporary(fs, path, data, _upload) as temporary:
        fs.mv(temporary, path)


def create_on_hdfs(fs: Any, path: str, data: bytes) -> None:
    """Creates by a temporary file, and the name node's rename without OVERWRITE."""
    with _temporary(fs, path, data, put) as temporary:
        try:
            fs.mv(temporary, path)
        except Exception as e:
            if fs.exists(path):
                raise ObjectExistsError from e
            raise


def put_on_hdfs(fs: Any, path: str, data: bytes) -> None:
    """Writes a temporary file, and renames it with the name node's OVERWRITE."""
    with _temporary(fs, path, data, put) as temporary:
        fs.mv(temporary, path, overwrite=True)


def create_after_looking(fs: Any, path: str, data: bytes) -> None:
    """Creates for a single writer: neither exclusively nor, on some filesystems, completely."""
    try:
        fs.cat_file(path, start=0, end=1)
    except Exception as e:
        if failures.http_status(e)[0] == 416:  # empty, but there
            raise ObjectExistsError from e
        if not failures.is_absent(e):
            raise
    else:
        raise ObjectExistsError
    fs.pipe_file(path, data)


@contextmanager
def _temporary(fs: Any, path: str, data: bytes, write: Write) -> Iterator[str]:
    """Writes the bytes to a new file beside ``path`` and yields its path; removes it at the end,
    unless it was renamed.
    """
    folder, _, name = path.rpartition("/")
    temporary = f"{folder}/{temporary_name(name, _IDS.new_id())}"
    try:
        try:
            write(fs, temporary, data)
        except FileNotFoundError:
            _make_folders(fs, folder)
            write(fs, temporary, data)
        yield temporary
    except BaseException:
        with suppress(Exception):  # else the sweep removes it
            fs.rm_file(temporary)
        raise


def _upload(fs: Any, path: str, data: bytes) -> None:
    """Writes by SFTP; asks for the size at the end, as errors of single blocks are not answered."""
    fs.ftp.putfo(io.BytesIO(data), path, file_size=len(data), confirm=True)


def _make_folders(fs: Any, folder: str) -> None:
    """Makes each of them, unless somebody else makes it meanwhile."""
    missing = []
    while folder and not fs.exists(folder):
        missing.append(folder)
        folder = folder.rpartition("/")[0]
    for path in reversed(missing):
        try:
            fs.mkdir(path, create_parents=False)
        except Exception:
            if not fs.exists(path):
                raise
