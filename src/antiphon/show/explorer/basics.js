// Shared by all files of the page: numbers as text, elements, and columns unpacked from the page's data.

export const TICKS = 2 ** 30; // of the total time of a plan, as in packing.py

// Return seconds as text, in four digits. 0.99999: values that round up to a unit are shown in it.
export function seconds(value) {
  if (!value) return "0 s";
  const scales = [[1, "s"], [1e-3, "ms"], [1e-6, "us"], [1e-9, "ns"]];
  const [scale, unit] = scales.find(([s]) => Math.abs(value) >= s * 0.99999) || scales[3];
  return Number((value / scale).toPrecision(4)) + " " + unit;
}

// Return bytes as text: exact multiples of a unit in their shortest form (64KiB, 64KB), others in three digits.
export function bytes(value) {
  const units = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 1024], ["GB", 1e9], ["MB", 1e6], ["KB", 1000], ["B", 1]];
  const exact = units.filter(([, s]) => value >= s && value % s === 0).map(([u, s]) => value / s + u);
  const short = exact.sort((a, b) => a.length - b.length)[0];
  if (short && short.length <= 9) return short;
  const [unit, scale] = [["GB", 1e9], ["MB", 1e6], ["KB", 1e3], ["B", 1]].find(([, s]) => value >= s) || ["B", 1];
  return Number((value / scale).toPrecision(3)) + unit;
}

// Return bytes per second, a factor, and a share as text.
export const speed = (value) => {
  const [unit, scale] = [["TB/s", 1e12], ["GB/s", 1e9], ["MB/s", 1e6], ["B/s", 1]].find(([, s]) => value >= s) || ["B/s", 1];
  return Number((value / scale).toPrecision(4)) + " " + unit;
};
export const ratio = (value) => (value == null ? "-" : Number(value.toPrecision(3)) + "x");
// One decimal below 10 %; 9.95 % and more round up to that.
export const percent = (value) => (value * 100).toFixed(value < 0.0995 && value > 0 ? 1 : 0) + " %";
export const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
export const plural = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

// Create an element: `on...` keys are listeners, others attributes; text and elements are children.
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value != null) node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

const ARRAYS = { u1: Uint8Array, u2: Uint16Array, i4: Int32Array, f4: Float32Array };

// Return the columns of a pack (packing.py) by name, as typed arrays.
export async function unpack(pack) {
  const text = atob(pack.data);
  const raw = new Uint8Array(text.length);
  for (let i = 0; i < raw.length; i++) raw[i] = text.charCodeAt(i);
  const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  const columns = {};
  let at = 0;
  for (const [name, type, count, delta] of pack.fields) { // delta: stored as differences of neighbours
    const column = new ARRAYS[type](buffer, at, count);
    at += Math.ceil(column.byteLength / 4) * 4; // each column begins at a multiple of 4
    if (delta) for (let i = 1; i < count; i++) column[i] += column[i - 1];
    columns[name] = column;
  }
  return columns;
}

// Group numbers 0..n-1 by key, in order: the members of group g are items[first[g]] .. items[first[g + 1] - 1].
export function groupBy(keys, groups) {
  const first = new Int32Array(groups + 1);
  for (let i = 0; i < keys.length; i++) first[keys[i] + 1]++;
  for (let g = 0; g < groups; g++) first[g + 1] += first[g];
  const next = first.slice(), items = new Int32Array(keys.length);
  for (let i = 0; i < keys.length; i++) items[next[keys[i]]++] = i;
  return { first, items };
}

// Return the sums of all values before each: where each group begins.
export function pointers(counts) {
  const first = new Int32Array(counts.length + 1);
  for (let i = 0; i < counts.length; i++) first[i + 1] = first[i] + counts[i];
  return first;
}

// Return the first position in [low, high) whose value is above `value`; `at` returns ascending values.
export function bisect(at, value, low, high) {
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (at(middle) <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}
