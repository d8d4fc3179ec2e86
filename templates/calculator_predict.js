// How long a step takes, by the best way there is: analyse/predict.py and step_model.py once more.
const MACHINES = new Map(DATA.machines.map((machine) => [machine.name, machine]));
const FITS = DATA.fits.map((fit) => ({ ...fit, fitted: fittedFrom(fit.fitted) }));
const weighed = (costs, found) => { let sum = 0; for (let n = 0; n < costs.length; n++) sum += costs[n] * found[n]; return sum; };
const predictStep = (fit, job, machine) => {
  const own = partsOf(job, fit.machine), base = weighed(fit.costs, own), here = predictOne(fit.fitted, featuresOf(job, own), base * DATA.headroom);
  if (machine.name === fit.machine.name) return here;
  const ratio = weighed(fit.costs, partsOf(job, machine)) / base, wide = here.high / here.seconds, seconds = here.seconds * ratio;
  let factor = wide;
  for (let n = 1; n < DATA.transfer; n++) factor *= wide;
  return { ...here, seconds, low: seconds / factor, high: seconds * factor };
};
// The first of the largest, as Python's max.
const best = (job, fits) => {
  const rank = (fit) => [fit.families.includes(job.family) ? 1 : 0, fit.fitted.rows];
  let found = null;
  for (const fit of fits) {
    const [a, b] = rank(fit), [c, d] = found ? rank(found) : [-1, -1];
    if (a > c || (a === c && b > d)) found = fit;
  }
  return found;
};
const ownRecord = (job, machine) => {
  const here = DATA.measured.filter((one) => one.machine === machine.name), model = here.filter((one) => one.model === job.model);
  const alike = model.filter((one) => one.precision === job.precision && one.optimizer === job.optimizer), same = alike.filter((one) => one.batch === job.batch);
  if (same.length) return [same.reduce((a, b) => ((b.high - b.low) / b.seconds < (a.high - a.low) / a.seconds ? b : a)), ""];
  const batches = [...new Set(alike.map((one) => one.batch))].sort((a, b) => a - b);
  if (alike.length) return [null, `measured: ${job.model} ran on ${machine.name} at batch ${batches.join(", ")}, not at ${job.batch}`];
  if (model.length) return [null, `measured: ${job.model} ran on ${machine.name}, but not training in ${job.precision} with ${job.optimizer}`];
  return [null, `measured: no run of ${job.model} on ${machine.name}`];
};
const fitFor = (job, machine) => {
  const here = FITS.filter((fit) => fit.machine.name === machine.name), fit = best(job, here.filter((one) => one.precision === job.precision && one.training));
  return fit ? [fit, ""] : [null, `fitted: no bench runs of training in ${job.precision} on ${machine.name} to learn from (${here.length ? "other precisions or directions only" : "none"})`];
};
const otherFit = (job, machine) => {
  const fit = best(job, FITS.filter((one) => one.machine.kind === machine.kind && one.training && one.precision === job.precision));
  return fit ? [fit, ""] : [null, `transferred: no fit of another ${machine.kind} for ${job.precision} to carry over`];
};
const fromFit = (fit, job, machine, whyNot) => {
  const found = predictStep(fit, job, machine), own = machine.name === fit.machine.name, outside = found.outside.map((name) => `${name} is outside of what was measured`);
  if (!fit.families.includes(job.family)) outside.push(`no ${job.family} was among what was measured (${fit.families.join(", ")})`);
  if (!fit.optimizers.includes(job.optimizer)) outside.push(`${job.optimizer} was not measured (${fit.optimizers.join(", ")})`);
  if (!own) outside.push(`learned on ${fit.machine.name}: peaks and bandwidth are those of ${machine.name}`);
  return {
    seconds: found.seconds, low: found.low, high: found.high, way: own ? "fitted" : "transferred", source: fit.name, coverage: own ? fit.fitted.coverage : null,
    why_not: whyNot, outside, floor: roofline(job, machine), costs: sharedCosts(fit), backward: backwardOf(fit, job, found.seconds, machine),
  };
};
// Each part belongs to one phase, and the costs of the others are 0 there: what layers take adds up to what phases take.
const sharedCosts = (fit) => { const each = Object.values(fit.phases); return each.length ? fit.costs.map((_, place) => each.reduce((sum, costs) => sum + costs[place], 0)) : fit.costs; };
const backwardOf = (fit, job, seconds, machine) => {
  const found = partsOf(job, machine), each = Object.entries(fit.phases).map(([name, costs]) => [name, weighed(costs, found)]);
  let sum = 0;
  for (const [, value] of each) sum += value;
  const backward = each.find(([name]) => name === "backward");
  return sum > 0 && backward ? seconds * (backward[1] / sum) : null;
};
const ROOF_COSTS = PARTS.map((name) => (BESIDE.some((first) => name.startsWith(first)) ? 0 : 1));
const fromRoofline = (job, machine, whyNot) => {
  const floor = roofline(job, machine), [low, middle, high] = DATA.roofline[job.precision] ?? DATA.roofline.other;
  const started = (machine.launch_seconds ?? DATA.host) * job.works.reduce((sum, work) => sum + work.calls, 0) * 3;
  return {
    seconds: Math.max(middle * floor, started), low: low * floor, high: Math.max(high * floor, 3 * started), way: "roofline",
    source: `peaks of ${machine.name} alone; measured steps of whole networks took ${low} to ${high} times the roofline`,
    coverage: null, why_not: whyNot, outside: [], floor, costs: ROOF_COSTS, backward: null,
  };
};
const fromMeasured = (record, job, machine, [fit] = fitFor(job, machine)) => ({
  seconds: record.seconds, low: Math.min(record.low, record.seconds), high: Math.max(record.high, record.seconds), way: "measured",
  source: `median of the steps measured on ${machine.name}`, coverage: null, why_not: [], outside: [], floor: roofline(job, machine),
  costs: fit ? sharedCosts(fit) : ROOF_COSTS, backward: record.backward,
});
const predictTime = (job, machine) => {
  peakOf(machine, job.precision);
  const [record, missing] = ownRecord(job, machine);
  if (record) return fromMeasured(record, job, machine);
  const [fit, reason] = fitFor(job, machine);
  if (fit) return fromFit(fit, job, machine, [missing]);
  const [other, noOther] = otherFit(job, machine);
  return other ? fromFit(other, job, machine, [missing, reason]) : fromRoofline(job, machine, [missing, reason, noOther]);
};
