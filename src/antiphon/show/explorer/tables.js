// The tables: ranges of sizes, candidates (sort, filter, pin), pinned ones compared, and what is followed in words.

import { bytes, el, percent, plural, ratio, seconds, speed, TICKS } from "./basics.js";
import { candidateColours, nameOf } from "./chart.js";
import { picked, pinned, state, update } from "./state.js";

const dot = (name) => el("i", { class: "dot", style: `background:var(--${name})`, "aria-hidden": "true" });

// Build a table. A cell is text or an element; figures are aligned to the right; on narrow pages rows are cards.
export function table(name, heads, rows, figures) {
  const head = el("tr", {}, ...heads.map((text, i) => el("th", { scope: "col", class: figures.includes(i) ? "n" : null }, text)));
  const body = rows.map(({ cells, ...attributes }) =>
    el("tr", attributes, ...cells.map((cell, i) => {
      const label = typeof heads[i] === "string" ? heads[i] : heads[i].textContent;
      return el("td", { class: figures.includes(i) ? "n" : null, "data-head": label || null }, cell);
    })));
  return el("div", { class: "scroll" }, el("table", { class: "cards " + name }, el("thead", {}, head), el("tbody", {}, ...body)));
}

// A bar of the terms of a time.
function termsBar(terms) {
  const shown = Object.entries(terms).filter(([, value]) => value > 0);
  const total = shown.reduce((sum, [, value]) => sum + value, 0) || 1;
  const label = shown.map(([term, value]) => `${term} ${percent(value / total)}`).join(", ");
  return el("span", { class: "parts", role: "img", "aria-label": label, title: label },
    ...shown.map(([, value], i) => el("i", { style: `flex:${value / total};background:var(--c${i % 8})` })));
}

// Which plan to use for which sizes; a click on a row shows its plan.
export function rangesTable(group, current) {
  const colours = candidateColours(group);
  const hasLibrary = group.ranges.some((range) => range.speedup != null);
  const measured = group.plans.some((plan) => plan.measured.length);
  const heads = ["sizes", "use", "best of ours", "at", "time", "made of", "gap", ...(hasLibrary ? ["speedup"] : []), ...(measured ? ["measured / predicted"] : [])];
  const rows = group.ranges.map((range, i) => {
    const candidate = group.candidates[range.candidate], plan = group.plans[i];
    const show = () => update({ plan: i, time: 0 });
    const uses = range.uses ? el("small", {}, ` uses ${range.uses}`) : null;
    const at = plan?.measured.find((row) => row.nbytes === range.at);
    const cells = [
      el("button", { type: "button", class: "plain", "aria-pressed": String(i === current), onclick: show }, range.span[1] && range.span[1] !== "-" ? range.span.join(" – ") : range.span[0]),
      range.served_by ? el("strong", {}, `leave it to ${range.served_by}`) : "Antiphon",
      el("span", {}, dot(colours.get(range.candidate)), nameOf(candidate), uses),
      bytes(range.at), seconds(range.seconds), plan ? termsBar(plan.terms) : "", ratio(range.gap),
      ...(hasLibrary ? [el("span", {}, ratio(range.speedup), range.over ? el("small", {}, ` over ${range.over}`) : null)] : []),
      ...(measured ? [at ? ratio(at.seconds / predictedAt(group, range, at.nbytes)) : "-"] : []),
    ];
    return { cells, class: i === current ? "on" : null, onclick: show };
  });
  return table("ranges", heads, rows, [3, 4, 6, 7, 8]);
}

function predictedAt(group, range, nbytes) {
  const at = group.sizes.indexOf(nbytes);
  return at >= 0 ? group.candidates[range.candidate].seconds[at] : range.seconds;
}

// All candidates that have times. A head sorts, the field above filters, the pin takes one into the comparison.
export function candidatesTable(group) {
  const { sizes } = group;
  const at = [...new Set([0, sizes.length >> 1, sizes.length - 1])];
  const columns = ["planner", "options", ...at.map((i) => bytes(sizes[i]))];
  const key = (c, column) => (column === "planner" ? c.planner : column === "options" ? c.options : c.seconds[at[columns.indexOf(column) - 2]]);
  const sort = state.sort.replace("-", "") || columns.at(-1), down = state.sort.startsWith("-") ? -1 : 1;
  const words = state.filter.toLowerCase().split(" ").filter(Boolean);
  const shown = group.candidates.map((c, number) => ({ c, number }))
    .filter(({ c }) => c.seconds && words.every((word) => nameOf(c).toLowerCase().includes(word)))
    .sort((a, b) => {
      const [x, y] = [key(a.c, sort), key(b.c, sort)];
      return down * (x < y ? -1 : x > y ? 1 : a.number - b.number);
    });
  const colours = candidateColours(group), pins = pinned();
  const heads = ["pin", ...columns.map((column) => el("button", { type: "button", class: "plain",
    onclick: () => update({ sort: (sort === column && down > 0 ? "-" : "") + column }) },
  column + (sort === column ? (down > 0 ? " ▲" : " ▼") : "")))];
  const rows = shown.map(({ c, number }) => {
    const toggle = () => update({ pins: (pins.includes(number) ? pins.filter((n) => n !== number) : [...pins, number]).join(",") });
    const pin = el("input", { type: "checkbox", checked: pins.includes(number), "aria-label": "pin " + nameOf(c), onchange: toggle });
    const name = el("span", {}, colours.has(number) ? dot(colours.get(number)) : null, c.planner, c.rival ? el("small", {}, " (stands for the library)") : null);
    return { cells: [pin, name, c.options, ...at.map((i) => seconds(c.seconds[i]))] };
  });
  return table("candidates", heads, rows, at.map((_, i) => i + 3));
}

