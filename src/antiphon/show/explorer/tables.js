// Build the page's tables as elements, for main.js: ranges of sizes, candidates (to sort, filter and pin), the pinned
// candidates compared, the busiest links, and a description of the *pick*: the rank, link, message, chunk or step that the
// user follows. `group`, `plan` and `page` are objects of payload.py, `run` is a Run (run.js); times are in seconds.

import { bytes, el, percent, plural, ratio, seconds, speed, TICKS } from "./basics.js";
import { candidateColours, nameOf } from "./chart.js";
import { picked, pinned, state, update } from "./state.js";

const dot = (name) => el("i", { class: "dot", style: `background:var(--${name})`, "aria-hidden": "true" });

// Build a table. A row is {cells, ...attributes of its element}; a cell is text or an element. `figures`: the numbers of
// the columns to align to the right. On narrow pages each row is drawn as a card.
export function table(name, heads, rows, figures) {
  const head = el("tr", {}, ...heads.map((text, i) => el("th", { scope: "col", class: figures.includes(i) ? "n" : null }, text)));
  const body = rows.map(({ cells, ...attributes }) =>
    el("tr", attributes, ...cells.map((cell, i) => {
      const label = typeof heads[i] === "string" ? heads[i] : heads[i].textContent;
      return el("td", { class: figures.includes(i) ? "n" : null, "data-head": label || null }, cell);
    })));
  return el("div", { class: "scroll" }, el("table", { class: "cards " + name }, el("thead", {}, head), el("tbody", {}, ...body)));
}

// Draw the terms of a predicted time, {term: seconds}, as a bar.
function termsBar(terms) {
  const entries = Object.entries(terms).filter(([, value]) => value > 0);
  const total = entries.reduce((sum, [, value]) => sum + value, 0) || 1;
  const label = entries.map(([term, value]) => `${term} ${percent(value / total)}`).join(", ");
  return el("span", { class: "parts", role: "img", "aria-label": label, title: label },
    ...entries.map(([, value], i) => el("i", { style: `flex:${value / total};background:var(--c${i % 8})` })));
}

// Say which plan to use for which sizes; a click on a row shows its plan. `current`: the number of the plan on show.
export function rangesTable(group, current) {
  const colours = candidateColours(group);
  const hasLibrary = group.ranges.some((range) => range.speedup != null);
  const hasMeasurements = group.plans.some((plan) => plan.measured.length);
  const heads = ["sizes", "use", "best of ours", "at", "time", "made of", "gap", ...(hasLibrary ? ["speedup"] : []), ...(hasMeasurements ? ["measured / predicted"] : [])];
  const rows = group.ranges.map((range, i) => {
    const candidate = group.candidates[range.candidate], plan = group.plans[i];
    const show = () => update({ plan: i, time: 0 });
    const uses = range.uses ? el("small", {}, ` uses ${range.uses}`) : null;
    const measurement = plan?.measured.find((row) => row.nbytes === range.at);
    const cells = [
      el("button", { type: "button", class: "plain", "aria-pressed": String(i === current), onclick: show }, range.span[1] && range.span[1] !== "-" ? range.span.join(" – ") : range.span[0]),
      range.served_by ? el("strong", {}, `leave it to ${range.served_by}`) : "Antiphon",
      el("span", {}, dot(colours.get(range.candidate)), nameOf(candidate), uses),
      bytes(range.at), seconds(range.seconds), plan ? termsBar(plan.terms) : "", ratio(range.gap),
      ...(hasLibrary ? [el("span", {}, ratio(range.speedup), range.over ? el("small", {}, ` over ${range.over}`) : null)] : []),
      ...(hasMeasurements ? [measurement ? ratio(measurement.seconds / predictedSeconds(group, range, measurement.nbytes)) : "-"] : []),
    ];
    return { cells, class: i === current ? "on" : null, onclick: show };
  });
  return table("ranges", heads, rows, [3, 4, 6, 7, 8]);
}

function predictedSeconds(group, range, nbytes) {
  const at = group.sizes.indexOf(nbytes);
  return at >= 0 ? group.candidates[range.candidate].seconds[at] : range.seconds;
}

