"""Implements quix-streams' stores on `StateStore`: a subclass of its manager, and its stores.

Each partition of a stream has one `StateStore` on its own log, which has the keys of all its
stores: the store's name, the column family and the key, separated by zero bytes. It also has the
*position*: the next offset of each topic, and the highest time seen. So one commit has all state
that records of a partition change, and the position up to which it goes. Streams with state may
therefore not share a topic: their logs could not be committed at once.

quix-streams commits in this order: changes are prepared, offsets are committed to Kafka, stores are
flushed. Here the first flush commits what all stores of the partition have prepared.

Q1. A partition is assigned: its state is opened, which fences the process that had it before.
Q2. A topic without a position in the state gets one, committed before a record of it is processed:
    the group's offset, or where ``auto_offset_reset`` says. Otherwise a process that died between
    Kafka's first commit and the state's would leave an offset, but no state, of the records below.
Q3. If the position is not the group's offset, the consumer seeks to the position: backwards if a
    process died between Kafka's commit and the state's, so nothing is counted twice or missed. A
    position that the topic no longer has is an error; nothing is ever wiped.
Q4. The checkpoint commits, with the position of each partition that had records, whether or not
    they came as far as a stateful operation. Crash before: Q1.

Each value is preceded by its expiry, eight bytes, 0 for none. An index in the order of expiries
finds values past the highest time of the partition, and each commit deletes some.
"""

import json
from collections.abc import Mapping
from datetime import timedelta
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from confluent_kafka import TopicPartition
from quixstreams.state.base import Store, StorePartition
from quixstreams.state.base.transaction import PartitionTransaction, PartitionTransactionStatus
from quixstreams.state.manager import DEFAULT_STATE_STORE_NAME, StateStoreManager
from quixstreams.state.metadata import Marker
from quixstreams.utils.json import dumps, loads

from clog.state import StateStore
from clog.storage import InvalidInputError, Log, SourcePurgedError, SourceTruncatedError

POSITION: Final = b"position"
"""The key of the position; every key of a store has a zero byte."""
EXPIRED_MAX: Final = 10_000
"""How many values one commit deletes at most."""
_INDEX: Final = "__expiry__"
_STAMP_BYTES: Final = 8
_WAIT_S: Final = 30
_CONFIG: Final = {"cleanup.policy": "compact"}


def _key(store: str, family: str, key: bytes) -> bytes:
    return b"\0".join((store.encode(), family.encode(), key))


class _Held:
    """The state of one partition of a stream, shared by its stores; a worker."""

    def __init__(self, state: StateStore) -> None:
        self.state = state
        self.users = 0
        self._prepared: list[tuple[str, Any]] = []
        stored = json.loads(state.get(POSITION) or b"{}")
        self.offsets: dict[str, int] = stored.get("offsets", {})
        self.now_ms: int = stored.get("now_ms", -1)

    def begin(self, topic: str, offset: int) -> None:
        """Commits the first position in a topic (Q2)."""
        self.offsets[topic] = offset
        self._commit()

    def prepare(self, store: str, cache: Any, offsets: Mapping[str, int] | None) -> None:
        """Keeps what a store changed until the first flush."""
        self._prepared.append((store, cache))
        self.offsets |= {topic: offset + 1 for topic, offset in (offsets or {}).items()}

    def commit(self) -> None:
        """Commits what all stores have prepared, with the position; a second call does nothing."""
        if not self._prepared:
            return
        for store, cache in self._prepared:
            for family in cache.get_column_families():
                for key in cache.get_deletes(family):
                    self.state.delete(_key(store, family, key))
                for changes in cache.get_updates(family).values():
                    for key, value in changes.items():
                        self._put(store, family, key, value)
            self._expire(store)
        self._commit()
        self._prepared = []

    def _commit(self) -> None:
        stored = {"offsets": self.offsets, "now_ms": self.now_ms}
        self.state.put(POSITION, json.dumps(stored).encode())
        self.state.commit()

    def _put(self, store: str, family: str, key: bytes, value: bytes) -> None:
        self.state.put(_key(store, family, key), value)
        if any(value[:_STAMP_BYTES]):
            place = value[:_STAMP_BYTES] + b"\0".join((family.encode(), key))
            self.state.put(_key(store, _INDEX, place), b"")

    def _expire(self, store: str) -> None:
        """Deletes expired values, in the order of the index."""
        prefix = _key(store, _INDEX, b"")
        passed = takewhile(
            lambda row: int.from_bytes(row[0][len(prefix) :][:_STAMP_BYTES], "big") <= self.now_ms,
            self.state.scan(prefix),
        )
        for place, _ in list(islice(passed, EXPIRED_MAX)):
            stamp = place[len(prefix) :][:_STAMP_BYTES]
            family, _, key = place[len(prefix) + _STAMP_BYTES :].partition(b"\0")
            mine = _key(store, family.decode(), key)
            # It may have been written again, with another expiry or none.
            if (self.state.get(mine) or b"")[:_STAMP_BYTES] == stamp:
                self.state.delete(mine)
            self.state.delete(place)

    def release(self) -> bool:
        """Closes the state once no store uses it; returns whether it is closed."""
        self.users -= 1
        if not self.users:
            self.state.close()
        return not self.users


