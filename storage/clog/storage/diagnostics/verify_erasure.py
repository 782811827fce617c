"""Verifies the receipt of an erasure.

``verify_erasure.py RECEIPT ROOT [--keys FILE] [--secret HEX]``: each file under ROOT, a folder or a
URL that pyarrow knows, is decoded, compared and searched, with the request's secret (or
``$CLOG_ERASURE_SECRET``) or with keys, one in a line. Exit code 1: something was found; 2: without
either.

A script for auditors, who can read and keep it: it needs Python, pyarrow and fastavro, and nothing
of clog. `FIELDS` are the names of FORMAT.md, which the tests compare with what clog writes.
"""

import argparse
import bisect
import contextlib
import hashlib
import hmac
import io
import itertools
import json
import os
import pathlib
import re
import stat
import sys
import zlib
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

ID, V = "[0-9a-f]{32}", "[0-9]{20}"
F = "(?:blocks|columns|commits|data|edits|erasures|pages|proposals|readers|receipts|snapshots)/"
INSIDE = {
    "document": rf"(?:commits|snapshots|blocks|receipts)/{V}\.json|(?:pages|edits)/{ID}\.json"
    rf"|columns/{V}-{ID}\.json"
    rf"|readers/[A-Za-z0-9_-][A-Za-z0-9._-]{{0,127}}\.json|erasures/{ID}(?:\.receipt)?\.json"
    rf"|proposals/{V}-[0-9a-f]{{16}}-[0-9]+-[0-9]+\.json",
    "folder": f"{F}|views/(?:(?:delta|iceberg)/(?:{V}/)?)?",
    "avro": rf"views/iceberg/{V}/{ID}-(?:data|deletes|list)\.avro",
    "rows": rf"data/{V}-{ID}\.parquet",
    "bitmap": rf"data/{V}-{ID}\.(?:dead|mask)",
    "plain": f"latest|reserve|clock-{ID}",
    "puffin": rf"views/iceberg/{V}/{ID}\.puffin",
    "vectors": rf"views/delta/{V}/deletion_vector_[0-9a-f-]{{36}}\.bin",
}
OUTSIDE = {
    "document": "_clog/log",
    "folder": rf"\./|_delta_log/|metadata/|_clog/(?:{ID}/(?:{F})?)?",
    "plain": rf"\.probe-{ID}|(?:_delta_log|metadata)/\.probe\.{ID}\.tmp"
    r"|metadata/version-hint\.text",
    "table": rf"_delta_log/{V}\.checkpoint\.parquet",
    "lines": rf"_delta_log/(?:{V}\.json|_last_checkpoint)|metadata/v[0-9]+\.metadata\.json",
}
FIELDS = frozenset(
    """
    aborted add append_time_ms appends attempt attempts author authors base bits block bytes changed
    children chunks clog column columns combined committed completed_ms config config_epoch content
    count covered create created_ms cuts dead dense drop earlier earlier_parent edit edit_at
    encoding end ends epoch erasure erasures expires_ms facts features fields first first_dirty
    first_ms footer forced foreign forget format from given gives_offsets gone head held hold_ms
    home home_url horizon horizon_max horizon_min horizons id ids index jitter_ms kept key key_type
    keys killed killed_ms kind last_field_id layout left level log log_id logs logs_at manifest mark
    marked markers mask masked masks max_ms members name next not_searched null_keys number object
    objects offset offsets older_writers oldest_readable operation order orders_removed orphan_floor
    outcome p pages parent participants partitioner partitions path pins positions positions_at
    previous query_id ranges reached reached_after read reason released replace requested_ms
    required reset_times rest rewritten rewritten_ms rolls row row_texts rows schema seal searched
    secret_sha256 seed segments sequence since since_ms snapshot sources stamp start started_ms
    state superseded swept takes_ms time_ms time_zone timeout_ms told tombstones tombstones_removed
    transaction type uncleanable undecided unended unmarked until_ms up_to value version view views
    write writer writers xxh3_128
    """.split()  # noqa: SIM905 - a list would have a line for each
)
VIEWS = FIELDS | frozenset(
    """
    added appId avro blobs by cardinality codec column columnMapping commit commitInfo
    configuration containsNull created createdTime current data dataChange default deleted
    deletionTimestamp
    deletionVector delta description element elementType enableDeletionVectors enabled engineInfo
    existing extendedFileMetadata field file files gc hidden in keyType last lastUpdated length
    list location main mapping maxColumnId metaData metadata min minReaderVersion minWriterVersion
    mode modificationTime ms names nullable numRecords operationParameters options orders partition
    partitionColumns partitionValues pathOrInlineDv physicalName properties protocol provider
    readerFeatures
    record referenced refs remove schemaString schemas size sizeInBytes snapshots sort spec specs
    starts stats status storageType summary table tags timestamp txn updated uuid
    valueContainsNull valueType withdrawn writerFeatures
    """.split()  # noqa: SIM905 - as above
)
"""Parts of names in views."""
_PHYSICAL = "delta.columnMapping.physicalName"
NAMED = {"config", "cuts", "foreign", "pins", "views"}
"""Objects whose names are data, beside numbers and ids."""
WORDS = {field.encode() for field in FIELDS}
"""They are everywhere, whatever the keys are."""
IDS = {"id", "name", "column", _PHYSICAL, "writers", "query_id", "mark", "config"}
"""Where names and settings are; two others of `NAMED` have names."""
NUMBERS = re.compile(r"version|first|[a-z]+[.-][a-z.-]+")
"""Fields of views that may be numbers in a text."""
MOST = 1 << 30
"""No stream, and no column of a row group, may be larger."""
MOST_ROWS = 1 << 24
MADE_BY = re.compile(rb"parquet-cpp-arrow version \d{1,3}(?:\.\d{1,2}){2}")
CODECS = {1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
"""Of Parquet, by their numbers; `META` has the fields of a column's metadata."""
META = {*range(1, 8), 9, 10, 11, 13, 16}
PLAIN: dict[str, Any] = {
    "store_schema": False,
    "use_dictionary": False,
    "compression": "none",
    "data_page_size": MOST,
}
COLUMNS = {"headers", "timestamp", "offset", "delete_horizon", "deleted"}
"""Of an object, beside key and value; with the prefix `OWN` if it has a table's columns."""
OWN = "_clog_"
LISTS = {"list", "key_value"}
M = (1 << 64) - 1
P64 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63)
S = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07d"
    "ccff7221b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e"
    "3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac83"
    "34d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce"
    "45cb3a8f95160428afd7fbcabb4b407e"
)


