// The machine: boxes, switches and links; what is in use at a moment, loads as colour and width, and the limiting cut.
//
// `machine`: the object of machine.py; its levels draw it ever coarser (a node may stand for a box), and the first that is
// readable is chosen unless the user picks one. `run`: the transfers of a plan over time. `picked()`: the rank, link,
// message, chunk or step that the user follows. An edge of a drawing has the numbers of its links by direction (`ways`).
// Lengths are pixels; `view` maps a drawing to the screen. A *frame* is the rectangle around a box, with its name:
// [x, y, width, height, label, x and y of the label].

import { clamp, TICKS } from "./basics.js";
import { picked, state, update } from "./state.js";
import { colour, FONT, loadColour, Surface } from "./surface.js";

const READABLE = 150; // nodes of a drawing that is chosen by itself
const ARROWS = 260; // lines in use up to which each has an arrow

// Return the point of a curve at t, from 0 to 1: a line, or a quadratic Bezier curve with the control point `middle`.
function pointAt({ a, middle, b, straight }, t) {
  const s = 1 - t;
  return [0, 1].map((i) => (straight ? a[i] * s + b[i] * t : s * s * a[i] + 2 * s * t * middle[i] + t * t * b[i]));
}

export class MachineView {
  constructor(machine, links) {
    this.machine = machine;
    this.links = links;
    this.run = null;
    this.cut = null;
    this.surface = new Surface("machine", "The machine", (...parts) => this.draw(...parts));
    this.view = null; // {scale, x, y}; null: all of it
    this.layers = new Map(); // "below" and "above" what moves -> the picture drawn last, see `layer`
    this.levels = machine.levels.map((level) => this.prepare(level));
    this.listenToPointer();
  }

  get level() {
    const { levels } = this;
    if (state.level !== "" && levels[Number(state.level)]) return levels[Number(state.level)];
    return levels.find((level) => level.nodes.length <= READABLE) || levels[levels.length - 1];
  }

  // Name the parts of a level, and find the node of every node of the machine.
  prepare(level) {
    const nodes = level.nodes.map(([shape, label, place, x, y, halfWidth, halfHeight, ranks, members]) =>
      ({ shape, label, place, x, y, halfWidth, halfHeight, ranks, members }));
    const edges = level.edges.map(([a, b, kind, speed, width, bend, forward, backward], number) =>
      ({ number, a, b, kind, speed, width, bend, ways: [forward, backward] }));
    const nodeOf = new Int32Array(this.machine.nodes.length);
    nodes.forEach((node, number) => { for (const member of node.members) nodeOf[member] = number; });
    return { nodes, edges, nodeOf, frames: level.frames, size: level.size };
  }

  // Whether links show transfers, of this moment or of what is followed, and not their loads.
  get showsTraffic() {
    return Boolean(this.run) && (state.time > 0 || ["rank", "message", "chunk", "step"].includes(picked().kind));
  }

  // Show another run (null: none); `cut`: what limits every plan, or null.
  show(run, cut) {
    this.run = run;
    this.cut = cut;
    this.edgeLoads = null;
    this.forget();
  }

  // Draw everything anew: what is drawn once and kept is out of date.
  forget() {
    this.layers.clear();
    this.surface.redraw();
  }

  // Return the view that shows all of the drawing.
  fit(width, height) {
    const [w, h] = this.level.size;
    const scale = Math.min(width / w, height / h, 1.6);
    return { scale, x: (width - w * scale) / 2, y: (height - h * scale) / 2 };
  }

  zoom(factor, px = this.surface.width / 2, py = this.surface.height / 2) {
    const view = this.view || this.fit(this.surface.width, this.surface.height);
    const scale = clamp(view.scale * factor, 0.01, 8), ratio = scale / view.scale;
    this.view = { scale, x: px - (px - view.x) * ratio, y: py - (py - view.y) * ratio }; // (px, py) stays in place
    this.forget();
  }

