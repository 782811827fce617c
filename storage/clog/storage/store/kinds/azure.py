"""Azure Blob Storage and Data Lake."""

from typing import Any

from clog.storage.store.kinds.kind import Kind


def _create(fs: Any, path: str, data: bytes) -> None:
    """Creates with ``If-None-Match: *``, by a Put Blob, or above 64 MiB a Put Block List."""
    fs.pipe_file(path, data, mode="create")


KIND = Kind(
    protocols=("az", "abfs", "abfss"),
    classes=("adlfs.spec.AzureBlobFileSystem",),
    create=_create,
    endpoint=lambda fs: str(fs.service_client.url),
    makers=(
        ".blob.core.windows.net",
        ".blob.core.chinacloudapi.cn",
        ".blob.core.usgovcloudapi.net",
    ),
    failures={"ContainerNotFound": "no bucket", "BlobAlreadyExists": "exists"},
    extra="azure",
    authority="container",
    folders="none",
)
