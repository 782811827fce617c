"""Makes the modules beside the tests importable: the independent reader, the golden logs' maker."""

import sys
import zipfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module")
def release(request, tmp_path_factory):
    """The folder with the packages of a module's ``WHEEL``, of an older release."""
    folder = tmp_path_factory.mktemp("release")
    with zipfile.ZipFile(request.module.WHEEL) as opened:
        opened.extractall(folder)
    # Releases up to 0.2.0 had no such file, and this one's would be found first.
    (folder / "clog" / "__init__.py").touch()
    return folder
