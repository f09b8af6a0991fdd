// Trains five steps from a bundle, with onnxruntime-node.
//
//   npm install onnxruntime-node
//   remat rewrite step.onnx --strategy full --bundle B --for node
//   node train.mjs B
//
// Beside writing next values over their inputs, run returns a copy of every output, which
// the garbage collector takes away: node --expose-gc, and gc() after a step, keep these few.
import { open, readFile } from "node:fs/promises";
import path from "node:path";
import * as ort from "onnxruntime-node";

function fail(why) {
  console.error(why);
  process.exit(1);
}

const folder = process.argv[2] ?? fail("usage: node train.mjs BUNDLE");
const manifest = JSON.parse(await readFile(path.join(folder, "manifest.json"), "utf8"));
if (!manifest.inputs.some((i) => i.next)) fail("the bundle's graph updates nothing: derive it with remat grad --optimizer sgd, or another");
const arrays = { float32: Float32Array, float64: Float64Array, int64: BigInt64Array, int32: Int32Array, int8: Int8Array, uint8: Uint8Array, bool: Uint8Array };

// batch stands for data of yours.
function batch(array, below) {
  for (let i = 0; i < array.length; i++) {
    const n = array instanceof BigInt64Array ? BigInt((i * 7 + 3) % Math.max(below, 1)) : array instanceof Int32Array ? (i * 7 + 3) % Math.max(below, 1) : (((i * 37) % 19) - 9) / 64;
    array[i] = n;
  }
}

async function first(input) {
  const array = new arrays[input.type](input.shape.reduce((a, b) => a * b, 1));
  if (input.fed === "batch") batch(array, input.below ?? 0);
  else if (input.initial) {
    const file = await open(path.join(folder, input.initial.file));
    const { bytesRead } = await file.read(new Uint8Array(array.buffer), 0, input.initial.bytes, input.initial.offset);
    await file.close();
    if (bytesRead !== input.initial.bytes) throw new Error(`${input.initial.file}: too short`);
  } else if (input.fed === "parameter") throw new Error(`${input.name}: the bundle has no first value of it`);
  return new ort.Tensor(input.type, array, input.shape);
}

const session = await ort.InferenceSession.create(path.join(folder, manifest.graph), {
  enableMemPattern: manifest.session.memory_pattern, // off: a pattern holds more from the second step on
  enableCpuMemArena: manifest.session.arena,
  graphOptimizationLevel: manifest.session.graph_optimization_level,
  intraOpNumThreads: manifest.session.intra_op_num_threads,
});
const feeds = {};
for (const input of manifest.inputs) feeds[input.name] = await first(input);

const bound = manifest.next_values === "bound";
const fetches = Object.fromEntries(manifest.outputs.map((o) => [o.name, null]));
for (const input of manifest.inputs) if (bound && input.next) fetches[input.next] = feeds[input.name]; // over its input

const scalars = { lr: 1e-3, step: 1n, loss_scale: manifest.inputs.find((i) => i.fed === "loss_scale")?.value };
for (let run = 1; run <= 5; run++) {
  for (const input of manifest.inputs) if (input.fed in scalars) feeds[input.name].data[0] = scalars[input.fed];
  const out = await session.run(feeds, fetches);
  if (!bound) for (const input of manifest.inputs) if (input.next) feeds[input.name] = out[input.next];
  console.log(run, String(Number(out[manifest.loss].data[0].toPrecision(9))));
  if (out.found_inf?.data[0]) scalars.loss_scale /= 2; // a gradient overflowed, and nothing was updated
  else scalars.step++;
}
