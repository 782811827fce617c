"""A mirror as an operator runs it: `clog mirror SOURCE LOG`.

python mirror_process.py WORLD SOURCE LOG
"""

import json
import os
import sys

import switch
from world import World


def main() -> None:
    switch.arm()
    world = World.load(sys.argv[1])
    os.environ["CLOG_STORAGE_OPTIONS"] = json.dumps(world.storage_options)
    sys.argv[1:] = ["mirror", sys.argv[2], world.url_of(sys.argv[3]), "--json", "--wait", "5m"]
    from clog.cli import main as clog

    clog()


if __name__ == "__main__":
    main()