class ClogPartition(StorePartition):  # type: ignore[misc]
    """One partition of a store."""

    def __init__(self, store: "ClogStore", partition: int, held: _Held) -> None:
        super().__init__(dumps=dumps, loads=loads, changelog_producer=None)
        self.held = held
        self.store = store
        self.partition = partition

    def close(self) -> None:
        """Closes it; uncommitted changes are dropped."""
        if self.held.release():
            self.store.manager.forget(self.store.stream_id, self.partition)

    def begin(self) -> "ClogTransaction":
        """Begins a transaction."""
        return ClogTransaction(self)

    def get(self, key: bytes, cf_name: str = "default") -> Any:
        """Returns the committed value of a key, with its expiry, or ``Marker.UNDEFINED``."""
        found = self.held.state.get(_key(self.store.name, cf_name, key))
        return Marker.UNDEFINED if found is None else self.living(found)

    def living(self, value: bytes) -> Any:
        """Returns a value as stored, or ``Marker.UNDEFINED`` if it has expired."""
        expiry = int.from_bytes(value[:_STAMP_BYTES], "big")
        return Marker.UNDEFINED if 0 < expiry <= self.held.now_ms else value

    def exists(self, key: bytes, cf_name: str = "default") -> bool:
        """Returns whether a key has a value."""
        return self.get(key, cf_name) is not Marker.UNDEFINED

    def write(self, cache: Any, changelog_offset: int | None) -> None:  # noqa: ARG002 - theirs
        """Commits what all stores of the partition have prepared."""
        self.held.commit()

    def get_changelog_offset(self) -> None:
        """Returns nothing: there is no changelog besides the log."""

    def write_changelog_offset(self, offset: int) -> None:
        """Does nothing, as above."""

    def recover_from_changelog_message(self, **_: Any) -> None:
        """Refuses messages of a changelog topic."""
        raise InvalidInputError(
            "state in a log has no changelog topic; create the application with"
            " use_changelog_topics=False"
        )


