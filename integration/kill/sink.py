"""clog's sink, with a kill switch in each process that Spark runs it in.

Workers import this module, so the switch is armed before the sink opens anything.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import switch
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from clog.connector import ClogDataSource
from clog.connector.options import write_options
from clog.connector.write.writers import ClogStreamWriter

switch.arm()


class KilledWriter(ClogStreamWriter):
    """`ClogStreamWriter`, as it is."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        switch.arm()
        return super().write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        switch.arm()
        super().commit(messages, batchId)
        switch.reached("sink committed")


class KilledSource(ClogDataSource):
    """``format("clog-killed")``."""

    @classmethod
    def name(cls) -> str:
        return "clog-killed"

    def streamWriter(self, schema: StructType, overwrite: bool) -> KilledWriter:
        return KilledWriter(write_options(self.options), schema, overwrite=overwrite)
