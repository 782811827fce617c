"""Parsers of what strangers write, fed with valid input that was changed where it hurts.

`python tests/properties/strangers.py --seconds 600 pgoutput` tries one for so many CPU seconds,
from a seed on. A seed that raises what is no error of ours, takes seconds, or more memory than its
input explains, is named; `--seed N --seconds 0` tries it again.

Each parser has a maker: it builds what is valid once, and returns what tries one change of it.
Bytes lose, repeat or exchange parts, and get lengths of 2 GB; trees of JSON get values of other
types, out of range, twice, too deep, or lose some. What has checksums gets those of what it is.
"""

import argparse
import base64
import copy
import json
import os
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import threading
import time
import traceback
from array import array
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]

import pyarrow as pa
from tests.capture.test_pgoutput import WHOLE, begin, commit, delete, insert, relation, update
from tests.unit.bridge.test_decoding import FIELD, change, envelope, key, records
from tests.unit.bridge.test_records import Message
from tests.unit.bridge.test_registry import (
    ROW,
    VALUE,
    Registered,
    avro,
    proto_class,
    proto_file,
    protobuf,
)

from clog.bridge.decoding import OF_LETTERS, Decoder, Decoding, letters_of
from clog.bridge.postgres.loading import _Rows
from clog.bridge.postgres.pgoutput import Decoder as StreamDecoder
from clog.bridge.postgres.tables import Column
from clog.bridge.postgres.types import Type, plan_from
from clog.bridge.records import columns_of
from clog.bridge.replaying import played
from clog.bridge.target import ID
from clog.cleaner import Cleaner
from clog.state import StateTable, local_file
from clog.storage import ClogError, Log, ManualClock
from clog.storage.cuts import cuts_of, name_cut
from clog.storage.diagnostics.verify import verify_log
from clog.storage.env import SeededIds
from clog.storage.format import documents
from clog.storage.format.erasures import read_receipt, read_request
from clog_testing.crash import copy_of, discard, inside, memory_store

RSS_MAX_BYTES = 384 << 20
"""More may not be taken by one try: inputs have some kB."""
CPU_MAX_S = 20
LENGTHS = [
    *(struct.pack(f"{order}I", n) for order in "<>" for n in (0, 1, 2**31 - 1, 2**31, 2**32 - 1)),
    *(struct.pack(f"{order}q", n) for order in "<>" for n in (2**40, 2**63 - 1, -1)),
    b"\xfe\xff\xff\xff\x0f",
    b"\xfe" + b"\xff" * 8 + b"\x01",
]
ODD = [
    *(None, True, False, 0, 1, -1, 2**31, 2**53, 2**63 - 1, 2**63, -(2**70), 10**30, 10**4500),
    *(0.5, 1e308, float("inf"), float("nan"), "", "x" * 5000, "\ud800", "\0", "inf", "9" * 5000),
    *("2000000000", "-5", "1e9", "string", "int64", "bytes", "struct", "map", "array", [], {}),
]


def changed_bytes(draw, data):
    """Bytes with one to three changes."""
    data = bytearray(data)
    for _ in range(draw.randint(1, 3)):
        at = draw.randint(0, len(data))
        end = min(len(data), at + draw.choice([0, 1, 1, 2, 4, 8, 40]))
        part = draw.choice(
            [
                b"",
                bytes([draw.randrange(256)]),
                draw.choice(LENGTHS),
                bytes(data[end : end + draw.randint(1, 60)]),
                draw.randbytes(draw.randint(1, 12)),
            ]
        )
        if draw.random() < 0.05:
            end = len(data)
        data[at:end] = part
    return bytes(data)


def places(value, at=()):
    """The path of every value within a tree."""
    if at:
        yield at
    inner = value.items() if isinstance(value, dict) else ()
    for name, each in enumerate(value) if isinstance(value, list) else inner:
        yield from places(each, (*at, name))


