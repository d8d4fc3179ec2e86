// The layers of a family of networks from its settings: workloads/plan.py and plan_families.py once more, line by line.
class Impossible extends Error {}
const impossible = (said) => new Impossible(said);
const familyOf = (spec) => { const name = spec.split(":")[0].trim(); return Object.hasOwn(DATA.families, name) ? name : null; };
const allowedBy = (p) => (p.words ? `one of ${p.words.join(", ")}` : `${p.least} to ${p.most}${p.odd ? ", odd" : p.multiple > 1 ? `, a multiple of ${p.multiple}` : ""}`);
const readSetting = (family, name, text) => {
  const p = DATA.families[family][name], wrong = () => impossible(`${family}: ${name}=${text} is not possible: ${name} is ${allowedBy(p)} (${p.about})`);
  if (p.words) { if (!p.words.includes(text)) throw wrong(); return text; }
  if (!/^[0-9]{1,9}$/.test(text)) throw wrong();
  const value = Number(text), inside = value >= p.least && value <= p.most;
  if (p.odd && value % 2 === 0 && inside) throw impossible(`${family}: ${name}=${value} is even, and cannot be padded evenly: ${name} is ${allowedBy(p)}`);
  if (!inside || value % p.multiple) throw wrong();
  return value;
};
const settle = (spec) => {
  const family = familyOf(spec), at = spec.indexOf(":"), given = {};
  if (family === null) throw impossible(`'${spec.split(":")[0].trim()}' is no family of networks; there are ${Object.keys(DATA.families).join(", ")}`);
  const known = DATA.families[family];
  for (const piece of at < 0 ? [] : spec.slice(at + 1).split(",").map((part) => part.trim())) {
    if (!piece) continue;
    const equals = piece.indexOf("="), name = (equals < 0 ? piece : piece.slice(0, equals)).trim();
    if (!Object.hasOwn(known, name)) throw impossible(`${family} has no parameter '${name}'; it has ${Object.keys(known).join(", ")}`);
    if (equals < 0) throw impossible(`${family}: ${name} has no value: say ${name}=${known[name].default}`);
    if (Object.hasOwn(given, name)) throw impossible(`${family}: ${name} is given twice`);
    given[name] = readSetting(family, name, piece.slice(equals + 1).trim());
  }
  return [family, Object.fromEntries(Object.entries(known).map(([name, p]) => [name, given[name] ?? p.default]))];
};
const canonical = (family, settings) => {
  const words = Object.entries(DATA.families[family]).filter(([name, p]) => settings[name] !== p.default).map(([name]) => `${name}=${settings[name]}`);
  return words.length ? `${family}:${words.join(",")}` : family;
};
const half = (v, by = 2) => Math.floor(v / by);
class Sheet {
  constructor(settings) { this.settings = settings; this.layers = []; this.given = [settings.channels, settings.image, settings.image]; }
  shape(of) { return of < 0 ? this.given : this.layers[of].gives; }
  put(name, kind, of, gives, kernel = 1, stride = 1, padding = 0, bias = false) {
    this.layers.push({ name, kind, of, given: this.shape(of[0]), gives, kernel, stride, padding, bias });
    return this.layers.length - 1;
  }
  conv(name, of, out, kernel, stride = 1, bias = false) {
    const size = half(this.shape(of)[1] - 1, stride) + 1;
    return this.put(name, "conv", [of], [out, size, size], kernel, stride, half(kernel), bias);
  }
  linear(name, of, out) { return this.put(name, "linear", [of], [out, 1, 1], 1, 1, 0, true); }
  norm(name, of) {
    if (this.shape(of)[1] < 2) throw impossible(`image=${this.settings.image} is too small: ${name} would normalise over one value; say a larger image, fewer stages, or a small stem`);
    return this.put(name, "norm", [of], this.shape(of));
  }
  activation(name, of) { return this.put(name, "activation", [of], this.shape(of)); }
  pool(name, of, kernel, stride, padding = 0) {
    const [channels, before] = this.shape(of), size = half(before + 2 * padding - kernel, stride) + 1;
    if (size < 1) throw impossible(`image=${this.settings.image} is too small: ${name} would pool ${kernel}x${kernel} from ${before}x${before}; say a larger image or fewer stages`);
    return this.put(name, "max_pool", [of], [channels, size, size], kernel, stride, padding);
  }
  mean(name, of) { return this.put(name, "mean_pool", [of], [this.shape(of)[0], 1, 1], this.shape(of)[1]); }
  flatten(name, of) { const [channels, height, width] = this.shape(of); return this.put(name, "flatten", [of], [channels * height * width, 1, 1]); }
  add(name, one, other) { return this.put(name, "add", [one, other], this.shape(one)); }
  concat(name, of) { const [, height, width] = this.shape(of[0]); return this.put(name, "concat", of, [of.reduce((sum, one) => sum + this.shape(one)[0], 0), height, width]); }
  block(name, of, out, kernel, stride = 1) {
    const at = this.conv(`${name}.conv`, of, out, kernel, stride);
    return this.activation(`${name}.act`, this.norm(`${name}.norm`, at));
  }
  stem(out) {
    const { stem, image } = this.settings;
    if (stem === "large" || (stem === "auto" && image >= 128)) return this.pool("stem.pool", this.block("stem", -1, out, 7, 2), 3, 2, 1);
    return this.block("stem", -1, out, 3);
  }
}
const spread = (count, places) => Array.from({ length: places }, (_, place) => half(count, places) + (place >= places - (count % places) ? 1 : 0));
const vggCounts = (convolutions, stages) => {
  if (convolutions < stages) throw impossible(`depth=${convolutions + 3} is too small for stages=${stages}: each needs a convolution, beside the three linear layers; say depth=${stages + 3} or more`);
  const first = Math.min(2, stages - 1), counts = Array(first).fill(Math.min(2, half(convolutions, stages)));
  return [...counts, ...spread(convolutions - counts.reduce((a, b) => a + b, 0), stages - first)];
};
const KNOWN = { 18: [2, 2, 2, 2], 34: [3, 4, 6, 3], 50: [3, 4, 6, 3], 101: [3, 4, 23, 3], 152: [3, 8, 36, 3] };
const resnetCounts = (depth, stages, bottleneck) => {
  const [layers, kind] = bottleneck ? [3, "bottleneck"] : [2, "basic"];
  if ((depth - 2) % layers) {
    const near = Math.max(depth - ((depth - 2) % layers), 2 + layers * stages);
    throw impossible(`depth=${depth} is not possible with ${kind} blocks of ${layers} convolutions: depth is 2 + ${layers} x blocks; say depth=${near} or depth=${near + layers}`);
  }
  const blocks = (depth - 2) / layers;
  if (blocks < stages) throw impossible(`depth=${depth} is too small for stages=${stages}: ${kind} blocks have ${layers} convolutions and each stage needs a block; say depth=${2 + layers * stages} or more`);
  return stages === 4 && KNOWN[depth] && KNOWN[depth].reduce((a, b) => a + b, 0) === blocks ? KNOWN[depth] : spread(blocks, stages);
};
const residual = (sheet, name, of, inner, stride, bottleneck) => {
  const { kernel } = sheet.settings, out = bottleneck ? inner * 4 : inner;
  let at;
  if (bottleneck) {
    at = sheet.block(`${name}.2`, sheet.block(`${name}.1`, of, inner, 1), inner, kernel, stride);
    at = sheet.norm(`${name}.3.norm`, sheet.conv(`${name}.3.conv`, at, out, 1));
  } else {
    at = sheet.block(`${name}.1`, of, inner, kernel, stride);
    at = sheet.norm(`${name}.2.norm`, sheet.conv(`${name}.2.conv`, at, out, kernel));
  }
  const beside = stride > 1 || sheet.shape(of)[0] !== out ? sheet.norm(`${name}.down.norm`, sheet.conv(`${name}.down.conv`, of, out, 1, stride)) : of;
  return sheet.activation(`${name}.act`, sheet.add(`${name}.add`, at, beside));
};
const inceptionModule = (sheet, name, of, width, kernel) => {
  const one = sheet.block(`${name}.b1`, of, width, 1);
  const two = sheet.block(`${name}.b2.2`, sheet.block(`${name}.b2.1`, of, half(width * 3), 1), width * 2, kernel);
  const three = sheet.block(`${name}.b3.2`, sheet.block(`${name}.b3.1`, of, half(width, 4), 1), half(width), kernel + 2);
  const four = sheet.block(`${name}.b4.2`, sheet.pool(`${name}.b4.1`, of, 3, 1, 1), half(width), 1);
  return sheet.concat(`${name}.concat`, [one, two, three, four]);
};
const FAMILIES = {
  vgg(sheet, { stages, width, depth, batchnorm, kernel, hidden, classes }) {
    const counts = vggCounts(depth - 3, stages);
    let at = -1;
    for (let stage = 0; stage < stages; stage++) {
      for (let block = 0; block < counts[stage]; block++) {
        const name = `stage${stage + 1}.${block}`;
        at = sheet.conv(`${name}.conv`, at, width * Math.min(2 ** stage, 8), kernel, 1, true);
        if (batchnorm === "yes") at = sheet.norm(`${name}.norm`, at);
        at = sheet.activation(`${name}.act`, at);
      }
      at = sheet.pool(`stage${stage + 1}.pool`, at, 2, 2);
    }
    at = sheet.flatten("flatten", at);
    for (const block of [1, 2]) at = sheet.activation(`act${block}`, sheet.linear(`fc${block}`, at, hidden));
    sheet.linear("fc3", at, classes);
  },
  resnet(sheet, { width, depth, stages, block, classes }) {
    const bottleneck = block === "bottleneck" || (block === "auto" && depth >= 50), counts = resnetCounts(depth, stages, bottleneck);
    let at = sheet.stem(width);
    counts.forEach((blocks, stage) => {
      for (let n = 0; n < blocks; n++) at = residual(sheet, `stage${stage + 1}.${n}`, at, width * 2 ** stage, stage > 0 && n === 0 ? 2 : 1, bottleneck);
    });
    sheet.linear("fc", sheet.flatten("flatten", sheet.mean("pool", at)), classes);
  },
  inception(sheet, { stages, blocks, width, kernel, classes }) {
    if (blocks < stages) throw impossible(`blocks=${blocks} is too small for stages=${stages}: each needs a module; say blocks=${stages}`);
    let at = sheet.stem(width);
    spread(blocks, stages).forEach((count, stage) => {
      if (stage) at = sheet.pool(`stage${stage + 1}.pool`, at, 2, 2);
      for (let n = 0; n < count; n++) at = inceptionModule(sheet, `stage${stage + 1}.${n}`, at, width * 2 ** stage, kernel);
    });
    sheet.linear("fc", sheet.flatten("flatten", sheet.mean("pool", at)), classes);
  },
  mlp(sheet, { depth, width, classes }) {
    let at = sheet.flatten("flatten", -1);
    for (let place = 1; place < depth; place++) at = sheet.activation(`act${place}`, sheet.linear(`fc${place}`, at, width));
    sheet.linear(`fc${depth}`, at, classes);
  },
};
const planOf = (spec) => {
  const [family, settings] = settle(spec), sheet = new Sheet(settings), name = canonical(family, settings);
  try { FAMILIES[family](sheet, settings); } catch (error) { throw error instanceof Impossible ? impossible(`${name}: ${error.message}`) : error; }
  return { spec: name, family, settings, layers: sheet.layers };
};
const volume = ([channels, height, width]) => channels * height * width;
const product = (layer) => layer.kind === "conv" || layer.kind === "linear";
const outputsOf = (layer) => volume(layer.gives);
const inputsOf = (layer) => (layer.kind === "concat" ? outputsOf(layer) : volume(layer.given) * layer.of.length);
const macsOf = (layer) => (product(layer) ? outputsOf(layer) * layer.given[0] * layer.kernel * layer.kernel : 0);
const parametersOf = (layer) => (layer.kind === "norm" ? 2 * layer.given[0] : product(layer) ? layer.gives[0] * (layer.given[0] * layer.kernel * layer.kernel + (layer.bias ? 1 : 0)) : 0);
