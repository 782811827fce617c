"""What stands on more than one of storage, cleaner and connector, or beside them: the cleaner as
Spark jobs, and a log of bytes copied into a typed one.
"""

from clog.jobs.cleaning import clean_with_spark
from clog.jobs.decoding import Decode, UndecodableError, avro_values, json_values
from clog.jobs.typing_copy import Converted, convert

__all__ = [
    "Converted",
    "Decode",
    "UndecodableError",
    "avro_values",
    "clean_with_spark",
    "convert",
    "json_values",
]
