"""The decoder of PostgreSQL's stream, against one that is obviously right, and against hostile
input.
"""

import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clog.bridge.capturing.tables import Form, TablePlan, Truncated
from clog.bridge.postgres.pgoutput import Decoder
from clog.storage import ClogError, SourceError

TEXT = Form(pa.string(), lambda texts: texts.view(pa.binary()).cast(pa.string()))
SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False), ("a", pa.string()), ("b", "utf8")])
PLAN = TablePlan("public.t", SCHEMA, (TEXT, TEXT, TEXT))
UNCHANGED = ...


def packed(row):
    """Returns a tuple as the server sends it."""
    out = [struct.pack(">H", len(row))]
    for value in row:
        if value is None or value is UNCHANGED:
            out.append(b"n" if value is None else b"u")
        else:
            octets = value.encode()
            out.append(b"t" + struct.pack(">I", len(octets)) + octets)
    return b"".join(out)


def relation(oid, names=("id", "a", "b"), identity=b"d"):
    columns = b"".join(
        struct.pack(">B", i == 0) + name.encode() + b"\0" + struct.pack(">Ii", 25, -1)
        for i, name in enumerate(names)
    )
    head = b"R" + struct.pack(">I", oid) + b"public\0t%d\0" % oid + identity
    return head + struct.pack(">H", len(names)) + columns


def begin(lsn, xid=7):
    return b"B" + struct.pack(">qqI", lsn, 1_000_000, xid)


def commit(lsn):
    return b"C\0" + struct.pack(">qqq", lsn, lsn + 8, 0)


def insert(oid, row):
    return b"I" + struct.pack(">I", oid) + b"N" + packed(row)


def update(oid, row, old=None, kind=b"K"):
    before = b"" if old is None else kind + packed(old)
    return b"U" + struct.pack(">I", oid) + before + b"N" + packed(row)


def delete(oid, old, kind=b"K"):
    return b"D" + struct.pack(">I", oid) + kind + packed(old)


def truncate(*oids):
    return b"T" + struct.pack(">IB", len(oids), 0) + struct.pack(f">{len(oids)}I", *oids)


def decoder(plan=PLAN):
    return Decoder(lambda found, _: (found.oid, plan))


def rows_of(changes):
    """Returns what a table's changes contain, one after the other."""
    rows = changes.rows.to_pylist()
    for name, mask in changes.unchanged.items():
        for row, lacks in zip(rows, mask.tolist(), strict=True):
            if lacks:
                assert row[name] is None
                row[name] = UNCHANGED
    froms = [-1] * len(rows) if changes.moved_from is None else changes.moved_from.tolist()
    listed = [tuple(row.values()) for row in rows]
    return list(zip(listed, changes.deleted.tolist(), froms, strict=True))


def test_an_update_that_changes_the_key_is_a_tombstone_and_a_row():
    """The value that was not sent is under the old key (H-C3): the new row names the tombstone
    before it.
    """
    messages = [begin(9), relation(1), insert(1, ("1", "x", "long"))]
    messages += [update(1, ("5", "u", UNCHANGED), ("1", None, None)), commit(9)]
    (changes,) = decoder().decode(messages).steps
    assert rows_of(changes) == [
        (("1", "x", "long"), False, -1),
        (("1", None, None), True, -1),
        (("5", "u", UNCHANGED), False, 1),
    ]


def test_a_value_that_was_not_sent_is_taken_of_the_old_row():
    """Identity FULL has ``u`` in the new row, and the value in the old one (H-C4)."""
    messages = [begin(9), relation(1, identity=b"f")]
    messages += [update(1, ("1", None, UNCHANGED), ("1", "x", "long"), b"O")]
    messages += [update(1, ("2", None, UNCHANGED), ("1", "x", "lang"), b"O"), commit(9)]
    (changes,) = decoder().decode(messages).steps
    assert rows_of(changes) == [
        (("1", None, "long"), False, -1),
        (("1", None, None), True, -1),
        (("2", None, "lang"), False, 1),
    ]
    assert not changes.unchanged


def test_what_a_key_tuple_has_not_is_not_null():
    """Columns outside the identity are ``n`` in a ``K`` tuple, which means nothing (H-C5)."""
    messages = [begin(9), relation(1), update(1, ("1", UNCHANGED, "y"), ("1", None, None))]
    messages += [delete(1, ("1", None, None)), commit(9)]
    (changes,) = decoder().decode(messages).steps
    assert rows_of(changes) == [
        (("1", UNCHANGED, "y"), False, -1),
        (("1", None, None), True, -1),
    ]


