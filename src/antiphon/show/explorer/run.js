// The messages of one plan over time: which are under way when, and what every rank and link does.
// main.js makes a Run of each plan on show; the drawings and tables query it. Times are in ticks, TICKS for the total.
// A *use* is one message on one *resource*: a link, or a shared limit (numbered after the links).

import { bisect, groupBy, pointers, TICKS } from "./basics.js";

const MAX_TRAFFIC = 20000; // with more messages under way, trafficAt looks at the latest uses of each resource only

export class Run {
  // `columns` (timing.py): messages are in order of their start, uses in order of (resource, start).
  //   step, src, dst, start, lasts, op   per message; lasts: ticks; op: 0 copies, 1 reduces, 2 both
  //   shares[share[message]]             its bytes over nbytes
  //   chunks, chunk                      per message the number of its chunks; the chunks of all messages in turn
  //   block                              per chunk
  //   use_count                          per resource
  //   use_message, use_start, use_lasts  per use; without the last two, a use lasts as long as its message
  //   critical                           the messages on the critical path
  constructor(columns, machine) {
    Object.assign(this, columns);
    this.machine = machine;
    this.count = this.step.length;
    this.end = new Int32Array(this.count);
    this.longest = 0; // ticks
    for (let i = 0; i < this.count; i++) {
      this.end[i] = this.start[i] + this.lasts[i];
      if (this.lasts[i] > this.longest) this.longest = this.lasts[i];
    }
    this.chunkFirst = pointers(this.chunks);
    this.useFirst = pointers(this.use_count);
    this.resources = this.use_count.length;
    this.isCritical = new Uint8Array(this.count);
    for (const message of this.critical) this.isCritical[message] = 1;
    this.measureLinks();
    this.listSteps();
  }

  useBegin(use) { return this.use_start ? this.use_start[use] : this.start[this.use_message[use]]; }
  useEnd(use) { return this.use_start ? this.use_start[use] + this.use_lasts[use] : this.end[this.use_message[use]]; }

  // Compute for each resource the share of the time in which it is in use, and the bytes that cross it, over nbytes.
  measureLinks() {
    this.load = new Float32Array(this.resources);
    this.carried = new Float32Array(this.resources);
    for (let r = 0; r < this.resources; r++) {
      let busy = 0, until = 0; // ticks in use so far, and the end of the last use
      for (let use = this.useFirst[r]; use < this.useFirst[r + 1]; use++) {
        const begin = Math.max(this.useBegin(use), until), end = this.useEnd(use);
        if (end > begin) { busy += end - begin; until = end; }
        this.carried[r] += this.shares[this.share[this.use_message[use]]];
      }
      this.load[r] = busy / TICKS;
    }
    this.maxLoad = this.load.reduce((top, load) => Math.max(top, load), 0);
  }

  // List [tick, step] for the first start of each step that has messages, ascending.
  listSteps() {
    const first = new Map();
    for (let i = 0; i < this.count; i++) if (!first.has(this.step[i])) first.set(this.step[i], this.start[i]);
    this.stepStarts = [...first.entries()].map(([step, start]) => [start, step]).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  }

  stepAt(tick) {
    const at = bisect((i) => this.stepStarts[i][0], tick, 0, this.stepStarts.length) - 1;
    return at < 0 ? null : this.stepStarts[at][1];
  }

  get senders() { return (this._senders ??= groupBy(this.src, this.machine.ranks)); }
  get receivers() { return (this._receivers ??= groupBy(this.dst, this.machine.ranks)); }

  // Group the uses by message.
  get usesOfMessage() {
    if (!this._uses) {
      this._uses = groupBy(this.use_message, this.count);
      this._resourceOfUse = new Int32Array(this.use_message.length);
      for (let r = 0; r < this.resources; r++) this._resourceOfUse.fill(r, this.useFirst[r], this.useFirst[r + 1]);
    }
    return this._uses;
  }
  resourcesOf(message) {
    const { first, items } = this.usesOfMessage;
    return [...items.subarray(first[message], first[message + 1])].map((use) => this._resourceOfUse[use]);
  }

  chunksOf(message) { return this.chunk.subarray(this.chunkFirst[message], this.chunkFirst[message + 1]); }

