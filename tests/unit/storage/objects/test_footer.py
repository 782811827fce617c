"""Footers that were forged with the right checksums: refused before Arrow sees them (FORMAT.md
§5.1). A test that fails here may end the interpreter.
"""

import copy
from collections import Counter
from itertools import pairwise

import pyarrow as pa
import pytest
import xxhash
from hypothesis import strategies as st

from clog.storage.errors import CorruptionError
from clog.storage.format.chunks import ObjectRef
from clog.storage.objects import reader as footers
from clog.storage.objects.reader import (
    BINARY,
    FALSE,
    I16,
    I32,
    I64,
    LIST,
    SET,
    STRUCT,
    TRUE,
    FooterError,
    Reader,
    read_footer,
    read_rows,
)
from clog.storage.types.columns import REWRITTEN_SCHEMA
from clog_testing.crash import discard, memory_store
from clog_testing.sealing import sealed

ROWS = 6
SCHEMA, GROUPS = 2, 4
COLUMNS, METADATA = 1, 3


def parquet():
    """All existing columns, in two row groups."""
    import pyarrow.parquet as pq

    headers = [[{"key": "h", "value": b"1"}, {"key": "i", "value": None}], None, []] * 2
    data = {
        "key": [b"a", b"b", None] * 2,
        "value": [b"1", None, b"3" * 50] * 2,
        "headers": headers,
        "timestamp": range(ROWS),
        "offset": range(ROWS),
        "delete_horizon": [None, 5, None] * 2,
    }
    arrays = [pa.array(data[field.name], field.type) for field in REWRITTEN_SCHEMA]
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.Table.from_arrays(arrays, schema=REWRITTEN_SCHEMA),
        sink,
        store_schema=False,
        row_group_size=4,
        use_dictionary=["value"],
        write_page_checksum=True,
    )
    data, footer_bytes = sealed(sink.getvalue())
    return data[: -footer_bytes - 16], data[-footer_bytes:-8]


PAGES, FOOTER = parquet()
TREE = Reader(FOOTER).struct()


def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def integer(number):
    return varint((number << 1 ^ number >> 63) & (1 << 64) - 1)


def thrift(kind, value):
    """A value as Thrift's compact protocol has it."""
    if kind in (TRUE, FALSE):
        return b""
    if I16 <= kind <= I64:
        return integer(value)
    if kind == BINARY:
        return varint(len(value)) + value
    if kind in (LIST, SET):
        of, values = value
        head = bytes([0xF0 | of]) + varint(len(values))
        if of in (TRUE, FALSE):
            return head + bytes(TRUE if v else FALSE for v in values)
        return head + b"".join(thrift(of, v) for v in values)
    assert kind == STRUCT, kind
    return (
        b"".join(bytes([k]) + integer(f) + thrift(k, v) for f, (k, v) in sorted(value.items()))
        + b"\0"
    )


def sealed_again(footer, pages=PAGES):
    """An object with this footer, whatever is in it, and what its manifest says."""
    footer = footer + len(footer).to_bytes(4, "little") + b"PAR1"
    data = pages + xxhash.xxh3_128_digest(footer) + footer
    checksum = xxhash.xxh3_128_hexdigest(data)
    ref = ObjectRef("data/x.parquet", len(data), len(footer), checksum, ROWS, 0, dense=False)
    return data, ref


def what_is_made_of(footer, *, ranged):
    """Whether the footer is accepted, and rows or a clog error; anything else fails."""
    data, ref = sealed_again(footer)
    store = memory_store()
    store.put(ref.path, data)
    columns = REWRITTEN_SCHEMA.names
    rows, count = (1, 4) if ranged else (0, ROWS)
    with pytest.MonkeyPatch.context() as patch:
        if ranged:
            patch.setattr("clog.storage.objects.reader.WHOLE_BYTES", 0)
        try:
            read = list(read_rows(store, ref, rows, count, columns=columns))
        except CorruptionError as e:
            return str(e)
        finally:
            discard(store)
    for batch in read:
        batch.validate(full=True)
    return pa.Table.from_batches(read)


