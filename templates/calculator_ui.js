// The page shows figures for the current choice. Python computed amounts of work, costs and curves; the script multiplies them.
const FIELDS = DATA.fields, MACHINES = new Map(DATA.machines.map((machine) => [machine.name, machine]));
const BATCHES = Array.from({ length: 13 }, (_, n) => 2 ** n);

// The grid. A curve is a row of knots of four numbers, batch - 1 and three levels; between two knots it is straight in batch.
const unpack = (text) => new Uint16Array(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);
const opened = (grid, model) => {
  if (!model.open) {
    const knots = unpack(model.knots), starts = [], splits = unpack(model.splits), rows = [];
    for (let n = 0; n < knots.length; n += 4) if (knots[n] === 0) starts.push(n);
    model.rows.reduce((at, row) => { rows.push(at); return at + grid.rows[row].rows.length * grid.rows[row].batches.length; }, 0);
    model.open = { knots, ends: [...starts.slice(1), knots.length], starts, splits, rows };
  }
  return model.open;
};
const numberOf = (grid, level) => (level ? Math.exp(level / grid.levels) * grid.least : 0);
const straight = (grid, low, high, part) => { const from = numberOf(grid, low); return from + part * (numberOf(grid, high) - from); };
const onCurve = (grid, model, place, batch) => {
  const { knots, starts, ends } = opened(grid, model);
  let right = starts[place] + 4;
  while (right < ends[place] - 4 && knots[right] + 1 < batch) right += 4;
  const left = right - 4, part = (batch - 1 - knots[left]) / (knots[right] - knots[left]);
  const [value, low, high] = [1, 2, 3].map((n) => straight(grid, knots[left + n], knots[right + n], part));
  return { value, low, high };
};
// A step by the fit that ships: amounts of each part, on straight lines between batch sizes, times what a unit costs.
const floats = (text) => new Float32Array(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);
const amountsAt = (grid, model, key, batch) => {
  const [list, text] = model.amounts[key], points = ((model.points ??= {})[key] ??= floats(text)), found = [];
  for (let n = 0; n < points.length;) {
    let end = n + 2, right;
    while (end < points.length && points[end] !== 1) end += 2;
    for (right = n + 2; right < end - 2 && points[right] < batch;) right += 2;
    const part = right < end ? (batch - points[right - 2]) / (points[right] - points[right - 2]) : 0;
    found.push(part ? points[right - 1] + part * (points[right + 1] - points[right - 1]) : points[n + 1]);
    n = end;
  }
  return grid.lists[list].map(([work, place], row) => ({ work, place, amount: Math.max(found[row], 0) }));
};
const partsOf = (grid, model, choice) => {
  const key = [grid.bytes[grid.precisions.indexOf(choice.precision)], choice.optimizer, choice.batch].join(), known = (model.parts ??= new Map());
  if (known.size > 200) known.clear();
  if (!known.has(key)) {
    const rows = [...amountsAt(grid, model, key.split(",")[0], choice.batch), ...amountsAt(grid, model, choice.optimizer, choice.batch)], sums = new Float64Array(grid.limits.length);
    for (const { place, amount } of rows) sums[place] += amount;
    known.set(key, { rows, sums });
  }
  return known.get(key);
};
const costOf = (grid, choice) => grid.costs?.[grid.machines.indexOf(choice.device)]?.[grid.precisions.indexOf(choice.precision)];
const rateOf = (grid, row, place) => (grid.open ??= floats(grid.rates))[row * grid.limits.length + place];
const byParts = (grid, model, choice) => {
  const { sums } = partsOf(grid, model, choice), [, rows, each, width, hostWidth] = costOf(grid, choice), host = each * model.operations;
  const gpu = Math.min(...rows.map((row) => sums.reduce((sum, amount, place) => sum + amount * rateOf(grid, row, place), 0)));
  return { hostLimits: host > gpu, value: Math.max(gpu, host), low: Math.max(gpu / width, host / hostWidth), high: Math.max(gpu * width, host * hostWidth) };
};
const cellOf = ({ grid, model }, choice) => {
  const place = grid.machines.indexOf(choice.device), layout = grid.layouts[model.layout];
  const cell = (place * grid.precisions.length + grid.precisions.indexOf(choice.precision)) * grid.optimizers.length + grid.optimizers.indexOf(choice.optimizer);
  return { place, cell, layout, said: place < 0 ? { reason: "{device} is not known to perfctl serve" } : grid.said[layout.said[cell]] };
};
// The step on one GPU and its basis, or the reason why there is none.
const stepOf = (network, choice) => {
  const { grid, model } = network, name = model.names[choice.optimizer] ?? model.name, { cell, layout, said } = cellOf(network, choice);
  const named = (text) => text.replace(/\{(model|device|batch)\}/g, (_, key) => ({ model: name, device: choice.device, batch: choice.batch })[key]);
  if (said.reason) return { reason: named(said.reason) };
  const same = grid.measured.filter((one) => one.model === name && one.machine === choice.device && one.batch === choice.batch && one.precision === choice.precision && one.optimizer === choice.optimizer);
  if (same.length) {
    const { seconds: value, low, high, backward } = same.reduce((a, b) => ((b.high - b.low) / b.seconds < (a.high - a.low) / a.seconds ? b : a));
    return { value, low, high, backward, way: "measured", source: `median of the steps measured on ${choice.device}`, coverage: null, whyNot: [], outside: [] };
  }
  const along = (curves) => (curves && curves[cell] >= 0 ? onCurve(grid, model, curves[cell], choice.batch) : null);
  const span = said.way === "published" ? byParts(grid, model, choice) : along(layout.curve), part = along(layout.backward);
  const [, beyond] = model.beyond[layout.beyond[cell]].findLast(([from]) => from <= choice.batch) ?? [1, []];
  return { ...span, backward: part && part.value * span.value, way: said.way, source: named(said.source), coverage: said.coverage, whyNot: said.why_not.map(named), outside: [...beyond, ...said.outside.map(named)] };
};
// {work: {limit: amount}} of a step; only their ratios matter.
const splitOf = (network, choice) => {
  const { grid, model } = network, { cell, layout, said } = cellOf(network, choice), found = {};
  if (said.way === "published") {
    const [own] = costOf(grid, choice);
    for (const { work, place, amount } of partsOf(grid, model, choice).rows) {
      const limits = (found[work] ??= {}), limit = grid.limits[place];
      limits[limit] = (limits[limit] ?? 0) + amount * rateOf(grid, own, place);
    }
    return found;
  }
  const { splits, rows } = opened(grid, model), split = layout.split[cell], { batches: at, rows: works } = grid.rows[model.rows[split]];
  const right = Math.max(1, at.findIndex((batch, place) => batch >= choice.batch || place === at.length - 1)), part = (choice.batch - at[right - 1]) / (at[right] - at[right - 1]);
  works.forEach(([work, limit, optimizer], row) => {
    if (optimizer && optimizer !== choice.optimizer) return;
    const from = rows[split] + row * at.length, limits = (found[work] ??= {});
    limits[limit] = (limits[limit] ?? 0) + Math.max(0, straight(grid, splits[from + right - 1], splits[from + right], part));
  });
  return found;
};
const roomOf = ({ grid, model }, choice) => {
  if (!model.lines) return null;
  const bytes = Object.hasOwn(model.lines, choice.precision) ? choice.precision : grid.same_bytes[choice.precision], place = grid.machines.indexOf(choice.device);
  const needed = Math.max(...model.lines[bytes][choice.optimizer].map(([fixed, perSample]) => fixed + perSample * choice.batch)), limit = MACHINES.get(choice.device).memory_bytes;
  const largest = model.largest[bytes][choice.optimizer][grid.sizes[place]] ?? null, reserve = grid.reserves[place] ?? 0, whole = needed + reserve;
  return { needed, reserve, whole, limit, largest, fits: limit === null ? null : whole <= limit, close: limit !== null && whole > grid.close * limit, lacking: limit === null ? 0 : Math.max(whole - limit, 0) };
};

