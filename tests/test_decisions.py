"""The decisions: one series of numbers, and references that lead somewhere."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs" / "decisions").glob("*.md"))
NUMBERS = {page.name[:4] for page in PAGES}
SOURCES = [
    path
    for pattern in ("*.md", "[!.]*/**/*.md", "[!.]*/**/*.py")
    for path in ROOT.glob(pattern)
    if not {"golden", ".environments"} & set(path.parts)
]


def test_numbers_are_one_series():
    """From 1 on, without a gap, and no other folder has decisions."""
    assert [page.name[:4] for page in PAGES] == [f"{i:04d}" for i in range(1, len(PAGES) + 1)]
    folders = {path.parent.relative_to(ROOT) for path in SOURCES if path.parent.name == "decisions"}
    assert folders == {Path("docs/decisions")}


def test_references_lead_to_decisions():
    """`decision 0012`, `docs/decisions/0012`, and the file names."""
    named = 0
    for path in SOURCES:
        text = path.read_text()
        for number, name in re.findall(r"decisions?[ /](\d{4})(-[a-z0-9-]+\.md)?", text):
            named += 1
            assert number in NUMBERS, f"{path}: {number}"
            if name:
                assert (ROOT / "docs" / "decisions" / (number + name)).exists(), f"{path}: {name}"
    assert named > 20
