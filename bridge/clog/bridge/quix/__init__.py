"""Keeps the state of quix-streams applications in logs instead of RocksDB and changelog topics.

`keep_state` gives an application its store manager (`stores`); it must be called before dataframes
use state. quix-streams is imported only then.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from clog.storage import InvalidInputError
from clog.storage.spi import from_extra

RELEASES: Final = ("3.28.",)
"""The releases of quix-streams that have the store manager that `stores` extends."""


def keep_state(
    app: Any,
    url: str,
    cache_dir: str | Path,
    *,
    storage_options: Mapping[str, object] | None = None,
) -> None:
    """Makes a quix-streams ``Application`` keep its state in logs below a URL, one for each
    partition of each stream, with the position in its topics in the same commit.

    Args:
        app: made with ``use_changelog_topics=False``, and still without dataframes that use state.
        url: the folder of the logs; each is created with the first state of its partition.
        cache_dir: a local folder for the files of `StateStore`; it can be deleted without loss.
        storage_options: options of the logs' filesystem.

    Raises:
        InvalidInputError: quix-streams has another release, or the application has changelog topics
            or already has state.

    >>> from quixstreams import Application  # doctest: +SKIP
    >>> app = Application("localhost:9092", use_changelog_topics=False)  # doctest: +SKIP
    >>> keep_state(app, "s3://bucket/state", "/var/cache/state")  # doctest: +SKIP
    """
    with from_extra("quixstreams", "this", "quixstreams"):
        import quixstreams
    if not quixstreams.__version__.startswith(RELEASES):
        raise InvalidInputError(
            f"quix-streams {quixstreams.__version__} may store its state differently from"
            f" {'x, '.join(RELEASES)}x, which clog supports; install such a release"
        )
    from clog.bridge.quix.stores import ClogStateStoreManager

    before = app._state_manager  # noqa: SLF001 - no other way to set a manager
    if before.using_changelogs:
        raise InvalidInputError(
            "the log is the changelog: create the application with use_changelog_topics=False"
        )
    if before.stores:
        raise InvalidInputError(
            "the application already has state: call this before creating dataframes"
        )
    manager = ClogStateStoreManager(app, url, cache_dir, storage_options)
    app._state_manager = manager  # noqa: SLF001
    app._processing_context.state_manager = manager  # noqa: SLF001
    app._on_message_processed = manager.processed  # noqa: SLF001
