// Controls: a text box holds the value, a slider beside it moves it; both write the choice and call back.
const byId = (id) => document.getElementById(id);
const log = (field) => field.scale === "log" || field.scale === "log2";
const toPlace = (field, value) => {
  const [low, high] = field.slider, part = log(field) ? Math.log(Math.max(value, low) / low) / Math.log(high / low) : (value - low) / (high - low);
  return Math.round(1000 * Math.min(1, Math.max(0, part)));
};
const toValue = (field, place) => {
  const [low, high] = field.slider, part = place / 1000;
  if (field.scale === "log2") return 2 ** Math.round(Math.log2(low) + part * Math.log2(high / low));
  if (field.scale === "log") return Number((low * (high / low) ** part).toPrecision(2));
  return Math.min(high, low + Math.round((part * (high - low)) / field.step) * field.step);
};
const span = (field) => (field.high === null ? `${field.low} or more` : `${field.low} to ${field.high}`);
const connect = (box, field, get, set) => {
  const input = box.querySelector("select, input[type=text]"), range = box.querySelector("input[type=range]");
  const say = (wrong) => {
    box.querySelector(".wrong")?.remove();
    input.toggleAttribute("aria-invalid", false);
    if (!wrong) { input.removeAttribute("aria-describedby"); return; }
    input.setAttribute("aria-invalid", "true");
    input.setAttribute("aria-describedby", `w-${field.key}`);
    box.append(make("p", { class: "wrong", id: `w-${field.key}` }, `${field.label}: ${field.whole ? "a whole number, " : "a number, "}${span(field)}. ${get()} is still taken.`));
  };
  const show = (text = true) => {
    const value = get();
    if (text) { input.value = String(value); say(false); }
    if (!range) return;
    range.value = toPlace(field, value);
    range.setAttribute("aria-valuetext", String(value));
  };
  input.addEventListener(field.options ? "change" : "input", () => {
    const value = readField(field, field.options ? input.value : input.value.replace(/[\s\u202f]/g, ""));
    say(value === undefined);
    if (value === undefined) return;
    set(value);
    show(false);
  });
  if (!field.options) input.addEventListener("blur", () => show());
  range?.addEventListener("input", () => { const value = toValue(field, Number(range.value)); set(field.snap ? field.snap(value) : value); show(); });
  return show;
};
const numberField = (field) => {
  const box = make("div", { class: "field", "data-key": field.key }), label = make("label", { for: `c-${field.key}` }, field.label);
  if (field.options) {
    const list = make("select", { id: `c-${field.key}` });
    for (const value of field.options) list.append(make("option", { value }, value));
    box.append(label, list);
    return box;
  }
  box.append(label, make("input", { type: "range", min: 0, max: 1000, step: 1, "aria-label": `${field.label}, slider` }));
  box.append(make("input", { id: `c-${field.key}`, type: "text", inputmode: "decimal", autocomplete: "off" }));
  return box;
};
