// One training in a worker, so that each has a heap of its own, whose size is told. WebGPU is
// in a package of its own.
const Memory = WebAssembly.Memory;
let heap = null;
WebAssembly.Memory = class extends Memory {
  constructor(options) {
    super(options);
    heap = this;
  }
};

onmessage = async ({ data: { url, steps, provider } }) => {
  const tell = (what) => postMessage({ ...what, heap: heap?.buffer.byteLength ?? 0 });
  try {
    const ort = await import(`/ort/ort.${provider}.min.mjs`);
    ort.env.wasm.wasmPaths = "/ort/";
    ort.env.wasm.numThreads = 1;
    const { train } = await import("./train.mjs");
    await train(ort, new URL(url, location.href), steps, tell, provider);
    tell({ done: true });
  } catch (error) {
    tell({ done: true, error: String(error.message ?? error) });
  }
};
