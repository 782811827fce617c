"""A stream beside a table that is fresh in each micro-batch: joins with what is true now.

Spark plans a table that a stream is joined with once, when the query starts; it then shows that
version until the query ends. In ``foreachBatch`` the table is read anew for each batch, at the
newest version then, and stays at it for all that is done with the batch. A batch that runs again
may see a newer version than it saw the first time.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame


def beside_table(
    url: str, each_batch: "Callable[[DataFrame, DataFrame, int], None]", **options: object
) -> "Callable[[DataFrame, int], None]":
    """Returns a function for ``foreachBatch``, which calls ``each_batch(df, table, batch_id)`` with
    the table view of a log at the time when the batch begins. Costs one request per batch, plus
    reading what the batch uses of the table.

    Args:
        url: the log.
        each_batch: what to do with a batch and the table.
        options: further options of the table's read, such as ``columns`` or ``keys``.

    Raises:
        OptionError: an option is unknown, or is ``view`` or a version.
    """
    from clog.connector.options.parsing import as_text
    from clog.connector.options.settings import read_options
    from clog.connector.read.batch_reader import check_batch
    from clog.storage.errors import OptionError

    given = {name: as_text(value) for name, value in options.items()}
    own = {"view", "asofversion", "asoftimestamp", "path"} & {name.lower() for name in given}
    if own:
        raise OptionError(f"options {sorted(own)} are beside_table's own; leave them out")
    settings = read_options({**given, "view": "table", "path": url})
    check_batch(settings)

    def with_table(df: "DataFrame", batch_id: int) -> None:
        from clog.connector.opened_logs import opened

        version = opened(settings.location).handle.refresh().version
        of_table = {**given, "view": "table", "asOfVersion": str(version)}
        table = df.sparkSession.read.format("clog").options(**of_table).load(url)
        each_batch(df, table, batch_id)

    return with_table
