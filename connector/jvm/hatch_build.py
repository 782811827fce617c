"""Puts the catalog's jar where Spark finds it: among pyspark's own."""

import runpy
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class JarHook(BuildHookInterface):
    """Compiles when a wheel is built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds the jar to the wheel."""
        if self.target_name == "wheel":
            jar = Path(tempfile.mkdtemp()) / "clog-catalog.jar"
            runpy.run_path(str(Path(__file__).with_name("build_jar.py")))["build_jar"](jar)
            build_data["force_include"][str(jar)] = "pyspark/jars/clog-catalog.jar"
