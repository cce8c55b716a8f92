// What the page shows, in one object. The fragment of the page's address repeats it, so that a link shows the same.

const DEFAULTS = {
  group: 0, // number of the collective
  plan: -1, // number of the range of sizes; -1: the one that the page shows first
  level: "", // of the machine's drawing; "": the finest that is readable
  colour: "load", // of links: load or kind
  times: "recorded", // those of a trace where there is one, or of the model
  time: 0, // share of the total time
  rows: "ranks", // of the timeline: ranks or links
  from: 0, to: 1, // the part of the time that the timeline shows
  pick: "", // what is followed: "rank:3", "node:9", "link:12", "message:70", "chunk:5", "step:2"
  pins: "", // numbers of pinned candidates, with commas
  relative: 0, // 1: the chart shows times over the bound
  sort: "", // column of the table of candidates, with "-" before it if descending
  filter: "",
  cut: 0, // 1: the bound's cut is drawn
  theme: "", // light, dark or "": as the system
};

export const state = { ...DEFAULTS };
const listeners = [];
let pending = null;

const CHOICES = { colour: ["load", "kind"], times: ["recorded", "model"], rows: ["ranks", "links"], theme: ["", "light", "dark"] };
const clip = (value) => Math.min(Math.max(value, 0), 1);

// Take the state from the page's address. Anyone may have written it, so invalid values become the default.
export function readFragment() {
  const query = new URLSearchParams(location.hash.slice(1));
  for (const [key, fallback] of Object.entries(DEFAULTS)) {
    const text = query.get(key);
    const value = typeof fallback === "number" ? Number(text ?? fallback) : text ?? fallback;
    const isValid = typeof fallback === "number" ? Number.isFinite(value) : !CHOICES[key] || CHOICES[key].includes(value);
    state[key] = isValid ? value : fallback;
  }
  for (const key of ["time", "from", "to"]) state[key] = clip(state[key]);
  if (state.to - state.from < 1e-7) Object.assign(state, { from: 0, to: 1 });
  for (const key of ["group", "plan"]) state[key] = Math.trunc(state[key]);
}

// Repeat the state in the page's address: the values that differ from the default.
function writeFragment() {
  const query = new URLSearchParams();
  for (const [key, fallback] of Object.entries(DEFAULTS))
    if (state[key] !== fallback) query.set(key, typeof state[key] === "number" ? Number(state[key].toFixed(9)) : state[key]);
  const text = query.toString().replaceAll("%3A", ":").replaceAll("%2C", ",");
  if (text === location.hash.slice(1)) return;
  try {
    history.replaceState(null, "", text ? "#" + text : location.pathname + location.search);
  } catch { /* a frame in a notebook has no address of its own */ }
}

// Call `listener(changed)` after every change; `changed` is the set of the keys that changed.
export const listen = (listener) => listeners.push(listener);

// Change values of the state, given by key, and call the listeners.
export function update(changes) {
  const changed = new Set(Object.keys(changes).filter((key) => state[key] !== changes[key]));
  if (!changed.size) return;
  Object.assign(state, changes);
  for (const listener of listeners) listener(changed);
  clearTimeout(pending);
  pending = setTimeout(writeFragment, 150); // playing changes the time sixty times a second
}

// What is followed, as { kind: "rank", id: 3 }; kind "" for nothing.
export const picked = () => {
  const [, kind, id] = /^(rank|node|link|message|chunk|step):(\d{1,9})$/.exec(state.pick) || [];
  return { kind: kind || "", id: Number(id || 0) };
};
export const pinned = () => state.pins.split(",").filter((text) => /^\d{1,6}$/.test(text)).map(Number);