  // The share of the time that the busiest link of an edge is in use, by direction.
  loadsOf(edge) {
    this.edgeLoads ??= new Map();
    const key = this.level.size.join() + edge.number;
    if (!this.edgeLoads.has(key))
      this.edgeLoads.set(key, edge.ways.map((links) => links.reduce((top, link) => Math.max(top, this.run?.load[link] || 0), 0)));
    return this.edgeLoads.get(key);
  }

  // ---- drawing ----

  // A flat machine takes less height than a square one.
  fitBox() {
    const [w, h] = this.level.size;
    const height = Math.round(clamp((this.surface.width * h) / w + 12, 260, this.surface.width < 600 ? 420 : 560));
    if (Math.abs(this.surface.height - height) > 2) this.surface.box.style.height = height + "px";
  }

  draw(ctx, width, height, scale) {
    this.fitBox();
    const view = this.view || this.fit(width, height);
    const at = (node) => [node.x * view.scale + view.x, node.y * view.scale + view.y];
    const scene = { view, at, width, height, level: this.level };
    this.layer(ctx, "below", scene, scale, (c) => { this.drawFrames(c, scene); this.drawEdges(c, scene); });
    if (this.cut && state.cut) this.drawCut(ctx, scene);
    if (this.showsTraffic) this.drawTraffic(ctx, scene);
    this.layer(ctx, "above", scene, scale, (c) => { this.drawNodes(c, scene); this.drawLabels(c, scene); });
    this.drawPick(ctx, scene);
  }

  // Draw what does not change while time passes once, and copy it from then on.
  layer(ctx, name, scene, scale, paint) {
    if (ctx.vector) return paint(ctx);
    const key = [scene.width, scene.height, scale, scene.view.scale, scene.view.x, scene.view.y, state.level, state.colour, this.showsTraffic].join();
    let cached = this.layers.get(name);
    if (cached?.key !== key) {
      const canvas = cached?.canvas || document.createElement("canvas");
      [canvas.width, canvas.height] = [Math.round(scene.width * scale), Math.round(scene.height * scale)];
      const context = canvas.getContext("2d");
      context.setTransform(scale, 0, 0, scale, 0, 0);
      context.clearRect(0, 0, scene.width, scene.height);
      paint(context);
      cached = { key, canvas };
      this.layers.set(name, cached);
    }
    ctx.drawImage(cached.canvas, 0, 0, scene.width, scene.height);
  }

  drawFrames(ctx, { view, level }) {
    ctx.lineWidth = 1;
    for (const [x, y, w, h] of level.frames) {
      ctx.beginPath();
      ctx.roundRect(x * view.scale + view.x, y * view.scale + view.y, w * view.scale, h * view.scale, 8);
      ctx.fillStyle = colour("frame");
      ctx.fill();
      ctx.strokeStyle = colour("line");
      ctx.stroke();
    }
  }

  // The names of boxes, where they are wide enough, on a background that hides the lines below.
  drawLabels(ctx, { view, level }) {
    ctx.font = `11px ${FONT}`;
    ctx.textAlign = "left";
    for (const [, , w, , label, left, base] of level.frames) {
      const textWidth = ctx.measureText(label).width, x = left * view.scale + view.x, y = base * view.scale + view.y;
      if (w * view.scale < Math.max(textWidth + 16, 90)) continue;
      ctx.fillStyle = colour("frame");
      ctx.fillRect(x - 2, y - 11, textWidth + 4, 14);
      ctx.fillStyle = colour("soft");
      ctx.fillText(label, x, y);
    }
  }

  // The control point and ends of an edge on the screen; `side` moves the line by pixels to its left.
  curve(scene, edge, side = 0) {
    const { view, level, at } = scene;
    const a = at(level.nodes[edge.a]), b = at(level.nodes[edge.b]);
    const middle = edge.bend ? [edge.bend[0] * view.scale + view.x, edge.bend[1] * view.scale + view.y]
      : [(a[0] + b[0]) / 2, (a[1] + b[1]) / 2];
    const length = Math.hypot(b[0] - a[0], b[1] - a[1]) || 1;
    const dx = ((b[1] - a[1]) / length) * side, dy = (-(b[0] - a[0]) / length) * side;
    const moved = ([x, y]) => [x + dx, y + dy];
    return { a: moved(a), middle: moved(middle), b: moved(b), length, straight: !edge.bend };
  }