class UnexplainedError(Exception):
    """A byte that the format does not explain, or that of an erased key."""


def need(condition: Any, what: Any) -> None:
    """Raises unless the condition holds."""
    if not condition:
        raise UnexplainedError(what)


def w(data: bytes, at: int, size: int = 8) -> int:
    """Returns the number in these bytes."""
    return int.from_bytes(data[at : at + size], "little")


# XXH3-128: key indexes have parts of its upper half.


def _swapped(number: int, size: int) -> int:
    return int.from_bytes(number.to_bytes(size, "little"), "big")


def _fold(a: int, b: int) -> int:
    return (a * b & M) ^ (a * b >> 64)


def _spread(h: int, *steps: tuple[int, int]) -> int:
    for shift, prime in steps or ((37, 0x165667919E3779F9),):
        h = (h ^ h >> shift) * prime & M
    return h ^ h >> 32


def _mixed(d: bytes, at: int, key: int, seed: int) -> int:
    return _fold(w(d, at) ^ (w(S, key) + seed & M), w(d, at + 8) ^ (w(S, key + 8) - seed & M))


def _mixed_in(sums: tuple[int, int], d: bytes, i: int, j: int, *key: int) -> tuple[int, int]:
    """Mixes 16 bytes at ``i`` and ``j`` into both sums; ``key``: the secret's place, the seed."""
    place, seed = key
    lo = (sums[0] + _mixed(d, i, place, seed) & M) ^ (w(d, j) + w(d, j + 8) & M)
    return lo, (sums[1] + _mixed(d, j, place + 16, seed) & M) ^ (w(d, i) + w(d, i + 8) & M)


