"""The examples of tables that use Spark do what their README says."""

import importlib.util
import json
from pathlib import Path

import pytest

TABLES = Path(__file__).parents[2] / "examples" / "tables"


def example(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", TABLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_stream_joined_with_a_table(spark, tmp_path):
    """The table is that of each batch: one address that changed meanwhile, and one that is gone."""
    shipped = example("stream_table_join").main(spark, str(tmp_path))
    assert shipped == {
        "order 1": "Paris",
        "order 2": "Roma",
        "order 3": "Lyon",
        "order 4": "to be asked",
    }


def test_state_is_restored(spark, tmp_path):
    """After a crash between the append and Spark's commit, and after a lost checkpoint: no point is
    counted twice, none is lost.
    """
    pytest.importorskip("google.protobuf", reason="transformWithState in Python needs protobuf")
    try:
        in_memory, in_spark = example("state_restore").main(spark, str(tmp_path))
    finally:
        spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
    assert in_memory == {"ann": 7, "bob": 6, "eve": 1}
    position = json.loads(in_spark.pop("#position"))
    assert in_spark == {"ann": "7", "bob": "6", "eve": "1"}
    assert sum(position.values()) == 5
