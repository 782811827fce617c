"""The script that verifies receipts (S60): what it accepts; it fails for each planted trace."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from clog.cleaner import Cleaner
from clog.storage import Log, LogReplacedError, ManualClock
from clog.storage.administration import delete_log
from clog.storage.commit.appends import Writer
from clog.storage.cuts import drop_cut, name_cut
from clog.storage.diagnostics import verify_erasure
from clog.storage.diagnostics.verify_erasure import (
    UnexplainedError,
    Verifier,
    files_under,
    thrift,
    upper_hash,
)
from clog.storage.env import SeededIds
from clog.storage.format import documents
from clog.storage.keys import key_index
from clog.storage.objects.reader import TAIL_BYTES
from clog.storage.publications import delta
from clog.storage.store import open_store

pytest.importorskip("pyroaring")
pytest.importorskip("fastavro")
DAY_MS = 86_400_000
KEY, NAME = b"alice-of-wonderland", b"walrus-and-carpenter"
"""The second names a producer and a reader, too."""
NAMES = {NAME, b"queue:of-carpenters", b"a-query-of-alice", str(DAY_MS).encode()}
"""Keys that are names, too: of a source and of a query; one is the value of a config."""
SCRIPT = Path(sys.modules[Verifier.__module__].__file__)


@pytest.fixture(scope="module")
def erased(tmp_path_factory):
    """A log on disk, published twice, with a completed erasure; its receipt and secret."""
    root = tmp_path_factory.mktemp("erased") / "log"
    clock = ManualClock(now_ms=1_700_000_000_000)
    config = {"compression.type": "none", "delete.retention.ms": DAY_MS}
    log = Log.create(str(root), 1, config, clock=clock, ids=SeededIds(5))
    log.append([{"key": "bob", "value": "1"}])
    rows = [{"key": f"user-{i:05}", "value": bytes(500)} for i in range(3_000)]
    rows.append({"key": KEY, "value": "x", "headers": [("h", b"y")]})
    log.append(rows, producer=("p", 1))
    log.append([{"key": NAME, "value": "x"}], producer=(NAME.decode(), 1))
    for i in range(0, 60, 3):
        log.append([{"key": f"user-{i + n:05}", "value": str(i)} for n in range(3)])
    for name in ("billing", NAME.decode()):
        log.reader(name).commit({0: 3})
    for name in ("delta", "iceberg"):
        log.publish(name)
    job = log.transaction("job")
    job.positions("queue:of-carpenters", {0: (3, "walrus")})
    job.commit()
    log.append_objects([], Writer("w", "stream", 1, "a-query-of-alice"))
    name_cut(log.handle, "billing", DAY_MS, publish=["delta", "iceberg"])
    drop_cut(log.handle, "billing")
    request = log.erase([KEY, *NAMES, b"value"])
    receipt = carried_out(log, clock)
    log.append([{"key": "carol", "value": "2"}])
    return root, receipt, request.secret


@pytest.fixture
def copied(erased, tmp_path):
    """A copy of the log, to plant something in."""
    root = tmp_path / "log"
    shutil.copytree(erased[0], root)
    return root


def carried_out(log, clock, *published):
    """The receipt of the one erasure that was asked for."""
    cleaner = Cleaner(log)
    for _ in range(7):
        cleaner.run_once()
        for name in published:
            log.publish(name)
        clock.advance(DAY_MS + 1)
    (done,) = log.erasures()
    assert done.state == "done", done.reason
    return done.receipt


def verified(root, erased, **given):
    return Verifier(files_under(str(root)), erased[1], **{"secret": erased[2], **given}).run()


def test_an_erased_log_is_sound(erased):
    """S60: every file is read, including views, indexes and bitmaps, and nothing is found, with the
    secret or with the keys.
    """
    for given in ({}, {"secret": "", "keys": [KEY, *NAMES]}, {"keys": [KEY, *NAMES]}):
        found = verified(erased[0], erased, **given)
        assert found.problems == []
        assert found.names == NAMES
        assert found.records >= 3_002
        assert found.seen == sum(path.is_file() for path in erased[0].rglob("*"))
    assert any(".puffin" in path.name for path in erased[0].rglob("*"))


def test_what_a_killed_publisher_leaves_is_sound(erased, copied):
    """S60: the empty file by which it tested the folder of a view can hold nothing."""
    for view in ("_delta_log", "metadata"):
        (copied / f"{view}/.probe.{'a' * 32}.tmp").touch()
    assert verified(copied, erased).problems == []


def test_it_is_one_script_that_needs_no_clog(erased, tmp_path):
    """S60: pyarrow, fastavro and Python's own; it runs where clog cannot be imported."""
    tree = ast.parse(SCRIPT.read_text())
    named = {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    named |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    others = {name.partition(".")[0] for name in named} - set(sys.stdlib_module_names)
    assert others == {"pyarrow", "fastavro"}
    receipt = tmp_path / "receipt.json"
    receipt.write_text(json.dumps(erased[1]))
    script = shutil.copy(SCRIPT, tmp_path / "verify.py")
    line = [sys.executable, "-I", script, receipt, erased[0], "--secret", erased[2]]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "are sound" in done.stdout


NAMES_WRITTEN = """
import importlib, pkgutil
import clog.storage
from clog.storage.format import documents

names = set()

def noting(codec):
    def made(of, **given):
        fields = (f for f in documents._fields_of(of) if not f.is_beside)
        names.update(f.name for f in fields if f.attribute not in given.get("without", ()))
        return codec(of, **given)
    return made

documents.record, documents.columns = noting(documents.record), noting(documents.columns)
for found in pkgutil.walk_packages(clog.storage.__path__, "clog.storage."):
    importlib.import_module(found.name)
print(*names)
"""


def test_its_fields_are_those_of_the_format():
    """S60: it knows every name that the codecs write, and none that FORMAT.md does not have. A new
    field is a line in the format, and a word here.
    """
    run = [sys.executable, "-c", NAMES_WRITTEN]
    written = subprocess.run(run, capture_output=True, text=True, check=True).stdout.split()
    assert len(written) > 100
    assert set(written) - verify_erasure.FIELDS == set()
    text = (Path(__file__).parents[4] / "storage/FORMAT.md").read_text()
    assert verify_erasure.FIELDS - set(re.findall(r"[a-z_0-9]+", text)) == set()


def test_its_hash_is_that_of_key_indexes():
    """FORMAT.md §5.5: for all lengths that it computes."""
    for size in range(241):
        data = bytes(i * 37 % 256 for i in range(size))
        for seed in (0, 2**64 - 59):
            assert upper_hash(data, seed) == xxhash.xxh3_128_intdigest(data, seed) >> 64


def folder(root):
    (found,) = (path for path in (root / "_clog").iterdir() if path.is_dir())
    return found


def objects(root):
    """That of one record, and an earlier one with a key index."""
    refs = {c.object for _, c in Log.open(str(root)).handle.manifest().chunks()}
    small = min(refs, key=lambda ref: ref.rows)
    large = max(refs, key=lambda ref: ref.index_bytes)
    assert small.rows == 1
    assert large.index_bytes
    return {"small": folder(root) / small.path, "large": folder(root) / large.path}


def rewritten(path, change):
    """Rewrites a document, changed, with its checksums."""
    kind = json.loads(path.read_bytes().partition(b"\n")[0])["clog"]
    body = documents.decode(kind, path.read_bytes(), where=str(path))
    change(body)
    path.write_bytes(documents.encode(kind, body))


def newest(root, name):
    return max(folder(root).glob(f"{name}/*.json"))


def parquet(table, **options):
    """A file as the writer of objects makes it, but for these options; without its checksum."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **{"use_dictionary": False, "store_schema": False, **options})
    return sink.getvalue().to_pybytes()


def with_other_bytes_in_its_footer(data, old, new):
    """The file with its checksum, after bytes of its footer were replaced."""
    size = footer_size(data)
    return with_sum(data[:-size] + data[-size:].replace(old, new))


def parquet_of(keys):
    table = pa.table(
        {"key": keys, "value": [b"v"] * len(keys), "timestamp": [0] * len(keys)},
        schema=pa.schema(
            [("key", pa.binary()), ("value", pa.binary()), ("timestamp", pa.timestamp("us", "UTC"))]
        ),
    )
    return with_sum(parquet(table, write_statistics=False))


def footer_size(data):
    return TAIL_BYTES + int.from_bytes(data[-TAIL_BYTES:-4], "little")


def with_sum(data):
    size = footer_size(data)
    footer = data[-size:]
    return data[:-size] + xxhash.xxh3_128_digest(footer) + footer


def in_an_orphan(root):
    (folder(root) / f"data/{0:020d}-{'a' * 32}.parquet").write_bytes(parquet_of([b"bob", KEY]))


def in_an_object(root):
    objects(root)["large"].write_bytes(parquet_of([KEY, b"bob"]))


def behind_pages(root):
    path = objects(root)["small"]
    data = path.read_bytes()
    size = footer_size(data) + 16
    path.write_bytes(data[:-size] + b"alice" + data[-size:])


def behind_a_footer(root):
    path = objects(root)["small"]
    path.write_bytes(path.read_bytes() + KEY)


def in_an_index(root):
    """A hash without a row, in an index whose checksum is right."""
    path = objects(root)["large"]
    data, log = path.read_bytes(), Log.open(str(root))
    of = {c.object.path: c.object for _, c in log.handle.manifest().chunks()}
    ref = of[f"data/{path.name}"]
    start, end = ref.tail[0], ref.tail[0] + ref.index_bytes
    keys = pq.read_table(path, columns=["key"]).column(0).to_pylist()
    blocks, row = [], 0
    for rows, _ in key_index.blocks_of(data[start:end]):
        some = pa.array([*keys[row : row + rows], KEY], pa.binary())
        seed = log.handle.tip.head.log.key_seed
        blocks.append((rows, key_index.index_hashes(some, seed=seed)))
        row += rows
    path.write_bytes(data[:start] + key_index.encode(blocks) + data[end:])


def in_a_footer(root):
    """Statistics of a value that no row has."""
    path = objects(root)["small"]
    table = pq.read_table(path)
    least = min(table.column("key").to_pylist())
    made = with_other_bytes_in_its_footer(parquet(table), least, bytes(len(least)))
    path.write_bytes(made)


def in_metadata(root):
    path = objects(root)["small"]
    table = pq.read_table(path).replace_schema_metadata({"note": KEY})
    path.write_bytes(with_sum(parquet(table, store_schema=True)))


def in_a_dictionary(root):
    path = objects(root)["small"]
    path.write_bytes(with_sum(parquet(pq.read_table(path), use_dictionary=True)))


def in_another_column(root):
    path = objects(root)["small"]
    table = pq.read_table(path)
    path.write_bytes(with_sum(parquet(table.append_column("note", pa.array([b"x"] * len(table))))))


def in_a_commit(root):
    rewritten(
        newest(root, "commits"), lambda body: body["head"]["config"].update(note=KEY.decode())
    )


def in_the_name_of_a_file(root):
    path = newest(root, "readers")
    path.rename(path.with_name(f"{KEY.decode()}.json"))


def in_the_name_of_a_source(root):
    """Of a running transaction; a mark and a query are similar texts."""
    path = next(iter(folder(root).glob("snapshots/*.json")))
    rewritten(path, lambda body: body.update(foreign={KEY.decode(): {}}))


def in_an_unknown_field(root):
    rewritten(newest(root, "snapshots"), lambda body: body["manifest"].update(memo="anything"))


def behind_a_document(root):
    path = newest(root, "commits")
    path.write_bytes(path.read_bytes() + b" ")


def behind_a_stream(root):
    """Bytes after the zlib stream of a document, within its stated length."""
    path = newest(root, "snapshots")
    kind = json.loads(path.read_bytes().partition(b"\n")[0])["clog"]
    body = zlib.compress(json.dumps({"version": 1}, separators=(",", ":")).encode()) + b"alice"
    head = {"clog": kind, "format": 1, "bytes": len(body), "xxh3_128": "0" * 32}
    head["encoding"] = "json+zlib"
    path.write_bytes(json.dumps(head, separators=(",", ":")).encode() + b"\n" + body)


def in_a_request(root):
    path = folder(root) / f"erasures/{'b' * 32}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(documents.encode("erasure", {"keys": [KEY.hex()]}))


def in_a_reader(root):
    rewritten(newest(root, "readers"), lambda body: body.update(name=KEY.decode()))


def in_a_bitmap(root):
    path = folder(root) / f"data/{0:020d}-{'c' * 32}.dead"
    path.write_bytes(zlib.compress(b"\x00" * 40) + KEY)


def in_the_hint(root):
    (folder(root) / "latest").write_text('{"version":4,"note":"alice"}')


def in_a_view(root):
    path = max((root / "_delta_log").glob("*.json"))
    lines = path.read_text().splitlines()
    named = json.loads(lines[0])
    named["tags"] = KEY.decode()
    lines[0] = json.dumps(named, separators=(",", ":"))
    path.write_text("\n".join(lines) + "\n")


def in_a_vector(root):
    path = next(iter(folder(root).glob("views/iceberg/*/*.puffin")))
    data = path.read_bytes()
    path.write_bytes(data[:-40] + b"alice" + data[-40:])


def in_a_manifest(root):
    path = next(iter(folder(root).glob("views/iceberg/*/*-list.avro")))
    path.write_bytes(path.read_bytes() + KEY)


def in_an_unknown_file(root):
    (folder(root) / "data" / "notes.txt").write_text("nothing of interest")


def in_a_temporary_file(root):
    (folder(root) / f"data/.x.parquet.{'d' * 32}.tmp").write_text("x")


def in_a_folder_of_another_log(root):
    path = root / f"_clog/{'e' * 32}/data/{0:020d}-{'a' * 32}.parquet"
    path.parent.mkdir(parents=True)
    path.write_bytes(parquet_of([b"bob"]))


def in_another_receipt(root):
    rewritten(newest(root, "receipts"), lambda body: body.update(keys=[]))


def in_an_inline_bitmap(root):
    packed = zlib.compress(KEY).hex()
    rewritten(newest(root, "snapshots"), lambda body: body["manifest"].update(bits=packed))


def as_a_bitmap(root):
    path = folder(root) / f"data/{0:020d}-{'c' * 32}.mask"
    path.write_bytes(zlib.compress(KEY))


def as_a_number(root):
    (root / f".probe-{'a' * 32}").write_bytes(b"4915112345678")


def in_a_probe_of_a_view(root):
    (root / f"_delta_log/.probe.{'a' * 32}.tmp").write_bytes(KEY)


def in_an_unknown_field_of_a_view(root):
    behind_a_version(root, {"add": {"path": "x", "stats": '{"maxValues":{"key":"mentions"}}'}})


def in_an_unknown_field_of_metadata(root):
    path = max((root / "metadata").glob("*.metadata.json"))
    told = json.loads(path.read_bytes())
    told["properties"]["comment"] = "anything"
    path.write_text(json.dumps(told, separators=(",", ":")))


def in_statistics_of_delta(root):
    stats = json.dumps({"numRecords": KEY.decode()})
    behind_a_version(root, {"add": {"path": "x", "stats": stats}})


def behind_a_version(root, action):
    """An additional line in a version of Delta."""
    path = max((root / "_delta_log").glob("*.json"))
    line = json.dumps(action, separators=(",", ":"))
    path.write_text(f"{path.read_text()}{line}\n")


def in_a_name_twice_in_a_text(root):
    """A reader sees only the last one."""
    stats = '{"numRecords":"alice-of-wonderland","numRecords":1}'
    behind_a_version(root, {"add": {"path": "x", "stats": stats}})


def checkpoint_of(root):
    """That of the first version, which has none yet, and its rows."""
    version = (root / delta.version_path(0)).read_bytes()
    table = delta.replayed(delta.DeltaTable(), [(0, [*delta.actions_of(version, where="")])])
    path = root / delta.checkpoint_path(0)
    path.write_bytes(delta.encode_checkpoint(table, {"appId": "x", "version": 1}))
    return path, pq.read_table(path)


def in_a_dictionary_of_a_checkpoint(root):
    """An entry that no row uses."""
    path, rows = checkpoint_of(root)
    txn = rows["txn"].combine_chunks()
    ids = txn.field("appId")
    places = pa.array([None if one is None else 0 for one in ids.to_pylist()], pa.int8())
    entries = pa.DictionaryArray.from_arrays(places, pa.array(["x", KEY.decode()]))
    fields = [entries, txn.field("version"), txn.field("lastUpdated")]
    names = ["appId", "version", "lastUpdated"]
    made = pa.StructArray.from_arrays(fields, names, mask=txn.is_null())
    pq.write_table(rows.set_column(0, "txn", made), path, store_schema=False)
    assert pq.read_table(path) == rows


def in_the_schema_of_a_checkpoint(root):
    path, rows = checkpoint_of(root)
    pq.write_table(rows.replace_schema_metadata({"note": b"see " + KEY}), path)


def in_a_time_zone_of_a_checkpoint(root):
    path, rows = checkpoint_of(root)
    times = pa.nulls(len(rows), pa.timestamp("us", "of " + KEY.decode()))
    pq.write_table(rows.append_column("timestamp", times), path)


def twice_in_the_header_of_a_manifest(root):
    """A reader sees only the last one."""
    path = next(iter(folder(root).glob("views/iceberg/*/*-list.avro")))
    data = path.read_bytes()
    count, at = thrift(data, 4, 6)
    name = b"\x16snapshot-id"
    assert data[at : at + 12] == name
    first = name + bytes([2 * len(KEY)]) + KEY
    path.write_bytes(data[:4] + bytes([2 * (count + 1)]) + first + data[at:])


def as_an_empty_folder(root):
    (folder(root) / "data" / KEY.decode()).mkdir()


def an_orphan_of(root, table, **options):
    """A data object that nobody refers to, and its path."""
    path = folder(root) / f"data/{0:020d}-{'a' * 32}.parquet"
    options = {"compression": "none", "write_statistics": False, **options}
    path.write_bytes(with_sum(parquet(table, **options)))
    return path


ROWS = pa.table(
    {
        "key": pa.array([b"bob"] * 3, pa.binary()),
        "value": pa.array([b"1", b"2", b"3alice"], pa.binary()),
        "timestamp": pa.array([0, 1, 9], pa.timestamp("us", "UTC")),
    }
)


def behind_the_values_of_a_page(root):
    """The last value is stated to be shorter than it is."""
    path = an_orphan_of(root, ROWS)
    path.write_bytes(path.read_bytes().replace(b"\x06\0\0\x003alice", b"\x01\0\0\x003alice"))
    assert pq.read_table(path)["value"].to_pylist() == [b"1", b"2", b"3"]


def in_the_padding_of_a_page(root):
    """Numbers are packed 32 at a time, however few there are."""
    path = an_orphan_of(root, ROWS, column_encoding={"timestamp": "DELTA_BINARY_PACKED"})
    column = pq.read_metadata(path).row_group(0).column(2)
    end = column.data_page_offset + column.total_compressed_size
    data = path.read_bytes()
    path.write_bytes(data[: end - 5] + b"alice" + data[end:])
    assert pq.read_table(path) == ROWS


def in_statistics_of_a_page(root):
    """Its header differs from its rows."""
    table = ROWS.set_column(1, "value", pa.array([b"1", b"2", b"3"], pa.binary()))
    path = an_orphan_of(root, table, write_statistics=["timestamp"])
    data = path.read_bytes()
    at = data.index((9).to_bytes(8, "little"))
    path.write_bytes(data[:at] + b"alice\0\0\0" + data[at + 8 :])


LISTS = pa.table(
    {
        "key": pa.array([b"bob"] * 900, pa.binary()),
        "value": pa.array([b"1"] * 900, pa.binary()),
        "headers": pa.array(
            [[("h", b"12345678")] * (i % 4) or None for i in range(900)],
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        ),
        "timestamp": pa.array([0] * 900, pa.timestamp("us", "UTC")),
    }
)
"""Their headers are in several pages."""
SMALL_PAGES = {"data_page_size": 4096, "write_batch_size": 64}


def in_a_list_of_several_pages(root):
    """The length of the last value of its second page is too short."""
    path = an_orphan_of(root, LISTS, **SMALL_PAGES)
    column = pq.read_metadata(path).row_group(0).column(3)
    assert column.path_in_schema == "headers.list.element.value"
    data = path.read_bytes()
    first, at = thrift(data, column.data_page_offset)
    second, at = thrift(data, at + first[3])
    end = at + second[3]
    assert end < column.data_page_offset + column.total_compressed_size
    assert data[end - 12 : end] == b"\x08\0\0\x0012345678"
    path.write_bytes(data[: end - 12] + b"\x03\0\0\x00123alice" + data[end:])


def in_statistics_of_a_list(root):
    statistics = {"write_statistics": ["headers.list.element.value"], "compression": "none"}
    path = an_orphan_of(root, LISTS)
    data = parquet(LISTS, **statistics)
    path.write_bytes(with_other_bytes_in_its_footer(data, b"12345678", b"98-alice"))


def in_the_sum_of_a_page(root):
    path = an_orphan_of(root, ROWS, write_page_checksum=True)
    data = path.read_bytes()
    page, _ = thrift(data, pq.read_metadata(path).row_group(0).column(1).data_page_offset)
    sum_ = varint_of(page[4])
    assert data.count(sum_) == 1
    path.write_bytes(data.replace(sum_, varint_of(page[4] ^ 1)))


def varint_of(number):
    """As Thrift writes a number of 32 bits."""
    left, made = number << 1 ^ number >> 31, []
    while left > 127:
        made.append(left & 127 | 128)
        left >>= 7
    return bytes([*made, left])


def as_who_made_it(root):
    path = an_orphan_of(root, ROWS)
    data = parquet(ROWS, compression="none", write_statistics=False)
    made_by = b"parquet-cpp-arrow", b"alice-of-wonderl."
    path.write_bytes(with_other_bytes_in_its_footer(data, *made_by))


def in_a_page_of_no_row(root):
    """A second page, while the footer says that there is one row."""
    path = objects(root)["small"]
    table = pq.read_table(path)
    more = table.set_column(0, "key", pa.array([KEY], pa.binary()))
    options = {"write_statistics": False, "data_page_size": 1, "write_batch_size": 1}
    data = parquet(pa.concat_tables([table, more]), **options)
    path.write_bytes(with_other_bytes_in_its_footer(data, b"\x16\x04", b"\x16\x02"))
    assert pq.read_table(path).num_rows == 1


def behind_the_rows_of_a_block(root):
    """In the deflated bytes of an Avro block, after its one record."""
    path = next(iter(folder(root).glob("views/iceberg/*/*-list.avro")))
    data = path.read_bytes()
    sync = data[-16:]
    begin = data.index(sync) + 16
    assert data[begin] == 2  # One record.
    _, at = thrift(data, begin + 1, 6)
    packer = zlib.compressobj(wbits=-15)
    packed = packer.compress(zlib.decompressobj(-15).decompress(data[at:]) + KEY) + packer.flush()
    size = 2 * len(packed)
    path.write_bytes(data[: begin + 1] + bytes([size & 127 | 128, size >> 7]) + packed + sync)


def in_a_page_of_negative_size(root):
    """A sum of them does not advance."""
    path = objects(root)["small"]
    data = path.read_bytes()
    path.write_bytes(data[:4] + bytes([0x15, 0, 0x15, 0, 0x15, 13, 0]) + data[11:])


def as_a_link(root):
    (folder(root) / f"data/{0:020d}-{'f' * 32}.parquet").symlink_to("/nonexistent")


def as_a_linked_folder(root):
    (root / "again").symlink_to(root)


def as_a_pipe(root):
    os.mkfifo(folder(root) / f"data/{0:020d}-{'f' * 32}.dead")


def as_a_bomb(root):
    """More than `MOST` bytes, in a few."""
    packer = zlib.compressobj(9)
    parts = [packer.compress(bytes(1 << 24)) for _ in range(5)]
    path = folder(root) / f"data/{0:020d}-{'f' * 32}.dead"
    path.write_bytes(b"".join(parts) + packer.flush())


PLANTED = {
    in_an_orphan: "that no version names",
    in_an_object: "has an erased key",
    behind_pages: "index",
    behind_a_footer: "",
    in_an_index: "a key index has a hash without a row",
    in_a_footer: "statistics of a value that no row has",
    in_metadata: "a footer with more",
    in_a_dictionary: "a dictionary",
    in_another_column: "a column that",
    in_a_commit: "an erased key",
    in_the_name_of_a_file: "a name that is an erased key and came later",
    in_the_name_of_a_source: "a name that is an erased key and came later",
    in_an_unknown_field: "an unknown field 'memo'",
    behind_a_document: "no such document",
    behind_a_stream: "bytes behind a stream",
    in_a_request: "an erased key",
    in_a_reader: "an erased key",
    in_a_bitmap: "bytes behind a stream",
    in_the_hint: "another content",
    in_a_view: "an erased key",
    in_an_unknown_field_of_a_view: "an unknown field 'maxValues'",
    in_an_unknown_field_of_metadata: "an unknown field 'comment'",
    in_a_name_twice_in_a_text: "JSON that is written otherwise",
    in_a_dictionary_of_a_checkpoint: "a checkpoint with more than its rows need",
    in_the_schema_of_a_checkpoint: "a checkpoint with more than its rows need",
    in_a_time_zone_of_a_checkpoint: "a column of no kind",
    twice_in_the_header_of_a_manifest: "a header with more than it may have",
    as_an_empty_folder: "a file of no kind",
    in_a_vector: "",
    in_a_manifest: "",
    in_an_unknown_file: "a file of no kind",
    in_a_temporary_file: "left by a writer that died: a sweep takes it a day later",
    in_a_folder_of_another_log: "a file of no kind",
    in_another_receipt: "the log's receipt is another",
    in_an_inline_bitmap: "an erased key",
    as_a_bitmap: "an erased key",
    as_a_number: "another content",
    in_a_probe_of_a_view: "another content",
    in_statistics_of_delta: "an erased key",
    behind_the_values_of_a_page: "bytes in a page that",
    in_the_padding_of_a_page: "bytes in a page that",
    in_statistics_of_a_page: "bytes in a page that",
    in_a_list_of_several_pages: "bytes in a page that",
    in_statistics_of_a_list: "statistics of a value that no row has",
    in_the_sum_of_a_page: "a page with another sum",
    as_who_made_it: "a footer with more",
    in_a_page_of_no_row: "pages with other rows",
    behind_the_rows_of_a_block: "bytes behind the records",
    in_a_page_of_negative_size: "a page of no possible size",
    as_a_link: "a link, a pipe",
    as_a_linked_folder: "a file of no kind",
    as_a_pipe: "a link, a pipe",
    as_a_bomb: "longer than any may be",
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_what_is_planted_makes_it_fail(erased, copied, plant, monkeypatch):
    """S60: each place, by the file that contains it."""
    if plant is as_a_bomb:
        monkeypatch.setattr(verify_erasure, "MOST", 1 << 26)
    plant(copied)
    changed = [
        path.relative_to(copied).as_posix()
        for path in copied.rglob("*")
        if not (was := erased[0] / path.relative_to(copied)).exists()
        or (path.is_file() and was.read_bytes() != path.read_bytes())
    ]
    (found,) = verified(copied, erased).problems
    assert found.startswith(changed[0])
    assert PLANTED[plant] in found


def test_names_that_the_receipt_does_not_list_make_it_fail(erased, copied):
    """H-E10: one that came later can be distinguished from those that the receipt lists; a key that
    is listed as a name is a problem anywhere else.
    """
    log = Log.open(str(copied))
    log.append([{"key": "dave", "value": b"x"}], producer=(KEY.decode(), 1))
    for given in ({}, {"secret": "", "keys": [KEY, *NAMES]}):
        found = verified(copied, erased, **given).problems
        assert found
        assert {text.partition(": ")[2] for text in found} == {
            "a name that is an erased key and came later: erase anew"
        }


def test_a_key_that_is_a_name_is_a_problem_elsewhere(erased, copied):
    """H-E10: such as an operation."""
    rewritten(newest(copied, "commits"), lambda body: body.update(operation=NAME.decode()))
    for given in ({}, {"secret": "", "keys": [KEY, NAME]}):
        (found,) = verified(copied, erased, **given).problems
        assert "it holds an erased key" in found


def test_keys_are_searched_for_in_raw_bytes(erased, copied):
    """S60: as words, in whatever contains them; also values of others that mention one."""
    log = Log.open(str(copied))
    log.append([{"key": "dave", "value": b"a friend of " + KEY + b", he said"}])
    assert verified(copied, erased).problems == []
    (found,) = verified(copied, erased, secret="", keys=[KEY]).problems
    assert "it holds an erased key" in found
    assert verified(copied, erased, secret="", keys=[b"alice-of-wonder", b"bo"]).problems == []


def test_a_wrong_secret_and_a_wrong_folder_are_told(erased, tmp_path):
    """S60: with either nothing would be found, and everything would seem fine."""
    with pytest.raises(ValueError, match="not the secret of this receipt"):
        verified(erased[0], erased, secret="ab" * 32)
    assert verified(tmp_path, erased).problems == [
        "the receipt is not in this log: is it the right folder?"
    ]
    with pytest.raises(FileNotFoundError):
        files_under(str(tmp_path / "nowhere"))
    receipt = tmp_path / "receipt.json"
    receipt.write_text("[" * 100_000)
    line = [sys.executable, SCRIPT, receipt, tmp_path]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_footer_has_no_field_twice():
    """S60: a reader sees only the last one."""
    with pytest.raises(UnexplainedError, match="twice"):
        thrift(b"\x18\x01A\x08\x02\x01B\x00", 0)


def test_lists_of_several_pages_are_sound(erased, copied):
    """S60: pages of headers and of nested lists contain whole records, and are rewritten."""
    an_orphan_of(copied, LISTS, **SMALL_PAGES)
    assert verified(copied, erased).problems == []
    kind = pa.struct(
        [("of", pa.list_(pa.list_(pa.int64()))), ("by", pa.map_(pa.string(), pa.int64()))]
    )
    values = [
        {"of": [[i, None], None, []][: i % 4], "by": [("a", i)] * (i % 3)} for i in range(900)
    ]
    nested = LISTS.set_column(1, "value", pa.array([*values[1:], None], kind))
    an_orphan_of(copied, nested, **SMALL_PAGES)
    assert verified(copied, erased).problems == []


TEXTS = {"key": pa.string(), "value": pa.struct([("name", pa.string()), ("n", pa.int64())])}


ORDINARY = {
    "a name": ["alice"],
    "numbers": ["0", "1", "2", "9", "17"],
}


@pytest.mark.parametrize("schema", [None, TEXTS], ids=["bytes", "texts"])
@pytest.mark.parametrize("gone", ORDINARY.values(), ids=ORDINARY)
def test_an_ordinary_log_is_sound(tmp_path, schema, gone):
    """S60: statistics of texts and of nulls are what rows produce; that a value of another record,
    a later one, a partition's number or a version equals a key is not a trace.
    """
    clock = ManualClock(now_ms=1_700_000_000_000)
    config = {"delete.retention.ms": 0}
    log = Log.create(str(tmp_path), 3, config, clock=clock, ids=SeededIds(1), schema=schema)
    formats = ("delta", "iceberg")

    def put(keys, name):
        values = [{"name": name, "n": None}, None] if schema else [name, None]
        log.append([{"key": key, "value": value} for key in keys for value in values[::-1]])

    for _ in range(12):
        put([*gone, "bob"], gone[0])
    [log.publish(one) for one in formats]
    request = log.erase(gone)
    receipt = carried_out(log, clock, *formats)
    put(gone, "again")
    [log.publish(one) for one in formats]
    found = Verifier(files_under(str(tmp_path)), receipt, request.secret).run()
    assert (found.problems, found.later) == ([], 2 * len(gone))


def test_a_log_whose_columns_were_renamed_and_dropped_is_sound(tmp_path):
    """S60: what a dropped column held of the keys is gone with their records, and names of columns,
    in schemas and views, are no traces.
    """
    clock = ManualClock(now_ms=1_700_000_000_000)
    rows = [{"id": key, "name": key, "note": f"of {key}"} for key in ("alice", "bob", "name")]
    config = {"delete.retention.ms": 0}
    log = Log.create(str(tmp_path), 1, config, clock=clock, ids=SeededIds(1), key="id", like=rows)
    log.append(rows)
    [log.publish(one) for one in ("delta", "iceberg")]
    log.evolve(rename={"name": "title"}, drop=["note"], add={"name": pa.string()})
    log.append([{"id": "alice", "title": "a", "name": "alice"}])
    [log.publish(one) for one in ("delta", "iceberg")]
    request = log.erase(["alice", "name"])
    receipt = carried_out(log, clock, "delta", "iceberg")
    found = Verifier(files_under(str(tmp_path)), receipt, request.secret).run()
    assert found.problems == []
    assert log.table().to_pylist() == [{"id": "bob", "title": "bob", "name": None}]


def test_a_log_whose_keys_are_one_byte_is_sound(tmp_path):
    """S60: such a byte is in bitmaps, and in hexadecimal in documents, whatever the keys are; each
    checkpoint of its view is what its rows produce, and folders may be empty.
    """
    clock = ManualClock(now_ms=1_700_000_000_000)
    schema = {"key": pa.bool_(), "value": pa.string()}
    config = {"delete.retention.ms": 0}
    log = Log.create(str(tmp_path), 1, config, clock=clock, ids=SeededIds(1), schema=schema)
    for _ in range(12):
        log.append([{"key": key, "value": "x"} for key in (True, False)])
        log.publish("delta")
    request = log.erase([True])
    receipt = carried_out(log, clock, "delta")
    for name in ("delta", "iceberg"):
        log.append([{"key": False, "value": "y"}])
        log.publish(name)
        log.withdraw(name)
    assert [*tmp_path.glob("_delta_log/*.checkpoint.parquet")]
    assert Verifier(files_under(str(tmp_path)), receipt, request.secret).run().problems == []


def test_what_a_writer_of_a_deleted_log_leaves_is_sound(tmp_path):
    """S60: an append that finds another log deletes its object; folders stay."""
    clock = ManualClock(now_ms=1_700_000_000_000)
    config = {"delete.retention.ms": 0}
    old = Log.create(str(tmp_path), 1, config, clock=clock, ids=SeededIds(1))
    delete_log(open_store(str(tmp_path)))
    log = Log.create(str(tmp_path), 1, config, clock=clock, ids=SeededIds(2))
    with pytest.raises(LogReplacedError):
        old.append([{"key": KEY, "value": "x"}])
    assert (tmp_path / "_clog" / old.id / "data").is_dir()
    log.append([{"key": key, "value": "x"} for key in (KEY, b"bob")])
    request = log.erase([KEY])
    receipt = carried_out(log, clock)
    assert Verifier(files_under(str(tmp_path)), receipt, request.secret).run().problems == []


def test_later_records_of_a_key_are_counted(erased, copied):
    """S59: they are not covered, and not a problem."""
    Log.open(str(copied)).append([{"key": KEY, "value": "again"}])
    found = verified(copied, erased)
    assert (found.problems, found.later) == ([], 1)
