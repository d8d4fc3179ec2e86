// Text of figures, the curve over batch size, and controls: a box with a slider beside it.
const byId = (id) => document.getElementById(id);
const DASH = "–";
// Three significant digits: 0.0123, 3.14, 27.5, 104, 12,346.
const digits3 = (v) => {
  if (v === 0) return "0";
  if (Math.abs(v) >= 99.95) return grouped(v.toFixed(0));
  const text = Math.abs(v) < 1e-4 ? v.toFixed(6) : v.toFixed(2 - Number(v.toExponential(2).split("e")[1]));
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
};
const TIME_UNITS = [[1e-3, 1e-6, "µs"], [1, 1e-3, "ms"], [120, 1, "s"], [3600, 60, "min"], [345600, 3600, "h"], [Infinity, 86400, "days"]];
const withRange = (span, unit, tail = unit ? ` ${unit}` : "") => (span.low === span.high ? `${digits3(span.value)}${tail}` : `${digits3(span.value)}${tail} (${digits3(span.low)} to ${digits3(span.high)}${tail})`);
const duration = (span) => { const [, one, unit] = TIME_UNITS.find(([end]) => span.value < end); return withRange(times(span, 1 / one), unit); };
// One unit for a column: that of its median.
const durationIn = (values) => {
  const known = values.toSorted((a, b) => a - b), [, one, unit] = TIME_UNITS.find(([end]) => (known[(known.length - 1) >> 1] ?? 0) < end);
  return (span) => withRange(times(span, 1 / one), unit);
};
const short = (v) => duration({ value: v, low: v, high: v });
const money = (v) => (v > 0 && v < 0.005 ? "< $0.01" : `$${grouped(v.toFixed(2))}`);
const dollars = (span) => (span.low === span.high ? money(span.value) : `${money(span.value)} (${money(span.low)} to ${money(span.high)})`);
const gigabytes = (v) => (v >= 1e9 ? `${digits3(v / 1e9)} GB` : `${digits3(v / 1e6)} MB`);
const gibibytes = (v) => (v >= 2 ** 30 ? `${digits3(v / 2 ** 30)} GiB` : `${digits3(v / 2 ** 20)} MiB`);
const percent = (part, places = 1) => `${(part * 100).toFixed(places)}%`;
const inTwo = (text) => { const at = text.indexOf(" ("); return at < 0 ? [text, ""] : [text.slice(0, at), text.slice(at + 2, -1)]; }; // "3.1 h (2.6 to 3.9 h)" -> ["3.1 h", "2.6 to 3.9 h"]
const times = (span, factor) => ({ value: span.value * factor, low: span.low * factor, high: span.high * factor });

