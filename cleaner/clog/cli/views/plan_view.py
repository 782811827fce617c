"""`--dry-run` of `clog clean` and `clog cleaner`: what the next round would do, line by line."""

from dataclasses import asdict
from typing import TYPE_CHECKING

from clog.cli.output import counted, print_json, say, size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clog.cleaner.dry_run import PlannedPass, PlannedRewrite, PlannedRound


def tell_plans(planned: "Iterable[tuple[str, PlannedRound]]", *, json: bool) -> None:
    """Tells what would be done over logs, given by their URLs."""
    if json:
        logs = [{"url": url} | asdict(mine) for url, mine in planned]
        print_json({"dry_run": True, "logs": logs})
        return
    for url, mine in planned:
        say(f"{url}:")
        for line in plan_lines(mine):
            say(f"  {line}")


def plan_lines(planned: "PlannedRound") -> list[str]:
    """Returns a line for each thing that would happen; one that says so where nothing would."""
    lines = [f"seal the active segment of partition {p}: it is idle" for p in planned.sealed]
    lines += [
        f"remove {counted(c.records, 'record')}, {size(c.size_bytes)}, of partition {c.partition}"
        f" below offset {c.start_offset}: retention"
        for c in planned.cuts
    ]
    lines += [
        f"rewrite {counted(t.chunks, 'chunk')}, {size(t.size_bytes)}, of partition {t.partition}"
        f" in [{t.base_offset}, {t.next_offset}): what is below the log start goes"
        for t in planned.trims
    ]
    lines += _rewrites(planned.coalesced_first, "first coalesce {}, {}, which the passes share")
    lines += [
        f"clean partition {p.partition} ({p.reason}, dirty ratio {p.dirty_ratio:.2f}): map"
        f" {counted(p.map_records, 'record')} in [{p.first_dirty_offset},"
        f" {p.first_uncleanable_offset}), read the keys of {counted(p.records, 'record')},"
        f" rewrite at most {size(p.size_bytes)}{_rest(p)}"
        for p in planned.passes
    ]
    lines += [
        f"leave partition {p} alone: its last pass failed, and back-off is not over;"
        ' "clog describe" says why, "clog clean --force" does not wait'
        for p in planned.resting
    ]
    old = "rewrite {} whose dead rows have waited long enough, {}"
    lines += _rewrites(planned.materialised, old)
    lines += _rewrites(planned.coalesced, "coalesce {}, {}")
    lines += [
        f"merge {counted(m.segments, 'segment')}, {size(m.size_bytes)}, of partition {m.partition}"
        f" in [{m.base_offset}, {m.next_offset}): nothing is read or written"
        for m in planned.merged
    ]
    if planned.deleted:
        lines.append(
            f"delete {counted(len(planned.deleted), 'replaced object')},"
            f" {size(planned.deleted_bytes)}"
        )
    return lines or ["nothing is due"]


def _rewrites(rewrites: "Sequence[PlannedRewrite]", what: str) -> list[str]:
    """Returns a line of how many chunks are rewritten, and of how many bytes, if there are any."""
    if not rewrites:
        return []
    chunks = counted(sum(r.chunks for r in rewrites), "chunk")
    return [what.format(chunks, size(sum(r.size_bytes for r in rewrites)))]


def _rest(planned: "PlannedPass") -> str:
    """Returns what merges, what may be marked, and what was, in words."""
    parts = []
    if planned.segments_merged < planned.segments:
        segments = counted(planned.segments, "segment")
        parts.append(f"; of {segments} at most {planned.segments_merged} are left")
    if planned.markable_records:
        parts.append(f"; where little dies in {counted(planned.markable_records, 'record')}, mark")
    if planned.records_marked:
        parts.append(f"; {counted(planned.records_marked, 'record')} marked before")
    return "".join(parts)