  // Add a curve to the path.
  trace(ctx, { a, middle, b, straight }) {
    ctx.moveTo(a[0], a[1]);
    if (straight) ctx.lineTo(b[0], b[1]);
    else ctx.quadraticCurveTo(middle[0], middle[1], b[0], b[1]);
  }

  widthOf(scene, edge) {
    return Math.max(edge.width * clamp(scene.view.scale, 0.35, 1.3), 0.6);
  }

  // Draw the links by their kind, or by their load over the whole time, and pale while a moment is shown. Lines of equal
  // colour and width are one path, which is faster.
  drawEdges(ctx, scene) {
    const paths = new Map(); // colour and width -> edges
    const byLoad = state.colour === "load" && this.run, moment = this.showsTraffic;
    for (const edge of scene.level.edges) {
      const load = byLoad ? Math.max(...this.loadsOf(edge)) / (this.run.maxLoad || 1) : 0;
      const shade = Math.round(load * 12) / 12;
      const paint = byLoad ? loadColour(shade) : this.machine.kinds[edge.kind][1];
      const width = byLoad ? 0.8 + shade * 3.4 * clamp(scene.view.scale, 0.5, 1.2) : this.widthOf(scene, edge);
      const key = `${shade} ${paint} ${width.toFixed(1)}`;
      if (!paths.has(key)) paths.set(key, { shade, paint, width, edges: [] });
      paths.get(key).edges.push(edge);
    }
    for (const { paint, width, edges } of [...paths.values()].sort((a, b) => a.shade - b.shade)) {
      ctx.beginPath();
      for (const edge of edges) this.trace(ctx, this.curve(scene, edge));
      ctx.strokeStyle = byLoad && moment ? colour("line") : paint;
      ctx.lineWidth = width;
      ctx.globalAlpha = byLoad ? 0.9 : moment ? 0.3 : 0.75;
      ctx.stroke();
    }
    ctx.globalAlpha = 1;
  }

  // The links in use at this moment, with arrows; only those of what is followed, if something is.
  drawTraffic(ctx, scene) {
    const { run } = this;
    const tick = Math.min(state.time * TICKS, TICKS - 1);
    const flags = run.follow(picked());
    const traffic = state.time > 0 ? run.trafficAt(tick, flags) : run.trafficOf(flags);
    const inUse = { copy: [], reduce: [] }; // [edge, direction, share of its links in use]
    for (const edge of scene.level.edges)
      edge.ways.forEach((links, back) => {
        let busy = 0, message = -1;
        for (const link of links) {
          if (traffic[link]) { busy++; message = traffic[link] - 1; } // 0: idle
        }
        if (busy) inUse[run.op[message] ? "reduce" : "copy"].push([edge, back, busy / links.length]);
      });
    const arrows = inUse.copy.length + inUse.reduce.length <= ARROWS;
    for (const [name, lines] of Object.entries(inUse)) {
      if (!lines.length) continue;
      ctx.strokeStyle = ctx.fillStyle = colour(name);
      ctx.lineWidth = clamp(3 * scene.view.scale, arrows ? 2 : 1.2, 3.5);
      // A line of which few links are in use is fainter.
      for (const [low, high] of [[0, 0.34], [0.34, 0.67], [0.67, 1.01]]) {
        const similar = lines.filter(([, , share]) => share >= low && share < high);
        if (!similar.length) continue;
        ctx.globalAlpha = 0.4 + 0.6 * high / 1.01;
        ctx.beginPath();
        for (const [edge, back] of similar) this.trace(ctx, this.curve(scene, edge, back ? -2.2 : 2.2));
        ctx.stroke();
      }
      ctx.globalAlpha = 1;
      if (!arrows) continue;
      ctx.beginPath();
      for (const [edge, back] of lines) this.arrow(ctx, this.curve(scene, edge, back ? -2.2 : 2.2), back, lines.length > 60);
      ctx.fill();
    }
  }

