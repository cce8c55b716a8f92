// Charts on logarithmic axes: time against size (TimeChart), and points with two figures (PointChart); main.js shows them.
// Data are those of payload.py: times in seconds, sizes in bytes; positions are in pixels of the canvas.

import { bytes, clamp, el, ratio, seconds } from "./basics.js";
import { pinned, state, update } from "./state.js";
import { colour, FONT, Surface } from "./surface.js";

export const nameOf = (candidate) => candidate.planner + (candidate.options ? " " + candidate.options : "");

// Return {candidate: name of its colour} for the candidates that win a range or are pinned; others have none.
export function candidateColours(group) {
  const order = [...new Set([...group.ranges.map((range) => range.candidate), ...pinned()])].filter((n) => n in group.candidates);
  return new Map(order.map((number, i) => [number, "c" + (i % 8)]));
}

// Return ticks of a logarithmic axis, about `maxTicks`: 1, 2 and 5 times powers of ten where there is room, else powers of
// ten. `isInteger`: only integers.
function logTicks(low, high, maxTicks, isInteger = false) {
  const ticks = [];
  const decades = Math.log10(high / low);
  const factors = decades * 3 <= maxTicks ? [1, 2, 5] : [1];
  const skip = Math.max(1, Math.ceil(decades / maxTicks));
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1)
    for (const factor of factors) {
      const value = Number((factor * 10 ** power).toPrecision(6));
      if (value >= low * 0.999 && value <= high * 1.001 && (factors.length > 1 || power % skip === 0)) ticks.push(value);
    }
  if (ticks.length > 2) return ticks;
  // Less than a decade: equal steps.
  const minStep = Math.max((high - low) / 4, isInteger ? 1 : 0), power = 10 ** Math.floor(Math.log10(minStep));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= minStep);
  const multiples = [];
  for (let k = Math.ceil(low / step); k * step <= high; k++) multiples.push(Number((k * step).toPrecision(6)));
  return multiples;
}

// The base of both charts: a frame with two logarithmic axes, and a tip beside the point nearest to the pointer. Subclasses
// have `points`, `describe` (the tip's elements), `choose` (a click) and `draw`.
class LogChart {
  constructor(name, label) {
    this.surface = new Surface(name, label, (...parts) => this.draw(...parts));
    this.tip = el("div", { class: "tip", hidden: true });
    this.surface.box.append(this.tip);
    const { canvas } = this.surface;
    for (const kind of ["pointermove", "pointerdown"]) canvas.addEventListener(kind, (event) => this.hover(event));
    canvas.addEventListener("pointerleave", () => this.hover(null));
    canvas.addEventListener("click", (event) => {
      const point = this.nearest(event);
      if (point) this.choose(point);
    });
    this.lit = null; // key of the point at the pointer
  }

  // Fit the axes to these values. `low`, `high`: of the axes, horizontal first.
  frame(width, height, xs, ys) {
    this.low = [Math.min(...xs), Math.min(...ys)];
    this.high = [Math.max(...xs), Math.max(...ys)];
    for (const axis of [0, 1]) if (this.low[axis] === this.high[axis]) { this.low[axis] /= 1.5; this.high[axis] *= 1.5; }
    this.area = [62, 24, width - 62 - 16, height - 24 - 40]; // left, top, width, height
  }
  // Positions of values.
  px(value) { return this.area[0] + (this.area[2] * Math.log(value / this.low[0])) / Math.log(this.high[0] / this.low[0]); }
  py(value) { return this.area[1] + this.area[3] * (1 - clamp(Math.log(value / this.low[1]) / Math.log(this.high[1] / this.low[1]), 0, 1)); }

  drawAxes(ctx, xTicks, yTicks, xText, yText, title) {
    const [left, top, w, h] = this.area;
    ctx.font = `11px ${FONT}`;
    for (const value of yTicks) {
      const y = this.py(value);
      ctx.fillStyle = colour("grid");
      ctx.fillRect(left, y, w, 1);
      ctx.fillStyle = colour("soft");
      ctx.textAlign = "right";
      ctx.fillText(yText(value), left - 8, y + 4);
    }
    ctx.textAlign = "center";
    for (const value of xTicks) {
      const x = this.px(value);
      ctx.fillStyle = colour("grid");
      ctx.fillRect(x, top, 1, h);
      ctx.fillStyle = colour("soft");
      ctx.fillText(xText(value), x, top + h + 16);
    }
    ctx.fillText(title, left + w / 2, top + h + 34);
    ctx.fillStyle = colour("rim");
    ctx.fillRect(left, top + h, w, 1);
  }

  // Return the point nearest to the pointer, with its distance; null if none is near.
  nearest(event) {
    const box = this.surface.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    let best = null;
    for (const point of this.points()) {
      const distance = Math.hypot((point.x - x) * 1.4, point.y - y); // prefers the size under the pointer
      if (distance < 44 && (!best || distance < best.distance)) best = { ...point, distance };
    }
    return best;
  }

