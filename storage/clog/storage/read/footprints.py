"""What a read would take: row groups and bytes of each object, for those who explain or count."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from clog.storage.format.bitmaps.bitmap import files_of
from clog.storage.objects.reader import Footprint, footprint
from clog.storage.read.scan import ReadPiece, runs_of, stored_columns
from clog.storage.store.base import Store


def footprints(
    store: Store, pieces: Sequence[ReadPiece], *, columns: Sequence[str]
) -> Iterator[Footprint]:
    """Yields what `read_pieces` would take for the same; one request for each run of pieces."""
    for run in runs_of(pieces):
        ref, wanted = run[0].object, stored_columns(run, columns)
        ranges = [(piece.first_row, piece.rows) for piece in run]
        found = footprint(store, ref, ranges, columns=wanted, schema=run[0].schema)
        if not wanted:
            found = replace(found, row_groups=0, fetched_bytes=0)
        files = files_of(*(b for p in run if p.marked for b in p.marked.bitmaps))
        yield replace(found, fetched_bytes=found.fetched_bytes + sum(files.values()))