@pytest.mark.parametrize("ranged", [False, True])
def test_a_footer_of_ours_is_read(ranged):
    """Written again from its values it is the same footer."""
    rows = what_is_made_of(thrift(STRUCT, TREE), ranged=ranged)
    assert rows.num_rows == (4 if ranged else ROWS)
    groups = row_groups(FOOTER)
    assert [group.rows for group in groups] == [4, 2]
    paths = Counter(path for group in groups for path, _, _ in group.pages)
    lone = [name for name in REWRITTEN_SCHEMA.names if name != "headers"]
    pairs = ["headers.list.element.key", "headers.list.element.value"]
    assert paths == dict.fromkeys([*lone, *pairs], 2)
    places = sorted(place[1:] for group in groups for place in group.pages)
    assert (places[0][0], places[-1][1]) == (4, len(PAGES))
    assert all(a[1] <= b[0] for a, b in pairwise(places))


def row_groups(footer):
    data, ref = sealed_again(footer)
    return read_footer(data[-ref.footer_bytes :], rows=ref.rows, pages_end=ref.tail[0])


def first_column(tree):
    """The chunk of the first column in the first row group."""
    return tree[GROUPS][1][1][0][COLUMNS][1][1][0]


def metadata(tree):
    return first_column(tree)[METADATA][1]


def nested(tree):
    """A schema of nested groups, 20,000 deep."""
    groups = [{3: (I32, 1), 4: (BINARY, b"g"), 5: (I32, 1)} for _ in range(200)]
    tree[SCHEMA][1][1][1:1] = groups


FORGED = {
    "no metadata": (lambda t: first_column(t).pop(METADATA), "has no metadata"),
    "nested": (nested, "nested more than 8 deep"),
    "many": (lambda t: t[SCHEMA][1][1].extend([{}] * 300), "has 311 elements, more than 256"),
    "more children": (lambda t: t[SCHEMA][1][1][0].update({5: (I32, 7)}), "schema ends early"),
    "fewer children": (lambda t: t[SCHEMA][1][1][0].update({5: (I32, 5)}), "outside its tree"),
    "no children": (lambda t: t[SCHEMA][1][1][0].update({5: (I32, 0)}), "a group of 0 columns"),
    "a name twice": (
        lambda t: t[SCHEMA][1][1][2].update({4: (BINARY, b"key")}),
        "two columns 'key'",
    ),
    "a missing name": (
        lambda t: t[SCHEMA][1][1][2].update({4: (BINARY, b"other")}),
        r"expected \['value'\] too",
    ),
    "a name that is none": (lambda t: t[SCHEMA][1][1][2].update({4: (BINARY, b"\xff")}), "UTF-8"),
    "another type": (lambda t: t[SCHEMA][1][1][1].update({1: (I32, 2)}), "'key' has type 2"),
    "a repeated key": (lambda t: t[SCHEMA][1][1][1].update({3: (I32, 2)}), "'key' has type 6"),
    "an unknown repetition": (lambda t: t[SCHEMA][1][1][1].update({3: (I32, 3)}), "repetition 3"),
    "encrypted": (lambda t: t.update({8: (STRUCT, {})}), "it is encrypted"),
    "an encrypted column": (lambda t: first_column(t).update({8: (STRUCT, {})}), "or encrypted"),
    "another file": (
        lambda t: first_column(t).update({1: (BINARY, b"/etc/passwd")}),
        "another file",
    ),
    "beyond the pages": (lambda t: metadata(t).update({9: (I64, len(PAGES))}), "but pages end at"),
    "beyond 64 bits": (lambda t: metadata(t).update({9: (I64, 2**63 - 1)}), "but pages end at"),
    "before the file": (lambda t: metadata(t).update({9: (I64, -5)}), "but pages end at"),
    "a negative length": (lambda t: metadata(t).update({7: (I64, -1)}), "but pages end at"),
    "no place": (lambda t: metadata(t).pop(9), "place of pages is missing"),
    "other values": (lambda t: metadata(t).update({5: (I64, 5)}), "has 5 values in 4 rows"),
    "beyond 32 bits": (lambda t: metadata(t).update({4: (I32, 1 << 40)}), "not such a number"),
    "unknown compression": (lambda t: metadata(t).update({4: (I32, 8)}), "unknown compression"),
    "another type than its schema's": (lambda t: metadata(t).update({1: (I32, 1)}), "its type"),
    "another path": (lambda t: metadata(t).update({3: (LIST, (BINARY, [b"x"]))}), "another path"),
    "a list of another kind": (
        lambda t: metadata(t).update({2: (LIST, (BINARY, [b"x"]))}),
        "field 2 is not a list of kind 5",
    ),
    "a column less": (lambda t: t[GROUPS][1][1][0][COLUMNS][1][1].pop(), "has 6 columns"),
    "a row group less": (lambda t: t[GROUPS][1][1].pop(), "its row groups 4, expected 6"),
    "other rows": (lambda t: t.update({3: (I64, 7)}), "counts 7 rows"),
    "no row groups": (lambda t: t.update({GROUPS: (I64, 7)}), "row groups are not a list"),
    "no schema": (lambda t: t.pop(SCHEMA), "has 7 columns and 4 rows, expected 0"),
}


