// The page of `--mode=inspect`: plain JavaScript on the data in the page, no request to anywhere.
'use strict';
(() => {
const views = [];  // of two runs over the same text, whose choices follow each other
const NOWHERE = -(2 ** 30), PER_PART = 20000, TYPES = {f4: Float32Array, i4: Int32Array, u2: Uint16Array};
const LINES = ['#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9', '#8a7a00', '#7f7f7f'];

function array(packed) {
  if (!packed) return null;
  const text = atob(packed.d), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return {v: new TYPES[packed.t](bytes.buffer), s: packed.s};
}
const all = (object) => Object.fromEntries(Object.entries(object).map(([k, v]) => [k, array(v)]));

// One run in the element `root`, in which all ids end with `suffix`; `beside` = the data of the other.
function view(data, beside, root, suffix) {
const layers = data.layers.map((layer) => ({
  name: layer.name,
  held: all(layer.held), age: all(layer.mean_age),
  byToken: all(layer.by_token), bySegment: all(layer.by_segment),
  places: array(layer.places), weights: array(layer.weights), shares: array(layer.shares),
  spans: array(layer.spans), slots: array(layer.slots), slotWeights: array(layer.slot_weights),
}));
const n = data.tokens.length, nats = array(data.nats).v, without = array(data.without).v;
const gain = nats.map((x, i) => without[i] - x), firstRead = n - data.reads;
const other = beside && {nats: array(beside.nats).v, without: array(beside.without).v};
const lead = other ? nats.map((x, i) => (other.nats[i] - x) / Math.LN2) : gain;  // bits; nats of one run
const follow = (act) => views.forEach((each) => { if (each.root !== root) act(each); });
// Before the first token of a text there may be nothing in its segment.
const segmentOf = (t) => Math.floor(Math.max(t + data.first - 1, 0) / data.length);
const numSegments = n ? segmentOf(n - 1) + 1 : 0;
const firstOf = (segment) => Math.min(Math.max(segment * data.length - data.first + 1, 0), n - 1);

// ---- small helpers
const $ = (id) => document.getElementById(id + suffix);
function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
const whole = (x) => Math.round(x).toLocaleString('en-US');
function number(x) {
  if (!Number.isFinite(x)) return '–';
  const size = Math.abs(x);
  if (size >= 1000) return whole(x);
  return String(Number(x.toPrecision(size < 0.001 && size ? 2 : 3)));
}
const bits = (nats) => `${number(nats / Math.LN2)} bits`;
const signed = (x) => (x > 0 ? '+' : '') + number(x);
const shown = (text) => text === '' ? '·' : text.replaceAll('\n', '↵').replaceAll('\t', '→');
const quoted = (t) => '“' + shown(data.tokens[t]) + '”';
const percent = (x) => (100 * x).toFixed(x < 0.0995 ? 1 : 0) + ' %';
function options(select, names) {
  select.replaceChildren(...names.map((name, i) => make('option', {value: i}, name)));
}

// ---- what the text is coloured by
const colours = [{name: 'what the memory gained', values: (t) => gain[t], diverging: true,
  words: ['the memory hurts', 'nats', 'it helps'], other: other && ((t) => other.without[t] - other.nats[t])},
  {name: 'loss with the memory', values: (t) => nats[t], other: other && ((t) => other.nats[t])},
  {name: 'loss without it', values: (t) => without[t], other: other && ((t) => other.without[t])}];
if (other) {
  colours.unshift({name: `bits saved against ${beside.name}`, values: (t) => lead[t], diverging: true,
    words: [`${beside.name} is better`, 'bits', `${data.name} is better`]});
}
for (const layer of layers) {
  for (const [name, line] of Object.entries(layer.byToken)) {
    for (let i = 0; i < line.s[1]; i++) {
      const suffix = line.s[1] > 1 ? `, head ${i}` : '';
      colours.push({name: `${name}${suffix} · ${layer.name}`, values: (t) => line.v[t * line.s[1] + i]});
    }
  }
}
function scaleOf(colour) {
  const sizes = [];
  const step = Math.max(1, Math.floor(n / 20000));
  for (let t = 0; t < n; t += step) {
    for (const value of [colour.values(t), colour.other ? colour.other(t) : NaN]) {  // one scale for both runs
      if (Number.isFinite(value)) sizes.push(colour.diverging ? Math.abs(value) : value);
    }
  }
  sizes.sort((a, b) => a - b);
  const at = (share) => sizes.length ? sizes[Math.floor(share * (sizes.length - 1))] : 0;
  if (colour.diverging) return [0, Math.max(at(0.97), 0.05)];
  return [at(0.03), at(0.97) > at(0.03) ? at(0.97) : at(0.03) + 1];
}

// ---- the text
const text = $('text');
let part = -1, selected = -1, colour = colours[0], scale = scaleOf(colour);
const nodes = new Map();

function background(t) {
  const value = colour.values(t);
  if (!Number.isFinite(value)) return 'none';
  const [low, high] = scale;
  const strength = Math.min(Math.abs(colour.diverging ? value : Math.max(value - low, 0)) / (high - low), 1);
  const name = colour.diverging ? (value > 0 ? '--gains' : '--loses') : '--amount';
  return `rgb(var(${name}) / ${(0.72 * strength).toFixed(3)})`;
}
function showPart(next) {
  if (next === part) return;
  part = next;
  nodes.clear();
  const fragment = document.createDocumentFragment();
  const start = part * PER_PART, end = Math.min(start + PER_PART, n);
  for (let t = start; t < end; t++) {
    const piece = data.tokens[t];
    const node = make('span', {id: 't' + t + suffix, role: 'option', class: piece === '' ? 'k none' : 'k'});
    // A part of a character has no text of its own: a dot would break the letters around it.
    node.textContent = piece.replaceAll('\n', '↵\n');
    if (t && segmentOf(t) !== segmentOf(t - 1)) node.classList.add('border');
    node.style.background = background(t);
    nodes.set(t, node);
    fragment.append(node);
  }
  text.replaceChildren(fragment);
  const parts = Math.ceil(n / PER_PART);
  $('parts').hidden = parts < 2;
  $('part').textContent = `tokens ${whole(start)} to ${whole(end - 1)} of ${whole(n)}`;
  $('earlier').disabled = part === 0;
  $('later').disabled = part === parts - 1;
}
function recolour() {
  scale = scaleOf(colour);
  for (const [t, node] of nodes) node.style.background = background(t);
  const [low, high] = scale, bar = $('bar');
  bar.className = colour.diverging ? 'diverging' : 'amount';
  const [less, unit, more] = colour.words || [];
  $('low').textContent = colour.diverging ? `${number(-high)} or less: ${less}` : number(low);
  $('high').textContent = colour.diverging ? `+${number(high)} ${unit} or more: ${more}` : number(high);
}

// ---- what was read
function readsOf(t, layer, head) {
  // Map from token to weight, of one layer; heads are averaged if head < 0.
  const row = t - firstRead;
  if (row < 0 || !layer.places) return null;
  const [, heads, k] = layer.places.s, found = new Map(), shares = [0, 0, 0];
  for (let h = 0; h < heads; h++) {
    if (head >= 0 && h !== head) continue;
    const part = head >= 0 ? 1 : heads;
    for (let j = 0; j < k; j++) {
      const at = (row * heads + h) * k + j, weight = layer.weights.v[at] / 65535 / part;
      if (!weight) continue;
      const place = layer.places.v[at], span = layer.spans ? layer.spans.v[at] : 1;
      const key = `${place}/${span}`, before = found.get(key);
      found.set(key, {place, span, weight: weight + (before ? before.weight : 0)});
    }
    for (let j = 0; j < 3; j++) shares[j] += layer.shares.v[(row * heads + h) * 3 + j] / 65535 / part;
  }
  return {found: [...found.values()], shares, slots: slotsOf(row, layer, head)};
}
function slotsOf(row, layer, head) {
  if (row < 0 || !layer.slots) return [];
  const [, heads, k] = layer.slots.s, found = new Map();
  for (let h = 0; h < heads; h++) {
    if (head >= 0 && h !== head) continue;
    for (let j = 0; j < k; j++) {
      const at = (row * heads + h) * k + j, weight = layer.slotWeights.v[at] / 65535;
      if (weight) found.set(layer.slots.v[at], (found.get(layer.slots.v[at]) || 0) + weight / (head >= 0 ? 1 : heads));
    }
  }
  return [...found].map(([slot, weight]) => ({slot, weight})).sort((a, b) => b.weight - a.weight);
}
const chosenLayers = () => {
  const choice = Number($('layer').value) - 1;
  const reading = layers.filter((layer) => layer.places || layer.slots);
  return choice < 0 ? reading : [layers[choice]];
};
function reads(t) {
  const head = Number($('head').value) - 1, chosen = chosenLayers();
  const with_ = chosen.filter((layer) => layer.places), found = new Map(), shares = [0, 0, 0];
  let any = false;
  for (const layer of with_) {
    const one = readsOf(t, layer, head);
    if (!one) continue;
    any = true;
    for (const read of one.found) {
      const key = `${read.place}/${read.span}`, before = found.get(key);
      found.set(key, {...read, weight: read.weight / with_.length + (before ? before.weight : 0)});
    }
    one.shares.forEach((share, j) => { shares[j] += share / with_.length; });
  }
  const slots = chosen.filter((layer) => layer.slots)
    .map((layer) => ({name: layer.name, slots: slotsOf(t - firstRead, layer, head)}));
  return {any, found: [...found.values()].sort((a, b) => b.weight - a.weight), shares, slots};
}
const begins = (t) => firstOf(segmentOf(t));
function context(read) {
  const end = read.place + 1, start = end - read.span;
  const around = (from, to) => data.tokens.slice(Math.max(from, 0), Math.max(to, 0)).map(shown).join('');
  const mark = make('mark', {}, around(start, end) || '·');
  return make('bdi', {}, '…' + around(start - 14, start), mark, around(end, end + 8) + '…');
}
function table(title, rows, t) {
  const body = make('tbody');
  for (const read of rows) {
    const bar = make('span', {class: 'weight'});
    bar.style.width = `${Math.max(read.weight * 100, 1)}%`;
    const far = t - read.place;
    const where = read.place < 0 ? make('span', {}, `before this text`) : context(read);
    const line = make('tr', {}, make('td', {class: 'n'}, number(read.weight), make('span', {class: 'track'}, bar)),
      make('td', {class: 'n'}, whole(far)), make('td', {}, where));
    if (read.place >= 0) { line.dataset.token = read.place; line.tabIndex = 0; }
    body.append(line);
  }
  const head = make('tr', {}, make('th', {}, 'weight'), make('th', {}, 'back'), make('th', {}, 'what'));
  return make('section', {}, make('h4', {}, title), make('table', {class: 'reads'}, make('thead', {}, head), body));
}
function showReads(t) {
  for (const node of text.querySelectorAll('.read')) {
    node.classList.remove('read');
    node.style.removeProperty('--w');
  }
  const box = $('reads');
  box.replaceChildren();
  if (t < firstRead) {
    box.append(make('p', {class: 'note'}, `What was read is kept for the last ${whole(data.reads)} tokens only (--reads).`));
    return;
  }
  const {any, found, shares, slots} = reads(t);
  if (!any && !slots.length) {
    box.append(make('p', {class: 'note'}, layers.some((layer) => layer.places || layer.slots)
      ? 'This layer does not say which tokens were read.' : 'No layer of this model says which tokens were read.'));
    return;
  }
  if (any) {
    const bar = make('div', {class: 'shares', role: 'img', 'aria-label': 'shares of the attention'});
    ['memory', 'this segment', 'no token of the text'].forEach((name, j) => {
      if (shares[j] < 0.0005) return;
      const piece = make('span', {class: 's' + j, title: `${name}: ${percent(shares[j])}`});
      piece.style.flexGrow = shares[j];
      bar.append(piece);
    });
    const words = [['memory', 0], ['this segment', 1], ['no token', 2]].filter(([, j]) => shares[j] >= 0.0005)
      .map(([name, j]) => make('span', {class: 'key k' + j}, `${name} ${percent(shares[j])}`));
    box.append(bar, make('p', {class: 'keys'}, ...words));
  }
  const border = segmentOf(t) * data.length - data.first;  // the first token of the text in this segment
  const old = found.filter((read) => read.place < border), near = found.filter((read) => read.place >= border);
  if (old.length) box.append(table('From the memory', old.slice(0, 8), t));
  if (near.length) box.append(table('From this segment', near.slice(0, 4), t));
  for (const {name, slots: list} of slots) {
    if (!list.length) continue;
    const items = list.slice(0, 8).map(({slot, weight}) => `${slot} (${number(weight)})`).join(', ');
    box.append(make('p', {}, make('b', {}, 'Slots read'), ` · ${name}: ${items}`));
  }
  const largest = Math.max(...found.map((read) => read.weight), 1e-9);
  for (const read of found) {
    for (let place = read.place; place > read.place - read.span; place--) {
      const node = nodes.get(place);
      if (!node) continue;
      node.classList.add('read');
      node.style.setProperty('--w', Math.max(read.weight / largest, 0.15).toFixed(3));
    }
  }
}
function select(t, {scroll = true, alone = false} = {}) {
  if (t < 0 || t >= n) return;
  showPart(Math.floor(t / PER_PART));
  const old = nodes.get(selected);
  if (old) { old.classList.remove('selected'); old.removeAttribute('aria-selected'); }
  selected = t;
  const node = nodes.get(t);
  node.classList.add('selected');
  node.setAttribute('aria-selected', 'true');
  text.setAttribute('aria-activedescendant', node.id);
  if (scroll) {
    const top = node.offsetTop;  // in the text, which is positioned
    if (top < text.scrollTop || top + node.offsetHeight > text.scrollTop + text.clientHeight) {
      text.scrollTop = top - text.clientHeight / 3;
    }
  }
  $('chosen').replaceChildren(make('bdi', {class: 'token'}, shown(data.tokens[t])),
    ` token ${whole(t)}, segment ${whole(segmentOf(t))}`);
  const scored = Number.isFinite(nats[t]);
  $('losses').replaceChildren(...(scored ? [
    ['with the memory', nats[t]], ['without it', without[t]]].map(([name, loss]) =>
    make('tr', {}, make('th', {scope: 'row'}, name), make('td', {class: 'n'}, `${number(loss)} nats`),
      make('td', {class: 'n'}, `p = ${number(Math.exp(-loss))}`))) : [
    make('tr', {}, make('td', {}, 'Nothing came before it: it has no loss.'))]));
  const verdict = $('verdict');
  verdict.textContent = scored ? `gain ${signed(gain[t])} nats` : '';
  verdict.className = gain[t] > 0 ? 'gains' : 'loses';
  if (other) {
    $('losses').append(...[[data.name, nats[t]], [beside.name, other.nats[t]]].map(([name, loss]) =>
      make('tr', {}, make('th', {scope: 'row'}, name), make('td', {class: 'n'}, bits(loss)))));
    const than = `${lead[t] < 0 ? 'worse' : 'better'} than ${beside.name}`;
    verdict.textContent += Number.isFinite(lead[t]) ? `, ${number(Math.abs(lead[t]))} bits ${than}` : '';
    verdict.className = lead[t] > 0 ? 'gains' : 'loses';
  }
  showReads(t);
  $('when').value = Math.max(data.snapshots.findLastIndex((border) => border <= segmentOf(t)), 0);
  showHeld();
  if (!alone) follow((each) => each.select(t, {alone: true}));
}

// ---- charts
function chart(title, lines, {xLabel = 'segment', labels = null, every = 1} = {}) {
  const width = 400, height = 150, left = 52, bottom = 24, top = 8, right = 8;
  let low = Infinity, high = -Infinity;
  const length = Math.max(...lines.map((line) => line.length), 1);
  for (const line of lines) for (const y of line) if (Number.isFinite(y)) { low = Math.min(low, y); high = Math.max(high, y); }
  const figure = make('figure', {}, make('figcaption', {}, title));
  if (low > high) { figure.append(make('p', {class: 'note'}, 'no numbers')); return figure; }
  if (low > 0 && low < high * 0.7) low = 0;
  if (low === high) { low -= Math.abs(low) * 0.1 + 0.5; high += Math.abs(high) * 0.1 + 0.5; }
  const x = (i) => left + (length > 1 ? i / (length - 1) : 0.5) * (width - left - right);
  const y = (value) => top + (high - value) / (high - low) * (height - top - bottom);
  const root = svg('svg', {viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': `${title}, from ${number(low)} to ${number(high)}`});
  for (const value of [low, (low + high) / 2, high]) {
    root.append(svg('line', {class: 'grid', x1: left, x2: width - right, y1: y(value), y2: y(value)}),
      svg('text', {class: 'tick', x: left - 6, y: y(value) + 4, 'text-anchor': 'end'}, number(value)));
  }
  for (const share of [0, 0.5, 1]) {
    root.append(svg('text', {class: 'tick', x: x(share * (length - 1)), y: height - 6,
      'text-anchor': share === 0 ? 'start' : share === 1 ? 'end' : 'middle'}, whole(share * (length - 1) * every)));
  }
  lines.forEach((line, j) => {
    let path = '', pen = false;
    line.forEach((value, i) => {
      if (Number.isFinite(value)) { path += `${pen ? 'L' : 'M'}${x(i).toFixed(1)} ${y(value).toFixed(1)}`; pen = true; } else pen = false;
    });
    if (line.filter(Number.isFinite).length === 1) path += 'h4';
    root.append(svg('path', {class: 'line', d: path, stroke: LINES[Math.min(j, LINES.length - 1)]}));
  });
  root.dataset.axis = xLabel;
  root.addEventListener('click', (event) => {
    const box = root.getBoundingClientRect();
    const share = ((event.clientX - box.left) / box.width * width - left) / (width - left - right);
    const at = Math.round(Math.min(Math.max(share, 0), 1) * (length - 1) * every);
    select(xLabel === 'token' ? Math.min(at, n - 1) : firstOf(Math.min(at, numSegments - 1)));
  });
  figure.append(root, make('p', {class: 'axis'}, xLabel));
  if (lines.length > 1) {
    figure.append(make('p', {class: 'keys'}, ...lines.slice(0, LINES.length).map((_, j) => {
      const last = j === LINES.length - 1 && lines.length > LINES.length;
      const key = make('span', {class: 'key'}, last ? `${lines.length - j} more` : labels ? labels[j] : String(j));
      key.style.setProperty('--c', LINES[j]);
      return key;
    })));
  }
  return figure;
}
const column = (packed, j) => Array.from({length: packed.s[0]}, (_, i) => packed.v[i * packed.s[1] + j]);
function thinned(values, most = 800) {
  const every = Math.max(1, Math.ceil(values.length / most));
  const found = [];
  for (let i = 0; i < values.length; i += every) {
    let sum = 0, count = 0;
    for (const value of values.slice(i, i + every)) if (Number.isFinite(value)) { sum += value; count++; }
    found.push(count ? sum / count : NaN);
  }
  return {values: found, every};
}
function showTime() {
  const box = $('charts');
  box.replaceChildren();
  const sums = new Array(numSegments).fill(0), counts = new Array(numSegments).fill(0);
  gain.forEach((x, t) => { if (Number.isFinite(x)) { sums[segmentOf(t)] += x; counts[segmentOf(t)]++; } });
  box.append(make('div', {class: 'figures'}, chart('gain, nats per token', [sums.map((x, i) => counts[i] ? x / counts[i] : NaN)])));
  const choice = Number($('layer').value) - 1;
  for (const layer of choice < 0 ? layers : [layers[choice]]) {
    const figures = [];
    for (const [name, line] of Object.entries(layer.byToken)) {
      let every = 1;
      const lines = Array.from({length: line.s[1]}, (_, j) => { const thin = thinned(column(line, j)); every = thin.every; return thin.values; });
      figures.push(chart(name, lines, {xLabel: 'token', every}));
    }
    for (const [name, line] of Object.entries(layer.bySegment)) {
      figures.push(chart(name.replaceAll('_', ' '), Array.from({length: line.s[1]}, (_, j) => column(line, j))));
    }
    const names = Object.keys(layer.held);
    if (names.length) {
      const every = numSegments / Math.max(data.snapshots.length - 1, 1);
      figures.push(chart('weight held', names.map((name) => heldSums(layer.held[name])), {labels: names, every}));
      figures.push(chart('mean age of what is held, tokens', names.map((name) => Array.from(layer.age[name].v)), {labels: names, every}));
    }
    if (figures.length) box.append(make('h3', {}, layer.name), make('div', {class: 'figures'}, ...figures));
  }
}
const heldSums = (held) => Array.from({length: held.s[0]}, (_, i) => {
  let sum = 0;
  for (let j = 0; j < held.s[1]; j++) sum += held.v[i * held.s[1] + j];
  return sum;
});
function showHeld() {
  const at = Number($('when').value), box = $('ages');
  if ($('panel-held').hidden) return;
  const segment = data.snapshots[at];
  $('moment').textContent = segment === numSegments ? 'at the end of the text' : `before segment ${whole(segment)}`;
  box.replaceChildren();
  const choice = Number($('layer').value) - 1;
  for (const layer of choice < 0 ? layers : [layers[choice]]) {
    for (const [name, held] of Object.entries(layer.held)) {
      const bins = held.s[1], row = held.v.subarray(at * bins, (at + 1) * bins);
      let total = 0, last = 0, most = 0;
      row.forEach((x, j) => { total += x; most = Math.max(most, x); if (x > 1e-6) last = j; });
      const figure = make('figure', {}, make('figcaption', {},
        `${layer.name}, ${name}: ${number(total)} held` + (total > 1e-6 ? `, mean age ${number(layer.age[name].v[at])} tokens` : '')));
      const list = make('table', {class: 'ages'});
      for (let j = 0; total > 1e-6 && j <= last; j++) {
        const bar = make('span', {class: 'age'});
        bar.style.width = `${most ? row[j] / most * 100 : 0}%`;
        list.append(make('tr', {}, make('th', {scope: 'row'}, j ? `${whole(2 ** j)}–${whole(2 ** (j + 1) - 1)}` : '1'),
          make('td', {class: 'room'}, bar), make('td', {class: 'n'}, number(row[j]))));
      }
      figure.append(list);
      box.append(figure);
    }
  }
  if (!box.children.length) box.append(make('p', {class: 'note'}, 'Nothing here holds entries with an age.'));
}
function showGains() {
  const order = Array.from(gain.keys()).filter((t) => Number.isFinite(lead[t])).sort((a, b) => lead[b] - lead[a]);
  const before = other ? other.nats : without;
  const rows = (list) => list.map((t) => {
    const line = make('tr', {tabindex: 0}, make('td', {class: 'n'}, signed(lead[t])),
      make('td', {class: 'n'}, `${number(Math.exp(-before[t]))} → ${number(Math.exp(-nats[t]))}`),
      make('td', {}, context({place: t, span: 1})));
    line.dataset.token = t;
    return line;
  });
  for (const [id, list] of [['best', order.slice(0, 20).filter((t) => lead[t] > 0)],
    ['worst', order.slice(-10).reverse().filter((t) => lead[t] < 0)]]) {
    $(id).replaceChildren(...(list.length ? rows(list) : [make('tr', {}, make('td', {}, 'none'))]));
  }
}
function showState() {
  const body = $('leaves');
  if (body.children.length) return;
  for (const row of data.state.rows) body.append(make('tr', {}, ...row.map((cell, j) => make('td', j > 1 ? {class: 'n'} : {}, typeof cell === 'number' ? number(cell) : cell ?? '–'))));
  if (data.state.html) {
    const frame = make('iframe', {title: 'the arrays of the memory', sandbox: 'allow-scripts'});
    frame.srcdoc = data.state.html;
    $('tree').append(frame);
  } else $('tree').append(make('p', {class: 'note'}, data.state.why));
}

// ---- tabs
const tabs = [...root.querySelectorAll('[role=tab]')];
const shows = {gains: showGains, held: showHeld, time: showTime, state: showState};
function open(tab, alone = false) {
  for (const other of tabs) {
    const chosen = other === tab;
    other.setAttribute('aria-selected', chosen);
    other.tabIndex = chosen ? 0 : -1;
    $('panel-' + other.dataset.panel).hidden = !chosen;
  }
  shows[tab.dataset.panel]();
  if (!alone) follow((each) => each.open(tab.dataset.panel));
}
for (const tab of tabs) {
  tab.addEventListener('click', () => open(tab));
  tab.addEventListener('keydown', (event) => {
    const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (!step) return;
    const next = tabs[(tabs.indexOf(tab) + step + tabs.length) % tabs.length];
    next.focus();
    open(next);
  });
}

// ---- events
text.addEventListener('click', (event) => {
  const node = event.target.closest('.k');
  if (node) select(parseInt(node.id.slice(1), 10), {scroll: false});
});
function line(t, step) {
  const here = nodes.get(t);
  let best = t, distance = Infinity, top = null;
  for (let u = t + step; nodes.has(u); u += step) {
    const node = nodes.get(u);
    if (node.offsetTop === here.offsetTop) continue;
    top ??= node.offsetTop;
    if (node.offsetTop !== top) break;
    const away = Math.abs(node.offsetLeft - here.offsetLeft);
    if (away < distance) { distance = away; best = u; }
  }
  return best;
}
text.addEventListener('keydown', (event) => {
  const moves = {ArrowRight: () => selected + 1, ArrowLeft: () => selected - 1,
    ArrowDown: () => line(selected, 1), ArrowUp: () => line(selected, -1),
    PageDown: () => firstOf(Math.min(segmentOf(selected) + 1, numSegments - 1)),
    PageUp: () => firstOf(Math.max(segmentOf(selected) - 1, 0)), Home: () => 0, End: () => n - 1};
  if (!moves[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  select(Math.min(Math.max(moves[event.key](), 0), n - 1));
});
for (const box of root.querySelectorAll('.jump')) {
  const jump = (event) => {
    const row = event.target.closest('tr[data-token]');
    if (row) select(Number(row.dataset.token));
  };
  box.addEventListener('click', jump);
  box.addEventListener('keydown', (event) => { if (event.key === 'Enter') jump(event); });
}
$('earlier').addEventListener('click', () => select((part - 1) * PER_PART));
$('later').addEventListener('click', () => select((part + 1) * PER_PART));
const paint = (index) => { $('colour').value = index; colour = colours[index]; recolour(); };
$('colour').addEventListener('change', () => {
  const index = Number($('colour').value);
  paint(index);
  if (index === 0 || colour.other) follow((each) => each.paint(index));  // what both runs have
});
function heads() {
  const sizes = chosenLayers().map((layer) => (layer.places || layer.slots)?.s[1] || 0);
  const most = Math.max(...sizes, 0), before = Number($('head').value);
  options($('head'), ['mean of heads', ...Array.from({length: most}, (_, h) => `head ${h}`)]);
  $('head').value = before <= most ? before : 0;
}
$('layer').addEventListener('change', () => {
  heads();
  if (selected >= 0) showReads(selected);
  showHeld();
  if (!$('panel-time').hidden) showTime();
});
$('head').addEventListener('change', () => { if (selected >= 0) showReads(selected); });
$('when').addEventListener('input', showHeld);

// ---- start
views.push({root, select, paint, open: (panel) => open($('tab-' + panel), true)});
if (other) {
  const facts = data.facts.flatMap(([name, fact]) => [make('dt', {}, name), make('dd', {}, fact)]);
  root.prepend(make('h2', {}, data.name), make('p', {class: 'total'}, data.total),
    ...data.notes.map((note) => make('p', {class: 'note'}, note)),
    make('details', {}, make('summary', {}, 'About this run'), make('dl', {class: 'facts'}, ...facts)));
  $('panel-gains').querySelectorAll('.two > div').forEach((list, i) => {
    const [unit, p] = list.querySelectorAll('th');
    list.querySelector('h3').textContent = `Where ${[data, beside][i].name} is better`;
    unit.textContent = 'bits';
    p.textContent = `p ${beside.name} → ${data.name}`;
  });
  $('tab-gains').textContent = 'Largest differences';
  text.addEventListener('mouseover', ({target}) => {
    const t = parseInt(target.id.slice(1), 10);  // nan between tokens
    if (t >= 0) target.title = `${data.name} ${bits(nats[t])}, ${beside.name} ${bits(other.nats[t])}`;
  });
}
options($('colour'), colours.map((each) => each.name));
options($('layer'), ['all layers', ...layers.map((layer) => layer.name)]);
heads();
$('when').max = Math.max(data.snapshots.length - 1, 0);
$('when').value = $('when').max;
showPart(0);
recolour();
let best = -1;
for (let t = Math.max(firstRead, 0); t < n; t++) if (Number.isFinite(lead[t]) && (best < 0 || lead[t] > lead[best])) best = t;
select(best < 0 ? n - 1 : best);
open(tabs[0]);
}

const data = JSON.parse(document.getElementById('data').textContent);
const first = document.querySelector('.run'), second = first.cloneNode(true);
view(data, data.beside, first, '');
if (data.beside) {
  document.body.classList.add('beside');
  for (const name of ['id', 'aria-controls', 'aria-labelledby']) {
    for (const node of second.querySelectorAll(`[${name}]`)) node.setAttribute(name, node.getAttribute(name) + '-2');
  }
  first.after(second);
  view(data.beside, data, second, '-2');
}
document.documentElement.dataset.ready = 'yes';
})();
