"""``format("clog")``: names, schema, and which class does what.

Spark makes an instance wherever it needs one (to find the schema, to plan, in the process that
commits), mostly in cold processes, so heavy imports are in the methods that need them.
"""

from collections.abc import MutableMapping
from dataclasses import replace
from sys import modules
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from clog.connector.schema import shallow
from clog.storage.errors import InvalidInputError, OptionError

if TYPE_CHECKING:
    from clog.connector.opened_logs import Loaded
    from clog.connector.read.batch_reader import ClogReader
    from clog.connector.read.changes import ChangesReader
    from clog.connector.read.stream_reader import ClogStreamReader
    from clog.connector.write.writers import ClogStreamWriter, ClogWriter


SPARK_MIN = (4, 2)
"""The first version with admission control, AvailableNow and the Arrow stream writer."""
_COMMITS = "pyspark.sql.worker.python_streaming_sink_runner"
"""What runs in a process that commits micro-batches, or aborts them."""


class ClogDataSource(DataSource):
    """A log as a source and a sink of Spark; options are in `connector.options`, columns in
    `schema`.
    """

    @shallow
    def __init__(self, options: MutableMapping[str, str]) -> None:
        _check_spark()
        # Spark's mapping ignores case only until it is copied, so names are lowered for good.
        super().__init__({name.lower(): value for name, value in options.items()})
        # Spark keeps the instance whose `schema` it asked for, and pickles it for each plan.
        self._loaded: Loaded | None = None

    @classmethod
    def name(cls) -> str:
        """Returns the format's name."""
        return "clog"

    @shallow
    def schema(self) -> StructType:
        """Returns the columns of a read without ``.schema(…)``: those of the log's schema. Opens
        the log. Spark also asks for them for a CREATE TABLE without columns, and then names the
        provider, although no query could read that table.
        """
        from clog.connector.opened_logs import try_open
        from clog.connector.options import CATALOG_FORGETS, read_options
        from clog.connector.read.batch_reader import columns_of
        from clog.connector.schema import CHANGES, with_changes
        from clog.connector.statements import DESCRIBED, STATEMENT, answered, described

        if "provider" in self.options:
            raise OptionError(f"this table could not be read: {CATALOG_FORGETS}")
        options = read_options(self.options)
        if STATEMENT in self.options:
            return answered(options.location, self.options[STATEMENT])
        columns, is_changes = options.columns, options.view == "changes"
        if is_changes and columns is not None:
            columns = tuple(name for name in columns if name.lower() not in CHANGES)
        asked = replace(options, columns=columns)
        handle = try_open(options.location)
        shown, self._loaded = columns_of(handle, asked)
        if handle is not None and DESCRIBED in self.options:
            shown = described(handle.tip, shown)
        return with_changes(shown, options.columns) if is_changes else shown

    @shallow
    def reader(self, schema: StructType) -> "ClogReader | ChangesReader":
        """Returns a batch read."""
        from clog.connector.options import read_options

        options = read_options(self.options)
        if options.view == "changes":
            from clog.connector.read.changes import ChangesReader

            return ChangesReader(options, schema, self._loaded)
        from clog.connector.read.batch_reader import ClogReader

        return ClogReader(options, schema, self._loaded)

    @shallow
    def streamReader(self, schema: StructType) -> "ClogStreamReader":
        """Returns a streaming read. An error here would be followed by another one, from Spark's
        worker, which would stop a reader that it does not have; so the reader raises it.
        """
        from clog.connector.options import read_options
        from clog.connector.read.stream_reader import ClogStreamReader, RefusedStreamReader

        try:
            options = read_options(self.options)
            if options.view == "changes":
                from clog.connector.read.changes import ChangesStreamReader

                return ChangesStreamReader(options, schema, self._loaded)
            return ClogStreamReader(options, schema, self._loaded)
        except Exception as e:  # noqa: BLE001 - the reader raises it.
            return RefusedStreamReader(e)

    @shallow
    def writer(self, schema: StructType, overwrite: bool) -> "ClogWriter":
        """Returns a batch write."""
        from clog.connector.options import write_options
        from clog.connector.write.changed_rows import READ_AT, ChangedRowsWriter
        from clog.connector.write.writers import ClogWriter

        options = write_options(self.options)
        if READ_AT in self.options:
            return ChangedRowsWriter(options, schema, int(self.options[READ_AT]))
        return ClogWriter(options, schema, overwrite=overwrite)

    @shallow
    def streamWriter(self, schema: StructType, overwrite: bool) -> "ClogStreamWriter":
        """Returns a streaming write, of which the process that commits needs no plan."""
        from clog.connector.options import write_options
        from clog.connector.write.writers import ClogStreamWriter

        return ClogStreamWriter(
            write_options(self.options), schema, overwrite=overwrite, plans=_COMMITS not in modules
        )


def _check_spark() -> None:
    major, minor = pyspark.__version__.split(".")[:2]
    if (int(major), int(minor)) < SPARK_MIN:
        raise InvalidInputError(
            f"this is Spark {pyspark.__version__}, but format clog needs"
            f" {SPARK_MIN[0]}.{SPARK_MIN[1]} or newer; upgrade pyspark, on the executors too"
        )
