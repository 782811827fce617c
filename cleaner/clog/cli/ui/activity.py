"""What the cleaner in this process does and has done, as data fit for JSON."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clog.cli.views.daemon_view import remaining_ms

if TYPE_CHECKING:
    from clog.cleaner.monitor import Activity, LogState, Monitor


@dataclass(frozen=True, slots=True)
class ShownCleaner:
    """A cleaner, by its monitor. Asks nothing of any store."""

    monitor: "Monitor"

    def state(self) -> dict[str, Any]:
        """Returns the passes under way, and what was done to each log since the process began."""
        now_ms = self.monitor.clock.monotonic_ms()
        return {
            "idle_ms": now_ms - self.monitor.round_ms,
            "passes": [_pass(activity, now_ms) for activity in self.monitor.activities()],
            "logs": [_log(url, state) for url, state in self.monitor.logs().items()],
        }


def _pass(activity: "Activity", now_ms: int) -> dict[str, Any]:
    progress, chosen = activity.progress, activity.candidate
    return {
        "url": activity.url,
        "partition": chosen.partition,
        "reason": chosen.reason.value,
        "phase": progress.phase,
        "records_done": min(progress.records_done, progress.records_total),
        "records_total": progress.records_total,
        "bytes_moved": progress.bytes_moved,
        "spent_ms": now_ms - activity.began_ms,
        "left_ms": remaining_ms(activity, now_ms),
    }


def _log(url: str, state: "LogState") -> dict[str, Any]:
    totals = state.totals
    return {
        "url": url,
        "passes": totals["passes"],
        "removed": totals["records_read"] - totals["records_written"] + totals["records_marked"],
        "bytes_read": totals["bytes_read"],
        "bytes_written": totals["bytes_written"],
        "error": state.error,
    }
