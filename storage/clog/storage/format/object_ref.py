"""What a manifest says of one data object: enough to read it without asking the store anything
first.
"""

from dataclasses import dataclass
from typing import Final

FOOTER_SUM_BYTES: Final = 16
"""An object's bytes before its Parquet footer: the footer's XXH3-128. Part of the format."""


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """One immutable Parquet object (FORMAT.md §3.3).

    ``size_bytes`` and ``footer_bytes`` let a reader fetch exactly the ranges it needs; ``checksum``
    is XXH3-128 of all bytes, in hex; ``stamp`` a version its writer had read before it wrote;
    ``dense`` means that offsets run without gap from each chunk's base, so there is no ``offset``
    column. ``index_bytes`` is the size of its key index, 0 where it has none.
    """

    path: str
    size_bytes: int
    footer_bytes: int
    checksum: str
    rows: int
    stamp: int
    dense: bool
    index_bytes: int = 0

    @property
    def tail(self) -> tuple[int, int]:
        """The bytes from the key index on: it, the footer's checksum, the footer."""
        rest = self.index_bytes + FOOTER_SUM_BYTES + self.footer_bytes
        return self.size_bytes - rest, self.size_bytes
