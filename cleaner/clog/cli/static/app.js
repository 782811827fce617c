// The page of `clog ui`. Data comes as JSON and is put in as text, never as HTML.
"use strict";

const $ = (id) => document.getElementById(id);
const REFRESH_MS = 2000;
let chosen = null; // the number of the log that is shown
let drawn = null; // the number of the log that the page has drawn
let newest = null; // its id and version
let asking = 0; // how often records were asked for
let listed = {page: 0, by: "", down: false}; // which page of the list, and how it is sorted
let wanted = null; // the log that the address names, as long as it is not found
let keyName = "key"; // the key of the log that is shown, by its columns
let columns = null; // the fields of the values of the log that is shown, if it has any
let further = null; // where the next page of records begins
let listedRecords = []; // the records that are shown
const LINE_MAX = 40; // characters of a column that stay on one line
const INDENT_MAX = 100; // spaces: nobody reads what is deeper, and its lines would fill the memory

function el(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text !== undefined && text !== null) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// Makes the children of an element those that are given, and leaves alone what is equal already:
// whoever has the focus there, or has selected text, keeps it. Who listens, listens to the element.
function fill(old, children) {
  const made = children.map((child) => child instanceof Node ? child : document.createTextNode(child));
  made.forEach((child, i) => {
    const there = old.childNodes[i];
    if (!there) old.append(child);
    else if (!there.isEqualNode(child)) renew(there, child);
  });
  while (old.childNodes.length > made.length) old.lastChild.remove();
}

function renew(there, made) {
  if (there.nodeType !== Node.ELEMENT_NODE || there.nodeName !== made.nodeName) {
    there.replaceWith(made);
    return;
  }
  for (const {name} of [...there.attributes]) if (!made.hasAttribute(name)) there.removeAttribute(name);
  for (const {name, value} of made.attributes) if (there.getAttribute(name) !== value) there.setAttribute(name, value);
  fill(there, [...made.childNodes]);
}

// Whole numbers that a browser would round come as text.
const count = (n) => typeof n === "string" ? BigInt(n).toLocaleString("en") : n.toLocaleString("en");

function size(n) {
  let unit = 0;
  while (n >= 1024 && unit < 4) { n /= 1024; unit += 1; }
  return (unit ? n.toFixed(1) : n) + " " + ["B", "KiB", "MiB", "GiB", "TiB"][unit];
}

function moment(ms) {
  const when = new Date(ms);
  return isNaN(when) ? ms + " ms" : when.toISOString().replace("T", " ").slice(0, 19) + "Z";
}

const when = (text) => el("td", text, {class: "when"});

function ago(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 90) return seconds + " s";
  if (seconds < 5400) return Math.round(seconds / 60) + " min";
  return seconds < 129600 ? Math.round(seconds / 3600) + " h" : Math.round(seconds / 86400) + " d";
}

async function ask(path, onNext = () => {}) {
  let answer;
  try {
    answer = await fetch(path);
  } catch {
    throw new Error("clog does not answer; if it was stopped, start it again");
  }
  let body;
  try {
    body = await answer.json();
  } catch {
    throw new Error("clog cannot answer this (" + answer.status + "); the terminal in which it runs shows the reason");
  }
  if (!answer.ok) throw new Error(body.error || answer.statusText);
  onNext(answer.headers.get("clog-next"));
  return body;
}

function row(cells) {
  const made = el("tr");
  for (const cell of cells) made.append(cell instanceof Node ? cell : el("td", cell));
  return made;
}

async function showLogs() {
  const search = $("search").elements;
  const asked = new URLSearchParams();
  if (search.part.value) asked.set("contains", search.part.value);
  if (listed.page) asked.set("page", listed.page);
  const {logs, unlisted, cleaner, found, page_size} = await ask("/api/logs" + (asked.size ? "?" + asked : ""));
  const now = Date.now();
  const pages = Math.max(1, Math.ceil(found / page_size));
  search.listing.value = count(found) + (found === 1 ? " log" : " logs") + (pages > 1 ? ", page " + (listed.page + 1) + " of " + pages : "");
  search.earlier.hidden = search.later.hidden = pages === 1;
  search.earlier.disabled = listed.page === 0;
  search.later.disabled = listed.page >= pages - 1;
  fill($("unlisted"), unlisted.map(({url, error}) => el("li", url + " cannot be searched for logs: " + error, {class: "bad"})));
  showCleaner(cleaner);
  if (listed.by) {
    const rank = (log) => log[listed.by] ?? "";
    logs.sort((a, b) => (rank(a) < rank(b) ? -1 : rank(a) > rank(b) ? 1 : 0) * (listed.down ? -1 : 1));
  }
  for (const by of document.querySelectorAll("[data-by]")) {
    by.parentElement.setAttribute("aria-sort", by.dataset.by !== listed.by ? "none" : listed.down ? "descending" : "ascending");
  }
  fill($("logs").tBodies[0], logs.map((log) => {
    const name = el("td");
    name.append(el("button", log.url, {class: "link", type: "button", "data-number": log.number}));
    const cells = log.error
      ? [name, el("td", log.error, {class: "bad", colspan: 6})]
      : [name, count(log.partitions), log.version, count(log.records), size(log.object_bytes),
         log.dirty_ratio.toFixed(2) + (log.uncleanable ? ", " + log.uncleanable + " uncleanable" : ""),
         ago(now - log.committed_ms) + " ago" + (log.transactions ? ", " + count(log.transactions) + " open " + (log.transactions === 1 ? "transaction" : "transactions") : "")];
    const made = row(cells);
    made.setAttribute("aria-current", String(log.number === chosen));
    return made;
  }));
  return logs;
}

