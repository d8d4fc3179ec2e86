"use strict";
(() => {
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
  // Number and unit of a cell; the number is padded so that decimal points stand below each other.
  const pad = (t) => { const n = (t.split(".")[1] ?? "").length; return n > 2 ? t : t + (n ? "" : "\u2008") + "\u2007".repeat(2 - n); };
  const apart = (t) => { const [number, unit = ""] = t.split(" "); return [pad(number), unit]; };
  const time = (ns) => { const [number, prefix] = apart(si(ns / 1e9)); return [number, prefix + "s"]; };
  const FORMAT = { time, start: (ns, column) => time(ns - column.from), si: (v) => apart(si(v)), int: (v) => [String(v)], text: (v) => [String(v)], code: (v) => [String(v)] };
  const make = (tag, attributes = {}, text) => {
    const node = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const download = (name, rows) => {
    const quote = (v) => { const t = v === null || v === undefined ? "" : String(v); return /[",\n]/.test(t) ? `"${t.replaceAll('"', '""')}"` : t; };
    const text = rows.map((row) => row.map(quote).join(",")).join("\n") + "\n";
    navigator.clipboard?.writeText(text).catch(() => {});
    const link = make("a", { download: name + ".csv" });
    link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    link.click();
    URL.revokeObjectURL(link.href);
  };
  const compare = (a, b) => (a === null) - (b === null) || (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
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
  const valueOf = (td) => {
    if (!td || td.classList.contains("no") || td.classList.contains("refused")) return null;
    const raw = td.dataset.v ?? (td.lastElementChild?.tagName === "U" && td.title ? parseFloat(td.title.replaceAll("\u202f", "")) : td.textContent.trim());
    return raw !== "" && !Number.isNaN(Number(raw)) ? Number(raw) : raw;
  };
  const ordered = (items, key, way) => items.map((item) => [key(item), item]).sort((a, b) => {
    const empty = (a[0] === null) - (b[0] === null);
    return empty || way * compare(a[0], b[0]);
  }).map((pair) => pair[1]);

  // Tables that stand in the page: sort, filter, CSV.
  document.querySelectorAll("figure.table").forEach((figure) => {
    const table = figure.querySelector("table"), heads = [...table.tHead.rows[0].cells];
    const ledger = table.classList.contains("ledger");
    const units = () => (ledger ? [...table.tBodies] : [...table.tBodies[0].rows]);
    sortable(heads, (place, way) => {
      const key = ledger
        ? (body) => (place === 0 ? body.rows[0].cells[0].textContent : valueOf(body.rows[body.rows.length - 1].cells[body.rows.length > 1 ? place - 1 : place]))
        : (row) => valueOf(row.cells[place]);
      const holder = ledger ? table : table.tBodies[0];
      holder.append(...ordered(units(), key, way));
    });
    if (!figure.classList.contains("tools")) return;
    const filter = (text) => units().filter((unit) => { unit.hidden = !(ledger ? unit.rows[0].cells[0] : unit).textContent.toLowerCase().includes(text); return !unit.hidden; }).length;
    const csv = () => {
      const label = (th) => { const text = [...th.childNodes].map((node) => node.textContent).join(" ").trim(); return th.dataset.unit ? `${text} (${th.dataset.unit})` : text; };
      const rows = [];
      for (const body of table.tBodies) {
        const th = body.querySelector("th"), name = th ? [...th.childNodes].slice(0, 2).map((node) => node.textContent).join("").trim() : "";
        for (const row of body.rows) if (!row.hidden && !body.hidden) { const cells = [...row.cells].filter((c) => c.tagName === "TD").map(valueOf); rows.push(ledger ? [name, ...cells] : cells); }
      }
      download(figure.closest("section")?.id || "table", [heads.map(label), ...rows]);
    };
    const box = controls(filter, csv), caption = figure.querySelector("figcaption");
    caption ? caption.append(box) : figure.prepend(box);
  });

  // The launches: compact columns, of which only the visible rows are drawn.
  const reader = (column, rows) => {
    if ("c" in column) return () => column.c;
    if (column.r) { column.i = new Uint32Array(rows); for (let n = 0, at = 0; n < column.r.length; n += 2) column.i.fill(column.r[n], at, at += column.r[n + 1]); }
    if (column.d) return (row) => column.d[column.i[row]];
    if (column.s) { const all = new Array(rows); let sum = 0; for (let n = 0; n < rows; n++) all[n] = sum += column.s[n]; return (row) => all[row]; }
    return (row) => column.v[row];
  };
  const WIDTH = { code: 170, text: 112, int: 84, time: 104, start: 104, si: 124 }, HEIGHT = 24;
  document.querySelectorAll("figure.launches").forEach((figure) => {
    const data = JSON.parse(figure.querySelector("script").textContent);
    const columns = data.columns.map((column) => Object.assign(column, { get: reader(column, data.rows), how: column.state && reader(column.state, data.rows) }));
    for (const column of columns) if (column.kind === "start") { column.from = Infinity; for (let n = 0; n < data.rows; n++) { const v = column.get(n); if (v !== null && v < column.from) column.from = v; } }
    let order = Array.from({ length: data.rows }, (_, n) => n), shown = order;
    const scroll = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Every launch" });
    const table = make("table", { "aria-rowcount": data.rows + 1 }), group = make("colgroup"), head = make("thead"), line = make("tr"), body = make("tbody");
    let width = 0;
    for (const column of columns) {
      const wide = column.label === "kernel" ? 420 : column.label.length > 14 ? 176 : WIDTH[column.kind];
      width += wide;
      group.append(make("col", { style: `width:${wide}px` }));
      const brief = column.label.length > 22 ? "…" + column.label.slice(-21) : column.label;
      const th = make("th", { scope: "col", title: column.label, class: column.kind === "code" || column.kind === "text" ? "text" : "num" }, brief);
      if (column.unit && column.kind === "si") th.append(make("span", { class: "unit" }, column.unit));
      line.append(th);
    }
    table.style.width = `${width}px`;
    head.append(line); table.append(group, head, body); scroll.append(table); figure.append(scroll);
    const draw = () => {
      const first = Math.max(0, Math.floor(scroll.scrollTop / HEIGHT) - 10), last = Math.min(shown.length, first + Math.ceil(480 / HEIGHT) + 20);
      const rows = [];
      const gap = (n) => { const row = make("tr", { class: "gap", "aria-hidden": "true" }), cell = make("td", { colspan: columns.length }); cell.style.height = `${n * HEIGHT}px`; row.append(cell); return row; };
      rows.push(gap(first));
      for (let n = first; n < last; n++) {
        const row = make("tr", { "aria-rowindex": n + 2 });
        for (const column of columns) {
          const value = column.get(shown[n]);
          const [look, mark, why] = column.how ? column.how(shown[n]) : ["", "", ""];
          const kind = column.kind === "code" || column.kind === "text" ? column.kind : "";
          if (value === null) {
            const cell = make("td", { class: `${look || "no"} ${kind}`, title: why || "not in this report" }, look === "refused" ? undefined : "–");
            if (look === "refused") cell.append(make("s", {}, "refused"));
            row.append(cell);
            continue;
          }
          const [text, unit] = FORMAT[column.kind](value, column);
          const cell = make("td", { class: `${look} ${kind}`.trim() }, mark + text);
          if (unit !== undefined) cell.append(" ", make("u", column.kind === "si" ? {} : { class: "w" }, unit));
          if (column.kind !== "int") cell.title = [`${value} ${column.unit}`.trim(), why].filter(Boolean).join("; ");
          row.append(cell);
        }
        rows.push(row);
      }
      rows.push(gap(shown.length - last));
      body.replaceChildren(...rows);
    };
    let wanted = "";
    const filter = (text) => {
      wanted = text;
      const named = columns.filter((column) => column.kind === "code" || column.kind === "text").map((column) => {
        if ("c" in column) { const hit = String(column.c).toLowerCase().includes(text); return () => hit; }
        if (column.d) { const hits = column.d.map((v) => v !== null && String(v).toLowerCase().includes(text)); return (row) => hits[column.i[row]]; }
        return (row) => { const v = column.get(row); return v !== null && String(v).toLowerCase().includes(text); };
      });
      shown = text ? order.filter((row) => named.some((test) => test(row))) : order;
      scroll.scrollTop = 0;
      draw();
      return shown.length;
    };
    sortable([...line.cells], (place, way) => { order = ordered(order, columns[place].get, way); filter(wanted); });
    figure.querySelector("figcaption").append(controls(filter, () => download(figure.id, [columns.map((c) => c.unit ? `${c.label} (${c.unit})` : c.label), ...shown.map((row) => columns.map((c) => c.get(row)))])));
    let pending = false;
    scroll.addEventListener("scroll", () => { if (!pending) { pending = true; requestAnimationFrame(() => { pending = false; draw(); }); } });
    draw();
  });
})();
