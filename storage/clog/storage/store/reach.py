"""Opening other roots as one was opened: with its options, where the same server has them.

A log may name another one by its URL, in which there is no secret. Credentials are never stored: a
root elsewhere is opened with what the environment gives. A stranger's log may name any host, so
options go to no other host, or account, than they were given for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from clog.storage.store import open_store, urls
from clog.storage.store.base import Store


@dataclass(frozen=True, slots=True)
class Reach:
    """How other roots are opened from one of this protocol and host; None: without options.
    ``single_writer``: as of `open_store`.
    """

    protocol: str | None = None
    options: Mapping[str, object] = field(default_factory=dict, repr=False)
    single_writer: bool = False
    host: str = ""

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
        place = urls.parse(url if isinstance(url, str) else url.url)
        return cls(place.protocol, dict(storage_options or {}), single_writer, place.host)

    def __call__(self, url: str) -> Store:
        """Opens the store at a URL. Makes no request.

        Raises:
            InvalidInputError: a URL that names no place.
        """
        place = urls.parse(url)
        if (place.protocol, place.host) != (self.protocol, self.host):
            return open_store(url)
        return open_store(url, self.options, single_writer=self.single_writer)