def changed_tree(draw, tree):
    """A tree with one to three changes."""
    tree = copy.deepcopy(tree)
    for _ in range(draw.randint(1, 3)):
        found = list(places(tree))
        if not found:
            return draw.choice(ODD)
        *above, name = draw.choice(found)
        around = tree
        for step in above:
            around = around[step]
        how = draw.randrange(6)
        if how == 0:
            del around[name]
        elif how == 1:
            other = tree
            for step in draw.choice(found):
                with suppress(LookupError, TypeError):
                    other = other[step]
            around[name] = copy.deepcopy(other)
        elif how == 2 and isinstance(around, dict):
            around[draw.choice(["", "type", "x" * 300, "\ud800", *around])] = around.pop(name)
        elif how == 3:
            for _ in range(draw.choice([1, 9, 200])):
                around[name] = [around[name]] if draw.random() < 0.5 else {"type": around[name]}
        elif isinstance(around[name], str) and how == 4:
            around[name] = changed_bytes(draw, around[name].encode("utf-8", "replace"))
            around[name] = around[name].decode("utf-8", "replace")
        elif type(around[name]) is int and how == 4:
            around[name] += draw.choice([1, -1, 1 << 31, 1 << 62])
        else:
            around[name] = draw.choice(ODD)
    return tree


def text_of(draw, tree):
    """A tree as JSON, at times with bytes changed."""
    try:
        limit = sys.get_int_max_str_digits()
        sys.set_int_max_str_digits(0)
        data = json.dumps(tree).encode()
    except RecursionError:
        data = b"[" * 5000
    finally:
        sys.set_int_max_str_digits(limit)
    return changed_bytes(draw, data) if draw.random() < 0.15 else data


TEXTS = {
    "int4": "7",
    "numeric": "12.50",
    "bool": "t",
    "bytea": r"\x00ff",
    "date": "2024-02-29",
    "timestamptz": "2024-02-29 12:00:00.5+00",
    "timestamp": "20024-02-29 12:00:00 BC",
    "float8": "1e-5",
    "text": "é,\n",
    "_text": '{"a,b",NULL,c}',
    "_int4": "[0:1][1:2]={{1,2},{3,NULL}}",
    "_date": "{infinity,0001-01-01}",
}
ODD_TEXTS = [
    *("", "NaN", "Infinity", "-infinity", "1e999999999", "9" * 400, "{" * 5000, "{{}}", "{,}"),
    *("[1:2000000000]={1}", "[-2147483648:2147483647]={}", '{"', "99999999999999-01-01", r"\x0"),
    *("0000-00-00", "294277-01-01 00:00:00+00", "2024-02-30 25:61:61", "\\", "é", "٣"),
]


def plan():
    """A table of many types, as the catalogue and the stream say it."""
    types = {25: Type(25, "text", True, "b", 0, -1, 0, 0, ",", False)}
    columns = [Column("id", 1, 25, -1, True, True)]
    for oid, name in enumerate(TEXTS, 1000):
        element = next((n for n, t in types.items() if f"_{t.name}" == name), 0)
        types[oid] = Type(oid, name, True, "b", 0, -1, 0, element, ",", name.startswith("_"))
        typmod = (10 << 16 | 2) + 4 if name == "numeric" else -1
        columns.append(Column(name, oid, oid, typmod, False, False, 2 * (name == "_int4")))
    return plan_from(types, columns, what="public.t", text=())


def texts(draw):
    """A row of the table, some of its values odd."""
    row = [draw.choice(ODD_TEXTS) if draw.random() < 0.1 else text for text in TEXTS.values()]
    return (str(draw.randrange(9)), *(None if draw.random() < 0.1 else one for one in row))


