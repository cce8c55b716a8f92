// The page: sections, controls, keys and theme. Every control changes the state by `update` (state.js), which calls
// `refresh`; that redraws the parts of the page that depend on the changed keys.

import { bisect, bytes, clamp, el, percent, plural, seconds, TICKS, unpack } from "./basics.js";
import { PointChart, TimeChart } from "./chart.js";
import { MachineView } from "./machine.js";
import { Run } from "./run.js";
import { listen, picked, readFragment, state, update } from "./state.js";
import { forgetColours } from "./surface.js";
import { busiestTable, candidatesTable, compareTable, describePick, momentList, rangesTable, refusedTable, table } from "./tables.js";
import { Timeline } from "./timeline.js";

const PLAY_SECONDS = 12; // for the whole plan, at the middle speed
const KEYS = [
  ["space", "play or pause"], ["← →", "one step back or on"], ["Shift ← →", "move the timeline"], ["+ −", "zoom the timeline"],
  ["0", "show all of it"], ["l", "timeline by rank or by link"], ["c", "draw what limits every plan"], ["k", "links by load or by kind"],
  ["g", "times, or times over the bound"], ["/", "filter candidates"], ["t", "light, dark, as the system"], ["Esc", "follow nothing"],
];

// Written by payload.py. `groups`: one per collective, each with `plans`, `candidates` and `cut` (the links that bound
// every plan). A plan has `timed`: its predicted times, `timed.recorded`: those of a recorded run; `pack`: its
// transfers, compressed. `recorded`: the page is of a trace, without a plan. `points`: a frontier's or sweep's chart.
const page = JSON.parse(document.getElementById("data").textContent);
const main = document.getElementById("main");
const runs = new Map(); // times of a plan -> its unpacked transfers (Run)
let links = null; // columns of the machine's links: src, dst, kind, type
let run = null; // transfers of the plan on show, null if it has none
let timer = 0, playing = false, rate = 1, showedLoads = true; // loads over the whole time are shown at time 0
const parts = {}; // elements that `refresh` fills

const group = () => page.groups[state.group] || page.groups[0];
const planNumber = () => (group().plans[state.plan] ? state.plan : group().shown);
const plan = () => group().plans[planNumber()];
// The times of a plan that the user chose: recorded or predicted.
const timesOf = (aPlan) => (state.times === "recorded" && aPlan.timed.recorded) || aPlan.timed;

function resourceName(r) {
  if (r >= links.src.length) return "limit " + page.machine.limits[r - links.src.length][0];
  const name = (node) => (node < page.machine.ranks ? String(node) : page.machine.places[node]);
  return `${name(links.src[r])} → ${name(links.dst[r])} (${page.machine.kinds[links.kind[r]][0]})`;
}

// ---- building, once ----

const button = (label, act, attributes = {}) => el("button", { type: "button", onclick: act, ...attributes }, label);

// Build a menu for a key of the state; `onchange` replaces the update of that key.
function choice(label, key, options, onchange = null) {
  const select = el("select", { "aria-label": label, onchange: () => (onchange || ((value) => update({ [key]: value })))(select.value) },
    ...options.map(([value, words]) => el("option", { value }, words)));
  return select;
}

const savers = (surface) => el("span", { class: "save" },
  button("SVG", () => surface.save("svg"), { title: "save this picture as SVG" }),
  button("PNG", () => surface.save("png"), { title: "save this picture as PNG" }));

function section(id, title, ...children) {
  return el("section", { id, "aria-labelledby": id + "-title" }, el("div", { class: "head" }, el("h2", { id: id + "-title" }, title), ...children));
}

function buildTabs() {
  if (page.groups.length < 2) return;
  parts.tabs = page.groups.map((each, number) => button(each.kind, () => update({ group: number, plan: -1, time: 0, pick: "", pins: "" }), { role: "tab" }));
  const list = el("div", { role: "tablist", "aria-label": "collectives" }, ...parts.tabs);
  parts.groupHeadline = el("p", { class: "headline" });
  main.append(list, parts.groupHeadline);
}

