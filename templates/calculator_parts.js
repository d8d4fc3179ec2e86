// What a step is made of: analyse/step_parts.py once more, the same operations in the same order, over equal operations merged.
const HEAVY = ["conv", "grouped_conv", "transposed_conv", "linear", "matmul", "attention", "rnn"];
const STATE = { sgd: 0, momentum: 1, adam: 2 };
const { parts: PARTS, products: PRODUCTS, plain: PLAIN, beside: BESIDE, reference: REFERENCE, spilled: SPILLED, overflow: OVERFLOW } = DATA.step;
const PLACE = Object.fromEntries(PARTS.map((name, place) => [name, place]));
const OTHERS = { transposed_conv: "conv", rnn: "linear", attention: "matmul", loss: "softmax", other: "memory" };
const groupOf = (work) => {
  if (work.kind === "conv") return work.kernel > 1 ? "conv" : "pointwise";
  if (work.kind === "grouped_conv") return work.depth <= work.kernel ? "depthwise" : "grouped";
  return OTHERS[work.kind] ?? work.kind;
};
const elementBytes = (precision) => ({ fp64: 8, fp16: 2, bf16: 2, int8: 1, fp8: 1 })[precision] ?? 4;
const pathsOf = (precision, depthwise) => {
  if (depthwise && precision !== "fp64") return ["fp32"];
  return { fp32: ["fp32"], tf32: ["tensor tf32", "fp32"], fp64: ["fp64"] }[precision] ?? [`tensor ${precision}`, precision];
};
const peakOf = (machine, precision, depthwise = false) => {
  const paths = pathsOf(precision, depthwise);
  for (const path of paths) if (machine.flops_per_second[path]) return machine.flops_per_second[path];
  throw impossible(`${machine.name}: no peak is known for ${precision} (looked for ${paths.join(" or ")})`);
};
// Calls add(part, seconds) for each part of one operation.
const partsOfWork = (work, job, machine, add) => {
  const size = elementBytes(job.precision), { batch } = job, { calls } = work, group = groupOf(work), rate = machine.bytes_per_second;
  const each = batch * (work.inputs + work.outputs) * size, moved = (calls * each) / rate;
  const spilled = (calls * Math.max(each - SPILLED, 0)) / rate, overflow = (calls * Math.max(each - OVERFLOW, 0)) / rate;
  add("operations forward", calls * 1e-6); add("spilled forward", spilled); add("overflow forward", overflow);
  let back;
  if (HEAVY.includes(work.kind)) {
    const products = (work.weights || work.kind === "matmul" || work.kind === "attention" ? 1 : 0) + (work.first ? 0 : 1), alone = group === "depthwise";
    back = products;
    const seconds = (calls * (2 * batch * work.macs)) / peakOf(machine, job.precision, alone);
    const narrow = alone ? 0 : seconds * (REFERENCE / Math.max(work.columns, 1)), shallow = alone ? 0 : seconds * (REFERENCE / Math.max(work.depth, 1));
    add(`${group} forward`, seconds); add("narrow forward", narrow); add("shallow forward", shallow);
    add(`${group} backward`, seconds * products); add("narrow backward", narrow * products); add("shallow backward", shallow * products);
    const held = (calls * (work.weights * size)) / rate;
    add(`${group} bytes forward`, moved); add("weights forward", held);
    add(`${group} bytes backward`, moved * products); add("weights backward", held * products);
  } else {
    back = group === "memory" ? 0 : 1;
    add(`${group} bytes forward`, moved);
    const looked = group === "pool" ? (calls * (batch * work.outputs * work.kernel * size)) / rate : 0;
    add("window forward", looked); add(`${group} bytes backward`, moved); add("window backward", looked);
  }
  add("operations backward", calls * back * 1e-6); add("spilled backward", spilled * back); add("overflow backward", overflow * back);
  if (work.weights) add("tensors optimizer", calls * 1e-6);
  if (work.weights * 4 > OVERFLOW) {
    const fresh = (calls * (work.weights * 4)) / rate;
    add("fresh backward", fresh); add("fresh optimizer", job.optimizer === "adam" ? fresh : 0);
  }
};
const optimizerSeconds = (job, machine) => (job.parameters * (3 + 2 * STATE[job.optimizer]) * 4) / machine.bytes_per_second;
const partsOf = (job, machine) => {
  const found = new Float64Array(PARTS.length);
  for (const work of job.works) partsOfWork(work, job, machine, (name, seconds) => { found[PLACE[name]] += seconds; });
  const moved = optimizerSeconds(job, machine);
  found[PLACE["bytes optimizer"]] = moved;
  found[PLACE["adam optimizer"]] = job.optimizer === "adam" ? moved : 0;
  found[PLACE["overflow optimizer"]] = Math.max(moved - OVERFLOW / machine.bytes_per_second, 0);
  found[PLACE["step forward"]] = 1e-3;
  return found;
};
const roofline = (job, machine) => {
  let sum = 0;
  for (const work of job.works) {
    const phases = { forward: [0, 0], backward: [0, 0] }, group = groupOf(work);
    partsOfWork(work, job, machine, (name, seconds) => {
      const words = name.split(" "), phase = words.at(-1);
      if (!BESIDE.includes(words[0])) phases[phase][name === `${group} ${phase}` ? 0 : 1] += seconds;
    });
    sum += Math.max(...phases.forward) + Math.max(...phases.backward);
  }
  return sum + optimizerSeconds(job, machine);
};
const ARITHMETIC = PRODUCTS.flatMap((group) => [`${group} forward`, `${group} backward`]), BYTES = PARTS.filter((name) => name.includes(" bytes "));
const sumOf = (found, names) => names.reduce((sum, name) => sum + found[PLACE[name]], 0);
const sizes = new WeakMap();
const sizesOf = (works) => {
  if (sizes.has(works)) return sizes.get(works);
  const sums = Object.fromEntries([...PRODUCTS, ...PLAIN, "operations", "macs", "elements", "columns", "depth", "rows"].map((name) => [name, 0]));
  for (const work of works) {
    const macs = work.calls * work.macs, elements = work.calls * (work.inputs + work.outputs), heavy = HEAVY.includes(work.kind);
    sums.operations += work.calls;
    sums.elements += elements;
    sums[groupOf(work)] += heavy ? macs : elements;
    sums.macs += macs;
    if (heavy) for (const size of ["columns", "depth", "rows"]) sums[size] += macs / Math.max(work[size], 1);
  }
  sizes.set(works, sums);
  return sums;
};
const featuresOf = (job, found) => {
  const sums = sizesOf(job.works), moved = sumOf(found, BYTES), operations = Math.max(sums.operations, 1), macs = Math.max(sums.macs, 1), elements = Math.max(sums.elements, 1);
  return [
    sumOf(found, ARITHMETIC), moved, job.batch, moved / operations, sums.operations, job.parameters,
    macs / Math.max(sums.columns, 1), macs / Math.max(sums.depth, 1), macs / Math.max(sums.rows, 1),
    macs / elements, sums.conv / macs, (sums.grouped + sums.depthwise) / macs, (sums.linear + sums.matmul) / macs,
    sums.norm / elements, sums.activation / elements, job.parameters / operations,
  ];
};
