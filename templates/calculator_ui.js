// The page: the choice drives everything that is shown. The answer comes at once, curve and table a slice at a time.
let [choice, troubles] = readChoice(location.hash);
const shows = {};
const boxes = Object.fromEntries([...document.querySelectorAll(".choice .field")].map((box) => [box.dataset.key, box]));
const inTime = {
  unit: (v) => TIME_UNITS.find(([end]) => v < end)[1],
  tick: (v, one) => `${digits3(v / one)} ${TIME_UNITS.find(([, size]) => size === one)[2]}`,
};
const MEASURES = [
  ["training time", (a) => a.training, duration, inTime],
  ["cost", (a) => a.cost, dollars, { unit: () => 1, tick: money }],
  ["time of a step", (a) => a.step, duration, inTime],
  ["time per sample", (a) => a.sample, duration, inTime],
];
let measure = MEASURES[0];

const set = (key, value) => {
  choice[key] = value;
  if (key === "model") buildParameters();
  update();
};
for (const field of FIELDS) {
  if (field.key === "model") continue;
  shows[field.key] = connect(boxes[field.key], field, () => choice[field.key], (value) => set(field.key, value));
}

// The network: a family with its parameters, or a model that was traced.
const modelLists = { family: byId("c-family"), traced: byId("c-traced") };
const familyFields = (family) => Object.entries(DATA.families[family]).filter(([name]) => name !== "optimizer").map(([name, p]) => ({
  key: `p-${name}`, name, label: name, about: p.about, low: p.least, high: p.most, whole: true, multiple: p.multiple ?? 1, odd: p.odd ?? false,
  options: p.words ?? null, scale: p.words ? null : "log", slider: p.words ? null : p.slider, step: 1,
}));
// Residual networks are made of whole blocks: the slider stops at these, the box takes what is typed.
const wholeBlocks = (value, { block, depth }) => { const size = block === "bottleneck" || (block === "auto" && depth >= 50 && value >= 50) ? 3 : 2; return 2 + size * Math.round((value - 2) / size); };
const settled = (field, value) => {
  if (field.options) return value;
  const step = field.odd ? 2 : field.multiple, start = field.odd ? 1 : 0;
  return Math.min(field.high, Math.max(field.low, start + Math.max(field.odd ? 0 : 1, Math.round((value - start) / step)) * step));
};
function buildParameters() {
  const host = byId("parameters"), family = familyOf(choice.model);
  modelLists.family.value = family ?? "torchvision";
  modelLists.traced.closest(".field").hidden = family !== null;
  if (family === null) { modelLists.traced.value = choice.model; host.replaceChildren(); host.dataset.family = ""; return; }
  const settings = () => settle(choice.model)[1];
  if (host.dataset.family === family) { for (const show of Object.values(shows.parameters)) show(); return; }
  host.dataset.family = family;
  shows.parameters = {};
  host.replaceChildren(...familyFields(family).map((field) => {
    const box = numberField(field);
    box.title = field.about;
    const take = (value) => {
      choice.model = canonical(family, { ...settings(), [field.name]: settled(field, value) });
      update();
    };
    const reader = { ...field, snap: (value) => (family === "resnet" && field.name === "depth" ? wholeBlocks(value, { ...settings(), depth: value }) : value) };
    shows.parameters[field.name] = connect(box, reader, () => settings()[field.name], take);
    return box;
  }));
  for (const show of Object.values(shows.parameters)) show();
}
modelLists.family.addEventListener("change", () => { const value = modelLists.family.value; set("model", value === "torchvision" ? modelLists.traced.value : value); });
modelLists.traced.addEventListener("change", () => set("model", modelLists.traced.value));

// Slices of work between frames, the newest request only.
let turn = 0;
const inSlices = (jobs, done) => {
  const mine = ++turn;
  let at = 0;
  const go = () => {
    if (mine !== turn) return;
    for (const end = performance.now() + 12; at < jobs.length && performance.now() < end; at++) jobs[at]();
    at < jobs.length ? setTimeout(go) : done();
  };
  setTimeout(go);
};
let saving;
const save = () => {
  clearTimeout(saving);
  saving = setTimeout(() => { saving = null; history.replaceState(null, "", writeChoice(choice)); }, 200);
};

function update() {
  const began = performance.now(), answer = answerOf(choice);
  showAnswer(answer);
  document.documentElement.dataset.answered = (performance.now() - began).toFixed(2);
  save();
  const now = { ...choice }, points = [], rows = [];
  const sizes = batchesFor(now);
  const jobs = [
    ...sizes.map((batch) => () => points.push([batch, answerOf({ ...now, batch })])),
    () => showCurve(points),
    ...DATA.machines.map((machine) => () => rows.push(answerOf({ ...now, device: machine.name }))),
  ];
  document.documentElement.dataset.busy = "";
  inSlices(jobs, () => { showGpus(rows); delete document.documentElement.dataset.busy; });
}
const batchesFor = (now) => {
  const all = Array.from({ length: 13 }, (_, n) => 2 ** n);
  return [...new Set([...all, now.batch])].sort((a, b) => a - b);
};

