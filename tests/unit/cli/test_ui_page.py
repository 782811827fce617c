"""The page of `clog ui` in a real browser: clicks, updates, hostile records, a wide log."""

import json
import os
import shutil
import threading
from pathlib import Path

import pyarrow as pa
import pytest

import clog
from clog.cleaner import Cleaner
from clog.cleaner.selection import candidate
from clog.cli.page import ShownCleaner, ShownLogs
from clog.storage import Log, SystemClock
from clog.storage.administration import delete_log
from clog.storage.config.log_config import LogConfig
from clog_testing.undecided import append_undecided

pytest.importorskip("uvicorn", reason="needs the extra ui")
api = pytest.importorskip("playwright.sync_api", reason="needs playwright, of PyPI")
pytestmark = pytest.mark.nightly

api.expect.set_options(timeout=15_000)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
IMAGES = Path(__file__).parents[3] / "docs/images"
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("needs chromium, of Debian")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def open_page(browser, serving):
    """A page on logs by their URLs; at the end nothing may have failed in it."""
    problems = []
    entered = []

    def open_page(*urls, dark=False, cleaner=None):
        manager = serving(ShownLogs(urls, (), {}, clock=SystemClock()), cleaner)
        port = manager.__enter__()
        entered.append(manager)
        page = browser.new_page(
            color_scheme="dark" if dark else "light", viewport={"width": 1100, "height": 780}
        )
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda e: problems.append(str(e)))
        page.on("console", lambda m: problems.append(m.text) if is_problem(m) else None)
        page.goto(f"http://127.0.0.1:{port}/")
        page.wait_for_selector("#bars li")
        entered.append(page)
        return page

    yield open_page
    for one in reversed(entered):
        if hasattr(one, "close"):
            one.close()
        else:
            one.__exit__(None, None, None)
    assert problems == []


def is_problem(message):
    """A response that reports an error is not a failure: the page shows it."""
    return message.type == "error" and "Failed to load resource" not in message.text


@pytest.fixture
def log():
    """Two partitions with a clean, a dirty and an active part; in memory, so that pictures show no
    folder of this machine.
    """
    url = "memory://shop/orders"
    log = Log.create(url, partitions=2, config={"min.cleanable.dirty.ratio": "0.9"})
    for i in range(4):
        log.append([{"key": f"order-{j}", "value": f'{{"state":{i}}}'} for j in range(300)])
        log.roll()
        if i == 1:
            Cleaner(log).run_once(force=True)
    log.append([{"key": "order-7", "value": "paid", "headers": [("source", "shop")]}])
    log.append([{"key": "order-8", "value": None}])
    yield log
    delete_log(log.handle.standing.root)


def picture(page, name):
    """Saves a picture of the page for the documents, if that is requested."""
    data = page.screenshot()
    assert data[:4] == b"\x89PNG"
    if os.environ.get("CLOG_UPDATE_IMAGES"):
        (IMAGES / f"{name}.png").write_bytes(data)


def records(page):
    """Key and value of what is found."""
    rows = page.locator("#found tr")
    return [
        (
            rows.nth(i).locator("td").nth(3).inner_text(),
            rows.nth(i).locator("td").nth(4).inner_text(),
        )
        for i in range(rows.count())
    ]


def test_partitions_commits_and_configs(open_page, log):
    """What the log is, drawn and as text; tabs by mouse and by keys."""
    page = open_page(log.url)
    assert page.locator("#bars .bar").count() == 2
    said = " ".join(bar.get_attribute("aria-label") for bar in page.locator("#bars .bar").all())
    assert all(part in said for part in ("clean ", "cleanable ", "active "))
    picture(page, "ui")
    page.get_by_role("tab", name="Commits and passes").click()
    assert page.locator("#history tr").count() == log.version + 1
    assert page.locator("#history").get_by_text("clean", exact=True).count() >= 1
    assert "removed 300 records" in page.locator("#removed").inner_text()
    said = " ".join(page.locator(".graphs svg").evaluate_all("all => all.map(e => e.ariaLabel)"))
    assert "records per hour: at most 14,424" in said  # 1,202 in five minutes
    assert "share that is dirty: at most 0." in said
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("tab", name="Records").get_attribute("aria-selected") == "true"
    page.get_by_role("tab", name="Configuration").click()
    assert page.get_by_text("0.9 (set)").count() == 1


