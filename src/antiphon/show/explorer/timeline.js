// The timeline: a row per rank or link, with a bar for each transfer; zoomed and panned; the critical path has a colour.
//
// `run` is a Run (run.js): messages by start, times in ticks (TICKS to the total time). `state` is what the page shows (state.js);
// "followed" is what the user picked. A share is a fraction of the total time; `use` is one message on one link.

import { bisect, clamp, seconds, TICKS } from "./basics.js";
import { picked, state, update } from "./state.js";
import { colour, FONT, Surface } from "./surface.js";

const ROW = 16, AXIS = 24, GAP = 4; // pixels: height of a row, of the axis below, and between the last row and the axis

export class Timeline {
  constructor(machine, resourceName) {
    this.machine = machine;
    this.resourceName = resourceName;
    this.run = null;
    this.total = 0;
    this.scrolled = 0; // pixels
    this.surface = new Surface("timeline", "The timeline", (...parts) => this.draw(...parts));
    this.cursor = document.createElement("div");
    this.cursor.className = "cursor";
    this.surface.box.append(this.cursor);
    this.listenToPointer();
  }

  // Show a run of `total` seconds (null: none). `before` labels the time before the first transfer, such as "launch".
  show(run, total, before) {
    this.run = run;
    this.before = before;
    this.total = total;
    this.scrolled = 0;
    this.rowsKey = "";
    this.launch = run?.count ? run.start[0] / TICKS : 0; // share of the time before the first transfer
    if (run) this.surface.box.style.height = `${clamp(this.rows.length * ROW + AXIS + GAP, 120, 420)}px`;
    this.surface.redraw();
  }

  // The rows: ranks that send or receive, by number, or links in use, the busiest first. Those followed come first.
  get rows() {
    const key = state.rows + state.pick;
    if (this.rowsKey === key) return this._rows;
    const { run } = this, pick = picked(), flags = run.follow(pick);
    let rows;
    if (state.rows === "links") {
      rows = [];
      for (let r = 0; r < run.resources; r++) if (run.use_count[r]) rows.push(r);
      rows.sort((a, b) => run.load[b] - run.load[a] || a - b);
    } else {
      const { senders, receivers } = run;
      rows = [];
      for (let r = 0; r < this.machine.ranks; r++)
        if (senders.first[r + 1] > senders.first[r] || receivers.first[r + 1] > receivers.first[r]) rows.push(r);
    }
    if (flags) { // first: the picked row; if no row is picked, those of the first 400 messages that are followed
      const first = new Set();
      if (state.rows === "ranks" && pick.kind === "rank") first.add(pick.id);
      if (state.rows === "links" && pick.kind === "link") first.add(pick.id);
      if (["message", "chunk"].includes(pick.kind) || !first.size)
        for (let i = 0, seen = 0; i < run.count && seen < 400; i++) {
          if (!flags[i]) continue;
          seen++;
          for (const row of state.rows === "links" ? run.resourcesOf(i) : [run.src[i], run.dst[i]]) first.add(row);
        }
      rows = [...rows.filter((row) => first.has(row)), ...rows.filter((row) => !first.has(row))];
    }
    this.rowsKey = key;
    const longest = state.rows === "links" ? rows.slice(0, 200).reduce((most, r) => Math.max(most, this.resourceName(r).length), 0) : 0;
    this.labels = longest * 6 + 18; // pixels of the longest label, at 6 per letter
    this._rows = rows;
    return rows;
  }

  // Where the bars begin, in pixels.
  get left() { return state.rows === "links" ? Math.min(this.labels, 210, this.surface.width * 0.34) : 62; }
  // From a share of the time to pixels, and back.
  x(share) { return this.left + ((share - state.from) / (state.to - state.from)) * (this.surface.width - this.left - 8); }
  share(px) { return state.from + ((px - this.left) / (this.surface.width - this.left - 8)) * (state.to - state.from); }

  draw(ctx, width, height) {
    if (!this.run) return;
    const { rows } = this, { left } = this;
    const inner = height - AXIS;
    this.scrolled = clamp(this.scrolled, 0, Math.max(rows.length * ROW - inner + GAP, 0));
    this.drawAxis(ctx, width, height);
    if (this.launch > 0.01 && state.from < this.launch) this.drawLaunch(ctx, inner);
    ctx.save();
    ctx.beginPath();
    ctx.rect(0, 0, width, inner);
    ctx.clip();
    const first = Math.floor(this.scrolled / ROW);
    ctx.font = `11px ${FONT}`;
    ctx.textBaseline = "middle";
    const flags = this.run.follow(picked());
    for (let i = first; i < rows.length && (i - first - 1) * ROW < inner; i++) {
      const y = i * ROW - this.scrolled;
      ctx.fillStyle = colour("ink");
      ctx.textAlign = "right";
      const name = state.rows === "links" ? this.resourceName(rows[i]) : `rank ${rows[i]}`;
      ctx.fillText(this.shorten(ctx, name, left - 14), left - 8, y + ROW / 2);
      ctx.fillStyle = colour("grid");
      ctx.fillRect(left, y + ROW - 1, width - left - 8, 1);
      if (state.rows === "links") this.drawLink(ctx, rows[i], y, flags);
      else this.drawRank(ctx, rows[i], y, flags);
    }
    ctx.restore();
    ctx.textBaseline = "alphabetic";
    if (rows.length * ROW > inner) this.drawScrollbar(ctx, width, inner, rows.length);
    this.moveCursor();
  }

