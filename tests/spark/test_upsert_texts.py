"""The texts that upsert creates from rows, for a log of bytes (FORMAT.md §19)."""

import json

import pytest

from clog.connector import upsert
from clog.storage.errors import InvalidInputError, OptionError
from clog.storage.log import Log

ZONES = ("UTC", "America/New_York", "Asia/Kolkata")
GOLDEN = [
    # An expression; its text as a lone key; in JSON; which of both Spark's own cast makes, in UTC.
    ("'a\"\\\\/\\b\\t\\n\\r'", 'a"\\/\b\t\n\r', r'"a\"\\/\b\t\n\r"', "both"),
    ("chr(12)", "\f", r'"\f"', "both"),
    ("chr(31)", "\x1f", r'"\u001F"', "both"),
    ("chr(1)", "\x01", r'"\u0001"', "both"),
    ("'é€😀'", "é€😀", '"é€😀"', "both"),
    ("''", "", '""', "both"),
    ("cast('ab ' as char(4))", "ab ", '"ab "', "both"),
    ("cast('ab' as varchar(4))", "ab", '"ab"', "both"),
    ("X''", "", '""', "both"),
    ("X'00FF7F'", b"\x00\xff\x7f", '"AP9/"', "both"),
    ("true", "true", "true", "both"),
    ("false", "false", "false", "both"),
    ("-128Y", "-128", "-128", "both"),
    ("7S", "7", "7", "both"),
    ("-2147483648", "-2147483648", "-2147483648", "both"),
    ("9223372036854775807L", "9223372036854775807", "9223372036854775807", "both"),
    ("0.50BD", "0.50", "0.50", "both"),
    ("cast('-0.00' as decimal(5,2))", "0.00", "0.00", "both"),
    ("cast('1E-10' as decimal(20,10))", "0.0000000001", "0.0000000001", "alone"),
    ("cast(0 as decimal(38,18))", "0.000000000000000000", "0.000000000000000000", "alone"),
    (
        "cast('12345678901234567890123456789012345678' as decimal(38,0))",
        "12345678901234567890123456789012345678",
        "12345678901234567890123456789012345678",
        "both",
    ),
    ("1.0D", "1.0", "1.0", "both"),
    ("-0.0D", "0.0", "0.0", "neither"),
    ("0.002D", "0.002", "0.002", "both"),
    ("0.0001D", "1.0E-4", "1.0E-4", "both"),
    ("1e7D", "1.0E7", "1.0E7", "both"),
    ("9999999.999D", "9999999.999", "9999999.999", "both"),
    ("2e23D", "2.0E23", "2.0E23", "Java 19"),
    ("1e23D", "1.0E23", "1.0E23", "Java 19"),
    ("4.9e-324D", "4.9E-324", "4.9E-324", "both"),
    ("1.7976931348623157e308D", "1.7976931348623157E308", "1.7976931348623157E308", "both"),
    ("double('NaN')", "NaN", '"NaN"', "both"),
    ("double('-Infinity')", "-Infinity", '"-Infinity"', "both"),
    ("float('0.1')", "0.1", "0.1", "both"),
    ("float('16777216')", "1.6777216E7", "1.6777216E7", "both"),
    ("float('1.4e-45')", "1.4E-45", "1.4E-45", "both"),
    ("float('Infinity')", "Infinity", '"Infinity"', "both"),
    ("date'2024-02-29'", "2024-02-29", '"2024-02-29"', "both"),
    ("date'-0044-03-15'", "-0044-03-15", '"-0044-03-15"', "both"),
    ("date'+12345-01-01'", "+12345-01-01", '"+12345-01-01"', "both"),
    (
        "timestamp'2025-11-02 05:30:00.12Z'",
        "2025-11-02 05:30:00.12",
        '"2025-11-02T05:30:00.120Z"',
        "both",
    ),
    (
        "timestamp'2025-11-02 05:30:00.000001Z'",
        "2025-11-02 05:30:00.000001",
        '"2025-11-02T05:30:00.000001Z"',
        "alone",
    ),
    (
        "timestamp'1500-03-01 10:00:00Z'",
        "1500-03-01 10:00:00",
        '"1500-03-01T10:00:00.000Z"',
        "both",
    ),
    (
        "timestamp'+12345-01-01 00:00:00Z'",
        "+12345-01-01 00:00:00",
        '"+12345-01-01T00:00:00.000Z"',
        "both",
    ),
    (
        "timestamp_ntz'2025-11-02 01:30:00'",
        "2025-11-02 01:30:00",
        '"2025-11-02T01:30:00.000"',
        "both",
    ),
    (
        "timestamp_ntz'2025-11-02 01:30:00.123456'",
        "2025-11-02 01:30:00.123456",
        '"2025-11-02T01:30:00.123456"',
        "alone",
    ),
    ("time'12:34:56.789'", "12:34:56.789", '"12:34:56.789"', "both"),
    (
        "interval '1-2' year to month",
        "INTERVAL '1-2' YEAR TO MONTH",
        "\"INTERVAL '1-2' YEAR TO MONTH\"",
        "both",
    ),
    (
        "interval '1 02:03:04.5' day to second",
        "INTERVAL '1 02:03:04.5' DAY TO SECOND",
        "\"INTERVAL '1 02:03:04.5' DAY TO SECOND\"",
        "both",
    ),
    ("array(1, null)", "[1,null]", "[1,null]", "JSON"),
    (
        "array(named_struct('at', timestamp'2025-11-02 05:30:00.000001Z'))",
        '[{"at":"2025-11-02T05:30:00.000001Z"}]',
        '[{"at":"2025-11-02T05:30:00.000001Z"}]',
        "neither",
    ),
    (
        "named_struct('b', 1, 'a\"', cast(null as date), 'i', interval '3' hour)",
        """{"b":1,"a\\"":null,"i":"INTERVAL '03' HOUR"}""",
        """{"b":1,"a\\"":null,"i":"INTERVAL '03' HOUR"}""",
        "JSON",
    ),
]
VALUES = [
    ("map('a', 1.5D, 'b\"', null)", r'{"a":1.5,"b\"":null}'),
    ("map(7, array(date'2024-01-01'))", '{"7":["2024-01-01"]}'),
    ("map(timestamp'2025-11-02 05:30:00Z', 1)", '{"1762061400000000":1}'),
    ("cast(null as int)", "null"),
    ("array(parse_json('{\"a\":[1.5,null]}'))", '[{"a":[1.5,null]}]'),
    ("parse_json('\"x\"')", '"x"'),
    ("cast(null as variant)", "null"),
]


