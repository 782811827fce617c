"""Parsers of what strangers write, fed with valid input that was changed where it hurts.

`python tests/properties/strangers.py --seconds 600 pgoutput` tries one for so many CPU seconds,
from a seed on. A seed that raises what is no error of ours, takes seconds, or more memory than its
input explains, is named; `--seed N --seconds 0` tries it again.

Each parser has a maker: it builds what is valid once, and returns what tries one change of it.
What sources send is here, what strangers left in files or ask for in `strangers_files`.
"""

import argparse
import base64
import copy
import json
import random
import resource
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]

import pyarrow as pa
from changing import ODD, changed_bytes, changed_tree, text_of
from strangers_files import (
    addresses,
    documents_of_homes,
    documents_of_logs,
    objects,
    page,
    receipts,
    state_file,
    views,
    words,
)
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

from clog.bridge.capturing.tables import Column
from clog.bridge.decoding import OF_LETTERS, Decoder, Decoding, letters_of
from clog.bridge.mysql.capturing import reader_of
from clog.bridge.postgres.pgoutput import Decoder as StreamDecoder
from clog.bridge.postgres.source import _Rows
from clog.bridge.postgres.types import Type, plan_from
from clog.bridge.replaying import played
from clog.bridge.target import ID
from clog.bridge.topic import columns_of
from clog.storage import ClogError, Log
from clog_testing.crash import discard, memory_store

RSS_MAX_BYTES = 384 << 20
"""One try may not take more: inputs have some kB."""
CPU_MAX_S = 20
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
    """A table of many types, as the catalogue and the stream describe it."""
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
    """Messages of PostgreSQL's stream, divided into calls at random."""
    made = plan()
    names = tuple(made.schema.names)

    def attempt(draw):
        stream = StreamDecoder(lambda found, _: (found.oid, made))
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
    """Decodes records into a log created for the first of them, or of these columns."""
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
    """Responds as `reply` says."""

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
    """Records of Kafka: keys, values, times and headers; and the dead letters that they claim to
    be.
    """
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


def mysql():
    """Tables and rows of MySQL, as Debezium's engine reports them."""
    logical = "io.debezium.time."
    decimal = {"scale": "2", "connect.decimal.precision": "9"}
    fields = [
        {"type": "int32", "field": "id"},
        {"type": "int64", "field": "t", "name": f"{logical}MicroTimestamp", "optional": True},
        {"type": "int32", "field": "d", "name": f"{logical}Date", "optional": True},
        {"type": "string", "field": "z", "name": f"{logical}ZonedTimestamp", "optional": True},
        {"type": "bytes", "field": "b", "optional": True},
        {
            "type": "bytes",
            "field": "n",
            "optional": True,
            "name": "org.apache.kafka.connect.data.Decimal",
            "parameters": decimal,
        },
    ]
    row = {"id": 1, "t": 5, "d": 20000, "z": "2024-01-01T00:00:00Z", "b": "AA==", "n": "AP8="}

    def attempt(draw):
        told = copy.deepcopy(fields)
        if draw.random() < 0.7:
            one = draw.choice(told)
            one[draw.choice([*one])] = draw.choice([*ODD, draw.choice(fields)])
        if not all(type(one["field"]) is str and one["field"].isprintable() for one in told):
            return  # A column has a name.
        rows = [{**row, draw.choice([*row]): draw.choice([*ODD, *row.values()])} for _ in range(3)]
        names = [one["field"] for one in told]
        reader = reader_of("shop.t", {"fields": told[:1]}, {"fields": told}, draw.choices(names))
        reader.batch("shop.t", rows).validate(full=True)

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
    "homes": documents_of_homes,
    "objects": objects,
    "views": views,
    "receipts": receipts,
    "state": state_file,
    "page": page,
    "addresses": addresses,
    "words": words,
    "mysql": mysql,
}


class Late(BaseException):
    """A try took too long; nothing catches this."""


def peak_bytes():
    """The most memory that this process had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def tried(attempt, seed):
    """Tries a seed; raises what is not a clog error."""
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
