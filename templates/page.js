// Numbers, controls and HTML tables of the page, with the functions that table.js and timeline.js use.
const UP = ["", "k", "M", "G", "T", "P", "E"], DOWN = ["", "m", "µ", "n", "p"];
const digits = (v) => {
  for (const n of [2, 1]) { const t = Math.abs(v).toFixed(n); if (t.replace(".", "").replace(/^0+/, "").length <= 3) return v.toFixed(n); }
  return v.toFixed(0);
};
const si = (v) => {
  const a = Math.abs(v);
  if (a === 0) return "0";
  if (Number.isInteger(v) && a < 1000) return String(v);
  let n = 0;
  if (a >= 1) { while (n < 6 && a / 1000 ** n >= 999.5) n++; return `${digits(v / 1000 ** n)} ${UP[n]}`.trim(); }
  while (n < 4 && a * 1000 ** n < 0.9995) n++;
  return `${digits(v * 1000 ** n)} ${DOWN[n]}`.trim();
};
const time = (ns) => { // one division, as numbers.py: of 5.855 ms, a second one makes 5.8549999
  const a = Math.abs(ns), n = [1, 1e3, 1e6].findIndex((size) => a < 999.5 * size);
  if (a >= 1 && n >= 0) return `${digits(ns / 1000 ** n)} ${["ns", "µs", "ms"][n]}`;
  if (a < 1) { const [number, prefix = ""] = si(ns / 1e9).split(" "); return `${number} ${prefix}s`; }
  const [size, unit] = a < 999.5e9 ? [1e9, "s"] : a < 7200e9 ? [60e9, "min"] : a < 96 * 3600e9 ? [3600e9, "h"] : [86400e9, "d"];
  return `${digits(ns / size)} ${unit}`;
};
const grouped = (v) => { const [whole, rest] = String(v).split("."); return whole.replace(/\B(?=(\d{3})+(?!\d))/g, ",") + (rest ? `.${rest}` : ""); };
const make = (tag, attributes = {}, text) => {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
};
const download = (name, rows) => {
  const guarded = (v) => { const t = v === null || v === undefined ? "" : String(v); return typeof v === "string" && /^[=+\-@\t\r\uff1d\uff0b\uff0d\uff20]/.test(t) && Number.isNaN(Number(t)) ? "'" + t : t; }; // no spreadsheet runs it
  const quote = (v) => { const t = guarded(v); return /[",\r\n]/.test(t) ? `"${t.replaceAll('"', '""')}"` : t; };
  const text = rows.map((row) => row.map(quote).join(",")).join("\n") + "\n";
  navigator.clipboard?.writeText(text).catch(() => {});
  const link = make("a", { download: name + ".csv" });
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000); // not at once: a slow machine has not begun to save it
};
const collator = new Intl.Collator("en", { numeric: true });
const compare = (a, b) => (a === null) - (b === null) || (typeof a === "number" && typeof b === "number" ? a - b : collator.compare(String(a), String(b)));
const controls = (onFilter, onCsv) => {
  const box = make("span", { class: "controls" });
  const input = make("input", { type: "search", placeholder: "filter", "aria-label": "Filter rows" });
  const count = make("span", { class: "more", role: "status" });
  let wait;
  input.addEventListener("input", () => { clearTimeout(wait); wait = setTimeout(() => { const n = onFilter(input.value.toLowerCase()); count.textContent = input.value ? `${n} shown` : ""; }, 60); });
  const button = make("button", { type: "button", title: "Full values, to the clipboard and as a file" }, "CSV");
  button.addEventListener("click", onCsv);
  box.append(count, input, button);
  return box;
};
const sortable = (heads, onSort) => {
  heads.forEach((th, place) => {
    th.classList.add("sortable");
    th.tabIndex = 0;
    const act = () => {
      const down = th.getAttribute("aria-sort") !== "descending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      th.setAttribute("aria-sort", down ? "descending" : "ascending");
      onSort(place, down ? -1 : 1);
    };
    th.addEventListener("click", act);
    th.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); act(); } });
  });
};
// A table is one tab stop: arrow keys move between what can have the focus in it. Returns a function to call when rows went.
const CELLS = "a[href], summary, th[tabindex], td[tabindex]";
const rove = (table, wanted = CELLS) => {
  const all = () => [...table.querySelectorAll(wanted)], cellOf = (node) => node.closest("td, th"), left = (node) => Math.round(cellOf(node).getBoundingClientRect().left);
  const stop = (chosen) => all().forEach((node) => { node.tabIndex = node === chosen ? 0 : -1; });
  table.addEventListener("focusin", (event) => { if (event.target.matches(wanted)) stop(event.target); });
  table.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key], here = event.target;
    if (!by || !here.matches(wanted)) return;
    const rowOf = (node) => node.closest("tr").rowIndex, nodes = all().filter((node) => node.checkVisibility());
    const along = /Left|Right/.test(event.key) ? nodes.filter((node) => rowOf(node) === rowOf(here)) : nodes.filter((node) => node === here || (rowOf(node) !== rowOf(here) && left(node) === left(here) && all().find((one) => cellOf(one) === cellOf(node)) === node));
    const next = along[along.indexOf(here) + by];
    if (!next) return;
    event.preventDefault();
    next.focus();
  });
  table.closest(".scroll")?.removeAttribute("tabindex"); // what is in it has the focus
  const settle = () => { const nodes = all(), at = nodes.find((node) => node.tabIndex === 0 && node.checkVisibility()); stop(at ?? nodes.find((node) => node.checkVisibility()) ?? nodes[0]); };
  settle();
  return settle;
};
const valueOf = (td) => {
  if (!td || td.classList.contains("no") || td.classList.contains("refused")) return null;
  const raw = td.dataset.v ?? (td.lastElementChild?.tagName === "U" && td.title ? parseFloat(td.title.replaceAll(",", "")) : td.textContent.trim());
  return raw !== "" && !Number.isNaN(Number(raw)) ? Number(raw) : raw;
};
const ordered = (items, key, way) => items.map((item) => [key(item), item]).sort((a, b) => {
  const empty = (a[0] === null) - (b[0] === null);
  return empty || way * compare(a[0], b[0]);
}).map((pair) => pair[1]);

