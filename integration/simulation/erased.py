"""What an erasure must have done (S59, S60, FORMAT.md §17), of one log:

- A request has its document when it is committed, and it stays until its rows are swept.
- One commit kills all records of the keys below its ends, none of which is undecided, in all
  partitions; another its own tombstones, once their time is past; nothing else dies by either.
- Once the objects are said to be rewritten, none that the newest version refers to holds a row of
  the keys below the ends, dead or alive; no later commit brings one back.
- When the receipt comes, no object on the disk does, whatever refers to it, nor any document; and
  it is the only one.
"""

import zlib
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet as pq

from clog.storage.config.log_config import LogConfig
from clog.storage.format import documents
from clog.storage.format.documents import NONE
from clog.storage.format.erasures import ErasureEntry, read_receipt, read_request

SKEW_MS = 5 * 60_000


@dataclass
class _Asked:
    keys: frozenset[bytes]
    entry: ErasureEntry
    receipt: str = ""


class Erased:
    """The erasures of one log.

    Attributes:
        dead: by partition and offset the version that killed the record.
        told: by partition and key the last version that killed what it showed of the key.
    """

    def __init__(self, partitions: int) -> None:
        self.dead: list[dict[int, int]] = [{} for _ in range(partitions)]
        self.told: list[dict[bytes, int]] = [{} for _ in range(partitions)]
        self.asked: dict[str, _Asked] = {}
        self._places: dict[str, set[tuple[int, int, int, int]]] = {}

    def copy(self) -> "Erased":
        """One that knows as much."""
        other = Erased(len(self.dead))
        other.dead = [dict(dead) for dead in self.dead]
        other.told = [dict(told) for told in self.told]
        other.asked = {name: replace(known) for name, known in self.asked.items()}
        other._places = {path: set(places) for path, places in self._places.items()}
        return other

    def place(self, p: int, chunk) -> None:
        """Hears where the rows of an object are."""
        place = (p, chunk.first_row, chunk.rows, chunk.base)
        self._places.setdefault(chunk.object.path, set()).add(place)

    def committed(self, oracle, edit) -> None:
        """Hears of a commit, once its records have their offsets."""
        for name, entry in edit.erasures.items():
            known = self.asked.get(name)
            if entry is None:
                assert known.receipt, f"erasure {name} ends without a receipt"
            elif known is None:
                self._begin(oracle, name, entry)
            else:
                self._go_on(oracle, known, entry)
                known.entry = entry

    def check_gone(self, p: int, o: int, version: int) -> bool:
        """Whether a record may go because an erasure killed it with this version."""
        return self.dead[p].get(o) == version

    def check_rows(self, p: int, rows) -> None:
        """No version shows a record that is erased."""
        back = [o for o, _ in rows if o in self.dead[p]]
        assert not back, f"erased records of partition {p} are back: {back}"

    def deleted(self, name: str, path: str, *, is_named: bool) -> None:
        """Hears that a document of an erasure is gone."""
        known = self.asked.get(name)
        if known is None or not is_named:
            return
        is_request = path == documents.erasure_path(name)
        assert is_request, f"{path} is deleted, and the erasure is under way"
        assert known.entry.swept != NONE, f"{path} is deleted, and its rows are not"

    def receipt_written(self, oracle, path: str) -> None:
        """Hears of a receipt: nothing is left that holds a byte."""
        receipt, _ = read_receipt(oracle.store, path)
        known = self.asked[receipt.erasure]
        assert not known.receipt, f"{path} is the second receipt of one erasure"
        known.receipt = path
        assert documents.erasure_path(receipt.erasure) not in oracle.store, "the request is there"
        bounds = known.entry.bounds
        assert receipt.ends == bounds, f"{path} says {receipt.ends}, not {bounds}"
        words = [b'"%s"' % text for key in known.keys for text in (key, key.hex().encode())]
        for found in oracle.store.list(""):
            if found.path.startswith(documents.DATA):
                self._check_object(oracle, known, found.path, newest_only=False)
            elif not found.path.startswith(documents.ERASURES):
                body = oracle.store.get(found.path)
                for text in (body, _inflated(body)):
                    held = [word for word in words if word in text]
                    assert not held, f"{found.path} holds {held} when {path} comes"

    def _begin(self, oracle, name: str, entry: ErasureEntry) -> None:
        path = documents.erasure_path(name)
        assert path in oracle.store, f"{path} is not there when it is committed"
        assert documents.begun_receipt_path(name) in oracle.store, "a receipt has no beginning"
        assert entry.version == oracle.newest, f"{entry} of version {oracle.newest}"
        self.asked[name] = _Asked(frozenset(read_request(oracle.store, path)), entry)
        ends = {p: end for p, end in enumerate(oracle.ends_before) if end}
        assert entry.ends == ends, f"the ends were {ends}, the request has {entry.ends}"

    def _go_on(self, oracle, known: _Asked, entry: ErasureEntry) -> None:
        version, was = oracle.newest, known.entry
        if entry.killed == version:
            self._kill(oracle, known.keys, entry.ends)
        elif entry.gone == version and was.gone == NONE:
            config = LogConfig.from_overrides(oracle.manifest.head.config)
            due_ms = was.killed_ms + config.delete_retention_ms
            assert oracle.clock.now_ms() >= due_ms - SKEW_MS, "its tombstones go too early"
            self._kill(oracle, known.keys, {**entry.ends, **entry.told})
        if entry.rewritten != NONE == was.rewritten:
            for path in {c.object.path for _, c in oracle.manifest.chunks()}:
                self._check_object(oracle, known, path, newest_only=True)

    def _kill(self, oracle, keys: frozenset[bytes], bounds) -> None:
        for p, end in bounds.items():
            for o in range(end):
                if oracle.records[p][o][0] in keys:
                    fate = oracle.fates.of[p][o]
                    assert fate in (None, "aborted"), f"offset {o} of {p} dies, {fate} is undecided"
                    self.dead[p].setdefault(o, oracle.newest)
            for key, o in oracle.keys_at(oracle.newest - 1, p).items():
                if self.dead[p].get(o) == oracle.newest:
                    self.told[p][key] = oracle.newest

    def _check_object(self, oracle, known: _Asked, path: str, *, newest_only: bool) -> None:
        """An object holds no row of the keys below the bounds."""
        if not path.endswith(".parquet"):
            return
        keys, offsets = rows_in(oracle.store.get(path))
        hits = [row for row, key in enumerate(keys) if key in known.keys]
        places = self._places.get(path, ())
        if hits and not places:
            stamp, least = documents.stamp_of(path), known.entry.rewritten
            assert stamp >= least, f"{path} of {stamp} was left over from before {least}"
        for row in hits:
            for p, first, rows, base in places:
                if first <= row < first + rows:
                    at = offsets[row] if offsets else base + row - first
                    least = known.entry.bounds.get(p, 0)
                    when = "rewritten" if newest_only else "in the receipt"
                    assert at >= least, f"{path} holds erased offset {at} of {p}, {when}"


def _inflated(data: bytes) -> bytes:
    try:
        return zlib.decompress(data.partition(b"\n")[2])
    except zlib.error:
        return b""


def rows_in(data: bytes) -> tuple[list, list]:
    """The keys of all rows of an object, and their offsets where it has them."""
    if data[:4] == b"PAR1":
        rows = pq.read_table(pa.BufferReader(data))
    else:
        with pa.ipc.open_stream(data) as reader:
            rows = reader.read_all()
    there = "offset" in rows.column_names
    return rows.column("key").to_pylist(), rows.column("offset").to_pylist() if there else []
