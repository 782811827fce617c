"""How the rows of a state table prove that they are what was written, and that none is missing.

SQLite has no checksums, so a byte that changes on the disk may change a value, or lead a search
past a key. Each row has two hashes against that:

- its *checksum*, of all that a look-up answers by: what is found is what was written;
- the *tag* of the row before it. A tag is of key and partition. So two neighbours tell that no row
  between them is missing, and that a key is not there.

Before all rows stands one that is none (`START`), and has the tag of the last. Triggers keep the
tags, where rows come and go one by one (`sqlite_file`).
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from xxhash import xxh3_64_digest, xxh3_64_hexdigest

Row = tuple[bytes, int, int, int, bytes | None]
"""Key, partition, offset, timestamp in µs, value."""
Checked = tuple[bytes, int, int, int, bytes, bytes, bytes | None]
"""Key, partition, offset, timestamp in µs, checksum, own tag, value."""
START = b"", -1
"""Key and partition of the row before all others."""
_AT_ONCE = 1_000
_NUMBERS = struct.Struct("<qqqq").pack


class DamagedCacheError(Exception):
    """The file is not what was written; build it anew."""


def tag(key: bytes, partition: int) -> bytes:
    """Returns by what the row after this one knows it."""
    return xxh3_64_digest(key, partition)


def checked(rows: Iterable[Row]) -> Iterator[Checked]:
    """Yields rows with their checksums and tags; the checksum of one that deletes is of no use."""
    left = iter(rows)
    while some := list(islice(left, _AT_ONCE)):
        keys, partitions, offsets, timestamps, values = zip(*some, strict=True)
        numbers = map(_NUMBERS, map(len, keys), partitions, offsets, timestamps)
        contents = [value or b"" for value in values] if None in values else values
        checksums = map(xxh3_64_digest, map(b"".join, zip(numbers, keys, contents, strict=True)))
        tags = map(xxh3_64_digest, keys, partitions)
        columns = keys, partitions, offsets, timestamps, checksums, tags, values
        yield from zip(*columns, strict=True)


def check(key: bytes, numbers: tuple[int, int, int], checksum: bytes, value: bytes) -> None:
    """Raises if a row, of this partition, offset and timestamp, is not what was written.

    Raises:
        DamagedCacheError: it is not.
    """
    try:
        data = _NUMBERS(len(key), *numbers) + key + value
    except (TypeError, struct.error) as e:
        raise DamagedCacheError("a row has fields of other types than were written") from e
    if xxh3_64_digest(data) != checksum:
        raise DamagedCacheError(
            f"the xxh3_64 of the row at offset {numbers[1]} of partition {numbers[0]} is"
            f" {xxh3_64_hexdigest(data)}, which is not the one written with it"
        )


def check_gap(around: Sequence[tuple[Any, ...]]) -> None:
    """Raises if a row may be missing between two: the one before it, and the one after it, after
    the last `START`; both as `check_rows` takes them.

    Raises:
        DamagedCacheError: one is, or the file does not tell.
    """
    if len(around) != 2:
        raise DamagedCacheError("its first row is missing")
    before, (key, partition, offset, timestamp, checksum, tag_before, value) = around
    check(key, (partition, offset, timestamp), checksum, value)
    _check_before(before, tag_before, partition, offset)


def check_rows(
    rows: Iterable[tuple[Any, ...]], high: bytes | None
) -> Iterator[tuple[bytes, int, int, bytes]]:
    """Yields key, timestamp, partition and value of the rows below ``high``, None: of all. They are
    taken with key, partition, offset, timestamp, checksum, tag and value, from one that comes
    before all that is asked for on, and up to one that comes after, after the last `START`.

    Raises:
        DamagedCacheError: one is missing, or is not what was written.
    """
    before: tuple[Any, ...] | None = None
    for row in rows:
        key, partition, offset, timestamp, checksum, tag_before, value = row
        check(key, (partition, offset, timestamp), checksum, value)
        if before is not None:
            _check_before(before, tag_before, partition, offset)
            if row[:2] == START or (high is not None and key >= high):
                return
        before = row
        if row[:2] != START:
            yield key, timestamp, partition, value
    raise DamagedCacheError("its first row is missing")


def _check_before(before: tuple[Any, ...], known: bytes, partition: int, offset: int) -> None:
    """Raises if a row is not the one that is known, by this tag, to come before another."""
    try:
        own = tag(*before[:2])
    except (TypeError, OverflowError) as e:
        raise DamagedCacheError("a row has fields of other types than were written") from e
    if own != known:
        raise DamagedCacheError(
            f"the row before the one at offset {offset} of partition {partition} is not the one"
            " that was written there"
        )
