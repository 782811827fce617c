"""Sets of row numbers as Roaring bitmaps, the form in which Delta and Iceberg have them.

The portable format of 64-bit Roaring bitmaps: the number of 32-bit ones, and each of them after
its upper 32 bits. An object has fewer rows than 2^32, so there is one. A 32-bit one has a
*container* for each 65,536 numbers, as what is shortest: the numbers, runs of them, or bits.

Not here: reading them; nothing of clog has to.
"""

import struct

import numpy as np

from clog.storage.numpy_arrays import Mask

_CONTAINER = 1 << 16
_ARRAY_MAX = 4096
"""Numbers that a container may list; with more it has bits or runs."""
_COOKIE, _COOKIE_OF_RUNS = 12346, 12347
_OFFSETS_MIN = 4
"""Bitmaps with runs have the offsets of containers where they have so many."""


def to_roaring64(mask: Mask) -> bytes:
    """Returns the numbers of the elements that are true, as a 64-bit bitmap."""
    if not mask.any():
        return struct.pack("<Q", 0)
    return struct.pack("<QI", 1, 0) + _to_roaring32(mask)


def _to_roaring32(mask: Mask) -> bytes:
    containers: list[tuple[int, int, bool, bytes]] = []  # upper bits, count, as runs, bytes
    for upper, start in enumerate(range(0, len(mask), _CONTAINER)):
        part = mask[start : start + _CONTAINER]
        if count := int(np.count_nonzero(part)):
            containers.append((upper, count, *_container(part, count)))
    size = len(containers)
    has_runs = any(as_runs for _, _, as_runs, _ in containers)
    if has_runs:
        flags = np.packbits([as_runs for _, _, as_runs, _ in containers], bitorder="little")
        head = struct.pack("<I", _COOKIE_OF_RUNS | (size - 1) << 16) + flags.tobytes()
    else:
        head = struct.pack("<II", _COOKIE, size)
    head += b"".join(struct.pack("<HH", upper, count - 1) for upper, count, _, _ in containers)
    bodies = [body for _, _, _, body in containers]
    if not has_runs or size >= _OFFSETS_MIN:
        lengths = [0, *(len(body) for body in bodies[:-1])]
        offsets = np.cumsum(lengths, dtype=np.uint32) + np.uint32(len(head) + 4 * size)
        head += offsets.astype("<u4").tobytes()
    return head + b"".join(bodies)


def _container(part: Mask, count: int) -> tuple[bool, bytes]:
    """Returns whether runs are shortest, and the container's bytes."""
    padded = np.zeros(len(part) + 2, np.int8)
    padded[1:-1] = part
    steps = np.diff(padded)
    starts, ends = np.flatnonzero(steps == 1), np.flatnonzero(steps == -1)
    otherwise = 2 * count if count <= _ARRAY_MAX else _CONTAINER // 8
    if 2 + 4 * len(starts) < otherwise:
        runs = np.stack([starts, ends - starts - 1], axis=1).astype("<u2")
        return True, struct.pack("<H", len(starts)) + runs.tobytes()
    if count <= _ARRAY_MAX:
        return False, np.flatnonzero(part).astype("<u2").tobytes()
    bits = np.zeros(_CONTAINER, np.bool_)
    bits[: len(part)] = part
    return False, np.packbits(bits, bitorder="little").tobytes()