def pgoutput():
    """Messages of PostgreSQL's stream, cut into calls anyhow."""
    made = plan()
    names = tuple(made.schema.names)

    def attempt(draw):
        stream = StreamDecoder(lambda found: (found.oid, made))
        row = texts(draw)
        old = (row[0], *(None for _ in row[1:]))
        messages = [begin(9), relation(1, names), insert(1, row), update(1, row, row, b"O")]
        messages += [update(1, (*row[:-1], ...), old), delete(1, old), commit(9), *WHOLE[3:0:-1]]
        for _ in range(draw.randint(0, 2)):
            at = draw.randrange(len(messages))
            how = draw.randrange(4)
            if how == 0:
                messages[at : at + 1] = [messages[at], draw.choice(messages)]
            elif how == 1:
                del messages[at]
            else:
                messages[at] = changed_bytes(draw, messages[at])
        at = draw.randint(0, len(messages))
        for some in (messages[:at], messages[at:]):
            for step in stream.decode(some).steps:
                rows = getattr(step, "rows", None)
                if rows is not None:
                    rows.validate(full=True)

    return attempt


def copies():
    """What a server copies out, in CSV."""
    made = plan()

    def quoted(text):
        return "" if text is None else '"' + text.replace('"', '""') + '"'

    def attempt(draw):
        data = "".join(",".join(map(quoted, texts(draw))) + "\n" for _ in range(3)).encode()
        data = changed_bytes(draw, data) if draw.random() < 0.7 else data
        _Rows(made, lambda batch: batch.validate(full=True)).write(data)

    return attempt


def decoding(decoder, values, keys, *, like=None):
    """Decodes records into a log made for the first of them, or of these columns."""
    store = memory_store()
    try:
        found = like or decoder.schema(lambda: {"key": keys[0], "value": values[0]})
        made = Log.create(store, 1, {"cleanup.policy": ""}, schema=found)
        decoder.decoded(records(list(values), list(keys)), made).rows.validate(full=True)
    finally:
        discard(store)


NARROW = pa.schema([("key", pa.int64()), ("value", pa.struct([("id", pa.int32())]))])


def debezium():
    """Changes of Debezium in JSON, with and without schemas."""
    schema = envelope(*FIELD)
    row = {"id": 1, "name": "A", "born": 20000, "seen": 1_700_000_000_123_456}
    row |= {"zoned": "2026-02-01T10:00:00Z", "due": 3_600_000_000, "paid": "AP8=", "tags": ["x"]}
    trees = [json.loads(change(op, row, row, schema=schema)) for op in "crud"]
    trees += [json.loads(change("c", row)), json.loads(key(7))]

    def attempt(draw):
        values = [text_of(draw, changed_tree(draw, draw.choice(trees))) for _ in range(2)]
        keys = [text_of(draw, changed_tree(draw, trees[-1])), key(7)]
        kind = draw.choice(["debezium-json", "debezium-json", "connect-json"])
        decoder = Decoder(
            Decoding(values=kind, envelope=kind[0] == "d" and draw.random() < 0.3), "t"
        )
        decoding(decoder, values, keys, like=draw.choice([None, NARROW]))

    return attempt


def plain_json():
    """JSON for columns of all kinds."""
    kinds = {
        "i": pa.int64(),
        "f": pa.float64(),
        "d": pa.decimal128(10, 2),
        "t": pa.timestamp("us", "UTC"),
        "b": pa.binary(),
        "l": pa.list_(pa.int32()),
        "m": pa.map_(pa.string(), pa.date32()),
        "s": pa.struct([("x", pa.bool_())]),
    }
    tree = {"i": 1, "f": 0.5, "d": "1.25", "t": "2024-01-01T00:00:00Z", "b": "AA=="}
    tree |= {"l": [1, None], "m": [{"key": "a", "value": "2024-01-01"}], "s": {"x": True}}
    like = pa.schema([("key", pa.int64()), ("value", pa.struct(list(kinds.items())))])
    plain = pa.schema([("key", pa.int64()), ("value", pa.struct(list(kinds.items())[:2]))])

    def attempt(draw):
        values = [text_of(draw, changed_tree(draw, tree)) for _ in range(3)]
        decoder = Decoder(Decoding(values="json", keys="json"), "t")
        decoding(decoder, values, [b"1", b"2", b"x"], like=draw.choice([like, plain]))

    return attempt


