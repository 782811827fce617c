"""Keys as they are given on the command line."""

import base64
import binascii
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    import pyarrow as pa


def check_base64(texts: Iterable[str], *, is_base64: bool) -> None:
    """Raises if keys are not given as they are said to be.

    Raises:
        typer.BadParameter: one is no base64. It is not repeated: keys may be secrets.
    """
    try:
        for text in texts if is_base64 else ():
            base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise typer.BadParameter("a key is not base64, although --base64 says so") from None


def keys_given(texts: Iterable[str], *, is_base64: bool, schema: "pa.Schema | None") -> list[Any]:
    """Returns the bytes of keys, which are text, or base64 of any bytes; the keys of a typed log.

    Raises:
        InvalidInputError: the log is typed, and they are base64, or one is no key of its type.
        typer.BadParameter: as `check_base64`.
    """
    if schema is not None:
        from clog.storage.errors import InvalidInputError
        from clog.storage.objects.typed_json import key_from_text

        if is_base64:
            raise InvalidInputError(
                "--base64 is for logs of bytes; this log is typed: give keys as clog consume --json"
                " shows them"
            )
        return [key_from_text(text, schema.field("key").type) for text in texts]
    if not is_base64:
        # What the shell passed that is no UTF-8 comes back as the bytes it was.
        return [text.encode(errors="surrogateescape") for text in texts]
    given = list(texts)
    check_base64(given, is_base64=True)
    return [base64.b64decode(text) for text in given]
