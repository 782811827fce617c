"""A real S3 server far away: Versity's gateway before a folder, behind a proxy that keeps all that
passes for so long each way, and a new connection for a round trip. It counts the requests.

Usage: far_s3.py PORT UPSTREAM_PORT EACH_WAY_MS
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

ASK = b"GET /counted-so-far "
KEY, SECRET = "benchmark-access", "benchmark-secret"
BUCKET = "bucket"
START_S = 60
COUNTED: Counter[str] = Counter()


class Side(asyncio.Protocol):
    """One side of a connection. What comes leaves by the other one, later, in its order.

    Attributes:
        transport: what it writes to, once it is connected.
    """

    def __init__(self, delay_s: float, upstream: int | None) -> None:
        self._delay_s, self._upstream = delay_s, upstream
        self._other: Side | None = None
        self._waiting: deque[bytes] = deque()
        self.transport: asyncio.Transport | None = None
        self._connects: asyncio.Task[None] | None = None
        self._ready_at = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._upstream is not None:
            loop = asyncio.get_running_loop()
            self._ready_at = loop.time() + 2 * self._delay_s
            self._connects = loop.create_task(self._connect(self._upstream))

    async def _connect(self, upstream: int) -> None:
        other = Side(self._delay_s, None)
        other._other = self
        await asyncio.get_running_loop().create_connection(lambda: other, "127.0.0.1", upstream)
        self._other = other

    def data_received(self, data: bytes) -> None:
        if self._upstream is not None:
            if data.startswith(ASK):
                self._answer()
                return
            count(data)
        self._waiting.append(data)
        self._later(self._pass_on)

    def eof_received(self) -> bool:
        self._later(self._close)
        return True

    def connection_lost(self, _: Exception | None) -> None:
        self._later(self._close)

    def _later(self, act: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        loop.call_at(max(loop.time(), self._ready_at) + self._delay_s, act)

    def _pass_on(self) -> None:
        other = self._other
        if other is not None and other.transport is not None and self._waiting:
            other.transport.write(self._waiting.popleft())

    def _close(self) -> None:
        if self._other is not None and self._other.transport is not None:
            self._other.transport.close()

    def _answer(self) -> None:
        body = json.dumps(COUNTED).encode()
        COUNTED.clear()
        head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
        assert self.transport is not None
        self.transport.write(head + body)
        self.transport.close()


def count(data: bytes) -> None:
    """Counts a request, if what was sent begins one."""
    method, _, rest = data[:300].partition(b" ")
    if method in (b"GET", b"PUT", b"POST", b"HEAD", b"DELETE"):
        is_list = method == b"GET" and b"list-type=2" in rest.partition(b" ")[0]
        COUNTED["LIST" if is_list else method.decode()] += 1


async def serve(port: int, upstream: int, each_way_ms: float) -> None:
    loop = asyncio.get_running_loop()
    made = await loop.create_server(
        lambda: Side(each_way_ms / 1000, upstream), "127.0.0.1", port, backlog=1000
    )
    await made.serve_forever()


@contextmanager
def far_s3(
    folder: Path, each_way_ms: int, *, keep_alive: bool = False
) -> Iterator[tuple[str, Callable[[], dict[str, int]]]]:
    """Yields the address of the far server, which has a bucket, and what it counted since one last
    asked. ``keep_alive``: connections stay open, as those of S3 do; else each request begins one,
    and takes two round trips.
    """
    from peers.environments import versitygw
    from peers.kafka import free_ports

    near, far = free_ports(2)
    address = f"http://127.0.0.1:{far}"
    (folder / "s3").mkdir(parents=True)
    login = {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    gateway = [str(versitygw()), "--port", f"127.0.0.1:{near}"]
    gateway += ["--keep-alive"] * keep_alive + ["posix", str(folder / "s3")]
    (folder / "s3" / BUCKET).mkdir()
    with ExitStack() as stack:
        for command in (gateway, [sys.executable, __file__, str(far), str(near), str(each_way_ms)]):
            process = subprocess.Popen(command, env={**os.environ, **login}, **silent)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        for port in (near, far):
            _await(port)
        yield address, lambda: json.load(urllib.request.urlopen(f"{address}/counted-so-far"))


def _await(port: int) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"nobody listened on port {port} within {START_S} s")


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
