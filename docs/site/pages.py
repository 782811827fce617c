"""Brings the pages of the site into a folder: the Markdown of the repository where it stands, and
reference pages made from the code itself.

Call: ``python docs/site/pages.py [FOLDER]``; mkdocs.yml finds the folder by ``$CLOG_SITE_PAGES``.

A page keeps its path, so that links between pages hold. A link to a file that is no page (a module,
a test) goes to the repository.
"""

import inspect
import re
import shutil
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Any

from clog.cleaner import Cleaner
from clog.cleaner.daemon.metrics import registry
from clog.cli.app import COMMANDS, app
from clog.cli.options import SHARED, Argument
from clog.connector.options import DEFINITIONS as OPTIONS
from clog.storage import Log
from clog.storage.config.log_config import DEFINITIONS as CONFIGS
from clog.storage.config.log_config import LogConfig
from clog.storage.config.units import config_text

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCE = PROJECT["urls"]["Source"]
PACKAGES = ("clog.storage", "clog.cleaner", "clog.connector", "clog.bridge")
OUT_OF_SEARCH = re.compile(
    r"(\w+/)*(decisions|tests|integration|benchmarks)/|(CHANGELOG|CONTRIBUTING|RELEASE|STYLE|SECURITY)\.md"
)
"""Pages that are found by their place: they would stand before the guides, which are shorter."""
GUIDE = re.compile(r"README\.md|docs/(five-minutes|spark-sql|running|troubleshooting)\.md")
"""Pages that stand first: what a newcomer asks for."""
LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")


def pages() -> list[str]:
    """Returns the paths of all Markdown that people read, from the root."""
    found = [
        path.relative_to(ROOT)
        for pattern in ("*.md", "[!.]*/**/*.md")
        for path in ROOT.glob(pattern)
    ]
    made = ("flights-run", "artifacts", "node_modules", "build", "dist")
    return sorted(
        str(path)
        for path in found
        if not any(part.startswith(".") or part in made for part in path.parts)
        and path.name != "remarks.md"  # a part of docs/benchmarks.md
    )


