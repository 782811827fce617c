"""Everything that clog does, at once, against one S3 server behind a hostile network, for an hour.

    python integration/kill/evening.py [--minutes 60] [--seed S] [--only soak crowd …]

Each member is a run of its own with its own victims and its own oracle (`MEMBERS`). Beside them the
page is open and asked for all that it shows, page and server are killed every few minutes, and once
the server's disk is full for a while, where it may be a disk of its own (root, Linux). Ends with 1
if any member found anything, memory or requests grew, or something that it is for never happened.
See README.md.
"""

import argparse
import http.client
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path

HERE = Path(__file__).resolve().parent
LOGIN = ("evening-access", "evening-secret")
BUCKET, VERSIONED = "evening", "versioned"
ENDS_WITHIN_S = 3600
LOOKS_EVERY_S = 5
ANSWERS_WITHIN_S = 120
FULL_S = 20
SHOP, ERASED = "shop", "erased"
PATIENT = ("--timeout-ms", "30000", "--slower", "6")
"""Two take over from each other: a kill costs both."""
MEMBERS = {
    SHOP: ["capture/soak.py", "--tables", "20", "--spark-every", "5"],
    "mirrored": ["kill/mirrored.py"],
    "soak": ["kill/soak.py"],
    "jobs": ["kill/jobs.py"],
    "crowd": ["kill/crowd.py", "--authors", "32", "--pause-ms", "10000"],
    "transactions": ["kill/transactions.py", "--match", "^$", "--random", "100000", *PATIENT],
    ERASED: ["kill/erased.py"],
}
SLOWER = 3
"""Than alone: who is killed has to start again beside all others."""
SERVER, NETWORK, PAGE = "server", "network", "page"
VICTIMS = (SERVER, PAGE)
KILLS_APART_S, AWAY_S = (120.0, 300.0), 3.0
"""How often each victim of the run itself is killed, and how long it stays away at most."""
LONG_MIN = 30
"""Of a run that lasts so long, all that it is for is asked."""
ORACLE = "oracle"
"""What a member asks itself counts as its oracle's."""
SAYS_WHO = "AWS_SDK_UA_APP_ID"
PEAK_MAX_MIB = 700
UNBOUNDED = ("java", *(Path(program).stem for program, *_ in MEMBERS.values()))
"""JVMs take what they are given; members read all that there is, to compare it."""
COMMIT = "commit"
UNAVAILABLE = 503
"""The page's answer while the server is away: all else but 200 is wrong."""
GROWS_MAX, COMMITS_MIN, MINUTES_MIN = 2, 50, 9
"""From the first third to the last of the minutes in which a process worked, if it worked in so
many: its requests for each of its commits. Those of one that has fewer commits, and of cleaners,
may grow either by commits or by minutes: who is stopped or killed more often works in bursts."""
FILLING_MIN = 10
"""These are left out: logs fill until then, and nothing in them is old enough to be swept."""