  // Add a triangle to a line, beyond its middle, so that those of both directions stand apart.
  arrow(ctx, curve, back, crowded) {
    const { length } = curve, size = clamp(length / 6, 4, crowded ? 5.5 : 9);
    const [x, y] = pointAt(curve, back ? 0.38 : 0.62), [p, q] = [pointAt(curve, 0.45), pointAt(curve, 0.55)];
    const turn = (back ? -1 : 1) / (Math.hypot(q[0] - p[0], q[1] - p[1]) || 1);
    const dx = (q[0] - p[0]) * turn, dy = (q[1] - p[1]) * turn;
    ctx.moveTo(x + dx * size, y + dy * size);
    ctx.lineTo(x - dx * size * 0.7 - dy * size * 0.75, y - dy * size * 0.7 + dx * size * 0.75);
    ctx.lineTo(x - dx * size * 0.7 + dy * size * 0.75, y - dy * size * 0.7 - dx * size * 0.75);
    ctx.closePath();
  }

  // The links that the bound says limit every plan, and the nodes on the side that they leave.
  drawCut(ctx, scene) {
    const crossing = new Set(this.cut.links);
    ctx.strokeStyle = colour("cut");
    ctx.lineWidth = clamp(5 * scene.view.scale, 2, 6);
    ctx.setLineDash([7, 4]);
    ctx.beginPath();
    for (const edge of scene.level.edges)
      if (edge.ways.some((links) => links.some((link) => crossing.has(link)))) this.trace(ctx, this.curve(scene, edge));
    ctx.stroke();
    ctx.setLineDash([]);
    if (this.cut.kind !== "cut") return;
    const side = new Set(this.cut.parts[0].map((node) => scene.level.nodeOf[node]));
    ctx.globalAlpha = 0.22;
    ctx.fillStyle = colour("cut");
    for (const number of side) {
      const node = scene.level.nodes[number], [x, y] = scene.at(node);
      ctx.beginPath();
      ctx.arc(x, y, (node.halfWidth + 9) * scene.view.scale + 3, 0, 2 * Math.PI);
      ctx.fill();
    }
    ctx.globalAlpha = 1;
  }

  drawNodes(ctx, scene) {
    const { view, at, level } = scene;
    ctx.lineWidth = 1;
    ctx.textAlign = "center";
    ctx.textBaseline = "middle";
    for (const node of level.nodes) {
      const [x, y] = at(node);
      if (x < -60 || y < -60 || x > scene.width + 60 || y > scene.height + 60) continue;
      this.shape(ctx, node, x, y, view.scale);
      ctx.fillStyle = colour(node.shape === "switch" ? "switch" : "node");
      ctx.fill();
      ctx.strokeStyle = colour("rim");
      ctx.stroke();
      const size = Math.min(13 * view.scale, 13);
      if (size < 6 || !node.label) continue;
      ctx.fillStyle = colour("ink");
      ctx.font = `${size.toFixed(1)}px ${FONT}`;
      if (node.shape === "stack") {
        ctx.fillText(node.label, x, y - 6 * view.scale);
        ctx.fillText(`${node.ranks[0]}-${node.ranks.at(-1)}`, x, y + 9 * view.scale);
      } else ctx.fillText(node.label, x, y);
    }
    ctx.textBaseline = "alphabetic";
  }

  // Make the path a node's outline.
  shape(ctx, node, x, y, scale) {
    const [w, h] = [Math.max(node.halfWidth * scale, 2.2), Math.max(node.halfHeight * scale, 2.2)];
    ctx.beginPath();
    if (node.shape === "rank") ctx.arc(x, y, w, 0, 2 * Math.PI);
    else ctx.roundRect(x - w, y - h, 2 * w, 2 * h, Math.min(4, h));
  }

