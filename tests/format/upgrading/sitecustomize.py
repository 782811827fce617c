"""On the path of a process, whichever release it runs: the process dies at its Nth commit.

``CLOG_DIES`` is ``<folder> <N>``: a file there has one byte for each commit that it began. N below
0: it dies before that commit, else after it.
"""

import os
import re
import signal
from pathlib import Path

_link = os.link


def _mortal(source, target, **more):
    if not re.search(r"/commits/\d{20}\.json$", os.fspath(target)):
        _link(source, target, **more)
        return
    folder, nth = os.environ["CLOG_DIES"].rsplit(maxsplit=1)
    with Path(folder, "begun").open("ab", buffering=0) as begun:
        begun.write(b".")
    is_due = Path(folder, "begun").stat().st_size >= abs(int(nth))
    if is_due and int(nth) < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    _link(source, target, **more)
    if is_due:
        os.kill(os.getpid(), signal.SIGKILL)


if "CLOG_DIES" in os.environ:
    os.link = _mortal
