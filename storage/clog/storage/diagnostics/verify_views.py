"""Whether what published views name is there (S63)."""

from collections.abc import Iterator

from clog.storage.commit.identity import StandingLog
from clog.storage.errors import CorruptionError, InvalidInputError
from clog.storage.format import paths
from clog.storage.format.manifest import Manifest
from clog.storage.publications.publish import FORMATS, view_of


def view_problems(standing: StandingLog, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yields (format, message) of views that cannot be read, and of files that are missing, of
    versions that a pin holds; nothing of a log that was not published. For each view two LISTs and
    a GET for each version.
    """
    for name, pins in manifest.head.pins.items():
        if name not in FORMATS:
            continue
        view = view_of(standing, name)
        try:
            view.look()
            if view.source is None or view.source.log_id != standing.log_id:
                continue  # It was taken away, or is that of the log which stood here before.
            named = view.named(pins[0].view)
        except (CorruptionError, InvalidInputError) as e:
            yield name, str(e)
            continue
        there = {
            found.path
            for folder in (paths.DATA, paths.VIEWS)
            for found in standing.store.list(folder)
        }
        for path in sorted(named - there):
            yield name, f"a version that may be read names {path}, which is missing"
