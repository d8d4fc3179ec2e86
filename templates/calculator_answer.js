// One choice, one answer: the step, the training, what it costs and whether it fits; analyse/training.py once more.
const linesOf = (network, optimizer) => {
  if (network.plan) return linesOfPlan(network.plan, optimizer);
  const { memory } = network, state = 4 * network.parameters * STATE[optimizer];
  if (!memory) return null;
  const lines = memory.lines.map(([fixed, perSample]) => [fixed + state, perSample]);
  return upperLines(optimizer === "adam" ? [...lines, ...memory.adam.map(([fixed, perSample]) => [fixed + state, perSample])] : lines);
};
const keep = new Map(); // what does not depend on epochs, data and prices, by what it depends on
const remembered = (key, make) => {
  if (!keep.has(key)) { if (keep.size > 4000) keep.clear(); keep.set(key, make()); }
  return keep.get(key);
};
const stepOf = (choice) => remembered([choice.model, choice.batch, choice.precision, choice.optimizer, choice.device].join("\n"), () => {
  const network = networkOf(choice.model, choice.optimizer), machine = MACHINES.get(choice.device);
  const job = { model: network.name, family: network.family, works: network.works, parameters: network.parameters, batch: choice.batch, precision: choice.precision, optimizer: choice.optimizer };
  const lines = remembered(`lines\n${choice.model}\n${choice.optimizer}`, () => linesOf(network, choice.optimizer));
  const room = lines === null ? null : roomOf(lines, choice.batch, machine.memory_bytes);
  try { return { network, machine, job, room, time: predictTime(job, machine), reason: null }; } catch (error) {
    if (!(error instanceof Impossible)) throw error;
    return { network, machine, job, room, time: null, reason: error.message };
  }
});
const parallelOf = (choice, alone, network, machine, backward) => {
  if (choice.gpus === 1) return null;
  if (choice.efficiency > 0) return atEfficiency(alone, network.parameters, choice.gpus, choice.efficiency);
  const link = choice.interconnect > 0 ? choice.interconnect : machine.link_gbs, said = choice.interconnect > 0 ? "as said" : machine.link;
  if (link === null) throw impossible("how fast these devices reach each other is not known: say a link or an efficiency");
  return { ...overLink(alone, network.parameters, choice.gpus, link, choice.overlap, backward), link_gbs: link, link: said };
};
const pricesFor = (choice, machine) => (choice.price > 0
  ? [{ provider: "your own price", instance: "", count: 1, on_demand: choice.price, spot: choice.price, region: "", date: "", source: "as said" }]
  : machine.offers.map((place) => DATA.prices[place]));
const energyFor = (choice, machine, network, seconds) => {
  const known = Object.hasOwn(machine.watts, network.name) ? machine.watts[network.name] : machine.watts[""];
  return known ? { ...energyOf(known[0], choice.gpus, seconds, choice.tariff > 0 ? choice.tariff : null), source: known[1] } : null;
};
const answerOf = (choice) => {
  let found;
  try { found = stepOf(choice); } catch (error) {
    if (!(error instanceof Impossible)) throw error;
    return { choice, impossible: error.message };
  }
  const { network, machine, room, time } = found, answer = { choice, model: network.name, machine, room, time, job: found.job, notes: network.notes, impossible: null, reason: found.reason };
  if (!time) return answer;
  const alone = { value: time.seconds, low: time.low, high: time.high };
  try { answer.parallel = parallelOf(choice, alone, network, machine, time.backward); } catch (error) {
    if (!(error instanceof Impossible)) throw error;
    return { ...answer, time: null, reason: error.message };
  }
  const step = answer.parallel ? answer.parallel.step : alone;
  answer.step = step;
  answer.sample = times(step, 1 / (choice.batch * choice.gpus));
  answer.steps = stepsOf(choice.samples, choice.batch, choice.gpus);
  answer.epoch = times(step, answer.steps);
  answer.training = times(answer.epoch, choice.epochs);
  answer.rentals = rentals(pricesFor(choice, machine), choice.gpus, answer.training);
  const whole = answer.rentals.filter((one) => one.instances === 1);
  const priced = (whole.length ? whole : answer.rentals).filter((one) => one[choice.pay] !== null);
  answer.offer = priced.reduce((a, b) => (a === null || b[choice.pay].value < a[choice.pay].value ? b : a), null);
  answer.cost = answer.offer ? answer.offer[choice.pay] : null;
  answer.energy = energyFor(choice, machine, network, answer.training);
  return answer;
};
