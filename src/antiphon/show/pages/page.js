"use strict";
const SVG = "http://www.w3.org/2000/svg";
const all = (root, what) => Array.from(root.querySelectorAll(what));

function seconds(value) {
  if (!value) return "0 s";
  const scales = [[1, "s"], [1e-3, "ms"], [1e-6, "us"], [1e-9, "ns"]];
  const [scale, unit] = scales.find(([s]) => value >= s) || scales[3];
  return Number((value / scale).toPrecision(4)) + " " + unit;
}

function make(parent, tag, attributes, text) {
  const svg = parent.namespaceURI === SVG || tag === "svg";
  const node = svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  parent.append(node);
  return node;
}

// ---- collectives ----

for (const button of all(document, "[data-tab]"))
  button.addEventListener("click", () => {
    for (const other of all(document, "[data-tab]")) {
      const on = other === button;
      other.setAttribute("aria-selected", on);
      document.getElementById(other.dataset.tab).hidden = !on;
    }
  });

// ---- the table of candidates: a click on a head sorts, the field filters ----

for (const table of all(document, "table.sortable")) {
  const body = table.tBodies[0];
  let last = null;
  all(table, "th").forEach((head, column) => {
    head.tabIndex = 0;
    head.setAttribute("role", "button");
    const key = (row) => column < 2 ? row.cells[column].textContent : Number(row.dataset.order.split(",")[column - 2]);
    const sort = () => {
      const sign = last === head ? -1 : 1;
      const rows = Array.from(body.rows).sort((a, b) => {
        const [x, y] = [key(a), key(b)];
        return sign * (x < y ? -1 : x > y ? 1 : 0);
      });
      body.append(...rows);
      last = sign === 1 ? head : null;
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => event.key === "Enter" && sort());
  });
  const filter = table.closest("details").querySelector(".filter");
  filter.addEventListener("input", () => {
    for (const row of body.rows) row.hidden = !row.textContent.includes(filter.value);
  });
}

// ---- the chart ----

function charts(section) {
  const figure = section.querySelector(".charts");
  if (!figure) return;
  const data = JSON.parse(section.querySelector("script.data").textContent);
  const tip = figure.querySelector(".tip");
  for (const button of all(section, ".switch button"))
    button.addEventListener("click", () => {
      figure.dataset.show = button.dataset.show;
      for (const other of all(section, ".switch button")) other.setAttribute("aria-pressed", other === button);
      off();
    });

  function off() {
    tip.hidden = true;
    for (const line of all(figure, ".lit")) line.classList.remove("lit");
  }

  function nearest(chart, event) {
    const relative = chart.classList.contains("gap");
    const { box, low, high } = data.frames[chart.dataset.frame];
    const svg = chart.querySelector("svg");
    const seen = svg.getBoundingClientRect();
    const zoom = svg.viewBox.baseVal.width / seen.width;
    const px = (event.clientX - seen.left) * zoom, py = (event.clientY - seen.top) * zoom;
    const x = (v) => box[0] + (box[2] * (Math.log10(v) - low[0])) / (high[0] - low[0] || 1);
    const y = (v) => {
      const share = (Math.log10(v) - low[1]) / (high[1] - low[1] || 1);
      return box[1] + box[3] * (1 - Math.min(Math.max(share, 0), 1));
    };
    let best = null;
    data.bytes.forEach((size, at) => {
      for (const [number, c] of Object.entries(data.candidates)) {
        const value = relative ? c.gap[at] : c.seconds[at];
        if (!(value > 0)) continue;
        const away = Math.hypot((x(size) - px) * 1.6, y(value) - py);
        if (!best || away < best.away) best = { away, number, at, left: x(size) / zoom, top: y(value) / zoom };
      }
    });
    return best && best.away < 60 * Math.max(zoom, 1) ? best : null;
  }

  function show(chart, event) {
    const found = nearest(chart, event);
    off();
    if (!found) return;
    const { number, at } = found;
    const c = data.candidates[number];
    for (const line of all(chart, `path[data-c="${Number(number)}"]`)) line.classList.add("lit");
    tip.replaceChildren();
    make(tip, "b", {}, c.who + (c.options ? " " + c.options : ""));
    const gap = c.gap.length ? `, ${c.gap[at].toPrecision(3)} times the bound` : "";
    make(tip, "div", {}, `${data.sizes[at]}: ${seconds(c.seconds[at])}${gap}`);
    const terms = Object.entries(c.terms).filter(([, values]) => values[at] > 0).map(([name, values]) => `${name} ${seconds(values[at])}`);
    if (terms.length) make(tip, "span", {}, terms.join(" + "));
    if (c.names[c.held[at]]) make(tip, "span", {}, "bottleneck: " + c.names[c.held[at]]);
    tip.hidden = false;
    const room = figure.clientWidth;
    const left = found.left + 22 + tip.offsetWidth > room ? found.left - tip.offsetWidth - 6 : found.left + 22;
    tip.style.left = Math.min(Math.max(left, 4), Math.max(room - tip.offsetWidth - 4, 4)) + "px";
    tip.style.top = Math.max(found.top - tip.offsetHeight - 2, 4) + "px";
  }

  for (const chart of all(figure, ".chart"))
    for (const kind of ["pointermove", "pointerdown"]) chart.addEventListener(kind, (event) => show(chart, event));
  figure.addEventListener("pointerleave", off);
}