@pytest.fixture
def in_zone(spark):
    """Sets the session's time zone, for the test."""
    name = "spark.sql.session.timeZone"
    before = spark.conf.get(name)
    yield lambda zone: spark.conf.set(name, zone)
    spark.conf.set(name, before)


@pytest.fixture
def java(spark):
    return int(spark.sparkContext._jvm.java.lang.Runtime.version().feature())


def records(url):
    return [(r["key"], r["value"]) for b in Log.open(url).read() for r in b.to_pylist()]


def keys(url):
    return [key for key, _ in records(url)]


def upserted(df, url, columns, batch_id=0, **given):
    upsert(df, url, columns, batch_id=batch_id, query_id=given.pop("query_id", "q"), **given)


def raw(text):
    return text if isinstance(text, bytes) else text.encode()


def test_texts_in_json_depend_on_nothing_but_the_values(spark, tmp_path, in_zone):
    """FORMAT.md §19: the golden texts, in keys of several columns, in three time zones; and what is
    not a key, in values.
    """
    columns = ", ".join(f"{sql} AS c{i}" for i, (sql, *_) in enumerate(GOLDEN))
    others = ", ".join(f"{sql} AS v{i}" for i, (sql, _) in enumerate(VALUES))
    key = ",".join(f'"c{i}":{text}' for i, (_, _, text, _) in enumerate(GOLDEN))
    value = ",".join(f'"v{i}":{text}' for i, (_, text) in enumerate(VALUES))
    for zone in ZONES:
        in_zone(zone)
        url = str(tmp_path / zone.replace("/", "-"))
        df = spark.sql(f"SELECT {columns}, {others}")
        upserted(df, url, [f"c{i}" for i in range(len(GOLDEN))])
        assert records(url) == [(f"{{{key}}}".encode(), f"{{{value}}}".encode())], zone


def test_texts_of_lone_keys_depend_on_nothing_but_the_values(spark, tmp_path, in_zone):
    """FORMAT.md §19: the golden texts, of one column each: a log for each type, and a value that
    distinguishes them.
    """
    by_type = {}
    for n, (sql, text, *_) in enumerate(GOLDEN):
        kind = spark.sql(f"SELECT {sql} AS c").schema["c"].dataType
        by_type.setdefault(kind.simpleString(), []).append((n, sql, text))
    in_zone("America/New_York")
    for number, cases in enumerate(by_type.values()):
        url = str(tmp_path / str(number))
        df = spark.sql(" UNION ALL ".join(f"SELECT {sql} AS c, {n} AS n" for n, sql, _ in cases))
        upserted(df, url, "c", options={"partitions": 1})
        found = {int(value): key for key, value in records(url)}
        assert found == {n: raw(text) for n, _, text in cases}


