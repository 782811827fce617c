"""What maintenance and passes did, for people and for programs."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from clog.cli.output import counted, print_error, size

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clog.cleaner import MaintenanceResult, PassResult


def tell_uncleanable(url: str, partitions: list[int]) -> None:
    """Prints that partitions could not be cleaned."""
    print_error(f'partitions {partitions} of {url} are uncleanable; "clog describe" says why')


def maintenance_json(done: "Iterable[MaintenanceResult]") -> dict[str, Any]:
    """Returns for programs what sealing and retention did."""
    results = list(done)
    return {
        "sealed": [p for result in results for p in result.sealed],
        "retention": [asdict(e) for result in results for e in result.expired],
    }


def maintenance_lines(done: "Iterable[MaintenanceResult]") -> list[str]:
    """Returns for people what sealing and retention did, line by line."""
    lines: list[str] = []
    for result in done:
        lines += [f"sealed the active segment of partition {p}: it was idle" for p in result.sealed]
        lines += [
            f"removed {counted(e.records, 'record')}, {size(e.size_bytes)}, of partition"
            f" {e.partition} below offset {e.start_offset}: retention"
            for e in result.expired
        ]
    return lines


def pass_json(result: "PassResult") -> dict[str, Any]:
    """Returns a pass for programs."""
    removed = {"records_removed": result.stats.records_removed}
    return asdict(result) | {"stats": asdict(result.stats) | removed}


def pass_text(result: "PassResult") -> str:
    """Returns a pass in a line for people."""
    stats = result.stats
    return (
        f"partition {result.partition} is clean to offset {result.next_dirty_offset} (from"
        f" {result.first_dirty_offset}): removed {counted(stats.records_removed, 'record')},"
        f" {size(stats.size_bytes_before)} -> {size(stats.size_bytes_after)}"
    )