function showCleaner(cleaner) {
  $("cleaner").hidden = cleaner === null;
  if (cleaner === null) return;
  $("cleaner-idle").textContent = cleaner.passes.length ? "" : "idle, looked " + ago(cleaner.idle_ms) + " ago";
  fill($("passes"), cleaner.passes.map((pass) => {
    const left = pass.left_ms === null ? "" : ", " + ago(pass.left_ms) + " left";
    const line = el("li", pass.url + ", partition " + pass.partition + " (" + pass.reason + "): " + pass.phase + " " +
      count(pass.records_done) + " of " + count(pass.records_total) + " records, " + size(pass.bytes_moved) + " moved, for " +
      ago(pass.spent_ms) + left + " ");
    line.append(el("progress", null, {max: Math.max(1, pass.records_total), value: pass.records_done, "aria-label": "this phase of the pass"}));
    return line;
  }));
  fill($("cleaned"), cleaner.logs.map((log) =>
    row([log.url, count(log.passes), count(log.removed), size(log.bytes_read), size(log.bytes_written),
      el("td", log.error || "ok", log.error ? {class: "bad"} : {})])));
}

async function choose(number, url) {
  if (number !== chosen) {
    $("further").hidden = true;
    for (const id of ["found", "bill", "readers", "transactions", "writers", "problem", "priced-note", "log-problem"]) $(id).replaceChildren();
    const slider = $("browse").elements.at;
    slider.value = slider.max;
    asking += 1;
    $("views").hidden = true; // They are of the log before.
    $("log-title").textContent = url;
    $("log").hidden = false;
  }
  chosen = number;
  wanted = null;
  newest = null;
  remember();
  await refresh();
  if (!$("cost").hidden && chosen === drawn) await showCost();
}

function waiting(waits) {
  const first = waits.waiting ? ", the first for " + ago(waits.oldest_ms) : "";
  const half = waits.answered ? "; half of the last " + count(waits.answered) + " waited " + ago(waits.median_ms) : "";
  return count(waits.waiting) + first + half;
}

async function showLog(logs) {
  const number = chosen;
  const line = logs.find((each) => each.number === number);
  let log = null;
  let problem = "";
  try {
    log = await ask("/api/logs/" + number);
  } catch (error) {
    problem = error.message;
  }
  if (number !== chosen) return; // Another was chosen meanwhile.
  $("log").hidden = false;
  const dead = (log?.unmatched_masks ?? []).join(", ");
  $("log-problem").textContent = problem || (dead && "no column of this log is hidden by --mask " + dead);
  if (log === null) {
    if (line) $("log-title").textContent = line.url;
    return; // What was drawn of this log stays; of another one nothing is to be seen.
  }
  $("views").hidden = false;
  drawn = number;
  $("log-title").textContent = log.url;
  const sum = (name) => log.partition_details.reduce((total, d) => total + d[name], 0);
  const facts = {
    version: log.version + ", readable from " + log.oldest_readable_version,
    records: count(sum("records")), tombstones: count(sum("tombstones")), "dead rows": count(sum("dead_rows")),
    objects: count(log.objects) + ", " + size(log.object_bytes) + " stored", "record bytes": size(sum("size_bytes")) + " before compression", "to be deleted": size(log.released_bytes),
    committers: count(log.committers),
    ...(log.waits ? {"waiting to commit": waiting(log.waits)} : {}),
    writers: count(log.writers), "last commit": ago(log.now_ms - log.committed_ms) + " ago",
  };
  const held = holders(log);
  if (held.length) facts["held back by"] = held.join("; ");
  for (const s of log.sources) {
    const places = Object.entries(s.positions);
    const shown = places.slice(0, 4).map(([p, at]) => places.length > 1 ? p + ": " + at : at).join(", ") + (places.length > 4 ? ", …" : "");
    const age = s.committed_ms === null ? "" : ", committed " + ago(log.now_ms - s.committed_ms) + " ago";
    facts[s.writer + " from " + s.name] = "at " + shown + age;
  }
  fill($("facts"), Object.entries(facts).map(([name, value]) => {
    const pair = el("div");
    pair.append(el("dt", name), el("dd", value));
    return pair;
  }));
  const version = log.log_id + " " + log.version; // Another log may stand there, at the same version.
  if (version === newest) return; // Nothing else has changed.
  const isNews = newest !== null;
  newest = version;
  showPartitions(log);
  $("next-offsets").textContent = JSON.stringify(Object.fromEntries(log.partition_details.map((d) => [d.partition, d.stable_offset])));
  const kind = log.schema.value;
  keyName = log.config["table.key.columns"] || "key";
  columns = typeof kind === "object" && !Array.isArray(kind) ? Object.keys(kind) : null;
  fill($("paths"), (columns ?? []).map((name) => el("option", null, {value: name})));
  fill($("schema"), Object.entries(log.schema).flatMap(([name, kind]) => fields(name, kind)).map(row));
  showCommits(log.commits);
  showSpans(log.spans, log.now_ms);
  $("configs").replaceChildren(...Object.entries(log.config).sort().map(([name, value]) =>
    row([name, value + (name in log.config_overrides ? "  (set)" : "")])));
  const slider = $("browse").elements.at;
  const atEnd = slider.value === slider.max;
  slider.min = log.oldest_readable_version;
  slider.max = log.version;
  if (atEnd) slider.value = log.version;
  tellVersion();
  if (isNews && !$("records").hidden && isTail()) browse(); // What is new is shown as it comes.
}

