// What a training costs, and what several GPUs do to it: analyse/cost.py and cost_parallel.py once more.
const times = (span, factor) => ({ value: span.value * factor, low: span.low * factor, high: span.high * factor });
const plus = (span, amount) => ({ value: span.value + amount, low: span.low + amount, high: span.high + amount });
const stepsOf = (samples, batch, gpus) => Math.ceil(samples / (batch * gpus));
const rental = (price, gpus, seconds) => {
  const instances = Math.ceil(gpus / price.count), hours = times(seconds, instances / 3600);
  return {
    price, instances, idle: instances * price.count - gpus,
    on_demand: price.on_demand === null ? null : times(hours, price.on_demand), spot: price.spot === null ? null : times(hours, price.spot),
  };
};
const rentals = (prices, gpus, seconds) => prices.map((price) => rental(price, gpus, seconds)).sort((a, b) => (
  (a.on_demand === null) - (b.on_demand === null) || (a.on_demand ?? a.spot).value - (b.on_demand ?? b.spot).value
));
const energyOf = (watts, gpus, seconds, tariff) => {
  const kwh = times(seconds, (watts * gpus) / 3.6e6);
  return { watts, kwh, cost: tariff === null ? null : times(kwh, tariff) };
};
const ringBytes = (parameters, gpus) => ((2 * (gpus - 1)) / gpus) * parameters * 4;
const overLink = (step, parameters, gpus, linkGbs, overlap, backward) => {
  const moved = ringBytes(parameters, gpus), communication = moved / (linkGbs * 1e9);
  const hidden = Math.min(overlap * communication, backward ?? step.value), exposed = communication - hidden, longer = plus(step, exposed);
  return { gpus, step: longer, efficiency: step.value / longer.value, moved_bytes: moved, communication, exposed };
};
const atEfficiency = (step, parameters, gpus, efficiency) => ({
  gpus, step: times(step, 1 / efficiency), efficiency, moved_bytes: ringBytes(parameters, gpus), communication: null, exposed: null,
});
