// The trail: from a figure to kernels, counts, formula, rule and source. The panel shows what the page carries.
(() => {
  const known = new Map();
  document.querySelectorAll("script.trails").forEach((script) => known.set(script.dataset.study, JSON.parse(script.textContent)));
  const read = (study, key) => { // numbers stand for texts, which the page carries once
    const { text, trails } = known.get(study) ?? { trails: {} }, words = (list) => list.map((n) => text[n]);
    if (!trails[key]) return null;
    const [title, steps] = trails[key];
    return { title: text[title], steps: steps.map(([name, lines, heads, rows, code]) => ({ title: text[name], lines: words(lines), heads: words(heads), rows: rows.map(words), code: words(code) })) };
  };
  if (!known.size) return;
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
    if (address.get("trail")) address.close("trail");
    opener?.focus();
  };
  const open = (study, key, from) => {
    const found = read(study, key);
    if (!found) return false;
    opener = from ?? null;
    const shut = make("button", { type: "button", "aria-label": "Close" }, "close");
    shut.addEventListener("click", close);
    address.put("trail", `${study}/${key}`, from ? `${study}-ledger` : undefined, Boolean(from));
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
    if (!asked) close();
    else if (asked !== shown) open(study, key.join("/"));
  };
  window.addEventListener("hashchange", fromAddress);
  fromAddress();
})();

// Names of layers light up all that is of the layer: buttons, in one tab stop a table, with arrow keys from name to name.
document.querySelectorAll("figure.matrix table, table.ledger").forEach((table) => {
  table.querySelectorAll("tbody [data-layer] > th > b, tbody > tr > th[data-layer] > b").forEach((name) => {
    name.setAttribute("role", "button");
    name.dataset.namesLayer = "";
    name.tabIndex = 0;
    name.title = "Light up this layer in every view";
  });
  table.addEventListener("keydown", (event) => {
    if (!event.target.matches("[data-names-layer]") || (event.key !== "Enter" && event.key !== " ")) return;
    event.preventDefault();
    event.target.click();
  });
  rove(table, "[data-names-layer]");
});

// The matrix: a switch of what its cells show.
document.querySelectorAll("figure.matrix").forEach((figure) => {
  rove(figure.querySelector("table"));
  const measure = (name) => { figure.dataset.measure = name; };
  figure.querySelectorAll("input").forEach((input) => input.addEventListener("change", () => { measure(input.value); address.put(input.name, input.value); }));
  const input = [...figure.querySelectorAll("input")].find((one) => address.get(one.name) === one.value);
  if (input) { input.checked = true; measure(input.value); }
});
