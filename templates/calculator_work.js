// The operations of a network, each for one sample: analyse/work.py and plan_work.py once more.
const WORK_KINDS = { conv: "conv", linear: "linear", norm: "norm", activation: "activation", max_pool: "pool", mean_pool: "elementwise", add: "elementwise", concat: "memory" };
const plainWork = (kind, inputs, outputs) => ({ layer: "", kind, calls: 1, macs: 0, inputs, outputs, weights: 0, rows: 0, columns: 0, depth: 0, groups: 1, kernel: 1, stride: 1, first: false });
const worksOfPlan = (plan) => {
  const first = plan.layers.findIndex((layer) => parametersOf(layer) > 0), works = [];
  plan.layers.forEach((layer, place) => {
    const kind = WORK_KINDS[layer.kind], heavy = macsOf(layer) > 0, area = layer.kernel ** 2;
    if (!kind) return;
    works.push({
      layer: layer.name, kind, calls: 1, macs: macsOf(layer), inputs: inputsOf(layer),
      outputs: outputsOf(layer) * (layer.kind === "max_pool" ? 2 : 1), weights: parametersOf(layer),
      rows: heavy ? layer.gives[1] * layer.gives[2] : 0, columns: heavy ? layer.gives[0] : 0, depth: heavy ? layer.given[0] * area : 0,
      groups: 1, kernel: layer.kind === "conv" || layer.kind === "max_pool" ? area : 1, stride: layer.stride, first: place === first,
    });
  });
  const answers = plan.settings.classes;
  return [...works, plainWork("softmax", answers, answers), plainWork("loss", answers + 1, 1)];
};
// Equal operations of different layers are one row, their calls added, in the order of the first.
const mergedWorks = (works) => {
  const found = new Map();
  for (const work of works) {
    const { layer, calls, ...alike } = work, key = JSON.stringify(alike), known = found.get(key);
    if (known) known.calls += calls; else found.set(key, { ...work });
  }
  return [...found.values()];
};
const tracedModel = (name) => DATA.traced.models.find((model) => model.name === name);
const worksOfTraced = ({ uses }) => {
  const { kinds, fields, rows } = DATA.traced, works = [];
  for (let n = 0; n < uses.length; n += 2) {
    const [kind, ...values] = rows[uses[n]], work = { layer: "", kind: kinds[kind], calls: uses[n + 1] };
    fields.forEach((field, place) => { work[field] = values[place]; });
    works.push(work);
  }
  return works;
};
// {name, family, works, parameters} of what is called so; Impossible with a sentence where there is none.
const networks = new Map();
const networkOf = (name, optimizer) => {
  const key = `${name}\n${optimizer}`, traced = tracedModel(name);
  if (networks.has(key)) return networks.get(key);
  let found;
  if (traced) found = { name, family: traced.family, works: worksOfTraced(traced), parameters: traced.parameters, memory: traced.memory, notes: traced.notes };
  else {
    const [family, settings] = settle(name), plan = planOf(canonical(family, { ...settings, optimizer }));
    found = { name: plan.spec, family, plan, works: mergedWorks(worksOfPlan(plan)), parameters: plan.layers.reduce((sum, layer) => sum + parametersOf(layer), 0) };
  }
  if (networks.size > 50) networks.clear();
  networks.set(key, found);
  return found;
};
