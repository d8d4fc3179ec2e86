// What stands in the tables: cells with their value, unit and state, sorted by a click, copied as CSV.
const estimated = (span, write, reason) => {
  if (!span) return nothingCell(reason);
  const [value, range] = inTwo(write(span)), [number, unit = ""] = value.split(" "), td = make("td", { class: "est", title: range || "no range" }, `~ ${number}`);
  if (unit) td.append(" ", make("u", { class: "w" }, unit));
  return td;
};
const nothingCell = (reason) => make("td", { class: "no", title: reason, tabindex: "0" }, DASH);
const textCell = (text, look = "text s") => make("td", { class: look }, text);
const rowOf = (cells, values) => { const node = make("tr"); node.append(...cells); return { node, values }; };
const showRows = (table, sort) => {
  const rows = sort.place === undefined ? sort.rows : ordered(sort.rows, (row) => row.values[sort.place] ?? null, sort.way);
  const held = table.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  table.tBodies[0].replaceChildren(...rows.map((row) => row.node));
  if (held !== undefined) table.querySelector(`[data-key="${CSS.escape(held)}"]`)?.focus();
};
const tableOf = (host, heads, sort) => {
  const table = host.querySelector("table"), line = table.tHead.rows[0];
  for (const [label, unit, look, note] of heads) {
    const th = make("th", { scope: "col", class: look ?? "num" }, label);
    if (unit) th.append(make("span", { class: "unit" }, unit));
    if (note) th.title = note;
    line.append(th);
  }
  sortable([...line.cells], (place, way) => { sort.place = place; sort.way = way; showRows(table, sort); });
  const button = make("button", { type: "button", title: "Full values, to the clipboard and as a file" }, "CSV");
  button.addEventListener("click", () => download(host.id, [heads.map(([label, , , , base]) => (base ? `${label} (${base})` : label)), ...sort.rows.map((row) => row.values)]));
  const box = make("span", { class: "controls" });
  box.append(button);
  host.querySelector("figcaption").append(box);
  return (caption, rows) => { sort.rows = rows; host.querySelector("figcaption > span").textContent = caption; showRows(table, sort); };
};
// The five figures below the sentence.
const box = (name, value, lines, look) => {
  const node = make("div", look === "bad" ? { class: "lacks" } : {}), dd = make("dd", { class: look === "no" ? "no" : "est" }, value);
  for (const line of lines) if (line) dd.append(make("small", {}, line));
  node.append(make("dt", {}, name), dd);
  return node;
};
const spanBox = (name, span, write, reason, lines = []) => {
  if (!span) return box(name, DASH, [reason], "no");
  const [value, range] = inTwo(write(span));
  return box(name, `~ ${value}`, [range && `${range}`, ...lines]);
};
const memorySaid = ({ limit, fits, lacking, largest, close }) => {
  if (limit === null) return "how much the device has is not known";
  if (!fits) return `does not fit in ${gigabytes(limit)}: ${gigabytes(lacking)} are missing; ${largest ? `the largest batch that fits is ${grouped(largest)}` : "not even one sample fits"}`;
  return `of ${gigabytes(limit)}: fits${close ? ", but little is left" : ""}${largest === null ? "" : `; largest batch ${grouped(largest)}`}`;
};