// What keeps readers, tombstones or old versions waiting, in words.
function holders(log) {
  const until = (ms) => ms === null ? "" : " until " + moment(ms) + " at the latest";
  return [
    ...log.transactions.map((t) => "transaction " + t.id + ", " + t.state + " since " + moment(t.started_ms)),
    ...Object.entries(log.holds).map(([name, ms]) => "reader " + name + until(ms)),
    ...log.kept.map((k) => "cut " + k.cut + ", which keeps version " + k.version + " and " + size(k.size_bytes) + until(k.until_ms)),
  ];
}

function showPartitions(log) {
  const largest = Math.max(1, ...log.partition_details.map((d) => d.size_bytes));
  $("bars").replaceChildren(...log.partition_details.map((d) => {
    const parts = {
      clean: d.clean_bytes, cleanable: d.cleanable_bytes,
      lagging: Math.max(0, d.size_bytes - d.clean_bytes - d.cleanable_bytes - d.active_bytes), active: d.active_bytes,
    };
    const said = Object.entries(parts).filter(([, n]) => n).map(([name, n]) => name + " " + size(n)).join(", ");
    const bar = el("div", null, {class: "bar", role: "img", "aria-label": "partition " + d.partition + ": " + (said || "empty"), title: said});
    bar.style.width = Math.max(2, 100 * d.size_bytes / largest) + "%";
    for (const [name, bytes] of Object.entries(parts)) {
      const part = el("span", null, {class: "part " + name});
      part.style.flexGrow = bytes;
      if (bytes) bar.append(part);
    }
    const horizon = d.delete_horizon_ms === null ? "" : ", tombstones from offset " + d.delete_retention_offset +
      " on, horizon " + moment(d.delete_horizon_ms);
    const facts = el("div", "partition " + d.partition + ": " + size(d.size_bytes) + ", " + count(d.records) + " records; start " +
      d.log_start_offset + ", first dirty " + d.first_dirty_offset + ", active " + d.active_base_offset +
      (d.stable_offset < d.end_offset ? ", stable " + d.stable_offset : "") + ", end " + d.end_offset +
      "; dirty ratio " + d.dirty_ratio.toFixed(2) + ", " + d.segments + (d.segments === 1 ? " segment" : " segments") + horizon, {class: "facts"});
    const line = el("li");
    line.append(facts, bar, el("div", "next: " + d.next_action, {class: "facts"}));
    if (d.uncleanable) line.append(el("div", "uncleanable: " + d.uncleanable, {class: "bad"}));
    return line;
  }));
}

function showCommits(commits) {
  const most = Math.max(1, ...commits.map((c) => c.records));
  const width = 800 / Math.max(1, commits.length);
  $("chart").replaceChildren(...commits.map((c, i) => {
    const bar = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    const height = c.records ? Math.max(2, 88 * c.records / most) : 2;
    for (const [name, value] of Object.entries({x: i * width, y: 90 - height, width: Math.max(1, width - 1), height})) {
      bar.setAttribute(name, value);
    }
    if (c.operation === "clean") bar.setAttribute("class", "clean");
    return bar;
  }));
  const appends = commits.filter((c) => c.records);
  const hours = appends.length > 1 ? (appends.at(-1).time_ms - appends[0].time_ms) / 3600000 : 0;
  const each = (name) => appends.slice(1).reduce((total, c) => total + c[name], 0) / hours;
  $("pace").textContent = hours > 1 / 60 ? count(Math.round(each("records"))) + " records and " + size(Math.round(each("size_bytes"))) +
    " per hour, in " + count(Math.round((appends.length - 1) / hours)) + " appends, over the last " + ago(hours * 3600000) : "";
  const sum = (name) => commits.reduce((total, c) => total + (c.effect ? c.effect[name] : 0), 0);
  $("removed").textContent = "These " + count(commits.length) + " commits removed " + count(sum("removed_records")) + " records (" +
    size(sum("removed_bytes")) + "), and rewrote " + size(sum("rewritten_bytes")) + " to do so.";
  $("history").replaceChildren(...commits.toReversed().map((c) => {
    const cleaned = Object.entries(c.first_dirty || {}).map(([p, offset]) => "partition " + p + " clean to " + offset);
    const effect = c.effect || {};
    const removed = effect.removed_records ? ["removed " + count(effect.removed_records) + " records, " + size(effect.removed_bytes)] : [];
    const rewritten = effect.rewritten_bytes ? ["rewrote " + size(effect.rewritten_bytes)] : [];
    return row([c.version, when(moment(c.time_ms)), c.operation, c.records ? count(c.records) : "", c.size_bytes ? size(c.size_bytes) : "",
      [...(c.writers || []), ...cleaned, ...removed, ...rewritten].join(", ")]);
  }));
}

