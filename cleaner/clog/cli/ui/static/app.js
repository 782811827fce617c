// The page of `clog ui`. Data comes as JSON and is put in as text, never as HTML.
"use strict";

const $ = (id) => document.getElementById(id);
const REFRESH_MS = 2000;
let chosen = null; // the number of the log that is shown
let newest = null; // its id and version
let asking = 0; // how often records were asked for
const CHARACTERS_MAX = 20000; // of a key or a value

function el(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text !== undefined && text !== null) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

const count = (n) => n.toLocaleString("en");

function size(n) {
  let unit = 0;
  while (n >= 1024 && unit < 4) { n /= 1024; unit += 1; }
  return (unit ? n.toFixed(1) : n) + " " + ["B", "KiB", "MiB", "GiB", "TiB"][unit];
}

function moment(ms) {
  const when = new Date(ms);
  return isNaN(when) ? ms + " ms" : when.toISOString().replace("T", " ").slice(0, 19) + "Z";
}

function ago(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 90) return seconds + " s";
  if (seconds < 5400) return Math.round(seconds / 60) + " min";
  return seconds < 129600 ? Math.round(seconds / 3600) + " h" : Math.round(seconds / 86400) + " d";
}

async function ask(path) {
  let answer;
  try {
    answer = await fetch(path);
  } catch {
    throw new Error("clog does not answer: start it again, if it was stopped");
  }
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error || answer.statusText);
  return body;
}

function row(cells) {
  const made = el("tr");
  for (const cell of cells) made.append(cell instanceof Node ? cell : el("td", cell));
  return made;
}