// A curve with its range on two log axes: points {x, y, low, high, tip, fits}.
const draw = (tag, attributes = {}, text) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
};
const tickValues = (from, to, unit) => {
  const all = [], low = from / unit, high = to / unit;
  for (let power = Math.floor(Math.log10(low)) - 1; power <= Math.ceil(Math.log10(high)); power++) for (const step of [1, 2, 5]) all.push(step * 10 ** power);
  const inside = all.filter((v) => v >= low * 0.999 && v <= high * 1.001);
  if (inside.length < 2) { // a short axis: round values as on a linear one, three or more
    const third = (high - low) / 3, power = 10 ** Math.floor(Math.log10(third)), step = [5, 2, 1].find((n) => n * power <= third) * power;
    return Array.from({ length: Math.floor(high / step) - Math.ceil(low / step) + 1 }, (_, n) => (Math.ceil(low / step) + n) * step * unit);
  }
  const few = inside.length > 7 ? inside.filter((v) => Math.abs(Math.log10(v) - Math.round(Math.log10(v))) < 1e-9) : inside;
  return few.map((v) => v * unit);
};
const curve = (points, chosen, { unit, tick }, label) => {
  const width = innerWidth < 560 ? 380 : 640, height = 300, left = 62, right = 14, top = 12, bottom = 42;
  const svg = draw("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, tabindex: "0" });
  const known = points.filter((p) => p.y !== null);
  if (!known.length) return svg;
  const bottomValue = Math.min(...known.map((p) => p.low)) / 1.12, topValue = Math.max(...known.map((p) => p.high)) * 1.12;
  const first = Math.log2(points[0].x), last = Math.log2(points.at(-1).x);
  const x = (v) => left + ((Math.log2(v) - first) / Math.max(last - first, 1)) * (width - left - right);
  const y = (v) => top + (Math.log(topValue / v) / Math.log(topValue / bottomValue)) * (height - top - bottom);
  const grid = draw("g", { class: "grid" }), one = unit(Math.sqrt(bottomValue * topValue));
  for (const v of tickValues(bottomValue, topValue, one)) {
    grid.append(draw("line", { x1: left, x2: width - right, y1: y(v), y2: y(v) }), draw("text", { x: left - 8, y: y(v) + 4, "text-anchor": "end" }, tick(v, one)));
  }
  const marks = points.filter((p) => Number.isInteger(Math.log2(p.x))), every = Math.ceil(marks.length / (width < 500 ? 6 : 12));
  marks.forEach((p, place) => { if (place % every === 0) grid.append(draw("text", { x: x(p.x), y: height - bottom + 18, "text-anchor": "middle" }, p.x >= 10000 ? `${p.x / 1024}k` : String(p.x))); });
  grid.append(draw("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, "batch size of one GPU"));
  svg.append(grid);
  const tooLarge = points.find((p) => p.fits === false);
  if (tooLarge) {
    const before = points[points.indexOf(tooLarge) - 1], at = before ? (x(before.x) + x(tooLarge.x)) / 2 : left, wide = width - right - at > 150;
    svg.append(draw("rect", { class: "beyond", x: at, y: top, width: width - right - at, height: height - top - bottom }));
    svg.append(draw("text", { class: "said-beyond", x: wide ? at + 6 : at - 6, y: top + 14, "text-anchor": wide ? "start" : "end" }, "does not fit in memory"));
  }
  const path = (all, of) => all.map((p) => `${x(p.x)},${y(of(p))}`).join("L");
  svg.append(draw("path", { class: "band", d: `M${path(known, (p) => p.high)}L${path(known.toReversed(), (p) => p.low)}Z` }), draw("path", { class: "line", d: `M${path(known, (p) => p.y)}` }));
  const near = (width - left - right) / points.length;
  for (const p of known) {
    svg.append(draw("circle", { class: p.x === chosen ? "dot chosen" : "dot", cx: x(p.x), cy: y(p.y), r: p.x === chosen ? 5.5 : 3 }));
    svg.append(draw("rect", { class: "hit", x: x(p.x) - near / 2, y: top, width: near, height: height - top - bottom, "data-tip": p.tip, "data-x": p.x }));
  }
  return svg;
};

// Controls: the box holds the value, the slider moves it; both write the choice and call back.
const toPlace = ({ scale, slider: [low, high] }, value) => {
  const part = scale ? Math.log(Math.max(value, low) / low) / Math.log(high / low) : (value - low) / (high - low);
  return Math.round(1000 * Math.min(1, Math.max(0, part)));
};
const toValue = ({ scale, step, slider: [low, high] }, place) => {
  const part = place / 1000;
  if (scale === "log2") return 2 ** Math.round(Math.log2(low) + part * Math.log2(high / low));
  if (scale === "log") return Number((low * (high / low) ** part).toPrecision(2));
  return Math.min(high, low + Math.round((part * (high - low)) / step) * step);
};
const readField = (field, text) => {
  if (field.options) return field.options.includes(text) ? text : undefined;
  const value = text.trim() === "" ? NaN : Number(text), inside = value >= field.low && (field.high === null || value <= field.high);
  return Number.isFinite(value) && inside && (!field.is_integer || Number.isInteger(value)) ? value : undefined;
};
const connect = (box, field, get, set) => {
  const input = box.querySelector("select, input[type=text]"), range = box.querySelector("input[type=range]");
  const say = (wrong) => {
    box.querySelector(".wrong")?.remove();
    input.toggleAttribute("aria-invalid", false);
    if (!wrong) { input.removeAttribute("aria-describedby"); return; }
    input.setAttribute("aria-invalid", "true");
    input.setAttribute("aria-describedby", `w-${field.key}`);
    const allowed = field.high === null ? `${field.low} or more` : `${field.low} to ${field.high}`;
    box.append(make("p", { class: "wrong", id: `w-${field.key}` }, `${field.label}: ${field.is_integer ? "a whole number, " : "a number, "}${allowed}. ${get()} is still used.`));
  };
  const show = (text = true) => {
    const value = get();
    if (text) { input.value = String(value); say(false); }
    if (!range) return;
    range.value = toPlace(field, value);
    range.setAttribute("aria-valuetext", String(value));
  };
  input.addEventListener(field.options ? "change" : "input", () => {
    const value = readField(field, field.options ? input.value : input.value.replace(/[\s,\u202f]/g, ""));
    say(value === undefined);
    if (value === undefined) return;
    set(value);
    show(false);
  });
  if (!field.options) input.addEventListener("blur", () => show());
  range?.addEventListener("input", () => { set((field.snap ?? Number)(toValue(field, Number(range.value)))); show(); });
  return show;
};
const parameterField = (field) => {
  const box = make("div", { class: "field", "data-key": field.key, title: field.about }), label = make("label", { for: `c-${field.key}` }, field.label);
  if (field.options) {
    const list = make("select", { id: `c-${field.key}` });
    for (const value of field.options) list.append(make("option", { value }, value));
    box.append(label, list);
    return box;
  }
  box.append(label, make("input", { type: "range", min: 0, max: 1000, step: 1, "aria-label": `${field.label}, slider` }));
  box.append(make("input", { id: `c-${field.key}`, type: "text", inputmode: "decimal", autocomplete: "off" }));
  return box;
};
