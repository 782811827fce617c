"""S3, and what its client does beyond a call, through handlers of botocore's events.

- *No waiting*: botocore announces each body with ``Expect: 100-continue`` and waits for the answer,
  which is another round trip. Small bodies are sent immediately.
- *Versioning*: Ceph ignores ``If-None-Match`` in a bucket that keeps versions, and anybody may
  switch that on after the probe. A PUT's reply says which version it made: if its kind changes, the
  endpoint is probed again. Watching for this costs no request.
- *Counting*: s3fs repeats calls, botocore repeats requests, and both report only the last reply.
  Only a refusal of the first request proves that nothing was written.

An event handler belongs to a client, and s3fs makes a new client after the old one was closed: so
handlers are registered before each write; if they already are, that costs a dictionary lookup.
"""

import errno
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from clog.storage.env import dataclass
from clog.storage.errors import InvalidInputError
from clog.storage.store.contract import OnlyRequestError, ProbeAgainError
from clog.storage.store.kinds.kind import ONE_PART, Kind, Location

_CONFIG: Mapping[str, object] = {
    "retries": {"total_max_attempts": 3, "mode": "standard"},
    "connect_timeout": 10,
    "max_pool_connections": 128,
}
"""botocore's settings; its own defaults wait a minute for a connection, five times."""
_RETRIES = 2
"""s3fs's, on top."""
_AT_ONCE_BYTES_MAX = 1 << 20
"""Longer bodies wait until the server asks for them, as in AWS's SDK for Java: a refused one is not
sent at all.
"""


@dataclass(slots=True)
class _Call:
    """A create under way: its requests, and its version, "null" or None if none are kept."""

    requests: int = 0
    version: str | None = None


_call: ContextVar[_Call | None] = ContextVar("call", default=None)
"""The create under way; the client's event loop runs a call in its caller's context."""

_versioning: dict[tuple[str, str], str] = {}
"""The last known versioning of an endpoint and a bucket: none, suspended, or enabled."""


def _config(location: Location, options: Mapping[str, object]) -> dict[str, Any]:
    if location.protocol != "s3":
        return {**options}
    given = options.get("config_kwargs") or {}
    if not isinstance(given, Mapping):
        raise InvalidInputError(
            f"storage option 'config_kwargs' of {location.shown} is not a mapping; pass a dict"
        )
    return {**options, "config_kwargs": {**_CONFIG, **given}}


def _connected(fs: Any) -> None:
    fs.retries = _RETRIES


def _put(fs: Any, path: str, data: bytes) -> None:
    """Writes by one PUT, or above 100 MiB by parts that one request combines into the object."""
    _prepare(fs)
    fs.pipe_file(path, data)


def _create(fs: Any, path: str, data: bytes) -> None:
    """Creates with ``If-None-Match: *``; raises `ProbeAgainError` if versioning has changed."""
    _prepare(fs)
    call = _Call()
    token = _call.set(call)
    try:
        fs.pipe_file(path, data, mode="create", chunksize=ONE_PART)
    except Exception as e:
        if call.requests == 1:
            raise OnlyRequestError from e
        raise
    finally:
        _call.reset(token)
    place = str(fs.s3.meta.endpoint_url), path.partition("/")[0]
    versioning = {None: "none", "null": "suspended"}.get(call.version, "enabled")
    before, _versioning[place] = _versioning.get(place, versioning), versioning
    if before != versioning:
        raise ProbeAgainError


def _forget_old(fs: Any, name: str, begun_ms: int) -> None:
    """Deletes old versions, then delete markers and old uploads; one LIST per thousand."""
    bucket, _, prefix = name.partition("/")
    place = {"Bucket": bucket, "Prefix": prefix}
    for kind in ("Versions", "DeleteMarkers"):
        for page in _pages(fs, "list_object_versions", "VersionId", place):
            found = page.get(kind, ())
            old = [one for one in found if kind == "DeleteMarkers" or not one["IsLatest"]]
            if not old:
                continue
            names = [{"Key": one["Key"], "VersionId": one["VersionId"]} for one in old]
            named = {"Objects": names, "Quiet": True}
            errors = fs.call_s3("delete_objects", Bucket=bucket, Delete=named).get("Errors")
            if errors:
                why = f"{errors[0].get('Code')}: {len(errors)} old versions may not be deleted"
                raise PermissionError(errno.EACCES, why)
    for page in _pages(fs, "list_multipart_uploads", "UploadId", place):
        for one in page.get("Uploads", ()):
            if one["Initiated"].timestamp() * 1000 < begun_ms:
                upload = {"Key": one["Key"], "UploadId": one["UploadId"]}
                fs.call_s3("abort_multipart_upload", Bucket=bucket, **upload)


def _pages(fs: Any, method: str, of_key: str, place: Mapping[str, str]) -> Iterator[Any]:
    """Yields the pages of a listing, each continuing from a key and its ``of_key``."""
    at: dict[str, str] = {}
    while True:
        page = fs.call_s3(method, **place, **at)
        yield page
        if not page.get("IsTruncated"):
            return
        markers = (f"{name}Marker" for name in ("Key", of_key))
        at = {marker: page[f"Next{marker}"] for marker in markers if page.get(f"Next{marker}")}


def _prepare(fs: Any) -> None:
    events = fs.s3.meta.events
    events.register_last("before-call.s3", _send_at_once, unique_id="clog-send-at-once")
    events.register_first("request-created.s3.PutObject", _count, unique_id="clog-count")
    events.register("after-call.s3.PutObject", _note_version, unique_id="clog-note-version")


def _send_at_once(params: dict[str, Any], **_: object) -> None:
    from botocore.utils import determine_content_length

    size = determine_content_length(params.get("body"))
    if size is not None and size <= _AT_ONCE_BYTES_MAX:
        params["headers"].pop("Expect", None)


def _count(**_: object) -> None:
    call = _call.get()
    if call is not None:
        call.requests += 1


def _note_version(parsed: dict[str, Any], **_: object) -> None:
    call = _call.get()
    if call is not None:
        call.version = parsed.get("VersionId")


KIND = Kind(
    protocols=("s3",),
    aliases=("s3a",),
    classes=("s3fs.core.S3FileSystem",),
    create=_create,
    put=_put,
    forget_old=_forget_old,
    endpoint=lambda fs: str(fs.s3.meta.endpoint_url),
    makers=(".amazonaws.com", ".amazonaws.com.cn"),
    config=_config,
    connected=_connected,
    failures={
        "NoSuchBucket": "no bucket",
        "InvalidBucketName": "no place",
        "ParamValidationError": "no place",
        "PreconditionFailed": "exists",
        "ConditionalRequestConflict": "exists",
        "NotImplemented": "no create",
        "NoCredentialsError": "no credentials",
        "PartialCredentialsError": "no credentials",
        "RequestTimeTooSkewed": "wrong clock",
        "EntityTooLarge": "too large",
    },
    extra="s3",
    authority="bucket",
    folders="none",
    hadoop="s3a",
)
