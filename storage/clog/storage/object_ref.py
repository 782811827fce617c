"""What a manifest says of one data object: enough to read it without asking the store anything
first.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """One immutable Parquet object (FORMAT.md §3.3).

    ``size_bytes`` and ``footer_bytes`` let a reader fetch exactly the ranges it needs; ``checksum``
    is XXH3-128 of all bytes, in hex; ``stamp`` a version its writer had read before it wrote;
    ``dense`` means that offsets run without gap from each chunk's base, so there is no ``offset``
    column.
    """

    path: str
    size_bytes: int
    footer_bytes: int
    checksum: str
    rows: int
    stamp: int
    dense: bool
