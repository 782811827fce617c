"""What strangers left in files, or ask of the page and of commands: makers for `strangers`.

Each builds what is valid once, and returns what tries one change of it. What has checksums gets
those of what it is then.
"""

import asyncio
import copy
import json
import os
import re
import shutil
import tempfile
from array import array
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import quote

import click
import pyarrow as pa
import xxhash
from changing import LENGTHS, ODD, changed_bytes, changed_tree, text_of
from click.testing import CliRunner

from clog.bridge.mysql.engine import Server
from clog.bridge.postgres.source import Source
from clog.bridge.topic import address_of
from clog.cleaner import Cleaner
from clog.cleaner.daemon.broker_config import broker_config
from clog.cli import lines, options
from clog.cli.app import app
from clog.cli.cost import _prices
from clog.connector import positions
from clog.state import StateTable, local_file
from clog.storage import ClogError, Log, ManualClock
from clog.storage.administration import delete_log
from clog.storage.config.log_config import LogConfig, parse_overrides
from clog.storage.cuts import cuts_of, name_cut
from clog.storage.diagnostics.repair import repair_log
from clog.storage.diagnostics.verify import verify_log
from clog.storage.env import SeededIds
from clog.storage.erasures import newest_receipts
from clog.storage.format import documents
from clog.storage.format.erasures import read_receipt, read_request
from clog.storage.objects.composing import written
from clog.storage.objects.reader import BINARY, I32, I64, LIST, STRUCT, Reader
from clog.storage.store.opening import parse, redact
from clog.storage.types.evolve import schema_from_words
from clog_testing.crash import copy_of, discard, inside, memory_store

TIME_MS = 1_700_000_000_000
DAY_MS = 86_400_000
SECRET = re.compile(r"[a-z0-9]+://([^/@]*:hunter2@|[^?:]*\?sig=hunter2)")
SEEDS = SeededIds(1)


def _changed_documents(good, now_ms, uses):
    """Returns what changes one document of a log, and uses it in each of these ways."""
    folder = documents.folder_of(Log.open(good).id)
    found = [one.path for one in inside(good).list("") if one.path.endswith(".json")]

    def attempt(draw):
        store = copy_of(good)
        path = f"{folder}/{draw.choice(found)}"
        data = store.get(path)
        kind = json.loads(data.partition(b"\n")[0])["clog"]
        body = changed_tree(draw, documents.decode(kind, data, where=path))
        with suppress(RecursionError, ValueError):
            store.put(path, documents.encode_json(kind, json.dumps(body).encode()))

        def opened():
            return Log.open(store, clock=ManualClock(now_ms + 5_000), ids=SeededIds(9))

        try:
            for use in uses:
                with suppress(ClogError, FileNotFoundError):
                    use(opened)
            for read in (read_request, read_receipt):
                with suppress(ClogError, FileNotFoundError):
                    read(inside(store), path.removeprefix(f"{folder}/"))
        finally:
            discard(store)

    return attempt


def documents_of_logs():
    """A log with an order, a cut, an erasure and masks, of which one document was changed."""
    good, clock = memory_store(), ManualClock(TIME_MS)
    log = Log.create(good, 2, {"segment.chunks": 1}, clock=clock, ids=SeededIds(1))
    for i in range(3):
        log.append([{"key": f"k{i}", "value": "v", "headers": [("h", b"1")]}], producer=("w", i))
    log.alter({"compaction.strategy": "header", "compaction.strategy.header": "h"})
    name_cut(log.handle, "end")
    log.erase(["k1"], notify=False)
    Cleaner(log).run_once(force=True)
    log.erase(["k2"], notify=False)
    Cleaner(log).run_once(force=True)
    uses = (
        lambda opened: [batch.num_rows for batch in opened().read()],
        lambda opened: opened().table().to_arrow(),
        lambda opened: opened().erasures(),
        lambda opened: cuts_of(opened().handle),
        lambda opened: opened().describe(),
        lambda opened: opened().append([{"key": "k", "value": "v"}], producer=("w", 99)),
        lambda opened: Cleaner(opened()).run_once(force=True),
        lambda opened: verify_log(opened().handle.standing.root),
    )
    return _changed_documents(good, clock.now_ms(), uses)


