"""`clog produce`: batches, commits, restarts."""

import io
import os
import signal

import pyarrow as pa
import pytest

from clog.cli.app import app
from clog.cli.produce import BATCH_BYTES_MAX, LineReader, batches, noting_interrupts
from clog.storage import Log, ManualClock


@pytest.fixture
def log(url):
    return Log.create(url, partitions=2)


def values(log):
    """Values by partition, in offset order."""
    found = {p: [] for p in log.start_offsets()}
    for batch in log.read():
        for record in batch.to_pylist():
            found[record["partition"]].append((record["key"], record["value"]))
    return found


def feed(clock, *reads):
    """A reader that returns these (milliseconds it takes, lines), and records how long it
    may take.
    """
    left = list(reads)
    allowed = []

    def read(timeout_ms):
        allowed.append(timeout_ms)
        if not left:
            return None
        takes_ms, lines = left[0]
        if timeout_ms is not None and takes_ms > timeout_ms:
            clock.advance(timeout_ms)
            left[0] = (takes_ms - timeout_ms, lines)
            return []
        clock.advance(takes_ms)
        return left.pop(0)[1]

    return read, allowed


def run(*reads, batch_size=3, linger_ms=100):
    clock = ManualClock()
    read, allowed = feed(clock, *reads)
    found = [
        (clock.now_ms(), batch)
        for batch in batches(read, batch_size=batch_size, linger_ms=linger_ms, clock=clock)
    ]
    return found, allowed


def test_full_batches_go_at_once():
    """However the lines arrive; the rest is sent at the end of the input."""
    found, _ = run((0, [b"1", b"2"]), (5, [b"3", b"4", b"5", b"6", b"7"]))
    assert found == [(5, [b"1", b"2", b"3"]), (5, [b"4", b"5", b"6"]), (5, [b"7"])]


def test_a_batch_lingers_from_its_first_line_on():
    """It is sent when it is due, not when the next line arrives; then waiting has no limit."""
    found, allowed = run((10, [b"1"]), (60, [b"2"]), (500, [b"3"]))
    assert found == [(110, [b"1", b"2"]), (570, [b"3"])]
    assert allowed == [None, 100, 40, None, 100]


def test_without_linger_each_read_is_a_batch():
    """A terminal's line is appended when it is entered."""
    found, _ = run((0, [b"1"]), (0, [b"2", b"3"]), linger_ms=0)
    assert [batch for _, batch in found] == [[b"1"], [b"2", b"3"]]


def test_batch_size_zero_gathers_everything():
    """All of the input is one batch, however long it takes."""
    found, allowed = run((0, [b"1"]), (900, [b"2"]), (0, [b"3"] * 9), batch_size=0)
    assert [batch for _, batch in found] == [[b"1", b"2", *[b"3"] * 9]]
    assert set(allowed) == {None}


def test_empty_lines_are_no_records():
    """They are left out, and do not start a batch."""
    found, allowed = run((0, [b"", b""]), (5, [b"1", b""]))
    assert found == [(5, [b"1"])]
    assert allowed[1] is None


