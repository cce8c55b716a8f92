// Perfetto's trace processor as its page in the browser runs it (engine_bundle.js and trace_processor.wasm, whose folder is the
// argument), for who speaks its protocol by stdin and stdout. The bundle is written for a worker of a browser: what it needs of
// one stands here.
"use strict";
const fs = require("fs"), path = require("path"), vm = require("vm");
const folder = process.argv[2];
const read = (url) => fs.readFileSync(path.join(folder, path.basename(String(url))));
const say = (...words) => process.stderr.write(words.join(" ").slice(0, 2000) + "\n");
const fail = (error) => { say(error && error.message || error); process.exit(1); };
process.on("uncaughtException", fail);
process.on("unhandledRejection", fail);

class Request { // reads a file at once, as a worker may
  open(method, url) { this.url = url; }
  send() {
    const data = read(this.url);
    this.status = 200;
    this.response = data.buffer.slice(data.byteOffset, data.byteOffset + data.length);
  }
}

const scope = {
  TextDecoder, TextEncoder, setTimeout, clearTimeout, performance, URL, Response, XMLHttpRequest: Request,
  crypto: globalThis.crypto, console: { log: say, warn: say, error: say },
  location: { href: `file://${folder}/` }, importScripts() {}, WorkerGlobalScope: function () {},
  fetch: async (url) => new Response(read(url), { headers: { "content-type": "application/wasm" } }),
};
scope.self = scope.globalThis = scope;
vm.createContext(scope);
vm.runInContext(read("engine_bundle.js").toString("utf8"), scope);

const own = vm.runInContext("(data) => new Uint8Array(data)", scope);
const port = { postMessage(data) { process.stdout.write(Buffer.from(data)); } };
setImmediate(() => {
  scope.onmessage({ data: port });
  process.stdin.on("data", (data) => port.onmessage({ data: own(data) }));
});
