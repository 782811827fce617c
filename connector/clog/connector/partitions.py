"""What the driver gives to a read task: plain data, complete, so that a task asks for objects and
nothing else.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from clog.connector.location import Location

if TYPE_CHECKING:
    from clog.storage.reader import ReadPiece
    from clog.storage.table import TablePlan


@dataclass(frozen=True)
class LogPartition(InputPartition):
    """Pieces of a log to be read in this order, planned at ``version``.

    ``seed`` is the log's, for its key indexes. ``follow``: an object that is gone meanwhile is
    looked for in the newest version (streams); else the version has expired (batch). ``keys``: only
    records with one of these; None: all.
    """

    location: Location
    version: int
    seed: int
    pieces: tuple["ReadPiece", ...]
    follow: bool
    fail_on_data_loss: bool
    keys: tuple[bytes, ...] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class TablePartition(InputPartition):
    """A slice of a view of one partition of a log, of these keys or of all."""

    location: Location
    plan: "TablePlan"
    keys: tuple[bytes, ...] | None = field(default=None, repr=False)
