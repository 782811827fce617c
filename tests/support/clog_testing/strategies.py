"""Hypothesis strategies of records and appends. Few keys, so that they meet. Needs hypothesis."""

from hypothesis import strategies as st

from clog_testing.model import Record

KEYS = (b"", b"a", b"b", b"c", b"\x00", "ü".encode(), b"a-longer-key-of-some-bytes")
TIME_MS_MAX = 2_000_000


def keys(*, nulls: bool = False) -> st.SearchStrategy[bytes | None]:
    """Returns keys out of a small universe, the empty one among them."""
    some = st.sampled_from(KEYS)
    return st.none() | some if nulls else some


def values() -> st.SearchStrategy[bytes | None]:
    """Returns values, tombstones, empty values (S4)."""
    return st.none() | st.just(b"") | st.binary(max_size=20)


def headers() -> st.SearchStrategy[tuple[tuple[str, bytes | None], ...]]:
    """Returns headers, mostly none; names may repeat, values may be null."""
    pair = st.tuples(st.sampled_from(["h", "trace", ""]), st.none() | st.binary(max_size=4))
    return st.just(()) | st.lists(pair, max_size=3).map(tuple)


def records(*, nulls: bool = False) -> st.SearchStrategy[Record]:
    """Returns the records; ``nulls``: some have no key."""
    return st.builds(
        Record,
        key=keys(nulls=nulls),
        value=values(),
        timestamp_ms=st.integers(0, TIME_MS_MAX),
        headers=headers(),
    )


def placed_records(
    partitions: int, *, nulls: bool = False, size_max: int = 8
) -> st.SearchStrategy[list[tuple[int, Record]]]:
    """Returns what one append holds: records, each with its partition."""
    placed = st.tuples(st.integers(0, partitions - 1), records(nulls=nulls))
    return st.lists(placed, min_size=1, max_size=size_max)
