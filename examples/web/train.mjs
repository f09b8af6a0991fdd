// Trains from a bundle with onnxruntime-web, whose outputs are values of their own.
//
//   remat rewrite step.onnx --strategy full --bundle B --for web
//   node serve.mjs --ort node_modules/onnxruntime-web/dist B
//
// ort is the package, url where the bundle lies, told what is called with what happened, and
// provider what computes: wasm, or webgpu, which leaves to wasm what it has no kernel for.

const arrays = { float32: Float32Array, float64: Float64Array, int64: BigInt64Array, int32: Int32Array, int8: Int8Array, uint8: Uint8Array, bool: Uint8Array };

async function get(url, range) {
  const response = await fetch(url, range && { headers: { Range: `bytes=${range.offset}-${range.offset + range.bytes - 1}` } });
  if (!response.ok) throw new Error(`${url}: ${response.status}`);
  const data = await response.arrayBuffer();
  return range && response.status === 200 ? data.slice(range.offset, range.offset + range.bytes) : data; // a server without ranges
}

// batch stands for data of yours.
function batch(input) {
  const array = new arrays[input.type](input.shape.reduce((a, b) => a * b, 1));
  for (let i = 0; i < array.length; i++) {
    const n = (i * 7 + 3) % Math.max(input.below ?? 0, 1);
    array[i] = input.type === "int64" ? BigInt(n) : input.type === "float32" ? (((i * 37) % 19) - 9) / 64 : n;
  }
  return array;
}

async function first(url, input) {
  if (input.fed === "batch") return batch(input);
  if (input.initial) {
    const data = await get(new URL(input.initial.file, url), input.initial);
    if (data.byteLength !== input.initial.bytes) throw new Error(`${input.initial.file}: too short`);
    return new arrays[input.type](data);
  }
  if (input.fed === "parameter") throw new Error(`${input.name}: the bundle has no first value of it`);
  return new arrays[input.type](input.shape.reduce((a, b) => a * b, 1));
}

// updater opens a graph that updates one parameter after another. State is kept here, outside
// of the heap.
async function updater(ort, url, { graph, parameters, inputs }, options) {
  const session = await ort.InferenceSession.create(new Uint8Array(await get(new URL(graph, url))), options);
  const zeros = (input) => new ort.Tensor(input.type, new arrays[input.type](input.shape.reduce((a, b) => a * b, 1)), input.shape);
  const state = Object.fromEntries(parameters.map((name) => [name, {}]));
  return async (manifest, feeds, gradients, scalars) => {
    for (const { name, gradient } of manifest.inputs.filter((i) => parameters.includes(i.name))) {
      const own = {};
      for (const input of inputs) {
        if (input.fed === "parameter") own[input.name] = feeds[name];
        else if (input.fed === "gradient") own[input.name] = gradients[gradient];
        else if (input.fed === "state") own[input.name] = state[name][input.name] ?? zeros(input);
        else (own[input.name] = zeros(input)).data[0] = scalars[input.fed];
      }
      const next = await session.run(own);
      for (const input of inputs) {
        if (input.fed === "parameter") feeds[name] = next[input.next];
        else if (input.fed === "state") state[name][input.name] = next[input.next];
      }
    }
  };
}

export async function train(ort, url, steps, told, provider = "wasm") {
  const manifest = JSON.parse(new TextDecoder().decode(await get(new URL("manifest.json", url))));
  told({ manifest });
  if (!manifest.updates && !manifest.inputs.some((i) => i.next))
    throw new Error("the bundle's graph updates nothing: derive it with remat grad --optimizer sgd, or give rewrite --updates");
  const externalData = [];
  for (const path of manifest.external) externalData.push({ path, data: new Uint8Array(await get(new URL(path, url))) });
  const options = {
    executionProviders: [provider],
    enableMemPattern: manifest.session.memory_pattern, // off: a pattern holds more from the second step on
    enableCpuMemArena: manifest.session.arena,
    graphOptimizationLevel: manifest.session.graph_optimization_level,
  };
  const session = await ort.InferenceSession.create(new Uint8Array(await get(new URL(manifest.graph, url))), { ...options, externalData });
  const updaters = [];
  for (const update of manifest.updates ?? []) updaters.push(await updater(ort, url, update, options));
  const feeds = {};
  for (const input of manifest.inputs) feeds[input.name] = new ort.Tensor(input.type, await first(url, input), input.shape);
  const scalars = { lr: 1e-3, step: 1n, loss_scale: manifest.inputs.find((i) => i.fed === "loss_scale")?.value };
  for (let run = 1; run <= steps; run++) {
    for (const input of manifest.inputs) if (input.fed in scalars) feeds[input.name].data[0] = scalars[input.fed];
    const began = performance.now();
    const out = await session.run(feeds);
    for (const input of manifest.inputs) if (input.next) feeds[input.name] = out[input.next];
    for (const update of updaters) await update(manifest, feeds, out, scalars);
    told({ step: run, loss: Number(out[manifest.loss].data[0].toPrecision(9)), seconds: (performance.now() - began) / 1000 });
    if (out.found_inf?.data[0]) scalars.loss_scale /= 2; // a gradient overflowed, and nothing was updated
    else scalars.step++;
  }
}
