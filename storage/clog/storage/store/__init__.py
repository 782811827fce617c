"""The filesystem, behind one narrow contract. The only package that imports fsspec.

- `contract`: the contract, its axioms and errors; what is shown of URLs; stores around another;
- `local`, `memory`, `remote`: the implementations; the last also says where an exclusive create can
  be had, by class and by endpoint;
- `opening`: roots by URL, and the logs below them.

Reading needs no capability, so it is looked for at the first create.
"""

from collections.abc import Mapping

from clog.storage.errors import InvalidInputError
from clog.storage.store import contract
from clog.storage.store.contract import Store

__all__ = ["Store", "open_store", "store_at"]


def open_store(
    url: str,
    storage_options: Mapping[str, object] | None = None,
    *,
    single_writer: bool = False,
    probe: bool = True,
) -> Store:
    """Opens the store at a URL. Makes no request.

    Args:
        url: a path, or a URL of any filesystem that fsspec knows.
        storage_options: what fsspec's class takes: credentials, endpoints. Never shown. Of a
            local folder: ``fsync``, whether writes are on disk when they return (True).
        single_writer: the caller promises that one process at a time writes; lifts the refusal
            of filesystems without an exclusive create.
        probe: whether the endpoint is asked once for its exclusive create before the first one.

    Raises:
        InvalidInputError: a URL without a place, or with credentials where none belong; an
            ``fsync`` that is no boolean.
    """
    location = contract.parse(url)
    options = dict(storage_options or {})
    if location.protocol == "file":
        from clog.storage.store.local import LocalStore

        return LocalStore(location.root, url=location.shown, fsync=_fsync(options))
    if location.protocol == contract.MEMORY:
        from clog.storage.store.memory import MemoryStore

        return MemoryStore(location.root, url=location.shown, options=options)
    from clog.storage.store.remote import open_remote

    return open_remote(location, options, single_writer=single_writer, probe=probe)


def store_at(
    url: str | Store, storage_options: Mapping[str, object] | None, *, single_writer: bool = False
) -> Store:
    """Returns the store at a URL, as `open_store` does; a store is where it is."""
    if isinstance(url, str):
        return open_store(url, storage_options, single_writer=single_writer)
    return url


def _fsync(options: Mapping[str, object]) -> bool:
    value = options.get("fsync", True)
    if not isinstance(value, bool):
        raise InvalidInputError(
            f"the storage option fsync is a {type(value).__name__}; allowed: true or false"
        )
    return value