def test_texts_are_sparks_own_where_these_are_exact(spark, in_zone, java):
    """The contents of logs of 0.1.0 continue: in UTC most texts are those of Spark's cast and
    to_json.
    """
    in_zone("UTC")
    for sql, alone, in_json, same in GOLDEN:
        exprs = [f"encode(cast({sql} AS string), 'utf-8') AS alone"]
        if sql.startswith("X'"):
            exprs = [f"{sql} AS alone"]
        exprs.append(f"to_json(struct({sql} AS c), map('ignoreNullFields', 'false')) AS in_json")
        row = spark.sql(f"SELECT {', '.join(exprs)}").first()
        is_same = bytes(row["alone"]) == raw(alone), row["in_json"] == f'{{"c":{in_json}}}'
        of_java = "both" if java >= 19 else "neither"
        expected = of_java if same == "Java 19" else same
        assert is_same == (expected in ("both", "alone"), expected in ("both", "JSON")), sql


def test_two_windows_of_the_night_the_clocks_go_back_stay_two_rows(spark, url, in_zone):
    """Item 3: an hour occurs twice, and so does its text without a zone."""
    in_zone("America/New_York")
    df = spark.sql(
        "SELECT window(at, '30 minutes') AS w, at, 1 AS n FROM VALUES"
        " (timestamp'2025-11-02 05:30:00Z'), (timestamp'2025-11-02 06:30:00Z') AS t(at)"
    )
    upserted(df, url, "at", values=["n"])
    upserted(df, url, "w", values=["n"], name="windows")
    assert sorted(keys(url)) == [
        b"2025-11-02 05:30:00",
        b"2025-11-02 06:30:00",
        b'{"start":"2025-11-02T05:30:00.000Z","end":"2025-11-02T06:00:00.000Z"}',
        b'{"start":"2025-11-02T06:30:00.000Z","end":"2025-11-02T07:00:00.000Z"}',
    ]
    assert Log.open(url).table().to_arrow().num_rows == 4


@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz"])
def test_keys_a_microsecond_apart_stay_apart(spark, url, kind):
    """Item 3: also inside JSON."""
    df = spark.sql(
        f"SELECT cast(at AS {kind}) AS at, 'x' AS x, 1 AS n FROM VALUES"
        " ('2025-11-02 05:30:00.000001'), ('2025-11-02 05:30:00.000002') AS t(at)"
    )
    upserted(df, url, ["at", "x"])
    assert len(set(keys(url))) == 2
    assert Log.open(url).table().to_arrow().num_rows == 2


def test_a_query_restarted_under_another_zone_writes_the_same_key(spark, url, in_zone):
    """Item 3: the row is replaced, not duplicated; a value keeps its microseconds."""
    for batch_id, zone in enumerate(ZONES):
        in_zone(zone)
        at = "timestamp'2025-11-02 05:30:00.000001Z'"
        df = spark.sql(f"SELECT {at} AS at, {at} AS seen, {batch_id} AS n")
        upserted(df, url, "at", batch_id)
    assert set(keys(url)) == {b"2025-11-02 05:30:00.000001"}
    table = Log.open(url).table()
    value = json.loads(table.get("2025-11-02 05:30:00.000001"))
    assert value == {"seen": "2025-11-02T05:30:00.000001Z", "n": 2}


def test_names_of_columns_have_no_case(spark, url):
    """H-F6: names are spelled as the DataFrame has them, in keys as the first upsert did, whatever
    the caller or a later DataFrame says; another order is refused.
    """
    df = spark.sql("SELECT 1 AS Id, 'eu' AS region, 'a' AS Name")
    upserted(df, url, ["ID", "REGION"], 0, values=["NAME"])
    other = spark.sql("SELECT 1 AS ID, 'eu' AS REGION, 'b' AS Name")
    upserted(other, url, ["id", "region"], 1, values=["name"])
    assert records(url) == [(b'{"Id":1,"region":"eu"}', b"a"), (b'{"Id":1,"region":"eu"}', b"b")]
    nested = spark.sql("SELECT struct(1 AS ID, 'eu' AS Region) AS k, 'c' AS v")
    upserted(nested, url, "K", 2)
    assert records(url)[2] == (b'{"Id":1,"region":"eu"}', b"c")
    with pytest.raises(InvalidInputError, match=r"are region, Id, but those in .* Id, region, and"):
        upserted(df, url, ["region", "id"], 3)
    with pytest.raises(InvalidInputError, match="key columns Id are named twice"):
        upserted(df, url, ["Id", "ID"], 3)
    assert len(records(url)) == 3


