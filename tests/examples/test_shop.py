"""`examples/shop`, as its page says."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("psycopg2")
SHOP = Path(__file__).parents[2] / "examples" / "shop"


@pytest.mark.nightly
@pytest.mark.skipif(
    not (shutil.which("initdb") or list(Path("/usr/lib/postgresql").glob("*/bin"))),
    reason="PostgreSQL is not installed",
)
def test_the_shop_adds_up():
    """S76: two cuts, taken while the shop sells, have each order with its items."""
    run = subprocess.run(
        [sys.executable, "run.py"], cwd=SHOP, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("0 that do not add up") == 2
