"""The job of examples/kafka_job, which was written for Kafka, on logs."""

import importlib.util
import json
from pathlib import Path

from clog.storage.log import Log

JOB = Path(__file__).parents[2] / "examples" / "kafka_job" / "job.py"


def load_job():
    spec = importlib.util.spec_from_file_location("kafka_job", JOB)
    job = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(job)
    return job


def raw(*lines):
    """Records as the producer sends them: no key, a line of CSV in JSON."""
    return [{"key": None, "value": json.dumps({"data": line})} for line in lines]


def test_the_job_runs_on_logs(spark, queries, tmp_path):
    """By its format and path alone: lines that do not parse and duplicate readings, also after a
    restart, are left out; the others are there once.
    """
    job = load_job()
    log = Log.create(str(tmp_path / job.RAW), config={"cleanup.policy": "delete"})
    given = ["--logs", str(tmp_path), "--checkpoint", str(tmp_path / "checkpoint"), "--once"]
    first, second = "1,1377986560,3.5,0,1,0,3", "2,1377986580,0.75,1,0,0, 4 "
    log.append(raw(first, "x", "1,2,3", second, first, "9,soon,1,1,1,1,1"))
    job.run(spark, job.arguments(given)).awaitTermination()
    log.append([*raw(second, "3,1377986600,1,1,1,0,3"), {"key": None, "value": "not JSON"}])
    job.run(spark, job.arguments(given)).awaitTermination()

    records = [r for b in Log.open(str(tmp_path / job.PREPARED)).read() for r in b.to_pylist()]
    readings = sorted((json.loads(r["value"]) for r in records), key=lambda r: r["message_id"])
    values = [(r["message_id"], r["reading_value"], r["house_id"]) for r in readings]
    assert values == [("1", 3.5, 3), ("2", 0.75, 4), ("3", 1.0, 3)]
    assert set(readings[0]) == {"timestamp", *job.FIELDS}
    assert all(r["key"] for r in records)
