// The trail: from a figure to kernels, counts, formula, rule and source. The panel shows what the page carries.
const trailOf = (() => {
  const known = new Map();
  document.querySelectorAll("script.trails").forEach((script) => known.set(script.dataset.study, JSON.parse(script.textContent)));
  const read = (study, key) => { // numbers stand for texts, which the page carries once
    const { text, trails } = known.get(study) ?? { trails: {} }, words = (list) => list.map((n) => text[n]);
    if (!trails[key]) return null;
    const [title, steps] = trails[key];
    return { title: text[title], steps: steps.map(([name, lines, heads, rows, code]) => ({ title: text[name], lines: words(lines), heads: words(heads), rows: rows.map(words), code: words(code) })) };
  };
  if (!known.size) return null;
  const panel = make("aside", { class: "trail", role: "dialog", "aria-label": "Where the figure comes from", tabindex: "-1", hidden: "" });
  document.body.append(panel);
  let opener = null, shown = "";
  const whole = (text) => { const name = known.get(shown.split("/")[0])?.names?.[text.split(" <<<")[0]]; return name ? { title: name } : {}; };
  const table = (step) => {
    const node = make("table"), head = node.createTHead().insertRow(), body = node.createTBody();
    step.heads.forEach((text) => head.append(make("th", { scope: "col" }, text)));
    step.rows.forEach((cells) => { const row = body.insertRow(); cells.forEach((text) => row.append(make("td", whole(text), text))); });
    const box = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": step.title });
    box.append(node);
    return box;
  };
  const part = (step) => {
    const item = make("li");
    item.append(make("h3", {}, step.title));
    step.lines.forEach((text) => item.append(make("p", {}, text)));
    if (step.rows.length) item.append(table(step));
    step.code.forEach((text) => item.append(make("code", {}, text)));
    return item;
  };
  const close = () => {
    if (panel.hidden) return;
    panel.hidden = true;
    shown = "";
    document.querySelectorAll("[data-trail][aria-current]").forEach((node) => node.removeAttribute("aria-current"));
    address.put("trail", null);
    opener?.focus();
  };
  const open = (study, key, from) => {
    const found = read(study, key);
    if (!found) return false;
    opener = from ?? null;
    const shut = make("button", { type: "button", "aria-label": "Close" }, "close");
    shut.addEventListener("click", close);
    const steps = make("ol"), head = make("header");
    shown = `${study}/${key}`;
    found.steps.forEach((step) => steps.append(part(step)));
    const [direction, layer] = [key.split("/").at(-2), key.split("/").slice(0, -2).join("/")];
    head.append(make("h2", layer ? { "data-layer": layer, "data-direction": direction } : {}, found.title), shut);
    panel.replaceChildren(head, steps);
    panel.hidden = false;
    panel.scrollTop = 0;
    if (layer && (layers.current.layer !== layer || layers.current.direction !== direction)) layers.light(layer, direction);
    else panel.querySelectorAll("[data-layer]").forEach(layers.mark);
    document.querySelectorAll("[data-trail]").forEach((node) => node.toggleAttribute("aria-current", node.dataset.trail === key && node.closest("article")?.id === study));
    document.querySelectorAll("[data-trail][aria-current]").forEach((node) => node.setAttribute("aria-current", "true"));
    address.put("trail", `${study}/${key}`, from ? `${study}-ledger` : undefined);
    panel.focus();
    return true;
  };
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-trail]");
    if (link && open(link.closest("article").id, link.dataset.trail, link)) event.preventDefault();
  });
  document.addEventListener("keydown", (event) => { // the first Escape closes the panel, the next ends the light
    if (event.key !== "Escape" || panel.hidden) return;
    event.preventDefault();
    close();
  }, true);
  const fromAddress = () => {
    const asked = address.get("trail") ?? "", [study, ...key] = asked.split("/");
    if (asked && asked !== shown) open(study, key.join("/"));
  };
  window.addEventListener("hashchange", fromAddress);
  fromAddress();
  return open;
})();

// Names of layers light up all that is of the layer: buttons, in one tab stop a table, with arrow keys from name to name.
const namesOf = (table) => {
  const names = [...table.querySelectorAll("tbody [data-layer] > th > b, tbody > tr > th[data-layer] > b")];
  names.forEach((name, place) => {
    name.setAttribute("role", "button");
    name.dataset.namesLayer = "";
    name.tabIndex = place ? -1 : 0;
    name.title = "Light up this layer in every view";
  });
  table.addEventListener("keydown", (event) => {
    const place = names.indexOf(event.target), by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (place < 0) return;
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); event.target.click(); }
    const next = by && names.slice(by > 0 ? place + 1 : 0, by > 0 ? undefined : place).filter((name) => name.checkVisibility()).at(by > 0 ? 0 : -1);
    if (!next) return;
    event.preventDefault();
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
};
document.querySelectorAll("figure.matrix table, table.ledger").forEach(namesOf);

// The matrix: one tab stop, arrow keys from cell to cell, and a switch of what its cells show.
document.querySelectorAll("figure.matrix").forEach((figure) => {
  const grid = [...figure.querySelectorAll("tbody tr")].map((row) => [...row.cells].slice(1).map((cell) => cell.querySelector("a")));
  const all = grid.flat().filter(Boolean);
  const stop = (link) => { all.forEach((one) => { one.tabIndex = one === link ? 0 : -1; }); };
  stop(all[0]);
  figure.addEventListener("keydown", (event) => {
    const move = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    const row = grid.findIndex((line) => line.includes(event.target));
    if (!move || row < 0) return;
    event.preventDefault();
    let [y, x] = [row, grid[row].indexOf(event.target)];
    do { y += move[0]; x += move[1]; } while (grid[y] && x in grid[y] && !grid[y][x]);
    const next = grid[y]?.[x];
    if (next) { stop(next); next.focus(); }
  });
  figure.addEventListener("focusin", (event) => { if (all.includes(event.target)) stop(event.target); });
  const measure = (name) => { figure.dataset.measure = name; };
  figure.querySelectorAll("input").forEach((input) => input.addEventListener("change", () => { measure(input.value); address.put(input.name, input.value); }));
  const input = [...figure.querySelectorAll("input")].find((one) => address.get(one.name) === one.value);
  if (input) { input.checked = true; measure(input.value); }
});
