"""Google Cloud Storage."""

from typing import Any

from clog.storage.errors import UnsupportedFilesystemError
from clog.storage.store.kinds.kind import ONE_PART, Kind


def _create(fs: Any, path: str, data: bytes) -> None:
    """Creates by an upload in one part with ``ifGenerationMatch=0``."""
    if hasattr(fs, "_is_zonal_bucket"):
        from fsspec.asyn import sync

        bucket = path.partition("/")[0]
        if sync(fs.loop, fs._is_zonal_bucket, bucket):  # noqa: SLF001 - nothing public
            raise UnsupportedFilesystemError(
                f"gs://{bucket} is a zonal bucket, in which objects become visible before they"
                " are complete; use a regional bucket, or open with single_writer=True"
            )
    fs.pipe_file(path, data, mode="create", chunksize=ONE_PART)


KIND = Kind(
    protocols=("gs", "gcs"),
    classes=("gcsfs.core.GCSFileSystem", "gcsfs.extended_gcsfs.ExtendedGcsFileSystem"),
    create=_create,
    endpoint=lambda fs: str(fs._location),  # noqa: SLF001 - what its requests use
    makers=(".googleapis.com",),
    failures={"Forbidden": "denied"},
    extra="gcs",
    authority="bucket",
    folders="none",
    hadoop="gs",
)