// List the candidates that have times, at the smallest, middle and greatest size. A click on a head sorts, the field above
// filters, and pinned candidates are compared below.
export function candidatesTable(group) {
  const { sizes } = group;
  const at = [...new Set([0, sizes.length >> 1, sizes.length - 1])];
  const columns = ["planner", "options", ...at.map((i) => bytes(sizes[i]))];
  const key = (c, column) => (column === "planner" ? c.planner : column === "options" ? c.options : c.seconds[at[columns.indexOf(column) - 2]]);
  const sort = state.sort.replace("-", "") || columns.at(-1), direction = state.sort.startsWith("-") ? -1 : 1;
  const words = state.filter.toLowerCase().split(" ").filter(Boolean);
  const matches = group.candidates.map((c, number) => ({ c, number }))
    .filter(({ c }) => c.seconds && words.every((word) => nameOf(c).toLowerCase().includes(word)))
    .sort((a, b) => {
      const [x, y] = [key(a.c, sort), key(b.c, sort)];
      return direction * (x < y ? -1 : x > y ? 1 : a.number - b.number);
    });
  const colours = candidateColours(group), pins = pinned();
  const heads = ["pin", ...columns.map((column) => el("button", { type: "button", class: "plain",
    onclick: () => update({ sort: (sort === column && direction > 0 ? "-" : "") + column }) },
  column + (sort === column ? (direction > 0 ? " ▲" : " ▼") : "")))];
  const rows = matches.map(({ c, number }) => {
    const toggle = () => update({ pins: (pins.includes(number) ? pins.filter((n) => n !== number) : [...pins, number]).join(",") });
    const pin = el("input", { type: "checkbox", checked: pins.includes(number), "aria-label": "pin " + nameOf(c), onchange: toggle });
    const name = el("span", {}, colours.has(number) ? dot(colours.get(number)) : null, c.planner, c.rival ? el("small", {}, " (stands for the library)") : null);
    return { cells: [pin, name, c.options, ...at.map((i) => seconds(c.seconds[i]))] };
  });
  return table("candidates", heads, rows, at.map((_, i) => i + 3));
}

// List the candidates without a schedule, with the reasons; null if there are none.
export function refusedTable(group) {
  const rows = group.candidates.filter((c) => !c.seconds).map((c) => ({ cells: [c.planner, c.options, c.status, c.reason] }));
  return rows.length ? el("details", {}, el("summary", {}, `${plural(rows.length, "candidate")} without a schedule, and why`), table("refused", ["planner", "options", "status", "why"], rows, [])) : null;
}

// Compare the pinned candidates: their times, and these divided by the times of the first.
export function compareTable(group) {
  const pins = pinned().filter((number) => group.candidates[number]?.seconds);
  if (!pins.length) return null;
  const first = group.candidates[pins[0]];
  const heads = ["size", ...pins.map((number) => nameOf(group.candidates[number]))];
  const rows = group.sizes.map((size, at) => ({
    cells: [bytes(size), ...pins.map((number) => {
      const time = group.candidates[number].seconds[at];
      if (!time) return "-";
      return el("span", {}, seconds(time), number !== pins[0] && first.seconds[at] ? el("small", {}, ` ${ratio(time / first.seconds[at])}`) : null);
    })],
  }));
  return el("section", { "aria-label": "comparison" }, el("h3", {}, "Pinned, side by side"),
    table("compare", heads, rows, pins.map((_, i) => i + 1)),
    el("p", { class: "note" }, pins.length > 1 ? "The multiples are of the first one's time." : "Pin a second one to compare."),
    el("button", { type: "button", onclick: () => update({ pins: "" }) }, "unpin all"));
}

// List the 8 links that are in use longest, as bars; a click follows the link. `resourceName`: names a link or limit.
export function busiestTable(run, resourceName) {
  const order = [...run.load.keys()].filter((r) => run.load[r] > 0).sort((a, b) => run.load[b] - run.load[a] || a - b);
  const pick = picked();
  const rows = order.slice(0, 8).map((r) => {
    const follow = () => update({ pick: `link:${r}` });
    return el("tr", { class: pick.kind === "link" && pick.id === r ? "on" : null },
      el("td", {}, el("button", { type: "button", class: "plain", onclick: follow }, resourceName(r))),
      el("td", { class: "bar" }, el("i", { style: `width:${(100 * run.load[r]) / run.maxLoad}%` })),
      el("td", { class: "n" }, percent(run.load[r])));
  });
  const mean = order.length ? order.reduce((sum, r) => sum + run.load[r], 0) / order.length : 0;
  return [el("table", { class: "bars" }, el("tbody", {}, ...rows)),
    el("p", { class: "note" }, `${order.length.toLocaleString("en")} of ${plural(run.resources, "link")}${run.machine.limits.length ? " (with shared limits)" : ""} in use, on average ${percent(mean)} of the time.`)];
}

// ---- description of the pick ----

const chunkWord = (count) => (count === 1 ? "chunk" : "chunks");

// Describe the pick, as a list of elements.
export function describePick(page, run, plan, resourceName) {
  const pick = picked();
  if (!pick.kind || !run) return [el("p", { class: "note" }, "Click a rank, a link, a bar or a chunk to follow it. Nothing is followed: all transfers are shown.")];
  const close = el("button", { type: "button", onclick: () => update({ pick: "" }) }, "follow nothing");
  const { machine } = page;
  const lines = [];
  const flags = run.follow(pick); // 1 for each message of the pick
  const count = flags ? flags.reduce((sum, flag) => sum + flag, 0) : 0;
  if (pick.kind === "rank" && pick.id < machine.ranks) {
    const sent = run.senders.first[pick.id + 1] - run.senders.first[pick.id];
    lines.push(el("h3", {}, `rank ${pick.id}`), text(machine.places[pick.id]), text(`sends ${plural(sent, "transfer")}, receives ${(count - sent).toLocaleString("en")}`));
  } else if (pick.kind === "node") lines.push(...nodeLines(page, pick.id));
  else if (pick.kind === "link" && pick.id < run.resources) lines.push(...linkLines(page, run, plan, pick.id, count, resourceName));
  else if (pick.kind === "message" && pick.id < run.count) lines.push(...messageLines(run, plan, pick.id, resourceName));
  else if (pick.kind === "chunk" && pick.id < run.block.length)
    lines.push(el("h3", {}, `chunk ${pick.id}`), text(`of block ${run.block[pick.id]}, in ${plural(count, "transfer")}`), text("Ranks that have it are marked."));
  else if (pick.kind === "step") lines.push(el("h3", {}, `step ${pick.id}`), text(plural(count, "transfer")));
  else return [el("p", { class: "note" }, "This plan does not have what was followed.")];
  return [...lines, close];
}

