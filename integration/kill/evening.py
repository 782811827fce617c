"""Everything that clog does, at once, against one S3 server behind a hostile network, for an hour.

    python integration/kill/evening.py [--minutes 60] [--seed S] [--only soak crowd …]

Each member is a run of its own with its own victims and its own oracle (`MEMBERS`). Beside them the
page is open and asked for all that it shows, and once the server's disk is full for a while, where
it may be a disk of its own (root, Linux). Ends with 1 if any member found anything. See README.md.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path

HERE = Path(__file__).resolve().parent
LOGIN = ("evening-access", "evening-secret")
BUCKET = "evening"
ENDS_WITHIN_S = 3600
LOOKS_EVERY_S = 5
FULL_S = 20
MEMBERS = {
    "soak": ["kill/soak.py"],
    "crowd": ["kill/crowd.py", "--authors", "32"],
    "transactions": ["kill/transactions.py", "--match", "^$"],
    "mirrored": ["kill/mirrored.py"],
    "erased": ["kill/erased.py"],
    "shop": ["capture/soak.py", "--tables", "20", "--spark-every", "5"],
}
RANDOM_KILLS_A_MINUTE = 20
"""Of transactions, which are killed so often, not for so long."""


class Evening:
    """One run; what it found is in `figures`."""

    def __init__(self, given: argparse.Namespace, work: Path, stack: ExitStack) -> None:
        self._given, self._work, self._stack = given, work, stack
        self._dice = random.Random(given.seed)
        self._data = work / "s3"
        self._page = ""
        self._asked: Counter[str] = Counter()
        self.figures: dict[str, object] = {}

    def run(self) -> bool:
        """Runs all; tells whether all is right."""
        is_own_disk = self._mount()
        options, page, proxy = self._serve()
        members = {name: self._start(name, options) for name in self._given.only}
        began = time.monotonic()
        fills_at = began + 60 * self._given.minutes * self._dice.uniform(0.3, 0.6)
        deadline = began + 60 * self._given.minutes + ENDS_WITHIN_S
        while any(one.poll() is None for one in members.values()) and time.monotonic() < deadline:
            time.sleep(LOOKS_EVERY_S)
            self._ask(page)
            if is_own_disk and fills_at < time.monotonic():
                is_own_disk = False
                self._fill()
        codes = {name: one.poll() for name, one in members.items()}
        proxy.terminate()
        said = (self._work / "network.out").read_text() if proxy.wait(30) == 0 else ""
        self.figures |= {
            "minutes": round((time.monotonic() - began) / 60, 1),
            "members": codes,
            "network": said.strip(),
            "page": dict(self._asked),
        }
        return all(code == 0 for code in codes.values()) and not self._asked["failed"]

    def told(self) -> None:
        """Prints the figures, and how each member ended."""
        for name in self._given.only:
            lines = (self._work / f"{name}.out").read_text(errors="replace").splitlines()
            print(f"── {name}", *lines[-25:], sep="\n", flush=True)
        print(json.dumps(self.figures, indent=2))

    def _serve(self) -> tuple[dict[str, object], subprocess.Popen[bytes], subprocess.Popen[bytes]]:
        """Starts the server, the network before it, and the page."""
        sys.path.append(str(HERE.parent / "stores"))
        import servers

        (self._data / BUCKET).mkdir(parents=True)
        near, far, shown = (servers.free_port() for _ in range(3))
        package = "github.com/versity/versitygw/cmd/versitygw"
        gateway = [servers.go_program(package, servers.VERSITYGW_VERSION), "--keep-alive"]
        gateway += ["--access", LOGIN[0], "--secret", LOGIN[1], "--port", f"127.0.0.1:{near}"]
        self._started("server", [*gateway, "posix", str(self._data)])
        servers.wait_for_port(near)
        network = [sys.executable, str(HERE / "hostile_proxy.py"), str(far), str(near)]
        proxy = self._started("network", network)
        servers.wait_for_port(far)
        address = f"http://127.0.0.1:{far}"
        os.environ |= {
            "AWS_ACCESS_KEY_ID": LOGIN[0],
            "AWS_SECRET_ACCESS_KEY": LOGIN[1],
            "AWS_ENDPOINT_URL": address,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        ui = [sys.executable, "-m", "clog_command", "ui", "--discover", f"s3://{BUCKET}"]
        page = self._started("page", [*ui, "--port", str(shown)])
        servers.wait_for_port(shown, page.poll)
        self._page = f"http://127.0.0.1:{shown}"
        client = {"endpoint_url": address, "region_name": "us-east-1"}
        return {"key": LOGIN[0], "secret": LOGIN[1], "client_kwargs": client}, page, proxy

    def _start(self, name: str, options: dict[str, object]) -> subprocess.Popen[bytes]:
        program, *more = MEMBERS[name]
        minutes, seed = self._given.minutes, str(self._dice.randrange(1 << 30))
        url = ["--url", f"s3://{BUCKET}/{name}", "--seed", seed]
        if name == "shop":
            where = ["--folder", str(self._work / name), "--minutes", str(minutes)]
        else:
            where = ["--options", json.dumps(options), "--work", str(self._work / name)]
            if name == "transactions":
                where += ["--random", str(int(RANDOM_KILLS_A_MINUTE * minutes))]
            else:
                where += ["--minutes", str(minutes)]
        (self._work / name).mkdir()
        return self._started(
            name, [sys.executable, str(HERE.parent / program), *more, *url, *where]
        )

    def _started(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        out = self._stack.enter_context((self._work / f"{name}.out").open("wb"))
        process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)

        def end() -> None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()

        self._stack.callback(end)
        return process

    def _ask(self, page: subprocess.Popen[bytes]) -> None:
        """Asks the page what it shows; it must live, and answer."""
        if page.poll() is not None:
            self._asked["failed"] += 1
            return
        for path in ("/", "/metrics"):
            try:
                with urllib.request.urlopen(self._page + path, timeout=60) as answer:
                    self._asked[f"{path} {answer.status}"] += 1
            except OSError as e:
                self._asked[f"{path} {type(e).__name__}"] += 1
        status = Path(f"/proc/{page.pid}/status").read_text().splitlines()
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
        self._asked["peak MiB"] = peak >> 10

    def _mount(self) -> bool:
        """Gives the server a disk of its own, where that is possible."""
        self._data.mkdir()
        size = f"size={self._given.disk_mib}m"
        command = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(self._data)]
        try:
            done = subprocess.run(command, capture_output=True, check=False)
        except FileNotFoundError:
            return False
        if done.returncode:
            return False
        self._stack.callback(subprocess.run, ["umount", "-l", str(self._data)], check=False)
        return True

    def _fill(self) -> None:
        """Leaves no room on the server's disk for a while."""
        ballast = self._data / "ballast"
        with suppress(OSError), ballast.open("wb") as file:
            while True:
                file.write(bytes(1 << 20))
        time.sleep(FULL_S)
        ballast.unlink()
        self.figures["disk full, s"] = FULL_S


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    ask.add_argument("--minutes", type=float, default=60)
    ask.add_argument("--seed", type=int, default=1)
    ask.add_argument("--only", nargs="+", choices=MEMBERS, default=[*MEMBERS])
    ask.add_argument("--disk-mib", type=int, default=4096, help="of the server's own disk")
    ask.add_argument("--work", type=Path, help="an empty folder to keep everything in")
    given = ask.parse_args()
    work = (given.work or Path(tempfile.mkdtemp(prefix="clog-evening-"))).resolve()
    work.mkdir(parents=True, exist_ok=True)
    print(f"seed {given.seed}; work in {work}", flush=True)
    with ExitStack() as stack:
        evening = Evening(given, work, stack)
        is_right = evening.run()
        evening.told()
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
