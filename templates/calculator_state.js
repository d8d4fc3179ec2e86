// The choice: read from the address after #, checked, and written back, so that a link reproduces it.
const FIELDS = DATA.fields;
const inRange = (field, value) => value >= field.low && (field.high === null || value <= field.high);
const readField = (field, text) => {
  if (field.options) return field.options.includes(text) ? text : undefined;
  const value = text.trim() === "" ? NaN : Number(text);
  if (!Number.isFinite(value) || (field.whole && !Number.isInteger(value)) || !inRange(field, value)) return undefined;
  return value;
};
const firstChoice = () => Object.fromEntries(FIELDS.map((field) => [field.key, field.value]));
// [choice, what was not understood, a sentence each]
const readChoice = (hash) => {
  const choice = firstChoice(), troubles = [], given = new URLSearchParams(hash.replace(/^#/, ""));
  for (const [key, text] of given) {
    const field = FIELDS.find((one) => one.key === key);
    if (!field) { troubles.push(`The link has ${shown(key)}, which this page does not know.`); continue; }
    const value = field.key === "model" ? readModel(text, troubles) : readField(field, text);
    if (field.key === "model" && value !== undefined) [choice.model, choice.optimizer] = [value.model, given.has("optimizer") ? choice.optimizer : value.optimizer ?? choice.optimizer];
    else if (value === undefined) { if (field.key !== "model") troubles.push(`The link has ${field.key} = ${shown(text)}, which cannot be; ${choice[key]} is taken.`); } else choice[key] = value;
  }
  return [choice, troubles];
};
// A model as this page knows it, with the optimizer that it names; undefined with a sentence where there is none.
const readModel = (text, troubles) => {
  if (tracedModel(text)) return { model: text };
  try {
    const [family, settings] = settle(text), { optimizer } = settings, own = DATA.families[family].optimizer.default;
    return { model: canonical(family, { ...settings, optimizer: own }), optimizer: optimizer === own ? undefined : optimizer };
  } catch (error) {
    if (!(error instanceof Impossible)) throw error;
    troubles.push(text.startsWith("torchvision:") ? `The link has ${shown(text)}, which is not in this page.` : `The link has a model that cannot be: ${error.message.slice(0, 300)}.`);
    return undefined;
  }
};
const shown = (text) => `'${text.length > 60 ? text.slice(0, 60) + "…" : text}'`;
const writeChoice = (choice) => {
  const parts = new URLSearchParams();
  for (const field of FIELDS) if (choice[field.key] !== field.value || field.always) parts.set(field.key, String(choice[field.key]));
  return "#" + parts.toString().replaceAll("%3A", ":").replaceAll("%3D", "=").replaceAll("%2C", ",");
};
