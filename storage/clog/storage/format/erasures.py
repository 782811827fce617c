"""Erasures: the progress of each, and its documents (FORMAT.md §17).

The *request* has the keys, as their canonical bytes, and is deleted before the end. Everything else
has only *keyed hashes* of them, whose secret only the requester has. The *entry* is in the
manifest; when it has been removed, the *receipt* is left.
"""

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Annotated, Any, Final

from clog.storage.env import dataclass
from clog.storage.format import documents
from clog.storage.format.documents import (
    HEX,
    INT,
    KEPT,
    NONE,
    PATH,
    TEXT,
    Natural,
    Offsets,
    OrNone,
    checked,
    columns,
    listed,
    maybe,
    pair,
    reading,
    record,
    seq,
    table,
)
from clog.storage.store.contract import Store

KEYS_MAX: Final = 100_000
"""Keys of one request. Part of the format."""
_SECRET_BYTES: Final = 32


_HASH = checked(TEXT, lambda text: len(bytes.fromhex(text)) == _SECRET_BYTES, "a keyed hash")
_HASHES: Final = listed(_HASH)


@dataclass(frozen=True, slots=True)
class Held:
    """A chunk of an object that held a row of the keys; -1 for an object without a chunk."""

    path: Annotated[str, PATH]
    partition: Annotated[OrNone, "p"]
    base: OrNone
    next: OrNone


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureEntry:
    """The progress of an erasure; -1 for steps still to come. FORMAT.md §17 explains the fields."""

    version: Natural
    requested_ms: Natural
    keys: Natural
    ends: Offsets = field(default_factory=dict)
    told: Offsets = field(default_factory=dict)
    killed: OrNone = NONE
    killed_ms: OrNone = NONE
    gone: OrNone = NONE
    rewritten: OrNone = NONE
    rewritten_ms: OrNone = NONE
    swept: OrNone = NONE
    ids: Annotated[tuple[str, ...], _HASHES] = ()
    held: Annotated[tuple[Held, ...], columns(Held)] = ()
    reason: Annotated[str, TEXT] = ""

    def ends_beyond(self, count: int) -> bool:
        """Returns whether it names a partition that a log of ``count`` partitions does not have."""
        return max((*self.ends, *self.told), default=NONE) >= count

    @property
    def paths(self) -> frozenset[str]:
        """The objects that held a row of the keys."""
        return frozenset(held.path for held in self.held)

    @property
    def bounds(self) -> Mapping[int, int]:
        """The offsets, by partition, below which rows of the keys are killed next."""
        return self.ends if self.killed == NONE else {**self.ends, **self.told}

    @property
    def kills(self) -> bool:
        """Whether there may be rows of the keys that were not killed yet."""
        return self.gone == NONE

    def reset(self, time_ms: int) -> "ErasureEntry":
        """Returns the entry with no time later than ``time_ms``."""
        times = self.requested_ms, self.killed_ms, self.rewritten_ms
        requested_ms, killed_ms, rewritten_ms = (min(ms, time_ms) for ms in times)
        return replace(
            self, requested_ms=requested_ms, killed_ms=killed_ms, rewritten_ms=rewritten_ms
        )

    def killed_by(self, version: int, time_ms: int, held: tuple[Held, ...]) -> "ErasureEntry":
        """Returns the entry after a commit that killed the rows below `bounds`."""
        is_last = self.killed != NONE or not self.told
        known = set(self.held)
        return replace(
            self,
            killed=version if self.killed == NONE else self.killed,
            killed_ms=time_ms if self.killed == NONE else self.killed_ms,
            gone=version if is_last else NONE,
            held=(*self.held, *(one for one in held if one not in known)),
            reason="",
        )


Erasures = Mapping[str, ErasureEntry]
ERASURES_LEFT: Final = table(HEX, record(ErasureEntry))
ERASURES_GIVEN: Final = table(HEX, maybe(record(ErasureEntry)))

_KEYS = listed(checked(TEXT, lambda text: bytes.fromhex(text) is not None, "a key in hex"))
_OBJECTS = listed(pair(PATH, seq(PATH), INT))


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The facts about an erasure; when it is requested, only the first five fields are known."""

    log_id: Annotated[str, HEX]
    erasure: Annotated[str, HEX]
    requested_ms: Natural
    keys: Annotated[tuple[str, ...], _HASHES]
    secret_sha256: Annotated[str, _HASH]
    number: OrNone = NONE
    previous: Annotated[str | None, maybe(TEXT), KEPT] = None
    completed_ms: OrNone = NONE
    version: OrNone = NONE
    oldest_readable: OrNone = NONE
    ends: Offsets = field(default_factory=dict)
    objects: Annotated[tuple[tuple[str, tuple[str, ...], int], ...], _OBJECTS] = ()
    ids: Annotated[tuple[str, ...], _HASHES] = ()
    searched: Annotated[tuple[str, ...], listed(TEXT)] = ()
    not_searched: Annotated[tuple[str, ...], listed(TEXT)] = ()


_RECEIPT = record(Receipt)


def keyed_hashes(secret: str, keys: Iterable[bytes]) -> dict[str, bytes]:
    """Returns the keys by their keyed hashes, in the hashes' order, which reveals nothing."""
    import hmac  # Loads OpenSSL, and few logs have erasures.

    made = {hmac.digest(bytes.fromhex(secret), key, "sha256").hex(): key for key in keys}
    return dict(sorted(made.items()))


def secret_hash(secret: str) -> str:
    """Returns the hash by which a receipt recognizes its secret."""
    from hashlib import sha256

    return sha256(bytes.fromhex(secret)).hexdigest()


def receipt_to_json(receipt: Receipt) -> dict[str, Any]:
    """Returns the body of a receipt."""
    value: dict[str, Any] = _RECEIPT.write(receipt)
    return value


def read_receipt(store: Store, path: str) -> tuple[Receipt, bytes]:
    """Returns a receipt, complete or begun, and its bytes; one GET."""
    data = documents.fetch(store, "receipt", path)
    where = f"{path} of {store.url}"
    body = documents.decode("receipt", data, where=where)
    with reading(where):
        found: Receipt = _RECEIPT.read(body)
        return found, data


def encode_request(keys: list[bytes]) -> bytes:
    """Returns the bytes of a request."""
    return documents.encode("erasure", {"keys": [key.hex() for key in keys]})


def read_request(store: Store, path: str) -> list[bytes]:
    """Returns the keys of a request; one GET."""
    body = documents.get(store, "erasure", path)
    with reading(f"{path} of {store.url}"):
        return [bytes.fromhex(text) for text in _KEYS.read(body["keys"])]