def test_records_keys_and_the_past(open_page, log):
    """By offset, by key, the history of a key by a click, the table at a version by the slider."""
    page = open_page(log.url, dark=True)
    page.get_by_role("tab", name="Records").click()
    page.get_by_label("from").fill("latest")
    page.get_by_role("button", name="show", exact=True).click()
    page.wait_for_selector("#found tr")
    assert records(page)[:2] == [("order-8", "deleted"), ("order-7", "paid")]
    assert page.get_by_text("source=shop").count() == 1
    page.locator("#found").get_by_role("button", name="order-7", exact=True).first.click()
    api.expect(page.locator("#found tr").first).to_contain_text("order-7")
    assert {key for key, _ in records(page)} == {"order-7"}
    assert records(page)[-1][1] == "paid"
    page.get_by_label("show").select_option("table")
    api.expect(page.locator("#found tr")).to_have_count(1)
    assert records(page) == [("order-7", "paid")]
    picture(page, "ui-records")
    page.get_by_label("at version").evaluate(
        "(slider, at) => { slider.value = at; slider.dispatchEvent(new Event('change')) }",
        log.version - 2,
    )
    api.expect(page.locator("#found")).not_to_contain_text("paid")
    ((key, value),) = records(page)
    assert key == "order-7"
    assert '"state": 3' in value
    page.get_by_label("show").select_option("records")
    page.get_by_label("from").fill("soon")
    page.get_by_role("button", name="show", exact=True).click()
    api.expect(page.locator("#problem")).to_contain_text("not a position")


def test_it_shows_news(open_page, log):
    """What is appended while the page is open appears, without a click."""
    page = open_page(log.url)
    log.append([{"key": "new", "value": "x"}])
    api.expect(page.locator("#facts")).to_contain_text(f"{log.version}, readable", timeout=15_000)


def test_it_follows_a_log_that_is_written_and_cleaned(open_page, log):
    """While the page is open, a writer appends and a cleaner passes; nothing is clicked."""
    cleaner = Cleaner(log)
    page = open_page(log.url, cleaner=ShownCleaner(cleaner.monitor))
    before = page.locator("#history tr").count()

    def work():
        other = Log.open(log.url)
        for i in range(5):
            other.append([{"key": f"order-{j}", "value": f"again {i}"} for j in range(50)])
            other.roll()
            cleaner.run_once(force=True)

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    newest = Log.open(log.url).version
    api.expect(page.locator("#facts")).to_contain_text(f"{newest}, readable")
    api.expect(page.locator("#history tr")).to_have_count(newest + 1)
    assert newest + 1 > before + 10
    api.expect(page.locator("#cleaned tr td").nth(1)).not_to_have_text("0")


