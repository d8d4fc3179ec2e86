// Long tables: compact columns, of which only the rows on the screen are drawn.
// Each value in the unit that suits it, as numbers.py writes it.
const scaled = (v, { kind, unit }) => {
  const [number, prefix = ""] = (kind === "si" ? si(v) : time(v)).split(" ");
  return [number, kind === "si" ? `${prefix}${prefix && !/^[FBHJW]/.test(unit) ? " " : ""}${unit}` : prefix];
};
const FORMAT = { time: scaled, si: scaled, int: (v) => [String(v)], text: (v) => [String(v)], code: (v) => [String(v)] };
const HEIGHT = 24, SCREEN = 480, CODE = 420, SAMPLES = 400;
const wordy = (column) => column.kind === "code" || column.kind === "text";

// Integers as report/tables.py packs them: seven bits a byte, the lowest first, the eighth says that more follow.
// As differences: each is the value less the one before, 0, -1, 1, -2, ... as 0, 1, 2, 3, ...
const integers = (text, count, differences = false) => {
  const values = new Float64Array(count), raw = atob(text);
  if (!text) return values;
  for (let n = 0, at = 0, sum = 0; n < count; n++) {
    let value = 0, scale = 1, byte;
    do { byte = raw.charCodeAt(at++); value += (byte & 127) * scale; scale *= 128; } while (byte > 127);
    values[n] = differences ? sum += value % 2 ? -(value + 1) / 2 : value / 2 : value;
  }
  return values;
};

// A function from row number to value; report/tables.py packs the columns.
const reader = (column, rows) => {
  if ("c" in column) return () => column.c;
  if (column.r) {
    column.i = new Uint32Array(rows);
    for (let n = 0, at = 0; n < column.r.length; n += 2) column.i.fill(column.r[n], at, at += column.r[n + 1]);
  }
  else if (column.d) column.i = integers(column.i, rows);
  if (column.d) return (row) => column.d[column.i[row]];
  if (column.s) {
    const all = integers(column.s, rows, true);
    return (row) => column.b + all[row];
  }
  return (row) => column.v[row];
};

// The sort key of a column, a number a row; NaN where there is no value.
const keysOf = (column, rows) => {
  const keys = new Float64Array(rows);
  if (wordy(column)) {
    const known = [...new Set(Array.from({ length: rows }, (_, row) => column.get(row)))].filter((v) => v !== null);
    const rank = new Map(known.map(String).sort(collator.compare).map((text, place) => [text, place]));
    for (let row = 0; row < rows; row++) { const v = column.get(row); keys[row] = v === null ? NaN : rank.get(String(v)); }
  } else {
    for (let row = 0; row < rows; row++) { const v = column.get(row); keys[row] = v === null ? NaN : v; }
  }
  return keys;
};
const byKeys = (order, keys, way) => order.slice().sort((a, b) => {
  const x = keys[a], y = keys[b];
  if (x !== x || y !== y) return (x !== x) - (y !== y);
  return way * (x - y);
});

// The rows with the text in one of their words.
const rowsWith = (columns, order, text) => {
  const tests = columns.filter(wordy).map((column) => {
    const hit = (v) => v !== null && `${column.short?.[v] ?? ""}\n${v}`.toLowerCase().includes(text);
    if ("c" in column) { const all = hit(column.c); return () => all; }
    if (column.d) { const hits = column.d.map(hit); return (row) => hits[column.i[row]]; }
    return (row) => hit(column.get(row));
  });
  return order.filter((row) => tests.some((test) => test(row)));
};

const cellOf = (column, row) => {
  const value = column.get(row), [style, mark, why] = column.how ? column.how(row) : ["", "", ""];
  const kind = wordy(column) ? column.kind : "";
  if (value === null) {
    const cell = make("td", { class: `${style || "no"} ${kind}`, title: why || "not in this report" }, style === "refused" ? undefined : "–");
    if (style === "refused") cell.append(make("s", {}, "refused"));
    return cell;
  }
  const [text, unit] = FORMAT[column.kind](column.short?.[value] ?? value, column);
  const cell = make("td", { class: `${style} ${kind}`.trim() }, mark + text);
  if (unit) cell.append("\u00a0", make("u", {}, unit));
  if (column.kind !== "int") cell.title = [`${typeof value === "number" ? grouped(value) : value} ${column.unit}`.trim(), why].filter(Boolean).join("; ");
  return cell;
};

