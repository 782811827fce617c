"""DataFrames as Arrow tables, without importing the library that they come from.

A pandas or Polars frame can only be there when its library is loaded already, so ``sys.modules``
has it. Everything else comes by the Arrow PyCapsule interface (``__arrow_c_stream__``): Polars
frames, DuckDB relations, record batch readers and what others will make.

pandas frames do not, although they have it: they would bring their index along, which a filter
leaves behind as ``__index_level_0__``.
"""

import sys
from typing import Any

import pyarrow as pa

from clog.storage.errors import InvalidInputError


def frame_to_table(data: object) -> pa.Table | None:
    """Returns a frame, or a stream of Arrow data, as a table; None for anything else.

    The index of a pandas frame is left out.

    Raises:
        InvalidInputError: a column holds what Arrow has no type for, or several types; no table at
            all, such as a Series.
    """
    if isinstance(data, _frame_class("pandas")):
        return _from_pandas(data)
    if not hasattr(data, "__arrow_c_stream__"):
        return None
    if isinstance(data, _frame_class("polars")):
        _check_polars(data)
    try:
        return pa.table(data)
    except (pa.ArrowInvalid, TypeError) as e:
        raise InvalidInputError(
            f"cannot append a {type(data).__name__}: it is not a table; give a frame with columns"
            " key and value"
        ) from e


def rows_of_pandas(data: object) -> list[dict[str, Any]] | None:
    """Returns the rows of a pandas frame, None for what is missing; None for anything else."""
    if not isinstance(data, _frame_class("pandas")):
        return None
    frame: Any = data
    rows: list[dict[str, Any]] = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return rows


def _frame_class(package: str) -> Any:
    """Returns the class of the package's frames, or one that nothing is of if it is not loaded."""
    return getattr(sys.modules.get(package), "DataFrame", ())


def _from_pandas(frame: Any) -> pa.Table:
    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, ValueError, TypeError) as e:
        # Arrow's first words may show a value; its last name the column.
        last = str(e.args[-1]) if e.args else ""
        where = f" ({last})" if last.startswith(("Conversion failed", "Duplicate column")) else ""
    raise InvalidInputError(
        f"the pandas DataFrame has no form in Arrow{where}; keys and values must be str, bytes or"
        " missing, headers lists of dicts with key and value"
    )


def _check_polars(frame: Any) -> None:
    """Raises if a column holds Python objects: Polars would hand over their addresses."""
    wrong = [name for name, kind in frame.schema.items() if kind == sys.modules["polars"].Object]
    if wrong:
        raise InvalidInputError(
            f"columns {wrong} of the Polars DataFrame hold Python objects; make them String or"
            " Binary"
        )