def test_large_lines_end_a_batch():
    """A batch is bounded in bytes too."""
    large = b"x" * (BATCH_BYTES_MAX // 2)
    found, _ = run((0, [large, large, large]), batch_size=100)
    assert [len(batch) for _, batch in found] == [2, 1]


def test_lines_come_from_a_pipe_as_they_are_written():
    """A line exists once its line feed does; a wait is bounded; the last line needs no
    line feed.
    """
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as stream:
        reader = LineReader(stream)
        assert reader.read(0) == []
        os.write(write_end, b"a\nb")
        assert reader.read(None) == [b"a"]
        assert reader.read(0) == []
        os.write(write_end, b"c\r\n\nd")
        assert reader.read(None) == [b"bc\r", b""]
        os.close(write_end)
        assert reader.read(None) == [b"d"]
        assert reader.read(None) is None
        assert reader.read(None) is None


@pytest.fixture
def interruptible():
    """Ctrl-C interrupts, also in the background of a shell, where it would be ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_is_the_end_of_the_input():
    """Complete lines that wait make a last batch; a line without its end does not. The next Ctrl-C
    interrupts as usual.
    """
    before = signal.getsignal(signal.SIGINT)
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as stream, noting_interrupts() as interrupts:
        reader = LineReader(stream, interrupts.fd)
        os.write(write_end, b"a\nb\nha")

        def read(timeout_ms):
            lines = reader.read(timeout_ms)
            if not interrupts.came:
                os.kill(os.getpid(), signal.SIGINT)
            return lines

        found = batches(read, batch_size=10, linger_ms=1 << 40, clock=ManualClock())
        assert list(found) == [[b"a", b"b"]]
        assert interrupts.came
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    os.close(write_end)
    assert signal.getsignal(signal.SIGINT) is before


class Terminal(io.BytesIO):
    """An input at which nobody types anything."""

    buffer = property(lambda self: self)

    def isatty(self):
        return True


@pytest.mark.parametrize(("form", "hint"), [("text", "key, TAB, value"), ("jsonl", "JSON lines")])
def test_who_types_is_told_how(url, log, monkeypatch, capsys, form, hint):
    """On a terminal, unless --quiet."""
    monkeypatch.setattr("sys.stdin", Terminal())
    app(["produce", url, "--format", form], standalone_mode=False)
    told = capsys.readouterr().err
    assert hint in told
    assert "Ctrl-D ends" in told
    app(["produce", url, "--format", form, "--quiet"], standalone_mode=False)
    assert capsys.readouterr().err == ""


def test_text_becomes_records(cli, url, log):
    """Values, an empty value, a tombstone (S4); the summary prints offsets."""
    result = cli("produce", url, "-p", "1", stdin=b"a\t1\nb\t\nc\n\nd\t2")
    assert values(log)[1] == [(b"a", b"1"), (b"b", b""), (b"c", None), (b"d", b"2")]
    assert result.stdout == "appended 4 records in 1 commit; offsets by partition: 1 [0, 4)\n"


def test_who_forgets_the_tab_is_warned(cli, url, log):
    """A line without a TAB deletes a key; a note says so if all lines do."""
    note = "no line has a TAB and a value"
    assert note in cli("produce", url, stdin="alice 1\nbob 2\n").stderr
    assert note not in cli("produce", url, stdin="alice\t1\nbob\n").stderr
    assert note not in cli("produce", url, "--quiet", stdin="bob 2\n").stderr


def test_each_batch_is_one_commit(cli, url, log):
    """Seven records in threes are three commits, in order."""
    lines = "".join(f"k\t{i}\n" for i in range(7))
    summary = cli.json("produce", url, "--batch-size", 3, stdin=lines)
    assert (summary["records"], summary["commits"], summary["version"]) == (7, 3, 3)
    (place,) = summary["partitions"]
    assert (place["start_offset"], place["end_offset"]) == (0, 7)
    assert [v for _, v in values(log)[place["partition"]]] == [b"%d" % i for i in range(7)]


def test_nothing_in_nothing_appended(cli, url, log):
    """An empty input makes no commit."""
    assert cli.json("produce", url)["commits"] == 0
    assert log.version == 0


def test_json_lines_say_their_partition(cli, url, log):
    """An explicit partition takes precedence over the key's; --ignore-partition uses the
    key again.
    """
    line = '{"key": "a", "value": "1", "partition": %d, "headers": [{"key": "h", "value": null}]}\n'
    cli("produce", url, "--format", "jsonl", stdin=line % 0 + line % 1)
    assert [len(found) for found in values(log).values()] == [1, 1]
    cli("produce", url, "--format", "jsonl", "--ignore-partition", stdin=line % 0 + line % 1)
    assert sorted(len(found) for found in values(log).values()) == [1, 3]
    headers = next(log.read(partition=0)).column("headers").to_pylist()
    assert headers[0] == [{"key": "h", "value": None}]


def test_a_batch_names_all_partitions_or_none(cli, url, log):
    """Half a batch placed by its keys would lose the intended order."""
    lines = '{"key":"a","value":"1","partition":0}\n{"key":"a","value":"2"}\n'
    result = cli("produce", url, "--format", "jsonl", stdin=lines, code=1)
    assert "1 of 2 records of a batch have a partition" in result.stderr
    assert log.version == 0


def test_a_producer_goes_on_where_it_was(cli, url, log):
    """The same input again, batched differently and longer by now, appends only what is new."""
    first = "".join(f"k{i}\t{i}\n" for i in range(5))
    more = first + "k5\t5\nk6\t6\n"
    arguments = ("produce", url, "-p", 0, "--producer-id", "load-1")
    assert cli.json(*arguments, "--batch-size", 2, stdin=first)["records"] == 5
    again = cli.json(*arguments, "--batch-size", 4, stdin=more)
    assert (again["records"], again["skipped"]) == (2, 5)
    assert [v for _, v in values(log)[0]] == [b"%d" % i for i in range(7)]
    assert "skipped 7 already there" in cli(*arguments, stdin=more).stdout
    assert log.version == 4


def test_a_producer_is_not_a_streams_writer(cli, url, log):
    """Nor is its sequence: a producer of the same name is another writer, and nothing is
    skipped.
    """
    from clog.storage.commit.appends import Writer

    log.append_objects([], Writer("q", "stream", 3, query_id="query"))
    cli("produce", url, "--producer-id", "q", stdin="a\t1\n")
    assert sum(log.end_offsets().values()) == 1


def test_what_was_appended_before_an_error_is_told(cli, url, log):
    """Batches before the wrong line stay; the summary says how far that is."""
    good = '{"key": "a", "value": "1", "partition": 0}\n'
    result = cli(
        "produce", url, "--format", "jsonl", "--batch-size", 2, stdin=good * 2 + "{\n", code=1
    )
    assert "before the error: appended 2 records in 1 commit" in result.stderr
    assert "record 3 of the input cannot be read: it is not JSON" in result.stderr
    assert log.end_offsets()[0] == 2


def test_quiet_is_quiet(cli, url, log):
    """No summary; errors would still be printed."""
    result = cli("produce", url, "--quiet", stdin="a\t1\n")
    assert (result.stdout, result.stderr) == ("", "")
    assert log.version == 1


def test_a_word_may_stand_for_null(cli, url, log):
    """``--null-marker`` on both sides, for keys and values; without it a text is a text."""
    lines = b"NULL\tv\nk\tNULL\n"
    log.alter({"cleanup.policy": ""})
    cli("produce", url, "-p", "0", "--null-marker", "NULL", stdin=lines)
    assert values(log)[0] == [(None, b"v"), (b"k", None)]
    assert b"\n".join(cli.lines("consume", url, "--null-marker", "NULL")) + b"\n" == lines
    cli("produce", url, "-p", "1", stdin=lines)
    assert values(log)[1] == [(b"NULL", b"v"), (b"k", b"NULL")]


def test_a_log_that_is_widened_while_lines_come_takes_them_unrounded(cli, url):
    """S62: lines that were read before are rounded, as the column was."""
    schema = {"key": pa.string(), "value": pa.struct([("x", pa.float32())])}
    log = Log.create(url, partitions=1, schema=schema)
    line = b'{"key": "%d", "value": {"x": 16777217.0}}\n'

    class Lines(io.BytesIO):
        def read(self, size=-1):
            if log.end_offsets() == {0: 1}:
                log.evolve(widen={"value.x": pa.float64()})
            return self.readline() if size else b""

    cli("produce", url, "--format", "jsonl", "--batch-size", 1, stdin=Lines(line % 0 + line % 1))
    values = [row["value"]["x"] for batch in log.read() for row in batch.to_pylist()]
    assert values == [16777216.0, 16777217.0]
