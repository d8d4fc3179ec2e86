// The timeline: everything that was recorded, as bars on a canvas; a row a nesting level, a track a thread or stream.
// Bars smaller than the eye can tell apart are drawn together as a column, whose height is their share of its time.
const ROW = 17, TITLE = 20, AXIS = 22, CHARACTER = 6.3, SMALL = 2, CELL = 4, ARROWS = 200;
const KEYS = "Drag to select a span, Shift and drag to move, Ctrl and wheel to zoom, double click to zoom on a bar. Keys: ← → bar, ↑ ↓ track, + − zoom, Shift ← → move, s select the bar's span, Enter zoom on the selection or bar, Home all, Escape nothing chosen.";

const unpacked = (track, view) => {
  const { count } = track, starts = integers(track.s, count, true), lengths = integers(track.d, count);
  const reach = new Float64Array(count); // the last end so far: ascending, so that the first bar on the screen is found quickly
  for (let n = 0; n < count; n++) reach[n] = Math.max(n ? reach[n - 1] : 0, starts[n] + lengths[n]);
  const names = integers(track.n, count), texts = integers(track.t, count), places = integers(track.y, count);
  return {
    ...track, starts, lengths, reach, names, places, rows: integers(track.l, count), heights: track.kind === "counter" ? integers(track.h, count) : null, of: track.r ? integers(track.r, count, true) : null,
    name: (n) => view.names[names[n]],
    place: (n) => view.places[places[n]], text: (n) => view.texts[texts[n]],
    colour: (n) => (track.kind === "kernel" && view.coloured ? view.hues[names[n]] ?? 7 : track.kind === "copy" ? 8 : view.colours[places[n]]),
  };
};
// The first bar that ends after a moment, and the first that starts at or after one.
const bisect = (values, at) => { let low = 0, high = values.length; while (low < high) { const middle = (low + high) >> 1; if (values[middle] < at) low = middle + 1; else high = middle; } return low; };

const exact = time;
// Ticks in one unit, with as many decimals as their distance needs: two are never the same. Where that would be more digits
// than anybody reads, they count from an origin that stands before them.
const ticks = (from, to, wide) => {
  const rough = (to - from) / Math.max(2, wide / 110), power = 10 ** Math.floor(Math.log10(rough)), step = Math.max(1, [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough * 0.999999));
  const first = Math.ceil(from / step) * step, many = to / step >= 1e5, origin = many ? first : 0, last = Math.max(to - origin, step);
  const [size, unit] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]].find(([n]) => last >= n) ?? [1, "ns"];
  const decimals = Math.max(0, Math.ceil(Math.log10(size / step) - 1e-9)), found = [];
  for (let n = 0; first + n * step <= to; n++) {
    const at = first + n * step, off = at - origin;
    found.push([at, off === 0 ? (many ? "+0" : "0") : `${many ? "+" : ""}${grouped((off / size).toFixed(decimals))} ${unit}`]);
  }
  return { found, origin, many };
};
const whole = (ns) => `${grouped(Math.round(ns))} ns`;

// A dotted name loses its first parts before it is cut at the end.
const fitting = (name, room) => {
  let text = name;
  while (text.length > room && text.indexOf(".") > 0 && text.indexOf(".") < text.length - 2) text = text.slice(text.indexOf(".") + 1);
  return text.length > room ? text.slice(0, room - 1) + "…" : text;
};
const percent = (share) => (share > 0 && share < 0.0005 ? "< 0.1%" : `${(100 * share).toPrecision(3)}%`);

// What ran between two moments, cut to them: of each GPU the kernels' number, time, and time with at least one of them.
const sums = (tracks, from, to) => {
  const devices = new Map(), names = new Map();
  let copies = 0, copied = 0;
  for (const track of tracks) {
    if (track.kind !== "kernel" && track.kind !== "copy") continue;
    const kernels = track.kind === "kernel";
    if (kernels && !devices.has(track.device)) devices.set(track.device, { count: 0, time: 0, spans: [] });
    const device = devices.get(track.device);
    for (let n = bisect(track.reach, from); n < track.count && track.starts[n] < to; n++) {
      const start = Math.max(track.starts[n], from), end = Math.min(track.starts[n] + track.lengths[n], to);
      if (end < start || (end === start && track.lengths[n] > 0)) continue;
      const part = end - start;
      if (!kernels) { copies++; copied += part; continue; }
      device.count++;
      device.time += part;
      device.spans.push([start, start + part]);
      const name = track.name(n);
      names.set(name, (names.get(name) ?? 0) + part);
    }
  }
  for (const device of devices.values()) {
    let reached = from;
    device.busy = 0;
    for (const [start, end] of device.spans.sort((a, b) => a[0] - b[0])) if (end > reached) { device.busy += end - Math.max(start, reached); reached = end; }
  }
  return { devices: [...devices].sort((a, b) => a[0] - b[0]), copies, copied, names: [...names].sort((a, b) => b[1] - a[1]) };
};

