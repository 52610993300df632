// The page of the dashboard: reads the stream of updates and shows them. Whatever comes from the network is text.

const $ = (id) => document.getElementById(id);
const key = location.hash.slice(1);
const NONE = "–";
const PAGE_ROWS = 25;
const SILENT_S = 120; // a folder does not show that its coordinator was killed, but it changes no more

let state = null;
let allowed = false; // may this dashboard send commands?
const agents = new Map(); // by name: [state, cluster, figure, seen, samples, refusals, reason, takes]
const view = { search: "", filter: "", column: "agent", descending: false, page: 0 };

// -- words -----------------------------------------------------------------------------------------

function figure(value) {
  if (value === null || value === undefined) return NONE;
  if (state && state.percent) return `${(100 * value).toFixed(1)} %`;
  const digits = Number(value.toPrecision(4)).toString();
  return Math.abs(value) < 9999.5 ? digits : digits.replace(/\B(?=(\d{3})+$)/g, "\u00a0");
}

function duration(seconds) {
  if (seconds < 90) return `${Math.max(1, Math.round(seconds))} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${(seconds / 3600).toFixed(1)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

function ago(seen) {
  return seen === null ? NONE : `${duration(Math.max(0, Date.now() / 1000 - seen))} ago`;
}

function put(id, text) {
  const place = $(id);
  if (place.textContent !== text) place.textContent = text;
}

function banner(text) {
  $("banner").hidden = !text;
  put("banner", text);
}

// -- sections that the server has drawn ---------------------------------------------------------------

const map = new ClusterMap($("map"), sentence, (name) => { $("search").value = name; search(); $("agents-title").scrollIntoView({ block: "start" }); });
const parser = new DOMParser(); // what it reads runs no script

function takeSections(news) {
  for (const [id, text] of Object.entries(news)) $(id).replaceChildren(...parser.parseFromString(text, "text/html").body.childNodes);
  document.body.classList.toggle("list", "runs" in news);
  for (const link of document.querySelectorAll("a[data-page]")) link.hash = key;
  showSilence();
  showValues();
}

/** A folder does not show that its coordinator was killed, but it changes no more. */
function showSilence() {
  for (const place of document.querySelectorAll("[data-written]")) {
    const silent = Date.now() / 1000 - Number(place.dataset.written);
    const text = silent > SILENT_S ? ` · last written ${duration(silent)} ago: is it still running?` : "";
    if (place.textContent !== text) place.textContent = text;
  }
}

const pointer = { x: -1, y: -1 };

/** The values of a chart at the place of the pointer, in the line below it. */
function showValues() {
  for (const line of document.querySelectorAll("svg .hover[visibility=visible]")) line.setAttribute("visibility", "hidden");
  for (const text of document.querySelectorAll(".chart:not(#map) .readout")) text.textContent = "";
  const svg = document.elementFromPoint(pointer.x, pointer.y)?.closest("svg[data-values]");
  if (!svg) return;
  const at = new DOMPoint(pointer.x, pointer.y).matrixTransform(svg.getScreenCTM().inverse()).x;
  const values = JSON.parse(svg.dataset.values);
  const [x, words] = values.reduce((best, one) => (Math.abs(one[0] - at) < Math.abs(best[0] - at) ? one : best));
  const line = svg.querySelector(".hover");
  line.setAttribute("x1", x);
  line.setAttribute("x2", x);
  line.setAttribute("visibility", "visible");
  svg.closest("figure").querySelector(".readout").textContent = words;
}

document.addEventListener("pointermove", (event) => {
  pointer.x = event.clientX;
  pointer.y = event.clientY;
  showValues();
});

// -- the run ---------------------------------------------------------------------------------------

function showState() {
  document.title = state.name ? `${state.name} · ${state.rounds_done}/${state.rounds}` : "Covey";
  banner(state.problem);
  showCommands();
}

// -- commands --------------------------------------------------------------------------------------

/** Commands have no effect once the run is over. */
function isOver() {
  return ["finished", "stopped", "offline", "unknown"].includes(state.state);
}

function showCommands() {
  const over = isOver();
  $("commands").hidden = !allowed;
  $("pause").disabled = over || state.connected === false;
  $("stop").disabled = over || state.connected === false;
  put("pause", state.state === "paused" ? "Resume" : "Pause");
}

async function send(command, agent) {
  const body = agent === undefined ? { command } : { command, agent };
  try {
    const reply = await fetch("/control", {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Covey-Key": key },
      body: JSON.stringify(body),
    });
    const answer = await reply.json();
    banner(reply.ok ? "" : String(answer.error));
  } catch {
    banner("the command could not be sent");
  }
}

let answer = null; // of the question that is open
function answered(isYes) {
  const waiting = answer;
  answer = null;
  if (waiting) waiting(isYes);
}

function confirmed(question, word) {
  answered(false);
  put("question", question);
  put("yes", word);
  $("confirm").showModal();
  return new Promise((resolve) => { answer = resolve; });
}

$("yes").addEventListener("click", () => answered(true));
$("no").addEventListener("click", () => answered(false));
$("confirm").addEventListener("cancel", () => answered(false)); // the Escape key

$("pause").addEventListener("click", () => send(state.state === "paused" ? "resume" : "pause"));
$("stop").addEventListener("click", async () => {
  if (await confirmed("Stop the coordinator? `coordinator run --resume` continues the run.", "Stop")) send("stop");
});

async function forget(name) {
  const question = `Forget ${name}? It leaves the roster and its group; if it connects again, it is a newcomer.`;
  if (await confirmed(question, "Forget")) send("forget", name);
}

// -- the table of agents ---------------------------------------------------------------------------

const WORDS = { quarantine: "in quarantine", checking: "checking its data" };
const COLUMNS = [
  ["agent", "agent", ""], ["state", "state", ""], ["cluster", "group", "number"], ["figure", "figure", "number"],
  ["seen", "last seen", "number wide"], ["takes", "takes", "number wide takes"], ["samples", "samples", "number wide"], ["refusals", "refusals", "number wide refusals"], ["reason", "reason", "reason"],
];
const PLACES = { state: 0, cluster: 1, figure: 2, seen: 3, samples: 4, refusals: 5, reason: 6, takes: 7 };

function matches([name, cells]) {
  if (view.filter === "here" && cells[0] !== "idle" && cells[0] !== "busy") return false;
  if (view.filter === "reason" && !cells[6]) return false;
  if (["offline", "excluded", "quarantine", "silent", "failing"].includes(view.filter) && cells[0] !== view.filter) return false;
  if (!view.search) return true;
  return name.toLowerCase().includes(view.search) || cells[6].toLowerCase().includes(view.search);
}

const names = new Intl.Collator("en", { numeric: true });

/** The order of two agents by the chosen column; equal ones stay in the order of their names. */
function compare(one, other) {
  const place = PLACES[view.column];
  const [first, second] = [one[1][place], other[1][place]];
  const missing = (first === null || first === "") - (second === null || second === "");
  if (missing) return missing; // those without a value come last, in both directions
  let order = typeof first === "number" ? first - second : names.compare(String(first), String(second));
  if (view.column === "seen") order = -order; // the most recently seen first
  return view.descending ? -order : order;
}

let ordered = []; // all names in their order; empty: names came or went, so it must be made again

/** All agents as [name, cells], in the order of their names. */
function byName() {
  if (!ordered.length) ordered = [...agents.keys()].sort(names.compare);
  return ordered.map((name) => [name, agents.get(name)]);
}

/** Columns in which no agent has a word are left out. */
function showColumns() {
  const cells = [...agents.values()];
  $("agents").classList.toggle("no-reasons", !cells.some((one) => one[6]));
  $("agents").classList.toggle("no-refusals", !cells.some((one) => one[5]));
  $("agents").classList.toggle("no-takes", !cells.some((one) => one[7] !== null));
}

function showAgents() {
  const found = byName().filter(matches);
  if (view.column !== "agent") found.sort(compare);
  else if (view.descending) found.reverse();
  showColumns();
  const pages = Math.max(1, Math.ceil(found.length / PAGE_ROWS));
  view.page = Math.min(view.page, pages - 1);
  const start = view.page * PAGE_ROWS;
  const rows = found.slice(start, start + PAGE_ROWS).map(row);
  $("agents").tBodies[0].replaceChildren(...rows);
  put("range", found.length ? `${start + 1}–${start + rows.length} of ${found.length}` : "0 of 0");
  $("previous").disabled = view.page === 0;
  $("next").disabled = view.page >= pages - 1;
  $("pages").hidden = pages === 1 && !found.length;
  $("no-agents").hidden = found.length > 0;
  put("no-agents", agents.size ? "No agent matches." : "No agent has connected yet. Start one with `agent start`.");
}

function row([name, cells]) {
  const [status, cluster, value, seen, samples, refusals, reason, takes] = cells;
  const line = document.createElement("tr");
  const texts = [name, WORDS[status] || status, cluster === null ? NONE : String(cluster), figure(value), ago(seen), takes === null ? NONE : `${Number(takes.toPrecision(3))} s`, String(samples ?? NONE), String(refusals || ""), reason];
  texts.forEach((text, place) => {
    const cell = document.createElement("td");
    cell.className = COLUMNS[place][2];
    cell.textContent = text;
    if (place === 0) cell.title = name;
    if (place === 1) cell.classList.add({ offline: "bad", quarantine: "bad", silent: "bad", failing: "bad", excluded: "warn", checking: "quiet" }[status] || "plain");
    if (place === 2 && cluster !== null) cell.prepend(dot(cluster));
    if (place === 4) cell.dataset.seen = seen ?? "";
    line.append(cell);
  });
  if (allowed) line.append(buttons(name, status));
  return line;
}

function dot(cluster) {
  const mark = document.createElement("span");
  mark.className = "dot";
  const drawn = element("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" });
  drawn.append(element("circle", { class: `f${colourOf(cluster)}`, cx: 5, cy: 5, r: 5 }));
  mark.append(drawn);
  return mark;
}

function buttons(name, status) {
  const cell = document.createElement("td");
  const button = document.createElement("button");
  button.type = "button";
  button.disabled = isOver();
  if (status === "quarantine") {
    button.textContent = "release";
    button.addEventListener("click", () => send("release", name));
  } else {
    button.textContent = "forget";
    button.addEventListener("click", () => forget(name));
  }
  button.setAttribute("aria-label", `${button.textContent} ${name}`);
  cell.append(button);
  return cell;
}

function showHeadings() {
  const cells = COLUMNS.map(([column, title, kind]) => {
    const cell = document.createElement("th");
    cell.scope = "col";
    cell.className = kind;
    const chosen = view.column === column;
    if (chosen) cell.setAttribute("aria-sort", view.descending ? "descending" : "ascending");
    const button = document.createElement("button");
    button.type = "button";
    const shown = column === "figure" && state ? state.measure_title : title;
    button.textContent = shown + (chosen ? (view.descending ? " ↓" : " ↑") : "");
    button.addEventListener("click", () => {
      view.descending = chosen ? !view.descending : false;
      view.column = column;
      view.page = 0;
      showHeadings();
      showAgents();
    });
    cell.append(button);
    return cell;
  });
  if (allowed) cells.push(document.createElement("th"));
  $("agents").tHead.rows[0].replaceChildren(...cells);
}

function search() {
  view.search = $("search").value.trim().toLowerCase();
  view.filter = $("filter").value;
  view.page = 0;
  showAgents();
}

$("search").addEventListener("input", search);
$("filter").addEventListener("change", search);
$("previous").addEventListener("click", () => { view.page -= 1; showAgents(); });
$("next").addEventListener("click", () => { view.page += 1; showAgents(); });
setInterval(() => {
  for (const cell of document.querySelectorAll("#agents td[data-seen]")) {
    if (cell.dataset.seen) cell.textContent = ago(Number(cell.dataset.seen));
  }
  showSilence();
}, 2000);

function showMap() {
  const dots = byName().map(([name, [status, cluster]]) => [name, status, cluster]);
  map.show(dots, "No agent has connected yet.");
}

function sentence(name) {
  const [status, cluster, value] = agents.get(name);
  const where = cluster === null ? "no group" : `group ${cluster}`;
  return `${name}: ${WORDS[status] || status}, ${where}, ${state ? state.measure_title : ""} ${figure(value)}`;
}

// -- updates ---------------------------------------------------------------------------------------

function takeAgents(news) {
  const before = agents.size;
  if (news.whole) agents.clear();
  for (const name of news.gone) agents.delete(name);
  for (const [name, cells] of Object.entries(news.rows)) agents.set(name, cells);
  if (news.whole || news.gone.length || agents.size !== before) ordered = [];
}

let due = false;
let newAgents = false;
function soon() {
  if (due) return;
  due = true;
  setTimeout(() => {
    due = false;
    if (!state) return;
    showState();
    if (newAgents) { newAgents = false; showAgents(); showMap(); }
  }, 50); // several updates are drawn together
}

function take(name, data) {
  if (name === "controls") { allowed = data.allowed === true; showHeadings(); return; }
  if (name === "agents") { takeAgents(data); newAgents = true; }
  if (name === "sections") { takeSections(data); return; }
  if (name === "state") {
    const measured = !state || state.measure_title !== data.measure_title;
    state = data;
    if (measured) { showHeadings(); newAgents = true; }
  }
  soon();
}

/** Server-sent events over fetch, because an EventSource cannot send the key in a header. */
async function follow() {
  const reply = await fetch(`/events${location.search}`, { headers: { "X-Covey-Key": key }, cache: "no-store" });
  if (!reply.ok) {
    const answer = await reply.json();
    throw new Error(reply.status === 401 ? "Open the address that `coordinator dashboard` printed: it ends in a key." : String(answer.error));
  }
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("");
    text += value;
    const events = text.split("\n\n");
    text = events.pop();
    for (const event of events) {
      const [first, second] = event.split("\n");
      if (first.startsWith("event: ")) take(first.slice(7), JSON.parse(second.slice(6)));
    }
  }
}

async function run() {
  for (;;) {
    try {
      await follow();
    } catch (error) {
      banner(error instanceof TypeError || !error.message ? "The dashboard has ended, or cannot be reached; trying again." : error.message);
    }
    await new Promise((resolve) => { setTimeout(resolve, 2000); });
  }
}

// -- light and dark --------------------------------------------------------------------------------

const THEMES = ["auto", "light", "dark"];
let theme = "auto";
try { theme = localStorage.getItem("covey-theme") || "auto"; } catch { /* storage is switched off */ }

function showTheme() {
  if (!THEMES.includes(theme)) theme = "auto";
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  put("theme", `Theme: ${theme}`);
  $("theme").setAttribute("aria-label", `theme: ${theme}; change it`);
  map.draw();
}

$("theme").addEventListener("click", () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  try { localStorage.setItem("covey-theme", theme); } catch { /* it lasts until the page is closed */ }
  showTheme();
});

$("all-runs").hidden = !location.search;
showTheme();
showHeadings();
run();
