"""Where a log is, as plain data that may travel to executors; what is secret in it never shows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clog.storage.store.urls import redact

if TYPE_CHECKING:
    from clog.storage.log import Log
    from clog.storage.store.base import Store


@dataclass(frozen=True, slots=True)
class Location:
    """A log's URL with what opens its filesystem.

    ``storage_options`` is JSON, so that a location can be compared and be the key of a cache.
    Neither it nor the URL (which may hold a password) is part of the repr: partitions and commit
    messages hold locations.
    """

    url: str = field(repr=False)
    storage_options: str = field(default="{}", repr=False)
    single_writer: bool = False

    @property
    def name(self) -> str:
        """What Kafka would call the topic: the last part of the path.

        >>> Location("s3://bucket/logs/orders/").name
        'orders'
        """
        path = redact(self.url).partition("?")[0].rstrip("/")
        return path.rpartition("/")[2] or path

    def options(self) -> Mapping[str, Any]:
        """Returns the storage options, for fsspec."""
        import json

        options: dict[str, Any] = json.loads(self.storage_options)
        return options

    def store(self) -> "Store":
        """Returns a store at the root where the log stands."""
        from clog.storage.store import open_store

        return open_store(self.url, self.options(), single_writer=self.single_writer)

    def log(self) -> "Log":
        """Opens the log there; as `Log.open`."""
        from clog.storage.log import Log

        single = self.single_writer
        return Log.open(self.store(), self.options(), single_writer=single)

    def store_of(self, log_id: str) -> "Store":
        """Returns the store of the files of the log with this id (S47)."""
        from clog.storage.commit.identity import store_of

        return store_of(self.store(), log_id)