const WAYS = {
  measured: "Measured here on this device", fitted: "Fitted to your own runs on this device",
  transferred: "Fitted to runs on another device, and moved by peaks and bandwidth", roofline: "From the roofline alone",
};
function showAnswer(a) {
  const list = byId("troubles"), said = a.impossible ? [...troubles, a.impossible] : troubles;
  list.hidden = said.length === 0;
  list.replaceChildren(...said.map((text) => make("li", {}, text)));
  byId("sentence").replaceChildren(...sentence(a));
  byId("figures").replaceChildren(...figuresOf(a));
  byId("notes").replaceChildren(...notesOf(a).map(([text, warn]) => make("li", warn ? { class: "warn" } : {}, text)));
  showLayers(a);
  byId("brief").textContent = briefOf(a);
  document.querySelector('fieldset[data-part="parallel"]').hidden = choice.gpus === 1;
  byId("command").textContent = commandOf(choice);
}
const briefOf = (a) => (a.time ? [`~ ${inTwo(duration(a.training))[0]}`, a.room?.fits === false ? "does not fit" : a.cost ? `~ ${inTwo(dollars(a.cost))[0]}` : "no price", a.room ? `~ ${gigabytes(a.room.needed)}` : ""].filter(Boolean).join("   ") : "not predicted");
const bold = (text) => make("b", {}, text);
const offerSaid = ({ price, instances }) => [price.provider, instances > 1 ? `${instances} x ` : "", price.instance || price.gpu || ""].filter(Boolean).join(" ");
const payWords = { on_demand: "on demand", spot: "as spot instances" };
const sentence = (a) => {
  if (a.impossible) return ["There is no such network, so nothing is predicted."];
  const where = `${choice.gpus > 1 ? `${choice.gpus} x ` : ""}${choice.device}`;
  if (!a.time) return [`Training ${choice.model} on ${where} is not predicted: ${a.reason}.`];
  const lacks = a.room?.fits === false;
  const [time, range] = inTwo(duration(a.training)), epochs = `${grouped(choice.epochs)} ${choice.epochs === 1 ? "epoch" : "epochs"} of ${grouped(choice.samples)} samples`;
  const parts = lacks ? [bold(`Batch ${grouped(choice.batch)} does not fit on a ${choice.device}`), `: ${gigabytes(a.room.lacking)} of its ${gigabytes(a.room.limit)} are missing, and ${a.room.largest ? `the largest batch that fits is ${grouped(a.room.largest)}` : "not even one sample fits"}. If it fitted, `] : [];
  parts.push(`${lacks ? "training" : "Training"} ${choice.model} for ${epochs} at batch ${grouped(choice.batch)} on ${where} ${lacks ? "would take" : "takes"} `, bold(`about ${time}`), ` (${range})`);
  if (a.cost && !lacks) { const [cost, costs] = inTwo(dollars(a.cost)); parts.push(" and costs ", bold(`about ${cost}`), `${costs ? ` (${costs})` : ""} ${payWords[choice.pay]} at ${offerSaid(a.offer)}`); }
  return [...parts, "."];
};
const figuresOf = (a) => {
  const reason = a.impossible ? "no such network" : a.reason ?? "", rate = a.step ? { value: (choice.batch * choice.gpus) / a.step.value, low: 1, high: 1 } : null;
  const { room } = a, lacks = room?.fits === false, hedge = lacks ? ["if it fitted"] : [];
  return [
    spanBox("A step", a.step, duration, reason, [...(rate ? [`${digits3(rate.value)} samples/s`] : []), ...hedge]),
    spanBox("An epoch", a.epoch, duration, reason, a.steps ? [`${grouped(a.steps)} ${a.steps === 1 ? "step" : "steps"}`, ...hedge] : []),
    spanBox("The training", a.training, duration, reason, hedge),
    spanBox("Cost", lacks ? null : a.cost, dollars, lacks ? "the batch does not fit in memory" : a.time ? whyNoCost(a) : reason, a.offer ? [`${offerSaid(a.offer)}${a.offer.idle ? `, ${a.offer.idle} idle` : ""}`] : []),
    room ? box("Memory of a GPU", `~ ${gigabytes(room.needed)}`, [memorySaid(room)], room.fits === false ? "bad" : "") : box("Memory of a GPU", DASH, [a.impossible ? reason : "not known: the trace gave none"], "no"),
  ];
};
const whyNoCost = (a) => (a.rentals.length ? `no ${choice.pay === "spot" ? "spot" : "on-demand"} price in the table` : `no offer of a ${choice.device} in the table; say a price of your own`);
const notesOf = (a) => {
  if (!a.time) return [];
  const { time } = a, notes = [[`${WAYS[time.way]}: ${time.source}${time.coverage === null ? "" : `; the range covers ${fixed(time.coverage * 100, 0)} % of held-out cases`}.`, false]];
  for (const said of time.outside) notes.push([`Beyond the data: ${said}.`, true]);
  if (a.job.precision === "bf16" || a.job.precision === "fp16") notes.push(["Memory is worked out in fp32: under autocast activations take less.", false]);
  for (const said of a.notes ?? []) notes.push([`${said}.`, true]);
  for (const said of time.why_not) if (said) notes.push([`Not ${said}.`, false]);
  if (a.offer?.price.date) notes.push([`Price: ${a.offer.price.provider} of ${a.offer.price.date}, ${a.offer.price.source}${a.offer.price.boards > 1 ? "; the provider does not say which form of the GPU" : ""}.`, false]);
  if (a.parallel) {
    const p = a.parallel, moved = `${gigabytes(p.moved_bytes)} of gradients a step and GPU`;
    notes.push([`${choice.gpus} GPUs at an efficiency of ${percent(p.efficiency)}: ${moved}${p.communication === null ? ", efficiency as said" : `, ${short(p.communication)} over ${digits3(p.link_gbs)} GB/s (${p.link}), of which ${short(p.exposed)} not hidden`}.`, false]);
    if (choice.gpus > 8 && !choice.interconnect && !choice.efficiency) notes.push(["More than 8 GPUs sit in several machines: say what the network between them reaches, or an efficiency.", true]);
  }
  if (a.energy) { const cost = a.energy.cost ? `, ${dollars(a.energy.cost)} at the tariff` : ""; notes.push([`Energy of the GPUs: ${withRange(a.energy.kwh, "kWh")}${cost}, at ${digits3(a.energy.watts)} W a GPU (${a.energy.source}).`, false]); }
  return notes;
};
function showCurve(points) {
  const host = byId("curve"), [label, pick, write, axis] = measure;
  const marks = points.map(([batch, a]) => {
    const span = pick(a), lacks = a.room?.fits === false ? "; does not fit in memory" : "";
    return { x: batch, y: span ? span.value : null, low: span?.low ?? null, high: span?.high ?? null, fits: a.room ? a.room.fits : null, tip: `batch ${grouped(batch)}: ${span ? `~ ${write(span)}` : "not available"}${lacks}` };
  });
  const title = label[0].toUpperCase() + label.slice(1);
  host.querySelector("figcaption").textContent = `${title} of ${choice.model} on ${choice.device}, by batch size`;
  const svg = curve(marks, choice.batch, axis, `${title} by batch size. The arrow keys say the points, Enter takes one.`);
  liveChart(svg, (batch) => { hideTip(); choice.batch = batch; shows.batch(); update(); });
  const held = host.contains(document.activeElement);
  host.querySelector("div").replaceChildren(svg);
  if (held) svg.focus();
  const known = points.find(([, a]) => a.time)?.[1];
  const why = points[0][1].impossible ?? points[0][1].reason ?? (points[0][1].time ? whyNoCost(points[0][1]) : "");
  host.querySelector(".note").textContent = marks.some((p) => p.y !== null) ? `Line: predicted. Band: ${bandSaid(known.time)}. Ring: the batch that is chosen.` : `Nothing to draw: ${why}.`;
}
const bandSaid = (time) => (time.coverage === null ? { transferred: "the fit's range, widened for another device", roofline: "the range that the literature reports", measured: "spread of the measured steps" }[time.way] ?? "the range" : `covers ${fixed(time.coverage * 100, 0)} % of held-out cases`);
const quoted = (text) => (/^[\w:=,.-]+$/.test(text) ? text : `'${text}'`);
const commandOf = (c) => {
  const parts = ["perfctl predict", "--model", quoted(c.model), "--batch", c.batch, "--device", quoted(MACHINES.get(c.device).kind === "cpu" ? "cpu" : c.device), "--dataset-size", c.samples, "--epochs", c.epochs, "--precision", c.precision, "--optimizer", c.optimizer];
  if (c.gpus > 1) parts.push("--gpus", c.gpus);
  for (const key of ["overlap", "interconnect", "efficiency"]) if (c.gpus > 1 && c[key]) parts.push(`--${key}`, c[key]);
  if (c.tariff) parts.push("--tariff", c.tariff);
  return parts.join(" ");
};
byId("measures").append(...MEASURES.map((entry) => {
  const button = make("button", { type: "button", "aria-pressed": String(entry === measure) }, entry[0]);
  button.addEventListener("click", () => {
    measure = entry;
    for (const other of byId("measures").children) other.setAttribute("aria-pressed", String(other === button));
    update();
  });
  return button;
}));
// The event's own address: the one of the page may have been written over since.
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
function showAll() {
  buildParameters();
  for (const field of FIELDS) shows[field.key]?.();
  update();
}
showAll();
// For scripts, and for tests that hold these numbers against 'perfctl predict'.
globalThis.perfctlCalculator = { answerOf, planOf, networkOf, linesOfPlan, firstChoice, readChoice, writeChoice, duration, dollars, gigabytes, digits3, fixed, memorySaid };
