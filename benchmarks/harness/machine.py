"""The machine and the versions that a result was measured with."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

PACKAGES = (
    *("pyspark", "pyarrow", "numpy", "fsspec", "s3fs"),
    *("deltalake", "pyiceberg", "pypaimon", "duckdb", "rocksdict", "confluent-kafka", "moto"),
)


def machine() -> dict[str, str]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cpu": _cpu(),
        "cores": str(os.cpu_count()),
        "memory": f"{memory:.0f} GiB",
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "load": f"{os.getloadavg()[0]:.1f}",
    }


def versions(root: Path) -> dict[str, str]:
    found = {"python": platform.python_version(), "clog": _commit(root)}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _commit(root: Path) -> str:
    """The checkout's commit, and whether clog's code differs from it; or the installed version."""
    git = ["git", "-C", str(root)]
    commit = subprocess.run(
        [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    if commit.returncode:
        return metadata.version("pyspark-clog")
    code = ("bridge", "cleaner", "connector", "storage")  # What a run writes makes no other clog.
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", *code], check=False)
    return commit.stdout.strip() + ("-dirty" if changed.returncode else "")


def memory_mb(pid: int | str = "self", *, peak: bool = True) -> float:
    """Resident memory of a process, MB; its peak unless asked otherwise."""
    name = "VmHWM:" if peak else "VmRSS:"
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    raise ValueError(f"the system does not tell the memory of process {pid}")


def cpu_seconds() -> float:
    """CPU time of this process and all that it started, as far as they live or were waited for."""
    children: dict[int, list[int]] = {}
    spent: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # It ended meanwhile.
        pid = int(path.parent.name)
        children.setdefault(int(fields[1]), []).append(pid)
        spent[pid] = sum(map(int, fields[11:15]))
    waiting, total = [os.getpid()], 0
    while waiting:
        pid = waiting.pop()
        total += spent.get(pid, 0)
        waiting += children.get(pid, [])
    return total / os.sysconf("SC_CLK_TCK")