def avro_values():
    """Avro: messages of a sound schema, and any schema with any message."""
    good = avro(1, ROW, VALUE)
    place = {"type": "record", "name": "P", "fields": [{"name": "c", "type": "string"}]}
    change_of = {
        "type": "record",
        "name": "E",
        "fields": [
            {"name": "before", "type": ["null", place]},
            {"name": "after", "type": ["null", "P"]},
            {"name": "op", "type": "string"},
        ],
    }

    def attempt(draw):
        kind = draw.choice(["avro", "debezium-avro"])
        schema = ROW if kind == "avro" else change_of
        topic = Registered("AVRO", values=kind, keys="bytes")
        text = schema if draw.random() < 0.3 else text_of(draw, changed_tree(draw, schema))
        topic.register(text if isinstance(text, dict) else text.decode("utf-8", "replace"))
        values = [changed_bytes(draw, good), good, good[:5] + draw.randbytes(60)]
        decoding(topic.decoder, values, [b"1", b"2", b"3"], like=draw.choice([None, NARROW]))

    return attempt


def protobuf_values():
    """Protobuf: messages of a sound schema, and any schema with any message."""
    file = proto_file()
    made = proto_class(file, "shop.Order")(
        id=2**64 - 1, state=3, numbers=[1, 2], note={"value": "n"}
    )
    made.lines.add(sku="a")
    made.prices["eur"] = 1.5
    made.at.seconds = 1_700_000_000
    good, octets = protobuf(1, b"\2\2", made), file.SerializeToString()

    def attempt(draw):
        topic = Registered("PROTOBUF", keys="bytes")
        sound = octets if draw.random() < 0.5 else changed_bytes(draw, octets)
        topic.register(base64.b64encode(sound).decode())
        values = [good[:5] + changed_bytes(draw, good[5:]), good, good[:7] + draw.randbytes(40)]
        decoding(topic.decoder, values, [b"1", b"2", b"3"], like=draw.choice([None, NARROW]))

    return attempt