def test_readers_writers_and_what_is_undecided(open_page, log):
    """By name, with the lag, and which one is waited for; an open transaction, and the stable
    offset that it holds back.
    """
    log.alter({"reader.hold.max.ms": "1 day"})
    log.reader("weekly", hold_ms=3_600_000).commit(log.start_offsets())
    log.append([{"key": "order-9", "value": "x"}], producer=("shop", 7))
    reader = log.reader("billing")
    reader.commit(log.start_offsets())
    with log.transaction("copies", visible=True) as t:
        t.append([{"key": "order-10", "value": "undecided"}])
        page = open_page(log.url)
        assert "stable" in page.locator("#bars").inner_text()
        page.get_by_role("tab", name="Readers and writers").click()
        readers = page.locator("#readers tr")
        api.expect(readers).to_have_count(2)
        billing, weekly = readers.nth(0), readers.nth(1)
        api.expect(billing).to_contain_text("billing")
        assert (billing.locator("td").count(), weekly.locator("td").count()) == (9, 9)
        api.expect(billing.locator("td").last).to_have_text("")
        api.expect(weekly.locator("td").last).to_contain_text("until")
        api.expect(page.locator("#transactions")).to_contain_text("copies")
        api.expect(page.locator("#writers tr", has_text="shop")).to_contain_text("producer7")
        api.expect(page.locator("#lags figcaption").first).to_contain_text(
            "billing, records behind"
        )
    api.expect(page.locator("#transactions")).to_contain_text("no open transactions")


def test_how_far_a_mirror_is(open_page, log):
    """A fact of the log: the position in the source, and how long ago it was committed."""
    with log.transaction("clog-mirror") as work:
        work.positions("kafka:c/t", {0: (4711, "1"), 1: (12, "1")})
    facts = open_page(log.url).locator("#facts div", has_text="clog-mirror from kafka:c/t")
    api.expect(facts).to_contain_text("at 0: 4711, 1: 12, committed")


def test_what_a_log_costs(open_page, log):
    """Requested when the tab is opened, and again for another number of readers."""
    page = open_page(log.url)
    page.get_by_role("tab", name="Cost").click()
    api.expect(page.locator("#bill tr").last).to_contain_text("all")
    polls = page.locator("#bill tr", has_text="polls of readers").locator("td").nth(2)
    some = int(polls.inner_text().replace(",", ""))
    page.get_by_label("streams that read the whole log").fill("2")
    page.get_by_role("button", name="count").click()
    api.expect(polls).not_to_have_text(f"{some:,}")
    assert abs(int(polls.inner_text().replace(",", "")) - 2 * some) <= 1  # Both are rounded.
    api.expect(page.locator("#priced-note")).to_contain_text("List prices of S3 Standard")


def test_it_shows_what_the_cleaner_does(open_page, log):
    """The page of a daemon: a running pass, with its progress, and what passes did."""
    cleaner = Cleaner(log)
    page = open_page(log.url, cleaner=ShownCleaner(cleaner.monitor))
    api.expect(page.locator("#cleaner-idle")).to_contain_text("idle")
    manifest, config = log.handle.manifest(), LogConfig.from_overrides(log.handle.tip.head.config)
    now_ms = log.handle.clock.now_ms()
    chosen = candidate(manifest, config, 0, now_ms=now_ms, force=True)
    with cleaner.monitor.watched(log.url, chosen) as progress:
        began_ms = cleaner.monitor.clock.monotonic_ms() - 5000
        progress.records_total, progress.stats.map_records = 900, 300
        progress.phase_began_ms = began_ms
        api.expect(page.locator("#passes li")).to_contain_text("mapping 300 of 900 records")
        picture(page, "ui-cleaner")
    cleaner.run_once(force=True)
    api.expect(page.locator("#passes li")).to_have_count(0)
    api.expect(page.locator("#cleaned tr").first).to_contain_text(log.url)
    assert page.locator("#cleaned tr td").nth(1).inner_text() == "2"


def test_hostile_records_are_text(open_page, tmp_path):
    """Keys, values, headers, and the log's own name: nothing in them is executed, nothing is
    loaded.
    """
    log = Log.create(str(tmp_path / "<b>log<"), partitions=1)
    log.append([{"key": HOSTILE, "value": HOSTILE, "headers": [(HOSTILE, HOSTILE)]}])
    log.append([{"key": b"\xff\x1b]0;t\x07", "value": "\x1b[31m\u202e"}], producer=(HOSTILE, 1))
    page = open_page(log.url)
    page.get_by_role("tab", name="Commits and passes").click()
    assert page.get_by_text(HOSTILE).count() >= 1
    page.get_by_role("tab", name="Records").click()
    page.get_by_role("button", name="show", exact=True).click()
    page.wait_for_selector("#found tr")
    assert records(page)[1] == (HOSTILE, HOSTILE)
    assert records(page)[0][0] == "ff 1b 5d 30 3b 74 07"
    assert page.title() == "clog"
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 1
    assert page.get_by_text("<b>log<").count() >= 1