// Several GPUs, epochs, prices: arithmetic on figures of the grid.
const parallelOf = (choice, alone, parameters, machine) => {
  const { gpus } = choice, moved = ((2 * (gpus - 1)) / gpus) * parameters * 4;
  if (gpus === 1) return null;
  if (choice.efficiency > 0) return { step: times(alone, 1 / choice.efficiency), efficiency: choice.efficiency, moved, communication: null };
  const link = choice.interconnect > 0 ? choice.interconnect : machine.link_gbs;
  if (link === null) return { reason: "how fast these devices reach each other is not known: say a link or an efficiency" };
  const communication = moved / (link * 1e9), exposed = communication - Math.min(choice.overlap * communication, alone.backward ?? alone.value);
  const step = { value: alone.value + exposed, low: alone.low + exposed, high: alone.high + exposed };
  return { step, efficiency: alone.value / step.value, moved, communication, exposed, link, said: choice.interconnect > 0 ? "as said" : machine.link };
};
const rentalsOf = (choice, machine, seconds) => {
  const own = { provider: "your own price", instance: "", count: 1, on_demand: choice.price, spot: choice.price, region: "", date: "", source: "as said" };
  return (choice.price > 0 ? [own] : machine.offers.map((place) => DATA.prices[place])).map((price) => {
    const instances = Math.ceil(choice.gpus / price.count), cost = (each) => (each === null ? null : times(seconds, (instances / 3600) * each));
    return { price, instances, idle: instances * price.count - choice.gpus, on_demand: cost(price.on_demand), spot: cost(price.spot) };
  }).sort((a, b) => (a.on_demand === null) - (b.on_demand === null) || (a.on_demand ?? a.spot).value - (b.on_demand ?? b.spot).value);
};
const energyOf = (choice, machine, name, seconds) => {
  const known = Object.hasOwn(machine.watts, name) ? machine.watts[name] : machine.watts[""];
  if (!known) return null;
  const kwh = times(seconds, (known[0] * choice.gpus) / 3.6e6);
  return { watts: known[0], source: known[1], kwh, cost: choice.tariff > 0 ? times(kwh, choice.tariff) : null };
};
// "mixed" is another precision on each device.
const settled = (asked) => (asked.precision === "mixed" ? { ...asked, precision: MACHINES.get(asked.device).mixed } : asked);
const answerOf = (asked) => {
  const choice = settled(asked), network = networks.get(choice.model);
  if (!network?.grid) return { choice, impossible: network?.error ?? "perfctl serve has not answered yet" };
  const { model } = network, machine = MACHINES.get(choice.device), time = stepOf(network, choice), answer = { choice, network, machine, room: roomOf(network, choice), notes: model.notes, reason: time.reason ?? null };
  const parallel = time.reason ? null : parallelOf(choice, time, model.parameters, machine);
  if (time.reason || parallel?.reason) return { ...answer, reason: time.reason ?? parallel.reason };
  const step = parallel?.step ?? { value: time.value, low: time.low, high: time.high }, steps = Math.ceil(choice.samples / (choice.batch * choice.gpus));
  const epoch = times(step, steps), training = times(epoch, choice.epochs), rentals = rentalsOf(choice, machine, training);
  const whole = rentals.filter((one) => one.instances === 1), priced = (whole.length ? whole : rentals).filter((one) => one[choice.pay] !== null);
  const offer = priced.reduce((a, b) => (a === null || b[choice.pay].value < a[choice.pay].value ? b : a), null);
  return {
    ...answer, time, parallel, step, steps, epoch, training, rentals, offer, sample: times(step, 1 / (choice.batch * choice.gpus)),
    cost: offer ? offer[choice.pay] : null, energy: energyOf(choice, machine, model.names[choice.optimizer] ?? model.name, training),
  };
};