// ---- the plans ----

function plans(section) {
  const select = section.querySelector("select");
  if (!select) return;
  const rows = all(section, "tr[data-plan]");
  function choose(name) {
    select.value = name;
    for (const plan of all(section, ".plan")) plan.hidden = plan.id !== name;
    for (const row of rows) row.classList.toggle("on", row.dataset.plan === name);
    player(document.getElementById(name));
  }
  select.addEventListener("change", () => choose(select.value));
  for (const row of rows) {
    row.addEventListener("click", () => choose(row.dataset.plan));
    row.addEventListener("keydown", (event) => event.key === "Enter" && choose(row.dataset.plan));
  }
  if (rows.length) choose(rows[0].dataset.plan);
}

function player(plan) {
  if (plan.dataset.ready) return;
  plan.dataset.ready = "yes";
  const data = JSON.parse(plan.querySelector("script.steps").textContent);
  const range = plan.querySelector("input"), said = plan.querySelector(".said");
  const stage = plan.querySelector(".stage"), button = plan.querySelector(".play");
  const at = positions(data);
  let timer = null;

  function step(number) {
    const active = data.rows.filter(([s, pieces]) => s <= number && number < s + pieces);
    const more = data.shown < data.steps ? " (the first " + data.shown + " are listed)" : "";
    plan.querySelector(".where").textContent = `step ${number + 1} of ${data.steps}` + more;
    stage.replaceChildren(picture(data, at, active));
    said.replaceChildren();
    for (const [, , src, dst, op, count, share, chunks] of active.slice(0, 400)) {
      const rest = count > 6 ? ", ..." : "";
      make(said, "div", op ? { class: "r" } : {},
        `${src} → ${dst}: ${["copy", "reduce", "copy and reduce"][op]} chunk${count > 1 ? "s" : ""} ${chunks}${rest}`);
    }
    if (active.length > 400) make(said, "div", {}, `and ${active.length - 400} more`);
  }

  function stop() {
    clearInterval(timer);
    timer = null;
    button.textContent = "▶";
  }

  range.addEventListener("input", () => { stop(); step(Number(range.value)); });
  button.addEventListener("click", () => {
    if (timer) return stop();
    button.textContent = "❚❚";
    timer = setInterval(() => {
      const next = (Number(range.value) + 1) % Math.max(data.shown, 1);
      range.value = next;
      step(next);
    }, 700);
  });
  step(0);
}

