"""Returning memory; ``benchmarks/parts/cleaning_memory.py`` measures how much a pass takes."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="reads /proc, and only glibc gives its heap back"
)

PROGRAM = """
from pathlib import Path
import numpy as np
import pyarrow as pa
from clog.cleaner.passes import offset_map as memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

if {saving}:
    memory.save_memory()
    assert pa.default_memory_pool().backend_name == "system"
# Many arrays that the C library serves from its heap, and one that stays behind them.
held = [np.ones(8 << 10, np.int64) for _ in range(2000)]
kept = np.ones(8 << 10, np.int64)
full = resident()
held.clear()
memory.give_back()
assert full - resident() > 100 << 20, (full, resident())
"""


def run(*, saving):
    """In a separate process, as memory is counted per process."""
    made = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(saving=saving)], capture_output=True, check=False
    )
    assert made.returncode == 0, made.stderr.decode()


def test_freed_memory_is_given_back():
    """S18: freed memory counts as the process's own until it is returned."""
    run(saving=False)


def test_a_process_that_only_cleans():
    """S18: it takes the system's allocator, since Arrow's own keeps up to 200 MiB."""
    run(saving=True)