function buildMachine() {
  const view = (parts.machine = new MachineView(page.machine, links));
  const levels = view.levels.map((level, i) => [String(i), i ? `folded: ${plural(level.nodes.length, "node")}` : `all ${plural(level.nodes.length, "node")}`]);
  parts.level = choice("detail", "level", levels, (value) => { view.view = null; update({ level: value }); });
  parts.colour = choice("colour of links", "colour", [["load", "links by load"], ["kind", "links by kind"]]);
  parts.source = choice("times", "times", [], (value) => update({ times: value, pick: "", time: 0 }));
  parts.cut = button("what limits", () => update({ cut: state.cut ? 0 : 1 }), { "aria-pressed": "false" });
  parts.plan = choice("plan", "plan", [], (value) => update({ plan: Number(value), time: 0 }));
  const node = section("the-machine", "The machine", parts.plan, parts.source, levels.length > 1 ? parts.level : null, parts.colour, parts.cut,
    el("span", { class: "zoom" }, button("−", () => view.zoom(0.7), { "aria-label": "zoom out" }), button("+", () => view.zoom(1.4), { "aria-label": "zoom in" }),
      button("fit", () => { view.view = null; view.forget(); })), savers(view.surface));
  parts.play = button("▶", toggle, { "aria-label": "play", class: "play" });
  parts.slider = el("input", { type: "range", min: 0, max: 1, step: "any", "aria-label": "time", oninput: () => { stop(); update({ time: Number(parts.slider.value) }); } });
  parts.where = el("span", { class: "where" });
  const pace = choice("speed", "", [[0.25, "¼ speed"], [1, "speed 1"], [3, "speed 3"]], (value) => { rate = Number(value); });
  pace.value = "1";
  parts.controls = el("div", { class: "controls" }, button("|◀", () => { stop(); update({ time: 0 }); }, { "aria-label": "loads over the whole time" }), button("◀", () => step(-1), { "aria-label": "one step back" }), parts.play,
    button("▶|", () => step(1), { "aria-label": "one step on" }), parts.slider, parts.where, pace);
  parts.legend = el("p", { class: "legend" });
  parts.pick = el("div", { class: "pick" });
  parts.cutText = el("p", { class: "cut-text", hidden: true });
  parts.moment = el("div", { class: "moment" });
  parts.busiest = el("div", {});
  parts.facts = el("dl", { class: "facts" });
  parts.left = el("div", {}, view.surface.box, parts.legend, parts.controls, parts.cutText);
  node.append(el("div", { class: "split" }, parts.left,
    el("div", { class: "side" }, parts.facts, parts.pick, el("h3", {}, "At this moment"), parts.moment, el("h3", {}, "Links in use longest"), parts.busiest)));
  main.append(node);
}

function buildTimeline() {
  const view = (parts.timeline = new Timeline(page.machine, resourceName));
  parts.rows = choice("rows of the timeline", "rows", [["ranks", "by rank"], ["links", "by link"]]);
  parts.why = el("p", { class: "note", hidden: true });
  const node = section("the-timeline", "Timeline", parts.rows,
    el("span", { class: "zoom" }, button("−", () => view.zoom(0.5), { "aria-label": "zoom out" }), button("+", () => view.zoom(2), { "aria-label": "zoom in" }),
      button("fit", () => update({ from: 0, to: 1 }))), savers(view.surface));
  parts.barsKey = el("p", { class: "legend" });
  node.append(view.surface.box, parts.why, parts.barsKey);
  parts.left.append(node);
}

function buildTimes() {
  const chart = (parts.times = new TimeChart());
  parts.relative = button("times over the bound", () => update({ relative: state.relative ? 0 : 1 }), { "aria-pressed": "false" });
  const node = section("the-times", "Time against size", parts.relative, savers(chart.surface));
  parts.timesKey = el("p", { class: "legend" });
  parts.ranges = el("div", {});
  parts.rangesHead = el("h3", {}, "What to use when");
  parts.rangeNotes = el("p", { class: "note" });
  parts.compare = el("div", {});
  parts.filter = el("input", { type: "search", placeholder: "filter, e.g. ring", "aria-label": "filter candidates", oninput: () => update({ filter: parts.filter.value }) });
  parts.candidatesHead = el("h3", {});
  parts.candidates = el("div", {});
  parts.refused = el("div", {});
  node.append(chart.surface.box, parts.timesKey, parts.rangesHead, parts.ranges, parts.rangeNotes, parts.compare,
    el("div", { class: "head" }, parts.candidatesHead, parts.filter), parts.candidates, parts.refused);
  main.append(node);
}