def test_a_log_of_1000_partitions_asks_little(open_page, tmp_path):
    """All of it is drawn, and a refresh is two requests, whatever the number of partitions."""
    log = Log.create(str(tmp_path / "wide"), partitions=1000)
    log.append([{"key": str(i), "value": "v"} for i in range(5000)])
    page = open_page(log.url)
    assert page.locator("#bars li").count() == 1000
    page.uncheck("#live")
    page.wait_for_load_state("networkidle")
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.evaluate("refresh()")
    assert [url.partition("/api/")[2] for url in asked] == ["logs", "logs/0"]


def test_another_log_at_the_same_version_is_drawn_anew(open_page, tmp_path):
    """A log is its id: one that was deleted and created again, at the version that was shown, is a
    different log (S47).
    """
    url = str(tmp_path / "log")
    log = Log.create(url, partitions=1)
    log.append([{"key": "a", "value": "v"}])
    page = open_page(url)
    api.expect(page.locator("#bars li")).to_have_count(1)
    delete_log(log.handle.standing.root)
    api.expect(page.locator("#logs tbody")).to_contain_text("no log at")
    Log.create(url, partitions=3).append([{"key": "a", "value": "v"}])
    api.expect(page.locator("#bars li")).to_have_count(3)
    api.expect(page.locator("#logs tbody")).not_to_contain_text("no log at")


def test_an_answer_that_comes_late_is_of_no_other_log(open_page, log, tmp_path):
    """A user who has selected another log meanwhile sees that one; even if the first one is broken,
    the page starts with one that is not.
    """
    other = Log.create(str(tmp_path / "other"), partitions=1)
    page = open_page(str(tmp_path / "none"), log.url, other.url)
    api.expect(page.locator("#log-title")).to_have_text(log.url)
    page.uncheck("#live")
    page.wait_for_load_state("networkidle")
    held = []
    page.route("**/api/logs/1", lambda route: held.append(route))  # noqa: PLW0108 - it is wrapped
    with page.expect_request("**/api/logs/1"):
        page.evaluate("window.late = refresh(), 0")
    page.get_by_role("button", name=other.url, exact=True).click()
    api.expect(page.locator("#log-title")).to_have_text(other.url)
    api.expect(page.locator("#views")).to_be_visible()  # What there is of the other is drawn.
    for route in held:
        route.continue_()
    page.evaluate("late")
    assert page.locator("#log-title").inner_text() == other.url
    assert page.locator("#bars li").count() == 1


def test_the_history_of_any_key_is_one_click_away(open_page, tmp_path):
    """Also for bytes that are not text, and for the empty key."""
    log = Log.create(str(tmp_path / "log"), partitions=1)
    log.append([{"key": key, "value": "1"} for key in (b"\xff\x00", b"", b"text")])
    log.append([{"key": key, "value": "2"} for key in (b"\xff\x00", b"", b"text")])
    page = open_page(log.url)
    page.get_by_role("tab", name="Records").click()
    for name in ("ff 00", "(empty)", "text"):
        page.get_by_label("show").select_option("records")
        page.get_by_role("button", name="show", exact=True).click()
        api.expect(page.locator("#found tr")).to_have_count(6)
        page.locator("#found").get_by_role("button", name=name, exact=True).first.click()
        api.expect(page.locator("#found tr")).to_have_count(2)
        assert records(page) == [(name, "1"), (name, "2")]


