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
    """How other roots are opened from one of this protocol; None: without options.
    ``single_writer``: as of `open_store`.
    """

    protocol: str | None = None
    options: Mapping[str, object] = field(default_factory=dict, repr=False)
    single_writer: bool = False

    @classmethod
    def of(
        cls,
        url: str | Store,
        storage_options: Mapping[str, object] | None,
        *,
        single_writer: bool = False,
    ) -> Self:
        """Returns how others are opened from what was opened so; a store was, where options are
        given with it.
        """
        if not isinstance(url, str) and storage_options is None:
            return cls()
        where = url if isinstance(url, str) else url.url
        return cls(urls.parse(where).protocol, dict(storage_options or {}), single_writer)

    def __call__(self, url: str) -> Store:
        """Opens the store at a URL. Makes no request.

        Raises:
            InvalidInputError: a URL that names no place.
        """
        if urls.parse(url).protocol != self.protocol:
            return open_store(url)
        return open_store(url, self.options, single_writer=self.single_writer)
