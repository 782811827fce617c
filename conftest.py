"""What tests of all folders share: an empty memory, and an S3 server in a process of its own."""

import gc
import importlib.util
import itertools
import logging
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import hypothesis
import pytest
from fsspec.implementations.memory import MemoryFileSystem

os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")  # else a client asks for credentials
os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
QUICK_JAVA = (
    *("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:+IgnoreUnrecognizedVMOptions"),
    *("-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote"),
)
"""A test's JVM lives for seconds: the quick compiler alone, no collector with its own threads, and
classes that are not verified each time."""
os.environ.setdefault("SPARK_SUBMIT_OPTS", " ".join(QUICK_JAVA))

# The collector would go through thousands of collected tests again and again.
gc.set_threshold(50_000, 20, 100)

# Other examples each time; the profile of pyproject.toml repeats the same.
hypothesis.settings.register_profile("explore", deadline=None, print_blob=True)
# Those of `./test`: the same each time, and an eighth of those at night.
hypothesis.settings.register_profile(
    "change", hypothesis.settings.get_profile("ci"), max_examples=12
)

SERVER_START_S = 60
S3_SERVER = Path(__file__).parent / "tests/s3_server.py"
BENCHMARKS = Path(__file__).parent / "benchmarks"
BROKER = {
    "group.initial.rebalance.delay.ms": 0,
    "log.cleaner.backoff.ms": 200,
    "log.cleaner.dedupe.buffer.size": 2 << 20,
    "log.initial.task.delay.ms": 500,
    "log.retention.check.interval.ms": 500,
    "log.segment.bytes": 1 << 20,
    "num.partitions": 1,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
}
"""Of the broker that tests share: what it does by itself, it does within a second."""
_numbers = itertools.count()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Tests of Spark come first, so that one process has them all, and starts one session: another
    one takes tests away at the end. Long ones come next: at the end, one process would wait.
    """
    first = ("spark", "nightly")
    items.sort(key=lambda item: [item.get_closest_marker(name) is None for name in first])


def pytest_terminal_summary(terminalreporter):
    """Says how many tests ran the product; those right in `tests/` check the repository."""
    passed = terminalreporter.stats.get("passed", ())
    about = sum(report.nodeid.startswith("tests/test_") for report in passed)
    if passed:
        ran = len(passed) - about
        terminalreporter.write_line(f"{ran} tests ran the product, {about} checked the repository")


@pytest.fixture(autouse=True, scope="module")
def memory_is_given_back():
    """What is left in fsspec's memory, each LIST there would go through for all modules to come."""
    yield
    MemoryFileSystem.store.clear()


@pytest.fixture(autouse=True)
def logging_is_given_back():
    """As it was: the command line's daemon sets it up for its process, which here is ours."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory):
    """A broker of Kafka, from the jars of the benchmarks, with fast cleaners and small segments."""
    if importlib.util.find_spec("confluent_kafka") is None:
        pytest.skip("confluent-kafka is not installed")
    sys.path.append(str(BENCHMARKS))
    from peers.environments import UnavailableError, jars
    from peers.kafka import Broker

    try:
        jars("kafka")
    except UnavailableError as e:
        pytest.skip(str(e))
    folder = tmp_path_factory.mktemp("kafka")
    with Broker(folder, BROKER, heap="256m", java_options=QUICK_JAVA) as broker:
        yield broker


@pytest.fixture(scope="session")
def spark_home(tmp_path_factory):
    """Spark without its zip of pyspark, of which Python keeps no compiled modules: its many workers
    start in half the time with the package that is installed.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None:
        pytest.skip("pyspark is not installed")
    home = tmp_path_factory.mktemp("spark")
    for name in ("bin", "jars"):
        (home / name).symlink_to(Path(spec.origin).parent / name)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SPARK_HOME", str(home))
        yield home


@pytest.fixture(scope="session")
def moto_url():
    """The endpoint of an S3 server that all processes of a test can reach."""
    if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
        pytest.skip("moto[server] is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, str(S3_SERVER), str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(port, server)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


@pytest.fixture(scope="session")
def s3_options(moto_url):
    """Storage options of the server."""
    if importlib.util.find_spec("s3fs") is None:
        pytest.skip("s3fs is not installed")
    return {
        "key": "test-access-key",
        "secret": "test-secret-key",
        "client_kwargs": {"endpoint_url": moto_url, "region_name": "us-east-1"},
    }


@pytest.fixture
def s3_bucket(s3_options):
    """The name of a bucket that is new and empty."""
    import s3fs

    bucket = f"test-{os.getpid()}-{next(_numbers)}"
    s3fs.S3FileSystem(**s3_options).call_s3("create_bucket", Bucket=bucket)
    return bucket


@pytest.fixture
def s3_url(s3_bucket):
    """A root in a bucket of its own."""
    return f"s3://{s3_bucket}/logs/orders"


def _wait_for(port, server):
    deadline = time.monotonic() + SERVER_START_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            pytest.fail(f"moto's server ended with {server.returncode}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    pytest.fail(f"moto's server did not listen within {SERVER_START_S} s")