function buildPoints(data) {
  const chart = new PointChart(data, ({ number }) => {
    if (data.points[number].plan != null) update({ plan: data.points[number].plan, time: 0 });
  });
  const node = section("the-points", data.title, savers(chart.surface));
  const rows = data.points.map((point) => ({ class: point.plan == null && point.front ? "on" : null, cells: [
    point.plan == null ? point.label : button(point.label, () => update({ plan: point.plan, time: 0 }), { class: "plain" }), ...point.cells] }));
  const figures = data.heads.map((_, i) => i).filter((i) => i && data.points.every((point) => /^[\d-]/.test(point.cells[i - 1])));
  const list = table("points", data.heads, rows, figures);
  parts.pointRows = [...list.querySelectorAll("tbody tr")];
  node.append(chart.surface.box, list, ...data.notes.map((note) => el("p", { class: "note" }, note)));
  main.append(node);
}

function buildRest() {
  parts.proof = el("ul", {});
  parts.proofSection = el("section", { "aria-label": "the bound" }, el("h2", {}, "Why no plan can be faster than the bound"), parts.proof);
  if (page.groups.length) main.append(parts.proofSection);
  if (page.notes.length) main.append(el("section", { "aria-label": "notes" }, el("h2", {}, "To know"), el("ul", {}, ...page.notes.map((note) => el("li", {}, note)))));
  for (const { title, svg, lines } of page.pictures || []) {
    const box = el("div", { class: "scroll picture" });
    box.innerHTML = svg;
    main.append(el("section", { "aria-label": title }, el("h2", {}, title), box, ...lines.map((line) => el("p", { class: "note" }, line))));
  }
  const entries = Object.entries(page.definitions || {}).flatMap(([key, words]) => [el("dt", {}, key), el("dd", {}, words)]);
  const keys = KEYS.flatMap(([key, words]) => [el("dt", {}, key), el("dd", {}, words)]);
  const footer = document.querySelector("footer");
  footer.prepend(el("details", { id: "keys" }, el("summary", {}, "Keys"), el("dl", {}, ...keys)),
    ...(entries.length ? [el("details", {}, el("summary", {}, "What the figures mean"), el("dl", {}, ...entries))] : []));
  parts.status = el("p", { role: "status", class: "unseen" });
  footer.append(parts.status);
  parts.theme = button("", () => update({ theme: { "": "dark", dark: "light", light: "" }[state.theme] }), { class: "theme" });
  document.querySelector("header").append(parts.theme);
}

// ---- filling with the current state ----

// Unpack the transfers of a plan once.
async function runOf(timed) {
  if (timed.pack && !runs.has(timed)) {
    const unpacked = new Run(await unpack(timed.pack), page.machine);
    unpacked.linkType = links.type;
    runs.set(timed, unpacked);
  }
  return runs.get(timed) || null;
}

// Show the plan that the state chooses, once its transfers are unpacked.
async function showPlan() {
  const current = plan();
  if (!current) return;
  const timed = timesOf(current), unpacked = await runOf(timed);
  if (unpacked && timed !== current.timed) unpacked.model = { run: await runOf(current.timed), total: current.timed.total };
  if (plan() !== current || timesOf(current) !== timed) return; // another was chosen meanwhile
  run = unpacked;
  parts.machine.show(run, group().cut);
  parts.timeline.show(run, timed.total, page.recorded || timed !== current.timed ? "" : "launch");
  parts.timeline.surface.box.hidden = !run;
  parts.controls.hidden = !run;
  parts.why.hidden = Boolean(run);
  parts.why.textContent = run ? "" : current.timed.why;
  parts.busiest.replaceChildren(...(run ? busiestTable(run, resourceName) : []));
  const facts = { planner: current.name, ...current.facts, ["at " + bytes(current.at)]: seconds(current.seconds), "limited by": current.bottleneck };
  for (const [name, value] of Object.entries(facts)) if (value === "") delete facts[name];
  const words = page.recorded ? { copy: "transfers" } : { copy: "copies", reduce: "reduces" };
  if (run?.critical.length) words.critical = "on the critical path: what the end waited for";
  parts.barsKey.replaceChildren(...Object.entries(words).map(([name, word]) => el("span", {}, el("i", { class: "dot", style: `background:var(--${name})` }), word)),
    el("span", { class: "hint" }, "Ctrl and wheel zoom, dragging moves."));
  parts.facts.replaceChildren(...Object.entries(facts).map(([key_, value]) => el("div", {}, el("dt", {}, key_), el("dd", {}, String(value.toLocaleString?.("en") ?? value)))));
  showControls();
  showMoment();
  showPick();
}

