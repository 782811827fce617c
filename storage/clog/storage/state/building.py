"""Builds the file of a state table from its log: the table view of the newest version."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from clog.storage.commit.handle import Handle
from clog.storage.errors import VersionExpiredError
from clog.storage.format.manifest import Manifest
from clog.storage.read.table_plan import plan_table
from clog.storage.read.table_scan import table_batches
from clog.storage.state import generations
from clog.storage.state.cache import Cache, rows_of
from clog.storage.state.positions import position_of
from clog.storage.state.row_checks import Row
from clog.storage.state.row_codec import RowCodec
from clog.storage.state.sqlite_file import Position

COLUMNS = ("partition", "offset", "timestamp", "key", "value")
ATTEMPTS = 5
"""How often to start over when the cleaner and the sweep overtake it."""


def build_from_log(
    handle: Handle, folder: Path, name: str, *, map_bytes: int
) -> tuple[Cache, Position]:
    """Builds the next generation of the file, and returns it and its position. The caller sees to
    it that nobody else does.

    Raises:
        VersionExpiredError: the log changed too often meanwhile.
    """
    for _ in range(ATTEMPTS):
        handle.refresh()
        manifest = handle.manifest()
        position = position_of(manifest)
        try:
            built = generations.build(folder, name, position, _view(handle, manifest, map_bytes))
        except VersionExpiredError:
            continue  # The cleaner and the sweep overtook it.
        return built, position
    raise VersionExpiredError(
        f"{handle.store.url} changed {ATTEMPTS} times while its state table was built; raise"
        " file.delete.delay.ms above the time that building takes"
    )


def _view(handle: Handle, manifest: Manifest, map_bytes: int) -> Iterator[Iterable[Row]]:
    codec = RowCodec(manifest.head.log.schema)
    for p in range(manifest.head.log.partitions):
        plan = plan_table(manifest, p)
        for batch in table_batches(handle.store, plan, columns=COLUMNS, map_bytes=map_bytes):
            yield rows_of(batch, codec)
