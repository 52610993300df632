"use strict";
// Small charts in SVG: axes with units, a legend, and the values under the pointer. All text is text, never HTML.

const SVG = "http://www.w3.org/2000/svg";
const COLOURS = 8;
const DASHES = ["", "6 3", "2 3", "8 3 2 3"]; // after eight clusters colours repeat, with another dash

function element(name, attributes = {}, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function clusterNumber(cluster) {
  const number = Number(cluster);
  return Number.isInteger(number) && number >= 0 ? number : 0;
}

function strokeOf(cluster) {
  return cluster === null ? "all" : `s${clusterNumber(cluster) % COLOURS}`;
}

function fillOf(cluster) {
  return cluster === null ? "fill-all" : `f${clusterNumber(cluster) % COLOURS}`;
}

function dashOf(cluster) {
  if (cluster === null) return "";
  return DASHES[Math.floor(clusterNumber(cluster) / COLOURS) % DASHES.length];
}

/** Round numbers that divide a range into about `count` parts. */
function ticks(low, high, count, whole = false) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= rough);
  if (whole) step = Math.max(1, Math.round(step));
  const found = [];
  for (let place = Math.ceil(low / step - 1e-9); place * step <= high + step * 1e-9; place += 1) found.push(place * step);
  return found;
}

/** Draws one chart into a figure again whenever its data or its width changes. */
class Chart {
  constructor(figure, options) {
    this.plot = figure.querySelector(".plot");
    this.legend = figure.querySelector(".legend");
    this.readout = figure.querySelector(".readout");
    this.options = options;
    this.series = [];
    this.empty = "";
    this.drawn = "";
    this.hovered = null;
    new ResizeObserver(() => this.draw()).observe(this.plot);
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerleave", () => this.leave());
  }

  /** `series`: [{label, cluster or null, points: [[x, y], ...], stroke, fill}]; `empty`: what to show without any. */
  show(series, empty) {
    this.series = series.filter((one) => one.points.length);
    this.empty = empty;
    this.draw();
  }

  draw() {
    const width = Math.floor(this.plot.clientWidth);
    const signature = JSON.stringify([width, this.series, this.empty, this.options.yTitle]);
    if (!width || signature === this.drawn) return;
    this.drawn = signature;
    this.plot.replaceChildren();
    this.drawLegend();
    if (!this.series.length) {
      const note = document.createElement("p");
      note.className = "empty";
      note.textContent = this.empty;
      this.plot.append(note);
      return;
    }
    const height = this.options.height;
    this.box = { left: 46, right: width - 10, top: 20, bottom: height - 32 };
    const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img" });
    svg.append(element("title", {}, this.description()));
    this.scale();
    this.drawAxes(svg, width, height);
    if (this.options.bars) this.drawBars(svg);
    else this.drawLines(svg);
    this.cursor = element("line", { class: "hover", y1: this.box.top, y2: this.box.bottom, visibility: "hidden" });
    svg.append(this.cursor);
    this.plot.append(svg);
  }

  description() {
    const ends = this.series.map((one) => `${one.label}: ${this.options.format(one.points[one.points.length - 1][1])}`);
    return `${this.options.yTitle} by ${this.options.xTitle}. Newest: ${ends.join(", ")}`;
  }

  scale() {
    const xs = this.series.flatMap((one) => one.points.map((point) => point[0]));
    let ys = this.series.flatMap((one) => one.points.map((point) => point[1]));
    if (this.options.bars) ys = this.totals().map((total) => total[1]);
    let low = Math.min(...ys);
    let high = Math.max(...ys);
    if (this.options.fromZero) low = 0;
    if (high - low < 1e-9) { high += Math.abs(high) * 0.05 || 1; if (!this.options.fromZero) low -= Math.abs(low) * 0.05 || 1; }
    if (this.options.percent) { low = Math.max(0, low - (high - low) * 0.08); high = Math.min(1, high + (high - low) * 0.04); }
    const marks = ticks(low, high, 4, this.options.whole);
    this.low = Math.min(low, marks[0] ?? low);
    this.high = Math.max(high, marks[marks.length - 1] ?? high);
    this.left = Math.min(...xs);
    this.right = Math.max(...xs);
    if (this.options.bars) { this.left -= 0.5; this.right += 0.5; }
    if (this.left === this.right) { this.left -= 0.5; this.right += 0.5; }
  }

  x(value) { return this.box.left + ((value - this.left) / (this.right - this.left)) * (this.box.right - this.box.left); }

  y(value) { return this.box.bottom - ((value - this.low) / (this.high - this.low)) * (this.box.bottom - this.box.top); }