def upper_hash(d: bytes, seed: int) -> int:
    """Returns the upper 64 bits of XXH3-128 of up to 240 bytes."""
    n = len(d)
    if n < 4:
        low = _swapped(d[0] << 16 | d[n >> 1] << 24 | d[-1] | n << 8 if n else 0, 4)
        flip = (w(S, 8, 4) ^ w(S, 12, 4)) - seed if n else seed ^ w(S, 80) ^ w(S, 88)
        return _spread(
            ((low << 13 | low >> 19) & 0xFFFFFFFF) ^ (flip & M), (33, P64[1]), (29, P64[2])
        )
    if n < 9:
        seed ^= _swapped(seed & 0xFFFFFFFF, 4) << 32
        m = (w(d, 0, 4) + (w(d, n - 4, 4) << 32) ^ ((w(S, 16) ^ w(S, 24)) + seed & M)) * (
            P64[0] + (n << 2)
        )
        return _spread((m >> 64) + ((m & M) << 1) & M)
    if n < 17:
        low, high = w(d, 0), w(d, n - 8)
        m = (low ^ high ^ ((w(S, 32) ^ w(S, 40)) - seed & M)) * P64[0]
        high ^= (w(S, 48) ^ w(S, 56)) + seed & M
        high = (m >> 64) + high + (high & 0xFFFFFFFF) * 0x85EBCA76 & M
        low = (m & M) + (n - 1 << 54) & M ^ _swapped(high, 8)
        return _spread((low * P64[1] >> 64) + high * P64[1] & M)
    sums = n * P64[0] & M, 0
    if n <= 128:
        for i in range((n - 1) // 32, -1, -1):
            sums = _mixed_in(sums, d, 16 * i, n - 16 * i - 16, 32 * i, seed)
    else:
        for i in range(32, n + 1, 32):
            sums = _mixed_in(sums, d, i - 32, i - 16, i - 32 if i < 160 else i - 157, seed)
            sums = (_spread(sums[0]), _spread(sums[1])) if i == 128 else sums
        sums = _mixed_in(sums, d, n - 16, n - 32, 103, -seed & M)
    return -_spread(sums[0] * P64[0] + sums[1] * P64[3] + (n - seed) * P64[1] & M) & M


def varint(d: Any, at: Any) -> Any:
    """Returns a number of variable length, and where it ends."""
    end = next(i for i in range(at, at + 10) if d[i] < 128) + 1
    return sum((d[i] & 127) << 7 * (i - at) for i in range(at, end)), end


def thrift(d: Any, at: Any, kind: Any = 12) -> Any:
    """Returns a value in Thrift's compact form, a struct as a dict, and where it ends."""
    if kind in {4, 5, 6}:
        return (number := varint(d, at))[0] >> 1 ^ -(number[0] & 1), number[1]
    if kind in {1, 2, 3}:
        return d[at], at + 1
    if kind == 8:
        return d[(start := varint(d, at))[1] : sum(start)], sum(start)
    if kind in {9, 10}:
        size, kind, at, made = d[at] >> 4, d[at] & 15, at + 1, []
        size, at = varint(d, at) if size == 15 else (size, at)
        for _ in range(size):
            one, at = thrift(d, at, kind)
            made.append(one)
        return made, at
    need(kind == 12, "a kind that Thrift does not have")
    tree, field = {}, 0
    while d[at]:
        step, kind, at = d[at] >> 4, d[at] & 15, at + 1
        field, at = (field + step, at) if step else thrift(d, at, 4)
        need(field not in tree, "a field that is there twice")
        tree[field], at = (kind == 1, at) if kind < 3 else thrift(d, at, kind)
    return tree, at + 1


def levels(value: Any, path: Any) -> Any:
    """Returns how many levels a row has in the column of a leaf."""
    if value is None or not path:
        return 1
    if isinstance(value, dict):
        return levels(value[path[0]], path[1:])
    return max(
        1,
        sum(levels(v[path[1] == "value"] if isinstance(v, tuple) else v, path[2:]) for v in value),
    )


def vector(d: Any) -> Any:
    """Checks a deletion vector (its length, a bitmap, its sum); returns where it ends."""
    end = 4 + int.from_bytes(d[:4], "big")
    need(
        w(d, 4, 4) == 1681511377 and d[end : end + 4] == zlib.crc32(d[4:end]).to_bytes(4, "big"),
        "no deletion vector",
    )
    return end + 4


def canonical(array: Any) -> Any:
    """Returns the canonical bytes of keys (FORMAT.md, section 12.3)."""
    kind, t = array.type, pa.types
    if t.is_struct(kind):
        loose = [t.is_string(field.type) or t.is_binary(field.type) for field in kind]
        parts = [
            [_part(v, is_loose=is_loose) for v in canonical(array.field(i))]
            for i, is_loose in enumerate(loose)
        ]
        rows = zip(array.is_valid().to_pylist(), *parts, strict=True)
        return [b"".join(row) if there else None for there, *row in rows]
    if t.is_timestamp(kind) or t.is_date(kind):
        array = array.cast(pa.int64() if t.is_timestamp(kind) else pa.int32())
    values, size, sign = array.to_pylist(), 8, 1 << 63
    if t.is_decimal(kind):
        values = [None if v is None else int(v.scaleb(kind.scale)) for v in values]
        size, sign = 16, 1 << 127
    if t.is_boolean(kind) or t.is_unsigned_integer(kind):
        size, sign = 1 if t.is_boolean(kind) else 8, 0
    texts = (v.encode() if isinstance(v, str) else v for v in values)
    return [
        v if v is None or isinstance(v, bytes) else (int(v) + sign).to_bytes(size, "big")
        for v in texts
    ]


def _part(value: bytes | None, *, is_loose: bool) -> bytes:
    """Returns a field of a key, in a form that says where it ends."""
    if value is None:
        return b"\0"
    return b"\1" + (value.replace(b"\0", b"\0\xff") + b"\0\0" if is_loose else value)


def is_key(field: Any) -> Any:
    """Returns whether a column is the key."""
    return field.metadata and field.metadata.get(b"PARQUET:field_id") == b"1"


def content(path: Any) -> Any:
    """Returns a file's bytes; raises if it is a link, a pipe or the like."""
    need(stat.S_ISREG(os.lstat(path).st_mode), "a link, a pipe, or another thing that is no file")
    return pathlib.Path(path).read_bytes()


def below(path: Any) -> Any:
    """Returns the files below a path; and folders without any, with a slash."""
    if path.is_symlink() or not path.is_dir():
        return {path: ""}
    found = {one: slash for inner in path.iterdir() for one, slash in below(inner).items()}
    return found or {path: "/"}


def files_under(root: Any) -> Any:
    """Returns a reader for each file of a folder, or of a URL that pyarrow knows, by path."""
    if not re.match("[a-z][a-z0-9+.-]+://", root):
        found = below(top := pathlib.Path(root).resolve(strict=True)).items()
        return {f.relative_to(top).as_posix() + slash: partial(content, f) for f, slash in found}
    disk, top = fs.FileSystem.from_uri(root)
    found = disk.get_file_info(fs.FileSelector(top, recursive=True))
    files = (f.path for f in found if f.type != fs.FileType.Directory)

    def read(path: str) -> Any:
        return disk.open_input_stream(path, compression=None).read()

    return {path[len(top) :].lstrip("/"): partial(read, path) for path in files}


def written(rows: Any, leaf: Any, **how: Any) -> Any:
    """Returns one page as pyarrow writes it: the column's statistics, its header, its bytes."""
    pq.write_table(rows, sink := pa.BufferOutputStream(), **how, **PLAIN)
    d = sink.getvalue().to_pybytes()
    meta = thrift(d, len(d) - 8 - w(d, len(d) - 8, 4))[0][4][0][1][leaf][3]
    header, at = thrift(d, meta[9])
    return meta.get(12, {}), header[5], d[at : at + header[3]]


class Verifier:
    """Verifies a receipt: ``problems`` say what is wrong, ``later`` counts records of erased keys
    that came after the request.
    """

    def __init__(self, files: Any, receipt: Any, secret: Any = "", keys: Any = ()) -> None:
        self.files, self.receipt, self.keys = files, receipt, {*keys}
        self.secret = bytes.fromhex(secret)
        self.hashes = {bytes.fromhex(text) for text in receipt["keys"]}
        self.names: set[bytes] = set()
        self.is_there = False
        self.problems: list[str] = []
        self.places: dict[str, set[tuple[int, ...]]] = {}
        self.marked: dict[str, int] = {}
        self.in_key: list[str] | None = None
        # Of a table log, those that begin so: any other column is or was one of the table's.
        self.named, self.own = {"key", "value", *COLUMNS}, ""
        self.seed = self.seen = self.records = self.later = 0
        if secret and hashlib.sha256(self.secret).hexdigest() != receipt["secret_sha256"]:
            raise ValueError("this is not the secret of this receipt")
        # Raw bytes contain shorter ones by chance.
        long = [key for key in keys if len(key) > 5 and key not in WORDS]
        words = [*long, *(key.hex().encode() for key in long)]
        form = rb"(?<![\w-])(?:%s)(?![\w-])" % b"|".join(map(re.escape, words))
        self.searched: Any = re.compile(form).findall if words else lambda _: ()

    def run(self) -> Any:
        """Reads all files, documents first: they say which offsets rows have."""
        folder, kinds = f"_clog/{self.receipt['log_id']}/", []
        for path in sorted(self.files):
            is_inside = path.startswith(folder)
            names, name = (INSIDE, path[len(folder) :]) if is_inside else (OUTSIDE, path)
            kind = next((k for k, form in names.items() if re.fullmatch(form, name)), None)
            if kind is None:
                left = ", left by a writer that died: a sweep takes it a day later"
                made = left if path.endswith(".tmp") else ""
                self.problems.append(f"{path}: a file of no kind that the format names{made}")
            elif kind != "folder":
                kinds.append((kind, path, name))
        for kind, path, name in sorted(kinds, key=lambda one: one[0] in {"rows", "bitmap"}):
            try:
                getattr(self, kind)(data := self.files[path](), name)
                self.search(data, names=self.names if kind == "document" else ())
                self.seen += 1
            except UnexplainedError as e:
                self.problems.append(f"{path}: {e}")
            except Exception as e:  # noqa: BLE001 - of any decoder
                self.problems.append(f"{path}: cannot be decoded: {type(e).__name__}: {e}")
        if not self.is_there:
            self.problems.append("the receipt is not in this log: is it the right folder?")
        return self

    def is_key(self, data: Any) -> Any:
        if data in self.keys:
            return True
        return bool(self.secret) and hmac.digest(self.secret, data, "sha256") in self.hashes

    def is_name(self, data: Any) -> Any:
        """Returns whether the receipt lists it; without the secret only their number is known."""
        ids, hashed = self.receipt.get("ids", ()), hmac.digest(self.secret, data, "sha256").hex()
        self.names.add(data)
        return hashed in ids if self.secret else len(self.names) <= len(ids)

    def search(self, data: Any, *, whole: bool = False, names: Any = ()) -> None:
        need(
            {*self.searched(data)} <= {*names} and not (whole and self.is_key(data)),
            "it holds an erased key",
        )

    def inflated(self, data: Any, bits: int = 15, *, is_text: bool = False) -> Any:
        """Returns what a stream of zlib has; names in a text are known once it is read."""
        stream = zlib.decompressobj(bits)
        made = stream.decompress(data, MOST)
        # fastavro leaves three bytes of the sum.
        tails = {b"", zlib.adler32(made).to_bytes(4, "big")[:3] if bits < 0 else b""}
        need(not stream.unconsumed_tail, "a stream of zlib that is longer than any may be")
        need(stream.eof and stream.unused_data in tails, "bytes behind a stream of zlib")
        if not is_text:
            self.search(made, whole=len(made) > 1)  # A single byte is in any small bitmap.
        return made

    def document(self, data: Any, name: Any) -> None:
        line, _, stored = data.partition(b"\n")
        head = self.json(line)
        need(head["bytes"] == len(stored) and head["clog"] in name + " receipt", "no such document")
        text = self.inflated(stored, is_text=True) if head["encoding"] == "json+zlib" else stored
        value = self.json(text)
        self.search(text, names=self.names)
        if value.get("erasure") == self.receipt["erasure"] and "number" in value:
            self.is_there = True
            need(value == self.receipt, "the log's receipt is another")
        self.walk(name.removeprefix("readers/")[:-5], "name", known=True)
        self.note(value)

    def json(self, text: Any, *, known: Any = True) -> Any:
        """Returns the value of JSON without blanks, repeated names and unknown ones."""
        value = json.loads(text)
        forms = [
            json.dumps(value, separators=separators, ensure_ascii=is_ascii)
            for separators in ((",", ":"), None)
            for is_ascii in (False, True)
        ]
        need(text.decode() in forms, "JSON that is written otherwise")
        self.walk(value, known=known)
        return value

    def walk(self, value: Any, name: str = "", *, known: Any = False) -> None:
        """Searches a value below a name. ``known``: all its names are of the format; None: any."""
        if isinstance(value, (str, bytes)):
            self._text(value, name, known=known)
        elif isinstance(value, dict):
            for field, one in value.items():
                form = "[0-9]+|[0-9a-f]{32}"
                is_named = field in FIELDS or name in NAMED or re.fullmatch(form, str(field))
                is_of_view = not known and VIEWS.issuperset(re.split("[._-]", str(field)))
                need(known is None or is_named or is_of_view, f"an unknown field {field!r}")
                # The number of a partition is no key.
                if not (known and name not in NAMED and re.fullmatch("[0-9]{1,6}", field)):
                    of_name = "name" if name in {"cuts", "foreign"} else ""
                    self.walk(field, of_name, known=known)
                self.walk(one, name if name == "config" else str(field), known=known)
        elif isinstance(value, (list, tuple)):
            for one in value:
                self.walk(one, name, known=known)

    def _text(self, value: str | bytes, name: str, *, known: Any) -> None:
        text = whole = value.encode() if isinstance(value, str) else value
        if isinstance(value, str) and re.fullmatch("(?:[0-9a-f]{2}){2,}", value):
            whole = bytes.fromhex(value)
        is_number = not known and NUMBERS.fullmatch(name) and re.fullmatch(b"[0-9]{1,6}", text)
        searched = () if is_number or text in WORDS else (text, whole)
        keys = [one for one in searched if self.is_key(one)]
        is_known = all(known and name in IDS and self.is_name(key) for key in keys)
        came_later = "a name that is an erased key and came later: erase anew"
        need(is_known or name not in IDS, came_later)
        need(is_known, "it holds an erased key")
        need(name != "bits" or self.inflated(whole), "no bitmap")
        # Statistics of Delta and schemas of Avro are JSON in a text.
        with contextlib.suppress(ValueError):
            if text[:1] in b"{[" and known:
                self.walk(json.loads(text), known=None)
            elif text[:1] in b"{[":
                self.json(text, known=known)

    def note(self, value: Any) -> None:
        """Notes which offsets the rows of objects have, and how many bits bitmaps have."""
        inner = value.values() if isinstance(value, dict) else value
        for one in inner if isinstance(value, dict | list) else ():
            self.note(one)
        if not isinstance(value, dict):
            return
        self.seed = int(value.get("seed", f"{self.seed:x}"), 16)
        if value.get("layout") == "table":
            fields = value["key"].get("fields", ())
            self.in_key = [field.get("column", field["name"]) for field in fields]
            self.named, self.own = {OWN + name for name in COLUMNS}, OWN
        if "rows" in value and str(value.get("path")).endswith((".dead", ".mask")):
            self.marked[value["path"]] = value["rows"]
        objects, chunks = value.get("objects", ()), value.get("chunks", {})
        if isinstance(objects, dict):
            tiles = zip(value["segments"]["p"], value["segments"]["chunks"], strict=False)
            parts = [p for p, count in tiles for _ in range(count)]
            self.place([objects["path"][i] for i in chunks["object"]], chunks, parts)
        for obj in objects if isinstance(objects, list) else ():
            if isinstance(obj, dict) and "base" in (chunks := obj["chunks"]):
                parts = chunks.get("p") or [value["p"]] * len(chunks["rows"])
                self.place([obj["path"]] * len(parts), chunks, parts)

    def place(self, paths: Any, chunks: Any, parts: Any) -> None:
        first = chunks.get("row") or itertools.accumulate(chunks["rows"][:-1], initial=0)
        for path, *place in zip(paths, first, chunks["rows"], chunks["base"], parts, strict=False):
            self.places.setdefault(path, set()).add(tuple(place))

    def plain(self, data: Any, _: Any) -> None:
        form = rb'\{"version": ?[0-9]{1,9}\}|[0-9]{1,9}\n?|clock|first|second'
        reserve = hashlib.shake_256(b"clog")
        need(
            data == reserve.digest(len(data)) or re.fullmatch(form, data),
            "another content than it may have",
        )

    def lines(self, data: Any, _: Any) -> None:
        for line in data.removesuffix(b"\n").split(b"\n"):
            self.json(line, known=False)

    def bitmap(self, data: Any, name: Any) -> None:
        bits = int.from_bytes(self.inflated(data), "little").bit_count()
        need(bits == self.marked.get(name, bits), "bits that nobody names")

    def vectors(self, data: Any, _: Any, at: Any = 1) -> None:
        need(data[0] == 1, "no file of deletion vectors")
        while at < len(data):
            at += vector(data[at:])

    def puffin(self, data: Any, _: Any, at: Any = 4) -> None:
        start = len(data) - 16 - w(data, len(data) - 12, 4)
        need(
            {data[:4], data[-4:], data[start : start + 4]} == {b"PFA1"} and not any(data[-8:-4]),
            "no Puffin file",
        )
        for blob in self.json(data[start + 4 : -12], known=False)["blobs"]:
            need(blob["offset"] == at, "bytes between vectors")
            at += vector(data[at:])
        need(at == start, "bytes behind the vectors")

    def avro(self, data: Any, _: Any) -> None:
        import fastavro

        found = fastavro.reader(stream := io.BytesIO(data))
        self.walk(found.metadata)
        at = start = stream.tell()
        sync = data[start - 16 : start]
        fastavro.schemaless_writer(
            fresh := io.BytesIO(), {"type": "map", "values": "string"}, found.metadata
        )
        need(
            data[:start] == b"Obj\1" + fresh.getvalue() + sync,
            "a header with more than it may have",
        )
        while at < len(data):
            count, at = thrift(data, at, 6)  # Avro writes numbers likewise.
            size, at = thrift(data, at, 6)
            packed, at = data[at : at + size], at + size + 16
            made = io.BytesIO(self.inflated(packed, -15) if found.codec == "deflate" else packed)
            need(0 <= count <= len(made.getvalue()) and size >= 0, "a block with more than it has")
            self.walk(
                [fastavro.schemaless_reader(made, found.writer_schema, None) for _ in range(count)]
            )
            need(
                not made.read() and data[at - 16 : at] == sync,
                "bytes behind the records of a block",
            )

    def table(self, data: Any, _: Any) -> None:
        """Checks that a checkpoint is, except for pyarrow's release, what its rows make."""
        rows = pq.ParquetFile(io.BytesIO(data)).read(use_threads=False)
        self.walk(listed := rows.to_pylist())
        self.search(repr(listed).encode())
        schema = pa.schema([(field.name, self.plain_type(field)) for field in rows.schema])
        pq.write_table(pa.Table.from_pylist(listed, schema), sink := pa.BufferOutputStream())
        made, given = (MADE_BY.sub(b"", one) for one in (sink.getvalue().to_pybytes(), data))
        need(made == given, "a checkpoint with more than its rows need")

    def plain_type(self, field: Any) -> Any:
        """Returns a column's type without what it may have besides its fields."""
        self.walk(field.name)
        kind, text, t = field.type, pa.string(), pa.types
        if t.is_struct(kind):
            return pa.struct([(one.name, self.plain_type(one)) for one in kind])
        need(
            kind in {pa.bool_(), pa.int32(), pa.int64(), text} or t.is_nested(kind),
            "a column of no kind",
        )
        return (
            pa.map_(text, text) if t.is_map(kind) else pa.list_(text) if t.is_list(kind) else kind
        )

    def pages(self, data: Any) -> Any:
        """Checks all pages of a Parquet file, and returns where they end."""
        size, at, self.laid = w(data, len(data) - 8, 4), 4, []
        need(data[:4] == data[-4:] == b"PAR1", "no Parquet file")
        tree, end = thrift(data[-8 - size : -8], 0)
        columns = [(group, column[3]) for group in tree[4] for column in group[1]]
        stated = [(*one, one[1].pop(12, {})) for one in columns]  # The rows show if they are true.
        is_ours = tree.keys() <= {1, 2, 3, 4, 6, 7} and all(
            meta.keys() <= META for _, meta in columns
        )
        need(
            end == size and is_ours and MADE_BY.fullmatch(tree[6]),
            "a footer with more than it may have",
        )
        self.walk(tree)
        for group, meta, stats in stated:
            need(at == min(meta.get(11) or meta[9], meta[9]), "bytes between pages")
            end, rows, most, laid = at + meta[7], 0, MOST, []
            while at < end:
                header, start = thrift(data, at)
                most, at, second = most - header[2], start + header[3], header.get(8, {})
                need(header[2] >= 0 <= header[3] and most >= 0, "a page of no possible size")
                sums = {None, zlib.crc32(data[start:at]), zlib.crc32(data[start:at]) - (1 << 32)}
                need(header[1] != 2, "a dictionary, of which rows may have no part")
                need(
                    header.get(4) in sums and header.keys() <= {*range(1, 6)},
                    "a page with another sum",
                )
                rows += header.get(5, second or {1: 0})[1]
                made = data[(begin := start + second.get(5, 0) + second.get(6, 0)) : at]
                if meta[4] in CODECS and second.get(7, True) and made:
                    self.search(
                        made := pa.decompress(made, header[2] + start - begin, CODECS[meta[4]])
                    )
                laid.append((header.get(5, {1: 0, 2: 0}), made))
            self.laid.append((stats, laid))
            has_lists = LISTS & {name.decode() for name in meta[3]}
            need(
                at == end and rows == meta[5] and (has_lists or rows == group[3] <= MOST_ROWS),
                "pages with other rows",
            )
        return at

    def rows(self, data: Any, name: Any) -> None:
        at, behind = self.pages(data), len(data) - 24 - w(data, len(data) - 8, 4)
        file = pq.ParquetFile(io.BytesIO(data))
        keys: list[bytes | None] = []
        own = {name for name in file.schema_arrow.names if name.startswith(self.own)}
        need(own <= self.named, "a column that the format does not name")
        offset = "offset" if self.in_key is None else f"{OWN}offset"
        for number in range(file.num_row_groups):
            group = file.read_row_group(number, use_threads=False)
            stated = file.metadata.row_group(number)
            self.written_anew(stated, group, self.laid[number * stated.num_columns :])
            fresh = [key for chunk in self.keys_of(group).chunks for key in canonical(chunk)]
            for i in (i for i, key in enumerate(fresh) if key is not None and self.is_key(key)):
                given = group.column(offset)[i].as_py() if offset in group.column_names else None
                self.found(name, len(keys) + i, given)
            keys += fresh
        self.records += len(keys)
        self.index(data[at:behind], keys)

    def keys_of(self, rows: Any) -> Any:
        """Returns the keys of an object's rows."""
        if self.in_key is None:
            return rows.column("key")
        if not self.in_key:
            return next(c for c, f in zip(rows.columns, rows.schema, strict=True) if is_key(f))
        parts = rows.select(self.in_key).combine_chunks()
        fields = [rows.schema.field(name) for name in self.in_key]
        arrays = [pa.concat_arrays(column.chunks) for column in parts.columns]
        return pa.chunked_array([pa.StructArray.from_arrays(arrays, fields=fields)])

    def found(self, name: Any, row: Any, offset: Any) -> None:
        """Raises unless a record of an erased key came after the request."""
        places = [p for p in self.places.get(name, ()) if p[0] <= row < p[0] + p[1]]
        need(places, "a record of an erased key that no version names")
        for first, _, base, p in places:
            at = base + row - first if offset is None else offset
            need(
                at >= self.receipt["ends"].get(str(p), 0),
                f"offset {at} of partition {p} has an erased key",
            )
        self.later += 1

    def written_anew(self, stated: Any, group: Any, laid: Any) -> None:
        """Checks that statistics and each page are what its rows make, nothing more."""
        paths = [stated.column(i).path_in_schema.split(".") for i in range(stated.num_columns)]
        for i, (path, (stats, pages)) in enumerate(zip(paths, laid, strict=False)):
            leaf, row, seen = sum(one[0] == path[0] for one in paths[:i]), 0, 0
            ends: Any = range(1, len(group) + 1)
            fresh = written(group.select(path[:1]), leaf, write_statistics=True) if stats else [{}]
            need(fresh[0] == stats, "statistics of a value that no row has")
            if pages[1:] and LISTS & {*path}:
                values = group.column(path[0]).to_pylist()
                ends = list(itertools.accumulate(levels(value, path[1:]) for value in values))
            for header, made in pages:
                seen += header[1]
                # No page may end within a record: it would have other rows.
                end = bisect.bisect(ends, seen)
                how = {".".join(path): "DELTA_BINARY_PACKED"} if header[2] == 5 else None
                rows, row = group.select(path[:1]).slice(row, end - row), end
                fresh = written(rows, leaf, column_encoding=how, write_statistics=bool(header[5]))
                need(fresh[1:] == (header, made), "bytes in a page that its values do not need")

    def index(self, data: Any, keys: Any, at: Any = 17, row: Any = 0) -> None:
        """Checks that each hash is that of a key in its rows."""
        need(not data or data[16] == 1, "an index of another version, or bytes behind the pages")
        while at < len(data):
            rows, count, bits = w(data, at, 4), w(data, at + 4, 4), data[at + 8]
            high = at + 9 + (1 << bits)
            buckets = [b for b, n in enumerate(data[at + 9 : high]) for _ in range(n)]
            low = high + 2 * count
            kept = {
                b << 24 | w(data, high + 2 * i, 2) << 8 | data[low + i]
                for i, b in enumerate(buckets)
            }
            there = {*keys[row : row + rows]} - {None}
            short = {upper_hash(key, self.seed) >> 40 - bits for key in there if len(key) <= 240}
            long = sum(len(key) > 240 for key in there)  # Only the number of these is compared.
            need(
                len(kept - short) <= long and len(buckets) == count,
                "a key index has a hash without a row",
            )
            at, row = low + count, row + rows
        need(not data or (row == len(keys) and at == len(data)), "bytes behind a key index")


def main() -> Any:
    """Verifies what the command line names; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(".")[0])
    for name in ("receipt", "root", "--keys"):
        parser.add_argument(name)
    parser.add_argument("--secret", default=os.environ.get("CLOG_ERASURE_SECRET", ""))
    given = parser.parse_args()
    try:
        text = pathlib.Path(given.receipt).read_bytes()
        receipt = json.loads(text.partition(b"\n")[2] if text.startswith(b'{"clog":') else text)
        keys = pathlib.Path(given.keys).read_bytes().splitlines() if given.keys else []
        found = Verifier(files_under(given.root), receipt, given.secret, keys).run()
    except Exception as e:  # noqa: BLE001 - whatever cannot be read
        parser.error(f"the receipt, the keys, the secret or the folder cannot be read: {e}")
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    print(  # noqa: T201 - a script
        *found.problems,
        f"{found.seen} files and {found.records} records are sound; {found.later} records of"
        f" these keys came later; {len(found.names)} names that the receipt lists are such keys",
        sep="\n",
    )
    return 1 if found.problems else 0 if keys or given.secret else 2


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # Arrow's threads may abort a slow exit.