def test_a_huge_value_is_cut(open_page, tmp_path):
    """The page shows its beginning, how much there is of it, and the records after it."""
    config = {"max.message.bytes": str(1 << 25)}
    log = Log.create(str(tmp_path / "log"), partitions=1, config=config)
    log.append(
        [
            {"key": "before", "value": "1"},
            {"key": "a", "value": "x" * 10_000_000},
            {"key": "k" * 30_000, "value": b"\xff" * 900_000},
            {"key": "after", "value": "2"},
        ]
    )
    page = open_page(log.url)
    page.get_by_role("tab", name="Records").click()
    page.get_by_role("button", name="show", exact=True).click()
    found = page.locator("#found")
    api.expect(found).to_contain_text("… the first 20,000 characters of 10,000,000 bytes")
    api.expect(found).to_contain_text("… the first 20,000 of 900,000 bytes")
    api.expect(found).to_contain_text("… the first 20,000 characters of 30,000 bytes")
    assert records(page)[0] == ("after", "2")
    assert records(page)[-1] == ("before", "1")
    page.get_by_role("tab", name="Configuration").click()
    api.expect(page.locator("#configs")).to_contain_text("unlimited")


def test_numbers_and_json_are_shown_as_they_were_written(open_page, tmp_path):
    """Whole numbers beyond 2^53, which a browser rounds, decimals and exponents, in keys and
    values, in a log of bytes and in a typed one; also the order of fields and duplicate fields.
    JSON is indented, its raw text is a click away, and so is the history of such a key.
    """
    big = 2**53 + 1
    typed = Log.create(
        str(tmp_path / "typed"),
        partitions=1,
        schema={"key": pa.int64(), "value": pa.struct([("n", pa.int64()), ("x", pa.float64())])},
    )
    for n in (2**63 - 1, -(2**63)):
        typed.append([{"key": big, "value": {"n": n, "x": 1e300}}, {"key": big + 1, "value": None}])
    page = open_page(typed.url)
    page.get_by_role("tab", name="Records").click()
    page.get_by_role("button", name="show", exact=True).click()
    api.expect(page.locator("#found tr")).to_have_count(4)
    page.locator("#found").get_by_role("button", name=str(big), exact=True).first.click()
    api.expect(page.locator("#found tr")).to_have_count(2)
    shown = [value for _, value in records(page)]
    assert str(2**63 - 1) in shown[0]
    assert str(-(2**63)) in shown[1]
    assert page.locator("#found button.link", has_text=str(big)).count() == 2

    text = (
        '{"b":1.10,"2":1e400,"1":12345678901234567890,"b":[],"t":"a, {\\"b\\": 1.0}","e":[{},[-0]]}'
    )
    log = Log.create(str(tmp_path / "bytes"), partitions=1)
    log.append([{"key": '{"id":9007199254740993}', "value": text}, {"key": "x", "value": "[oh]"}])
    page = open_page(log.url)
    page.get_by_role("tab", name="Records").click()
    page.get_by_role("button", name="show", exact=True).click()
    api.expect(page.locator("#found tr")).to_have_count(2)
    assert records(page)[0] == ("x", "[oh]")
    value = page.locator("#found tr").last.locator("td").nth(4)
    lines = [
        "{",
        ' "b": 1.10,',
        ' "2": 1e400,',
        ' "1": 12345678901234567890,',
        ' "b": [],',
        ' "t": "a, {\\"b\\": 1.0}",',
        ' "e": [',
        "  {},",
        "  [",
        "   -0",
        "  ]",
        " ]",
        "}",
    ]
    assert value.locator("div").inner_text() == "\n".join(lines)
    raw = value.get_by_role("button", name="raw")
    raw.click()
    assert value.locator("div").inner_text() == text
    raw.click()
    assert value.locator("div").inner_text() == "\n".join(lines)
    page.get_by_role("button", name='{"id":9007199254740993}', exact=True).click()
    api.expect(page.locator("#found tr")).to_have_count(1)


