"""Replaced objects that readers of older versions still need: they stay until
``file.delete.delay.ms`` is over (S27), and nothing of the newest version refers to them.
"""

from collections.abc import Iterator

import xxhash

from clog.storage.commit.versions import find_newest, manifest_of
from clog.storage.errors import CorruptionError
from clog.storage.format.bitmaps.bitmap import AnyBitmap, BitmapFile
from clog.storage.format.bitmaps.masks import ChunkMask
from clog.storage.format.chunks import Chunk
from clog.storage.format.commits import Commit, edit_of
from clog.storage.format.edits import Edit
from clog.storage.format.manifest import Manifest
from clog.storage.format.object_ref import ObjectRef
from clog.storage.format.snapshots import unpage
from clog.storage.store.base import Store

File = ObjectRef | BitmapFile


def older_problems(
    store: Store, commits: dict[int, Commit], manifest: Manifest
) -> Iterator[tuple[str, str]]:
    """Yields (path, what is wrong) of each that is missing, or has other bytes than were written.

    Costs a GET for each of them; where there are any, an opening at the oldest readable version,
    and a GET for each large edit since.
    """
    oldest = manifest.head.oldest_readable
    current = manifest.files()
    needed = {r.path: r.version for r in manifest.released if r.version > oldest}
    needed = {path: version for path, version in needed.items() if path not in current}
    if not needed or oldest not in commits:
        return
    try:
        files = _files_since(store, commits, oldest)
    except (CorruptionError, FileNotFoundError):
        return  # Found among the documents.
    for path in sorted(needed.keys() & files.keys()):
        try:
            data = store.get(path, 0, files[path].size_bytes + 1)
        except FileNotFoundError:
            if find_newest(store).tip.head.oldest_readable < needed[path]:
                yield path, f"is not there; readers of versions before {needed[path]} need it"
            continue
        checksum, expected = xxhash.xxh3_128_hexdigest(data), files[path].checksum
        if checksum != expected:
            said = f"its checksum is {checksum}, readers of versions before {needed[path]} need"
            yield path, f"{said} {expected}"


def _files_since(store: Store, commits: dict[int, Commit], oldest: int) -> dict[str, File]:
    """Returns the objects and bitmap files by path, those of version ``oldest`` and all that came
    since.
    """
    files: dict[str, File] = {}
    for _, chunk in unpage(store, manifest_of(store, commits[oldest])).chunks():
        files.update(_files(chunk))
    for version, commit in commits.items():
        if version > oldest:
            files.update(_files_of(edit_of(store, commit.record)))
    return files


def _files_of(edit: Edit) -> dict[str, File]:
    chunks = [chunk for r in edit.replace for chunk in r.chunks]
    if edit.add is not None:
        chunks += [chunk for _, chunk in edit.add.chunks]
    files = {path: file for chunk in chunks for path, file in _files(chunk).items()}
    for mark in edit.dead:
        files.update(_bitmaps(mark.dead))
    for masked in edit.masks:
        files.update(_bitmaps(masked.mask.superseded, masked.mask.tombstones))
    return files


def _files(chunk: Chunk) -> dict[str, File]:
    mask = chunk.mask or ChunkMask()
    bitmaps = _bitmaps(chunk.dead, mask.superseded, mask.tombstones)
    return {chunk.object.path: chunk.object, **bitmaps}


def _bitmaps(*bitmaps: AnyBitmap | None) -> dict[str, File]:
    files = (b.bitmap for b in bitmaps if b is not None)
    return {f.path: f for f in files if isinstance(f, BitmapFile)}
