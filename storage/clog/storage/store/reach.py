"""Opening other roots as one was opened: with its options, where the filesystem is the same.

A log may name another one by its URL, in which there is no secret. Credentials are never stored: a
root on another filesystem is opened with what the environment gives.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from clog.storage.store import open_store, urls
from clog.storage.store.base import Store


@dataclass(frozen=True, slots=True)
class Reach:
    """How other roots are opened from one of this protocol; None: without options."""

    protocol: str | None = None
    options: Mapping[str, object] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, url: str | Store, storage_options: Mapping[str, object] | None) -> Self:
        """Returns how others are opened from what was opened so."""
        if not isinstance(url, str):
            return cls()
        return cls(urls.parse(url).protocol, dict(storage_options or {}))

    def __call__(self, url: str) -> Store:
        """Opens the store at a URL. Makes no request.

        Raises:
            InvalidInputError: a URL that names no place.
        """
        is_same = urls.parse(url).protocol == self.protocol
        return open_store(url, self.options if is_same else None)