  drawAxes(svg, width, height) {
    const { left, right, bottom } = this.box;
    for (const mark of ticks(this.low, this.high, 4, this.options.whole)) {
      const y = this.y(mark);
      svg.append(element("line", { class: "grid", x1: left, x2: right, y1: y, y2: y }));
      svg.append(element("text", { class: "tick", x: left - 6, y: y + 4, "text-anchor": "end" }, this.options.tick(mark)));
    }
    svg.append(element("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }));
    for (const mark of ticks(this.left, this.right, Math.max(2, Math.floor(width / 90)), true)) {
      const x = this.x(mark);
      if (x < left - 1 || x > right + 1) continue;
      svg.append(element("line", { class: "axis", x1: x, x2: x, y1: bottom, y2: bottom + 4 }));
      svg.append(element("text", { class: "tick", x, y: bottom + 15, "text-anchor": "middle" }, this.options.xTick ? this.options.xTick(mark) : String(mark)));
    }
    svg.append(element("text", { class: "tick", x: 0, y: 11 }, this.options.yTitle));
    svg.append(element("text", { class: "tick", x: right, y: height - 3, "text-anchor": "end" }, this.options.xTitle));
  }

  drawLines(svg) {
    for (const one of [...this.series].reverse()) {
      const path = one.points.map(([x, y], place) => `${place ? "L" : "M"}${this.x(x).toFixed(1)} ${this.y(y).toFixed(1)}`).join("");
      svg.append(element("path", { class: `line ${one.stroke}`, d: path, "stroke-dasharray": one.dash || "none" }));
      const few = one.points.length <= 30 ? one.points : one.points.slice(-1);
      for (const [x, y] of few) svg.append(element("circle", { class: one.fill, cx: this.x(x), cy: this.y(y), r: 2.6 }));
    }
  }

  totals() {
    const [lower, upper] = this.series.length > 1 ? this.series : [this.series[0], { points: [] }];
    const more = new Map(upper.points);
    return lower.points.map(([x, y]) => [x, y + (more.get(x) || 0)]);
  }

  drawBars(svg) {
    const unit = this.x(1) - this.x(0);
    const wide = Math.max(1, Math.min(18, unit * 0.75));
    const base = new Map();
    for (const one of this.series) {
      for (const [x, y] of one.points) {
        if (!y) continue;
        const from = base.get(x) || 0;
        base.set(x, from + y);
        const top = this.y(from + y);
        svg.append(element("rect", { class: one.fill, x: this.x(x) - wide / 2, y: top, width: wide, height: Math.max(this.y(from) - top, 0.5) }));
      }
    }
  }

  drawLegend() {
    if (!this.legend) return;
    this.legend.replaceChildren();
    for (const one of this.series) {
      const item = document.createElement("span");
      const swatch = element("svg", { viewBox: "0 0 22 10", "aria-hidden": "true" });
      if (this.options.bars) swatch.append(element("rect", { class: one.fill, x: 6, y: 0, width: 10, height: 10 }));
      else swatch.append(element("line", { class: `line ${one.stroke}`, x1: 1, x2: 21, y1: 5, y2: 5, "stroke-dasharray": one.dash || "none" }));
      item.append(swatch, `${one.label} `);
      const value = document.createElement("b");
      value.textContent = this.options.legendValue === false ? "" : this.options.format(one.points[one.points.length - 1][1]);
      item.append(value);
      this.legend.append(item);
    }
  }

  point(event) {
    if (!this.series.length || !this.cursor) return;
    const bounds = this.plot.getBoundingClientRect();
    const wanted = this.left + ((event.clientX - bounds.left - this.box.left) / (this.box.right - this.box.left)) * (this.right - this.left);
    const xs = this.series[0].points.map((one) => one[0]);
    const nearest = xs.reduce((best, one) => (Math.abs(one - wanted) < Math.abs(best - wanted) ? one : best), xs[0]);
    const values = this.series.map((one) => {
      const found = one.points.filter((pair) => pair[0] === nearest).pop();
      return found ? `${one.label} ${this.options.format(found[1])}` : "";
    });
    const where = this.options.xName ? this.options.xName(nearest) : `after round ${nearest}`;
    this.readout.textContent = `${where}: ${values.filter(Boolean).join(", ")}`;
    const x = this.x(nearest);
    this.cursor.setAttribute("x1", x);
    this.cursor.setAttribute("x2", x);
    this.cursor.setAttribute("visibility", "visible");
  }

  leave() {
    this.readout.textContent = "";
    if (this.cursor) this.cursor.setAttribute("visibility", "hidden");
  }
}

/** The map: each agent is a dot in the spiral of its cluster. A canvas, because there may be thousands. */
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
    const away = agents.filter((agent) => agent[1] === "offline").length;
    this.note = agents.length ? `filled: here; ring: not here${away ? ` (${away} offline)` : ""}. Click an agent to find it below.` : "";
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
    const height = 250;
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
    this.dots = this.place(width, height);
    const radius = this.spacing * 0.6; // neighbours of the spiral are 1.5 to 1.8 spacings apart
    for (const dot of this.dots) {
      const base = dot.cluster === null ? colour("quiet") : colour(`c${clusterNumber(dot.cluster) % COLOURS}`);
      const bad = ["quarantine", "excluded", "silent", "failing"].includes(dot.state);
      pen.beginPath();
      pen.arc(dot.x, dot.y, Math.max(radius - 0.5, 0.6), 0, 2 * Math.PI);
      pen.strokeStyle = bad ? colour("bad") : base;
      pen.fillStyle = base;
      pen.lineWidth = Math.min(1.5, radius / 2);
      if (dot.state === "busy" || dot.state === "idle") pen.fill();
      else pen.stroke();
    }
    pen.fillStyle = colour("ink");
    pen.font = "12px system-ui, sans-serif";
    pen.textAlign = "center";
    for (const label of this.labels) pen.fillText(label.text, label.x, label.y);
    this.canvas.setAttribute("aria-label", this.labels.map((label) => `${label.name}: ${label.agents} agents`).join(", "));
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
        const named = cluster === null ? "no cluster" : `cluster ${cluster}`;
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
