// Memory of a training step by batch: analyse/memory_lines.py and plan_memory.py once more. A line is [fixed, per sample].
const peakAt = (lines, batch) => Math.max(...lines.map(([fixed, perSample]) => fixed + perSample * batch));
const largestFitting = (lines, limit) => {
  let least = null;
  for (const [fixed, perSample] of lines) {
    if (perSample <= 0) { if (fixed > limit) return 0; continue; }
    const end = Math.max(Math.floor((limit - fixed) / perSample), 0);
    least = least === null ? end : Math.min(least, end);
  }
  return least;
};
const upperLines = (lines) => {
  const kept = [];
  for (const line of lines.toSorted((a, b) => b[1] - a[1] || b[0] - a[0])) if (!kept.length || line[0] > kept.at(-1)[0]) kept.push(line);
  return kept;
};
const READS_INPUT = ["conv", "linear", "norm", "max_pool"], KEEPS_OUTPUT = ["relu", "tanh"], HANDS_ON = ["add", "concat", "flatten"];
const keptBeside = (layer) => (layer.kind === "norm" ? [8 * layer.given[0], 0] : [0, layer.kind === "max_pool" ? 8 * outputsOf(layer) : 0]);
const matrixOf = (layer) => (layer.kind === "norm" ? layer.given[0] : parametersOf(layer) - (layer.bias ? layer.gives[0] : 0));
const linesOfPlan = (plan, optimizer) => {
  const { layers } = plan, last = layers.length - 1, { classes, activation } = plan.settings, owners = [], needed = new Map();
  layers.forEach((layer, place) => owners.push(layer.kind !== "flatten" ? place : layer.of[0] >= 0 ? owners[layer.of[0]] : -1));
  layers.forEach((layer, place) => {
    const reads = READS_INPUT.includes(layer.kind) ? layer.of[0] : layer.kind === "activation" ? (KEEPS_OUTPUT.includes(activation) ? place : layer.of[0]) : null;
    const owner = reads === null || reads < 0 ? -1 : owners[reads];
    if (owner >= 0 && !needed.has(owner)) needed.set(owner, place);
  });
  const weights = 4 * layers.reduce((sum, layer) => sum + parametersOf(layer), 0), buffers = layers.reduce((sum, layer) => sum + (layer.kind === "norm" ? 8 * layer.given[0] + 8 : 0), 0);
  const step = { fixed: weights * (1 + STATE[optimizer]) + buffers, perSample: 4 * inputsOf(layers[0]) + 8 }, moments = [];
  const take = (fixed, perSample) => { step.fixed += fixed; step.perSample += perSample; moments.push([step.fixed, step.perSample]); };
  const free = (fixed, perSample) => { step.fixed -= fixed; step.perSample -= perSample; };
  const lastUse = new Map();
  layers.forEach((layer, place) => { for (const of of layer.of) if (of >= 0) lastUse.set(owners[of], place); });
  layers.forEach((layer, place) => {
    if (owners[place] !== place) return;
    const [fixed, perSample] = keptBeside(layer);
    take(fixed, 4 * outputsOf(layer) + perSample);
    for (const owner of new Set(layer.of.filter((of) => of >= 0).map((of) => owners[of]))) if (owner >= 0 && lastUse.get(owner) === place && !needed.has(owner)) free(0, 4 * outputsOf(layers[owner]));
  });
  for (let n = 0; n < 3; n++) take(n === 0 ? 8 : 0, 4 * classes);
  free(0, 8 * classes);
  const released = new Map(), gradients = new Map([[last, { perSample: 4 * classes, holders: 1 }]]);
  for (const [owner, place] of needed) released.set(place, [...(released.get(place) ?? []), owner]);
  const letGo = (gradient) => { if (--gradient.holders === 0) free(0, gradient.perSample); };
  for (let place = last; place >= 0; place--) {
    const layer = layers[place], mine = gradients.get(place);
    gradients.delete(place);
    if (mine) {
      take(4 * parametersOf(layer), 0);
      for (const of of layer.of) {
        if (of < 0 || owners[of] < 0) continue;
        let given = mine;
        if (!HANDS_ON.includes(layer.kind)) { given = { perSample: 4 * inputsOf(layer), holders: 0 }; take(0, given.perSample); }
        given.holders++;
        const there = gradients.get(of), whole = 4 * outputsOf(layers[of]);
        if (!there) gradients.set(of, given);
        else if (there.holders === 1 && there.perSample === whole) letGo(given);
        else { take(0, whole); letGo(there); letGo(given); gradients.set(of, { perSample: whole, holders: 1 }); }
      }
      letGo(mine);
    }
    const [fixed, perSample] = keptBeside(layer);
    free(fixed, perSample + (released.get(place) ?? []).reduce((sum, owner) => sum + (owner === last ? 0 : 4 * outputsOf(layers[owner])), 0));
  }
  if (optimizer === "adam") take(2 * Math.max(...layers.map((layer) => 4 * matrixOf(layer))), 0);
  return upperLines(moments);
};
const roomOf = (lines, batch, limit) => {
  const needed = peakAt(lines, batch);
  return {
    needed, limit, largest: limit === null ? null : largestFitting(lines, limit), fits: limit === null ? null : needed <= limit,
    close: limit !== null && 0.9 * limit < needed && needed <= limit, lacking: limit === null ? 0 : Math.max(needed - limit, 0),
  };
};
