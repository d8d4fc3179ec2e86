// Learned efficiency: analyse/efficiency.py and efficiency_trees.py once more, the same operations in the same order.
const LN2_HIGH = 0.693147180369123816490, LN2_LOW = 1.90821492927058770002e-10;
const INVERSES = Array.from({ length: 14 }, (_, n) => 1 / (n + 1));
const POWERS = (() => { // 2^-1074 .. 2^1023 by doubling, exact
  const found = new Float64Array(2098);
  found[1074] = 1;
  for (let n = 1075; n < 2098; n++) found[n] = found[n - 1] * 2;
  for (let n = 1073; n >= 0; n--) found[n] = found[n + 1] / 2;
  return found;
})();
const exponential = (given) => {
  const x = Math.min(Math.max(given, -700), 700), turns = Math.floor(x / (LN2_HIGH + LN2_LOW) + 0.5);
  const rest = (x - turns * LN2_HIGH) - turns * LN2_LOW;
  let series = 1;
  for (let n = 13; n >= 0; n--) series = 1 + (rest * INVERSES[n]) * series;
  return series * POWERS[turns + 1074];
};
const treesFrom = (json) => ({
  start: json.start, roots: Int32Array.from(json.roots), feature: Int16Array.from(json.feature), threshold: Float64Array.from(json.threshold),
  left: Int32Array.from(json.left), right: Int32Array.from(json.right), value: Float64Array.from(json.value),
});
const total = ({ start, roots, feature, threshold, left, right, value }, row) => {
  let found = start;
  for (let tree = 0; tree < roots.length; tree++) {
    let node = roots[tree];
    for (let asked = feature[node]; asked >= 0; asked = feature[node]) node = row[asked] <= threshold[node] ? left[node] : right[node];
    found += value[node];
  }
  return found;
};
const fittedFrom = (json) => ({ ...json, trees: treesFrom(json.trees), spread: treesFrom(json.spread) });
const eighths = (x, power) => {
  const half = Math.sqrt(x), quarter = Math.sqrt(half), eighth = Math.sqrt(quarter);
  if (power === 8) return x;
  let found = 1;
  found *= power & 4 ? half : 1;
  found *= power & 2 ? quarter : 1;
  found *= power & 1 ? eighth : 1;
  return found;
};
const WIDEST = 4;
const outsideOf = (fitted, row, floor) => {
  const names = [];
  let excess = 0;
  const look = (name, figure, low, high) => {
    let beyond;
    if (figure > high) beyond = high > 0 ? figure / high - 1 : WIDEST;
    else if (figure < low) beyond = figure > 0 ? low / figure - 1 : WIDEST;
    else return;
    names.push(name);
    excess = Math.max(excess, beyond);
  };
  fitted.features.forEach((name, place) => look(name, row[place], fitted.low[place], fitted.high[place]));
  look("floor", floor, fitted.floor_low, fitted.floor_high);
  return [excess, names];
};
const predictOne = (fitted, row, floor) => {
  const inside = Math.min(Math.max(floor, fitted.floor_low), fitted.floor_high);
  const learned = eighths(inside, fitted.power) * exponential(total(fitted.trees, row));
  const seconds = Math.max(learned * (floor > fitted.floor_high ? floor / inside : 1), floor);
  const [excess, outside] = outsideOf(fitted, row, floor);
  const spread = Math.min(Math.max(total(fitted.spread, row), fitted.spread_low), fitted.spread_high);
  const half = fitted.quantile * spread * (1 + Math.min(excess, WIDEST)), factor = exponential(half);
  return { seconds, low: Math.max(seconds / factor, floor), high: seconds * factor, floor, outside };
};