// Ranks on a circle, with a gap between those of different places.
function positions(data) {
  const ranks = [...data.ranks];
  for (const [, , src, dst] of data.rows) for (const r of [src, dst]) if (!ranks.includes(r)) ranks.push(r);
  let slots = 0;
  const slot = new Map();
  ranks.forEach((rank, i) => {
    if (i && data.places[i] !== data.places[i - 1]) slots += 0.8;
    slot.set(rank, slots);
    slots += 1;
  });
  if (data.places[0] !== data.places[data.ranks.length - 1]) slots += 0.8;
  const at = new Map();
  for (const [rank, where] of slot) {
    const angle = (2 * Math.PI * where) / slots - Math.PI / 2;
    at.set(rank, [200 + 160 * Math.cos(angle), 200 + 160 * Math.sin(angle)]);
  }
  return at;
}

function picture(data, at, active) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 400 400");
  const size = at.size > 40 ? 6 : at.size > 20 ? 10 : 15;
  const defs = make(svg, "defs");
  for (const [id, colour] of [["copy", "#2f6fab"], ["reduce", "#c2622d"]]) {
    const head = make(defs, "marker", { id: "head-" + id, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8,
      markerHeight: 8, markerUnits: "userSpaceOnUse", orient: "auto" });
    make(head, "path", { d: "M0 0.5 L8 4 L0 7.5 z", fill: colour });
  }
  const crowd = active.length > 300;  // too many arrows to tell apart: thin lines, the more the fainter
  const opacity = crowd ? Math.max(60 / active.length, 0.05) : 0.8;
  const thin = Math.min(1, Math.sqrt(40 / active.length));
  const most = Math.max(...data.rows.map((row) => row[6] / row[1]), 1e-12);
  for (const [, pieces, src, dst, op, count, share] of active) {
    if (src === dst) continue;
    const [a, b] = [at.get(src), at.get(dst)];
    const length = Math.hypot(b[0] - a[0], b[1] - a[1]);
    const unit = [(b[0] - a[0]) / length, (b[1] - a[1]) / length];
    const side = [-unit[1] * 0.07 * length, unit[0] * 0.07 * length];
    const [from, to] = [[a[0] + unit[0] * size, a[1] + unit[1] * size],
      [b[0] - unit[0] * (size + 2), b[1] - unit[1] * (size + 2)]];
    const middle = [(a[0] + b[0]) / 2 + side[0], (a[1] + b[1]) / 2 + side[1]];
    const d = `M${from[0]} ${from[1]} Q${middle[0]} ${middle[1]} ${to[0]} ${to[1]}`;
    const name = op ? "reduce" : "copy";
    const line = make(svg, "path", { d, fill: "none", stroke: op ? "#c2622d" : "#2f6fab", "stroke-opacity": opacity,
      "stroke-width": crowd ? 0.7 : thin * (0.8 + 2.4 * Math.sqrt(share / pieces / most)) });
    if (!crowd) line.setAttribute("marker-end", `url(#head-${name})`);
    make(line, "title", {}, `${src} to ${dst}: ${count} chunk${count > 1 ? "s" : ""}, ${share} of nbytes`);
  }
  for (const [rank, [x, y]] of at) {
    const member = data.ranks.includes(rank);
    make(svg, "circle", { cx: x, cy: y, r: size, fill: member ? "#f4f1ea" : "#fff", stroke: "#55524b" });
    if (size > 6 || rank % 8 === 0)
      make(svg, "text", { x: 200 + (x - 200) * (size > 6 ? 1 : 1.09), y: 204 + (y - 200) * (size > 6 ? 1 : 1.09),
        "text-anchor": "middle", "font-size": size > 10 ? 13 : 9 }, String(rank));
  }
  return svg;
}

for (const section of all(document, ".collective")) {
  charts(section);
  plans(section);
}