  // The time before the first transfer, which the model charges for the call itself.
  drawLaunch(ctx, inner) {
    const x = Math.max(this.x(0), this.left), end = Math.min(this.x(this.launch), this.surface.width - 8);
    ctx.fillStyle = colour("frame");
    ctx.fillRect(x, 0, end - x, inner);
    if (end - x < 60) return;
    ctx.fillStyle = colour("soft");
    ctx.textAlign = "center";
    ctx.font = `11px ${FONT}`;
    ctx.fillText(this.before, (x + end) / 2, inner - 8);
  }

  // Return the end of a text that fits into so many pixels.
  shorten(ctx, text, room) {
    if (ctx.measureText(text).width <= room) return text;
    const fits = Math.max(Math.floor((text.length * room) / ctx.measureText(text).width) - 1, 3);
    return "…" + text.slice(-fits);
  }

  drawAxis(ctx, width, height) {
    const span = (state.to - state.from) * this.total, room = width - this.left - 8;
    const rough = span / Math.max(room / 90, 1), power = 10 ** Math.floor(Math.log10(rough || 1));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough) || rough;
    ctx.font = `11px ${FONT}`;
    ctx.textAlign = "center";
    for (let at = Math.ceil((state.from * this.total) / step) * step; at <= state.to * this.total * 1.000001 && step > 0; at += step) {
      const x = this.x(at / this.total);
      ctx.fillStyle = colour("grid");
      ctx.fillRect(x, 0, 1, height - AXIS);
      ctx.fillStyle = colour("soft");
      if (x < width - 16) ctx.fillText(seconds(Number(at.toPrecision(6))), x, height - 8);
    }
  }

  drawScrollbar(ctx, width, inner, count) {
    const total = count * ROW;
    ctx.fillStyle = colour("rim");
    ctx.globalAlpha = 0.5;
    ctx.fillRect(width - 5, (this.scrolled / total) * inner, 4, Math.max((inner / total) * inner, 12));
    ctx.globalAlpha = 1;
  }

  // A rank: what it sends in the upper half of its row, what it receives in the lower half, paler.
  drawRank(ctx, rank, y, flags) {
    const { senders, receivers, start, end } = this.run;
    this.drawBars(ctx, senders, rank, y + 2, ROW / 2 - 2, 1, flags, (i) => start[i], (i) => end[i], (i) => i);
    this.drawBars(ctx, receivers, rank, y + ROW / 2, ROW / 2 - 3, 0.5, flags, (i) => start[i], (i) => end[i], (i) => i);
  }

  drawLink(ctx, resource, y, flags) {
    const { run } = this;
    const all = { first: run.useFirst, items: null };
    this.drawBars(ctx, all, resource, y + 3, ROW - 6, 1, flags, (u) => run.useBegin(u), (u) => run.useEnd(u), (u) => run.use_message[u]);
  }

  // Draw the items of `group` (messages of a rank, uses of a link) that are in the window. Where several begin in one pixel
  // they are one bar; then the next that begins beyond it is found by bisection, so that a million of them take no longer than
  // a screen of pixels.
  // `groups`: as of groupBy (items null: 0, 1, ...); startOf, endOf, messageOf: of an item, in ticks.
  drawBars(ctx, groups, group, y, height, alpha, flags, startOf, endOf, messageOf) {
    const { run } = this;
    const item = groups.items ? (k) => groups.items[k] : (k) => k;
    const stop = groups.first[group + 1];
    const low = state.from * TICKS, high = state.to * TICKS;
    const right = this.surface.width - 8, perTick = (right - this.left) / (high - low);
    const pixel = 1 / perTick;
    let k = bisect((i) => startOf(item(i)), low - run.longest - 1, groups.first[group], stop);
    const bars = new Map();
    while (k < stop) {
      const it = item(k), begin = startOf(it);
      if (begin > high) break;
      let end = endOf(it);
      const message = messageOf(it);
      if (end < low) { k++; continue; }
      let next = k + 1;
      if (end - begin < pixel) { // too short to see: take all that begin in this pixel together
        next = Math.max(bisect((i) => startOf(item(i)), begin + pixel, k + 1, stop), k + 1);
        end = begin + pixel;
      }
      const dim = flags && !flags[message];
      const name = dim ? "idle" : run.isCritical[message] ? "critical" : run.op[message] ? "reduce" : "copy";
      if (!bars.has(name)) bars.set(name, []);
      bars.get(name).push([begin, end]);
      k = next;
    }
    for (const name of ["idle", "copy", "reduce", "critical"]) {
      if (!bars.has(name)) continue;
      ctx.fillStyle = colour(name);
      ctx.globalAlpha = name === "idle" ? alpha * 0.8 : alpha;
      ctx.beginPath();
      for (const [begin, end] of bars.get(name)) {
        const x = Math.max(this.left + (begin - low) * perTick, this.left);
        const w = Math.min(this.left + (end - low) * perTick, right) - x;
        ctx.rect(x, y, Math.max(w - (w > 4 ? 1 : 0), 0.7), height);
      }
      ctx.fill();
    }
    ctx.globalAlpha = 1;
  }

  moveCursor() {
    const x = this.x(state.time);
    const seen = x >= this.left - 1 && x <= this.surface.width - 6;
    this.cursor.style.display = seen ? "" : "none";
    this.cursor.style.transform = `translateX(${x}px)`;
    this.cursor.style.height = this.surface.height - AXIS + "px";
  }

  zoom(factor, share = clamp(state.time, state.from, state.to)) {
    const span = clamp((state.to - state.from) / factor, 1e-6, 1);
    const from = clamp(share - ((share - state.from) * span) / (state.to - state.from), 0, 1 - span);
    update({ from, to: from + span });
  }

  pan(by) {
    const span = state.to - state.from, from = clamp(state.from + by * span, 0, 1 - span);
    update({ from, to: from + span });
  }

  listenToPointer() {
    const { canvas } = this.surface;
    let drag = null;
    const place = (event) => {
      const seen = canvas.getBoundingClientRect();
      return [event.clientX - seen.left, event.clientY - seen.top];
    };
    canvas.addEventListener("pointerdown", (event) => {
      const [x, y] = place(event);
      drag = { x, y, moved: false };
      if (event.pointerType === "mouse") canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!drag || !this.run || event.pointerType !== "mouse") return;
      const [x, y] = place(event);
      if (!drag.moved && Math.hypot(x - drag.x, y - drag.y) < 4) return;
      this.scrolled -= y - drag.y;
      this.pan(-(x - drag.x) / (this.surface.width - this.left - 8));
      drag = { x, y, moved: true };
      this.surface.redraw();
    });
    canvas.addEventListener("pointerup", (event) => {
      if (drag && !drag.moved && this.run) this.pick(...place(event));
      drag = null;
    });
    canvas.addEventListener("pointercancel", () => { drag = null; });
    canvas.addEventListener("wheel", (event) => {
      if (!this.run) return;
      if (event.ctrlKey || event.metaKey) this.zoom(Math.exp(-event.deltaY / 240), this.share(place(event)[0]));
      else {
        const before = this.scrolled, end = Math.max(this.rows.length * ROW - this.surface.height + AXIS + GAP, 0);
        if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan((event.deltaX || event.deltaY) / 600);
        else this.scrolled = clamp(this.scrolled + event.deltaY, 0, end);
        if (this.scrolled === before && !event.shiftKey) return; // at its end the page scrolls
        this.surface.redraw();
      }
      event.preventDefault();
    }, { passive: false });
  }

  // Follow what is at a point, and show that moment: a transfer on its bar, or the rank or link at the row's name.
  pick(px, py) {
    const row = this.rows[Math.floor((py + this.scrolled) / ROW)];
    if (py > this.surface.height - AXIS || row === undefined) return update({ time: clamp(this.share(px), 0, 1) });
    const kind = state.rows === "links" ? "link" : "rank";
    if (px < this.left) return update({ pick: `${kind}:${row}` });
    const tick = this.share(px) * TICKS;
    const message = this.messageAt(row, tick, (py + this.scrolled) % ROW < ROW / 2);
    update({ time: clamp(this.share(px), 0, 1), pick: message < 0 ? state.pick : `message:${message}` });
  }

  // Return the message at a tick in a row, or -1; `upper`: in its upper half. Only the 64 that began last are looked at.
  messageAt(row, tick, upper) {
    const { run } = this;
    if (state.rows === "links") return run.userAt(row, tick, null);
    const { first, items } = upper ? run.senders : run.receivers;
    let k = bisect((i) => run.start[items[i]], tick, first[row], first[row + 1]) - 1;
    for (let tries = 0; k >= first[row] && tries < 64; k--, tries++) if (run.end[items[k]] > tick) return items[k];
    return -1;
  }
}
