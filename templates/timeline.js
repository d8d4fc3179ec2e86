// The timeline: one step as bars on a canvas, a row a nesting level, a track a thread or stream.
const ROW = 17, TITLE = 20, AXIS = 22, CHARACTER = 6.3;
const KEYS = "Drag to move, Ctrl and wheel to zoom, double click to zoom on a bar. Keys: ← → bar, ↑ ↓ track, + − zoom, Shift ← → move, Enter zoom on the bar, 0 all.";

const trackOf = (track, names) => {
  let sum = 0;
  const starts = track.s.map((step) => (sum += step));
  return { ...track, starts, count: starts.length, name: (n) => names[track.n[n]], detail: (n) => names[track.t[n]] };
};
const exact = time;
// Ticks in one unit, with as many decimals as their distance needs: two are never the same.
const tick = (ns, step, last) => {
  const [size, unit] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]].find(([n]) => last >= n) ?? [1, "ns"];
  const decimals = Math.max(0, Math.ceil(Math.log10(size / step) - 1e-9));
  return ns === 0 ? "0" : `${grouped((ns / size).toFixed(decimals))} ${unit}`;
};

// A dotted name loses its first parts before it is cut at the end.
const fitting = (name, room) => {
  let text = name;
  while (text.length > room && text.indexOf(".") > 0 && text.indexOf(".") < text.length - 2) text = text.slice(text.indexOf(".") + 1);
  return text.length > room ? text.slice(0, room - 1) + "…" : text;
};

