// How figures look: report/amounts.py once more, to the digit; ties go to even as Python rounds them.
const DASH = "–";
const fixed = (v, n) => {
  const twice = v * 2 ** (n + 1); // exact; a tie is an odd multiple of half a unit of the last digit
  if (Number.isInteger(twice) && twice % 2 !== 0 && Math.abs(twice) < 2 ** 40) {
    const low = (Math.abs(twice) * 5 ** n - 1) / 2, even = low % 2 === 0 ? low : low + 1;
    return (v < 0 ? "-" : "") + (even / 10 ** n).toFixed(n);
  }
  return v.toFixed(n);
};
const grouped = (v) => { const [whole, rest] = String(v).split("."); return whole.replace(/\B(?=(\d{3})+(?!\d))/g, ",") + (rest ? `.${rest}` : ""); };
const digits3 = (v) => {
  if (v === 0) return "0";
  if (Math.abs(v) >= 99.95) return grouped(fixed(v, 0));
  const power = Number(v.toExponential(2).split("e")[1]);
  if (power < -4) return fixed(v, 6).replace(/0+$/, "");
  const text = fixed(v, 2 - power);
  return text.includes(".") ? text.replace(/0+$/, "").replace(/\.$/, "") : text;
};
const TIME_UNITS = [[1e-3, 1e-6, "µs"], [1, 1e-3, "ms"], [120, 1, "s"], [7200, 60, "min"], [345600, 3600, "h"], [Infinity, 86400, "d"]];
const withRange = (span, unit) => {
  const tail = unit ? ` ${unit}` : "";
  return span.low === span.high ? `${digits3(span.value)}${tail}` : `${digits3(span.value)}${tail} (${digits3(span.low)} to ${digits3(span.high)}${tail})`;
};
const duration = (span) => {
  const [, one, unit] = TIME_UNITS.find(([end]) => span.value < end), part = 1 / one;
  return withRange({ value: span.value * part, low: span.low * part, high: span.high * part }, unit);
};
const short = (v) => duration({ value: v, low: v, high: v });
const money = (v) => (v > 0 && v < 0.005 ? "< $0.01" : v < 100 ? `$${grouped(fixed(v, 2))}` : `$${grouped(fixed(v, 0))}`);
const dollars = (span) => (span.low === span.high ? money(span.value) : `${money(span.value)} (${money(span.low)} to ${money(span.high)})`);
const gigabytes = (v) => (v >= 1e9 ? `${digits3(v / 1e9)} GB` : `${digits3(v / 1e6)} MB`);
const percent = (part) => `${fixed(part * 100, 1)} %`;
// "3.1 h (2.6 to 3.9 h)" -> ["3.1 h", "2.6 to 3.9 h"]
const inTwo = (text) => { const at = text.indexOf(" ("); return at < 0 ? [text, ""] : [text.slice(0, at), text.slice(at + 2, -1)]; };