def documents_of_homes():
    """A typed log with transactions of its own and over two logs, decided and not, with readers and
    a proposal of another author, of which one document was changed.
    """
    good, other, clock = memory_store(), memory_store(), ManualClock(TIME_MS)
    schema = {"key": pa.int64(), "value": pa.struct([("n", pa.int32()), ("t", pa.string())])}
    home = Log.create(good, 2, schema=schema, clock=clock, ids=SeededIds(1))
    log = Log.create(other, 1, clock=clock, ids=SeededIds(2))
    for i in range(3):
        t = home.transaction(f"job-{i}", 5_000)
        t.append([{"key": i, "value": {"n": i, "t": "x"}}])
        t.append([{"key": "k", "value": "v"}], log=log)
        t.positions("kafka:c/t", {0: (i, "1")})
        if i < 2:
            t.commit()
        home.reader(f"r{i}").commit(home.stable_offsets())
    home.evolve(add={"value.m": pa.int64()}, widen={"value.n": pa.int64()})
    uses = (
        lambda opened: [batch.num_rows for batch in opened().read()],
        lambda opened: opened().transactions(),
        lambda opened: [opened().positions(f"job-{i}", marks=True) for i in range(3)],
        lambda opened: [one.lag_records for one in opened().readers()],
        lambda opened: opened().reader("r1").commit({0: 1}),
        lambda opened: opened().transaction("job-2").append([{"key": 7, "value": None}]),
        lambda opened: opened().abort_transaction("job-2"),
        lambda opened: opened().markers(0),
        lambda opened: list(opened().history()),
        lambda opened: opened().evolve(add={"value.k": pa.bool_()}),
        lambda opened: Cleaner(opened()).run_once(force=True),
        lambda opened: repaired(opened().handle.standing.root),
        lambda opened: delete_log(opened().handle.standing.root),
    )
    return _changed_documents(good, clock.now_ms(), uses)


def repaired(root):
    """Repairs a log into a store that is discarded."""
    copy = memory_store()
    try:
        repair_log(root, copy)
    finally:
        discard(copy)


def objects():
    """Data objects with indexes and a mask, of which bytes or a footer were changed."""
    good = memory_store()
    fields = [("n", pa.int32()), ("l", pa.list_(pa.struct([("t", pa.string())])))]
    schema = {"key": pa.string(), "value": pa.struct(fields)}
    log = Log.create(good, 1, schema=schema, clock=ManualClock(TIME_MS), ids=SeededIds(1))
    rows = [
        {"key": f"k{i % 60}", "value": {"n": i, "l": [{"t": "x" * i}]} if i % 9 else None}
        for i in range(200)
    ]
    log.append(rows)
    version, folder = log.version, inside(good)
    path = documents.commit_path(version)
    body = documents.decode("commit", folder.get(path), where=path)
    (described,) = body["edit"]["add"]["objects"]
    data, size = folder.get(described["path"]), described["footer"]

    def attempt(draw):
        content, footer = data, data[-size:]
        if draw.random() < 0.7:
            tree = Reader(footer).struct()
            for _ in range(draw.randint(1, 2)):
                change_footer(draw, tree)
            footer = written(tree)
            footer += len(footer).to_bytes(4, "little") + b"PAR1"
        elif draw.random() < 0.5:
            footer = changed_bytes(draw, footer)
        if draw.random() < 0.5:
            content = changed_bytes(draw, data[: -size - 16]) + data[-size - 16 :]
        made = content[: -size - 16] + xxhash.xxh3_128_digest(footer) + footer
        told = json.loads(json.dumps(body))
        (of,) = told["edit"]["add"]["objects"]
        digest = xxhash.xxh3_128_hexdigest(made)
        of.update(bytes=len(made), footer=len(footer), xxh3_128=digest)
        store = copy_of(good)
        inside(store).put(path, documents.encode("commit", told))
        inside(store).put(of["path"], made)

        def opened():
            return Log.open(store, clock=ManualClock(TIME_MS + 5_000), ids=SeededIds(9))

        try:
            for use in (
                lambda: [batch.validate(full=True) for batch in opened().read()],
                lambda: opened().table().of_keys(["k1", "none"]),
                lambda: opened().table().get("k1"),
                lambda: opened().table().to_arrow().validate(full=True),
                lambda: [*opened().read(columns=["value.n"])],
                lambda: opened().publish("delta"),
                lambda: Cleaner(opened()).run_once(force=True),
                lambda: verify_log(store),
            ):
                with suppress(ClogError, FileNotFoundError):
                    use()
        finally:
            discard(store)

    return attempt