// Show the moment that the state names.
function showMoment() {
  if (!run) return;
  const tick = Math.min(state.time * TICKS, TICKS - 1), number = run.stepAt(tick);
  parts.slider.value = state.time;
  const { total } = timesOf(plan());
  parts.where.textContent = `${seconds(state.time * total)} of ${seconds(total)}` + (number == null ? ", not begun" : `, step ${number + 1}`);
  parts.slider.setAttribute("aria-valuetext", parts.where.textContent);
  parts.machine.surface.redraw();
  parts.timeline.moveCursor();
  if (!playing) showDetails();
}

// Fill what is too slow to rebuild in every frame of an animation.
function showDetails() {
  parts.moment.replaceChildren(...(run ? momentList(run) : []));
  const { kind, id } = picked();
  const words = `${page.machine.name}, ${plural(page.machine.ranks, "rank")}; ${parts.where.textContent}`;
  parts.machine.surface.canvas.setAttribute("aria-label", `The machine: ${words}`);
  parts.timeline.surface.canvas.setAttribute("aria-label", `The timeline: ${words}`);
  parts.status.textContent = `${parts.where.textContent}${kind ? `, following ${kind} ${kind === "link" && run ? resourceName(id) : id}` : ""}`;
}

// Describe what is followed.
function showPick() {
  parts.pick.replaceChildren(...describePick(page, run, { ...plan(), timed: timesOf(plan()) }, resourceName));
  if (run) showDetails();
}

// Show the collective that the state chooses: its plans, proof and tables.
function showGroup() {
  const current = group();
  parts.tabs?.forEach((tab, number) => tab.setAttribute("aria-selected", String(number === state.group)));
  if (parts.groupHeadline) parts.groupHeadline.textContent = current.headline;
  document.getElementById("headline").hidden = page.groups.length > 1;
  parts.plan.replaceChildren(...current.plans.map((each, number) => {
    const span = current.ranges[number]?.span || [""], ends = span[1] && span[1] !== "-" ? span.join(" – ") : span[0];
    return el("option", { value: number }, `${current.plans.length > 1 && !page.points ? ends + ": " : ""}${each.name}`);
  }));
  parts.plan.hidden = current.plans.length < 2;
  parts.cut.hidden = !current.cut;
  parts.cutText.textContent = current.cut ? "Every plan is limited by this " + current.cut.text : "";
  parts.times?.show(current, page.points ? -1 : planNumber());
  parts.proof.replaceChildren(...current.proof.map((line) => el("li", {}, line)));
  parts.proofSection.hidden = !current.proof.length;
  parts.rangeNotes && (parts.rangeNotes.textContent = current.notes.join(" "));
  showTables();
}

// Rebuild the tables of ranges and candidates.
function showTables() {
  const current = group();
  if (!parts.times) return;
  if (page.points) parts.rangesHead.hidden = true; // each point serves all sizes
  else parts.ranges.replaceChildren(rangesTable(current, planNumber()));
  const compare = compareTable(current);
  parts.compare.replaceChildren(...(compare ? [compare] : []));
  const count = current.candidates.filter((c) => c.seconds).length;
  parts.candidatesHead.textContent = plural(count, "candidate");
  parts.candidates.replaceChildren(candidatesTable(current));
  const refused = refusedTable(current);
  parts.refused.replaceChildren(...(refused ? [refused] : []));
  const key = [...(current.bound ? [["dots", "the bound: no plan is faster"]] : []), ...(current.baseline ? [["dashes", current.baseline.name]] : [])];
  parts.timesKey.replaceChildren(...key.map(([dash, words]) => el("span", {}, el("i", { class: "dash " + dash }), words)),
    el("span", { class: "hint" }, "A click on a line pins it."), ...(current.plans.some((each) => each.measured.length) ? [el("span", {}, "Dots are measured.")] : []));
}

