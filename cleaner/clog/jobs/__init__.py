"""Jobs that combine storage, cleaner and connector: the cleaner as Spark tasks, and copying a log
of bytes into a typed one.
"""

from clog.bridge.values import Decode, UndecodableError, avro_values, json_values
from clog.jobs.cleaning import clean_with_spark
from clog.jobs.typing import Converted, convert

__all__ = [
    "Converted",
    "Decode",
    "UndecodableError",
    "avro_values",
    "clean_with_spark",
    "convert",
    "json_values",
]