  hover(event) {
    const point = event && this.nearest(event);
    if (point?.key !== this.lit) {
      this.lit = point?.key ?? null;
      this.surface.redraw();
    }
    this.tip.hidden = !point;
    if (!point) return;
    this.tip.replaceChildren(...this.describe(point));
    const available = this.surface.width, width = this.tip.offsetWidth;
    const left = point.x + 18 + width > available ? point.x - width - 12 : point.x + 18;
    this.tip.style.left = clamp(left, 2, Math.max(available - width - 2, 2)) + "px";
    this.tip.style.top = Math.max(point.y - this.tip.offsetHeight - 4, 2) + "px";
  }
}

export class TimeChart extends LogChart {
  constructor() {
    super("times", "Time against size");
    this.group = null;
  }

  show(group, plan) {
    this.group = group;
    this.plan = plan;
    this.surface.redraw();
  }

  get relative() { return state.relative && this.group.bound; }
  // The value to draw for a time at the size number `at`.
  value(time, at) { return this.relative ? time / this.group.bound[at] : time; }

  draw(ctx, width, height) {
    const { group } = this;
    if (!group) return;
    const { sizes, candidates, bound, baseline } = group;
    const colours = candidateColours(group), pins = pinned();
    const lines = candidates.map((c, number) => ({ number, seconds: c.seconds })).filter((line) => line.seconds);
    if (!lines.length) return;
    const values = [...lines.map((line) => line.seconds), bound && !this.relative ? bound : [], baseline?.seconds || []]
      .flatMap((list) => list.map((time, at) => (time ? this.value(time, at) : null))).filter((v) => v > 0 && Number.isFinite(v));
    const top = this.relative ? Math.min(Math.max(...values), 1000) : Math.max(...values);
    this.frame(width, height, sizes, [this.relative ? 1 : Math.min(...values) * 0.9, Math.max(top, this.relative ? 2 : 0) * 1.05]);
    const spacing = Math.max(Math.ceil(sizes.length / (this.area[2] / 62)), 1);
    const powers = sizes.filter((size) => Math.log2(size) % 1 === 0);
    const sizeTicks = (powers.length > 2 ? powers : sizes).filter((_, i) => i % spacing === 0);
    const ticks = this.relative ? [1, 1.5, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000].filter((v) => v <= this.high[1])
      : logTicks(this.low[1], this.high[1], 7);
    this.drawAxes(ctx, sizeTicks, ticks, bytes, this.relative ? (v) => v + "x" : seconds, "message size" + (this.relative ? "; times over the bound" : ""));
    // lines of higher order are drawn later, above others
    const order = (line) => (this.lit === line.number ? 3 : pins.includes(line.number) ? 2 : colours.has(line.number) ? 1 : 0);
    for (const line of [...lines].sort((a, b) => order(a) - order(b))) {
      const ownColour = colours.has(line.number) ? colour(colours.get(line.number)) : "";
      const paint = this.lit === line.number && !ownColour ? colour("ink") : ownColour || colour("idle");
      this.line(ctx, line.seconds, paint, ownColour ? (order(line) > 1 ? 3.4 : 2.4) : this.lit === line.number ? 2.4 : 1, []);
    }
    if (baseline) this.line(ctx, baseline.seconds, colour("soft"), 2, [7, 4]);
    if (bound) this.line(ctx, bound, colour("ink"), 1.6, [2, 3]);
    this.drawMeasurements(ctx);
    this.drawCurrentRange(ctx);
  }

  // Draw times by size as a line; `dash`: as of setLineDash.
  line(ctx, times, paint, width, dash) {
    ctx.beginPath();
    let count = 0;
    this.group.sizes.forEach((size, at) => {
      if (!(times[at] > 0)) return;
      const [x, y] = [this.px(size), this.py(this.value(times[at], at))];
      if (count++) ctx.lineTo(x, y);
      else ctx.moveTo(x, y);
    });
    if (count === 1) { // one size: a short line
      const at = times.findIndex((time) => time > 0);
      const [x, y] = [this.px(this.group.sizes[at]), this.py(this.value(times[at], at))];
      ctx.moveTo(x - 6, y);
      ctx.lineTo(x + 6, y);
    }
    ctx.strokeStyle = paint;
    ctx.lineWidth = width;
    ctx.setLineDash(dash);
    ctx.stroke();
    ctx.setLineDash([]);
  }

  // Draw measured times as dots in the colour of their candidate.
  drawMeasurements(ctx) {
    if (this.relative) return;
    this.group.plans.forEach((plan, number) => {
      ctx.fillStyle = colour(candidateColours(this.group).get(this.group.ranges[number].candidate));
      for (const { nbytes, seconds: time } of plan.measured) {
        if (!(time > 0) || nbytes < this.low[0] || nbytes > this.high[0]) continue;
        ctx.beginPath();
        ctx.arc(this.px(nbytes), this.py(time), 4, 0, 2 * Math.PI);
        ctx.fill();
      }
    });
  }