// HTML tables: sort, filter, CSV.
document.querySelectorAll("figure.table").forEach((figure) => {
  const table = figure.querySelector("table"), heads = [...table.tHead.rows[0].cells];
  const ledger = table.classList.contains("ledger");
  const lines = (body) => [...body.rows].filter((row) => !row.classList.contains("why"));
  const units = () => (ledger ? [...table.tBodies] : [...table.tBodies[0].rows]);
  sortable(heads, (place, way) => {
    const key = ledger
      ? (body) => (place === 0 ? body.rows[0].cells[0].textContent : valueOf(lines(body).at(-1).cells[lines(body).length > 1 ? place - 1 : place]))
      : (row) => valueOf(row.cells[place]);
    const holder = ledger ? table : table.tBodies[0];
    holder.append(...ordered(units(), key, way));
  });
  const settle = rove(table);
  if (!figure.classList.contains("tools")) return;
  const filter = (text) => {
    const shown = units().filter((unit) => { unit.hidden = !(ledger ? unit.rows[0].cells[0] : unit).textContent.toLowerCase().includes(text); return !unit.hidden; });
    settle();
    return shown.length;
  };
  const csv = () => {
    const label = (th) => { const text = [...th.childNodes].map((node) => node.textContent).join(" ").trim(); return th.dataset.unit ? `${text} (${th.dataset.unit})` : text; };
    const rows = [];
    for (const body of table.tBodies) {
      const th = body.querySelector("th"), name = th ? [...th.childNodes].slice(0, 2).map((node) => node.textContent).join("").trim() : "";
      for (const row of lines(body)) if (!row.hidden && !body.hidden) { const cells = [...row.cells].filter((c) => c.tagName === "TD").map(valueOf); rows.push(ledger ? [name, ...cells] : cells); }
    }
    download(figure.closest("section")?.id || "table", [heads.map(label), ...rows]);
  };
  const box = controls(filter, csv), caption = figure.querySelector("figcaption");
  caption ? caption.append(box) : figure.prepend(box);
});


// The whole ledger folds below its matrix; without JavaScript, and in print, it stands open.
document.querySelectorAll(".table-fold").forEach((part) => { part.open = false; });
// Links into a closed part open it, also from another page.
const reveal = () => {
  let node = document.getElementById(address.place());
  if (node && location.hash.includes("?")) node.scrollIntoView(); // the browser looks for the whole text
  for (; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
};
window.addEventListener("hashchange", reveal);
window.addEventListener("load", reveal); // when everything above has its height
reveal();

// Charts: the label of the point under the pointer, or of the one that the arrow keys choose.
const tip = make("div", { class: "tip", hidden: "", role: "status" });
document.body.append(tip);
const showTip = (text, box) => {
  tip.textContent = text;
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect(), wide = document.documentElement.clientWidth;
  tip.style.left = `${Math.max(4, Math.min(wide - width - 4, box.left + box.width / 2 - width / 2)) + scrollX}px`;
  tip.style.top = `${(box.top > height + 10 ? box.top - height - 6 : box.bottom + 6) + scrollY}px`;
};
const hideTip = () => { tip.hidden = true; };
// The pointer and the arrow keys point at a point; where points can be chosen, Enter and a click choose it.
const liveChart = (svg, take) => {
  const spots = [...svg.querySelectorAll(".hit")], linkOf = (spot) => spot?.closest("a");
  let at = -1;
  spots.forEach((spot) => { if (linkOf(spot)) linkOf(spot).setAttribute("tabindex", "-1"); }); // the drawing is one tab stop
  const go = (place, focus) => {
    spots[at]?.classList.remove("on");
    at = place;
    if (at < 0) { hideTip(); return; }
    spots[at].classList.add("on");
    if (focus) linkOf(spots[at])?.focus();
    showTip(spots[at].dataset.tip, spots[at].getBoundingClientRect());
  };
  spots.forEach((spot, place) => {
    spot.addEventListener("pointerenter", () => go(place));
    spot.addEventListener("pointerleave", () => go(-1));
    if (take) spot.addEventListener("click", () => take(Number(spot.dataset.x)));
  });
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) { event.preventDefault(); go((at + step + spots.length) % spots.length, true); }
    if (take && event.key === "Enter" && at >= 0) take(Number(spots[at].dataset.x));
    if (event.key === "Escape") go(-1);
  });
  svg.addEventListener("focusout", (event) => { if (!svg.contains(event.relatedTarget)) go(-1); });
};
document.querySelectorAll("svg.chart:has(.hit)").forEach((svg) => {
  svg.querySelectorAll(".hit").forEach((spot) => {
    const title = spot.querySelector("title");
    spot.dataset.tip = title.textContent;
    title.remove();
  });
  svg.tabIndex = 0;
  liveChart(svg);
});
