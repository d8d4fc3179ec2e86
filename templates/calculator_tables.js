// The table over GPUs and the table of operations, filled from answers.
const fillGpus = tableOf(byId("gpus"), [
  ["device", "", "text"], ["step", "", "num", "", "s"], ["training", "", "num", "", "s"], ["range", "", "text", "sorted by its low end", "low end, s"], ["memory", "", "num", "", "B"], ["largest batch", ""], ["cost", "", "num", "", "$"], ["offer", "", "text"], ["rests on", "", "text"],
], {});
function showGpus(answers) {
  const rows = answers.map((a) => {
    const name = a.choice.device, button = make("button", { type: "button", "data-key": name, title: "Take this device" }, name), first = make("td", { class: "text s" });
    button.addEventListener("click", () => { choice.device = name; shows.device(); update(); });
    first.append(button);
    const reason = a.impossible ?? a.reason ?? "", { room } = a, lacks = room?.fits === false;
    const memory = room ? make("td", { class: lacks ? "refused" : "est", title: memorySaid(room) }) : nothingCell("not known");
    if (room) { if (lacks) memory.append(make("s", {}, gigabytes(room.needed))); else memory.append(`~ ${gigabytes(room.needed)}`); }
    const largest = room && room.largest !== null ? make("td", { class: "est" }, `~ ${grouped(room.largest)}`) : nothingCell(room ? "without an end" : "not known");
    const cost = lacks ? nothingCell("does not fit in memory") : estimated(a.cost, dollars, a.time ? "no such price in the table" : reason);
    const why = lacks ? `${memorySaid(room)}` : reason, at = (span) => (lacks ? null : span);
    const row = rowOf(
      [first, estimated(at(a.step), duration, why), estimated(at(a.training), duration, why), a.training && !lacks ? textCell(inTwo(duration(a.training))[1]) : nothingCell(why), memory, largest, cost, textCell(a.offer && !lacks ? offerSaid(a.offer) : DASH), textCell(a.time?.way ?? DASH)],
      [name, at(a.step)?.value ?? null, at(a.training)?.value ?? null, at(a.training)?.low ?? null, room?.needed ?? null, room?.largest ?? null, lacks ? null : a.cost?.value ?? null, a.offer && !lacks ? offerSaid(a.offer) : null, a.time?.way ?? null],
    );
    if (name === choice.device) row.node.setAttribute("aria-current", "true");
    return row;
  });
  const lacking = answers.filter((a) => a.room?.fits === false).length;
  fillGpus(`The same training on ${answers.length} devices${lacking ? `; batch ${grouped(choice.batch)} does not fit on ${lacking}` : ""}`, rows);
}
const LIMITS = { bytes: "bandwidth", weights: "bandwidth", window: "bandwidth", spilled: "bandwidth", overflow: "bandwidth", adam: "bandwidth", fresh: "bandwidth", operations: "launches", tensors: "launches", step: "launches" };
const limitOf = (part) => LIMITS[part.includes(" bytes ") ? "bytes" : part.split(" ")[0]] ?? "FLOPs";
const sized = (work) => {
  const side = Math.sqrt(work.kernel), window = work.kernel > 1 && Number.isInteger(side) ? ` ${side}x${side}` : "";
  if (HEAVY.includes(work.kind)) return `${work.kind.replace("_", " ")}${window}, ${grouped(Math.round(work.depth / work.kernel))} to ${grouped(work.columns)}${work.groups > 1 ? ` x ${grouped(work.groups)}` : ""}, ${grouped(work.rows)} rows a sample`;
  return `${work.kind}${window}, ${grouped(work.outputs)} values a sample`;
};
const fillLayers = tableOf(byId("layers"), [["operation", "", "text", "channels or features in and out"], ["alike", ""], ["time", "", "num", "", "s"], ["of the step", "", "num", "", "part of 1"], ["driven by", "", "text"]], {});
function showLayers(a) {
  if (!a.time) { fillLayers("Nothing to show", []); return; }
  const { job, machine, time } = a, all = [];
  const put = (name, calls, parts) => {
    const limits = {};
    for (const [part, seconds] of parts) { const limit = limitOf(part); limits[limit] = (limits[limit] ?? 0) + time.costs[PLACE[part]] * seconds; }
    const sum = Object.values(limits).reduce((x, y) => x + y, 0);
    if (sum > 0) all.push([name, calls, sum, Object.entries(limits).reduce((x, y) => (y[1] > x[1] ? y : x))[0]]);
  };
  const whole = partsOf(job, machine), optimizer = ["bytes optimizer", "adam optimizer", "overflow optimizer"].map((part) => [part, whole[PLACE[part]]]);
  for (const work of job.works) {
    const mine = [];
    partsOfWork(work, job, machine, (part, seconds) => (part.endsWith("optimizer") ? optimizer : mine).push([part, seconds]));
    put(sized(work), work.calls, mine);
  }
  put("the optimizer", 1, optimizer);
  put("a step by itself", 1, [["step forward", 1e-3]]);
  const total = all.reduce((sum, row) => sum + row[2], 0), rows = all.sort((x, y) => y[2] - x[2]);
  fillLayers(`${rows.length} kinds of operation, the longest first: forward and backward of one GPU`, rows.slice(0, 40).map(([name, calls, sum, limit]) => {
    const value = (time.seconds * sum) / total;
    return rowOf([textCell(name, "text"), make("td", {}, grouped(calls)), estimated({ value, low: value, high: value }, duration), make("td", { class: "est" }, `~ ${percent(sum / total)}`), textCell(limit)], [name, calls, value, sum / total, limit]);
  }));
}
