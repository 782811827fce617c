"""Which chunks of the clean part hold none of the keys of a map, by their objects' key
indexes: 3.5 bytes a key instead of its key, and no hashing (decision: storage 0007). Dirty keys are
noted while the map is filled, by their hashes with the log's own seed, 8 bytes each; above
`KEYS_MAX` nothing is noted, since so many leave few objects alone. Where keys are spread evenly no
object is left alone: after some answers in vain nothing is asked any more. Safe because an index
has no false negatives: a chunk of which it says "none" has no row that the map supersedes.
"""

import threading
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from clog.storage.format.chunks import Chunk
from clog.storage.keys.key_index import IndexHashes, distinct, index_hashes
from clog.storage.read.scan import stored_index
from clog.storage.store.contract import Store

KEYS_MAX = 1 << 20
"""Distinct dirty keys that are noted at most: 8 MiB."""
IN_VAIN_MAX = 4
"""So many more answers may be "maybe" than "none"."""


class IndexFilter:
    """The keys of one map, and what was asked by them.

    Args:
        seed: the log's.
        chunks: those that it may be asked about; where none has an index, nothing is noted.

    Attributes:
        count: chunks that were found to hold none.
    """

    def __init__(self, seed: int, chunks: Iterable[Chunk]) -> None:
        self._seed = seed
        self._is_wanted = any(c.object.index_bytes for c in chunks)
        self._lock = threading.Lock()
        self._in_vain = 0
        self.count = 0
        self.begin()

    def begin(self) -> None:
        """Forgets the keys, for those of another map."""
        self._noted: IndexHashes | None = np.zeros(0, np.uint64) if self._is_wanted else None
        self._fresh: list[IndexHashes] = []
        self._fresh_keys = 0

    def note(self, keys: pa.Array) -> None:
        """Adds keys of the map; several threads may."""
        if self._notes_nothing:
            return
        hashes = index_hashes(keys, seed=self._seed)
        with self._lock:
            if not self._notes_nothing:
                self._fresh.append(hashes)
                self._fresh_keys += len(keys)
                if self._fresh_keys > KEYS_MAX:
                    self._merge()

    @property
    def _notes_nothing(self) -> bool:
        return self._noted is None

    def holds_none(self, store: Store, chunk: Chunk) -> bool:
        """Tells whether no key of the map is in the chunk, for sure; one request."""
        with self._lock:
            if self._fresh:
                self._merge()
        asks = chunk.object.index_bytes and self._in_vain <= IN_VAIN_MAX + self.count
        if self._noted is None or not asks:
            return False
        index = stored_index(store, chunk.object)
        is_in_vain = index is None or index.may_hold_any(self._noted)
        with self._lock:
            self._in_vain += is_in_vain
            self.count += not is_in_vain
        return not is_in_vain

    def _merge(self) -> None:
        assert self._noted is not None, "fresh keys are merged before they are too many"
        merged = distinct(np.concatenate((self._noted, *self._fresh)))
        self._noted = merged if len(merged) <= KEYS_MAX else None
        self._fresh, self._fresh_keys = [], 0
