// What is open, sorted and filtered stands in the address, so that a link shows a colleague the same view:
// "#s1-ledger?trail=conv2/forward/64".
const address = (() => {
  const read = () => {
    const [place, ...query] = location.hash.slice(1).split("?");
    let name = place;
    try { name = decodeURIComponent(place); } catch { /* a stray % names nothing */ }
    return [name, new URLSearchParams(query.join("?"))];
  };
  let last = read()[1].toString();
  // Entries of the history are marked, so that Back, which closes what was opened, differs from a plain link.
  const write = (place, state, opens = false) => {
    last = state.toString();
    const text = last.replaceAll("%2F", "/"), adds = opens && !history.state?.opens;
    history[adds ? "pushState" : "replaceState"]({ opens: adds || history.state?.opens }, "", `#${place}${text ? "?" + text : ""}`);
  };
  history.replaceState({ opens: false }, "");
  window.addEventListener("hashchange", () => { // a plain link keeps what is open
    const [place, state] = read(), kept = history.state === null && !location.hash.includes("?") && last;
    write(place, kept ? new URLSearchParams(last) : state);
  });
  return {
    place: () => read()[0],
    get: (key) => read()[1].get(key),
    put: (key, value, place, opens) => { // opens: Back undoes it
      const [at, state] = read();
      if (value === null || value === "") state.delete(key); else state.set(key, value);
      write(place || at, state, opens);
    },
    close: (key) => { // as Back does, but what else has changed since then stays
      const [place, state] = read();
      state.delete(key);
      if (!history.state?.opens) { write(place, state); return; }
      window.addEventListener("popstate", () => write(place, state), { once: true });
      history.back();
    },
  };
})();

// A layer lights up in every view of the page.
//
// The contract. An element that belongs to a layer carries data-layer="<dotted path>", and data-direction where it is of one
// direction. Whoever lets a reader choose a layer dispatches on document
//     new CustomEvent("perfctl:layer", { detail: { layer, direction } })   // direction null: all of them; layer null: none
// or calls layers.light(layer, direction), which does that. This part hears it: it sets the class "lit" on every element of
// the layer and of the layers inside it ("features" lights "features.0"), aria-current="true" on those of its direction,
// keeps both in the address ("layer", "direction") and says it aloud. Views that draw themselves (canvas, icicle) listen for
// the same event and ask layers.has(layer) when they draw again. Escape lights nothing, unless a view has stopped the key.
const layers = (() => {
  let layer = null, direction = null;
  const said = document.createElement("p");
  said.className = "hidden";
  said.setAttribute("role", "status");
  document.body.append(said);
  const has = (name, way) => layer !== null && (name === layer || (name ?? "").startsWith(`${layer}.`)) && (!way || !direction || way === direction);
  const mark = (node) => {
    const { layer: name, direction: way } = node.dataset, here = has(name, way);
    node.classList.toggle("lit", layer !== null && has(name));
    if (here) node.setAttribute("aria-current", "true"); else if (node.getAttribute("aria-current") && !node.dataset.trail) node.removeAttribute("aria-current");
  };
  const light = (name, way = null) => document.dispatchEvent(new CustomEvent("perfctl:layer", { detail: { layer: name, direction: way } }));
  document.addEventListener("perfctl:layer", (event) => {
    const next = event.detail ?? {};
    [layer, direction] = next.layer ? [next.layer, next.direction || null] : [null, null];
    document.querySelectorAll("[data-layer]").forEach(mark);
    address.put("layer", layer);
    address.put("direction", direction);
    said.textContent = layer === null ? "" : `${[layer, direction].filter(Boolean).join(" ")} is lit in every view. Escape ends it.`;
  });
  document.addEventListener("click", (event) => { // a name in the matrix or the ledger; a second click ends it
    const name = event.target.closest?.("[data-names-layer]");
    if (!name) return;
    const { layer: one, direction: way } = name.closest("[data-layer]").dataset;
    if (one === layer && (way || null) === direction) light(null); else light(one, way || null);
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && layer !== null && !event.defaultPrevented) light(null); });
  const fromAddress = () => {
    const asked = address.get("layer"), way = address.get("direction");
    if (asked !== layer || way !== direction) light(asked, way);
  };
  window.addEventListener("hashchange", fromAddress);
  document.addEventListener("DOMContentLoaded", fromAddress); // when every view listens
  return { light, has, mark, get current() { return { layer, direction }; } };
})();