def change_footer(draw, tree):
    """Changes one field of a Thrift struct or of those in it."""
    structs, found = [tree], []
    while structs:
        struct = structs.pop()
        for field, (kind, value) in struct.items():
            found.append((struct, field))
            inner = [value] if kind == STRUCT else value[1] if kind == LIST else ()
            structs += [one for one in inner if isinstance(one, dict)]
    struct, field = draw.choice(found)
    kind, value = struct[field]
    numbers = [0, 1, -1, 3, 2**31 - 1, 2**32, 2**62, -(2**63)]
    how = draw.randrange(4)
    if how == 0:
        del struct[field]
    elif how == 1 or kind not in (I32, I64, BINARY, LIST):
        other = draw.choice(found)[0].get(field, (I64, draw.choice(numbers)))
        struct[field] = copy.deepcopy(other)
    elif kind == LIST:
        of, items = value
        twice = items + copy.deepcopy(items)
        struct[field] = kind, (of, draw.choice([[], items[1:], twice, items[::-1]]))
    elif kind == BINARY:
        struct[field] = kind, changed_bytes(draw, value)
    else:
        struct[field] = kind, draw.choice([*numbers, value + 1, value - 1])


def views():
    """Published views, of which a file was changed, published, withdrawn and deleted."""
    good, clock = memory_store(), ManualClock(TIME_MS)
    log = Log.create(good, 1, clock=clock, ids=SeededIds(1))
    for i in range(12):
        log.append([{"key": f"k{i % 5}", "value": str(i)}])
        clock.advance(1_000)
        for name in ("delta", "iceberg"):
            log.publish(name)
    found = [
        one.path
        for one in good.list("")
        if one.path.startswith(("_delta_log/", "metadata/")) or "/views/" in one.path
    ]
    now_ms = clock.now_ms()

    def attempt(draw):
        store = copy_of(good)
        path = draw.choice(found)
        data = store.get(path)
        if path.endswith(".json") and draw.random() < 0.8:
            parts = data.splitlines()
            at = draw.randrange(len(parts))
            parts[at] = text_of(draw, changed_tree(draw, json.loads(parts[at])))
            store.put(path, b"\n".join(parts))
        else:
            store.put(path, changed_bytes(draw, data))

        def opened():
            return Log.open(store, clock=ManualClock(now_ms + 5_000), ids=SeededIds(9))

        try:
            log = opened()
            log.append([{"key": "new", "value": "v"}])
            for name in ("delta", "iceberg"):
                for use in (
                    lambda name=name: log.publish(name),
                    lambda: verify_log(store),
                    lambda: Cleaner(log).run_once(force=True),
                    lambda name=name: log.withdraw(name),
                ):
                    with suppress(ClogError, FileNotFoundError):
                        use()
            delete_log(store)
        finally:
            discard(store)

    return attempt