class Replies(BaseHTTPRequestHandler):
    """Answers as `reply` says."""

    reply = (200, b"")

    def do_GET(self):
        status, body = self.reply
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def registry():
    """What a registry replies."""
    handler = type("Handler", (Replies,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    options = {"max.retries": 0, "timeout": 5}
    tree = {"schema": json.dumps(ROW), "id": 1, "version": 1, "subject": "t-value"}
    tree |= {"schemaType": "AVRO", "references": [{"name": "r", "subject": "s", "version": 1}]}
    url = f"http://127.0.0.1:{server.server_port}"

    def attempt(draw):
        told = text_of(draw, changed_tree(draw, tree))
        handler.reply = draw.choice([200, 200, 200, 404, 422, 500]), told
        topic = Registered("AVRO", keys="bytes", registry=url, registry_options=options)
        like = draw.choice([None, NARROW])
        decoding(topic.decoder, [avro(1, ROW, VALUE)], [b"1"], like=like)

    return attempt


def kafka():
    """Records of Kafka: keys, values, times and headers; and dead letters that they say to be."""
    schema = {"key": pa.string(), "value": pa.struct([("n", pa.int64())])}
    named = [*OF_LETTERS, "h", ""]
    told = [
        b"3",
        b"-1",
        b"9" * 30,
        b"\xff",
        b"",
        None,
        b"kafka:c/t",
        b"0",
        b" 1",
        b"1_0",
        b"%d" % 2**63,
    ]

    def headers(draw):
        some = [(name, draw.choice(told)) for name in named if draw.random() < 0.7]
        return draw.choice([None, [], some, some + some])

    def attempt(draw):
        times_ms = [0, -1, -(2**63), 2**63 - 1, 1_700_000_000_000]
        values = [b"", None, b"\xff" * 9, b'{"n": 1}', b'{"n": 2}', b"{"]
        keys = [b"k", b"", None, b"\xff"]
        messages = [
            Message(i, draw.choice(keys), draw.choice(values), draw.choice(times_ms), headers(draw))
            for i in range(4)
        ]
        rows = columns_of(messages, needs_key=draw.random() < 0.5).rows
        if not rows.num_rows:
            return
        rows.validate(full=True)
        if "headers" not in rows.column_names:
            return
        letters, log = memory_store(), memory_store()
        try:
            of_letters = Log.create(
                letters, 1, {"cleanup.policy": "", "max.message.bytes": 1 << 20}
            )
            if draw.random() < 0.5:
                where = {"clog.dead-letter.source": "kafka:c/t", "clog.dead-letter.partition": 0}
                where["clog.dead-letter.offset"] = 1
                rows = letters_of(rows, dict.fromkeys(range(rows.num_rows), "x"), lambda _: where)
            of_letters.append(rows)
            target = Log.create(log, 1, schema=schema, features=["given-offsets"])
            with target.transaction(ID) as t:
                t.cover({0: 5})
                record = {"key": "k", "value": {"n": 0}, "headers": headers(draw) or []}
                t.append([record], partition=0, offsets=[4])
                t.positions("kafka:c/t", {0: (5, "1")})
            target.give_offsets()
            played(of_letters, target, Decoding(values="json", keys="string"))
        finally:
            discard(letters)
            discard(log)

    return attempt


def documents_of_logs():
    """A log with an order, a cut, an erasure and a proposal, of which one document was changed."""
    good, clock = memory_store(), ManualClock(1_700_000_000_000)
    log = Log.create(good, 2, {"segment.chunks": 1}, clock=clock, ids=SeededIds(1))
    log.upgrade(["proposals"])
    for i in range(3):
        log.append([{"key": f"k{i}", "value": "v", "headers": [("h", b"1")]}], producer=("w", i))
    log.alter({"compaction.strategy": "header", "compaction.strategy.header": "h"})
    name_cut(log.handle, "end")
    log.erase(["k1"])
    clock.advance(1_000)
    Cleaner(log).run_once(force=True)
    folder = documents.folder_of(log.id)
    found = [one.path for one in inside(good).list("") if one.path.endswith(".json")]
    now_ms = clock.now_ms()

    def uses(store):
        def opened():
            return Log.open(store, clock=ManualClock(now_ms + 5_000), ids=SeededIds(9))

        yield lambda: [batch.num_rows for batch in opened().read()]
        yield lambda: opened().table().to_arrow()
        yield lambda: opened().erasures()
        yield lambda: cuts_of(opened().handle)
        yield lambda: opened().describe()
        yield lambda: opened().append([{"key": "k", "value": "v"}], producer=("w", 99))
        yield lambda: Cleaner(opened()).run_once(force=True)
        yield lambda: verify_log(store)

    def attempt(draw):
        store = copy_of(good)
        path = f"{folder}/{draw.choice(found)}"
        data = store.get(path)
        kind = json.loads(data.partition(b"\n")[0])["clog"]
        body = changed_tree(draw, documents.decode(kind, data, where=path))
        with suppress(RecursionError, ValueError):
            store.put(path, documents.encode_json(kind, json.dumps(body).encode()))
        try:
            for use in uses(store):
                with suppress(ClogError, FileNotFoundError):
                    use()
            for read in (read_request, read_receipt):
                with suppress(ClogError, FileNotFoundError):
                    read(inside(store), path.removeprefix(f"{folder}/"))
        finally:
            discard(store)

    return attempt


def resummed(draw, path):
    """Changes a local file of a state table: any byte, or what leads to its rows, or these, with
    checksums of what it is then.
    """
    xxh, out_of = local_file.xxh3_64_intdigest, local_file._Appender
    with path.open("r+b", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        number, (at, length, _) = local_file._slot_of(os.pread(file.fileno(), 128, 0))
        footer = json.loads(os.pread(file.fileno(), length, at))
        out = out_of(file.fileno(), size)
        how = draw.randrange(4)
        if how == 0:
            data = changed_bytes(draw, os.pread(file.fileno(), size, 0))
            os.ftruncate(file.fileno(), 0)
            os.pwrite(file.fileno(), data, 0)
            return
        level = draw.choice(footer[-1])
        words = array("Q", os.pread(file.fileno(), level[1], level[0]))
        if how == 1:
            footer = changed_tree(draw, footer)
        elif how == 2:
            at = draw.randrange(len(words))
            odd = [0, 1, 7, size, 1 << 20, 1 << 31, 1 << 62, (1 << 64) - 1, words[at] ^ 1]
            words[at] = draw.choice([*odd, (words[at] + 4) % 2**64])
        else:  # The first row of a run, in its place.
            begin = words[3]
            row = bytearray(os.pread(file.fileno(), local_file._ROW.size + 9, begin))
            at = draw.randrange(8, local_file._ROW.size)
            row[at : at + 4] = draw.choice(LENGTHS)[:4]
            _, key_bytes, value_bytes, *_ = local_file._ROW.unpack_from(row)
            end = local_file._ROW.size + key_bytes + value_bytes
            body = os.pread(file.fileno(), min(end, 1 << 16), begin)
            body = bytes(row[8 : local_file._ROW.size]) + body[local_file._ROW.size :]
            os.pwrite(file.fileno(), xxh(body).to_bytes(8, "little") + body, begin)
        if how == 2:
            directory = words.tobytes()
            level[:] = [out.put(directory), len(directory), xxh(directory)]
        body = text_of(draw, footer)
        local_file._point(out, number + 1, (out.put(body), len(body), xxh(body)))


def state_file():
    """The local file of a state table that a stranger wrote."""
    store = memory_store()
    log = Log.create(store, 2, ids=SeededIds(1))
    rows = [{"key": b"%03d" % i, "value": b"v%d" % i} for i in range(300)]
    log.append(rows)
    folder = Path(tempfile.mkdtemp(prefix="strangers"))
    StateTable(store, folder / "good").close()
    log.append(rows[:20])
    with StateTable(store, folder / "good") as table:
        table.refresh()
    keys = [row["key"] for row in rows[::9]]

    def attempt(draw):
        mine = folder / "mine"
        shutil.copytree(folder / "good", mine)
        try:
            (path,) = mine.glob("*.state")
            resummed(draw, path)
            with StateTable(store, mine) as table:
                for use in (
                    lambda: [table.get(one) for one in (*keys, b"none")],
                    lambda: list(table.scan()),
                    lambda: list(table.scan(b"01")),
                    lambda: table.get_many(keys),
                    lambda: len(table),
                    table.refresh,
                ):
                    with suppress(ClogError):
                        use()
        finally:
            shutil.rmtree(mine)

    return attempt


PARSERS = {
    "pgoutput": pgoutput,
    "copy": copies,
    "debezium": debezium,
    "json": plain_json,
    "avro": avro_values,
    "protobuf": protobuf_values,
    "registry": registry,
    "kafka": kafka,
    "documents": documents_of_logs,
    "state": state_file,
}


class Late(BaseException):
    """A try took too long; nothing catches it."""


def peak_bytes():
    """The most memory that this process had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def tried(attempt, seed):
    """Tries a seed; raises what is no error of ours."""
    before = peak_bytes()
    with suppress(ClogError):
        attempt(random.Random(seed))
    grown = peak_bytes() - before
    assert grown < RSS_MAX_BYTES, f"seed {seed} took {grown >> 20} MiB"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parser", choices=PARSERS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60, help="of CPU time")
    parser.add_argument("--failures", type=int, default=5, help="end after so many")
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))

    def late(*_):
        raise Late(f"more than {CPU_MAX_S} CPU seconds")

    signal.signal(signal.SIGVTALRM, late)
    attempt, seed, failed = PARSERS[given.parser](), given.seed, 0
    while failed < given.failures:
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, CPU_MAX_S)
            tried(attempt, seed)
        except (Exception, Late):
            failed += 1
            print(f"seed {seed} of {given.parser}:", traceback.format_exc(limit=-6), flush=True)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        seed += 1
        if time.process_time() >= given.seconds:
            break
    tries, cpu_s = seed - given.seed, time.process_time()
    peak = peak_bytes() >> 20
    print(f"{given.parser}: {tries} tries, {failed} failed, {cpu_s:.0f} CPU s, peak {peak} MiB")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