def test_names_of_columns_have_no_case_in_a_typed_log(spark, url):
    """H-F6: as elsewhere, whatever `keyColumns` says."""
    df = spark.sql("SELECT 1 AS Id, 'a' AS name")
    upserted(df, url, "ID", 0, options={"keyColumns": "iD"})
    upserted(df, url, "id", 1)
    assert len(records(url)) == 2
    with pytest.raises(OptionError, match=r"concerns keys as text, but .* is a typed log"):
        upserted(df, url, "id", 2, options={"encoding": 2})


def old(spark, df, url, key, value, batch_id=0):
    """What upsert of 0.1.0 did: Spark's texts, with the query and the batch."""
    made = df.selectExpr(f"{key} AS key", f"{value} AS value")
    options = {"txnAppId": "q", "txnVersion": str(batch_id), "partitions": 1}
    made.write.format("clog").mode("append").options(**options).save(url)


def test_an_old_log_goes_on_where_texts_are_the_same(spark, url, caplog):
    """No warning, and nothing is kept: 0.1.0 writes it too."""
    df = spark.sql("SELECT 1 AS id, date'2024-01-01' AS day, 'x' AS v")
    old(spark, df, url, "to_json(struct(id, day))", "v")
    upserted(df, url, ["id", "day"], 1)
    log = Log.open(url)
    assert set(keys(url)) == {b'{"id":1,"day":"2024-01-01"}'}
    assert "row-texts" not in [f.name for f in log.upgrade() if f.state == "on"]
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("key", "columns"),
    [
        ("timestamp'2025-11-02 05:30:00Z' AS k", ["k"]),
        ("timestamp_ntz'2025-11-02 05:30:00' AS k, 1 AS l", ["k", "l"]),
        ("struct(cast(1 AS decimal(9,7)) AS s) AS k", ["k"]),
        ("1.5D AS k", ["k"]),
        ("array(float('1')) AS k", ["k"]),
    ],
)
def test_an_old_log_is_refused_where_keys_would_have_another_text(spark, url, key, columns):
    """By column and type, with both texts of an example, before anything is written; until the
    caller says which texts apply.
    """
    df = spark.sql(f"SELECT {key}, 'x' AS v")
    old(spark, df, url, "'before'", "v")
    with pytest.raises(InvalidInputError) as told:
        upserted(df, url, columns, 1)
    for said in ("key column k", ", now ", "encoding=1 and encodingTimeZone=", "encoding=2"):
        assert said in str(told.value)
    assert keys(url) == [b"before"]
    upserted(df, url, columns, 1, options={"encoding": 2})
    upserted(df, url, columns, 2)
    assert len(keys(url)) == 3


def test_an_old_log_keeps_its_texts_with_encoding_1(spark, url, in_zone):
    """In the zone that the caller names once: the log keeps it from then on, whatever the
    session.
    """
    in_zone("America/New_York")
    at = "timestamp'2025-07-02 05:30:00.120Z'"
    df = spark.sql(f"SELECT {at} AS at, {at} AS seen, 1.5D AS d")
    old(spark, df, url, "cast(at AS string)", "to_json(struct(seen, d))")
    in_zone("Asia/Kolkata")
    with pytest.raises(OptionError, match="go together"):
        upserted(df, url, "at", 1, options={"encoding": 1})
    with pytest.raises(OptionError, match="not a time zone that Spark knows"):
        upserted(df, url, "at", 1, options={"encoding": 1, "encodingTimeZone": "Mars"})
    zone = {"encoding": 1, "encodingTimeZone": "America/New_York"}
    upserted(df, url, "at", 1, options=zone)
    in_zone("UTC")
    upserted(df, url, "at", 2)
    key, value = b"2025-07-02 01:30:00.12", b'{"seen":"2025-07-02T01:30:00.120-04:00","d":1.5}'
    assert records(url) == [(key, value)] * 3
    with pytest.raises(OptionError, match=r'"encodingTimeZone" is UTC, but .* America/New_York'):
        upserted(df, url, "at", 3, options={**zone, "encodingTimeZone": "UTC"})
    with pytest.raises(OptionError, match=r'"encoding" is 2, but the texts in .* have 1'):
        upserted(df, url, "at", 3, options={"encoding": 2})


