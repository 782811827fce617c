"""Makes the file for ``spark-submit --py-files``: clog where nothing can be installed.

It has what a wheel has, under the name that Spark wants: a copy of a wheel as clog.zip does, too.
What clog depends on (pyarrow, numpy, fsspec, xxhash) must be on the cluster.

    python integration/build_pyfiles.py clog.zip
    PYTHONPATH=clog.zip spark-submit --py-files clog.zip job.py

``--py-files`` reaches the tasks; PYTHONPATH the processes beside the driver in which Spark looks
formats up and runs streaming sources.
"""

import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("storage", "cleaner", "connector", "bridge")


def build(target: Path) -> None:
    """Writes the zip, over another if there is one."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as out:
        for folder in FOLDERS:
            for path in sorted((ROOT / folder).rglob("*.py")):
                if not path.is_symlink():  # Of `clog/__init__.py`, one is enough.
                    out.write(path, path.relative_to(ROOT / folder).as_posix())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python integration/build_pyfiles.py clog.zip")
    build(Path(sys.argv[1]))
    print(f"wrote {sys.argv[1]}")