def test_the_focus_stays_where_it_is(open_page, log, tmp_path):
    """A refresh, with and without news, keeps the focus: the next key goes where it would have
    gone.
    """
    other = Log.create(str(tmp_path / "other"), partitions=1)
    page = open_page(log.url, other.url)
    page.uncheck("#live")
    page.get_by_role("button", name=other.url, exact=True).focus()
    for _ in range(2):
        other.append([{"key": "a", "value": "1"}])
        log.append([{"key": "a", "value": "1"}])
        page.evaluate("refresh()")
        assert page.evaluate("document.activeElement.textContent") == other.url
    api.expect(page.locator("#logs tbody tr").nth(1)).to_contain_text("other12")
    page.keyboard.press("Enter")
    api.expect(page.locator("#log-title")).to_have_text(other.url)
    assert page.evaluate("document.activeElement.textContent") == other.url


def test_a_broken_log_shows_its_error_and_no_other_log(open_page, log, tmp_path):
    """One that is selected and cannot be read: nothing of the log before is left; one that breaks
    while it is shown says so; one that recovers is shown.
    """
    gone = str(tmp_path / "gone")
    page = open_page(log.url, gone)
    page.uncheck("#live")
    page.get_by_role("button", name=gone, exact=True).click()
    api.expect(page.locator("#log-problem")).to_contain_text(f"no log at {gone}")
    assert page.locator("#log-title").inner_text() == gone
    assert page.locator("#log").get_by_text(log.url).count() == 0
    assert not page.locator("#bars").is_visible()
    assert not page.get_by_role("tab", name="Records").is_visible()
    came = Log.create(gone, partitions=3)
    page.evaluate("refresh()")
    api.expect(page.locator("#bars li")).to_have_count(3)
    assert page.locator("#log-problem").inner_text() == ""
    delete_log(came.handle.standing.root)
    page.evaluate("refresh()")
    api.expect(page.locator("#log-problem")).to_contain_text(f"no log at {gone}")
    page.get_by_role("button", name=log.url, exact=True).click()
    api.expect(page.locator("#bars li")).to_have_count(2)
    assert page.locator("#log-problem").inner_text() == ""


BROKEN_WORDS = """() => {
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (node.parentElement.closest("script, option")) continue;
    for (const word of node.data.matchAll(/[A-Za-z0-9.:_-]+/g)) {
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      const tops = new Set([...range.getClientRects()].map((r) => Math.round(r.top)));
      const pieces = word[0].split("-").length; // A line may end at a hyphen.
      if (tops.size > pieces) found.push(word[0]);
    }
  }
  return found;
}"""


def test_no_word_is_broken_on_a_phone(open_page, log):
    """Tables are as wide as their text and scroll by themselves; the page does not."""
    log.alter({"reader.hold.max.ms": "1 day"})
    log.reader("billing-of-the-warehouse", hold_ms=3_600_000).commit(log.start_offsets())
    log.append([{"key": "order-9", "value": "a word"}], producer=("shop", 2**60 + 1))
    page = open_page(log.url)
    page.set_viewport_size({"width": 390, "height": 780})
    for tab in page.get_by_role("tab").all():
        tab.click()
        if tab.inner_text() == "Records":
            page.get_by_role("button", name="show", exact=True).click()
            page.wait_for_selector("#found tr")
        if tab.inner_text() == "Cost":
            api.expect(page.locator("#bill tr").last).to_contain_text("all")
        page.wait_for_load_state("networkidle")
        assert page.evaluate(BROKEN_WORDS) == [], tab.inner_text()
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 390, tab.inner_text()


