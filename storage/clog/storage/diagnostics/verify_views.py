"""Whether what published views name is there (S63), and whether their pins move (S69)."""

from collections.abc import Iterator

from clog.storage.commit.identity import StandingLog
from clog.storage.config.log_config import LogConfig
from clog.storage.errors import CorruptionError, InvalidInputError
from clog.storage.format import paths
from clog.storage.format.manifest import Manifest
from clog.storage.publications.pinning import kept_for_views
from clog.storage.publications.publish import FORMATS, foreign_table, view_of


def view_problems(standing: StandingLog, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yields (format, message) of views that cannot be read, of files that are missing, of versions
    that a pin holds, and of pins that do not move, by the time of the manifest's commit; nothing of
    a log that was not published. For each view two LISTs and a GET for each version.
    """
    delay_ms = LogConfig.from_overrides(manifest.head.config).file_delete_delay_ms
    kept = kept_for_views(manifest, delay_ms, now_ms=manifest.time_ms)
    for name, pins in manifest.head.pins.items():
        if name not in FORMATS:
            continue
        view = view_of(standing, name)
        remedy = f"publish it, or give it up with clog publish --withdraw --format {name}"
        if kept[name].is_stuck(delay_ms):
            message = (
                f"the view keeps {kept[name].objects} objects of {kept[name].size_bytes} bytes that"
                f" were to be deleted {kept[name].overdue_ms // 1000} s ago: it needs version"
                f" {pins[0].version}; {remedy}"
            )
            yield name, message
        try:
            seen = view.look()
            if seen.is_foreign:
                raise foreign_table(view, url=standing.root.url)
            if pins[-1].view > seen.newest and manifest.time_ms - pins[-1].time_ms > delay_ms:
                message = (
                    f"version {pins[-1].version} and all after it are kept for version"
                    f" {pins[-1].view} of the view, which nobody made; {remedy}"
                )
                yield name, message
            if seen.log_id != standing.log_id:
                continue  # It was taken away, or is that of the log which stood here before.
            named = view.named(seen, pins[0].view)
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
