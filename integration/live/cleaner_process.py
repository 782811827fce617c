"""`clog cleaner` in a process of its own, watched as an operator would."""

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

CONFIG = {
    "log.cleaner.backoff.ms": 1000,
    "log.cleaner.min.cleanable.ratio": 0.3,
    "log.cleaner.dedupe.buffer.size": 128 << 20,
    "log.segment.delete.delay.ms": 60_000,
}


class CleanerProcess:
    """The daemon over one log; its passes go to a file as JSON lines."""

    def __init__(self, url: str, work: Path) -> None:
        self._passes, self._errors = work / "passes.jsonl", work / "cleaner.err"
        config = [word for name, value in CONFIG.items() for word in ("-c", f"{name}={value}")]
        command = [str(Path(sys.executable).with_name("clog")), "cleaner", url, "--json"]
        with self._passes.open("wb") as out, self._errors.open("wb") as err:
            self._process = subprocess.Popen(
                [*command, "--listen", "0", *config], stdout=out, stderr=err
            )

    @property
    def passes(self) -> list[dict]:
        """The passes that it told so far; it tells of sealing and retention, too."""
        told = [json.loads(line) for line in self._passes.read_text().splitlines()]
        return [line for line in told if "stats" in line]

    @property
    def troubles(self) -> list[str]:
        """Warnings and errors that it logged."""
        lines = (x for x in self._errors.read_text().splitlines() if x.startswith("{"))
        found = [json.loads(line) for line in lines]
        return [line["message"] for line in found if line["level"] in ("warning", "error")]

    def get(self, path: str) -> str:
        """A page of its HTTP server."""
        address = re.search(r"http://[\d.]+:\d+", self._errors.read_text())
        assert address is not None, self._errors.read_text()
        with urllib.request.urlopen(f"{address[0]}/{path}") as answer:
            return answer.read().decode()

    def metric(self, name: str) -> float:
        """A metric, summed over its labels."""
        found = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", self.get("metrics"), re.MULTILINE)
        return sum(map(float, found))

    def peak_mib(self) -> float:
        """The most memory that it was given so far."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024

    def stop(self) -> float:
        """SIGTERM; the seconds until it is gone."""
        began = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(timeout=60)
        assert code == 0, self._errors.read_text()
        return time.monotonic() - began

    def kill(self) -> None:
        """Ends it, if it still runs."""
        self._process.kill()
        self._process.wait()