  // Return the messages under way at a tick that are flagged (null: all), at most `limit`.
  activeAt(tick, flags, limit) {
    const low = bisect((i) => this.start[i], tick - this.longest - 1, 0, this.count);
    const high = bisect((i) => this.start[i], tick, 0, this.count);
    const messages = [];
    for (let i = low; i < high && messages.length < limit; i++)
      if (this.end[i] > tick && (!flags || flags[i])) messages.push(i);
    return messages;
  }

  // Return the flagged message (null: any) that uses a resource at a tick, or -1. Of the uses that began last only a few
  // are looked at, so that a page with many uses stays responsive.
  userAt(resource, tick, flags) {
    const low = this.useFirst[resource];
    let use = bisect((i) => this.useBegin(i), tick, low, this.useFirst[resource + 1]) - 1;
    for (let tries = 0; use >= low && tries < (flags ? 64 : 8); use--, tries++)
      if (this.useEnd(use) > tick && (!flags || flags[this.use_message[use]])) return this.use_message[use];
    return -1;
  }

  // Return per resource a message under way over it at a tick, plus one; 0: none. A message counts on all its resources
  // from start to end, unless MAX_TRAFFIC are under way: then only during the use.
  trafficAt(tick, flags) {
    this._traffic ??= new Int32Array(this.resources);
    const traffic = this._traffic.fill(0);
    const messages = this.activeAt(tick, flags, MAX_TRAFFIC);
    if (messages.length === MAX_TRAFFIC) {
      for (let r = 0; r < this.resources; r++) traffic[r] = this.userAt(r, tick, flags) + 1;
      return traffic;
    }
    const { first, items } = this.usesOfMessage;
    for (const message of messages)
      for (let k = first[message]; k < first[message + 1]; k++) traffic[this._resourceOfUse[items[k]]] = message + 1;
    return traffic;
  }

  // Return per resource a flagged message that crosses it at any time, plus one; 0: none does.
  trafficOf(flags) {
    this._traffic ??= new Int32Array(this.resources);
    const traffic = this._traffic.fill(0);
    for (let r = 0; r < this.resources; r++)
      for (let use = this.useFirst[r]; use < this.useFirst[r + 1] && !traffic[r]; use++)
        if (flags[this.use_message[use]]) traffic[r] = this.use_message[use] + 1;
    return traffic;
  }

  // Return flags of the messages that belong to the pick (state.js); null: nothing is picked, or a switch.
  follow({ kind, id }) {
    const key = kind + id;
    if (this._followed?.key === key) return this._followed.flags;
    let flags = null;
    const mark = (numbers) => { for (const i of numbers) flags[i] = 1; };
    if (kind && kind !== "node") flags = new Uint8Array(this.count);
    if (kind === "rank") {
      const messages = (index) => index.items.subarray(index.first[id] ?? 0, index.first[id + 1] ?? 0);
      mark(messages(this.senders));
      mark(messages(this.receivers));
    } else if (kind === "link") mark(this.use_message.subarray(this.useFirst[id] ?? 0, this.useFirst[id + 1] ?? 0));
    else if (kind === "message" && id < this.count) flags[id] = 1;
    else if (kind === "step") { for (let i = 0; i < this.count; i++) if (this.step[i] === id) flags[i] = 1; }
    else if (kind === "chunk")
      for (let i = 0, row = 0; i < this.count; i++)
        for (; row < this.chunkFirst[i + 1]; row++) if (this.chunk[row] === id) flags[i] = 1;
    this._followed = { key, flags };
    return flags;
  }

  // Return the ranks that have a chunk at a tick, `flags` being those of its messages: the ranks that have it from the
  // start, and those at which it has arrived.
  holders(flags, tick) {
    const ranks = new Set(), received = new Set();
    for (let i = 0; i < this.count; i++) {
      if (!flags[i]) continue;
      if (!received.has(this.src[i])) ranks.add(this.src[i]); // it sends before it receives: it had it from the start
      received.add(this.dst[i]);
      if (this.end[i] <= tick) ranks.add(this.dst[i]);
    }
    return ranks;
  }
}