class ClogTransaction(PartitionTransaction):  # type: ignore[misc]
    """The changes of one checkpoint to a store's partition."""

    def __init__(self, partition: ClogPartition) -> None:
        super().__init__(partition=partition, dumps=dumps, loads=loads)

    def _set_bytes(  # noqa: PLR0917 - quix-streams' signature
        self,
        key: Any,
        value: bytes,
        prefix: bytes,
        cf_name: str = "default",
        timestamp: int | None = None,
        ttl: timedelta | None = None,
    ) -> None:
        self._see(timestamp)
        try:
            stamped = _expiry(timestamp, ttl).to_bytes(_STAMP_BYTES, "big") + value
        except (OverflowError, ValueError):
            self._status = PartitionTransactionStatus.FAILED
            raise
        super()._set_bytes(key=key, value=stamped, prefix=prefix, cf_name=cf_name)

    def _get_bytes(
        self, key: Any, prefix: bytes, cf_name: str = "default", timestamp: int | None = None
    ) -> Any:
        self._see(timestamp)
        found = super()._get_bytes(key=key, prefix=prefix, cf_name=cf_name)
        if isinstance(found, bytes):
            found = self._partition.living(found)
        return found[_STAMP_BYTES:] if isinstance(found, bytes) else found

    def exists(
        self, key: Any, prefix: bytes, cf_name: str = "default", timestamp: int | None = None
    ) -> bool:
        """Returns whether a key has a value."""
        found = self._get_bytes(key=key, prefix=prefix, cf_name=cf_name, timestamp=timestamp)
        return isinstance(found, bytes)

    def _see(self, timestamp: int | None) -> None:
        held = self._partition.held
        held.now_ms = max(held.now_ms, timestamp or -1)

    def _prepare(self, processed_offsets: dict[str, int] | None) -> None:
        partition = self._partition
        partition.held.prepare(partition.store.name, self._update_cache, processed_offsets)

    def _flush(self, changelog_offset: int | None) -> None:
        # Even without changes: the position moves.
        self._partition.write(cache=self._update_cache, changelog_offset=changelog_offset)


