"""What commands that take records out of a log leave there: what is undecided, and all behind it,
which readers do not see before it has ended (S51).
"""

from typing import TYPE_CHECKING

from clog.cli.output import print_note

if TYPE_CHECKING:
    from clog.storage import Log


def tell_left_out(log: "Log") -> None:
    """Tells what is left out, where there is something; by the newest version that is known."""
    head = log.handle.tip.head
    stable = {p: head.stable_offset(p) for p in range(head.log.partitions)}
    ends = head.partitions.end
    left = ", ".join(f"{p} from {at}" for p, at in stable.items() if at < ends[p])
    if left:
        print_note(
            f"left out, as transactions have not ended: the records of partitions {left} on;"
            f' "clog transactions {log.url}" says why they wait'
        )
