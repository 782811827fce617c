"""Lines of a stream as they come, with a limit on the wait: what a terminal, a pipe and a file
have in common.
"""

import io
import os
import select
from typing import BinaryIO

BLOCK_BYTES = 1 << 20


class LineReader:
    """Reads a stream by blocks, so that a line is there as soon as its line feed is.

    ``stop`` is a descriptor: once there is something to read in it, the stream has ended, before a
    line that has no line feed yet.
    """

    def __init__(self, stream: BinaryIO, stop: int | None = None) -> None:
        self._stream = stream
        self._stops = [] if stop is None else [stop]
        self._tail = b""
        self._ended = False
        try:
            self._fd: int | None = stream.fileno()
        except (OSError, io.UnsupportedOperation):
            self._fd = None

    def read(self, timeout_ms: int | None) -> list[bytes] | None:
        """Returns lines without line feeds that were read at once; None at the end, empty when
        nothing came in time.

        ``timeout_ms`` None waits for ever. A last line needs no line feed.
        """
        if self._ended:
            return None
        if self._fd is None:
            block = self._stream.read(BLOCK_BYTES)
        else:
            wait_s = None if timeout_ms is None else timeout_ms / 1000
            ready = select.select([self._fd, *self._stops], [], [], wait_s)[0]
            if not ready:
                return []
            if ready != [self._fd]:
                self._ended = True
                return None
            block = os.read(self._fd, BLOCK_BYTES)
        if not block:
            self._ended = True
            return [self._tail] if self._tail else None
        *lines, self._tail = (self._tail + block).split(b"\n")
        return lines
