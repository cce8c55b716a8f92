// The transfers of one plan over time: which are under way when, and what every rank and link does.

import { bisect, groupBy, pointers, TICKS } from "./basics.js";

const MAX_TRAFFIC = 20000; // transfers of a moment that are looked at one by one

export class Run {
  // `columns`: as of timing.py, unpacked; messages are in the order of their start.
  constructor(columns, machine) {
    Object.assign(this, columns);
    this.machine = machine;
    this.count = this.step.length;
    this.end = new Int32Array(this.count);
    this.longest = 0;
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

  // The share of the time in which each link or limit is in use, and the bytes' share over it.
  measureLinks() {
    this.load = new Float32Array(this.resources);
    this.carried = new Float32Array(this.resources);
    for (let r = 0; r < this.resources; r++) {
      let busy = 0, until = 0;
      for (let use = this.useFirst[r]; use < this.useFirst[r + 1]; use++) {
        const begin = Math.max(this.useBegin(use), until), end = this.useEnd(use);
        if (end > begin) { busy += end - begin; until = end; }
        this.carried[r] += this.shares[this.share[this.use_message[use]]];
      }
      this.load[r] = busy / TICKS;
    }
    this.mostLoad = this.load.reduce((top, load) => Math.max(top, load), 0);
  }

  // When each step begins, ascending, without steps in which nothing begins.
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

  // The links and limits of each message, as a grouping of uses.
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

  // The messages under way at a tick that are flagged (null: all), at most `limit`.
  activeAt(tick, flags, limit) {
    const low = bisect((i) => this.start[i], tick - this.longest - 1, 0, this.count);
    const high = bisect((i) => this.start[i], tick, 0, this.count);
    const messages = [];
    for (let i = low; i < high && messages.length < limit; i++)
      if (this.end[i] > tick && (!flags || flags[i])) messages.push(i);
    return messages;
  }

  // Whether a link or limit is in use at a tick by a flagged message (null: any): -1 or that message.
  userAt(resource, tick, flags) {
    const low = this.useFirst[resource];
    let use = bisect((i) => this.useBegin(i), tick, low, this.useFirst[resource + 1]) - 1;
    for (let tries = 0; use >= low && tries < (flags ? 64 : 8); use--, tries++)
      if (this.useEnd(use) > tick && (!flags || flags[this.use_message[use]])) return this.use_message[use];
    return -1;
  }

  // The message in transit over each link or limit at a tick, plus one; 0: none. If too many are under way to look at
  // one by one, a link counts only while it serves its turn.
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

  // One flagged message of each link or limit, plus one; 0: none crosses it.
  trafficOf(flags) {
    this._traffic ??= new Int32Array(this.resources);
    const traffic = this._traffic.fill(0);
    for (let r = 0; r < this.resources; r++)
      for (let use = this.useFirst[r]; use < this.useFirst[r + 1] && !traffic[r]; use++)
        if (flags[this.use_message[use]]) traffic[r] = this.use_message[use] + 1;
    return traffic;
  }

  // Flags of the messages that belong to what is followed; null: nothing is followed.
  follow({ kind, id }) {
    const key = kind + id;
    if (this._followed?.key === key) return this._followed.flags;
    let flags = null;
    const mark = (numbers) => { for (const i of numbers) flags[i] = 1; };
    if (kind && kind !== "node") flags = new Uint8Array(this.count);
    if (kind === "rank") {
      const ranks = (index) => index.items.subarray(index.first[id] ?? 0, index.first[id + 1] ?? 0);
      mark(ranks(this.senders));
      mark(ranks(this.receivers));
    } else if (kind === "link") mark(this.use_message.subarray(this.useFirst[id] ?? 0, this.useFirst[id + 1] ?? 0));
    else if (kind === "message" && id < this.count) flags[id] = 1;
    else if (kind === "step") { for (let i = 0; i < this.count; i++) if (this.step[i] === id) flags[i] = 1; }
    else if (kind === "chunk")
      for (let i = 0, row = 0; i < this.count; i++)
        for (; row < this.chunkFirst[i + 1]; row++) if (this.chunk[row] === id) flags[i] = 1;
    this._followed = { key, flags };
    return flags;
  }

  // The ranks that have a chunk at a tick: those that send it then or before, and those at which it has arrived.
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
