"""A forked child beside its parent's connections, which real servers, unlike moto, keep alive."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.s3

FORK = """
import json, os, sys
from clog.storage import Log
url, options = sys.argv[1], json.loads(sys.argv[2])
log = Log.create(url, storage_options=options)
log.append([{"key": "parent", "value": "1"}])
if (child := os.fork()) == 0:
    log.append([{"key": "child", "value": "1"}])
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
log.append([{"key": "parent", "value": "2"}])
print(log.version)
"""


def test_a_forked_child_says_nothing(s3_bucket, proxied_options):
    """It connects again, and leaves alone what it inherited: its parent continues to use it."""
    words = [f"s3://{s3_bucket}/log", json.dumps(proxied_options)]
    done = subprocess.run(
        # Python 3.12 and newer warn of any fork beside threads.
        [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", FORK, *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "3\n")
    (warning,) = done.stderr.splitlines()  # of the opening: the server is not Amazon's
    assert "conditional writes passed, which is no proof" in warning
