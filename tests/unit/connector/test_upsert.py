"""Which rows `upsert` does not convert to texts, decided by their types alone."""

import pytest
from pyspark.sql.types import ArrayType, IntegerType, MapType, StringType, StructField, StructType

from clog.connector.upsert import check_rows
from clog.storage.errors import InvalidInputError

READY = StructType([StructField("clog.raw-json", StringType())])


@pytest.mark.parametrize(
    "kind",
    [
        READY,
        ArrayType(READY),
        MapType(StringType(), READY),
        StructType([StructField("n", IntegerType()), StructField("inner", READY)]),
    ],
    ids=["alone", "in an array", "in a map", "in a struct"],
)
def test_the_name_of_json_that_is_ready_is_refused(kind):
    """A struct with this one field represents JSON that Spark has already produced, a variant's:
    any other text would be put into the row without quotes, and mean something else.
    """
    keys, values = [("k", StringType())], [("n", IntegerType()), ("v", kind)]
    with pytest.raises(InvalidInputError, match=r"column v .*clog\.raw-json.*rename"):
        check_rows(keys, values)


def test_the_same_name_beside_others_is_a_name():
    """Only a struct of that one field represents something else."""
    kind = StructType([*READY, StructField("n", IntegerType())])
    check_rows([("k", StringType())], [("v", kind)])
