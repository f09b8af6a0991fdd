// Serves the page with bundles, and prints what pages measured, a line of JSON each.
//
//   node serve.mjs --ort node_modules/onnxruntime-web/dist [--port 8000] FOLDER…
//
// Files are sent in ranges, so that a page takes each parameter by itself.
import { createReadStream } from "node:fs";
import { stat } from "node:fs/promises";
import { createServer } from "node:http";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const { values, positionals } = parseArgs({ options: { ort: { type: "string" }, port: { type: "string", default: "8000" } }, allowPositionals: true });
if (!values.ort || positionals.length === 0) {
  console.error("usage: node serve.mjs --ort onnxruntime-web/dist [--port N] BUNDLE…");
  process.exit(2);
}
const roots = { ort: values.ort };
for (const folder of positionals) roots[`bundles/${path.basename(path.resolve(folder))}`] = folder;
const types = { ".html": "text/html", ".mjs": "text/javascript", ".js": "text/javascript", ".wasm": "application/wasm", ".json": "application/json" };
const page = path.dirname(fileURLToPath(import.meta.url));

// locate is the file that a request names, null for one outside of the folders.
function locate(name) {
  const root = Object.keys(roots).find((r) => name.startsWith(`${r}/`));
  const base = path.resolve(root ? roots[root] : page);
  const file = path.join(base, root ? name.slice(root.length) : name || "index.html");
  return file.startsWith(base + path.sep) ? file : null;
}

async function send(request, response) {
  const name = decodeURIComponent(new URL(request.url, "http://localhost").pathname).slice(1);
  if (request.method === "POST" && name === "results") {
    let text = "";
    for await (const part of request) if ((text += part).length > 1 << 20) throw new Error("too long");
    console.log(JSON.stringify(JSON.parse(text)));
    return response.writeHead(204).end();
  }
  if (name === "bundles.json") return response.end(JSON.stringify(positionals.map((f) => path.basename(path.resolve(f)))));
  const file = locate(name);
  const info = file && (await stat(file).catch(() => null));
  if (!info?.isFile()) return response.writeHead(404).end();
  const headers = { "Content-Type": types[path.extname(file)] ?? "application/octet-stream", "Accept-Ranges": "bytes", "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp" };
  const range = /^bytes=(\d+)-(\d+)$/.exec(request.headers.range ?? "");
  if (!range) {
    response.writeHead(200, { ...headers, "Content-Length": info.size });
    return createReadStream(file).pipe(response);
  }
  const [start, end] = [Number(range[1]), Math.min(Number(range[2]), info.size - 1)];
  if (start > end) return response.writeHead(416).end();
  response.writeHead(206, { ...headers, "Content-Length": end - start + 1, "Content-Range": `bytes ${start}-${end}/${info.size}` });
  createReadStream(file, { start, end }).pipe(response);
}

const server = createServer((request, response) => send(request, response).catch(() => response.headersSent || response.writeHead(400).end()));
server.listen(Number(values.port), "127.0.0.1", () => console.error(`http://localhost:${server.address().port}/`));