document.querySelectorAll("figure.timeline").forEach((figure) => {
  const views = JSON.parse(figure.querySelector("script").textContent);
  const canvas = make("canvas", { tabindex: "0", role: "application", "aria-label": "Timeline. " + KEYS }), pen = canvas.getContext("2d");
  const said = make("p", { class: "said", role: "status" }), note = make("p", { class: "note" }), box = make("span", { class: "controls" });
  let view, tracks, from, to, chosen = null, under = null, wide = 0;

  const x = (ns) => ((ns - from) / (to - from)) * wide;
  const limit = (a, b) => {
    const least = Math.min(50, view.length), most = view.length, span = Math.max(least, Math.min(most, b - a));
    const start = Math.max(0, Math.min(most - span, a));
    from = start; to = start + span;
  };
  const zoom = (factor, at = (from + to) / 2) => { limit(at - (at - from) * factor, at + (to - at) * factor); draw(); };
  const move = (share) => { const by = (to - from) * share; limit(from + by, to + by); draw(); };
  const showBar = ({ track, n }) => { const start = track.starts[n], length = track.d[n]; limit(start - length * 0.6, start + length * 1.6); draw(); };

  const palette = () => {
    const css = getComputedStyle(figure), value = (name) => css.getPropertyValue(name).trim();
    return { ink: value("--ink"), muted: value("--muted"), rule: value("--rule"), paper: value("--paper"), accent: value("--accent"), on0: value("--on0"),
             series: Array.from({ length: 9 }, (_, n) => value(`--s${n}`)) };
  };
  const axis = (colours) => {
    const span = to - from, rough = span / Math.max(2, wide / 110), power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
    pen.textBaseline = "top";
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
      pen.fillStyle = colours.rule; pen.fillRect(Math.round(x(at)), 0, 1, canvas.clientHeight);
      pen.fillStyle = colours.muted;
      const text = tick(at, step, to), room = pen.measureText(text).width;
      if (x(at) + room + 4 < wide) pen.fillText(text, x(at) + 4, 4);
    }
  };
  const bar = (track, n, colours, reached) => {
    const left = x(track.starts[n]), right = x(track.starts[n] + track.d[n]), lane = track.l[n];
    if (right < 0 || left > wide) return;
    const start = Math.max(left, 0), width = Math.max(1, Math.min(right, wide) - start), top = track.top + lane * ROW;
    if (start + width <= reached[lane]) return; // lies on a pixel that is filled already
    reached[lane] = start + width;
    pen.globalAlpha = track.kind === "range" ? 0.4 : 1;
    pen.fillStyle = colours.series[track.c[n]];
    pen.fillRect(start, top, Math.max(1, width - (width > 4 ? 1 : 0)), ROW - 2);
    pen.globalAlpha = 1;
    if (track.kind === "copy") { pen.strokeStyle = colours.ink; pen.strokeRect(start + 0.5, top + 0.5, Math.max(0, width - 1), ROW - 3); }
    const room = Math.floor((width - 6) / CHARACTER);
    if (room < 3) return;
    const text = fitting(track.name(n), room);
    pen.fillStyle = track.kind === "range" || track.c[n] === 8 ? colours.ink : track.c[n] === 0 ? colours.on0 : "#0b0b0b";
    pen.fillText(text, start + 3, top + 2);
  };
  const ring = (spot, colour) => {
    if (!spot) return;
    const left = x(spot.track.starts[spot.n]), width = Math.max(2, x(spot.track.starts[spot.n] + spot.track.d[spot.n]) - left);
    pen.strokeStyle = colour; pen.lineWidth = 2;
    pen.strokeRect(left - 1, spot.track.top + spot.track.l[spot.n] * ROW - 1, width + 1, ROW);
    pen.lineWidth = 1;
  };
  const draw = () => {
    const colours = palette(), sharp = window.devicePixelRatio || 1, high = AXIS + tracks.reduce((sum, track) => sum + TITLE + track.lanes * ROW, 0);
    wide = figure.clientWidth;
    canvas.style.height = `${high}px`;
    if (canvas.width !== Math.round(wide * sharp) || canvas.height !== Math.round(high * sharp)) { canvas.width = Math.round(wide * sharp); canvas.height = Math.round(high * sharp); }
    pen.setTransform(sharp, 0, 0, sharp, 0, 0);
    pen.clearRect(0, 0, wide, high);
    pen.font = "11px system-ui, sans-serif";
    axis(colours);
    let top = AXIS;
    for (const track of tracks) {
      pen.fillStyle = colours.muted;
      pen.fillText(track.title, 2, top + 5);
      top += TITLE;
      track.top = top;
      top += track.lanes * ROW;
      const reached = new Float64Array(track.lanes).fill(-1);
      for (let n = 0; n < track.count; n++) bar(track, n, colours, reached);
    }
    ring(under, colours.ink);
    ring(chosen, colours.accent);
  };

  const tell = (spot) => {
    if (!spot) { said.textContent = "\u00a0"; return; }
    const { track, n } = spot, parts = [track.detail(n), `${exact(track.d[n])} from ${exact(track.starts[n])}`, track.title];
    const name = view.whole?.[track.name(n)] ?? track.name(n), brief = name.length > 160 ? `${name.slice(0, 120)} … ${name.slice(-36)}` : name;
    said.replaceChildren(make("b", {}, brief), " ", parts.filter(Boolean).join("; "));
  };
  const find = (event) => {
    const area = canvas.getBoundingClientRect(), px = event.clientX - area.left, py = event.clientY - area.top;
    const track = tracks.find((one) => py >= one.top && py < one.top + one.lanes * ROW);
    if (!track) return null;
    const lane = Math.floor((py - track.top) / ROW), spare = ((to - from) / wide) * 2, at = from + (px / wide) * (to - from);
    let best = null, near = spare;
    for (let n = 0; n < track.count; n++) {
      if (track.l[n] !== lane) continue;
      const off = Math.max(track.starts[n] - at, at - track.starts[n] - track.d[n], 0);
      if (off <= near) { near = off; best = n; }
    }
    return best === null ? null : { track, n: best };
  };
  const choose = (spot) => {
    chosen = spot;
    if (spot) {
      const start = spot.track.starts[spot.n], end = start + spot.track.d[spot.n];
      if (end < from || start > to) limit(start - (to - from) / 2, start + (to - from) / 2);
    }
    tell(spot);
    draw();
  };
  const along = (by) => {
    const track = chosen ? chosen.track : tracks[0];
    choose({ track, n: chosen ? Math.max(0, Math.min(track.count - 1, chosen.n + by)) : 0 });
  };
  const across = (by) => {
    const place = chosen ? tracks.indexOf(chosen.track) + by : 0, track = tracks[Math.max(0, Math.min(tracks.length - 1, place))];
    const at = chosen ? chosen.track.starts[chosen.n] : from, next = track.starts.findIndex((start) => start >= at);
    choose({ track, n: next < 0 ? track.count - 1 : next });
  };

  const ACTIONS = {
    ArrowRight: (event) => (event.shiftKey ? move(0.2) : along(1)), ArrowLeft: (event) => (event.shiftKey ? move(-0.2) : along(-1)),
    ArrowDown: () => across(1), ArrowUp: () => across(-1), "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6),
    0: () => { limit(0, view.length); draw(); }, Enter: () => chosen && showBar(chosen), Escape: () => choose(null),
  };
  canvas.addEventListener("keydown", (event) => {
    if (!ACTIONS[event.key] || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    ACTIONS[event.key](event);
  });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey && !event.deltaX) return;
    event.preventDefault();
    if (event.ctrlKey || event.metaKey) zoom(event.deltaY > 0 ? 1.25 : 0.8, from + (event.offsetX / wide) * (to - from));
    else move(event.deltaX / wide);
  }, { passive: false });
  let held = null;
  canvas.addEventListener("pointerdown", (event) => { held = { at: event.clientX, from, to, moved: false }; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointermove", (event) => {
    if (held) {
      const by = ((held.at - event.clientX) / wide) * (held.to - held.from);
      if (Math.abs(held.at - event.clientX) > 3) held.moved = true;
      if (held.moved) { limit(held.from + by, held.to + by); draw(); }
      return;
    }
    const found = find(event);
    if (found?.n === under?.n && found?.track === under?.track) return;
    under = found;
    tell(under ?? chosen);
    draw();
  });
  canvas.addEventListener("pointerup", (event) => { if (held && !held.moved) choose(find(event)); held = null; });
  canvas.addEventListener("pointercancel", () => { held = null; });
  canvas.addEventListener("pointerleave", () => { under = null; tell(chosen); draw(); });
  canvas.addEventListener("dblclick", (event) => { const found = find(event); if (found) showBar(found); });

  const show = (number) => {
    view = views[number];
    tracks = view.tracks.map((track) => trackOf(track, view.names)).filter((track) => track.count);
    from = 0; to = Math.max(view.length, 1); chosen = under = null;
    note.textContent = [`${view.label}: ${exact(view.length)}`, ...view.notes].join("; ") + ". " + KEYS;
    tell(null);
    draw();
  };
  if (views.length > 1) {
    const select = make("select", { "aria-label": "Run" });
    views.forEach((one, number) => select.append(make("option", { value: number }, one.label)));
    select.addEventListener("change", () => show(Number(select.value)));
    box.append(select);
  }
  for (const [text, label, key] of [["+", "Zoom in", "+"], ["−", "Zoom out", "-"], ["all", "Show all of it", "0"]]) {
    const button = make("button", { type: "button", title: label, "aria-label": label }, text);
    button.addEventListener("click", () => ACTIONS[key]());
    box.append(button);
  }
  figure.querySelector("figcaption").append(box);
  figure.append(note, canvas, said);
  show(0);
  new ResizeObserver(() => { if (figure.clientWidth !== wide) draw(); }).observe(figure);
  for (const what of ["(prefers-color-scheme: dark)", "print"]) matchMedia(what).addEventListener("change", draw);
});
