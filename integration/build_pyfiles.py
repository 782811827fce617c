"""Makes the file for ``spark-submit --py-files``: clog where nothing can be installed.

A wheel does not do: Python imports a namespace package from a zip only where the zip has entries
for its folders. What clog depends on (pyarrow, numpy, fsspec, xxhash) must be on the cluster.

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
    seen = set()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as out:
        for folder in FOLDERS:
            for path in sorted((ROOT / folder).rglob("*.py")):
                name = path.relative_to(ROOT / folder)
                for parent in reversed(name.parents[:-1]):
                    if parent not in seen:
                        seen.add(parent)
                        out.writestr(f"{parent.as_posix()}/", "")
                out.write(path, name.as_posix())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python integration/build_pyfiles.py clog.zip")
    build(Path(sys.argv[1]))
    print(f"wrote {sys.argv[1]}")
