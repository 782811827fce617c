"""Where Spark finds ``format("clog")``: it takes ``DefaultSource`` of every module ``pyspark_*``.

One such module that raises hides all data sources, other packages' too; so this one leaves out what
it cannot import.
"""

try:
    from clog.connector.datasource import ClogDataSource as DefaultSource
except ImportError:  # Spark is too old to have Python data sources, or clog is not whole.
    __all__ = []
else:
    __all__ = ["DefaultSource"]
