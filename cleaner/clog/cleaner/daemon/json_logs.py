"""Log messages as JSON lines, one object each, for programs that collect them."""

import json
import logging
from datetime import UTC, datetime


class JsonFormatter(logging.Formatter):
    """``time`` (UTC), ``level``, ``logger``, ``message``; ``error`` with the traceback, if any."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