const SPAN_MS = 300000;

// Draws what commits did over time: of each span of it, or, of a level, how it stood until the next.
function showSpans(spans, now) {
  const began = spans.length ? spans[0].from_ms : now;
  const hour = 3600000 / SPAN_MS;
  const known = spans.filter((s) => s.log_bytes !== null);
  const share = (s) => s.log_bytes ? s.dirty_bytes / s.log_bytes : 0;
  const flow = (of) => spans.map((s) => [s.from_ms, s.from_ms + SPAN_MS, of(s) * hour]);
  const level = (of) => known.map((s, i) => [s.from_ms, i + 1 < known.length ? known[i + 1].from_ms : now, of(s)]);
  const bytes = (n) => size(Math.round(n));
  graph("graph-records", "records per hour", flow((s) => s.records), (n) => count(Math.round(n)), began, now);
  graph("graph-bytes", "bytes appended per hour", flow((s) => s.size_bytes), bytes, began, now);
  graph("graph-removed", "bytes removed per hour", flow((s) => s.removed_bytes), bytes, began, now);
  graph("graph-size", "bytes in the log", level((s) => s.log_bytes), bytes, began, now);
  graph("graph-dirty", "share that is dirty", level(share), (n) => n.toFixed(2), began, now);
}

function graph(id, name, bars, said, began, now) {
  const most = Math.max(...bars.map(([, , n]) => n), 0);
  const x = (ms) => 800 * (ms - began) / Math.max(SPAN_MS, now - began);
  const text = name + ": at most " + said(most) + ", last " + said(bars.length ? bars.at(-1)[2] : 0);
  const chart = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const attributes = {viewBox: "0 0 800 40", preserveAspectRatio: "none", role: "img", "aria-label": text};
  for (const [key, value] of Object.entries(attributes)) chart.setAttribute(key, value);
  for (const [from, until, n] of bars) {
    const bar = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    const height = most ? 40 * n / most : 0;
    const place = {x: x(from), y: 40 - height, width: Math.max(1, x(Math.min(until, now)) - x(from)), height};
    for (const [key, value] of Object.entries(place)) bar.setAttribute(key, value);
    chart.append(bar);
  }
  fill($(id), [el("figcaption", text + "; over " + ago(now - began)), chart]);
}

async function showUsers() {
  const number = chosen;
  const {readers, transactions, writers} = await ask("/api/logs/" + number + "/users");
  if (number !== chosen) return;
  const left = (ms) => ms === null ? "" : ms === 0 ? el("td", "overtaken", {class: "bad"}) : ago(ms);
  fill($("readers"), readers.map((r) => r.damage
    ? row([r.name, el("td", "ignored: " + r.damage, {class: "bad", colspan: 8})])
    : row([r.name, count(r.lag_records) + " records", size(r.lag_bytes), ago(r.lag_ms), when(moment(r.committed_ms)),
        left(r.until_retention_ms), left(r.until_tombstone_ms), left(r.until_version_ms), r.held_until_ms ? "until " + moment(r.held_until_ms) : ""])));
  const now = Date.now();
  const lagging = readers.filter((r) => !r.damage);
  while ($("lags").childElementCount < lagging.length) $("lags").append(el("figure", null, {id: "lag-" + $("lags").childElementCount}));
  while ($("lags").childElementCount > lagging.length) $("lags").lastChild.remove();
  lagging.forEach((r, i) => {
    const bars = r.lags.map(([ms, n], j) => [ms, j + 1 < r.lags.length ? r.lags[j + 1][0] : now, n]);
    graph("lag-" + i, r.name + ", records behind", bars, count, bars[0][0], now);
  });
  if (!readers.length) fill($("readers"), [row([el("td", "no named readers", {class: "none", colspan: 9})])]);
  fill($("transactions"), transactions.map((t) => row([t.id, t.state, when(moment(t.started_ms)), when(moment(t.started_ms + t.timeout_ms)),
    Object.entries(t.held_offsets).map(([p, offset]) => "partition " + p + ": " + offset).join(", "), t.home || "this log"])));
  if (!transactions.length) fill($("transactions"), [row([el("td", "no open transactions", {class: "none", colspan: 6})])]);
  fill($("writers"), writers.map((w) => row([w.id, w.kind, w.sequence, w.version])));
  if (!writers.length) fill($("writers"), [row([el("td", "no writers are remembered: appends without a producer, a stream or a transaction leave none", {class: "none", colspan: 4})])]);
}