def asked(app, path, query, headers=((b"host", b"localhost"),)):
    """Sends a request to an application without a socket; returns the status and the body."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET"}
    scope |= {"scheme": "http", "path": path, "raw_path": path.encode("utf-8", "replace")}
    scope |= {"root_path": "", "query_string": query, "headers": list(headers)}
    asyncio.run(
        app(scope | {"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80)}, receive, send)
    )
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


def page():
    """A browser's requests for logs with odd records, masked and not."""
    from clog.cli.page import ShownLogs
    from clog.cli.serving import application

    deep = b'{"mail":' * 950 + b"1" + b"}" * 950
    texts = [b'{"mail": "a@b", "n": 1}', b"\xff", None, deep, b"[" * 99_999, b"9" * 5000, b""]
    texts += [rb'{"mail": "\ud800"}', b'{"mail": NaN}', b'{"n": [1, {"mail": 2}]}']
    log = Log.create("memory://strangers-page/log", 2, {"cleanup.policy": ""})
    log.append([{"key": v, "value": v, "headers": [("<h>", v), ("é", b"1")]} for v in texts])
    schema = {"key": pa.int64(), "value": pa.struct([("n", pa.float64()), ("m", pa.string())])}
    typed = Log.create("memory://strangers-page/typed", 1, schema=schema)
    typed.append([{"key": i, "value": {"n": float("nan"), "m": "x"}} for i in range(3)])
    urls = [log.url, typed.url, "memory://strangers-page/none"]
    masks = [(), ("value.mail", "value.n.x"), ("headers", "key", "value")]
    apps = [
        application(ShownLogs(urls, (), {}, clock=ManualClock(TIME_MS), masks=of)) for of in masks
    ]
    whats = ["", "/records", "/key", "/table", "/cost", "/users", "/records", "/table", "/x"]
    names = ["partition", "from", "limit", "after", "contains", "path", "at", "key", "key_b64"]
    names += ["page", "readers", "token"]
    given = ["", "0", "1", "-1", "9" * 30, str(2**63 - 1), "x", "é", "%ff", "%00", "latest"]
    given += ["earliest", "@0", "@x", "@" + "9" * 16, "@99999-01-01T00:00:00Z", "5:7", "0:-5", ":"]
    given += [f"0:{2**63 - 1}", "$.mail", "$.n[1].mail", "[0][0]", "a@b", "/w==", "YQ==", "%d"]
    odd = [quote(text, errors="replace") for text in ODD if isinstance(text, str)]

    def attempt(draw):
        path = "/api/logs" + draw.choice(["", "/0", "/1", "/2", "/" + "9" * 25, "/-1", "/x"])
        path = draw.choice([path + draw.choice(whats)] * 9 + ["/static/../page.py", "//", "/é"])
        some = draw.randint(0, 5)
        pairs = [
            f"{draw.choice(names)}={draw.choice(given if draw.random() < 0.9 else odd)}"
            for _ in range(some)
        ]
        query = "&".join(pairs).encode()
        query = changed_bytes(draw, query) if draw.random() < 0.1 else query
        status, body = asked(draw.choice(apps), path, query)
        assert status in (200, 400, 404), (status, path, query)
        if path.startswith("/api") and status == 200:
            json.loads(body)

    return attempt


def addresses():
    """Addresses of logs, databases and topics; none is shown with its password."""
    parts = [
        "postgres://",
        "mysql://",
        "kafka://",
        "s3://",
        "memory://",
        "file://",
        "sftp://",
        "::",
    ]
    parts += ["abfs://", "hdfs://", "https://", "u", ":", "hunter2", "@", "host", "[", "]"]
    parts += [
        "5432",
        "/",
        "?",
        "#",
        "%2F",
        "%",
        "db",
        "sslmode=require",
        "password=hunter2",
        "&",
        "=",
        " ",
    ]
    parts += ["\0", "é", "\ud800", "*", "..", "//", "t,x:9", "?sig=hunter2", "arn:aws:", "options="]
    whole = ["postgres://u:hunter2@host:5432/db?sslmode=require", "s3://k:hunter2@bucket/log"]
    whole += ["mysql://u:hunter2@host/db?ssl-mode=required", "kafka://u:hunter2@a,b:9/t", "./log"]
    whole += ["sftp://u:hunter2@host/log", "https://host/log?sig=hunter2", "simplecache::s3://b/l"]
    reads = [Source, partial(Server, ids=SEEDS), address_of, parse, redact]

    def attempt(draw):
        if draw.random() < 0.5:
            text = "".join(draw.choice(parts) for _ in range(draw.randint(1, 9)))
        else:
            text = list(draw.choice(whole))
            for _ in range(draw.randint(1, 3)):
                text[draw.randrange(len(text))] = draw.choice(parts)
            text = "".join(text)
        for read in reads:
            said = ""
            try:
                read(text)
            except ClogError as e:
                said = str(e)
            is_secret = SECRET.match(text) and text.count("hunter2") == 1
            assert not (is_secret and "hunter2" in said), (text, said)

    return attempt


