"""The objects of a version: whether each is there, and what is wrong with it (`verify_rows`).

They are fetched whole, the next ones while one is looked at (`store.ahead`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from clog.storage.diagnostics.verify_rows import object_problems
from clog.storage.format import paths
from clog.storage.format.chunks import Chunk
from clog.storage.format.edits import LogInfo
from clog.storage.format.manifest import Manifest
from clog.storage.format.object_ref import ObjectRef
from clog.storage.store.ahead import ahead
from clog.storage.store.base import Store

OnProgress = Callable[[int, int], None]
"""Called with (bytes of objects verified, bytes of objects there are)."""

_Referring = Sequence[tuple[int, Chunk]]


def by_object(manifest: Manifest) -> dict[ObjectRef, list[tuple[int, Chunk]]]:
    """Returns by object the chunks that refer to it, with their partitions. Pure."""
    chunks: dict[ObjectRef, list[tuple[int, Chunk]]] = {}
    for p, chunk in manifest.chunks():
        chunks.setdefault(chunk.object, []).append((p, chunk))
    return chunks


def object_messages(
    store: Store,
    chunks: Mapping[ObjectRef, _Referring],
    log: LogInfo,
    *,
    quick: bool,
    on_progress: OnProgress,
) -> Iterator[tuple[bool, str, str]]:
    """Yields whether it is there, path and message for each thing that is wrong with an object;
    ``chunks`` refer to it. One LIST, and a GET for each object unless the check is ``quick``.
    """
    stored = {found.path: found.size_bytes for found in store.list(paths.DATA)}
    total = sum(ref.size_bytes for ref in chunks)
    done = 0
    on_progress(done, total)
    in_order = sorted(chunks, key=lambda ref: ref.path)
    calls = [
        (partial(_content, store, ref), ref.size_bytes)
        for ref in in_order
        if not quick and stored.get(ref.path) == ref.size_bytes
    ]
    contents = ahead(store, calls)
    for ref in in_order:
        size_bytes = stored.get(ref.path)
        is_read = not quick and size_bytes == ref.size_bytes
        content = next(contents) if is_read else None
        is_there = size_bytes is not None and (content is not None or not is_read)
        yield from _one_object(ref, chunks[ref], size_bytes if is_there else None, content, log)
        done += ref.size_bytes
        on_progress(done, total)


def _content(store: Store, ref: ObjectRef) -> bytes | None:
    """Returns the object's bytes, one more where there are; None where it is gone."""
    try:
        return store.get(ref.path, 0, ref.size_bytes + 1)
    except FileNotFoundError:
        return None


def _one_object(
    ref: ObjectRef,
    referring: _Referring,
    size_bytes: int | None,
    content: bytes | None,
    log: LogInfo,
) -> Iterator[tuple[bool, str, str]]:
    """Yields what is wrong with an object of so many bytes, None: it is not there; ``content`` is
    there where it is to be looked at.
    """
    used = ", ".join(f"[{c.base}, {c.next}) of partition {p}" for p, c in referring[:3])
    used += ", …" if len(referring) > 3 else ""
    if size_bytes is None:
        yield False, ref.path, f"is not there; it holds {used}"
    elif size_bytes != ref.size_bytes:
        message = f"has {size_bytes} bytes, the manifest says {ref.size_bytes}; it holds {used}"
        yield True, ref.path, message
    elif content is not None:
        for message in object_problems(
            content, ref, referring, key_seed=log.key_seed, schema=log.schema
        ):
            yield True, ref.path, message
