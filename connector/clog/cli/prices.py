"""What providers ask for requests and storage: list prices, as data, with the date they are of."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prices:
    """In dollars: for a thousand requests by kind, and for a GB (10⁹ bytes) kept for a month."""

    name: str
    as_of: str
    put_1000: float
    get_1000: float
    list_1000: float
    gb_month: float


PRICES = {
    "aws": Prices("S3 Standard, us-east-1", "2025-01", 0.005, 0.0004, 0.005, 0.023),
    "gcs": Prices("Standard, us-central1", "2025-01", 0.005, 0.0004, 0.005, 0.020),
    "azure": Prices("Blob hot LRS, East US", "2025-01", 0.005, 0.0004, 0.005, 0.018),
}
"""Storage is that of the first tier; traffic out of the region is not in here."""