// Set all controls and legends to the state.
function showControls() {
  if (parts.machine) {
    parts.plan.value = String(planNumber());
    parts.level.value = String(parts.machine.levels.indexOf(parts.machine.level));
    parts.colour.value = state.colour;
    const { recorded } = plan().timed;
    parts.source.hidden = !recorded;
    if (recorded) parts.source.replaceChildren(el("option", { value: "recorded" }, recorded.label), el("option", { value: "model" }, "as predicted"));
    parts.source.value = state.times;
    if (page.points) parts.pointRows.forEach((row, i) => row.classList.toggle("on", page.points.points[i].plan === planNumber()));
    parts.rows.value = state.rows;
    parts.cut.setAttribute("aria-pressed", String(Boolean(state.cut)));
    parts.cutText.hidden = !state.cut || !group().cut;
    const showsLoads = !parts.machine.showsTraffic;
    const kinds = page.machine.kinds.map(([kind, paint]) => el("span", {}, el("i", { class: "dot", style: `background:${paint}` }), kind));
    const maxLoad = run ? run.maxLoad : 0;
    const loads = [el("span", {}, "in use over the whole time: 0 ", el("i", { class: "ramp" }), ` ${percent(maxLoad)}`)];
    const words = page.recorded ? { copy: "transfers" } : { copy: "copies", reduce: "reduces" };
    const now = Object.entries(words).map(([name, word]) => el("span", {}, el("i", { class: "dot", style: `background:var(--${name})` }), `${word} ${state.time ? "now" : "of what is followed"}`));
    parts.legend.replaceChildren(...(state.colour === "kind" ? kinds : showsLoads ? loads : []), ...(showsLoads ? [] : now));
  }
  parts.relative?.setAttribute("aria-pressed", String(Boolean(state.relative)));
  if (parts.filter && parts.filter.value !== state.filter) parts.filter.value = state.filter;
  if (parts.relative) parts.relative.hidden = !group().bound;
  parts.theme.textContent = { "": "theme: system", dark: "theme: dark", light: "theme: light" }[state.theme];
}

function applyTheme(theme = state.theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  forgetColours();
  parts.machine?.forget();
}

// Redraw the pictures in light colours and for the width of a sheet, or as before.
function showOnPaper(printing) {
  document.documentElement.classList.toggle("printing", printing);
  applyTheme(printing ? "light" : state.theme);
  for (let round = 0; round < 2; round++) // the machine's height follows from its width
    for (const view of [parts.machine, parts.timeline, parts.times]) view?.surface.drawNow();
}

// Redraw what depends on the changed keys of the state.
function refresh(changed) {
  const any = (...keys) => keys.some((key) => changed.has(key));
  if (any("theme")) applyTheme();
  if (showedLoads !== (state.time === 0) || !changed.has("time")) showControls();
  showedLoads = state.time === 0;
  if (!page.groups.length) return;
  if (any("group")) showGroup();
  if (any("group", "plan", "times")) showPlan();
  if (any("time")) showMoment();
  if (any("level", "colour")) parts.machine.forget();
  if (any("cut", "pick")) parts.machine.surface.redraw();
  if (any("rows", "pick", "from", "to")) parts.timeline.surface.redraw();
  if (any("pick")) showPick();
  if (any("plan", "pins", "sort", "filter")) keepFocus(showTables);
  if (any("plan", "pins", "relative")) parts.times?.show(group(), page.points ? -1 : planNumber());
}

// Rebuild tables and give the focus back to the control that had it, for users who sort or pin by keyboard.
function keepFocus(build) {
  const focus = document.activeElement;
  const labelOf = (control) => (control.getAttribute("aria-label") || control.textContent).replace(/ [▲▼]$/, "");
  const box = [parts.ranges, parts.candidates, parts.compare].find((candidate) => candidate?.contains(focus));
  const label = box && labelOf(focus);
  build();
  if (box) [...box.querySelectorAll("button, input")].find((control) => labelOf(control) === label)?.focus();
}

// ---- playing ----