const dollars = (n) => "$" + n.toFixed(2);

async function showCost() {
  const readers = $("priced").elements.readers.value.trim() || "0";
  const number = chosen;
  try {
    const bill = await ask("/api/logs/" + number + "/cost?readers=" + encodeURIComponent(readers));
    if (number !== chosen) return;
    const sum = (name) => bill.daily.reduce((total, line) => total + line[name], 0);
    const line = (what, of) => row([what, ...["puts", "gets", "lists"].map((name) => count(Math.round(of(name)))),
      size(Math.round(of("bytes_out"))), size(Math.round(of("bytes_in"))), dollars(of("dollars"))]);
    $("bill").replaceChildren(...bill.daily.map((each) => line(each.what, (name) => each[name])), line("all", sum));
    $("priced-note").textContent = "Requests per day, if the log continues as in its newest " + count(bill.past.commits) +
      " commits, with an append every " + ago(bill.trigger_ms) + ". Stored: " + size(bill.stored_bytes) + ", " + dollars(bill.stored_dollars) +
      " a month. List prices of " + bill.prices.name + ", " + bill.prices.as_of + "; clog cost accepts others.";
  } catch (error) {
    if (number === chosen) $("priced-note").textContent = error.message;
  }
}

const hexOf = (raw) => Array.from(raw, (c) => c.charCodeAt(0).toString(16).padStart(2, "0")).join(" ");

// JSON with each part on a line of its own, and every number, text and field as it was written:
// what a browser makes of a number is another one, where it is long. Null of what is no JSON.
function indented(text) {
  if (!/^\s*[[{]/.test(text)) return null;
  try { JSON.parse(text); } catch { return null; }
  const opens = (token) => token === "[" || token === "{";
  let made = "";
  let depth = 0;
  let before = "";
  for (const token of text.match(/"(?:[^"\\]|\\.)*"|[[\]{},:]|[^\s"[\]{},:]+/g)) {
    const closes = token === "]" || token === "}";
    if (closes) depth -= 1;
    if (closes ? !opens(before) : opens(before) || before === ",") made += "\n" + " ".repeat(Math.min(depth, INDENT_MAX));
    made += token === ":" ? ": " : token;
    if (opens(token)) depth += 1;
    before = token;
  }
  return made;
}

// A key or a value: {text, isBytes, note}, where the note says what was left out; null where there is none.
function content(record, name) {
  const length = record[name + "_bytes"];
  if (name + "_b64" in record) {
    const raw = atob(record[name + "_b64"]);
    return {text: hexOf(raw), isBytes: true, note: length ? "… the first " + count(raw.length) + " of " + count(length) + " bytes" : ""};
  }
  const text = record[name + "_json"] ?? record[name];
  if (text === null) return null;
  return {text, isBytes: false, note: length ? "… the first " + count([...text].length) + " characters of " + count(length) + " bytes" : ""};
}

function valueCell(record, name = "value") {
  const found = content(record, name);
  if (found === null) return el("td", record.change === "insert" ? "" : "deleted", {class: "none"});
  const cell = el("td", null, {class: "bytes"});
  const pretty = found.isBytes ? null : indented(found.text);
  cell.append(el("div", pretty ?? found.text));
  if (pretty !== null && pretty !== found.text) {
    cell.append(el("button", "raw", {class: "link", type: "button", "aria-pressed": "false", title: "the text as it was written", "data-raw": found.text, "data-pretty": pretty}));
  }
  if (found.note) cell.append(el("div", found.note, {class: "none"}));
  return cell;
}

// The fields of the text of a JSON object, each as it was written; null of any other text.
function partsOf(text) {
  if (!/^\s*{/.test(text)) return null;
  try { JSON.parse(text); } catch { return null; }
  const parts = new Map();
  let depth = 0;
  let name = null;
  let part = "";
  for (const token of text.match(/"(?:[^"\\]|\\.)*"|[[\]{},:]|[^\s"[\]{},:]+/g)) {
    const opens = token === "{" || token === "[";
    if (token === "}" || token === "]") depth -= 1;
    const ends = depth === 0 ? !opens : depth === 1 && token === ",";
    if (ends) {
      if (name !== null) parts.set(name, part);
      name = null;
      part = "";
    } else if (depth === 1 && name === null) name = JSON.parse(token);
    else if (depth > 1 || !(token === ":" && part === "")) part += token === "," || token === ":" ? token + " " : depth ? token : "";
    if (opens) depth += 1;
  }
  return parts;
}

// The cells of a value: one, or, of a log with columns, one for each of these.
function valueCells(record, columns) {
  const found = columns && content(record, "value");
  if (!found) {
    const cell = valueCell(record);
    if (columns) cell.setAttribute("colspan", columns.length);
    return [cell];
  }
  const parts = found.note ? null : partsOf(found.text);
  if (parts === null) {
    const cell = valueCell(record);
    cell.setAttribute("colspan", columns.length);
    return [cell];
  }
  return columns.map((name) => partCell(parts.get(name)));
}

