// A curve over batch size with its interval, on two log axes: points {x, y, low, high, tip, fits}.
const SVG = "http://www.w3.org/2000/svg";
const draw = (tag, attributes = {}, text) => {
  const node = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
};
const tickValues = (from, to, unit) => {
  const all = [], low = from / unit, high = to / unit;
  for (let power = Math.floor(Math.log10(low)) - 1; power <= Math.ceil(Math.log10(high)); power++) for (const step of [1, 2, 5]) all.push(step * 10 ** power);
  const inside = all.filter((v) => v >= low * 0.999 && v <= high * 1.001);
  const few = inside.length > 7 ? inside.filter((v) => Math.abs(Math.log10(v) - Math.round(Math.log10(v))) < 1e-9) : inside;
  return few.map((v) => v * unit);
};
const curve = (points, chosen, { unit, tick }, label) => {
  const width = innerWidth < 560 ? 380 : 640, height = 300, left = 62, right = 14, top = 12, bottom = 42;
  const svg = draw("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, tabindex: "0" });
  const known = points.filter((p) => p.y !== null);
  if (!known.length) return svg;
  const lows = known.map((p) => p.low ?? p.y), highs = known.map((p) => p.high ?? p.y);
  const bottomValue = Math.min(...lows) / 1.12, topValue = Math.max(...highs) * 1.12;
  const first = Math.log2(points[0].x), last = Math.log2(points.at(-1).x);
  const x = (v) => left + ((Math.log2(v) - first) / Math.max(last - first, 1)) * (width - left - right);
  const y = (v) => top + (Math.log(topValue / v) / Math.log(topValue / bottomValue)) * (height - top - bottom);
  const grid = draw("g", { class: "grid" });
  const one = unit(Math.sqrt(bottomValue * topValue));
  for (const v of tickValues(bottomValue, topValue, one)) {
    grid.append(draw("line", { x1: left, x2: width - right, y1: y(v), y2: y(v) }), draw("text", { x: left - 8, y: y(v) + 4, "text-anchor": "end" }, tick(v, one)));
  }
  const marks = points.filter((p) => Number.isInteger(Math.log2(p.x))), every = Math.ceil(marks.length / (width < 500 ? 6 : 12));
  marks.forEach((p, place) => { if (place % every === 0) grid.append(draw("text", { x: x(p.x), y: height - bottom + 18, "text-anchor": "middle" }, p.x >= 10000 ? `${p.x / 1024}k` : String(p.x))); });
  grid.append(draw("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, "batch size of one GPU"));
  svg.append(grid);
  const tooLarge = points.find((p) => p.fits === false);
  if (tooLarge) {
    const before = points[points.indexOf(tooLarge) - 1], at = before ? (x(before.x) + x(tooLarge.x)) / 2 : left;
    svg.append(draw("rect", { class: "beyond", x: at, y: top, width: width - right - at, height: height - top - bottom }));
    const room = width - right - at > 150;
    svg.append(draw("text", { class: "said-beyond", x: room ? at + 6 : at - 6, y: top + 14, "text-anchor": room ? "start" : "end" }, "does not fit in memory"));
  }
  const banded = known.filter((p) => p.low !== null && p.high !== null);
  if (banded.length > 1) {
    const path = [...banded.map((p) => `${x(p.x)},${y(p.high)}`), ...banded.toReversed().map((p) => `${x(p.x)},${y(p.low)}`)].join("L");
    svg.append(draw("path", { class: "band", d: `M${path}Z` }));
  }
  svg.append(draw("path", { class: "line", d: `M${known.map((p) => `${x(p.x)},${y(p.y)}`).join("L")}` }));
  const near = (width - left - right) / points.length;
  for (const p of known) {
    const on = p.x === chosen;
    svg.append(draw("circle", { class: on ? "dot chosen" : "dot", cx: x(p.x), cy: y(p.y), r: on ? 5.5 : 3 }));
    svg.append(draw("rect", { class: "hit", x: x(p.x) - near / 2, y: top, width: near, height: height - top - bottom, "data-tip": p.tip, "data-x": p.x }));
  }
  return svg;
};
