"""Small row groups to be copied, and footers that describe theirs incorrectly."""

from dataclasses import replace

import xxhash
from hypothesis import strategies as st

from clog.storage.objects import composing, reader, writer
from clog.storage.objects.composing import written
from clog.storage.objects.reader import BINARY, I32, I64, LIST, STRUCT, Reader
from clog.storage.read import copy as read_or_copies

NUMBERS = st.sampled_from([0, 1, -1, 2, 6, 8, 40, 2**31 - 1, 2**32, 2**62, -(2**63)])
OTHERS = st.one_of(
    st.tuples(st.sampled_from([I32, I64]), NUMBERS),
    st.tuples(st.just(BINARY), st.binary(max_size=9)),
    st.tuples(st.just(STRUCT), st.just({})),
    st.tuples(st.just(LIST), st.tuples(st.sampled_from([I32, I64]), st.lists(NUMBERS, max_size=3))),
    st.tuples(st.just(LIST), st.tuples(st.just(STRUCT), st.just([{}]))),
)


def set_limits(monkeypatch, group_bytes_min):
    """Sets limits that few records reach."""
    for module in (writer, read_or_copies):
        monkeypatch.setattr(module, "GROUP_BYTES_MIN", group_bytes_min)
        monkeypatch.setattr(module, "GROUP_BYTES", 120)
        monkeypatch.setattr(module, "GROUP_ROWS", 6)
    for module in (reader, writer, composing, read_or_copies):
        monkeypatch.setattr(module, "WHOLE_BYTES", 0)
    monkeypatch.setattr(composing, "_GATHER_ROWS", 4)


def forged(store, obj, data):
    """An object whose footer lacks a field, has one of another kind or value, or an unknown one,
    with correct checksums.
    """
    content = store.get(obj.ref.path)
    tree = Reader(content[-obj.ref.footer_bytes : -8]).struct()
    struct, field = data.draw(st.sampled_from(list(_fields(tree))))
    what = data.draw(st.sampled_from(["away", "other", "unknown"]))
    if what == "away":
        del struct[field]
    else:
        struct[field if what == "other" else 40] = data.draw(OTHERS)
    footer = written(tree)
    footer += len(footer).to_bytes(4, "little") + b"PAR1"
    made = content[: -obj.ref.footer_bytes - 16] + xxhash.xxh3_128_digest(footer) + footer
    store.put(obj.ref.path, made)
    return replace(
        obj.ref,
        size_bytes=len(made),
        footer_bytes=len(footer),
        checksum=xxhash.xxh3_128_hexdigest(made),
    )


def _fields(struct):
    """All structs in one, with the fields they have."""
    yield from ((struct, field) for field in struct)
    for kind, value in struct.values():
        inner = [value] if kind == STRUCT else value[1] if kind == LIST else []
        for found in inner:
            if isinstance(found, dict):
                yield from _fields(found)
