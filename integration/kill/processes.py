"""Real processes: started, killed, waited for. Each child leads a session, so that what it starts
can be found and ended with it, and nothing else."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
POLL_S = 0.02
SAYS_WHO = "AWS_SDK_UA_APP_ID"
"""What it holds is in each request to S3, so that those of a process can be counted."""
STOPS_WITHIN_S = 600


class RunError(Exception):
    """A process did what it should not: died by itself, or did not die at its point."""


@dataclass(slots=True)
class Child:
    """A running program of this folder."""

    name: str
    process: subprocess.Popen[bytes]
    output: Path

    @classmethod
    def start(
        cls,
        program: str,
        arguments: Sequence[str],
        *,
        work: Path,
        name: str,
        environment: Mapping[str, str] | None = None,
    ) -> "Child":
        output = work / f"{name}.out"
        with output.open("ab") as out:
            process = subprocess.Popen(
                [sys.executable, str(HERE / f"{program}.py"), *arguments],
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, SAYS_WHO: name, **(environment or {})},
                start_new_session=True,
            )
        return cls(name, process, output)

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def stop(self, timeout_s: float = STOPS_WITHIN_S) -> None:
        """Asks it to end, once it can hear that, and waits.

        Raises:
            RunError: it failed, before or then.
        """
        deadline = time.monotonic() + timeout_s
        while self.is_running and time.monotonic() < deadline:
            if handles(self.process.pid, signal.SIGTERM):
                break
            time.sleep(POLL_S)
        if self.is_running:
            self.process.terminate()
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RunError(f"{self.name} did not stop within {timeout_s} s") from None
        self.end_session()
        if code != 0:
            raise RunError(f"{self.name} ended with {code}: {self.last_words()}")

    def kill(self, *pids: int) -> None:
        """SIGKILL: these of its processes, by default the child and its process group."""
        if pids:
            for pid in pids:
                _kill(pid)
        elif self.is_running:
            os.killpg(self.process.pid, signal.SIGKILL)

    def wait(self, timeout_s: float) -> int | None:
        """Its exit code; None when it still runs."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        """Kills it, and waits until all that it started is gone."""
        self.kill()
        self.end_session()

    def wait_for_death(self, hits: Path, within_s: float, *, where: str) -> None:
        """Waits until it died at its point, of which it says so in ``hits``, and ends what is left.

        Raises:
            RunError: it ended otherwise, or not at all.
        """
        try:
            code = self.wait(within_s)
        finally:
            self.end()
        if code is None:
            raise RunError(f"{where}: not reached within {within_s} s")
        if not hits.exists():
            raise RunError(f"{where}: {self.name} ended with {code}: {self.last_words()}")

    def end_session(self, patience_s: float = 10) -> None:
        """Waits until all that the child started is gone, and kills what is not."""
        deadline = time.monotonic() + patience_s
        while left := _session(self.process.pid):
            if time.monotonic() > deadline:
                for pid in left:
                    _kill(pid)
            time.sleep(POLL_S)

    def pause(self) -> None:
        """Stops it where it is: what it has done so far must be a sound log."""
        os.killpg(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self.process.pid, signal.SIGCONT)

    def last_words(self) -> str:
        return self.output.read_text(errors="replace")[-1500:]


@contextmanager
def paused(children: Iterable[Child]) -> Iterator[None]:
    """Stops all where they are, for as long as the block runs.

    Raises:
        RunError: one has ended by itself.
    """
    stopped = list(children)
    for child in stopped:
        if not child.is_running:
            raise RunError(f"{child.name} ended by itself: {child.last_words()}")
        child.pause()
    try:
        yield
    finally:
        for child in stopped:
            child.resume()


def handles(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler for the signal: a young one has none yet (Linux)."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def _session(leader: int) -> list[int]:
    """Processes of a session but its leader, zombies left out (Linux)."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == leader:
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(int(entry.name))
    return found


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
