"""Who may import whom: the contracts of pyproject.toml hold, and a broken one is found."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from clog.storage import spi

ROOT = Path(__file__).parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
SPI = "guests stand on public names and clog.storage.spi"
LAYERS = "storage < state < cleaner | connector | bridge < jobs < cli < bridge_cli"
PACKAGES = (
    "storage/clog/storage",
    "storage/clog/state",
    "tests/support/clog_testing",
    "cleaner/clog/cleaner",
    "connector/clog/connector",
    "bridge/clog/bridge",
    "bridge/clog/bridge_cli",
    "cleaner/clog/cli",
    "cleaner/clog/jobs",
)
PURE = ("clog.storage", "clog.cleaner", "clog.bridge")


def loaded_after(statement: str) -> set[str]:
    """Top-level names of the modules that a fresh interpreter has loaded."""
    code = f"import sys; {statement}; print(*{{m.split('.')[0] for m in sys.modules}})"
    return set(
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True
        ).stdout.split()
    )


def test_the_contracts_hold():
    """storage imports nobody, cleaner and connector build on it, outside libraries have
    one door.
    """
    # In a process of its own: the linter configures logging, and so silences every logger there is.
    run = subprocess.run(
        [sys.executable, "-c", LINT], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{len(SETTINGS['contracts'])} kept, 0 broken" in run.stdout


TRESPASSERS = [
    ("storage/clog/storage/format", "import clog.cleaner", LAYERS),
    ("storage/clog/storage/read", "import clog.cli", LAYERS),
    ("cleaner/clog/cleaner/duties", "import clog.connector", LAYERS),
    ("connector/clog/connector/read", "import clog.cleaner", LAYERS),
    ("cleaner/clog/cleaner/duties", "import pyspark", "only the connector imports pyspark"),
    ("bridge/clog/bridge/mysql", "import clog.storage.env", SPI),
    ("bridge/clog/bridge_cli", "from clog.storage.read import table", SPI),
    ("storage/clog/storage/commit", "import fsspec", "only the store imports fsspec"),
    ("connector/clog/connector/read", "import s3fs", "only the store imports fsspec"),
    ("storage/clog/storage/format", "import clog.storage.read", "the rooms of storage"),
    ("storage/clog/storage/keys", "import clog.storage.format", "the rooms of storage"),
    (
        "cleaner/clog/cleaner/passes",
        "import clog.cleaner.duties.sweep",
        "the rooms of the cleaner",
    ),
    (
        "connector/clog/connector/read",
        "import clog.connector.datasource",
        "the rooms of the connector",
    ),
]
"""Where, what is imported there, and the contract that forbids it."""


def test_broken_layers_are_found(tmp_path):
    """The same contracts on a copy of the packages' skeleton, with some imports too many: each is
    told under the contract that forbids it, and under no other.
    """
    for package in PACKAGES:
        for room in (ROOT / package).glob("*.py"):
            make_module(tmp_path / package / room.name, "")
        for room in (ROOT / package).glob("*/__init__.py"):
            make_module(tmp_path / package / room.parent.name / "__init__.py", "")
    for inner in ("bridge/clog/bridge/capturing", "bridge/clog/bridge/postgres"):
        for room in (ROOT / inner).glob("*.py"):
            make_module(tmp_path / inner / room.name, "")
    face = "storage/clog/__init__.py"
    make_module(tmp_path / face, (ROOT / face).read_text())
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    for number, (path, statement, _) in enumerate(TRESPASSERS):
        make_module(tmp_path / path / f"trespasser{number}.py", statement)
    roots = [str(tmp_path / folder) for folder in ("storage", "cleaner", "connector", "bridge")]
    run = subprocess.run(
        [sys.executable, "-c", LINT, *roots],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1, run.stdout + run.stderr
    names = {contract for _, _, contract in TRESPASSERS}
    kept = len(SETTINGS["contracts"]) - len(names)
    assert f"{kept} kept, {len(names)} broken" in run.stdout
    titles = "|".join(map(re.escape, names))
    _, *sections = re.split(rf"^({titles})\n-+$", run.stdout, flags=re.MULTILINE)
    told = dict(zip(sections[::2], sections[1::2], strict=True))
    for number, (path, _, contract) in enumerate(TRESPASSERS):
        module = f"{path.partition('/')[2].replace('/', '.')}.trespasser{number}"
        assert {name for name in names if f"{module} -> " in told[name]} == {contract}, run.stdout


GUESTS = (
    *(ROOT / "bridge/clog").rglob("*.py"),
    *(ROOT / f"cleaner/clog/cli/{name}.py" for name in ("cost", "page", "serving")),
)
BEHIND = re.compile(r"\.(?:handle|_handle|standing|tip)\b")


def test_a_guest_reaches_for_nothing_behind_a_log():
    """It asks `Inside`: a log's handle leads to all that it may not import."""
    assert len(GUESTS) > 20
    assert [str(path) for path in GUESTS if BEHIND.search(path.read_text())] == []
    assert BEHIND.search("log.handle.tip")


def test_guests_get_few_names():
    """At most twenty, each of which a guest uses."""
    texts = "\n".join(path.read_text() for path in GUESTS)
    assert len(spi.__all__) <= 20
    assert [name for name in spi.__all__ if not re.search(rf"\b{name}\b", texts)] == []
    assert all(getattr(spi, name) for name in spi.__all__)


LINT = """
import sys
sys.path[:0] = sys.argv[1:]
import importlinter.cli
sys.exit(importlinter.cli.lint_imports(no_cache=True))
"""


def make_module(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("package", PURE)
def test_no_pyspark_comes_with(package):
    """A reader or a cleaner runs where Spark is not installed."""
    assert "pyspark" not in loaded_after(f"import {package}")


def test_looking_the_data_source_up_is_cheap():
    """Spark imports every `pyspark_*` module in a fresh process: no filesystem, no Parquet yet."""
    loaded = loaded_after("import pyspark_clog")
    assert not loaded & {"fsspec", "s3fs", "botocore", "pandas", "click", "rich", "xxhash"}
