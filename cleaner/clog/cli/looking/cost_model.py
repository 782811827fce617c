"""Requests and bytes a day of a log: COMMIT.md §7, with averages out of the log's own history.

A micro-batch costs a PUT for each data object, a PUT for the commit, a GET for its block (and one
that reads the commit back, where exclusive creates are only probed), and a PUT for each fourth
version's hint; a reader a GET for each poll, and two for each object it reads.
Snapshots, columns, maintenance and bytes are as often and as large as they were. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

DAY_MS = 86_400_000
HINT_STRIDE = 4
READ_REQUESTS_PER_OBJECT = 2
LISTS_PER_SWEEP = 7


@dataclass(frozen=True, slots=True)
class Past:
    """What some commits of a log had, in sum. ``span_ms``: from the first to the last of them;
    ``snapshot_bytes``: of the newest one.
    """

    span_ms: int
    commits: int
    commit_bytes: int
    appends: int
    append_objects: int
    append_bytes: int
    other_objects: int
    other_bytes: int
    snapshots: int
    snapshot_bytes: int = 0
    columns: int = 0
    columns_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Daily:
    """One line of the bill: requests by kind and bytes, a day."""

    what: str
    puts: float = 0.0
    gets: float = 0.0
    lists: float = 0.0
    bytes_out: float = 0.0
    bytes_in: float = 0.0


def daily(
    past: Past, *, trigger_ms: int, readers: int, reads_back: bool = False
) -> Sequence[Daily]:
    """Returns what a day costs at a trigger interval, with streams that read all of it;
    ``reads_back``: on a store where each commit is.
    """
    batches = DAY_MS / trigger_ms
    objects = past.append_objects / past.appends if past.appends else 1.0
    commit_bytes = past.commit_bytes / past.commits if past.commits else 0.0
    days = past.span_ms / DAY_MS
    data = past.append_bytes / days if days else 0.0
    others = (past.commits - past.appends) / days if days else 0.0
    made = past.other_objects / days if days else 0.0
    made_bytes = past.other_bytes / days if days else 0.0
    commits = batches + others
    share = commits / past.commits if past.commits else 0.0
    snapshots, columns = share * past.snapshots, share * past.columns
    written = snapshots * past.snapshot_bytes
    read_back = commits if reads_back else 0.0
    lines = (
        Daily("objects of micro-batches", puts=batches * objects, bytes_out=data),
        Daily(
            "commits",
            puts=commits,
            gets=commits + read_back,
            bytes_out=commits * commit_bytes,
            bytes_in=read_back * commit_bytes,
        ),
        Daily("hints", puts=commits / HINT_STRIDE),
        Daily("snapshots and pages", puts=2 * snapshots, gets=snapshots, bytes_out=written),
        Daily("columns of partitions", puts=columns, bytes_out=share * past.columns_bytes),
        Daily("objects of maintenance", puts=made, gets=made, bytes_out=made_bytes),
        Daily(
            "polls of readers",
            gets=readers * (batches + commits),
            bytes_in=readers * commits * commit_bytes,
        ),
        Daily(
            "reads of readers",
            gets=readers * batches * objects * READ_REQUESTS_PER_OBJECT,
            bytes_in=readers * data,
        ),
        Daily("the sweep", lists=LISTS_PER_SWEEP),
    )
    return [line for line in lines if line.what != "columns of partitions" or past.columns]