export function refusedTable(group) {
  const rows = group.candidates.filter((c) => !c.seconds).map((c) => ({ cells: [c.planner, c.options, c.status, c.reason] }));
  return rows.length ? el("details", {}, el("summary", {}, `${plural(rows.length, "candidate")} without a schedule, and why`), table("refused", ["planner", "options", "status", "why"], rows, [])) : null;
}

// The pinned candidates side by side: times, and times over those of the first.
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

// The links that are in use longest, with bars; a click follows one.
export function busiestTable(run, resourceName) {
  const order = [...run.load.keys()].filter((r) => run.load[r] > 0).sort((a, b) => run.load[b] - run.load[a] || a - b);
  const pick = picked();
  const rows = order.slice(0, 8).map((r) => {
    const follow = () => update({ pick: `link:${r}` });
    return el("tr", { class: pick.kind === "link" && pick.id === r ? "on" : null },
      el("td", {}, el("button", { type: "button", class: "plain", onclick: follow }, resourceName(r))),
      el("td", { class: "bar" }, el("i", { style: `width:${(100 * run.load[r]) / run.mostLoad}%` })),
      el("td", { class: "n" }, percent(run.load[r])));
  });
  const mean = order.length ? order.reduce((sum, r) => sum + run.load[r], 0) / order.length : 0;
  return [el("table", { class: "bars" }, el("tbody", {}, ...rows)),
    el("p", { class: "note" }, `${order.length.toLocaleString("en")} of ${plural(run.resources, "link")}${run.machine.limits.length ? " (with shared limits)" : ""} in use, on average ${percent(mean)} of the time.`)];
}

// ---- what is followed ----

const chunkWord = (count) => (count === 1 ? "chunk" : "chunks");

// Return the lines on what is followed, as elements.
export function describePick(page, run, plan, resourceName) {
  const pick = picked();
  if (!pick.kind || !run) return [el("p", { class: "note" }, "Click a rank, a link, a bar or a chunk to follow it. Nothing is followed: all transfers are shown.")];
  const close = el("button", { type: "button", onclick: () => update({ pick: "" }) }, "follow nothing");
  const { machine } = page;
  const lines = [];
  const flags = run.follow(pick);
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
  const node = machine.levels.flatMap((level) => level.nodes).find((each) => each[8].includes(id) && each[0] !== "rank");
  if (!node) return [el("h3", {}, machine.nodes[id] ?? "nothing")];
  const ranks = node[7];
  const lines = [el("h3", {}, node[0] === "stack" ? node[2] : machine.nodes[id]), text(ranks.length ? `${plural(ranks.length, "rank")}: ${ranks[0]} to ${ranks.at(-1)}` : "forwards data")];
  const buttons = ranks.slice(0, 64).map((rank) => chip(String(rank), () => update({ pick: `rank:${rank}` })));
  return buttons.length ? [...lines, el("p", { class: "chips" }, ...buttons)] : lines;
}

function linkLines({ machine }, run, plan, id, count, resourceName) {
  const limit = machine.limits[id - run.linkType.length];
  const rate = limit ? limit[1] : machine.speeds[run.linkType[id]];
  const latency = limit ? "" : `, latency ${seconds(machine.latencies[run.linkType[id]])}`;
  return [
    el("h3", {}, resourceName(id)),
    rate == null ? null : text(`${speed(rate)}${latency}${limit ? `, shared by ${plural(limit[2].length, "link")}` : ""}`),
    text(`in use ${percent(run.load[id])} of the time, by ${plural(count, "transfer")}; carries ${bytes(Math.round(run.carried[id] * plan.at))}`),
  ].filter(Boolean);
}

function messageLines(run, plan, id, resourceName) {
  const chunks = run.chunksOf(id);
  const time = (tick) => seconds((tick / TICKS) * plan.timed.total);
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

// The transfers of this moment as a list, for readers and screen readers.
export function momentList(run) {
  const tick = Math.min(state.time * TICKS, TICKS - 1);
  const messages = run.activeAt(tick, run.follow(picked()), 200);
  if (!messages.length) return [el("span", { class: "note" }, state.time ? "No transfer is under way." : "Play, or step on, to see what is under way.")];
  const shown = messages.slice(0, 60).map((i) => el("button", { type: "button", class: "plain " + (run.op[i] ? "reduce" : ""), onclick: () => update({ pick: `message:${i}` }) },
    `${run.src[i]} → ${run.dst[i]}`));
  const more = messages.length > 60 ? el("span", { class: "note" }, messages.length === 200 ? "and many more" : `and ${messages.length - 60} more`) : null;
  return [...shown, more].filter(Boolean);
}