class Evening:
    """One run; what it found is in `figures`, and wrong of it what is in `wrong`."""

    def __init__(self, given: argparse.Namespace, work: Path, stack: ExitStack) -> None:
        self._given, self._work, self._stack = given, work, stack
        self._dice = random.Random(given.seed)
        self._data = work / "s3"
        self._ports: dict[str, int] = {}
        self._commands: dict[str, list[str]] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._asked: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._kills: Counter[str] = Counter()
        self._ended: dict[str, int] = {}
        self._peaks_mib: Counter[str] = Counter()
        self.figures: dict[str, object] = {}
        self.wrong: list[str] = []

    def run(self) -> None:
        """Runs all."""
        is_own_disk = self._mount()
        options = self._serve()
        began = time.monotonic()
        for name in self._given.only:
            self._start_member(name, options)
        threading.Thread(target=self._keep_asking, daemon=True).start()
        fills_at = began + 60 * self._given.minutes * self._dice.uniform(0.3, 0.6)
        kills_at = {name: began + self._dice.uniform(*KILLS_APART_S) for name in VICTIMS}
        ends_at = began + 60 * self._given.minutes
        deadline = ends_at + ENDS_WITHIN_S
        while self._running() and time.monotonic() < deadline:
            time.sleep(LOOKS_EVERY_S)
            self._weigh()
            self._tell_who_ended()
            for name in VICTIMS:
                if kills_at[name] < time.monotonic() < ends_at:
                    self._kill_and_start(name)
                    kills_at[name] = time.monotonic() + self._dice.uniform(*KILLS_APART_S)
            if is_own_disk and fills_at < time.monotonic():
                is_own_disk = False
                self._fill()
        codes = {name: self._processes[name].poll() for name in self._given.only}
        self.wrong += [f"{name} ended with {code}" for name, code in codes.items() if code != 0]
        self.wrong += [f"{what}: {n} times" for what, n in self._refused.items()]
        for who, mib in self._peaks_mib.items():
            if who not in UNBOUNDED and mib > PEAK_MAX_MIB:
                self.wrong.append(f"{who} had {mib} MiB")
        self._processes["network"].terminate()
        self._processes["network"].wait(30)
        self.figures |= {
            "minutes": round((time.monotonic() - began) / 60, 1),
            "members": codes,
            "disk, MiB": shutil.disk_usage(self._data).used >> 20,
            "kills": self._kills,
            "page": self._asked,
            "page refused": self._refused,
            "peaks, MiB": dict(sorted(self._peaks_mib.items())),
            **self._requests(),
        }
        if self._given.minutes >= LONG_MIN:
            self.wrong += [f"{name} was never killed" for name in VICTIMS if not self._kills[name]]
            self.wrong += ["the disk was never full"] * ("disk full, s" not in self.figures)
            self.wrong += ["the page showed no table"] * (not self._asked["/api/logs/N/table 200"])

    def told(self) -> None:
        """Prints the figures, and how each member ended."""
        for name in self._given.only:
            lines = (self._work / f"{name}.out").read_text(errors="replace").splitlines()
            print(f"── {name}", *lines[-40:], sep="\n", flush=True)
        print(json.dumps({**self.figures, "wrong": self.wrong}, indent=2))

    def _tell_who_ended(self) -> None:
        """Prints each member once that ended, and how."""
        for name in self._given.only:
            code = self._processes[name].poll()
            if code is not None and name not in self._ended:
                self._ended[name] = code
                print(f"{time.strftime('%H:%M:%S')} {name} ended with {code}", flush=True)

    def _running(self) -> bool:
        return any(self._processes[name].poll() is None for name in self._given.only)

    def _serve(self) -> dict[str, object]:
        """Starts the server, the network before it, and the page."""
        sys.path.append(str(HERE.parent / "stores"))
        import servers

        folders = [self._data / "buckets", self._data / "versions"]
        for folder in (*folders, folders[0] / BUCKET):
            folder.mkdir()
        self._ports = {name: servers.free_port() for name in (SERVER, NETWORK, PAGE)}
        package = "github.com/versity/versitygw/cmd/versitygw"
        gateway = [servers.go_program(package, servers.VERSITYGW_VERSION), "--keep-alive", "-q"]
        gateway += ["--access", LOGIN[0], "--secret", LOGIN[1]]
        gateway += ["--port", f"127.0.0.1:{self._ports[SERVER]}"]
        gateway += ["posix", "--versioning-dir", str(folders[1]), str(folders[0])]
        network = [sys.executable, str(HERE / "hostile_proxy.py")]
        network += [str(self._ports[NETWORK]), str(self._ports[SERVER])]
        address = f"http://127.0.0.1:{self._ports[NETWORK]}"
        os.environ |= {
            "AWS_ACCESS_KEY_ID": LOGIN[0],
            "AWS_SECRET_ACCESS_KEY": LOGIN[1],
            "AWS_ENDPOINT_URL": address,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            SAYS_WHO: ORACLE,
        }
        page = [sys.executable, "-m", "clog_command", "ui", "--discover", f"s3://{BUCKET}"]
        page += ["--discover", f"s3://{VERSIONED}", "--listen", str(self._ports[PAGE])]
        for name, command in ((SERVER, gateway), (NETWORK, network), (PAGE, page)):
            self._start(name, command)
        client = {"endpoint_url": address, "region_name": "us-east-1"}
        options = {"key": LOGIN[0], "secret": LOGIN[1], "client_kwargs": client}
        self._create_versioned(options)
        return options

    def _create_versioned(self, options: dict[str, object]) -> None:
        """Creates the bucket that keeps old versions of all that is deleted in it."""
        import s3fs

        store = s3fs.S3FileSystem(**options)
        store.call_s3("create_bucket", Bucket=VERSIONED)
        kept = {"VersioningConfiguration": {"Status": "Enabled"}}
        store.call_s3("put_bucket_versioning", Bucket=VERSIONED, **kept)

    def _start_member(self, name: str, options: dict[str, object]) -> None:
        program, *more = MEMBERS[name]
        minutes, seed = self._given.minutes, str(self._dice.randrange(1 << 30))
        bucket = VERSIONED if name == ERASED else BUCKET
        url = ["--url", f"s3://{bucket}/{name}", "--seed", seed, "--minutes", str(minutes)]
        folder = self._work / name
        folder.mkdir()
        where = ["--options", json.dumps(options), "--work", str(folder), "--slower", str(SLOWER)]
        where = ["--folder", str(folder)] if name == SHOP else where
        if name == ERASED:
            kept = (self._data / "buckets" / VERSIONED, self._data / "versions")
            where += ["--raw", *map(str, kept)]
        self._start(name, [sys.executable, str(HERE.parent / program), *url, *where, *more])

    def _start(self, name: str, command: list[str]) -> None:
        """Starts a process, again where it ran, and returns when others can go on."""
        import servers

        says = {**os.environ, SAYS_WHO: name if name == PAGE else ORACLE}
        with (self._work / f"{name}.out").open("ab") as out:
            process = subprocess.Popen(
                command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=says
            )
        self._commands[name], self._processes[name] = command, process
        if name in (SERVER, NETWORK):
            servers.wait_for_port(self._ports[name], process.poll)

    def end(self) -> None:
        """Ends all that is left; members end who they started."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()

    def _kill_and_start(self, name: str) -> None:
        self._processes[name].kill()
        self._processes[name].wait()
        self._kills[name] += 1
        time.sleep(self._dice.uniform(0, AWAY_S))
        self._start(name, self._commands[name])

    def _keep_asking(self) -> None:
        while True:
            time.sleep(LOOKS_EVERY_S)
            self._ask(random.Random())

    def _ask(self, dice: random.Random) -> None:
        """Asks the page what it shows of some log."""
        logs = json.loads(self._answer("/api/logs") or "{}").get("logs", [])
        self._answer("/")
        if logs:
            number = dice.choice(logs)["number"]
            for part in ("", "/cost", "/users", "/records?partition=0", "/table"):
                self._answer(f"/api/logs/{number}{part}")

    def _answer(self, path: str) -> bytes:
        """Returns what the page answers; nothing where it refuses, or does not."""
        what = re.sub(r"\d+", "N", path.partition("?")[0])
        url = f"http://127.0.0.1:{self._ports[PAGE]}{path}"
        try:
            with urllib.request.urlopen(url, timeout=ANSWERS_WITHIN_S) as answer:
                self._asked[f"{what} {answer.status}"] += 1
                return answer.read()
        except urllib.error.HTTPError as e:
            self._asked[f"{what} {e.code}"] += 1
            if e.code != UNAVAILABLE:
                self._refused[f"{what} {e.code}: {_without_numbers(e)}"] += 1
        except (OSError, http.client.HTTPException) as e:  # It was killed, or is silent.
            self._asked[f"{what} {type(e).__name__}"] += 1
        return b""

    def _weigh(self) -> None:
        """Notes the peak of each program among all that this process started (Linux)."""
        children: dict[int, list[int]] = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                parent = int(stat.read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(stat.parent.name))
        found = [os.getpid()]
        for pid in found:
            found += children.get(pid, ())
            with suppress(OSError, StopIteration):
                status = Path(f"/proc/{pid}/status").read_text().splitlines()
                peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
                who = _program(Path(f"/proc/{pid}/cmdline").read_text().split("\0"))
                self._peaks_mib[who] = max(self._peaks_mib[who], peak >> 10)

    def _requests(self) -> dict[str, object]:
        """What the network says: in all, and by process of its work, early and late."""
        said = (self._work / f"{NETWORK}.out").read_text().splitlines()
        told = [json.loads(line) for line in said if line.startswith("{")]
        minutes = [Counter[str]()] + [Counter(one.pop("kinds")) for one in told]
        is_long = self._given.minutes >= LONG_MIN
        filled = FILLING_MIN if is_long else 0
        while_all_run = range(filled + 1, min(len(minutes), int(self._given.minutes) + 1))
        each_minute = [minutes[n] - minutes[n - 1] for n in while_all_run]
        figures: dict[str, dict[str, str]] = {}
        for name in self._given.only:
            whole = _of_a_member(minutes[-1], name)
            figures[name] = {who: str(dict(kinds)) for who, kinds in whole.items()}
            parts = [_of_a_member(minute, name) for minute in each_minute]
            for who in sorted(whole.keys() - {ORACLE, PAGE}):
                of_who = [part[who] for part in parts if who in part]
                early_and_late = _early_and_late(of_who, looks="cleaner" in who)
                for of, (early, late) in early_and_late.items():
                    figures[name][f"{who}, by {of}, early and late"] = f"{early:.1f}, {late:.1f}"
                grows = [late / early for early, late in early_and_late.values()]
                if is_long and grows and min(grows) > GROWS_MAX:
                    self.wrong.append(f"{name}: requests of {who} grow: {early_and_late}")
        return {"network": told[-1], "requests": figures}

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
        self._stack.callback(self._unmount)
        return True

    def _unmount(self) -> None:
        """Gives the disk up, unless somebody will want to look at it."""
        if self.wrong or not self.figures:
            print(f"what the server had is in {self._data}, a disk in memory: umount it")
            return
        subprocess.run(["umount", "-l", str(self._data)], check=False)

    def _fill(self) -> None:
        """Leaves no room on the server's disk for a while."""
        ballast = self._data / "ballast"
        with suppress(OSError), ballast.open("wb") as file:
            while True:
                file.write(bytes(1 << 20))
        time.sleep(FULL_S)
        ballast.unlink()
        self.figures["disk full, s"] = FULL_S