// The cell of a part of a value, as it was written in JSON.
function partCell(part) {
  if (part === undefined || part === "null") return el("td", part ?? "", {class: "none"});
  const isShort = part.length <= LINE_MAX; // It stays on one line.
  const cell = el("td", null, {class: isShort ? "when" : "bytes"});
  cell.append(el("div", part.startsWith('"') ? JSON.parse(part) : (isShort ? null : indented(part)) ?? part));
  return cell;
}

// The cells of a row before and after: where they differ, the one beside the other.
function changedCells(change) {
  const [old, made] = ["before", "value"].map((name) => content(change, name));
  const [before, after] = [old, made].map((found) => columns && found && !found.note ? partsOf(found.text) : null);
  if (!columns || (old && !before) || (made && !after)) {
    const sides = ["before", "value"].map((name) => valueCell(change, name));
    if (columns) sides[1].setAttribute("colspan", Math.max(1, columns.length - 1));
    return sides;
  }
  return columns.map((name) => {
    const [was, is] = [before?.get(name), after?.get(name)];
    if (!before || !after || was === is) {
      const cell = partCell(is ?? was);
      if (before && after) cell.classList.add("same");
      return cell;
    }
    const cell = el("td", null, {class: "when"});
    for (const [tag, part] of [["del", was], ["ins", is]]) {
      const shown = partCell(part ?? "null");
      const side = el(tag);
      side.append(...shown.childNodes);
      if (shown.className !== "bytes") side.className = shown.className;
      else cell.className = "bytes";
      cell.append(side);
    }
    return cell;
  });
}

function keyCell(record) {
  const found = content(record, "key");
  if (found === null) return el("td", "no key", {class: "none"});
  const cell = el("td", null, {class: found.text.length <= LINE_MAX ? "bytes short" : "bytes"});
  if (found.note) {
    cell.append(el("div", found.text), el("div", found.note, {class: "none"}));
    return cell; // Its history cannot be asked for: the rest of it is not here.
  }
  cell.append(el("button", found.text || "(empty)", {class: "link", type: "button", title: "the history of this key", "data-key": found.text, "data-b64": found.isBytes ? record.key_b64 : ""}));
  return cell;
}

function headersCell(record) {
  const pairs = (record.headers || []).map((h) => h.key + "=" + (h.value ?? h.value_b64 ?? "null") + (h.value_bytes ? "… (" + count(h.value_bytes) + " bytes)" : ""));
  if (record.headers_left_out) pairs.push("… and " + count(record.headers_left_out) + " more");
  return el("td", pairs.join("\n"));
}

// The fields of a type, nested ones by their paths.
function fields(name, kind) {
  if (Array.isArray(kind)) return fields(name + "[]", kind[0]);
  if (typeof kind !== "object" || kind === null) return [[name, String(kind)]];
  return Object.entries(kind).flatMap(([inner, of]) => fields(name + "." + inner, of));
}

function isTail() {
  const given = $("browse").elements;
  return $("live").checked && given.view.value === "records" && ["", "latest"].includes(given.from.value.trim());
}

function toggleRaw(button) {
  const isRaw = button.getAttribute("aria-pressed") !== "true";
  button.setAttribute("aria-pressed", String(isRaw));
  button.previousSibling.textContent = isRaw ? button.dataset.raw : button.dataset.pretty;
}

function showKey({key, b64}) {
  const given = $("browse").elements;
  given.view.value = "key";
  given.key.value = key;
  given.key.dataset.bytes = b64;
  tellView();
  given.key.focus(); // The button goes with its row.
  browse();
}

const KEPT = ["view", "partition", "from", "key", "at", "text", "path"];

// Puts what is shown into the address, so that it can be reloaded, sent, and gone back to.
function remember() {
  const given = $("browse").elements;
  const kept = new URLSearchParams();
  if (chosen !== null) kept.set("log", $("log-title").textContent);
  kept.set("tab", document.querySelector("[role=tab][aria-selected=true]").getAttribute("aria-controls"));
  if (kept.get("tab") === "records") {
    for (const name of KEPT) {
      const isShown = !given[name].closest("label").hidden && !(name === "at" && given.at.value === given.at.max);
      if (given[name].value && isShown) kept.set(name, given[name].value);
    }
    if (given.key.dataset.bytes && kept.has("key")) kept.set("key_b64", given.key.dataset.bytes);
  }
  if ($("search").elements.part.value) kept.set("search", $("search").elements.part.value);
  if (listed.page) kept.set("page", listed.page);
  if (listed.by) kept.set("sort", (listed.down ? "-" : "") + listed.by);
  const address = "#" + kept;
  if (address !== location.hash) history.pushState(null, "", address);
}