  // Shade the range of sizes whose plan is shown below.
  drawCurrentRange(ctx) {
    const range = this.group.ranges[this.plan];
    if (!range || this.group.ranges.length < 2) return;
    const [left, top, w, h] = this.area;
    const low = clamp(this.px(Math.max(range.from, this.low[0])), left, left + w);
    const high = clamp(this.px(Math.min(range.to, this.high[0])), left, left + w);
    ctx.fillStyle = colour("accent");
    ctx.globalAlpha = 0.1;
    ctx.fillRect(low, top, Math.max(high - low, 3), h);
    ctx.globalAlpha = 1;
  }

  *points() {
    if (!this.area || !this.group) return;
    for (const [number, candidate] of this.group.candidates.entries())
      for (const [at, time] of (candidate.seconds || []).entries())
        if (time > 0) yield { key: number, number, at, x: this.px(this.group.sizes[at]), y: this.py(this.value(time, at)) };
  }

  describe({ number, at }) {
    const c = this.group.candidates[number], time = c.seconds[at];
    const gap = this.group.bound ? `, ${ratio(time / this.group.bound[at])} of the bound` : "";
    const terms = Object.entries(c.terms).filter(([, list]) => list[at] > 0).map(([term, list]) => `${term} ${seconds(list[at])}`);
    return [
      el("b", {}, nameOf(c)),
      el("div", {}, `${bytes(this.group.sizes[at])}: ${seconds(time)}${gap}`),
      terms.length ? el("span", {}, terms.join(" + ")) : null,
      c.names[c.limited[at]] ? el("span", {}, "limited by " + c.names[c.limited[at]]) : null,
    ].filter(Boolean);
  }

  // Show the plan that serves this size, and pin the candidate to compare it.
  choose({ number, at }) {
    const size = this.group.sizes[at];
    const plan = this.group.ranges.findIndex((range) => range.from <= size && (size < range.to || range === this.group.ranges.at(-1)));
    const pins = pinned();
    update({ plan: Math.max(plan, 0), pins: (pins.includes(number) ? pins.filter((n) => n !== number) : [...pins, number]).join(",") });
  }
}

// Points with two figures, joined along the front, such as steps and bandwidth of a frontier, or price and time of machines.
// `data`: {title, axes: [text, text], points}, a point: {at: [x, y], label, lines: texts of its tip, front: whether it is on it}.
export class PointChart extends LogChart {
  constructor(data, choose) {
    super("points", data.title);
    this.data = data;
    this.choose = choose;
  }

  draw(ctx, width, height) {
    const { data } = this;
    const [xs, ys] = [0, 1].map((axis) => data.points.map((point) => point.at[axis]));
    this.frame(width, height, xs, ys);
    for (const axis of [0, 1]) { // room around the outermost points
      const margin = (this.high[axis] / this.low[axis]) ** 0.06;
      this.low[axis] /= margin;
      this.high[axis] *= margin;
    }
    const short = (v) => Number(v.toPrecision(4)).toLocaleString("en");
    this.drawAxes(ctx, logTicks(this.low[0], this.high[0], 8, xs.every(Number.isInteger)), logTicks(this.low[1], this.high[1], 7), short, short, data.axes[0]);
    ctx.fillStyle = colour("soft");
    ctx.textAlign = "left";
    ctx.fillText(data.axes[1], 8, 15);
    const front = data.points.filter((point) => point.front).sort((a, b) => a.at[0] - b.at[0]);
    ctx.beginPath();
    front.forEach(({ at: [x, y] }, i) => (i ? ctx.lineTo(this.px(x), this.py(y)) : ctx.moveTo(this.px(x), this.py(y))));
    ctx.strokeStyle = colour("accent");
    ctx.lineWidth = 2;
    ctx.stroke();
    data.points.forEach((point, number) => {
      const [x, y] = [this.px(point.at[0]), this.py(point.at[1])];
      ctx.beginPath();
      ctx.arc(x, y, this.lit === number ? 8 : 5, 0, 2 * Math.PI);
      ctx.fillStyle = colour(point.front ? "accent" : "idle");
      ctx.fill();
      if (!point.front || data.points.length > 14) return;
      ctx.fillStyle = colour("ink");
      ctx.textAlign = x > this.area[0] + this.area[2] * 0.7 ? "right" : "left";
      // The line falls: above it on its right, below it on its left.
      ctx.fillText(point.label, x + (ctx.textAlign === "left" ? 10 : -10), y + (ctx.textAlign === "left" ? -7 : 18));
    });
  }

  *points() {
    if (!this.area) return;
    for (const [number, point] of this.data.points.entries())
      yield { key: number, number, x: this.px(point.at[0]), y: this.py(point.at[1]) };
  }

  describe({ number }) {
    const point = this.data.points[number];
    return [el("b", {}, point.label), ...point.lines.map((line) => el("span", {}, line))];
  }
}