def test_a_key_that_is_stored_apart_is_taken_of_the_old_one():
    """A key that was not sent again stands in the key tuple of the same update."""
    messages = [begin(9), relation(1), update(1, (UNCHANGED, "a", "y"), ("long", None, None))]
    (changes,) = decoder().decode([*messages, commit(9)]).steps
    assert rows_of(changes) == [(("long", "a", "y"), False, -1)]


def test_keys_that_change_places():
    """1 becomes 3, 2 becomes 1, 3 becomes 2: in the order of the source (H-C23)."""
    moves = [("1", "3"), ("2", "1"), ("3", "2")]
    messages = [update(1, (new, "a", "b"), (old, None, None)) for old, new in moves]
    (changes,) = decoder().decode([begin(9), relation(1), *messages, commit(9)]).steps
    rows = [(row[0], deleted) for row, deleted, _ in rows_of(changes)]
    assert rows == [("1", True), ("3", False), ("2", True), ("1", False), ("3", True), ("2", False)]


def test_a_relation_that_changes_ends_what_is_decoded_together():
    """Changes before a Relation message belong to the plan before it (H-C9)."""
    plans = iter([PLAN, TablePlan("public.t", pa.schema(list(SCHEMA)[:2]), (TEXT, TEXT))])
    found = Decoder(lambda relation, _: (relation.name, next(plans)))
    messages = [begin(9), relation(1), insert(1, ("1", "x", "y")), relation(1, ("id", "a"))]
    before, after = found.decode([*messages, insert(1, ("2", "z")), commit(9)]).steps
    assert before.rows.column_names == ["id", "a", "b"]
    assert after.rows.to_pylist() == [{"id": "2", "a": "z"}]


def test_a_truncate_ends_what_is_decoded_together_of_its_tables():
    """Changes of its tables before it come before it; others may be anywhere."""
    messages = [begin(9), relation(1), relation(2), insert(1, ("1", "", None))]
    messages += [insert(2, ("1", "", None)), truncate(1), insert(1, ("2", "", None)), commit(9)]
    steps = decoder().decode(messages).steps
    own = [s for s in steps if isinstance(s, Truncated) or s.table == 1]
    assert [isinstance(s, Truncated) for s in own] == [False, True, False]
    assert own[1] == Truncated((1,), 0)


def test_a_transaction_over_calls():
    """A call that ends in the middle of a transaction leaves it to the next."""
    made = decoder()
    first = made.decode([begin(5), relation(1), commit(5), begin(9, 8), insert(1, ("1", "", ""))])
    assert first.in_transaction
    assert [(t.xid, t.commit_lsn, t.end_lsn) for t in first.transactions] == [(7, 5, 13), (8, 9, 0)]
    assert first.steps[0].transactions.tolist() == [1]
    second = made.decode([insert(1, ("2", "", "")), commit(9), begin(12), commit(12)])
    assert not second.in_transaction
    assert [(t.xid, t.end_lsn) for t in second.transactions] == [(8, 17), (7, 20)]
    assert second.steps[0].transactions.tolist() == [0]
    assert second.transactions[0].time_us == 946_684_801_000_000
    assert made.decode([]).transactions == ()


def test_relations_that_nobody_wants_are_skipped():
    """A relation without a plan has no changes, and no truncates."""
    skipping = Decoder(lambda found, _: None if found.oid == 1 else (found.oid, PLAN))
    messages = [begin(9), relation(1), relation(2), insert(1, ("1", "", "")), truncate(1)]
    (changes,) = skipping.decode([*messages, insert(2, ("1", "", "")), commit(9)]).steps
    assert changes.table == 2


@pytest.mark.parametrize("count", [5, 4, 3])
def test_a_partition_is_described_right_before_a_change_of_its_table(count):
    """Also if a call ends in between; a truncate, and a table of its own, are no such change."""
    found = []
    made = Decoder(lambda *_: None, part_of=lambda *one: found.append(one))
    row = insert(1, ("1", "", ""))
    messages = [begin(9), relation(1), relation(2), truncate(1, 2), relation(2), row, row]
    messages += [relation(3), insert(3, ("1", "", "")), relation(2), commit(9)]
    for part in (messages[:count], [], messages[count:]):
        made.decode(part)
    assert found == [(2, 1, 9)]


def test_columns_that_the_plan_has_not_are_skipped():
    """A masked column is skipped; the others keep their values."""
    plan = TablePlan("public.t", pa.schema([SCHEMA[2], SCHEMA[0]]), (TEXT, TEXT))
    messages = [begin(9), relation(1), insert(1, ("k", "secret", "v")), commit(9)]
    (changes,) = decoder(plan).decode(messages).steps
    assert changes.rows.to_pylist() == [{"b": "v", "id": "k"}]


VALUES = st.text("aé\0,", max_size=6)
ROWS = st.tuples(VALUES, st.none() | VALUES, st.none() | VALUES | st.just(UNCHANGED))
STORED = st.tuples(VALUES, st.none() | VALUES, st.none() | VALUES)


