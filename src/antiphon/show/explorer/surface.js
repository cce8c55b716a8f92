// Canvases for the page's pictures: sharp at any zoom, in the theme's colours, saved as PNG or SVG. Each picture (chart.js,
// machine.js, timeline.js) has a `Surface` and passes it a function that draws.

import { el } from "./basics.js";

export const FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif";
let colours = {}; // cache: name -> colour of the current theme
const surfaces = [];

// Return a colour of the theme: a custom property of the style sheet.
export function colour(name) {
  if (!(name in colours)) colours[name] = getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  return colours[name];
}

// Redraw all pictures in the colours of a new theme.
export function forgetColours() {
  colours = {};
  for (const surface of surfaces) surface.redraw();
}

const channels = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));

// Return the colour of a load from 0 to 1, between the theme's load0 .. load3.
export function loadColour(share) {
  const position = Math.min(Math.max(share, 0), 1) * 3; // on the scale load0 .. load3
  const low = Math.min(Math.floor(position), 2);
  const key = "mix" + Math.round(position * 8); // 25 shades, so that few are computed
  if (!colours[key]) {
    const [a, b] = [channels(colour("load" + low)), channels(colour("load" + (low + 1)))];
    colours[key] = `rgb(${a.map((v, i) => Math.round(v + (b[i] - v) * (position - low))).join(" ")})`;
  }
  return colours[key];
}

// A canvas in a box. `draw(ctx, width, height, scale)` draws the picture, in CSS pixels; `scale`: pixels per CSS pixel.
export class Surface {
  constructor(name, label, draw) {
    this.name = name;
    this.draw = draw;
    this.canvas = el("canvas", { role: "img", tabindex: "0", "aria-label": label });
    this.box = el("div", { class: "surface " + name }, this.canvas);
    this.isScheduled = false; // whether a redraw is due in the next frame
    new ResizeObserver(() => this.redraw()).observe(this.box);
    surfaces.push(this);
  }

  get width() { return this.box.clientWidth; }
  get height() { return this.box.clientHeight; }

  // Draw again in the next frame.
  redraw() {
    if (this.isScheduled) return;
    this.isScheduled = true;
    requestAnimationFrame(() => this.drawNow());
  }

  drawNow() {
    this.isScheduled = false;
    const { width, height } = this;
    if (!width || !height) return;
    const scale = Math.min(window.devicePixelRatio || 1, 2); // pixels of the canvas per CSS pixel
    const [w, h] = [Math.round(width * scale), Math.round(height * scale)];
    if (this.canvas.width !== w || this.canvas.height !== h) [this.canvas.width, this.canvas.height] = [w, h];
    const ctx = this.canvas.getContext("2d");
    ctx.setTransform(scale, 0, 0, scale, 0, 0);
    ctx.clearRect(0, 0, width, height);
    this.draw(ctx, width, height, scale);
    if (!this.wasDrawn) performance.mark(this.name + " drawn"); // for tests of the page's speed
    this.wasDrawn = true;
  }

  // Save the picture as a file, "svg" or "png".
  save(type) {
    this.drawNow();
    if (type === "svg") {
      const context = new SvgContext(this.width, this.height);
      this.draw(context, this.width, this.height, 1);
      download(new Blob([context.text()], { type: "image/svg+xml" }), `${this.name}.svg`);
      return;
    }
    const paper = el("canvas");
    [paper.width, paper.height] = [this.canvas.width, this.canvas.height];
    const ctx = paper.getContext("2d");
    ctx.fillStyle = colour("paper");
    ctx.fillRect(0, 0, paper.width, paper.height);
    ctx.drawImage(this.canvas, 0, 0);
    paper.toBlob((blob) => download(blob, `${this.name}.png`));
  }
}

