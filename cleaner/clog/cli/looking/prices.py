"""What providers charge for requests and storage: list prices, as data, with their date and where
to find today's; or the user's own.
"""

import json
from dataclasses import dataclass, fields
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Prices:
    """In dollars: for a thousand requests by kind, and for a GB (10⁹ bytes) kept for a month."""

    name: str
    as_of: str
    put_1000: float
    get_1000: float
    list_1000: float
    gb_month: float
    source: str


PRICES = {
    "aws": Prices(
        *("S3 Standard, us-east-1", "2025-01", 0.005, 0.0004, 0.005, 0.023),
        source="https://aws.amazon.com/s3/pricing",
    ),
    "gcs": Prices(
        *("Standard, us-central1", "2025-01", 0.005, 0.0004, 0.005, 0.020),
        source="https://cloud.google.com/storage/pricing",
    ),
    "azure": Prices(
        *("Blob hot LRS, East US", "2025-01", 0.005, 0.0004, 0.005, 0.018),
        source="https://azure.microsoft.com/pricing/details/storage/blobs",
    ),
}
"""Storage is that of the first tier; traffic out of the region is not in here."""


def prices_named(text: str) -> Prices:
    """Returns a provider's list prices, or those of a JSON file, an object with the fields of
    `Prices`.

    Raises:
        ValueError: neither; says what would be.
    """
    if text in PRICES:
        return PRICES[text]
    names = [field.name for field in fields(Prices)]
    form = f"a JSON object of {', '.join(names)}"
    try:
        given = json.loads(Path(text).read_text("utf-8"))
    except (OSError, ValueError) as e:
        raise ValueError(
            f"{text!r:.100} is not one of {', '.join(PRICES)}, nor a file with {form}"
        ) from e
    if not isinstance(given, dict) or set(given) - {"source"} != set(names) - {"source"}:
        raise ValueError(f"{text} does not hold {form}")
    texts = ("name", "as_of", "source")
    for name, value in given.items():
        is_right = isinstance(value, str) if name in texts else type(value) in (int, float)
        if not is_right or (name not in texts and value < 0):
            raise ValueError(f"{text} has {name}={value!r}; give text, or a number from 0")
    return Prices(**{"source": text, **given})
