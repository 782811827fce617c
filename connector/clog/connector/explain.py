"""What the options of a batch read leave out: Spark's own ``explain`` knows nothing of it.

Nothing here decides anything: a read gives the same rows whatever was pruned.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clog.connector.options.settings import ReadOptions
    from clog.storage.commit.handle import Handle
    from clog.storage.format.manifest import Manifest
    from clog.storage.objects.reader import Footprint
    from clog.storage.read.scan import ReadPiece


@dataclass(frozen=True, slots=True)
class Share:
    """How many things a read fetches, and how many there are.

    Attributes:
        read: how many it fetches.
        total: how many there are.
    """

    read: int
    total: int

    def __str__(self) -> str:
        return f"{self.read:,} of {self.total:,}"


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a read would fetch of a log at one version; `str` prints it.

    Attributes:
        url: the log.
        version: the version that would be read.
        partitions: the share of partitions.
        segments: the share of segments that hold records.
        objects: the share of data objects.
        row_groups: the share of row groups, of the objects that are read.
        size_bytes: the share of bytes, of all that the version's objects hold; the search for
            ``keys`` is part of it.
    """

    url: str
    version: int
    partitions: Share
    segments: Share
    objects: Share
    row_groups: Share
    size_bytes: Share

    def __str__(self) -> str:
        shares = {
            "partitions": self.partitions,
            "segments": self.segments,
            "objects": self.objects,
            "row groups": self.row_groups,
            "bytes": self.size_bytes,
        }
        lines = [f"{name:<10}  {share}" for name, share in shares.items()]
        return "\n".join((f"{self.url} at version {self.version} reads", *lines))


def explain(source: str | Mapping[str, str], **options: object) -> Explanation:
    """Explains what ``spark.read.format("clog")`` with these options would read now; needs no Spark
    session.

    Costs what opening the log does, and a request for each object that is read; with ``keys`` the
    search for them, too.

    Args:
        source: the log's URL, or all options of the read as a mapping (with ``path``).
        options: the options of the read, as Spark takes them.

    Raises:
        OptionError: as the read would.
        NotFoundError: there is no log.
    """
    from clog.connector.options.parsing import as_text
    from clog.connector.options.settings import read_options
    from clog.connector.read.batch_reader import check_batch
    from clog.connector.read.columns import of_the_logs_keys
    from clog.storage.log import Log

    given = {"path": source} if isinstance(source, str) else dict(source)
    given |= {name: as_text(value) for name, value in options.items()}
    settings = read_options(given)
    check_batch(settings)
    handle = Log.open(settings.location.store()).handle
    return _explained(handle, of_the_logs_keys(handle, settings))


def _explained(handle: "Handle", options: "ReadOptions") -> Explanation:
    from clog.connector.opened_logs import types_of
    from clog.connector.read.columns import asked_schema, check_columns_of
    from clog.connector.read.plan_views import view_manifest
    from clog.connector.schema import stored_columns
    from clog.storage.read.footprints import footprints

    schema = asked_schema(options, types_of(handle))
    table = check_columns_of(handle, options, schema)
    columns = stored_columns(schema if table is None else table.as_records(schema))
    if (options.keys is not None or options.view != "log") and "key" not in columns:
        columns.append("key")
    store, manifest = handle.store, view_manifest(handle, options)
    pieces, searched = _pieces(handle, options)
    prints = list(footprints(store, pieces, columns=columns))
    objects = {chunk.object.path for _, chunk in manifest.chunks()}
    return Explanation(
        store.url,
        manifest.version,
        Share(len({piece.partition for piece in pieces}), len(manifest.segments)),
        _segments(manifest, pieces),
        Share(len({p.path for p in prints}), len(objects)),
        Share(sum(p.row_groups for p in prints), _row_groups_total(prints)),
        Share(sum(p.fetched_bytes for p in prints) + searched, sum(manifest.files().values())),
    )


def _pieces(handle: "Handle", options: "ReadOptions") -> tuple[list["ReadPiece"], int]:
    """Returns what is read, and how many bytes were fetched to find it."""
    from clog.storage.read.footprints import footprints
    from clog.storage.read.key_lookup import is_searched, pieces_of_keys

    store = handle.store
    pieces = [piece for piece in _planned(handle, options) if piece.rows]
    if options.keys is None:
        return pieces, 0
    searched = [piece for piece in pieces if is_searched(piece)]
    unknown = [piece for piece in searched if not piece.object.index_bytes]
    tails = {p.object: p.object.tail for p in searched if p.object.index_bytes}
    prints = footprints(store, unknown, columns=("offset", "key"))
    seed = handle.manifest().head.log.key_seed
    found = list(pieces_of_keys(store, pieces, options.keys, seed))
    asked_bytes = sum(end - start for start, end in tails.values())
    return found, asked_bytes + sum(p.fetched_bytes for p in prints)


def _planned(handle: "Handle", options: "ReadOptions") -> Iterator["ReadPiece"]:
    from clog.connector.read.plan_ranges import batch_ranges, isolation_of
    from clog.connector.read.plan_views import view_plans
    from clog.storage.read.scan import plan_range

    if options.view != "log":
        for plan in view_plans(handle, options):
            yield from (*plan.clean, *plan.dirty)
        return
    manifest = handle.manifest()
    for p, (start, end) in batch_ranges(handle.store, manifest, options).items():
        yield from plan_range(manifest, p, start, end, isolation=isolation_of(options.uncommitted))


def _segments(manifest: "Manifest", pieces: list["ReadPiece"]) -> Share:
    filled = [
        (p, segment.base, segment.next)
        for p, segments in enumerate(manifest.segments)
        for segment in segments
        if segment.chunks
    ]
    starts: dict[int, list[int]] = {}
    for piece in pieces:
        starts.setdefault(piece.partition, []).append(piece.start)
    read = sum(any(base <= start < end for start in starts.get(p, ())) for p, base, end in filled)
    return Share(read, len(filled))


def _row_groups_total(prints: list["Footprint"]) -> int:
    # An object that is read in several runs has its row groups once.
    return sum({p.path: p.row_groups_total for p in prints}.values())