async function showLogs() {
  const {logs, cleaner} = await ask("/api/logs");
  const now = Date.now();
  showCleaner(cleaner);
  $("logs").tBodies[0].replaceChildren(...logs.map((log) => {
    const name = el("td");
    const link = el("button", log.url, {class: "link", type: "button"});
    link.addEventListener("click", () => choose(log.number));
    name.append(link);
    const cells = log.error
      ? [name, el("td", log.error, {class: "bad", colspan: 6})]
      : [name, count(log.partitions), log.version, count(log.records), size(log.object_bytes),
         log.dirty_ratio.toFixed(2) + (log.uncleanable ? ", " + log.uncleanable + " uncleanable" : ""),
         ago(now - log.committed_ms) + " ago"];
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
  $("passes").replaceChildren(...cleaner.passes.map((pass) => {
    const left = pass.left_ms === null ? "" : ", " + ago(pass.left_ms) + " left";
    const line = el("li", pass.url + ", partition " + pass.partition + " (" + pass.reason + "): " + pass.phase + " " +
      count(pass.records_done) + " of " + count(pass.records_total) + " records, " + size(pass.bytes_moved) + " moved, for " +
      ago(pass.spent_ms) + left + " ");
    line.append(el("progress", null, {max: Math.max(1, pass.records_total), value: pass.records_done, "aria-label": "this phase of the pass"}));
    return line;
  }));
  $("cleaned").replaceChildren(...cleaner.logs.map((log) =>
    row([log.url, count(log.passes), count(log.removed), size(log.bytes_read), size(log.bytes_written),
      el("td", log.error || "well", log.error ? {class: "bad"} : {})])));
}

async function choose(number) {
  if (number !== chosen) {
    for (const id of ["found", "bill", "readers", "transactions", "writers", "problem", "priced-note"]) $(id).replaceChildren();
    const slider = $("browse").elements.at;
    slider.value = slider.max;
    asking += 1;
  }
  chosen = number;
  newest = null;
  await refresh();
  if (!$("cost").hidden) await showCost();
}

async function showLog() {
  const number = chosen;
  const log = await ask("/api/logs/" + number);
  if (number !== chosen) return; // Another was chosen meanwhile.
  $("log").hidden = false;
  $("log-title").textContent = log.url;
  const sum = (name) => log.partition_details.reduce((total, d) => total + d[name], 0);
  const facts = {
    version: log.version + ", readable from " + log.oldest_readable_version,
    records: count(sum("records")), tombstones: count(sum("tombstones")), "dead rows": count(sum("dead_rows")),
    objects: count(log.objects) + ", " + size(log.object_bytes), "to be deleted": size(log.released_bytes),
    writers: count(log.writers), "last commit": ago(log.now_ms - log.committed_ms) + " ago",
  };
  $("facts").replaceChildren(...Object.entries(facts).map(([name, value]) => {
    const pair = el("div");
    pair.append(el("dt", name), el("dd", value));
    return pair;
  }));
  const version = log.log_id + " " + log.version; // Another log may stand there, at the same version.
  if (version === newest) return; // Nothing else has changed.
  newest = version;
  showPartitions(log);
  showCommits(log.commits);
  $("configs").replaceChildren(...Object.entries(log.config).sort().map(([name, value]) =>
    row([name, value + (name in log.config_overrides ? "  (set)" : "")])));
  const slider = $("browse").elements.at;
  const atEnd = slider.value === slider.max;
  slider.min = log.oldest_readable_version;
  slider.max = log.version;
  if (atEnd) slider.value = log.version;
  tellVersion();
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
      "; dirty ratio " + d.dirty_ratio.toFixed(2) + ", " + d.segments + " segments" + horizon, {class: "facts"});
    const line = el("li");
    line.append(facts, bar);
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
  const sum = (name) => commits.reduce((total, c) => total + (c.effect ? c.effect[name] : 0), 0);
  $("removed").textContent = "These " + count(commits.length) + " commits removed " + count(sum("removed_records")) + " records (" +
    size(sum("removed_bytes")) + ") and rewrote " + size(sum("rewritten_bytes")) + " for it.";
  $("history").replaceChildren(...commits.toReversed().map((c) => {
    const cleaned = Object.entries(c.first_dirty || {}).map(([p, offset]) => "partition " + p + " clean to " + offset);
    const effect = c.effect || {};
    const removed = effect.removed_records ? ["removed " + count(effect.removed_records) + " records, " + size(effect.removed_bytes)] : [];
    const rewritten = effect.rewritten_bytes ? ["rewrote " + size(effect.rewritten_bytes)] : [];
    return row([c.version, moment(c.time_ms), c.operation, c.records ? count(c.records) : "", c.size_bytes ? size(c.size_bytes) : "",
      [...(c.writers || []), ...cleaned, ...removed, ...rewritten].join(", ")]);
  }));
}

async function showUsers() {
  const number = chosen;
  const {readers, transactions, writers} = await ask("/api/logs/" + number + "/users");
  if (number !== chosen) return;
  const left = (ms) => ms === null ? "" : ms === 0 ? el("td", "overtaken", {class: "bad"}) : ago(ms);
  $("readers").replaceChildren(...readers.map((r) => r.damage
    ? row([r.name, el("td", "counts for nothing: " + r.damage, {class: "bad", colspan: 8})])
    : row([r.name, count(r.lag_records) + " records", size(r.lag_bytes), ago(r.lag_ms), moment(r.committed_ms),
        left(r.until_retention_ms), left(r.until_tombstone_ms), left(r.until_version_ms), r.held_until_ms ? "until " + moment(r.held_until_ms) : ""])));
  if (!readers.length) $("readers").replaceChildren(row([el("td", "no reader has a name", {class: "none", colspan: 9})]));
  $("transactions").replaceChildren(...transactions.map((t) => row([t.id, t.state, moment(t.started_ms), moment(t.started_ms + t.timeout_ms),
    Object.entries(t.first_offsets).map(([p, offset]) => "partition " + p + ": " + offset).join(", "), t.home || "this log"])));
  if (!transactions.length) $("transactions").replaceChildren(row([el("td", "none is open", {class: "none", colspan: 6})]));
  $("writers").replaceChildren(...writers.map((w) => row([w.id, w.kind, w.sequence, w.version])));
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
    $("priced-note").textContent = "Requests a day, if it goes on as in its newest " + count(bill.past.commits) +
      " commits, with an append each " + ago(bill.trigger_ms) + ". Stored: " + size(bill.stored_bytes) + ", " + dollars(bill.stored_dollars) +
      " a month. List prices of " + bill.prices.name + ", " + bill.prices.as_of + "; clog cost takes others.";
  } catch (error) {
    if (number === chosen) $("priced-note").textContent = error.message;
  }
}

const hexOf = (raw) => Array.from(raw, (c) => c.charCodeAt(0).toString(16).padStart(2, "0")).join(" ");

function cut(text, length = text.length) {
  const more = length - Math.min(text.length, CHARACTERS_MAX);
  return more ? text.slice(0, CHARACTERS_MAX) + "\n… and " + count(more) + " more" : text;
}

function bytesCell(record, name) {
  if (name + "_b64" in record) {
    const raw = atob(record[name + "_b64"]);
    const rest = raw.length > CHARACTERS_MAX ? "\n… and " + count(raw.length - CHARACTERS_MAX) + " bytes more" : "";
    return el("td", hexOf(raw.slice(0, CHARACTERS_MAX)) + rest, {class: "bytes", title: raw.length + " bytes"});
  }
  const value = record[name];
  if (value === null) return el("td", name === "value" ? "deleted" : "no key", {class: "none"});
  let text = typeof value === "object" ? JSON.stringify(value, null, 1) : String(value);
  if (typeof value === "string" && name === "value" && /^\s*[[{]/.test(value)) {
    try { text = JSON.stringify(JSON.parse(value), null, 1); } catch { /* It only looks like JSON. */ }
  }
  return el("td", cut(text), {class: "bytes"});
}

function keyLink(record) {
  const given = $("browse").elements;
  const isBytes = "key_b64" in record;
  const text = isBytes ? hexOf(atob(record.key_b64)) : typeof record.key === "object" ? JSON.stringify(record.key) : String(record.key);
  const link = el("button", cut(text) || "(empty)", {class: "link", type: "button", title: "the history of this key"});
  link.addEventListener("click", () => {
    given.view.value = "key";
    given.key.value = text;
    given.key.dataset.bytes = isBytes ? record.key_b64 : "";
    tellView();
    browse();
  });
  return link;
}

async function browse() {
  const given = $("browse").elements;
  const view = given.view.value;
  const asked = new URLSearchParams({limit: 200});
  if (view === "records") {
    if (given.partition.value.trim()) asked.set("partition", given.partition.value.trim());
    asked.set("from", given.from.value.trim() || "latest");
  } else {
    if (given.key.dataset.bytes) asked.set("key_b64", given.key.dataset.bytes);
    else if (given.key.value || view === "key") asked.set("key", given.key.value);
    if (view === "table") asked.set("at", given.at.value);
  }
  $("problem").textContent = "";
  const mine = (asking += 1);
  try {
    const records = await ask("/api/logs/" + chosen + "/" + view + "?" + asked);
    if (mine !== asking) return; // Something else was asked for meanwhile.
    const isCut = records.length > 0 && records.at(-1).cut === true;
    if (isCut) records.pop();
    $("found").replaceChildren(...records.map((r) => {
      const headers = (r.headers || []).map((h) => h.key + "=" + (h.value ?? h.value_b64 ?? "null")).join("\n");
      const key = bytesCell(r, "key");
      if ((r.key ?? r.key_b64 ?? null) !== null) key.replaceChildren(keyLink(r));
      return row([r.partition, r.offset, String(r.timestamp).replace("T", " "), key, bytesCell(r, "value"), headers]);
    }));
    if (!records.length) $("problem").textContent = "no records";
    if (isCut) $("problem").textContent = "These are not all: more would be too large for a page.";
  } catch (error) {
    if (mine !== asking) return;
    $("found").replaceChildren();
    $("problem").textContent = error.message;
  }
}

function tellVersion() {
  const given = $("browse").elements;
  given.version.value = given.at.value;
}

function tellView() {
  const view = $("browse").elements.view.value;
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
  if (tab.id === "tab-users" && chosen !== null) showUsers();
  if (tab.id === "tab-cost" && chosen !== null) showCost();
}

async function refresh() {
  try {
    const logs = await showLogs();
    if (chosen === null) chosen = logs.find((log) => !log.error)?.number ?? null;
    if (chosen !== null) await showLog();
    if (chosen !== null && !$("users").hidden) await showUsers();
    $("state").textContent = logs.length + (logs.length === 1 ? " log" : " logs") + ", " + moment(Date.now());
  } catch (error) {
    $("state").textContent = error.message;
  }
}

async function keepFresh() {
  if ($("live").checked && !document.hidden) await refresh();
  setTimeout(keepFresh, REFRESH_MS);
}

document.querySelector("[role=tablist]").addEventListener("click", (event) => {
  if (event.target.role === "tab") select(event.target);
});
document.querySelector("[role=tablist]").addEventListener("keydown", (event) => {
  const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
  if (!step) return;
  const tabs = [...event.currentTarget.children];
  const next = tabs[(tabs.indexOf(document.activeElement) + step + tabs.length) % tabs.length];
  select(next);
  next.focus();
});
$("priced").addEventListener("submit", (event) => { event.preventDefault(); showCost(); });
$("browse").addEventListener("submit", (event) => { event.preventDefault(); browse(); });
$("browse").elements.view.addEventListener("change", () => { tellView(); browse(); });
$("browse").elements.key.addEventListener("input", (event) => { event.target.dataset.bytes = ""; });
$("browse").elements.at.addEventListener("input", tellVersion);
$("browse").elements.at.addEventListener("change", browse);
tellView();
refresh().then(() => setTimeout(keepFresh, REFRESH_MS));
