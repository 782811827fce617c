"""The documentation as a site: it is built without a warning, from every page and from the code."""

import html
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="mkdocs is not installed (group: docs)")

ROOT = Path(__file__).parent.parent
SITE = ROOT / "docs" / "site"


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    quiet = {"NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}
    env = {**os.environ, **quiet, "CLOG_SITE_PAGES": str(folder / "pages")}
    for program in (
        [str(SITE / "pages.py"), str(folder / "pages")],
        [
            "-m",
            "mkdocs",
            "build",
            "--strict",
            "-f",
            str(SITE / "mkdocs.yml"),
            "-d",
            folder / "site",
        ],
    ):
        done = subprocess.run(
            [sys.executable, *program],
            cwd=ROOT,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert "WARNING" not in done.stderr
    return folder


@pytest.mark.nightly
def test_the_site_has_every_page_and_every_name(site):
    """Strict mode has checked links and anchors; each exported name has its entry."""
    assert len([*site.rglob("site/**/index.html")]) > 60
    for package in ("clog.storage", "clog.cleaner", "clog.connector", "clog.bridge"):
        page = (site / "site" / "reference" / package / "index.html").read_text()
        for name in import_module(package).__all__:
            assert re.search(rf'id="{re.escape(package)}(\.\w+)*\.?{name}"', page), name


@pytest.mark.nightly
def test_the_site_loads_nothing_from_elsewhere(site):
    """It works without a network: scripts, styles, fonts and pictures are its own."""
    for page in site.rglob("site/**/*.html"):
        text = html.unescape(page.read_text())
        loaded = re.findall(r'<(?:script|img|iframe)[^>]*\ssrc="([^"]+)"', text)
        loaded += re.findall(r'<link[^>]*rel="(?:stylesheet|preconnect)"[^>]*href="([^"]+)"', text)
        loaded += re.findall(r'<link[^>]*href="([^"]+)"[^>]*rel="(?:stylesheet|preconnect)"', text)
        assert not [url for url in loaded if url.startswith(("http:", "https:", "//"))], page


@pytest.mark.nightly
def test_commands_options_configs_and_metrics_are_the_codes(site):
    """One of each, with what it means."""
    pages = site / "pages" / "reference"
    assert "### clog verify-store" in (pages / "commands.md").read_text()
    assert "| `startingOffsets` | read |" in (pages / "options.md").read_text()
    assert "| `delete.retention.ms` | `1d` |" in (pages / "configs.md").read_text()
    assert "| `clog_cleaner_passes_total` | counter | `log` |" in (pages / "metrics.md").read_text()
