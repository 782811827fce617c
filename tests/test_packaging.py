"""The wheel contains the packages and the module by which Spark finds them, and
nothing else.
"""

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TOP = {
    "clog/storage",
    "clog/state",
    "clog/cleaner",
    "clog/connector",
    "clog/bridge",
    "clog/bridge_cli",
    "clog/cli",
    "clog/jobs",
}

needs_hatchling = pytest.mark.skipif(
    importlib.util.find_spec("hatchling") is None, reason="hatchling is not installed (group: test)"
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as opened:
        yield opened


@needs_hatchling
def test_the_wheel_has_every_module_and_nothing_else(wheel):
    """Source roots are cut off; tests, documents of the repository and caches stay out."""
    expected = {
        str(path.relative_to(ROOT / folder))
        for folder in ("storage", "cleaner", "connector", "bridge")
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
        and (
            path.suffix in (".py", ".properties")
            or path.name == "py.typed"
            or path.parent.name == "static"
        )
        and "__pycache__" not in path.parts
        and "jvm" not in path.parts  # A wheel of its own.
    }
    found = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert found == expected
    assert {"/".join(name.split("/")[:2]) for name in found} == TOP | {
        "clog/__init__.py",
        "clog_command.py",
        "pyspark_clog.py",
    }
    assert len(set(wheel.namelist())) == len(wheel.namelist())


@needs_hatchling
def test_the_wheel_carries_license_entry_point_and_types(wheel):
    """What pip, Spark's users and type checkers look for."""
    names = wheel.namelist()
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {f"{package}/py.typed" for package in TOP} <= set(names)
    (entry_points,) = (name for name in names if name.endswith("entry_points.txt"))
    assert "clog = clog_command:main" in wheel.read(entry_points).decode()


@needs_hatchling
def test_no_link_of_the_description_is_relative(wheel):
    """A package index shows the README without the repository around it."""
    (metadata,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    shown = wheel.read(metadata).decode().partition("\n\n")[2]
    readme = (ROOT / "README.md").read_text()
    links, written = (re.findall(r"\]\(([^)]*)\)", text) for text in (shown, readme))
    assert len(links) == len(written)
    assert [link for link in links if not link.startswith("https://")] == []
    source = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
    for kind, path in re.findall(rf"\]\({source}/(\w+)/main/([^)#]+)", shown):
        is_picture = path.endswith((".svg", ".png"))
        assert kind == ("tree" if (ROOT / path).is_dir() else "raw" if is_picture else "blob")
        assert (ROOT / path).exists(), path


@needs_hatchling
def test_an_unpacked_wheel_imports(wheel, tmp_path):
    """From a folder that is not the repository, without the editable install."""
    wheel.extractall(tmp_path)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import clog.storage, clog.cleaner, clog.connector, pyspark_clog\n"
        "assert clog.Log is clog.storage.Log and clog.Cleaner is clog.cleaner.Cleaner\n"
        "found = {m.__file__ for n, m in sys.modules.items() if n.startswith('clog')}\n"
        "assert all(file.startswith(sys.argv[1]) for file in found), found\n"
    )
    # -S leaves the editable install's .pth out; the dependencies come from where they are.
    packages = [p for p in sys.path if p.endswith("site-packages")]
    subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path += {packages}\n{code}", str(tmp_path)],
        cwd=tmp_path,
        check=True,
    )


@needs_hatchling
def test_a_copy_within_a_checkout_is_whole(wheel, tmp_path):
    """A wheel unpacked beside the source roots, or a zip of it there, is not mixed with them."""
    for folder in ("storage", "cleaner", "connector", "bridge"):
        (tmp_path / folder / "clog").mkdir(parents=True)
    wheel.extractall(tmp_path / "lib")
    code = "import sys; sys.path.insert(0, sys.argv[1]); import clog; print(*clog.__path__)"
    for copy in (tmp_path / "lib", Path(wheel.filename).rename(tmp_path / "clog.zip")):
        command = [sys.executable, "-c", code, str(copy)]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        assert run.stdout.split() == [str(copy / "clog")]


def test_the_distribution_is_installed_under_its_own_name():
    """`clog` on PyPI belongs to someone else."""
    assert importlib.metadata.version("pyspark-clog")
    requires = importlib.metadata.requires("pyspark-clog")
    mandatory = {r.split(">")[0] for r in requires if "extra ==" not in r}
    assert mandatory == {"fsspec", "numpy", "pyarrow", "xxhash"}


def test_extras_are_for_users():
    """Those of docs/running.md, no others: what developers install is in groups, outside of the
    metadata.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    section = (
        (ROOT / "docs/running.md")
        .read_text()
        .split("| extra | what it brings |")[1]
        .split("\n\n")[0]
    )
    named = {
        name
        for row in section.splitlines()
        for name in re.findall(r"`([\w-]+)`", row[: row.find("|", 2)])
    }
    assert set(project["optional-dependencies"]) == named


@pytest.mark.nightly
def test_no_test_skips_for_want_of_a_package():
    """`./test` skips those that need what it does not install, `./test all` must not."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]

    def needs(group):
        for need in groups[group]:
            if isinstance(need, dict):
                yield from needs(need["include-group"])
            else:
                yield re.match(r"[\w-]+", need)[0]

    for name in needs("test-all"):
        assert importlib.metadata.version(name)


def test_another_package_of_the_name_is_told(tmp_path):
    """Its ``clog/__init__.py`` hides that of an editable install."""
    (tmp_path / "clog").mkdir()
    (tmp_path / "clog" / "__init__.py").touch()
    code = "import sys; sys.path.insert(0, sys.argv[1]); import clog_command; clog_command.main()"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    first, second = done.stderr.splitlines()
    assert first.startswith(f"error: {tmp_path}/clog/__init__.py belongs to another package")
    assert "pip uninstall clog" in second


def test_workflows_run_what_was_looked_at():
    """A tag of a foreign action can be moved; a commit cannot."""
    used = [
        line.split("uses:")[1].strip()
        for path in (ROOT / ".github/workflows").glob("*.yml")
        for line in path.read_text().splitlines()
        if "uses:" in line
    ]
    pinned = re.compile(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+")
    assert used
    assert [each for each in used if not pinned.fullmatch(each)] == []
