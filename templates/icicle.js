// The icicle: the time of a step from top to bottom, step, layers, direction, kernels. A click enters a part.
document.querySelectorAll("figure.icicle").forEach((figure) => {
  const views = JSON.parse(figure.querySelector("script").textContent), key = figure.dataset.key;
  const field = make("div", { class: "field" }), way = make("p", { class: "way" }), words = make("span"), proof = make("span"), note = make("p", { class: "note" });
  let view, below, depth, at = 0;
  const path = (n) => (n < 0 ? [] : [...path(view.parent[n]), n]);
  const share = (n, of) => `${((100 * view.value[n]) / view.value[of]).toPrecision(3)}%`;
  const said = (n) => (n ? `${path(n).slice(1).map((one) => view.name[one]).join(" › ")}: ${exact(view.value[n])}, ${share(n, 0)} of the ${view.name[0]}` : `${view.name[0]}: ${exact(view.value[0])}`);
  const layerOf = (n) => (n < 0 ? null : view.layer[n] || layerOf(view.parent[n])), wayOf = (n) => (n < 0 ? null : view.direction[n] || wayOf(view.parent[n]));
  const belongs = (node, n) => { if (layerOf(n)) { node.dataset.layer = layerOf(n); if (wayOf(n)) node.dataset.direction = wayOf(n); layers.mark(node); } };
  const enter = (n, focus) => { at = n; address.put(`icicle.${key}`, n ? `${views.indexOf(view)}:${path(n).slice(1).map((one) => view.name[one]).join("›")}` : null, n && key); draw(focus); };
  const part = (n, left, width, row) => {
    if (width < 0.12) return;
    const node = make("button", { type: "button", title: said(n), style: `--c:var(--s${view.colour[n]});left:${left}%;width:${width}%;top:${row * 1.6}rem` }, width > 2 ? view.name[n] : "");
    node.dataset.n = n;
    node.setAttribute("aria-label", said(n));
    belongs(node, n);
    field.append(node);
    let x = left;
    below[n].forEach((child) => { const wide = (width * view.value[child]) / view.value[n]; part(child, x, wide, row + 1); x += wide; });
    depth = Math.max(depth, row + 1);
  };
  const draw = (focus) => {
    field.replaceChildren();
    depth = 0;
    const above = path(at).slice(0, -1);
    above.forEach((n, row) => { const node = make("button", { type: "button", class: "above", title: said(n), style: `left:0;width:100%;top:${row * 1.6}rem` }, view.name[n]); node.dataset.n = n; field.append(node); });
    part(at, 0, 100, above.length);
    field.style.height = `${depth * 1.6}rem`;
    const nodes = [...field.children];
    nodes.forEach((node) => { node.tabIndex = Number(node.dataset.n) === at ? 0 : -1; });
    words.textContent = said(at);
    proof.replaceChildren();
    if (view.trail[at]) { const [study] = key.split("-"); proof.append(" ", make("a", { href: `#${study}-ledger`, "data-trail": view.trail[at] }, "why")); }
    if (focus) nodes.find((node) => node.tabIndex === 0)?.focus();
  };
  const show = (place) => {
    view = views[place];
    below = view.name.map(() => []);
    view.parent.forEach((parent, n) => { if (parent >= 0) below[parent].push(n); });
    note.textContent = `${view.basis}. Choose a part to enter it; Escape leads back out.`;
    at = 0;
    draw();
  };
  const label = figure.querySelector("figcaption");
  if (views.length > 1) {
    const box = make("select", { "aria-label": "Which step" });
    views.forEach((one, place) => box.append(make("option", { value: place }, one.label)));
    box.addEventListener("change", () => { show(Number(box.value)); address.put(`icicle.${key}`, `${box.value}:`, key); });
    label.append(box);
  } else label.append(make("span", { class: "more" }, views[0].label));
  field.addEventListener("click", (event) => {
    const n = event.target.dataset?.n;
    if (n === undefined) return;
    enter(Number(n) === at && at ? view.parent[at] : Number(n), true);
    layers.light(layerOf(at), wayOf(at));
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && at) { event.stopPropagation(); enter(view.parent[at], true); layers.light(layerOf(at), wayOf(at)); return; }
    const nodes = [...field.children], here = nodes.indexOf(event.target), by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!by || here < 0) return;
    event.preventDefault();
    const next = nodes[here + by];
    if (next) { event.target.tabIndex = -1; next.tabIndex = 0; next.focus(); words.textContent = next.title; }
  });
  field.addEventListener("pointerover", (event) => { if (event.target.title) words.textContent = event.target.title; });
  field.addEventListener("pointerleave", () => { words.textContent = said(at); });
  way.append(words, proof);
  figure.append(way, field, note);
  const [place, names] = (address.get(`icicle.${key}`) ?? "0:").split(/:(.*)/s);
  show(views[Number(place)] ? Number(place) : 0);
  const box = label.querySelector("select");
  if (box) box.value = String(views.indexOf(view));
  let n = 0;
  for (const name of (names ?? "").split("›").filter(Boolean)) n = below[n].find((child) => view.name[child] === name) ?? n;
  if (n) enter(n);
});