def test_the_address_leads_back(open_page, log, tmp_path):
    """To the log, the view, the filter and the version that were shown: by reloading, by an address
    that was sent, and by the browser's back button.
    """
    other = Log.create(str(tmp_path / "other"), partitions=1)
    other.append([{"key": "x", "value": json.dumps({"n": i})} for i in range(3)])
    page = open_page(log.url, other.url)
    page.locator("#logs").get_by_role("button", name=other.url).click()
    api.expect(page.locator("#log-title")).to_have_text(other.url)
    page.get_by_role("tab", name="Records").click()
    page.get_by_label("from").fill("earliest")
    page.get_by_label("contains").fill("2")
    page.get_by_label("in column").fill("n")
    page.get_by_role("button", name="show", exact=True).click()
    api.expect(page.locator("#found tr")).to_have_count(1)
    address = page.url
    page.reload()
    api.expect(page.locator("#found tr")).to_have_count(1)
    assert page.get_by_label("in column").input_value() == "n"
    page.get_by_role("tab", name="Configuration").click()
    page.go_back()
    api.expect(page.get_by_role("tab", name="Records")).to_have_attribute("aria-selected", "true")
    page.goto("about:blank")
    page.goto(address)
    api.expect(page.locator("#log-title")).to_have_text(other.url)
    api.expect(page.locator("#found tr")).to_have_count(1)


def test_what_changed_and_is_copied(open_page, tmp_path):
    """A key's two rows beside each other where they differ; as CSV and JSON with every digit; where
    a reader continues; an open transaction, in the list and among what holds the log back.
    """
    rows = [{"id": "a", "city": 'Ri"ga', "big": 2**60 + 1}, {"id": "b", "city": None, "big": 1}]
    log = clog.create(tmp_path / "trips", key="id", like=rows, partitions=1)
    log.append(rows)
    log.append([{"id": "a", "city": "Oslo", "big": 2**60 + 1}])
    append_undecided(log, [rows[1]])
    page = open_page(log.url)
    api.expect(page.locator("#logs tbody tr")).to_contain_text("1 open transaction")
    api.expect(page.locator("#facts")).to_contain_text("transaction job, open since")
    page.get_by_role("tab", name="Records").click()
    page.get_by_label("show").select_option("changes")
    page.get_by_label("since version").fill("1")
    api.expect(page.locator("#found tr")).to_have_count(1)
    assert page.locator("#found del").all_inner_texts() == ['Ri"ga']
    assert page.locator("#found ins").all_inner_texts() == ["Oslo"]
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])

    def copied(kind):
        page.get_by_role("button", name=f"copy as {kind}").click()
        api.expect(page.locator("#copied")).to_contain_text("copied ")
        return page.evaluate("navigator.clipboard.readText()")

    head, line, _ = copied("CSV").split("\r\n")
    assert head == "version,change,id,before.city,before.big,value.city,value.big"
    assert line == f'{log.version},update,a,"Ri""ga",{2**60 + 1},Oslo,{2**60 + 1}'
    page.get_by_label("show").select_option("records")
    api.expect(page.locator("#found tr")).to_have_count(3)
    newest, *_ = (json.loads(line) for line in copied("JSON").splitlines())
    assert newest["value"] == {"city": "Oslo", "big": 2**60 + 1}
    page.get_by_text("next offsets").click()
    assert json.loads(page.locator("#next-offsets").inner_text()) == {"0": 3}


def test_an_address_of_a_log_that_is_not_here(open_page, log):
    """It is told, and no other log is shown in its place."""
    page = open_page(log.url)
    address = page.url.partition("#")[0]
    page.goto("about:blank")
    page.goto(f"{address}#log=%2Fgone&tab=records")
    api.expect(page.locator("#state")).to_contain_text("there is no log /gone here")
    api.expect(page.locator("#log")).to_be_hidden()
    page.locator("#logs").get_by_role("button", name=log.url).click()
    api.expect(page.locator("#state")).to_contain_text("as of")