  // What is followed: a rim around the node or a halo along the link; the ranks that have the chunk.
  drawPick(ctx, scene) {
    const pick = picked(), { level, at, view } = scene;
    const rim = (number, name) => {
      const node = level.nodes[number], [x, y] = at(node);
      this.shape(ctx, { ...node, halfWidth: node.halfWidth + 3, halfHeight: node.halfHeight + 3 }, x, y, view.scale);
      ctx.strokeStyle = colour(name);
      ctx.lineWidth = 3;
      ctx.stroke();
    };
    if (pick.kind === "rank" || pick.kind === "node") {
      if (pick.id < level.nodeOf.length) rim(level.nodeOf[pick.id], "accent");
    } else if (pick.kind === "link") {
      ctx.strokeStyle = colour("accent");
      ctx.globalAlpha = 0.35;
      ctx.lineWidth = 10;
      ctx.beginPath();
      const limit = this.machine.limits[pick.id - this.links.src.length];
      const links = new Set(limit ? limit[2] : [pick.id]);
      for (const edge of level.edges)
        if (edge.ways.some((way) => way.some((link) => links.has(link)))) this.trace(ctx, this.curve(scene, edge));
      ctx.stroke();
      ctx.globalAlpha = 1;
    } else if (pick.kind === "message" && this.run && pick.id < this.run.count) {
      rim(level.nodeOf[this.run.src[pick.id]], "copy");
      rim(level.nodeOf[this.run.dst[pick.id]], "reduce");
    } else if (pick.kind === "chunk" && this.run) {
      const holders = this.run.holders(this.run.follow(pick), Math.min(state.time, 1) * TICKS);
      for (const number of new Set([...holders].map((rank) => level.nodeOf[rank]))) rim(number, "accent");
    }
  }

  // ---- pointer ----

  listenToPointer() {
    const { canvas } = this.surface;
    let drag = null;
    canvas.addEventListener("pointerdown", (event) => {
      drag = { x: event.clientX, y: event.clientY, moved: false };
      if (event.pointerType === "mouse") canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!drag || event.pointerType !== "mouse") return;
      const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
      if (!drag.moved && Math.hypot(dx, dy) < 4) return;
      const view = this.view || this.fit(this.surface.width, this.surface.height);
      this.view = { ...view, x: view.x + dx, y: view.y + dy };
      drag = { x: event.clientX, y: event.clientY, moved: true };
      this.forget();
    });
    canvas.addEventListener("pointerup", (event) => {
      if (drag && !drag.moved) this.pick(event);
      drag = null;
    });
    canvas.addEventListener("pointercancel", () => { drag = null; });
    canvas.addEventListener("dblclick", (event) => {
      const box = canvas.getBoundingClientRect();
      this.zoom(event.shiftKey ? 0.6 : 1.7, event.clientX - box.left, event.clientY - box.top);
    });
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return; // else the page scrolls
      event.preventDefault();
      const box = canvas.getBoundingClientRect();
      this.zoom(Math.exp(-event.deltaY / 240), event.clientX - box.left, event.clientY - box.top);
    }, { passive: false });
  }

  pick(event) {
    const box = this.surface.canvas.getBoundingClientRect();
    update({ pick: this.hit(event.clientX - box.left, event.clientY - box.top) });
  }

  // Return what is at a point: "rank:3", "node:9" or "link:12"; "" for nothing.
  hit(px, py) {
    const view = this.view || this.fit(this.surface.width, this.surface.height);
    const scene = { view, level: this.level, at: (node) => [node.x * view.scale + view.x, node.y * view.scale + view.y] };
    for (const node of scene.level.nodes) {
      const [x, y] = scene.at(node);
      if (Math.abs(x - px) > Math.max(node.halfWidth * view.scale, 5) || Math.abs(y - py) > Math.max(node.halfHeight * view.scale, 5)) continue;
      return node.shape === "rank" ? `rank:${node.ranks[0]}` : `node:${node.members[0]}`;
    }
    let best = "", nearest = 8; // pixels within which a line is hit
    for (const edge of scene.level.edges) {
      const curve = this.curve(scene, edge);
      for (let i = 1; i < 20; i++) {
        const [x, y] = pointAt(curve, i / 20), distance = Math.hypot(x - px, y - py);
        if (distance >= nearest) continue;
        nearest = distance;
        const links = edge.ways.flat();
        const busiest = links.reduce((top, link) => ((this.run?.load[link] || 0) > (this.run?.load[top] || 0) ? link : top), links[0]);
        if (busiest != null) best = `link:${busiest}`;
      }
    }
    return best;
  }
}
