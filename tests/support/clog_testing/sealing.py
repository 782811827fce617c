"""Parquet of a test's own making as data objects, with their footer's checksum (FORMAT.md §5.1)."""

import pyarrow as pa
import xxhash


def sealed(parquet: pa.Buffer) -> tuple[bytes, int]:
    """Returns the Parquet file with its footer's checksum before the footer; the footer's
    length.
    """
    data = memoryview(parquet)
    footer_bytes = int.from_bytes(data[-8:-4], "little") + 8
    pages, footer = data[:-footer_bytes], data[-footer_bytes:]
    return b"".join((pages, xxhash.xxh3_128_digest(footer), footer)), footer_bytes