@st.composite
def operations(draw):
    """An operation: its kind, the relation, the old row and the new one, as the server has them."""
    kind = draw(st.sampled_from(["insert", "update", "move", "full", "delete", "wipe"]))
    return kind, draw(st.integers(1, 2)), draw(STORED), draw(ROWS)


def message_and_meaning(operation):
    """Returns the message, and the rows that it represents."""
    kind, oid, old, new = operation
    filled = tuple(o if n is UNCHANGED else n for o, n in zip(old, new, strict=True))
    sent = tuple(None if value is UNCHANGED else value for value in new)
    key = (old[0], None, None)
    if kind == "insert":
        return insert(oid, sent), [(sent, False)]
    if kind == "update":
        return update(oid, new), [(new, False)]
    if kind == "move":
        return update(oid, new, key), ([(key, True)] if old[0] != new[0] else []) + [(new, False)]
    if kind == "full":
        moved = [(key, True)] if old[0] != new[0] else []
        return update(oid, new, old, b"O"), [*moved, (filled, False)]
    return delete(oid, old if kind == "wipe" else key, b"O" if kind == "wipe" else b"K"), [
        (key, True)
    ]


@given(st.lists(st.lists(operations(), max_size=4), max_size=5), st.randoms())
def test_any_stream_is_decoded_as_one_row_after_the_other(histories, random):
    """However the stream is divided into calls, each table has the rows that its messages
    represent.
    """
    meant = {1: [], 2: []}
    messages = [begin(1), relation(1), relation(2), commit(1)]
    for number, history in enumerate(histories, 2):
        messages.append(begin(number))
        for operation in history:
            message, rows = message_and_meaning(operation)
            messages.append(message)
            meant[operation[1]] += [(*row, number) for row in rows]
        messages.append(commit(number))
    made, found = decoder(), {1: [], 2: []}
    while messages:
        count = random.randint(1, len(messages))
        decoded = made.decode(messages[:count])
        messages = messages[count:]
        for changes in decoded.steps:
            numbers = [decoded.transactions[i].commit_lsn for i in changes.transactions.tolist()]
            rows = rows_of(changes)
            found[changes.table] += [
                (row, deleted, number)
                for (row, deleted, _), number in zip(rows, numbers, strict=True)
            ]
            for i, (row, _, start) in enumerate(rows):
                assert start < 0 or (rows[start][1] and start == i - 1 and rows[start][0] != row)
    assert found == meant


WHOLE = [
    begin(9),
    relation(1),
    insert(1, ("1", "x", None)),
    update(1, ("2", "x", UNCHANGED), ("1", None, None)),
    update(1, ("2", "y", UNCHANGED), ("2", "x", "y"), b"O"),
    truncate(1),
    delete(1, ("2", None, None)),
    commit(9),
]


@given(st.data())
def test_strangers_are_refused(data):
    """Whatever a message has in place of a byte, or lacks, is decoded, or refused with a clog
    error.
    """
    messages = list(WHOLE)
    for _ in range(data.draw(st.integers(1, 3))):
        i = data.draw(st.integers(0, len(messages) - 1))
        message = bytearray(messages[i])
        at = data.draw(st.integers(0, len(message)))
        end = data.draw(st.sampled_from([at, at + 1, at + 4, len(message)]))
        message[at:end] = data.draw(st.binary(max_size=6) | st.just(b"\xff" * 4))
        messages[i] = bytes(message)
    try:
        decoder().decode(messages)
    except ClogError:
        pass


@given(st.lists(st.binary(max_size=40)))
def test_noise_is_refused(messages):
    """What is not a stream at all is refused with a clog error."""
    said = ""
    try:
        decoder().decode(messages)
    except SourceError as e:
        said = str(e)
    assert not said or said.startswith("the stream of the server has ")


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([b"S" + bytes(5)], "unknown kind 83"),
        ([relation(1)], "outside of transactions"),
        ([begin(1), begin(2)], "transactions in others"),
        ([begin(1), commit(2)], "Commit of a transaction"),
        ([begin(1), insert(1, ("1", "", ""))], "relation 1, which it did not describe"),
        ([begin(1), relation(1), insert(1, ("1", ""))], "other columns than described"),
        ([begin(1), relation(1), insert(1, (None, "", ""))], "without its key"),
        ([begin(1), relation(1), insert(1, ("1", "", "")) + b"xx"], "longer than"),
    ],
)
def test_what_is_wrong_is_said(messages, said):
    """A stream that contradicts itself is refused with an explanation; nothing of it is kept."""
    made = decoder()
    with pytest.raises(SourceError, match=said):
        made.decode(messages)
    assert made.decode([begin(3), commit(3)]).transactions[0].end_lsn == 11