// Let the browser save a file.
function download(blob, name) {
  const address = URL.createObjectURL(blob);
  el("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 5000);
}

// A stand-in for a canvas's 2D context that writes SVG: the methods and properties that the pictures use. `arc` draws whole
// circles only, and corners stay square.
export class SvgContext {
  constructor(width, height) {
    this.vector = true; // pictures draw no cached layers into it
    this.size = [width, height];
    this.elements = []; // SVG text, in order
    this.clips = 0;
    this.stack = []; // states that `save` keeps for `restore`; `open`: number of <g> not yet closed
    Object.assign(this, { fillStyle: "#000", strokeStyle: "#000", lineWidth: 1, globalAlpha: 1, font: "12px", dash: [],
      textAlign: "left", textBaseline: "alphabetic", lineCap: "butt", lineJoin: "miter", path: "", open: 0 });
  }

  text() {
    const [w, h] = this.size;
    const groups = "</g>".repeat(this.open);
    return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${w} ${h}" width="${w}" height="${h}" font-family="${FONT}">` +
      `<rect width="${w}" height="${h}" fill="${colour("paper")}"/>${this.elements.join("\n")}${groups}</svg>\n`;
  }

  // Round to a hundredth of a pixel.
  n(value) { return Number(value.toFixed(2)); }
  save() {
    const { fillStyle, strokeStyle, lineWidth, globalAlpha, font, dash, textAlign, textBaseline, lineCap, open } = this;
    this.stack.push({ fillStyle, strokeStyle, lineWidth, globalAlpha, font, dash, textAlign, textBaseline, lineCap, open });
  }
  restore() {
    const before = this.stack.pop();
    while (this.open > before.open) { this.elements.push("</g>"); this.open--; }
    Object.assign(this, before);
  }
  setLineDash(dash) { this.dash = dash; }
  beginPath() { this.path = ""; }
  moveTo(x, y) { this.path += `M${this.n(x)} ${this.n(y)}`; }
  lineTo(x, y) { this.path += `L${this.n(x)} ${this.n(y)}`; }
  quadraticCurveTo(a, b, x, y) { this.path += `Q${this.n(a)} ${this.n(b)} ${this.n(x)} ${this.n(y)}`; }
  closePath() { this.path += "z"; }
  rect(x, y, w, h) { this.path += `M${this.n(x)} ${this.n(y)}h${this.n(w)}v${this.n(h)}h${this.n(-w)}z`; }
  roundRect(x, y, w, h) { this.rect(x, y, w, h); }
  arc(x, y, r) { this.path += `M${this.n(x - r)} ${this.n(y)}a${this.n(r)} ${this.n(r)} 0 1 0 ${this.n(2 * r)} 0a${this.n(r)} ${this.n(r)} 0 1 0 ${this.n(-2 * r)} 0z`; }
  fill() { this.elements.push(`<path d="${this.path}" fill="${this.fillStyle}" fill-opacity="${this.n(this.globalAlpha)}"/>`); }
  stroke() {
    const dash = this.dash.length ? ` stroke-dasharray="${this.dash.join(" ")}"` : "";
    this.elements.push(`<path d="${this.path}" fill="none" stroke="${this.strokeStyle}" stroke-width="${this.n(this.lineWidth)}"` +
      ` stroke-opacity="${this.n(this.globalAlpha)}"${dash}/>`);
  }
  fillRect(x, y, w, h) { this.beginPath(); this.rect(x, y, w, h); this.fill(); }
  clip() {
    const name = "clip" + this.clips++;
    this.elements.push(`<clipPath id="${name}"><path d="${this.path}"/></clipPath><g clip-path="url(#${name})">`);
    this.open++;
  }
  measureText(text) { return { width: text.length * 0.55 * parseFloat(/[\d.]+px/.exec(this.font)?.[0] || "12") }; }
  fillText(text, x, y) {
    const anchor = { left: "start", center: "middle", right: "end" }[this.textAlign];
    const size = parseFloat(/[\d.]+px/.exec(this.font)?.[0] || "12");
    const shift = this.textBaseline === "middle" ? size * 0.35 : 0;
    const weight = /bold|[67]00/.test(this.font) ? ' font-weight="600"' : "";
    const safe = text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
    this.elements.push(`<text x="${this.n(x)}" y="${this.n(y + shift)}" font-size="${size}" text-anchor="${anchor}"${weight} fill="${this.fillStyle}">${safe}</text>`);
  }
}
