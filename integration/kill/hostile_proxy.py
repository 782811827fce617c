"""A network between everybody and an S3 server: it delays, cuts connections before a request or
instead of its reply, and sends some requests again, up to seconds later.

    python hostile_proxy.py PORT UPSTREAM_PORT [--delay-ms 5] [--cut 0.002] [--repeat 0.005]

CUT and REPEAT are shares of the requests. Each minute, and when it ends, it prints how many it has
cut and repeated, and how many there were of each kind, in each folder of the bucket, by each
process that says its name (``AWS_SDK_UA_APP_ID``).
"""

import argparse
import asyncio
import json
import random
import re
import signal
from asyncio import StreamReader, StreamWriter
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress

METHODS = (b"GET ", b"PUT ", b"POST", b"HEAD", b"DELE")
IN_A_FOLDER = re.compile(rb"[?&]prefix=(\w+)|^/\w+/(\w+)")
SAYS_WHO = re.compile(rb"\r\nuser-agent:[^\r\n]* app/([\w-]+)", re.IGNORECASE)
REPEATED_WITHIN_S = 3.0
CHUNK = 1 << 18
TELLS_EVERY_S = 60


class Network:
    """What lies between."""

    def __init__(self, upstream: int, delay_s: float, cut: float, repeat: float) -> None:
        self._upstream, self._delay_s, self._cut, self._repeat = upstream, delay_s, cut, repeat
        self._tasks: set[asyncio.Task[None]] = set()
        self.counts: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()

    async def connect(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Passes a connection on, both ways, until it is cut."""
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._upstream)
        except OSError:  # The server was killed.
            writer.close()
            return
        answers = self._keep(self._pass_on(there, writer, None))
        with suppress(OSError):
            await self._pass_on(reader, back, answers)
        for end in (back, writer):
            end.close()

    async def _pass_on(
        self, source: StreamReader, to: StreamWriter, answers: "asyncio.Task[None] | None"
    ) -> None:
        """``answers``: what passes their replies on, where these are requests."""
        with suppress(OSError):
            while data := await source.read(CHUNK):
                await asyncio.sleep(self._delay_s)
                if answers is not None and data.startswith(METHODS):
                    self.counts["requests"] += 1
                    self.kinds[_kind(data)] += 1
                    if random.random() < self._repeat and _is_whole(data):
                        self._keep(self._again(data))
                    if random.random() < self._cut:
                        self.counts["cut"] += 1
                        if random.random() < 0.5:  # It arrives, and nobody hears of it.
                            answers.cancel()
                            to.write(data)
                            await to.drain()
                            await asyncio.sleep(0.2)
                        return
                to.write(data)
                await to.drain()
        to.close()

    async def _again(self, data: bytes) -> None:
        """Sends a request once more, later, and ignores what comes back."""
        await asyncio.sleep(random.random() * REPEATED_WITHIN_S)
        self.counts["repeated"] += 1
        with suppress(OSError):
            there, back = await asyncio.open_connection("127.0.0.1", self._upstream)
            back.write(data)
            await back.drain()
            with suppress(TimeoutError):
                await asyncio.wait_for(there.read(CHUNK), REPEATED_WITHIN_S)
            back.close()

    def _keep(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _kind(data: bytes) -> str:
    """The folder of the bucket that a request is for, who sent it, and its method."""
    method, _, place = data.partition(b"\r\n")[0].partition(b" ")
    match = IN_A_FOLDER.search(place)
    name = "LIST" if match and match[1] else method.decode()
    name = "commit" if name == "PUT" and b"/commits/" in place else name
    folder = (match[1] or match[2]).decode() if match else "bucket"
    who = SAYS_WHO.search(data)
    return f"{folder} {who[1].decode() if who else 'others'} {name}"


def _is_whole(data: bytes) -> bool:
    """Whether a request came in one piece."""
    head, found, body = data.partition(b"\r\n\r\n")
    if not found or b"chunked" in head.lower():
        return False
    sizes = [x for x in head.lower().split(b"\r\n") if x.startswith(b"content-length:")]
    return len(body) == (int(sizes[0].partition(b":")[2]) if sizes else 0)


async def serve(port: int, network: Network) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with await asyncio.start_server(network.connect, "127.0.0.1", port, backlog=1000):
        while not ended.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), TELLS_EVERY_S)
            print(json.dumps({**network.counts, "kinds": network.kinds}), flush=True)


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    ask.add_argument("port", type=int)
    ask.add_argument("upstream", type=int)
    ask.add_argument("--delay-ms", type=float, default=5)
    ask.add_argument("--cut", type=float, default=0.002)
    ask.add_argument("--repeat", type=float, default=0.005)
    given = ask.parse_args()
    network = Network(given.upstream, given.delay_ms / 1000, given.cut, given.repeat)
    asyncio.run(serve(given.port, network))


if __name__ == "__main__":
    main()