@pytest.mark.parametrize("ranged", [False, True])
@pytest.mark.parametrize("what", FORGED)
def test_a_forged_footer_is_damage(what, ranged):
    """Its checksums are right; some of these would end the process (FORMAT.md §5.1)."""
    forge, message = FORGED[what]
    tree = copy.deepcopy(TREE)
    forge(tree)
    footer = thrift(STRUCT, tree)
    with pytest.raises(FooterError, match=message):
        row_groups(footer)
    assert "its footer does not decode" in what_is_made_of(footer, ranged=ranged)


def test_a_tail_that_does_not_fit():
    """The length that it contains, and the letters, are Parquet's own: Arrow relies on them."""
    data, ref = sealed_again(FOOTER)
    good = data[-ref.footer_bytes :]
    for tail in (good[-8:-4] + b"PARE", bytes(4) + b"PAR1", b""):
        with pytest.raises(FooterError, match="its tail is"):
            read_footer(good[:-8] + tail, rows=ROWS, pages_end=len(PAGES))
    with pytest.raises(FooterError, match="it is followed by 1 more bytes"):
        row_groups(FOOTER + b"\0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(footers, "FOOTER_BYTES_MAX", len(FOOTER) - 1)
        with pytest.raises(FooterError, match="more than"):
            row_groups(FOOTER + b"\0")


def places(kind, value, at=()):
    """Where values are in a tree."""
    yield at
    if kind == STRUCT:
        for field, (inner, found) in value.items():
            yield from places(inner, found, (*at, field, 1))
    elif kind == LIST:
        of, values = value
        for i, found in enumerate(values):
            yield from places(of, found, (*at, 1, i))


PLACES = list(places(STRUCT, TREE))[1:]
NUMBERS = st.sampled_from([0, 1, -1, 2, 4, 6, 8, 2**31 - 1, -(2**31), 2**32, 2**62, -(2**63)])
OTHERS = st.one_of(
    st.tuples(st.sampled_from([I32, I64]), NUMBERS | st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just(BINARY), st.sampled_from([b"", b"key", b"\xff"]) | st.binary(max_size=9)),
    st.tuples(st.just(STRUCT), st.just({})),
    st.tuples(st.just(LIST), st.tuples(st.sampled_from([I32, I64]), st.lists(NUMBERS, max_size=3))),
    st.tuples(st.just(LIST), st.tuples(st.just(STRUCT), st.just([{}]))),
)


def forged(data):
    """A copy of the tree with one value changed, removed, or duplicated."""
    tree = copy.deepcopy(TREE)
    place = data.draw(st.sampled_from(PLACES), label="place")
    inner = tree
    for step in place[:-2]:
        inner = inner[step]
    step, last = place[-2:]
    if isinstance(inner, dict):  # The value of a field, with its kind.
        if data.draw(st.booleans(), label="away"):
            del inner[step]
        else:
            inner[step] = data.draw(OTHERS, label="field")
        return tree
    of, values = inner
    what = data.draw(st.sampled_from(["away", "twice", "other"]), label="what")
    if what == "away":
        del values[last]
    elif what == "twice":
        values.insert(last, copy.deepcopy(values[last]))
    else:
        values[last] = data.draw(OTHERS.filter(lambda other: other[0] == of), label="element")[1]
    return tree
