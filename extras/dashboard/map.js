"use strict";
// The map of agents. A canvas, because there may be thousands.

const SVG = "http://www.w3.org/2000/svg";
const COLOURS = 8;
const NAMED = 40; // agents whose names have room
const ROW = 18; // pixels of a named agent

function element(name, attributes = {}) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

/** The number of a cluster's colour. */
function colourOf(cluster) {
  const number = Number(cluster);
  return Number.isInteger(number) && number >= 0 ? number % COLOURS : 0;
}

/** Each agent is a dot in the spiral of its cluster. */
class ClusterMap {
  constructor(figure, sentence, choose) {
    this.sentence = sentence; // about an agent
    this.plot = figure.querySelector(".plot");
    this.canvas = figure.querySelector("canvas");
    this.readout = figure.querySelector(".readout");
    this.dots = [];
    this.groups = [];
    this.empty = "";
    new ResizeObserver(() => this.draw()).observe(this.plot);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => { this.readout.textContent = this.note; });
    this.canvas.addEventListener("click", (event) => { const dot = this.at(event); if (dot) choose(dot.name); });
    this.note = "";
  }

  /** `agents`: [[name, state, cluster or null], ...] in the order of their names. */
  show(agents, empty) {
    const groups = new Map();
    for (const agent of agents) {
      const cluster = agent[2];
      if (!groups.has(cluster)) groups.set(cluster, []);
      groups.get(cluster).push(agent);
    }
    const order = [...groups.keys()].sort((one, other) => (one === null) - (other === null) || one - other);
    this.groups = order.map((cluster) => [cluster, groups.get(cluster)]);
    this.empty = empty;
    const over = agents.some((agent) => agent[1] === "took part");
    const away = agents.filter((agent) => agent[1] === "offline").length;
    this.note = agents.length ? `${over ? "all took part" : `filled: here; ring: not here${away ? ` (${away} offline)` : ""}`}. Click an agent to find it below.` : "";
    this.readout.textContent = this.note;
    this.draw();
  }

  draw() {
    const width = Math.floor(this.plot.clientWidth);
    if (!width) return;
    let note = this.plot.querySelector(".empty");
    if (note) note.remove();
    this.canvas.hidden = !this.groups.length;
    if (!this.groups.length) {
      note = document.createElement("p");
      note.className = "empty";
      note.textContent = this.empty;
      this.plot.append(note);
      return;
    }
    const named = this.groups.reduce((sum, [, agents]) => sum + agents.length, 0) <= NAMED;
    const height = named ? this.listed(width) : 250;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = width * ratio;
    this.canvas.height = height * ratio;
    this.canvas.style.height = `${height}px`;
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const style = getComputedStyle(document.documentElement);
    const colours = new Map(); // looking one up takes longer than drawing a dot
    const colour = (name) => {
      if (!colours.has(name)) colours.set(name, style.getPropertyValue(`--${name}`).trim());
      return colours.get(name);
    };
    if (!named) this.dots = this.place(width, height);
    const radius = this.spacing * 0.6; // neighbours of the spiral are 1.5 to 1.8 spacings apart
    for (const dot of this.dots) {
      const base = dot.cluster === null ? colour("quiet") : colour(`c${colourOf(dot.cluster)}`);
      const bad = ["quarantine", "excluded", "silent", "failing"].includes(dot.state);
      pen.beginPath();
      pen.arc(dot.x, dot.y, Math.max(radius - 0.5, 0.6), 0, 2 * Math.PI);
      pen.strokeStyle = bad ? colour("bad") : base;
      pen.fillStyle = base;
      pen.lineWidth = Math.min(1.5, radius / 2);
      if (["busy", "idle", "took part"].includes(dot.state)) pen.fill();
      else pen.stroke();
    }
    pen.fillStyle = colour("ink");
    pen.font = "12px system-ui, sans-serif";
    pen.textAlign = named ? "left" : "center";
    if (named) for (const dot of this.dots) pen.fillText(this.shortened(pen, dot), dot.x + 10, dot.y + 4);
    for (const label of this.labels) pen.fillText(label.text, label.x, label.y);
    this.canvas.setAttribute("aria-label", this.labels.map((label) => `${label.name}: ${label.agents} agents`).join(", "));
  }

  /** A line of dots with their names for each cluster, in as many columns as fit; returns the height. */
  listed(width) {
    const longest = Math.max(...this.groups.flatMap(([, agents]) => agents.map(([name]) => name.length)));
    this.cell = Math.min(Math.max(60, 7 * longest + 24), width);
    const columns = Math.max(1, Math.floor(width / this.cell));
    this.spacing = 9;
    this.dots = [];
    this.labels = [];
    let y = 14;
    for (const [cluster, agents] of this.groups) {
      const name = cluster === null ? "no group" : `group ${cluster}`;
      this.labels.push({ name, agents: agents.length, text: `${name}: ${agents.length} agent${agents.length === 1 ? "" : "s"}`, x: 2, y });
      y += ROW - 2;
      agents.forEach(([agent, state], place) => {
        const row = Math.floor(place / columns);
        this.dots.push({ name: agent, state, cluster, x: 8 + (place % columns) * this.cell, y: y + row * ROW });
      });
      y += Math.ceil(agents.length / columns) * ROW + 8;
    }
    return Math.max(y - 8, 60);
  }

  shortened(pen, dot) {
    let text = dot.name;
    while (text.length > 4 && pen.measureText(text).width > this.cell - 20) text = `${text.slice(0, -2)}…`;
    return text;
  }

  /** Circles side by side, in as many rows as fit best; their areas grow with their agents. */
  place(width, height) {
    const margin = 22;
    const radii = this.groups.map(([, agents]) => Math.sqrt(agents.length) + 0.6);
    let best = { spacing: 0, rows: 1 };
    for (let rows = 1; rows <= Math.min(4, radii.length); rows += 1) {
      const lines = this.split(radii, rows);
      const widest = Math.max(...lines.map((line) => line.reduce((sum, place) => sum + 2 * radii[place], 0)));
      const tall = lines.reduce((sum, line) => sum + 2 * Math.max(...line.map((place) => radii[place])), 0);
      const gaps = Math.max(...lines.map((line) => line.length)) * 14;
      const spacing = Math.min((width - gaps) / widest, (height - lines.length * margin) / tall);
      if (spacing > best.spacing) best = { spacing, rows };
    }
    this.spacing = Math.max(1, Math.min(14, best.spacing));
    const dots = [];
    this.labels = [];
    const lines = this.split(radii, best.rows);
    const tall = lines.map((line) => 2 * Math.max(...line.map((place) => radii[place])) * this.spacing + margin);
    let y = Math.max(0, (height - tall.reduce((sum, one) => sum + one, 0)) / 2);
    lines.forEach((line, row) => {
      const used = line.reduce((sum, place) => sum + 2 * radii[place] * this.spacing, 0);
      const gap = (width - used) / (line.length + 1);
      let x = gap;
      for (const place of line) {
        const reach = radii[place] * this.spacing;
        const [cluster, agents] = this.groups[place];
        const centre = { x: x + reach, y: y + (tall[row] - margin) / 2 };
        agents.forEach(([name, state], number) => {
          const turn = number * 2.399963;
          const far = this.spacing * Math.sqrt(number + 0.5);
          dots.push({ name, state, cluster, x: centre.x + far * Math.cos(turn), y: centre.y + far * Math.sin(turn) });
        });
        const named = cluster === null ? "no group" : `group ${cluster}`;
        const short = 2 * reach + gap < 110 ? (cluster === null ? "–" : String(cluster)) : named;
        this.labels.push({ name: named, agents: agents.length, text: `${short} · ${agents.length}`, x: centre.x, y: centre.y + reach + 13 });
        x += 2 * reach + gap;
      }
      y += tall[row];
    });
    return dots;
  }

  split(radii, rows) {
    const each = Math.ceil(radii.length / rows);
    const lines = [];
    for (let start = 0; start < radii.length; start += each) lines.push(radii.map((_, place) => place).slice(start, start + each));
    return lines;
  }

  at(event) {
    const bounds = this.canvas.getBoundingClientRect();
    const x = event.clientX - bounds.left;
    const y = event.clientY - bounds.top;
    let best = null;
    let least = Math.max(this.spacing || 0, 6) ** 2;
    for (const dot of this.dots) {
      const far = (dot.x - x) ** 2 + (dot.y - y) ** 2;
      if (far < least) { least = far; best = dot; }
    }
    return best;
  }

  point(event) {
    const dot = this.at(event);
    this.readout.textContent = dot ? this.sentence(dot.name) : this.note;
  }
}
