"""Keys as they are given on the command line."""

import base64
import binascii
from collections.abc import Iterable

import typer


def keys_given(texts: Iterable[str], *, is_base64: bool) -> list[bytes]:
    """Returns the bytes of keys, which are text, or base64 of any bytes.

    Raises:
        typer.BadParameter: one is no base64. It is not repeated: keys may be secrets.
    """
    if not is_base64:
        # What the shell passed that is no UTF-8 comes back as the bytes it was.
        return [text.encode(errors="surrogateescape") for text in texts]
    try:
        return [base64.b64decode(text, validate=True) for text in texts]
    except (binascii.Error, ValueError):
        raise typer.BadParameter("a key is not base64, although --base64 says so") from None