document.querySelectorAll("figure.timeline").forEach((figure) => {
  const views = JSON.parse(figure.querySelector("script").textContent), key = `timeline.${figure.id.split("-")[0]}`;
  const canvas = make("canvas", { tabindex: "0", role: "application", "aria-label": "Timeline. " + KEYS }), pen = canvas.getContext("2d");
  const said = make("p", { class: "said", role: "status" }), note = make("p", { class: "note" }), keys = make("details", { class: "note" }), box = make("span", { class: "controls" });
  const legend = make("ul", { class: "legend" }), total = make("p", { class: "sums" }), twin = make("details", { class: "twin" });
  const field = make("input", { type: "search", placeholder: "kernel, layer, range", "aria-label": "Find in the timeline" }), hits = make("span", { class: "more", role: "status" });
  let view, tracks, from, to, chosen = null, under = null, wide = 0, span = null, lit = null, sought = "", found = [], wait;

  const x = (ns) => ((ns - from) / (to - from)) * wide, at = (px) => from + (px / wide) * (to - from);
  const limit = (a, b) => {
    const least = Math.min(50, view.length), most = view.length, length = Math.max(least, Math.min(most, b - a));
    from = Math.max(0, Math.min(most - length, a)); to = from + length;
  };
  const keep = () => { // what is on the screen and chosen: to the address, and its sums, once it stands still
    clearTimeout(wait);
    wait = setTimeout(() => {
      const opened = from === view.open[0] && to === view.open[1] && view === views[0];
      const put = (name, value) => { if ((address.get(name) ?? "") !== (value ?? "")) address.put(name, value, value && figure.closest("section").id); };
      put(key, opened ? null : `${views.indexOf(view)}.${Math.round(from)}-${Math.round(to)}`);
      put(`${key}.bar`, chosen ? `${tracks.indexOf(chosen.track)}.${chosen.n}` : null);
      put(`${key}.span`, span ? `${Math.round(span[0])}-${Math.round(span[1])}` : null);
      put(`${key}.find`, sought);
      tellSums();
    }, 120);
  };
  const change = () => { draw(); keep(); };
  const zoom = (factor, middle = (from + to) / 2) => { limit(middle - (middle - from) * factor, middle + (to - middle) * factor); change(); };
  const move = (share) => { const by = (to - from) * share; limit(from + by, to + by); change(); };
  const around = (start, length) => { limit(start - length * 0.6, start + length * 1.6); change(); };
  const showBar = ({ track, n }) => around(track.starts[n], track.lengths[n]);

  // Search and the lit layer: which bars stand out, null where all are alike.
  const mark = () => {
    found = [];
    if (!sought && !lit) { tracks.forEach((track) => { track.out = null; }); return; }
    const text = sought.toLowerCase(), within = (layer) => layer === lit.layer || layer.startsWith(`${lit.layer}.`);
    const places = view.places.map(([layer, direction]) => (sought ? `${layer} ${direction ?? ""}`.toLowerCase().includes(text) : within(layer) && (!lit.direction || direction === lit.direction)));
    const names = view.names.map((name) => sought && `${name}\n${view.whole[name] ?? ""}`.toLowerCase().includes(text));
    for (const track of tracks) {
      track.out = Uint8Array.from({ length: track.count }, (_, n) => (track.places[n] && places[track.places[n]]) || names[track.names[n]]);
      if (sought) for (let n = 0; n < track.count; n++) if (track.out[n]) found.push({ track, n });
    }
    found.sort((a, b) => a.track.starts[a.n] - b.track.starts[b.n]);
  };
  const seek = (text) => {
    sought = text.trim();
    mark();
    hits.textContent = sought ? `${grouped(found.length)} found` : "";
    change();
  };
  const next = (by) => {
    if (!found.length) return;
    const place = chosen ? found.findIndex((one) => one.track === chosen.track && one.n === chosen.n) : -1;
    const now = place < 0 ? (by > 0 ? Math.max(0, found.findIndex((one) => one.track.starts[one.n] >= from)) : found.length - 1) : (place + by + found.length) % found.length;
    choose(found[now]);
    hits.textContent = `${grouped(now + 1)} of ${grouped(found.length)}`;
  };

  const palette = () => {
    const css = getComputedStyle(figure), value = (name) => css.getPropertyValue(name).trim();
    return { ink: value("--ink"), muted: value("--muted"), rule: value("--rule"), paper: value("--paper"), wash: value("--wash"), accent: value("--accent"), on0: value("--on0"),
             series: Array.from({ length: 9 }, (_, n) => value(`--s${n}`)) };
  };
  const axis = (colours) => {
    const { found: marks, origin, many } = ticks(from, to, wide);
    pen.textBaseline = "top";
    let free = 0;
    if (many) {
      const text = `${whole(origin)}`;
      pen.fillStyle = colours.ink; pen.fillText(text, 2, 5);
      free = pen.measureText(text).width + 8;
    }
    for (const [moment, text] of marks) {
      pen.fillStyle = colours.rule; pen.fillRect(Math.round(x(moment)), 0, 1, canvas.clientHeight);
      const left = x(moment) + 4, room = pen.measureText(text).width;
      if (left < free || left + room >= wide) continue;
      pen.fillStyle = colours.muted; pen.fillText(text, left, 4);
      free = left + room + 6;
    }
  };
  const alone = (track, n, colours) => {
    const left = Math.max(x(track.starts[n]), -1), right = Math.min(x(track.starts[n] + track.lengths[n]), wide + 1), width = Math.max(1, right - left);
    const top = track.top + track.rows[n] * ROW, dim = track.out && !track.out[n], colour = track.colour(n), range = track.kind === "range" || track.kind === "gpu";
    pen.globalAlpha = (range ? 0.4 : 1) * (dim ? 0.25 : 1);
    pen.fillStyle = colours.series[colour];
    const high = Math.round((ROW - 2) * (track.heights ? Math.min(100, track.heights[n]) / 100 : 1));
    pen.fillRect(left, top + ROW - 2 - high, Math.max(1, width - (width > 4 ? 1 : 0)), high);
    if (track.kind === "copy" && width > 4) { pen.strokeStyle = colours.ink; pen.strokeRect(left + 0.5, top + 0.5, Math.max(0, width - 1), ROW - 3); }
    if (track.kind === "gpu" && width > 3) { pen.fillStyle = colours.ink; pen.fillRect(left, top + ROW - 4, width - 1, 1); }
    pen.globalAlpha = dim ? 0.45 : 1;
    const room = Math.floor((width - 6) / CHARACTER);
    if (room >= 3 && !track.heights) {
      pen.fillStyle = range || colour === 8 ? colours.ink : colour === 0 ? colours.on0 : "#0b0b0b";
      pen.fillText(fitting(track.name(n), room), left + 3, top + 2);
    }
    pen.globalAlpha = 1;
  };
  // Several bars on a few pixels: a column with a top line, as high as the share of its time in which they ran.
  const together = (track, row, cell, colours) => {
    if (cell.count === 1 && !cell.carried) { alone(track, cell.n, colours); return; }
    const left = cell.place * CELL, width = CELL - 1, full = ROW - 2, top = track.top + row * ROW, ns = (CELL / wide) * (to - from);
    if (!cell.count && !cell.busy) return;
    const high = Math.max(2, Math.round(full * Math.min(1, cell.busy / ns))), out = track.out ? (high * cell.out) / (cell.busy || 1) : 0;
    pen.globalAlpha = 0.9; pen.fillStyle = colours.wash; pen.fillRect(left, top, width, full);
    pen.globalAlpha = track.out ? 0.15 : 0.6; pen.fillStyle = colours.series[track.colour(cell.n)]; pen.fillRect(left, top + full - high, width, high);
    if (out > 0) { pen.globalAlpha = 0.9; pen.fillRect(left, top + full - Math.max(out, 2), width, Math.max(out, 2)); }
    pen.globalAlpha = track.out && !out ? 0.3 : 1; pen.fillStyle = colours.ink; pen.fillRect(left, top + full - high, width, 1);
    pen.globalAlpha = 1;
  };
  const bars = (track, colours) => {
    const cells = Array.from({ length: track.lanes }, () => null), large = [], pixel = (to - from) / wide;
    for (let n = bisect(track.reach, from); n < track.count && track.starts[n] <= to; n++) {
      const start = track.starts[n], end = start + track.lengths[n], row = track.rows[n], first = (start - from) / pixel / CELL;
      if (end < from) continue;
      if (end - start >= SMALL * pixel) { large.push(n); continue; }
      let place = Math.max(0, Math.floor(first)), begin = Math.max(start, from), cell = cells[row];
      if (cell && cell.place !== place) { together(track, row, cell, colours); cell = null; }
      if (!cell) cell = { place, count: 0, busy: 0, out: 0, n, carried: false };
      cell.count++;
      if (track.lengths[n] > track.lengths[cell.n]) cell.n = n;
      for (;;) { // a part for each column that the bar lies in
        const edge = from + (place + 1) * CELL * pixel, part = Math.max(0, Math.min(end, edge) - begin);
        cell.busy += part * (track.heights ? track.heights[n] / 100 : 1);
        if (track.out?.[n]) cell.out += part;
        if (end <= edge || (cell.count === 1 && !cell.carried) || edge >= to) break;
        together(track, row, cell, colours);
        cell = { place: ++place, count: 0, busy: 0, out: 0, n, carried: true };
        begin = edge;
      }
      cells[row] = cell;
    }
    cells.forEach((cell, row) => cell && together(track, row, cell, colours));
    for (const n of large) alone(track, n, colours);
  };
  const ring = (spot, colour) => {
    if (!spot) return;
    const left = x(spot.track.starts[spot.n]), width = Math.max(2, x(spot.track.starts[spot.n] + spot.track.lengths[spot.n]) - left);
    pen.strokeStyle = colour; pen.lineWidth = 2;
    pen.strokeRect(left - 1, spot.track.top + spot.track.rows[spot.n] * ROW - 1, width + 1, ROW);
    pen.lineWidth = 1;
  };
  // Host ranges are numbered through all their tracks; a kernel names the one around its launch call.
  const hostOf = (number) => {
    let left = number;
    for (const track of tracks) { if (track.kind !== "range") continue; if (left < track.count) return { track, n: left }; left -= track.count; }
    return null;
  };
  const numberOf = ({ track, n }) => tracks.filter((one, place) => one.kind === "range" && place < tracks.indexOf(track)).reduce((sum, one) => sum + one.count, n);
  const launchOf = ({ track, n }) => (track.of && track.of[n] > 0 ? hostOf(track.of[n] - 1) : null);
  const launchedBy = (spot) => {
    if (spot.track.kind !== "range") return [];
    if (spot.track.children?.n === spot.n) return spot.track.children.found;
    const number = numberOf(spot) + 1, kernels = [];
    for (const track of tracks) if (track.kind === "kernel" && track.of) for (let n = 0; n < track.count; n++) if (track.of[n] === number) kernels.push({ track, n });
    spot.track.children = { n: spot.n, found: kernels };
    return kernels;
  };
  const arrow = (source, target, colour) => {
    const x0 = Math.max(x(source.track.starts[source.n]), Math.min(x(source.track.starts[source.n] + source.track.lengths[source.n]), x(target.track.starts[target.n]))), y0 = source.track.top + source.track.rows[source.n] * ROW + ROW - 2;
    const x1 = x(target.track.starts[target.n]), y1 = target.track.top + target.track.rows[target.n] * ROW;
    if (Math.max(x0, x1) < 0 || Math.min(x0, x1) > wide) return;
    pen.strokeStyle = pen.fillStyle = colour; pen.lineWidth = 1.5;
    pen.beginPath(); pen.moveTo(x0, y0); pen.bezierCurveTo(x0, (y0 + y1) / 2, x1, (y0 + y1) / 2, x1, y1 - 5); pen.stroke();
    pen.beginPath(); pen.moveTo(x1, y1); pen.lineTo(x1 - 4, y1 - 7); pen.lineTo(x1 + 4, y1 - 7); pen.fill();
    pen.lineWidth = 1;
  };
  const arrows = (spot, colour) => {
    if (!spot) return 0;
    const source = spot.track.kind === "kernel" && launchOf(spot);
    if (source) { arrow(source, spot, colour); return 1; }
    const targets = launchedBy(spot).filter((one) => one.track.starts[one.n] < to && one.track.starts[one.n] >= from).slice(0, ARROWS);
    targets.forEach((target) => arrow(spot, target, colour));
    return targets.length;
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
      bars(track, colours);
    }
    if (span) {
      const left = x(span[0]), width = Math.max(1, x(span[1]) - left);
      pen.globalAlpha = 0.14; pen.fillStyle = colours.accent; pen.fillRect(left, AXIS, width, high); pen.globalAlpha = 1;
      pen.fillRect(left, 0, 1, high); pen.fillRect(left + width, 0, 1, high);
    }
    canvas.dataset.arrows = arrows(chosen, colours.accent) + (under && !(chosen && under.n === chosen.n && under.track === chosen.track) ? arrows(under, colours.ink) : 0);
    ring(under, colours.ink);
    ring(chosen, colours.accent);
  };

  const tell = (spot) => {
    if (!spot) { said.textContent = "\u00a0"; return; }
    const { track, n } = spot, [layer, direction] = track.place(n), source = track.kind === "kernel" && launchOf(spot), launched = launchedBy(spot).length;
    const place = [layer, direction].filter(Boolean).join(" ") || (track.kind === "kernel" ? "no layer" : "");
    const parts = [track.kind === "range" && track.name(n) === place ? "" : place, track.text(n), `${exact(track.lengths[n])}${track.kind === "range" ? " on the host" : ""}, from ${exact(track.starts[n])}`,
                   source && `launched inside ${source.track.name(source.n)}`, launched && `launched ${grouped(launched)} kernel${launched > 1 ? "s" : ""} itself`, track.title];
    const name = view.whole[track.name(n)] ?? track.name(n), brief = name.length > 160 ? `${name.slice(0, 120)} … ${name.slice(-36)}` : name;
    said.replaceChildren(make("b", {}, brief), " ", parts.filter(Boolean).join("; "));
  };
  const words = (a, b) => {
    const { devices, copies, copied, names } = sums(tracks, a, b), length = b - a, all = devices.reduce((sum, [, device]) => sum + device.time, 0), parts = [];
    for (const [number, one] of devices) parts.push(`${devices.length > 1 ? `GPU ${number}: ` : ""}${grouped(one.count)} kernel${one.count === 1 ? "" : "s"}, ${exact(one.time)} GPU time, busy ${percent(length ? one.busy / length : 0)} of the span`);
    if (copies) parts.push(`${grouped(copies)} cop${copies === 1 ? "y" : "ies"}, ${exact(copied)}`);
    const most = names.filter(([, ns]) => ns > 0).slice(0, 3).map(([name, ns]) => `${fitting(name, 60)} ${percent(ns / all)}`);
    return [parts.join("; ") || (tracks.some((track) => track.kind === "kernel") ? "no kernels here" : "this run recorded no GPU kernels"), most.length ? `most: ${most.join(", ")}` : ""].filter(Boolean).join("; ");
  };
  const tellSums = () => {
    const [a, b] = span ?? [from, to];
    total.replaceChildren(make("b", {}, span ? "Selected" : "On the screen"), ` ${exact(b - a)} from ${exact(a)}: ${words(a, b)}.`);
    if (twin.open) tellTwin();
  };
  const tellTwin = () => {
    const [a, b] = span ?? [from, to], table = make("table"), head = make("tr"), body = make("tbody");
    for (const text of ["track", "bars", "time in them", "share of the span", "most time"]) head.append(make("th", { scope: "col" }, text));
    for (const track of tracks) {
      let count = 0, ns = 0;
      const names = new Map();
      for (let n = bisect(track.reach, a); n < track.count && track.starts[n] < b; n++) {
        const length = Math.min(track.starts[n] + track.lengths[n], b) - Math.max(track.starts[n], a);
        if (length < 0) continue;
        count++; ns += track.rows[n] ? 0 : length;
        names.set(track.name(n), (names.get(track.name(n)) ?? 0) + length);
      }
      const most = [...names].sort((one, two) => two[1] - one[1]).slice(0, 5), row = make("tr");
      row.append(make("th", { scope: "row" }, track.title), make("td", {}, grouped(count)), make("td", {}, exact(ns)), make("td", {}, percent(b > a ? ns / (b - a) : 0)),
                 make("td", { class: "text" }, most.map(([name, part]) => `${fitting(name, 60)} ${exact(part)}`).join("; ")));
      body.append(row);
    }
    const top = make("thead");
    top.append(head);
    table.append(make("caption", {}, `${span ? "Selected" : "On the screen"}: ${exact(b - a)} from ${exact(a)}. Time is that of the top row of each track.`), top, body);
    twin.querySelector(".scroll").replaceChildren(table);
  };

  const find = (event) => {
    const area = canvas.getBoundingClientRect(), px = event.clientX - area.left, py = event.clientY - area.top;
    const track = tracks.find((one) => py >= one.top && py < one.top + one.lanes * ROW);
    if (!track) return null;
    const row = Math.floor((py - track.top) / ROW), moment = at(px), spare = ((to - from) / wide) * 2;
    let best = null, near = spare;
    for (let n = bisect(track.reach, moment - spare); n < track.count && track.starts[n] <= moment + spare; n++) {
      if (track.rows[n] !== row) continue;
      const off = Math.max(track.starts[n] - moment, moment - track.starts[n] - track.lengths[n], 0);
      if (off <= near) { near = off; best = n; }
    }
    return best === null ? null : { track, n: best };
  };
  const light = (layer, direction) => document.dispatchEvent(new CustomEvent("perfctl:layer", { detail: { layer, direction } }));
  const choose = (spot) => {
    chosen = spot;
    if (spot) {
      const start = spot.track.starts[spot.n], end = start + spot.track.lengths[spot.n], [layer, direction] = spot.track.place(spot.n);
      if (end < from || start > to) limit(start - (to - from) / 2, start + (to - from) / 2);
      if (layer) light(layer, direction);
    }
    tell(spot);
    change();
  };
  const along = (by) => {
    const track = chosen ? chosen.track : tracks[0];
    choose({ track, n: Math.max(0, Math.min(track.count - 1, chosen ? chosen.n + by : bisect(track.reach, from + 1))) });
  };
  const across = (by) => {
    const place = chosen ? tracks.indexOf(chosen.track) + by : 0, track = tracks[Math.max(0, Math.min(tracks.length - 1, place))];
    choose({ track, n: Math.min(track.count - 1, bisect(track.starts, chosen ? chosen.track.starts[chosen.n] : from)) });
  };
  const select = (a, b) => { span = b > a ? [Math.max(0, a), Math.min(view.length, b)] : null; change(); };
  const leave = () => {
    if (span) select(0, 0);
    else { if (lit) light(null, null); choose(null); }
  };
  const all = () => { limit(0, view.length); change(); };
  const ACTIONS = {
    ArrowRight: (event) => (event.shiftKey ? move(0.2) : along(1)), ArrowLeft: (event) => (event.shiftKey ? move(-0.2) : along(-1)),
    ArrowDown: () => across(1), ArrowUp: () => across(-1), "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6), 0: all, Home: all,
    Enter: () => (span ? (limit(...span), change()) : chosen && showBar(chosen)), Escape: leave,
    s: () => chosen && select(chosen.track.starts[chosen.n], chosen.track.starts[chosen.n] + chosen.track.lengths[chosen.n]), n: () => next(1), p: () => next(-1),
  };
  canvas.addEventListener("keydown", (event) => {
    if (!ACTIONS[event.key] || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    ACTIONS[event.key](event);
  });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey && !event.deltaX) return;
    event.preventDefault();
    if (event.ctrlKey || event.metaKey) zoom(event.deltaY > 0 ? 1.25 : 0.8, at(event.offsetX));
    else move(event.deltaX / wide);
  }, { passive: false });
  let held = null;
  canvas.addEventListener("pointerdown", (event) => { held = { x: event.clientX, at: at(event.offsetX), from, to, moved: false, moves: event.shiftKey || event.pointerType === "touch" }; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointermove", (event) => {
    if (held) {
      const by = ((held.x - event.clientX) / wide) * (held.to - held.from);
      if (Math.abs(held.x - event.clientX) > 3) held.moved = true;
      if (!held.moved) return;
      if (held.moves) { limit(held.from + by, held.to + by); change(); } else select(Math.min(held.at, held.at - by), Math.max(held.at, held.at - by));
      return;
    }
    const spot = find(event);
    if (spot?.n === under?.n && spot?.track === under?.track) return;
    under = spot;
    tell(under ?? chosen);
    draw();
  });
  canvas.addEventListener("pointerup", (event) => { if (held && !held.moved) choose(find(event)); held = null; });
  canvas.addEventListener("pointercancel", () => { held = null; });
  canvas.addEventListener("pointerleave", () => { under = null; tell(chosen); draw(); });
  canvas.addEventListener("dblclick", (event) => { const spot = find(event); if (spot) showBar(spot); });
  document.addEventListener("perfctl:layer", ({ detail }) => { lit = detail?.layer ? detail : null; mark(); draw(); });

  const show = (number) => {
    view = views[number];
    view.coloured = Object.keys(view.hues).length > 0;
    tracks = view.unpacked ??= view.tracks.map((track) => unpacked(track, view));
    [from, to] = view.open;
    if (to <= from) limit(0, Math.max(view.length, 1));
    chosen = under = span = null;
    const bound = [...view.notes.map((text) => `${text[0].toUpperCase()}${text.slice(1)}.`)].join(" ");
    note.textContent = `${view.label}: ${exact(view.length)} recorded; times count from its first event; opens on ${view.opened}. ${bound}`;
    legend.replaceChildren(...view.legend.map(([colour, text, layer]) => {
      const item = make("li", layer ? { "data-layer": layer } : {}, text);
      item.title = text;
      item.prepend(make("i", { style: `background:var(--s${colour})` }));
      return item;
    }));
    const many = make("li", {}, "several bars too small to tell apart: height is the share of time in which they ran");
    many.prepend(make("i", { class: "many" }));
    legend.append(many);
    mark();
    tell(null);
    draw();
  };
  if (views.length > 1) {
    const choice = make("select", { "aria-label": "Run" });
    views.forEach((one, number) => choice.append(make("option", { value: number }, one.label)));
    choice.addEventListener("change", () => { show(Number(choice.value)); keep(); });
    box.append(choice);
  }
  const press = (text, label, act) => {
    const button = make("button", { type: "button", title: label, "aria-label": label }, text);
    button.addEventListener("click", act);
    box.append(button);
  };
  let typed;
  field.addEventListener("input", () => { clearTimeout(typed); typed = setTimeout(() => seek(field.value), 60); });
  field.addEventListener("keydown", (event) => { if (event.key === "Enter") { event.preventDefault(); next(event.shiftKey ? -1 : 1); } });
  box.append(hits, field);
  press("‹", "Previous found", () => next(-1));
  press("›", "Next found", () => next(1));
  press("+", "Zoom in", () => zoom(0.6));
  press("−", "Zoom out", () => zoom(1 / 0.6));
  press("all", "Show all of it", all);
  twin.append(make("summary", {}, "The same as a table"), make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "The timeline as a table" }));
  twin.addEventListener("toggle", () => twin.open && tellTwin());
  figure.querySelector("figcaption").append(box);
  keys.append(make("summary", {}, "Mouse and keys"), make("p", {}, KEYS));
  figure.append(legend, canvas, total, said, twin, note, keys);

  const [number, part] = (address.get(key) ?? "0.").split("."), pair = (text) => (/^\d+-\d+$/.test(text ?? "") ? text.split("-").map(Number) : null);
  show(views[Number(number)] ? Number(number) : 0);
  if (views.length > 1) box.querySelector("select").value = String(views.indexOf(view));
  if (pair(part)) limit(...pair(part));
  const [of, n] = (address.get(`${key}.bar`) ?? "").split(".").map(Number), known = address.get(`${key}.bar`) && tracks[of];
  if (known && Number.isInteger(n) && n >= 0 && n < known.count) { chosen = { track: known, n }; tell(chosen); }
  const kept = pair(address.get(`${key}.span`));
  if (kept && kept[1] > kept[0]) span = kept;
  if (address.get(`${key}.find`)) { field.value = address.get(`${key}.find`); seek(field.value); }
  draw();
  tellSums();
  new ResizeObserver(() => { if (figure.clientWidth !== wide) draw(); }).observe(figure);
  for (const what of ["(prefers-color-scheme: dark)", "print"]) matchMedia(what).addEventListener("change", draw);
});