function toggle() {
  if (playing) return stop();
  if (!run) return;
  playing = true;
  parts.play.textContent = "❚❚";
  parts.play.setAttribute("aria-label", "pause");
  let before = performance.now();
  const advance = (now) => {
    if (!playing) return;
    const time = state.time + ((now - before) / 1000 / PLAY_SECONDS) * rate; // share of the total
    before = now;
    update({ time: time >= 1 ? 0 : time });
    timer = requestAnimationFrame(advance);
  };
  if (state.time >= 0.9999) update({ time: 0 });
  timer = requestAnimationFrame(advance);
}

function stop() {
  cancelAnimationFrame(timer);
  playing = false;
  parts.play.textContent = "▶";
  parts.play.setAttribute("aria-label", "play");
  if (run) showDetails();
}

// Go to the begin of the next step (`by` 1) or of the previous one (-1).
function step(by) {
  if (!run) return;
  stop();
  const starts = run.stepStarts, tick = Math.round(state.time * TICKS);
  let at = bisect((i) => starts[i][0], tick, 0, starts.length) - 1 + by;
  // skip steps that begin at this very moment
  while (by < 0 && at > 0 && starts[at][0] >= tick) at--;
  while (by > 0 && at < starts.length - 1 && starts[at][0] <= tick) at++;
  const begin = starts[clamp(at, 0, starts.length - 1)][0];
  update({ time: clamp((begin + 1) / TICKS, 0, 1) }); // a tick later, so that the step is under way
}

// ---- keys ----

function listenToKeys() {
  document.addEventListener("keydown", (event) => {
    const { target, key } = event;
    if (event.ctrlKey || event.metaKey || event.altKey || target.closest("input:not([type=range]), select, textarea")) return;
    if (target.closest("button, summary, input") && (key === " " || key === "Enter")) return;
    if (target.type === "range" && key.startsWith("Arrow")) return;
    const actions = {
      " ": toggle,
      ArrowLeft: () => (event.shiftKey ? parts.timeline?.pan(-0.2) : step(-1)),
      ArrowRight: () => (event.shiftKey ? parts.timeline?.pan(0.2) : step(1)),
      "+": () => parts.timeline?.zoom(2), "=": () => parts.timeline?.zoom(2), "-": () => parts.timeline?.zoom(0.5),
      0: () => update({ from: 0, to: 1 }),
      l: () => update({ rows: state.rows === "links" ? "ranks" : "links" }),
      c: () => update({ cut: state.cut ? 0 : 1 }),
      k: () => update({ colour: state.colour === "load" ? "kind" : "load" }),
      g: () => update({ relative: state.relative ? 0 : 1 }),
      t: () => update({ theme: { "": "dark", dark: "light", light: "" }[state.theme] }),
      "/": () => parts.filter?.focus(),
      "?": () => { document.getElementById("keys").open = true; document.getElementById("keys").scrollIntoView(); },
      Escape: () => update({ pick: "" }),
    };
    if (!(key in actions)) return;
    event.preventDefault();
    actions[key]();
  });
}

async function start() {
  readFragment();
  if (page.groups.length) {
    if (!page.groups[state.group]) state.group = 0;
    links = await unpack(page.machine.links);
    buildTabs();
    if (page.points) buildPoints(page.points);
    buildMachine();
    buildTimeline();
    if (page.groups.some((each) => each.candidates.length)) buildTimes();
  } else if (page.points) buildPoints(page.points);
  buildRest();
  listen(refresh);
  listenToKeys();
  applyTheme();
  showControlsAndGroup();
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done))); // the machine is seen before plans are unpacked
  await showPlanIfAny();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => applyTheme());
  addEventListener("beforeprint", () => showOnPaper(true));
  addEventListener("afterprint", () => showOnPaper(false));
  addEventListener("hashchange", () => { const before = { ...state }; readFragment(); refresh(new Set(Object.keys(state).filter((key) => before[key] !== state[key]))); });
  document.documentElement.dataset.ready = "yes";
}

function showControlsAndGroup() {
  if (page.groups.length) showGroup();
  showControls();
}

async function showPlanIfAny() {
  if (page.groups.length) await showPlan();
}

globalThis.explorer = { state, update, parts }; // for the console
start().catch((error) => {
  main.prepend(el("p", { role: "alert" }, `This page cannot be shown here (${error.message}). It needs a browser of 2023 or later.`));
  throw error;
});
