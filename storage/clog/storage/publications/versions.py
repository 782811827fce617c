"""Creating a version of a view: if absent, with an answer to every reply and to none."""

from clog.storage.errors import StoreUnavailableError
from clog.storage.store.base import ObjectExistsError, Store, StoreRefusedError

_CREATES_MAX = 5


def create_version(root: Store, path: str, body: bytes) -> bool:
    """Creates the file of a version, and tells whether it is there now with these bytes; False
    where another came first.

    Raises:
        StoreUnavailableError: that cannot be found out now.
    """
    cause: Exception | None = None
    for _ in range(_CREATES_MAX):
        try:
            root.create(path, body)
            return True
        except StoreRefusedError as e:
            if e.certain:
                raise
            cause = e
        except (ObjectExistsError, StoreUnavailableError) as e:
            cause = e  # Perhaps our own, repeated by a client whose reply was lost.
        try:
            return root.get(path) == body
        except FileNotFoundError:
            continue  # Another create that never ended, or ours that was never done.
    raise StoreUnavailableError(
        f"{path} of {root.url} can neither be created nor read: {cause}; publish again"
    ) from cause