// The choice: read from the address after #, checked, and written back, so that a link reproduces it.
const networks = new Map(DATA.grid.models.map((model) => [model.name, { grid: DATA.grid, model }])); // or {error}
let families = null; // parameters of the families, where perfctl serve is there to answer for them
const familyOf = (text) => text.split(":")[0].trim();
const shown = (text) => `'${text.length > 60 ? text.slice(0, 60) + "…" : text}'`;
const firstChoice = () => Object.fromEntries(FIELDS.map((field) => [field.key, field.value]));
const readModel = (text, troubles) => {
  if (networks.has(text) || (families && Object.hasOwn(families, familyOf(text)))) return text;
  const known = DATA.grid.models.some((model) => model.family === familyOf(text) && model.family !== "torchvision");
  troubles.push(`The link has ${shown(text)}, which is not in this page${known ? "; other networks of a family need 'perfctl serve'" : ""}.`);
  return undefined;
};
const readChoice = (hash) => {
  const choice = firstChoice(), troubles = [];
  for (const [key, text] of new URLSearchParams(hash.replace(/^#/, ""))) {
    const field = FIELDS.find((one) => one.key === key);
    if (!field) { troubles.push(`The link has ${shown(key)}, which this page does not know.`); continue; }
    const value = key === "model" ? readModel(text, troubles) : readField(field, text);
    if (value !== undefined) choice[key] = value;
    else if (key !== "model") troubles.push(`The link has ${key} = ${shown(text)}, which is not possible; the page uses ${choice[key]}.`);
  }
  return [choice, troubles];
};
const writeChoice = (choice) => {
  const parts = new URLSearchParams();
  for (const field of FIELDS) if (choice[field.key] !== field.value || field.always) parts.set(field.key, String(choice[field.key]));
  return "#" + parts.toString().replaceAll("%3A", ":").replaceAll("%3D", "=").replaceAll("%2C", ",");
};
const quoted = (text) => (/^[\w:=,.-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
const commandOf = (c) => {
  const parts = ["perfctl predict", quoted(c.model), "--batch", c.batch, "--device", quoted(MACHINES.get(c.device).kind === "cpu" ? "cpu" : c.device), "--dataset-size", c.samples, "--epochs", c.epochs, "--precision", c.precision, "--optimizer", c.optimizer];
  if (c.gpus > 1) parts.push("--gpus", c.gpus);
  for (const key of ["overlap", "interconnect", "efficiency"]) if (c.gpus > 1 && c[key]) parts.push(`--${key}`, c[key]);
  if (c.tariff) parts.push("--tariff", c.tariff);
  return parts.join(" ");
};

// The sentence, the five figures below it, and the notes.
const WAYS = {
  measured: "Measured here on this device", fitted: "Fitted to your own runs on this device",
  published: "Learned from measurements that others published",
  roofline: "From the roofline alone",
};
const PAY = { on_demand: "on demand", spot: "as spot instances" };
const offerSaid = ({ price, instances }, dated = true) => [price.provider, instances > 1 ? `${instances} x ` : "", price.instance || price.gpu || "", dated && price.date ? `(price of ${price.date}${price.is_old ? ", more than a year old" : ""})` : ""].filter(Boolean).join(" ");
const whyNoCost = (a) => {
  if (a.rentals.length) return `no ${choice.pay === "spot" ? "spot" : "on-demand"} price in the table`;
  const { uncertain } = DATA.machines.find((one) => one.name === choice.device), other = uncertain ? `; ${uncertain} may have it but do not state their form` : "";
  return `no offer of a ${choice.device} in the table${other}; say a price of your own`;
};
const BOUND = ", an upper bound from the sizes of the tensors; PyTorch's allocator may need more, and the command below replays it";
const memorySaid = ({ limit, fits, lacking, largest, reserve, close }) => {
  const kept = reserve ? ` (${gibibytes(reserve)} of it reserved for the CUDA context and the allocator)` : "";
  if (limit === null) return "how much the device has is not known";
  if (!fits) return `does not fit in ${gibibytes(limit)}${kept}: ${gibibytes(lacking)} are missing; ${largest ? `the largest batch that fits is at most ${grouped(largest)}${reserve ? BOUND : ""}` : "not even one sample fits"}`;
  return `of ${gibibytes(limit)}: fits${close ? ", but little is left" : ""}${kept}${largest === null ? "" : `; largest batch at most ${grouped(largest)}${reserve ? BOUND : ""}`}`;
};
const sentence = (a) => {
  if (a.impossible) return ["There is no such network, so nothing is predicted."];
  const where = `${choice.gpus > 1 ? `${choice.gpus} x ` : ""}${choice.device}`, bold = (text) => make("b", {}, text);
  if (!a.time) return [`Training ${choice.model} on ${where} is not predicted: ${a.reason}.`];
  const lacks = a.room?.fits === false, [time, range] = inTwo(duration(a.training)), epochs = `${grouped(choice.epochs)} ${choice.epochs === 1 ? "epoch" : "epochs"} of ${grouped(choice.samples)} samples`;
  const parts = lacks ? [bold(`Batch ${grouped(choice.batch)} does not fit on a ${choice.device}`), `: ${gibibytes(a.room.lacking)} of its ${gibibytes(a.room.limit)} are missing, and ${a.room.largest ? `the largest batch that fits is at most ${grouped(a.room.largest)}` : "not even one sample fits"}. If it fitted, `] : [];
  parts.push(`${lacks ? "training" : "Training"} ${choice.model} for ${epochs} at batch ${grouped(choice.batch)} in ${a.choice.precision} on ${where} ${lacks ? "would take" : "takes"} `, bold(`about ${time}`), ` (${range})`);
  if (a.cost && !lacks) { const [cost, costs] = inTwo(dollars(a.cost)); parts.push(" and costs ", bold(`about ${cost}`), `${costs ? ` (${costs})` : ""} ${PAY[choice.pay]} at ${offerSaid(a.offer)}`); }
  return [...parts, "."];
};
const box = (name, value, lines, style) => {
  const node = make("div", style === "bad" ? { class: "lacks" } : {}), dd = make("dd", { class: style === "no" ? "no" : "est" }, value);
  for (const line of lines) if (line) dd.append(make("small", {}, line));
  node.append(make("dt", {}, name), dd);
  return node;
};
const spanBox = (name, span, write, reason, lines = []) => {
  if (!span) return box(name, DASH, [reason], "no");
  const [value, range] = inTwo(write(span));
  return box(name, `~ ${value}`, [range, ...lines]);
};
const figuresOf = (a) => {
  const reason = a.impossible ? "no such network" : a.reason ?? "", { room } = a, lacks = room?.fits === false, hedge = lacks ? ["if it fitted"] : [];
  return [
    spanBox("A step", a.step, duration, reason, [...(a.step ? [`${digits3((choice.batch * choice.gpus) / a.step.value)} samples/s`] : []), ...hedge]),
    spanBox("An epoch", a.epoch, duration, reason, a.steps ? [`${grouped(a.steps)} ${a.steps === 1 ? "step" : "steps"}`, ...hedge] : []),
    spanBox("The training", a.training, duration, reason, hedge),
    spanBox("Cost", lacks ? null : a.cost, dollars, lacks ? "the batch does not fit in memory" : a.time ? whyNoCost(a) : reason, a.offer ? [`${offerSaid(a.offer)}${a.offer.idle ? `, ${a.offer.idle} idle` : ""}`] : []),
    room ? box("Memory of a GPU", `~ ${gibibytes(room.whole)}`, [memorySaid(room)], lacks ? "bad" : "") : box("Memory of a GPU", DASH, [a.impossible ? reason : "not known: the trace gave none"], "no"),
  ];
};
const notesOf = (a) => {
  if (!a.time) return [];
  const { time, parallel: p } = a, notes = [[`${WAYS[time.way]}: ${time.source}${time.coverage === null ? "" : `; the range covers ${percent(time.coverage, 0)} of held-out cases`}.`, false]];
  for (const said of time.outside) notes.push([`Beyond the data: ${said}.`, true]);
  if (choice.precision === "mixed" && a.choice.precision === "fp32") notes.push([`A ${choice.device} has no tensor cores for bf16 or fp16: predicted in fp32.`, false]);
  for (const said of a.notes) notes.push([`${said}.`, true]);
  for (const said of time.whyNot) if (said) notes.push([`Not ${said}.`, false]);
  if (a.offer?.price.date) notes.push([`Price: ${a.offer.price.provider} of ${a.offer.price.date}, ${a.offer.price.source}${a.offer.price.is_old ? "; more than a year old: check it" : ""}.`, a.offer.price.is_old]);
  if (p) {
    notes.push([`${choice.gpus} GPUs at an efficiency of ${percent(p.efficiency)}: ${gigabytes(p.moved)} of gradients a step and GPU${p.communication === null ? ", efficiency as said" : `, ${short(p.communication)} over ${digits3(p.link)} GB/s (${p.said}), of which ${short(p.exposed)} not hidden`}.`, false]);
    if (choice.gpus > 8 && !choice.interconnect && !choice.efficiency) notes.push(["More than 8 GPUs sit in several machines: say what the network between them reaches, or an efficiency.", true]);
  }
  if (a.energy) notes.push([`Energy of the GPUs: ${withRange(a.energy.kwh, "kWh")}${a.energy.cost ? `, ${dollars(a.energy.cost)} at the tariff` : ""}, at ${digits3(a.energy.watts)} W a GPU (${a.energy.source}).`, false]);
  return notes;
};
const briefOf = (a) => (a.time ? [`~ ${inTwo(duration(a.training))[0]}`, a.room?.fits === false ? "does not fit" : a.cost ? `~ ${inTwo(dollars(a.cost))[0]}` : "no price", a.room ? `~ ${gibibytes(a.room.whole)}` : ""].filter(Boolean).join("   ") : "not predicted");
function showAnswer(a) {
  const list = byId("troubles"), said = a.impossible ? [...troubles, a.impossible] : troubles;
  list.hidden = said.length === 0;
  list.replaceChildren(...said.map((text) => make("li", {}, text)));
  byId("sentence").replaceChildren(...sentence(a));
  byId("figures").replaceChildren(...figuresOf(a));
  byId("notes").replaceChildren(...notesOf(a).map(([text, warn]) => make("li", warn ? { class: "warn" } : {}, text)));
  byId("brief").textContent = briefOf(a);
  document.querySelector('fieldset[data-part="parallel"]').hidden = choice.gpus === 1;
  byId("command").textContent = commandOf(a.choice);
}

// Tables: cells with their value, unit and state, sorted by a click, copied as CSV.
const nothingCell = (reason) => make("td", { class: "no", title: reason, tabindex: "0" }, DASH);
const textCell = (text) => make("td", { class: "text s" }, text);
const estimated = (span, write, reason) => {
  if (!span) return nothingCell(reason);
  const [value, range] = inTwo(write(span)), [number, unit = ""] = value.split(" "), td = make("td", { class: "est", title: range || "no range" }, `~ ${number}`);
  if (unit) td.append(" ", make("u", { class: "w" }, unit));
  return td;
};
const rowOf = (cells, values) => { const node = make("tr"); node.append(...cells); return { node, values }; };
const tableOf = (host, heads, onHead) => {
  const table = host.querySelector("table"), line = table.tHead.rows[0], state = { rows: [] };
  const showRows = () => {
    const rows = state.place === undefined ? state.rows : ordered(state.rows, (row) => row.values[state.place] ?? null, state.way);
    const held = table.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
    table.tBodies[0].replaceChildren(...rows.map((row) => row.node));
    if (held !== undefined) table.querySelector(`[data-key="${CSS.escape(held)}"]`)?.focus();
  };
  for (const [label, style, note] of heads) line.append(make("th", { scope: "col", class: style || "num", ...(note ? { title: note } : {}) }, label));
  const sortBy = (place, way) => { state.place = place; state.way = way; showRows(); };
  sortable([...line.cells], (place, way) => { onHead?.(); sortBy(place, way); });
  const button = make("button", { type: "button", title: "Full values, to the clipboard and as a file" }, "CSV"), box = make("span", { class: "controls" });
  button.addEventListener("click", () => download(host.id, [heads.map(([label, , , base]) => (base ? `${label} (${base})` : label)), ...state.rows.map((row) => row.values)]));
  box.append(button);
  host.querySelector("figcaption").append(box);
  const fill = (caption, rows) => { state.rows = rows; host.querySelector("figcaption > span").textContent = caption; showRows(); };
  const rising = (label) => {
    const place = heads.findIndex(([name]) => name === label);
    [...line.cells].forEach((th, n) => (n === place ? th.setAttribute("aria-sort", "ascending") : th.removeAttribute("aria-sort")));
    sortBy(place, 1);
  };
  return { fill, rising };
};
const sorts = [...byId("sorts").children], SORTED_BY = { cost: "cost", time: "training" };
const pressed = (key) => { for (const button of sorts) button.setAttribute("aria-pressed", String(button.dataset.sort === key)); };
const gpus = tableOf(byId("gpus"), [
  ["device", "text"], ["training", "", "", "s"], ["cost", "", "", "USD"], ["range", "text", "of the training; sorted by its low end", "low end, s"], ["price of", "text", "the date of the price; more than a year old: check it before you rent"], ["precision", "text"], ["step", "", "", "s"], ["memory", "", "", "B"], ["largest batch", "", "an upper bound from the sizes of the tensors: PyTorch's allocator may need more, which perfctl predict replays"], ["for", "text"], ["rests on", "text"],
], () => pressed(null));
function showGpus(answers) {
  const able = (key) => answers.filter((a) => a.room?.fits !== false && a[key]), spans = (key) => able(key).map((a) => a[key].value), priced = able("cost").length;
  const steps = durationIn(spans("step")), trainings = durationIn(spans("training")), fastest = Math.min(...spans("training")), cheapest = Math.min(...spans("cost")), equal = spans("training").filter((v) => v === fastest).length;
  const inOrder = answers.toSorted((a, b) => (a.training?.value ?? Infinity) - (b.training?.value ?? Infinity) || 0); // stays where costs are equal or not known
  gpus.fill(`The same training on ${answers.length} devices, ${priced} of them with a price`, inOrder.map((a) => {
    const name = a.choice.device, button = make("button", { type: "button", "data-key": name, title: "Take this device" }, name), first = make("td", { class: "text s" });
    button.addEventListener("click", () => { choice.device = name; shows.device(); update(); });
    first.append(button);
    const mark = (text, title) => first.append(" ", make("span", { class: "mark", title }, text));
    if (a.room?.fits !== false && a.training?.value === fastest) mark(...(equal > 1 && a.time.hostLimits ? ["host-limited", `the shortest predicted training, of ${equal} devices alike: the host limits the step`] : ["fastest", "the shortest predicted training of these devices; compare the ranges, too"]));
    if (a.room?.fits !== false && a.cost?.value === cheapest) mark("cheapest", `the lowest predicted cost of the ${priced} devices with a price; compare the ranges, too`);
    const reason = a.impossible ?? a.reason ?? "", { room } = a, lacks = room?.fits === false, why = lacks ? memorySaid(room) : reason, at = (span) => (lacks ? null : span ?? null);
    const memory = room ? make("td", { class: lacks ? "refused" : "est", title: memorySaid(room) }) : nothingCell("not known");
    if (room) memory.append(lacks ? make("s", {}, gibibytes(room.whole)) : `~ ${gibibytes(room.whole)}`);
    const largest = room && room.largest !== null ? make("td", { class: "est" }, `~ ${grouped(room.largest)}`) : nothingCell(room ? "without an end" : "not known");
    const offer = at(a.offer) && [a.offer.price.date && `${a.offer.price.date}${a.offer.price.is_old ? " (old)" : ""}`, offerSaid(a.offer, false)].filter(Boolean).join(", "), range = at(a.training) ? textCell(inTwo(trainings(a.training))[1]) : nothingCell(why), offered = textCell(offer ?? DASH);
    if (offer && a.offer.price.date) offered.title = `${a.offer.price.date}, ${a.offer.price.source}`;
    const unseen = a.time?.way === "published" && a.time.coverage === null, basis = textCell(a.time ? (unseen ? "published; not measured" : a.time.way) : DASH);
    if (unseen) basis.title = a.time.outside.join("; ");
    const row = rowOf(
      [first, estimated(at(a.training), trainings, why), estimated(at(a.cost), dollars, lacks ? "does not fit in memory" : a.time ? "no such price in the table" : reason), range, offered, textCell(a.choice.precision), estimated(at(a.step), steps, why), memory, largest, textCell(MACHINES.get(name).group), basis],
      [name, at(a.training)?.value ?? null, at(a.cost)?.value ?? null, at(a.training)?.low ?? null, offer, a.choice.precision, at(a.step)?.value ?? null, room?.whole ?? null, room?.largest ?? null, MACHINES.get(name).group, basis.textContent],
    );
    if (name === choice.device) row.node.setAttribute("aria-current", "true");
    return row;
  }));
}
const works = tableOf(byId("work"), [["work", "text"], ["time", "", "", "s"], ["of the step", "", "", "part of 1"], ["driven by", "text"]]);
function showWork(a) {
  const rows = a.time ? Object.entries(splitOf(a.network, a.choice)).map(([work, limits]) => [work, Object.values(limits).reduce((x, y) => x + y, 0), Object.entries(limits).reduce((x, y) => (y[1] > x[1] ? y : x))[0]]) : [];
  const total = rows.reduce((sum, [, amount]) => sum + amount, 0);
  works.fill(rows.length ? "A step of one GPU by kind of work, the longest first" : "Nothing to show", rows.filter(([, amount]) => amount > 0).sort((x, y) => y[1] - x[1]).map(([work, amount, limit]) => {
    const part = amount / total, value = a.time.value * part, driver = a.time.hostLimits ? "host" : limit;
    return rowOf([textCell(work), estimated({ value, low: value, high: value }, duration), make("td", { class: "est" }, part < 0.0005 ? "< 0.1%" : `~ ${percent(part)}`), textCell(driver)], [work, value, part, driver]);
  }));
}

// The curve over batch size.
const inTime = {
  unit: (v) => TIME_UNITS.find(([end]) => v < end)[1],
  tick: (v, one) => `${digits3(v / one)} ${TIME_UNITS.find(([, size]) => size === one)[2]}`,
};
const MEASURES = [["training time", "training", duration, inTime], ["cost", "cost", dollars, { unit: () => 1, tick: (v) => money(v).replace(/\.00$/, "") }], ["time of a step", "step", duration, inTime], ["time per sample", "sample", duration, inTime]];
let measure = MEASURES[0];
const bandSaid = ({ way, coverage }) => (coverage === null ? { published: "90% of steps on left-out devices", roofline: "the range that the literature reports", measured: "spread of the measured steps" }[way] : `covers ${percent(coverage, 0)} of held-out cases`);
function showCurve(answers) {
  const host = byId("curve"), [label, key, write, axis] = measure, title = label[0].toUpperCase() + label.slice(1);
  const marks = answers.map((a) => {
    const span = a[key], { batch } = a.choice, lacks = a.room?.fits === false ? "; does not fit in memory" : "";
    return { x: batch, y: span?.value ?? null, low: span?.low ?? null, high: span?.high ?? null, fits: a.room ? a.room.fits : null, tip: `batch ${grouped(batch)}: ${span ? `~ ${write(span)}` : "not available"}${lacks}` };
  });
  host.querySelector("figcaption").textContent = `${title} of ${choice.model} on ${choice.device}, by batch size`;
  const svg = curve(marks, choice.batch, axis, `${title} by batch size. The arrow keys say the points, Enter takes one.`), held = host.contains(document.activeElement);
  liveChart(svg, (batch) => { hideTip(); choice.batch = batch; shows.batch(); update(); });
  host.querySelector("div").replaceChildren(svg);
  if (held) svg.focus();
  const [a] = answers, known = answers.find((one) => one.time);
  host.querySelector(".note").textContent = marks.some((p) => p.y !== null) ? `Line: predicted. Band: ${bandSaid(known.time)}. Ring: the batch that is chosen.` : `Nothing to draw: ${a.impossible ?? a.reason ?? whyNoCost(a)}.`;
}

// The network: a model of the page, or one of a family that perfctl serve works out.
let [choice, troubles] = readChoice(location.hash);
const shows = {}, boxes = Object.fromEntries([...document.querySelectorAll(".choice .field")].map((node) => [node.dataset.key, node]));
const lists = { family: byId("c-family"), traced: byId("c-traced") };
const askServer = async (query) => {
  try {
    const answer = await fetch(`/calculator.json${query}`), said = answer.headers.get("Content-Type")?.startsWith("application/json") ? await answer.json() : {};
    return answer.ok || said.error ? said : { error: `perfctl serve answered ${answer.status}`, again: true };
  } catch { return { error: "perfctl serve does not answer", again: true }; }
};
let asking;
const takeModel = (text) => {
  choice.model = text;
  clearTimeout(asking);
  showParameters();
  if (networks.get(text)?.again) networks.delete(text);
  if (networks.has(text)) { delete document.documentElement.dataset.busy; update(); return; }
  document.documentElement.dataset.busy = "";
  asking = setTimeout(async () => {
    const { name = text, optimizer, grid, error, again } = await askServer(`?model=${encodeURIComponent(text)}`);
    const found = grid?.format === DATA.grid.format ? { grid, model: grid.models[0] } : { error: error ?? "perfctl serve is of another version than this page", again };
    networks.set(text, found).set(name, found);
    if (choice.model !== text) return; // another one was chosen since
    choice.model = name;
    if (optimizer) { choice.optimizer = optimizer; shows.optimizer(); }
    delete document.documentElement.dataset.busy;
    update();
  }, 120);
};
const settingsOf = (text) => {
  const family = families[familyOf(text)], given = Object.fromEntries(text.slice(text.indexOf(":") + 1).split(",").map((part) => part.split("=").map((word) => word.trim())));
  return Object.fromEntries(Object.entries(family).map(([name, p]) => [name, Object.hasOwn(given, name) && text.includes(":") ? (p.words ? given[name] : Number(given[name])) : p.default]));
};
const specOf = (family, settings) => {
  const words = Object.entries(families[family]).filter(([name, p]) => name !== "optimizer" && settings[name] !== p.default).map(([name]) => `${name}=${settings[name]}`);
  return words.length ? `${family}:${words.join(",")}` : family;
};
// A slider stops at what a parameter may be: odd numbers, multiples, or the values that are named.
const nearest = (stops) => (value) => stops.reduce((a, b) => (Math.abs(b - value) < Math.abs(a - value) ? b : a));
const allowed = ({ least, most, odd, multiple }, value) => {
  const step = odd ? 2 : multiple, start = odd ? 1 : 0;
  return Math.min(most, Math.max(least, start + Math.round((value - start) / step) * step));
};
function showParameters() {
  const host = byId("parameters"), family = familyOf(choice.model), traced = family === "torchvision";
  lists.family.value = family;
  lists.traced.closest(".field").hidden = !traced;
  byId("from-disk").hidden = traced || families !== null;
  if (traced) lists.traced.value = choice.model;
  if (traced || !families) { host.replaceChildren(); host.dataset.family = ""; return; }
  if (host.dataset.family !== family) {
    host.dataset.family = family;
    shows.parameters = [];
    host.replaceChildren(...Object.entries(families[family]).filter(([name]) => name !== "optimizer").map(([name, p]) => {
      const field = { key: `p-${name}`, label: name, about: p.about, low: p.least, high: p.most, is_integer: true, options: p.words ?? null, scale: p.words ? "" : "log", slider: p.slider, step: 1, snap: p.stops && nearest(p.stops) }, node = parameterField(field);
      shows.parameters.push(connect(node, field, () => settingsOf(choice.model)[name], (value) => takeModel(specOf(family, { ...settingsOf(choice.model), [name]: p.words ? value : allowed(p, value) }))));
      return node;
    }));
  }
  for (const show of shows.parameters) show(!host.contains(document.activeElement) || document.activeElement.type !== "text");
}
lists.family.addEventListener("change", () => takeModel(lists.family.value === "torchvision" ? lists.traced.value : lists.family.value));
lists.traced.addEventListener("change", () => takeModel(lists.traced.value));

// The page.
let saving;
function update() {
  const began = performance.now(), answer = answerOf(choice);
  showAnswer(answer);
  showWork(answer);
  showCurve([...new Set([...BATCHES, choice.batch])].sort((a, b) => a - b).map((batch) => answerOf({ ...choice, batch })));
  const listed = DATA.machines.filter(({ name, group }) => choice.show === "all" || name === choice.device || group.split(",")[0] === choice.show);
  showGpus(listed.map(({ name }) => answerOf({ ...choice, device: name })));
  document.documentElement.dataset.answered = (performance.now() - began).toFixed(2);
  clearTimeout(saving);
  saving = setTimeout(() => history.replaceState(null, "", writeChoice(choice)), 200);
}
function showAll() {
  for (const field of FIELDS) shows[field.key]?.();
  takeModel(choice.model);
}
shows.sort = () => { pressed(choice.sort); gpus.rising(SORTED_BY[choice.sort]); };
const groups = [...byId("groups").children];
shows.show = () => { for (const button of groups) button.setAttribute("aria-pressed", String(button.dataset.show === choice.show)); };
for (const button of groups) button.addEventListener("click", () => { choice.show = button.dataset.show; shows.show(); update(); });
for (const button of sorts) button.addEventListener("click", () => { choice.sort = button.dataset.sort; shows.sort(); update(); });
for (const field of FIELDS) if (boxes[field.key]) shows[field.key] = connect(boxes[field.key], field, () => choice[field.key], (value) => { choice[field.key] = value; update(); });
byId("measures").append(...MEASURES.map((entry) => {
  const button = make("button", { type: "button", "aria-pressed": String(entry === measure) }, entry[0]);
  button.addEventListener("click", () => {
    measure = entry;
    for (const other of byId("measures").children) other.setAttribute("aria-pressed", String(other === button));
    update();
  });
  return button;
}));
// The address of the event: the page may have changed its own since.
window.addEventListener("hashchange", (event) => { [choice, troubles] = readChoice(new URL(event.newURL).hash); showAll(); });
byId("copy").addEventListener("click", (event) => {
  const link = location.href.split("#")[0] + writeChoice(choice), button = event.currentTarget;
  history.replaceState(null, "", writeChoice(choice));
  const said = (text) => { button.textContent = text; setTimeout(() => { button.textContent = "Copy a link to this choice"; }, 2000); };
  const copied = navigator.clipboard?.writeText(link) ?? Promise.reject();
  copied.then(() => said("Copied"), () => said("The link is in the address bar"));
});
document.querySelector(".choice").addEventListener("reset", (event) => { event.preventDefault(); choice = firstChoice(); troubles = []; showAll(); });
document.querySelector(".choice").addEventListener("submit", (event) => event.preventDefault());
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); const main = byId("main"); main.tabIndex = -1; main.focus(); main.scrollIntoView(); });
const begin = async () => {
  if (location.protocol.startsWith("http")) families = (await askServer("")).families ?? null;
  [choice, troubles] = readChoice(location.hash);
  showAll();
  requestAnimationFrame(() => setTimeout(() => performance.mark("drawn"))); // after the first paint; scripts/speed/calculator.py reads it
};
globalThis.perfctlCalculator = { answerOf, splitOf, networks, firstChoice, readChoice, tickValues }; // for scripts, and for tests that hold these numbers against 'perfctl predict'
begin();