def _of_a_member(counts: Counter[str], member: str) -> dict[str, Counter[str]]:
    """What the network counted in a member's folder, by process and kind."""
    found: dict[str, Counter[str]] = {}
    for kind, n in counts.items():
        folder, who, method = kind.split()
        if folder == member and n:
            found.setdefault(who, Counter())[method] += n
    return found


def _early_and_late(minutes: list[Counter[str]], *, looks: bool) -> dict[str, tuple[float, float]]:
    """Returns the requests of a process in the first and in the last third of the minutes in which
    it worked: for each commit, and in each of these minutes if it rather looks than commits.
    """
    worked = [minute for minute in minutes if minute[COMMIT]] or minutes
    if len(worked) < MINUTES_MIN:
        return {}
    third = len(worked) // 3
    early, late = (sum(part, Counter[str]()) for part in (worked[:third], worked[-third:]))
    commits = min(early[COMMIT], late[COMMIT])
    found = {}
    if commits:
        found[COMMIT] = early.total() / early[COMMIT], late.total() / late[COMMIT]
    if looks or commits < COMMITS_MIN:
        found["minute of work"] = early.total() / third, late.total() / third
    return found


def _without_numbers(answer: urllib.error.HTTPError) -> str:
    try:
        return re.sub(r"\d+", "N", answer.read(400).decode(errors="replace"))
    except (OSError, http.client.HTTPException):
        return ""


def _program(command: list[str]) -> str:
    """Who somebody is, by the command line."""
    script = next((Path(part).stem for part in command if part.endswith(".py")), None)
    if script is not None:
        return f"{script} {command[-2]}" if script == "erasing_process" else script
    if "clog_command" in command:
        return f"clog {command[command.index('clog_command') + 1]}"
    return "forkserver" if "forkserver" in command[-2:][0] else Path(command[0]).name


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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nobody is left behind
    with ExitStack() as stack:
        evening = Evening(given, work, stack)
        stack.callback(evening.end)
        evening.run()
        evening.told()
    return 1 if evening.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