const text = (words) => el("p", {}, words);
const chip = (label, act) => el("button", { type: "button", class: "chip", onclick: act }, label);

function nodeLines({ machine }, id) {
  const node = machine.levels.flatMap((level) => level.nodes).find(([shape, , , , , , , , members]) => members.includes(id) && shape !== "rank");
  if (!node) return [el("h3", {}, machine.nodes[id] ?? "nothing")];
  const [shape, , place, , , , , ranks] = node;
  const lines = [el("h3", {}, shape === "stack" ? place : machine.nodes[id]), text(ranks.length ? `${plural(ranks.length, "rank")}: ${ranks[0]} to ${ranks.at(-1)}` : "forwards data")];
  const buttons = ranks.slice(0, 64).map((rank) => chip(String(rank), () => update({ pick: `rank:${rank}` })));
  return buttons.length ? [...lines, el("p", { class: "chips" }, ...buttons)] : lines;
}

// `id`: a link, or a shared limit: limits are numbered after the links. `count`: the messages that cross it.
function linkLines({ machine }, run, plan, id, count, resourceName) {
  const limit = machine.limits[id - run.linkType.length]; // undefined for a link
  const [, bandwidth, links] = limit ?? [];
  const rate = limit ? bandwidth : machine.speeds[run.linkType[id]];
  const latency = limit ? "" : `, latency ${seconds(machine.latencies[run.linkType[id]])}`;
  return [
    el("h3", {}, resourceName(id)),
    rate == null ? null : text(`${speed(rate)}${latency}${limit ? `, shared by ${plural(links.length, "link")}` : ""}`),
    text(`in use ${percent(run.load[id])} of the time, by ${plural(count, "transfer")}; carries ${bytes(Math.round(run.carried[id] * plan.at))}`),
  ].filter(Boolean);
}

function messageLines(run, plan, id, resourceName) {
  const chunks = run.chunksOf(id);
  const time = (tick) => seconds((tick / TICKS) * plan.timed.total);
  // a recorded run also has the model's times of the same messages
  const { model } = run, predicted = (ticks) => seconds((ticks[run.predicted[id]] / TICKS) * model.total);
  const buttons = [...chunks.subarray(0, 12)].map((chunk) => chip(String(chunk), () => update({ pick: `chunk:${chunk}` })));
  return [
    el("h3", {}, `rank ${run.src[id]} to rank ${run.dst[id]}`),
    el("p", {}, chip(`step ${run.step[id]}`, () => update({ pick: `step:${run.step[id]}` })), chunks.length ? ` ${["copies", "reduces", "copies and reduces"][run.op[id]]} ${plural(chunks.length, "chunk")}, ` : " carries ", `${bytes(Math.round(run.shares[run.share[id]] * plan.at))}`),
    text(`from ${time(run.start[id])} to ${time(run.end[id])}${run.isCritical[id] ? ", on the critical path" : ""}`),
    model?.run ? text(`predicted: from ${predicted(model.run.start)} to ${predicted(model.run.end)}`) : null,
    ...run.resourcesOf(id).slice(0, 8).map((r) => el("p", {}, el("button", { type: "button", class: "plain", onclick: () => update({ pick: `link:${r}` }) }, resourceName(r)))),
    chunks.length ? el("p", { class: "chips" }, chunkWord(chunks.length) + " ", ...buttons, chunks.length > 12 ? ` and ${chunks.length - 12} more` : "") : null,
  ].filter(Boolean);
}

// List the transfers under way at `state.time`, at most 60 of them, also for screen readers.
export function momentList(run) {
  const tick = Math.min(state.time * TICKS, TICKS - 1);
  const messages = run.activeAt(tick, run.follow(picked()), 200);
  if (!messages.length) return [el("span", { class: "note" }, state.time ? "No transfer is under way." : "Play, or step on, to see what is under way.")];
  const buttons = messages.slice(0, 60).map((i) => el("button", { type: "button", class: "plain " + (run.op[i] ? "reduce" : ""), onclick: () => update({ pick: `message:${i}` }) },
    `${run.src[i]} → ${run.dst[i]}`));
  const more = messages.length > 60 ? el("span", { class: "note" }, messages.length === 200 ? "and many more" : `and ${messages.length - 60} more`) : null;
  return [...buttons, more].filter(Boolean);
}
