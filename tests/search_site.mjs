// Asks the search of a built site: node search_site.mjs SITE QUESTION…
// The worker of the page runs here as it does there; a line of JSON tells the first three pages.
import fs from "node:fs";
import path from "node:path";
import vm from "node:vm";

const [site, ...questions] = process.argv.slice(2);
const index = JSON.parse(fs.readFileSync(path.join(site, "search/search_index.json"), "utf8"));
const folder = path.join(site, "assets/javascripts/workers");
const worker = fs.readdirSync(folder).find((name) => /^search\..*\.js$/.test(name));
const answers = [];
let ask;
globalThis.self = globalThis;
globalThis.addEventListener = (kind, listener) => { if (kind === "message") ask = listener; };
globalThis.postMessage = (message) => answers.push(message);
vm.runInThisContext(fs.readFileSync(path.join(folder, worker), "utf8"));
await ask({ data: { type: 0, data: { ...index, options: { suggest: false } } } });
for (const question of questions) {
  answers.length = 0;
  await ask({ data: { type: 2, data: question } });
  const { data } = answers.find((message) => message.type === 3);
  const pages = data.items.slice(0, 3).map(([first]) => first.location);
  console.log(JSON.stringify({ asked: question, pages }));
}