// Shows what the address says.
async function recall() {
  const kept = new URLSearchParams(location.hash.slice(1));
  const given = $("browse").elements;
  $("search").elements.part.value = kept.get("search") ?? "";
  const by = kept.get("sort") ?? "";
  listed = {page: Number(kept.get("page") ?? 0), by: by.replace(/^-/, ""), down: by.startsWith("-")};
  for (const name of KEPT) if (name !== "at") given[name].value = kept.get(name) ?? (name === "view" ? "records" : "");
  given.key.dataset.bytes = kept.get("key_b64") ?? "";
  tellView();
  wanted = kept.get("log");
  if (wanted !== null) {
    const {logs} = await ask("/api/logs?" + new URLSearchParams({contains: wanted}));
    const line = logs.find((log) => log.url === wanted);
    if (line) wanted = null;
    else {
      chosen = null;
      $("log").hidden = true;
    }
    if (line && line.number !== chosen) {
      chosen = line.number;
      newest = null;
      $("log-title").textContent = line.url;
    }
  }
  const tab = $("tab-" + (kept.get("tab") ?? "partitions"));
  await refresh();
  if (kept.has("at")) { given.at.value = kept.get("at"); tellVersion(); }
  if (tab) select(tab);
  if (tab && tab.id === "tab-records" && chosen !== null) await browse();
}

async function browse(after = null) {
  const given = $("browse").elements;
  const view = given.view.value;
  if (view === "changes" && given.at.value === given.at.max) {
    given.at.value = given.at.max - 1; // Since the newest, nothing has changed.
    tellVersion();
  }
  const asked = new URLSearchParams({limit: 200});
  if (given.text.value) asked.set("contains", given.text.value);
  if (given.path.value) asked.set("path", given.path.value);
  if (after !== null) asked.set("after", after);
  if (view === "records") {
    if (given.partition.value.trim()) asked.set("partition", given.partition.value.trim());
    asked.set("from", given.from.value.trim() || "latest");
  } else {
    if (given.key.dataset.bytes) asked.set("key_b64", given.key.dataset.bytes);
    else if (given.key.value || view === "key") asked.set("key", given.key.value);
    if (view === "table") asked.set("at", given.at.value);
    if (view === "changes") asked.set("since", given.at.value);
  }
  $("problem").textContent = "";
  const mine = (asking += 1);
  try {
    let next = null;
    const records = await ask("/api/logs/" + chosen + "/" + view + "?" + asked, (told) => { next = told; });
    if (mine !== asking) return; // Something else was asked for meanwhile.
    listedRecords = records;
    $("copied").textContent = "";
    $("copies").hidden = !records.length;
    const isChanges = view === "changes";
    const rows = records.map((r) => isChanges
      ? row([r.version, el("td", r.change, {class: "when"}), keyCell(r), ...changedCells(r)])
      : row([r.partition, r.offset, when(String(r.timestamp).replace("T", " ")), keyCell(r), ...valueCells(r, columns), headersCell(r)]));
    const names = isChanges ? ["version", "change", keyName, ...(columns ?? ["before", "after"])] : ["partition", "offset", "timestamp", keyName, ...(columns ?? ["value"]), "headers"];
    fill($("found-names"), names.map((name) => el("th", name)));
    fill($("found"), rows);
    further = next;
    $("further").hidden = next === null;
    const [place, offset] = (next ?? "").split(":");
    $("further").textContent = offset === undefined ? "next page" : "next page, from offset " + offset + " of partition " + place;
    if (!records.length) $("problem").textContent = next === null ? (isChanges ? "no row of the table changed since this version" : "no records") : "no match so far; the next page continues the search";
  } catch (error) {
    if (mine !== asking) return;
    $("found").replaceChildren();
    $("further").hidden = $("copies").hidden = true;
    $("problem").textContent = error.message;
  }
}

// A line of JSON, with numbers as they were written.
function jsonOf(record) {
  const fields = Object.entries(record).filter(([, value]) => value !== undefined && value !== null)
    .map(([name, value]) => name.endsWith("_json") ? [name.slice(0, -5), value] : [name, JSON.stringify(value)]);
  return "{" + fields.map(([name, text]) => JSON.stringify(name) + ": " + text).join(", ") + "}";
}