def linked(page: str, text: str, known: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yields (link as written, link on the site) of each relative link of a page."""
    for match in LINK.finditer(text):
        target, anchor = match[1], match[2] or ""
        path = normpath(str(PurePosixPath(page).parent / target))
        if path in known or path.endswith((".svg", ".png")):
            continue
        if f"{path}/README.md" in known:
            yield f"{target}{anchor}", f"{target.rstrip('/')}/README.md{anchor}"
        else:
            kind = "tree" if (ROOT / path).is_dir() else "blob"
            yield f"{target}{anchor}", f"{SOURCE}/{kind}/main/{path}{anchor}"


def bring(folder: Path, page: str, known: frozenset[str]) -> None:
    """Brings a page of the repository, and the pictures that it shows."""
    text = (ROOT / page).read_text()
    for written, wanted in set(linked(page, text, known)):
        text = text.replace(f"]({written})", f"]({wanted})")
    put(folder, page, searched(page) + text)
    for picture in re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", text):
        path = normpath(str(PurePosixPath(page).parent / picture))
        put(folder, path, (ROOT / path).read_bytes())


def searched(page: str) -> str:
    """Returns what tells the search how much a page counts."""
    if OUT_OF_SEARCH.match(page):
        return "---\nsearch:\n  exclude: true\n---\n\n"
    return "---\nsearch:\n  boost: 3\n---\n\n" if GUIDE.match(page) else ""


def put(folder: Path, page: str, content: str | bytes) -> None:
    """Writes a page of the site, or a picture."""
    (folder / page).parent.mkdir(parents=True, exist_ok=True)
    (folder / page).write_bytes(content.encode() if isinstance(content, str) else content)


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Returns a Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in lines
    )


def package(name: str) -> str:
    """Returns the reference of what a package exports."""
    exported = import_module(name).__all__
    parts = [f"# {name}\n"]
    parts += [f"::: {name}.{one}\n" for one in exported]
    return "\n".join(parts)


def commands() -> str:
    """Returns the help of every command."""
    known = app.commands
    parts = [
        "# Commands\n",
        "`clog --help` lists the commands, `clog COMMAND --help` explains one.\n",
        "## Options of every command\n",
        parameters(SHARED),
        "",
    ]
    for heading, names in COMMANDS.items():
        parts.append(f"## {heading}\n")
        for name in names:
            text = prose(known[name].help or "")
            parts += [f"### clog {name}\n", text, parameters(known[name].params), ""]
    return "\n".join(parts)


def parameters(declared: Iterable[Any]) -> str:
    """Returns the table of arguments and options."""
    rows = [
        (
            " ".join(f"`{o}`" for o in (*p.opts, *p.secondary_opts)) or f"`{p.name}`",
            p.said if isinstance(p, Argument) else p.help,
        )
        for p in declared
    ]
    return table(("argument or option", "meaning"), rows)


def prose(text: str) -> str:
    """Returns a command's help as Markdown: what it must not wrap is code."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    shown = (f"```\n{one[2:]}\n```" if one.startswith("\b") else one for one in paragraphs)
    return "\n\n".join(shown) + "\n"


def options() -> str:
    """Returns the table of Spark's options."""
    rows = [(f"`{o.name}`", o.use, o.default, o.doc) for o in OPTIONS]
    return "# Spark options\n\n" + table(("option", "for", "default", "meaning"), rows) + "\n"


def configs() -> str:
    """Returns the table of a log's configs."""
    defaults = LogConfig.from_overrides({}).as_dict()
    rows = [
        (
            f"`{c.name}`",
            f"`{config_text(c.name, defaults[c.name])}`",
            c.doc,
            ", ".join(f"`{name}`" for name in c.broker),
        )
        for c in CONFIGS.values()
    ]
    return (
        "# Log configs\n\nKafka's topic configs, and some of clog's own. The last column is the"
        " name that a Kafka broker and the cleaner use for the default of all logs.\n\n"
        + table(("config", "default", "meaning", "broker's name"), rows)
        + "\n"
    )


def metrics() -> str:
    """Returns the table of the cleaner's metrics, as a cleaner of one log exports them."""
    log = Log.create("memory://metrics")
    log.append([{"key": "a", "value": "1"}])
    cleaner = Cleaner(log)
    cleaner.run_once()
    rows = [
        (
            f"`{family.name}{'_total' if family.type == 'counter' else ''}`",
            family.type,
            ", ".join(
                f"`{label}`" for label in (family.samples[0].labels if family.samples else ())
            ),
            family.documentation,
        )
        for family in sorted(registry(cleaner, {}).collect(), key=lambda family: family.name)
    ]
    return (
        "# Metrics\n\n`clog cleaner --listen` exports these for Prometheus.\n\n"
        + table(("metric", "type", "labels", "meaning"), rows)
        + "\n"
    )


def decisions(known: frozenset[str]) -> str:
    """Returns the list of decisions."""
    parts = ["# Decisions\n", "Each had an alternative; its page gives the reasons.\n"]
    for page in sorted(page for page in known if "/decisions/" in page):
        title = (ROOT / page).read_text().partition("\n")[0].removeprefix("# ")
        parts.append(f"- [{title}]({page})")
    return "\n".join(parts) + "\n"


def build(folder: Path) -> None:
    """Brings all pages."""
    known = frozenset(pages())
    for page in known:
        bring(folder, page, known)
    for name in PACKAGES:
        put(folder, f"reference/{name}.md", package(name))
    put(folder, "reference/commands.md", commands())
    put(folder, "reference/options.md", options())
    put(folder, "reference/configs.md", configs())
    put(folder, "reference/metrics.md", metrics())
    put(folder, "decisions.md", searched("docs/decisions/") + decisions(known))
    shutil.copytree(Path(__file__).parent / "assets", folder / "assets", dirs_exist_ok=True)


if __name__ == "__main__":
    build(Path(*sys.argv[1:2] or [ROOT / ".site" / "pages"]))