def words():
    """Lines of `clog produce`, keys, offsets, times, configs, schemas and positions."""
    line = {"key": "a", "value_b64": "AA==", "timestamp": "2024-01-01", "partition": 0}
    line |= {"headers": [{"key": "h", "value": "1"}]}
    kinds = pa.schema([("key", pa.int64()), ("value", pa.struct([("d", pa.decimal128(5, 2))]))])
    typed = {"key": 1, "value": {"d": "1.5"}, "timestamp": 5}
    schema = {"key": "string", "value": {"struct": {"a": "int32", "l": {"list": "string"}}}}
    at = {"log": {"0": 1, "1": "2026-01-01T00:00:00Z"}}
    prices = {
        "name": "x",
        "as_of": "y",
        "put_1000": 1,
        "get_1000": 0,
        "list_1000": 0,
        "gb_month": 1,
    }
    configs = {"segment.ms": "5", "cleanup.policy": "compact,delete", "retention.ms": "-1"}
    broker = {"log.cleaner.threads": 2, "log.retention.hours": "5", "log.cleaner.io.max": "1e9"}
    folder = Path(tempfile.mkdtemp(prefix="strangers"))

    def priced(text):
        (folder / "prices").write_bytes(text)
        _prices(str(folder / "prices"))

    def read_words(tree):
        return schema_from_words(tree) if isinstance(tree, dict) else None

    of_text = [
        options.parse_time_ms,
        lambda text: options.parse_offsets(text.split(" ")),
        options.integer(),
        lambda text: lines.keys_given([text], is_base64=True, schema=None),
        lambda text: lines.keys_given([text], is_base64=False, schema=kinds),
    ]
    some = ["0:25", "0:end 1:3", "2024-01-01T00:00:00Z", "1700000000000", "AA==", "12", "1.5"]

    def attempt(draw):
        tree, read = draw.choice(
            [
                (line, lambda text: lines.parse_jsonl([text], first=1).to_arrow()),
                (typed, lambda text: typed_rows(text, kinds)),
                (prices, priced),
            ]
        )
        with suppress(ClogError, click.BadParameter):
            read(text_of(draw, changed_tree(draw, tree)))
        for tree, use in (
            (schema, read_words),
            (configs, lambda tree: LogConfig.from_overrides(parse_overrides(tree))),
            (broker, broker_config),
        ):
            changed = None
            with suppress(ValueError, RecursionError):  # What JSON cannot hold.
                changed = json.loads(json.dumps(changed_tree(draw, tree)))
            if isinstance(changed, dict):
                with suppress(ClogError):
                    use(changed)
        text = draw.choice([draw.choice(some), *(one for one in ODD if isinstance(one, str))])
        with suppress(ClogError, click.BadParameter):
            draw.choice(of_text)(
                changed_bytes(draw, text.encode("utf-8", "replace")).decode("utf-8", "replace")
            )
        told = text_of(draw, changed_tree(draw, at)).decode("utf-8", "replace")
        for read in (positions.parse_position, positions.parse_times):
            with suppress(ValueError, ClogError):  # Of which an option's error is made.
                read(told, "log")

    return attempt


def typed_rows(text, kinds):
    """Reads a line for a typed log."""
    return lines.parse_jsonl([text], first=1, schema=kinds).to_typed(kinds, first=1)


def receipts():
    """The receipt of an erasure, changed, beside its log."""
    clock, url = ManualClock(TIME_MS), "memory://strangers-receipts/log"
    log = Log.create(url, 1, clock=clock, ids=SeededIds(1))
    log.append([{"key": f"key-{i}", "value": "v"} for i in range(9)])
    log.erase(["key-1"], notify=False)
    for _ in range(3):
        Cleaner(log).run_once()
        clock.advance(DAY_MS + 1)
    ((_, data),) = newest_receipts(log.handle)
    good = json.loads(data.partition(b"\n")[2] if data.startswith(b'{"clog":') else data)
    folder, run = Path(tempfile.mkdtemp(prefix="strangers")), CliRunner().invoke
    keys, receipt = folder / "keys", folder / "receipt"
    keys.write_bytes(b"key-1\n")

    def attempt(draw):
        receipt.write_bytes(text_of(draw, changed_tree(draw, good)))
        done = run(app, ["verify", url, "--receipt", str(receipt), "--keys", str(keys)])
        if not isinstance(done.exception, SystemExit | None):
            raise done.exception

    return attempt


def resummed(draw, path):
    """Changes a local file of a state table: any byte, or what leads to its rows, or the rows, with
    checksums of the changed contents.
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
    """A hostile local file of a state table."""
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
