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
  const write = (place, state) => {
    last = state.toString();
    const text = last.replaceAll("%2F", "/");
    history.replaceState(null, "", `#${place}${text ? "?" + text : ""}`);
  };
  window.addEventListener("hashchange", () => { // a plain link keeps what is open
    const [place, state] = read();
    if (!location.hash.includes("?") && last) write(place, new URLSearchParams(last));
    else last = state.toString();
  });
  return {
    place: () => read()[0],
    get: (key) => read()[1].get(key),
    put: (key, value, place) => {
      const [at, state] = read();
      if (value === null || value === "") state.delete(key); else state.set(key, value);
      write(place ?? at, state);
    },
  };
})();