def test_texts_of_encoding_1_are_sparks_own_in_that_zone(spark, tmp_path, in_zone):
    """What the session's zone produced in 0.1.0, produced in any session."""
    at = "timestamp'{}Z'".format
    moments = ["2025-11-02 05:30:00", "2025-11-02 06:30:00.1", "1850-01-01 00:00:00.000001"]
    for zone in ("America/New_York", "+05:30"):
        url = str(tmp_path / zone.replace("/", "-"))
        df = spark.sql(" UNION ALL ".join(f"SELECT {at(m)} AS at, 1 AS n" for m in moments))
        in_zone(zone)
        expected = [row[0].encode() for row in df.selectExpr("cast(at AS string)").collect()]
        in_zone("Asia/Kolkata")
        upserted(df, url, "at", options={"encoding": 1, "encodingTimeZone": zone, "partitions": 1})
        assert sorted(keys(url)) == sorted(expected)


def test_values_alone_are_told_once(spark, url, caplog):
    """An old log in which only the values have another text gets the new one."""
    df = spark.sql("SELECT 'k' AS k, timestamp_ntz'2025-11-02 05:30:00.000001' AS at, 1 AS n")
    old(spark, df, url, "k", "to_json(struct(at, n))")
    upserted(df, url, "k", 1)
    upserted(df, url, "k", 2)
    assert caplog.text.count("value column at, timestamp_ntz, is written differently") == 1
    new = b'{"at":"2025-11-02T05:30:00.000001","n":1}'
    assert [value for _, value in records(url)][1:] == [new, new]


def test_the_batch_under_way_at_the_upgrade_is_no_changed_batch(spark, url, in_zone):
    """H-F5: its rows are in the log with the old texts; run again it is the same, and one with
    other rows is not.
    """
    in_zone("America/New_York")
    df = spark.sql("SELECT 'k' AS k, timestamp'2025-11-02 05:30:00Z' AS at, 1 AS n")
    old(spark, df, url, "k", "to_json(struct(at, n))")
    upserted(df, url, "k", 0)
    assert len(records(url)) == 1
    with pytest.raises(Exception, match="with other rows"):
        upserted(df.selectExpr("k", "at", "2 AS n"), url, "k", 0)
    assert len(records(url)) == 1


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("map('a', 1)", "map"),
        ("struct(parse_json('1') AS v)", "variant"),
        ("make_interval(1)", "interval"),
        ("null", "void"),
    ],
)
def test_types_that_are_no_keys_are_refused(spark, tmp_path, sql, kind):
    """By column and type, before there is a log."""
    df = spark.sql(f"SELECT {sql} AS k, 1 AS v")
    with pytest.raises(InvalidInputError, match=f"key column k is or has a {kind}"):
        upserted(df, str(tmp_path / "none"), "k")
    assert not (tmp_path / "none").exists()


def test_a_name_that_stands_for_a_variants_json_is_refused(spark, tmp_path):
    """Before there is a log: its text would be taken for JSON, and be put into the value
    unquoted.
    """
    df = spark.sql("SELECT 'k' AS k, named_struct('clog.raw-json', 'a') AS v")
    with pytest.raises(InvalidInputError, match=r"column v .*clog\.raw-json"):
        upserted(df, str(tmp_path / "none"), "k")
    assert not (tmp_path / "none").exists()


def test_a_lone_null_key_is_refused(spark, url):
    """As usual; a null field of a key of several is null."""
    df = spark.sql("SELECT cast(null AS int) AS k, 'a' AS l, 1 AS v")
    with pytest.raises(Exception, match="key"):
        upserted(df, url, "k")
    upserted(df, url, ["k", "l"], name="both")
    assert keys(url) == [b'{"k":null,"l":"a"}']


def test_strings_that_are_no_utf8_are_no_json_keys(spark, url):
    """JSON would make one key of several; by themselves they are their bytes."""
    df = spark.sql("SELECT cast(X'61FF' AS string) AS k, 'a' AS l, 1 AS v")
    upserted(df, url, "k")
    with pytest.raises(Exception, match="a string that is not UTF-8"):
        upserted(df, url, ["k", "l"], name="both")
    assert keys(url) == [b"a\xff"]