const headOf = (column) => {
  const brief = column.label.length > 22 ? "…" + column.label.slice(-21) : column.label;
  const th = make("th", { scope: "col", title: column.label, class: wordy(column) ? "text" : "num" }, brief);
  return th;
};

document.querySelectorAll("figure.launches").forEach((figure) => {
  const { rows, columns } = JSON.parse(figure.querySelector("script").textContent);
  for (const column of columns) {
    column.get = reader(column, rows);
    column.how = column.state && reader(column.state, rows);
  }
  let order = Uint32Array.from({ length: rows }, (_, n) => n), shown = order, wanted = "";
  const scroll = make("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": figure.dataset.name });
  const table = make("table", { "aria-rowcount": rows + 1 }), group = make("colgroup"), head = make("thead"), line = make("tr"), body = make("tbody");
  const constant = columns.filter((c) => rows > 1 && "c" in c && (wordy(c) || c.kind === "int")), drawn = columns.filter((c) => !constant.includes(c)); // one value for all rows stands above them
  const widths = drawn.map((c) => { // as its values need, by a sample of them
    let most = Math.min(c.label.length, 22) + 2;
    for (const v of c.d ?? Array.from({ length: SAMPLES }, (_, n) => c.get(Math.floor((n * rows) / SAMPLES)))) if (v !== null) most = Math.max(most, FORMAT[c.kind](c.short?.[v] ?? v, c).join(" ").length);
    return Math.min(most * (c.kind === "code" ? 7.5 : 9) + 16, c.kind === "code" ? CODE : 176);
  });
  const names = drawn.map((c, place) => place).filter((place) => drawn[place].kind === "code"), over = widths.reduce((a, b) => a + b, 0) - figure.clientWidth;
  if (over > 0) for (const place of names) widths[place] = Math.max(120, widths[place] - over / names.length); // long names give way first
  drawn.forEach((column, place) => { const col = make("col"); col.style.width = `${widths[place]}px`; group.append(col); line.append(headOf(column)); });
  table.style.width = `${widths.reduce((a, b) => a + b, 0)}px`;
  head.append(line); table.append(group, head, body); scroll.append(table); figure.append(scroll);
  scroll.style.height = `${Math.min(SCREEN, rows * HEIGHT + 64)}px`; // a height of its own, so that drawing rows leaves the rest of the page alone
  const gap = (n) => { const row = make("tr", { class: "gap", "aria-hidden": "true" }), cell = make("td", { colspan: drawn.length }); cell.style.height = `${n * HEIGHT}px`; row.append(cell); return row; };
  const draw = () => {
    const first = Math.max(0, Math.min(Math.floor(scroll.scrollTop / HEIGHT), shown.length) - 10), last = Math.min(shown.length, first + Math.ceil(SCREEN / HEIGHT) + 20);
    const lines = Array.from(shown.slice(first, last), (row, place) => {
      const tr = make("tr", { "aria-rowindex": first + place + 2 });
      tr.append(...drawn.map((column) => cellOf(column, row)));
      return tr;
    });
    body.replaceChildren(gap(first), ...lines, gap(shown.length - last));
  };
  const filter = (text) => {
    wanted = text;
    shown = text ? rowsWith(columns, order, text) : order;
    scroll.scrollTop = 0;
    draw();
    return shown.length;
  };
  sortable([...line.cells], (place, way) => { order = byKeys(order, drawn[place].keys ??= keysOf(drawn[place], rows), way); filter(wanted); });
  rove(table);
  const csv = () => download(figure.id, [columns.map((c) => (c.unit ? `${c.label} (${c.unit})` : c.label)), ...Array.from(shown, (row) => columns.map((c) => c.get(row)))]);
  const caption = figure.querySelector("figcaption");
  for (const c of constant) caption.append(make("span", { class: "more", title: c.c }, `${c.label}: ${c.short?.[c.c] ?? c.c}`));
  caption.append(controls(filter, csv));
  const telling = drawn.findIndex((c) => c.label === "time"), executed = drawn.findIndex((c) => c.label === "executed");
  if (columns.some((c) => c.label === "launch") && Math.max(telling, executed) >= 0) line.cells[telling >= 0 ? telling : executed].click(); // the longest launches first
  let pending = false;
  scroll.addEventListener("scroll", () => { if (!pending) { pending = true; requestAnimationFrame(() => { pending = false; draw(); }); } });
  draw();
});