def _expiry(timestamp: int | None, ttl: timedelta | None) -> int:
    """Returns the time in ms when a value expires; 0: never."""
    if ttl is None:
        return 0
    if ttl <= timedelta(0):
        raise ValueError(f"ttl must be a positive timedelta or None, got {ttl!r}")
    if timestamp is None:
        raise ValueError("ttl= needs the time of the record: call state.set() in a dataframe")
    return 0 if timestamp < 0 else timestamp + max(1, ttl // timedelta(milliseconds=1))


class ClogStore(Store):  # type: ignore[misc]
    """A store of a stream, in the logs of its partitions."""

    def __init__(self, name: str, stream_id: str | None, manager: "ClogStateStoreManager") -> None:
        super().__init__(name, stream_id)
        self.manager = manager

    def create_new_partition(self, partition: int) -> ClogPartition:
        """Opens a partition (Q1)."""
        return ClogPartition(self, partition, self.manager.held(self.stream_id, partition))


class ClogStateStoreManager(StateStoreManager):  # type: ignore[misc]
    """Makes stores in logs, and moves the consumer to the position of their state."""

    def __init__(
        self,
        app: Any,
        url: str,
        cache_dir: str | Path,
        storage_options: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(group_id=app.config.consumer_group)
        self._url = url.rstrip("/")
        self._cache_dir = Path(cache_dir)
        self._app = app
        self._consumer = app._consumer  # noqa: SLF001 - no other way to move it
        self._processed = app._on_message_processed  # noqa: SLF001 - what the user gave
        self._storage_options = storage_options
        self._streams: dict[str, str | None] = {}
        self._held: dict[tuple[str | None, int], _Held] = {}

    def register_store(  # quix-streams' signature
        self,
        stream_id: str | None,
        store_name: str = DEFAULT_STATE_STORE_NAME,
        store_type: Any = None,  # noqa: ARG002
        changelog_config: Any = None,  # noqa: ARG002
    ) -> None:
        """Makes a store; the store type that quix-streams asks for is ignored.

        Raises:
            InvalidInputError: another stream with state has one of the stream's topics.
        """
        if "\0" in store_name:
            raise InvalidInputError("a store's name cannot have a zero byte")
        registry = self._app._dataframe_registry  # noqa: SLF001 - nothing else knows them
        for topic in registry.get_topics_for_stream_id(stream_id):
            if (other := self._streams.setdefault(topic, stream_id)) != stream_id:
                raise InvalidInputError(
                    f"the streams {other!r} and {stream_id!r} of topic {topic!r} both have state,"
                    " and a process that is killed between their commits would count records"
                    " twice; send the records to a topic between the two"
                )
        stores = self._stores.setdefault(stream_id, {})
        if store_name not in stores:
            stores[store_name] = ClogStore(store_name, stream_id, self)

    def register_windowed_store(self, *_: Any, **__: Any) -> None:
        """Refuses windows."""
        raise _tied("windows")

    def register_timestamped_store(self, *_: Any, **__: Any) -> None:
        """Refuses joins by time."""
        raise _tied("joins by time")

    def held(self, stream_id: str | None, partition: int) -> _Held:
        """Returns the state of a partition for one more store; opens it for the first."""
        place = stream_id, partition
        if place not in self._held:
            url = f"{self._url}/{_folder(stream_id)}/{partition}"
            Log.create(url, 1, _CONFIG, self._storage_options, exist_ok=True)
            name = f"quix-{self._app.config.consumer_group}"
            state = StateStore(url, self._cache_dir, name, self._storage_options)
            self._held[place] = _Held(state)
        found = self._held[place]
        found.users += 1
        return found

    def forget(self, stream_id: str | None, partition: int) -> None:
        """Notes that the state of a partition is closed."""
        self._held.pop((stream_id, partition), None)

    def on_partition_assign(
        self, stream_id: str | None, partition: int, committed_offsets: dict[str, int]
    ) -> dict[str, StorePartition]:
        """Opens the stores of a partition, and moves the consumer to their position."""
        found: dict[str, StorePartition] = super().on_partition_assign(
            stream_id=stream_id, partition=partition, committed_offsets=committed_offsets
        )
        if held := self._held.get((stream_id, partition)):
            for topic, offset in committed_offsets.items():
                if self._streams.get(topic) == stream_id:
                    self._place(held, topic, partition, offset)
        return found

    def processed(self, topic: str, partition: int, offset: int) -> None:
        """Ensures that the next checkpoint commits the position in a partition that had a record,
        even if no stateful operation saw it (Q4).
        """
        stream_id = self._streams.get(topic)
        if (stream_id, partition) in self._held:
            store = next(iter(self._stores[stream_id]))
            checkpoint = self._app._processing_context.checkpoint  # noqa: SLF001 - as above
            checkpoint.get_store_transaction(stream_id, partition, store)
        if self._processed is not None:
            self._processed(topic, partition, offset)

    def _place(self, held: _Held, topic: str, partition: int, committed: int) -> None:
        """Moves the consumer to the position in a topic, which gets one if it has none."""
        low, high = self._consumer.get_watermark_offsets(
            TopicPartition(topic, partition), timeout=_WAIT_S
        )
        if topic not in held.offsets:
            reset = {"earliest": low, "latest": high}.get(self._app.config.auto_offset_reset)
            begin = committed if low <= committed <= high else reset
            if begin is None:
                return  # Nor has the consumer, which raises.
            held.begin(topic, begin)
        offset = held.offsets[topic]
        if offset < low:
            raise SourcePurgedError(
                f"the state of partition {partition} of {topic} goes up to offset {offset}, but"
                f" the topic begins at {low}: the records between were removed before they were"
                " processed; start over with a new URL for the state"
            )
        if offset > high:
            raise SourceTruncatedError(
                f"the state of partition {partition} of {topic} goes up to offset {offset}, but"
                f" the topic ends at {high}: it was truncated, or deleted and created again;"
                " start over with a new URL for the state"
            )
        if offset != committed:
            self._consumer.seek(TopicPartition(topic, partition, offset))

    def clear_stores(self) -> None:
        """Refuses to delete state."""
        raise InvalidInputError(
            f"state in logs is deleted with them: clog delete, for each log below {self._url}"
        )

    def _init_state_dir(self) -> None:
        self._cache_dir.mkdir(parents=True, exist_ok=True)


def _tied(what: str) -> InvalidInputError:
    return InvalidInputError(
        f"{what} of quix-streams need its own stores, which RocksDB orders by time; keep the"
        " state of this application in those"
    )


def _folder(stream_id: str | None) -> str:
    """Returns a folder name for a stream, which may have several topics."""
    return quote(stream_id or "", safe="") or "none"