const csvField = (text) => /[",\n\r]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;

// The records as a spreadsheet takes them: columns of a typed log by their names.
function csvOf(records) {
  const lists = records.some((r) => "change" in r);
  const about = lists ? ["version", "change"] : ["partition", "offset", "timestamp"];
  const sides = lists ? ["before", "value"] : ["value"];
  const named = sides.flatMap((side) => (columns ?? [""]).map((name) => [side, name]));
  const shown = (part) => part === undefined || part === "null" ? "" : part.startsWith('"') ? JSON.parse(part) : part;
  const head = [...about, keyName, ...named.map(([side, name]) => !name ? side : lists ? side + "." + name : name)];
  const lines = records.map((r) => {
    const parts = Object.fromEntries(sides.map((side) => [side, columns && partsOf(content(r, side)?.text ?? "")]));
    const values = named.map(([side, name]) => name ? shown(parts[side]?.get(name)) : content(r, side)?.text ?? "");
    return [...about.map((name) => String(r[name])), content(r, "key")?.text ?? "", ...values];
  });
  return [head, ...lines].map((line) => line.map(csvField).join(",")).join("\r\n") + "\r\n";
}

async function copy(kind) {
  const text = kind === "csv" ? csvOf(listedRecords) : listedRecords.map(jsonOf).join("\n") + "\n";
  const cut = listedRecords.filter((r) => r.key_bytes || r.value_bytes || r.before_bytes || r.headers_left_out).length;
  try {
    await navigator.clipboard.writeText(text);
    $("copied").textContent = "copied " + count(listedRecords.length) + (listedRecords.length === 1 ? " record" : " records") + (cut ? ", of " + count(cut) + " only the part that is shown" : "");
  } catch {
    $("copied").textContent = "this browser lets only pages of https and of this machine copy; use clog consume" + (kind === "csv" ? " and its JSON" : " --json");
  }
}

function tellVersion() {
  const given = $("browse").elements;
  given.version.value = given.at.value;
}

function tellView() {
  const view = $("browse").elements.view.value;
  $("at-name").textContent = view === "changes" ? "since version" : "at version";
  for (const label of document.querySelectorAll("[data-for]")) {
    label.hidden = !label.dataset.for.split(" ").includes(view);
  }
}

function select(tab) {
  for (const other of document.querySelectorAll("[role=tab]")) {
    const on = other === tab;
    other.setAttribute("aria-selected", String(on));
    other.tabIndex = on ? 0 : -1;
    $(other.getAttribute("aria-controls")).hidden = !on;
  }
  if (tab.id === "tab-users" && chosen !== null) showUsers().catch((error) => { $("log-problem").textContent = error.message; });
  if (tab.id === "tab-cost" && chosen !== null) showCost();
}

async function refresh() {
  try {
    const logs = await showLogs();
    if (chosen === null) chosen = logs.find((log) => wanted === null ? !log.error : log.url === wanted)?.number ?? null;
    if (chosen !== null) wanted = null;
    document.querySelector('#logs [data-number="' + chosen + '"]')?.closest("tr").setAttribute("aria-current", "true");
    if (chosen !== null) await showLog(logs);
    if (chosen !== null && chosen === drawn && !$("users").hidden) await showUsers();
    $("state").textContent = wanted === null ? "as of " + moment(Date.now()) : "there is no log " + wanted + " here; choose one of the list";
  } catch (error) {
    $("state").textContent = error.message;
  }
}

async function keepFresh() {
  if ($("live").checked && !document.hidden) await refresh();
  setTimeout(keepFresh, REFRESH_MS);
}

$("logs").addEventListener("click", (event) => {
  const {number} = event.target.dataset;
  if (number !== undefined) choose(Number(number), event.target.textContent);
});
document.querySelector("[role=tablist]").addEventListener("click", (event) => {
  if (event.target.role !== "tab") return;
  select(event.target);
  remember();
});
document.querySelector("[role=tablist]").addEventListener("keydown", (event) => {
  const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
  if (!step) return;
  const tabs = [...event.currentTarget.children];
  const next = tabs[(tabs.indexOf(document.activeElement) + step + tabs.length) % tabs.length];
  select(next);
  next.focus();
  remember();
});
$("priced").addEventListener("submit", (event) => { event.preventDefault(); showCost(); });
$("browse").addEventListener("submit", (event) => { event.preventDefault(); remember(); browse(); });
$("browse").elements.view.addEventListener("change", () => { tellView(); remember(); browse(); });
$("browse").elements.fold.addEventListener("change", (event) => { $("found").classList.toggle("open", !event.target.checked); });
$("found").addEventListener("click", ({target}) => {
  if (target.dataset.raw !== undefined) toggleRaw(target);
  if (target.dataset.key !== undefined) { showKey(target.dataset); remember(); }
});
$("further").addEventListener("click", () => browse(further));
for (const button of $("copies").querySelectorAll("button")) button.addEventListener("click", () => copy(button.value));
$("search").addEventListener("submit", (event) => { event.preventDefault(); });
$("search").elements.part.addEventListener("input", () => { listed.page = 0; remember(); refresh(); });
for (const [name, step] of [["earlier", -1], ["later", 1]]) {
  $("search").elements[name].addEventListener("click", () => { listed.page += step; remember(); refresh(); });
}
$("logs").tHead.addEventListener("click", ({target}) => {
  const {by} = target.dataset;
  if (by === undefined) return;
  listed = {...listed, by, down: listed.by === by && !listed.down};
  remember();
  refresh();
});
addEventListener("popstate", recall);
$("browse").elements.key.addEventListener("input", (event) => { event.target.dataset.bytes = ""; });
$("browse").elements.at.addEventListener("input", tellVersion);
$("browse").elements.at.addEventListener("change", () => { remember(); browse(); });
tellView();
(location.hash ? recall().catch((error) => { $("state").textContent = error.message; }) : refresh()).then(() => setTimeout(keepFresh, REFRESH_MS));
