"""The table at the end."""

from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table


@dataclass(slots=True)
class Result:
    """A line: a point, how often somebody died there, and what the oracle found."""

    program: str
    name: str
    kills: int = 0
    problems: list[str] = field(default_factory=list)


def show(console: Console, results: list[Result], facts: list[str]) -> None:
    """Prints the lines, and the problems below them."""
    table = Table(title="killed with SIGKILL", title_justify="left")
    table.add_column("who", no_wrap=True)
    table.add_column("point")
    table.add_column("kills", justify="right")
    table.add_column("oracle", no_wrap=True)
    before = ""
    for result in results:
        if before not in ("", result.program):
            table.add_section()
        before = result.program
        verdict = "[red]FAILED" if result.problems else "[green]ok"
        table.add_row(result.program, result.name, str(result.kills or ""), verdict)
    console.print(table)
    for fact in facts:
        console.print(fact, soft_wrap=True)
    for result in results:
        for problem in result.problems:
            where = f"{result.program}, {result.name}: {problem}"
            console.print(where, style="red", soft_wrap=True, markup=False)