def test_columns_of_a_typed_log_are_columns(open_page, tmp_path):
    """Each value as it was written, also a number that no browser has, a text, a list, and null; a
    deleted row, and one that is cut, in one cell.
    """
    schema = {"key": pa.int64(), "value": pa.struct(
        [("n", pa.int64()), ("city", pa.string()), ("tags", pa.list_(pa.string()))]
    )}  # fmt: skip
    log = Log.create(str(tmp_path / "typed"), partitions=1, schema=schema)
    log.append([{"key": 1, "value": {"n": 2**60 + 1, "city": 'a "b", {c}: d', "tags": ["x", "y"]}}])
    log.append([{"key": 2, "value": {"n": None, "city": "long " * 10_000, "tags": []}}])
    log.append([{"key": 3, "value": {"n": 3, "city": None, "tags": None}}])
    log.append([{"key": 3, "value": None}])
    page = open_page(log.url)
    page.get_by_role("tab", name="Records").click()
    page.get_by_label("from").fill("earliest")
    page.get_by_role("button", name="show", exact=True).click()
    rows = page.locator("#found tr")
    api.expect(rows).to_have_count(4)
    names = page.locator("#found-names th").all_inner_texts()
    assert names == ["partition", "offset", "timestamp", "key", "n", "city", "tags", "headers"]
    cells = [row.locator("td").all_inner_texts()[4:-1] for row in rows.all()]
    assert cells[0][:2] == [str(2**60 + 1), 'a "b", {c}: d']
    assert cells[0][2] == '["x", "y"]'
    assert len(cells[1]) == 1
    assert cells[2:] == [["3", "null", "null"], ["deleted"]]


def test_new_records_come_by_themselves(open_page, log):
    """Where the newest are shown; the focus stays where it is."""
    page = open_page(log.url)
    page.get_by_role("tab", name="Records").click()
    page.get_by_role("button", name="show", exact=True).click()
    page.wait_for_selector("#found tr")
    page.get_by_label("contains").focus()
    log.append([{"key": "order-new", "value": "here"}])
    api.expect(page.locator("#found tr").first).to_contain_text("order-new")
    assert page.evaluate("document.activeElement.name") == "text"


def test_pages_of_records_and_raw_text(open_page, log, tmp_path):
    """The next page continues; a value is folded, and shown as it was written."""
    wide = Log.create(str(tmp_path / "wide"), partitions=1)
    wide.append([{"key": f"k{i:03}", "value": '{"a":1,"b":2}'} for i in range(250)])
    page = open_page(wide.url)
    page.get_by_role("tab", name="Records").click()
    page.get_by_label("from").fill("earliest")
    page.get_by_role("button", name="show", exact=True).click()
    api.expect(page.locator("#found tr")).to_have_count(200)
    page.locator("#found").get_by_role("button", name="raw").first.click()
    assert records(page)[0][1].startswith('{"a":1,"b":2}')
    page.get_by_role("button", name="next page").click()
    api.expect(page.locator("#found tr")).to_have_count(50)
    assert records(page)[0][0] == "k200"
    api.expect(page.get_by_role("button", name="next page")).to_be_hidden()


def test_many_logs_are_searched_and_sorted(open_page, tmp_path):
    """By a part of the URL, over all pages; by any column, in both directions."""
    urls = [str(tmp_path / f"log-{i:02}") for i in range(60)]
    for i, url in enumerate(urls):
        Log.create(url, partitions=1 + i % 7)
    page = open_page(*urls)
    rows = page.locator("#logs tbody tr")
    api.expect(rows).to_have_count(50)
    page.get_by_role("button", name="next", exact=True).click()
    api.expect(rows).to_have_count(10)
    page.get_by_role("searchbox").fill("log-3")
    api.expect(rows).to_have_count(10)
    page.get_by_role("button", name="partitions").click()
    api.expect(rows.first).to_contain_text("log-35")
    page.get_by_role("button", name="partitions").click()
    api.expect(rows.first).to_contain_text("log-34")
