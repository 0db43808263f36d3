/*
 * The explorer of the timeline. TIMELINE, in data/timeline.js, has a problem for each step and
 * mask: the buffers of shared memory, and the events of one warp in program order or, of steps for
 * Hopper, those of each role in columns.
 */
'use strict';

const ROW = 26; // height of a row of the chart
const WORDY = { sync: 54, role: 36 }; // and of rows with words
const AXIS = 18; // and of the numbers above it
const NAMES = 90; // width of the names of the rows
const NARROWEST = { warp: 16, roles: 34 }; // column of one event
const MILLISECONDS = 900; // between two events when playing
const PATTERNS = ['flight', 'waited', 'reading']; // states that are drawn as a pattern

let problem; // of TIMELINE
let moments; // of replay() or replayRoles()
let at = 0; // the current event, or column
let column; // width
let rows; // of the chart
let cursor;
let timer;

/* --- The chart -------------------------------------------------------------------------------- */

/** Runs of events in which a buffer has the same content in the same state. */
function spansOf(index) {
  const spans = [];
  moments.forEach(({ buffers }, i) => {
    const { item, state } = buffers[index];
    const last = spans[spans.length - 1];
    if (last && last.item === item && last.state === state) {
      last.end = i + 1;
    } else {
      spans.push({ item, state, begin: i, end: i + 1 });
    }
  });
  return spans.filter((span) => span.item);
}

/** The kinds of events of a warp that have a row each. */
function opsOf() {
  return Object.keys(productsOf(problem)).filter((op) => problem.events.some((event) => event.op === op));
}

/** The names of the rows, where they begin, and their heights. */
function rowsOf() {
  const rows = problem.buffers.map(({ name }) => ({ name, height: ROW }));
  if (problem.roles) {
    rows.push(...roleRows(problem).map(({ name, products }) => (
      { name, height: products ? ROW : WORDY.role })));
  } else {
    rows.push({ name: 'sync', height: WORDY.sync });
    rows.push(...opsOf().map((op) => ({ name: productsOf(problem)[op], height: ROW })));
  }
  let top = AXIS;
  for (const row of rows) {
    row.top = top;
    top += row.height;
  }
  return rows;
}

function bottomOf() {
  const { top, height } = rows[rows.length - 1];
  return top + height;
}

function box(begin, end, row) {
  const width = (end - begin) * column - 1;
  const { top, height } = rows[row];
  return { x: begin * column + 0.5, y: top + 3.5, width, height: height - 7 };
}

/** A bar for events begin to end - 1. */
function addBar(layers, place, kind) {
  addRect(layers.cells, place, { class: `bar ${kind}` });
  if (PATTERNS.includes(kind)) addRect(layers.cells, place, { fill: `url(#${kind})` });
}

function drawBuffer(layers, index) {
  for (const { begin, end, state, item } of spansOf(index)) {
    const place = box(begin, end, index);
    addBar(layers, place, state);
    const behindBarrier = state === 'ready' ? column / 2 : 0;
    const width = 6.5 * item.label.length + 6;
    if (state === 'waited' || behindBarrier + width > place.width) continue;
    const plate = { x: place.x + behindBarrier, y: place.y + 3, width, height: place.height - 6 };
    addRect(layers.labels, plate, { class: `plate ${state}` });
    addLabel(layers.labels, plate, [item.label]);
  }
}

function drawEvent(layers, event, i) {
  const sync = problem.buffers.length;
  const place = box(i, i + 1, sync);
  const product = opsOf().indexOf(event.op);
  if (product >= 0) {
    const own = box(i, i + 1, sync + 1 + product);
    addBar(layers, own, event.op);
    addLabel(layers.labels, own, [event.tile ?? '']);
  } else if (event.op === 'commit') {
    addUpright(layers.labels, place, 'commit');
  } else if (event.op === 'wait') {
    addBar(layers, place, 'wait');
    addUpright(layers.labels, place, `wait ${event.pending}`);
  } else if (event.op === 'barrier') {
    const start = `M${place.x + place.width / 2}`;
    const d = `${start} ${AXIS}V${place.y}${start} ${place.y + place.height}V${bottomOf()}`;
    addSvg(layers.marks, 'path', { d, class: 'barrier' });
    addUpright(layers.labels, place, 'barrier');
  }
}

/** A word that is read from below. */
function addUpright(parent, { x, y, width, height }, word) {
  const place = { x: x + width / 2, y: y + height / 2 };
  addSvg(parent, 'text', { ...place, transform: `rotate(-90 ${place.x} ${place.y})` }, word);
}

function drawNames() {
  const svg = byId('names');
  startDrawing(svg, NAMES, bottomOf());
  rows.forEach(({ name, top, height }) => addSvg(svg, 'text', { x: 6, y: top + height / 2 }, name));
}

function addPattern(id, size, tag, attributes) {
  const box = { width: size, height: size, patternUnits: 'userSpaceOnUse' };
  addSvg(addSvg(byId('chart'), 'pattern', { id, ...box }), tag, attributes);
}

function drawChart() {
  const { events, buffers, roles } = problem;
  rows = rowsOf();
  const bottom = bottomOf();
  const narrowest = roles ? NARROWEST.roles : NARROWEST.warp;
  const room = byId('scroll').clientWidth;
  const shown = Math.min(moments.length, Math.floor(room / narrowest)) || 1; // none is cut at the edge
  column = Math.max(narrowest, room / shown);
  const width = column * moments.length;
  const layers = startDrawing(byId('chart'), width, bottom);
  addPattern('flight', 6, 'path', { d: 'M-1 7L7 -1M-1 1L1 -1M5 7L7 5', class: 'hatch' });
  addPattern('reading', 6, 'path', { d: 'M0 3H6', class: 'hatch' });
  addPattern('waited', 5, 'circle', { cx: 2.5, cy: 2.5, r: 1, class: 'dot' });
  for (const { top: y } of rows) {
    addSvg(layers.cells, 'path', { d: `M0 ${y}H${width}`, class: 'guide' });
  }
  for (let i = 9; i < moments.length; i += 10) {
    const place = { x: i * column, y: 0, width: column, height: AXIS };
    addLabel(layers.labels, place, [i + 1], 'quiet');
  }
  buffers.forEach((_, index) => drawBuffer(layers, index));
  if (roles) drawRoles(layers);
  else events.forEach((event, i) => drawEvent(layers, event, i));
  const first = { x: 0, y: AXIS - 2, width: column, height: bottom - AXIS + 1 };
  cursor = addRect(layers.marks, first, { class: 'mark current' });
  drawNames();
  showEvent();
}

/* --- The problem and the current event -------------------------------------------------------- */

const STATES = {
  empty: 'empty',
  flight: 'in flight',
  waited: 'complete for this warp; visible to all threads after a barrier',
  ready: 'complete, visible to all threads',
  own: 'complete; a warp reads only its own rows',
  reading: 'being read, not yet released by all',
  writing: 'being written',
  released: 'read by all, can be overwritten',
};

/** What a thread block goes through: tiles of keys, or of queries in a backward pass. */
function tilesOf({ backward, kv_len: keys, q_len: queries, block_m: m, block_n: n }) {
  const all = Math.ceil(backward ? queries / m : keys / n);
  return { all, text: `${all} tiles of ${backward ? `${m} queries` : `${n} keys`}` };
}

function problemText() {
  const { events, first_query: first, block_m: rows } = problem;
  const { all, text } = tilesOf(problem);
  const tiles = [...new Set(events.filter(({ op }) => op === 'qk').map(({ tile }) => tile))];
  const visits = `visits ${tiles.length === all ? 'all' : `tiles ${listed(tiles)} of`} ${text}`;
  const own = problem.backward ? `keys ${events.find(({ tensor }) => tensor === 'K').rows.join(' to ')}`
    : `queries ${first} to ${first + rows - 1}`;
  const mma = (list) => list.reduce((sum, event) => sum + (event.mma || 0), 0);
  const isOverlapped = (_, i) => moments[i].flying.some((item) => !item.empty);
  const overlap = mma(events) === 0 ? 'No mma: fp32 on the CUDA cores.'
    : `mma with a copy in flight: ${mma(events.filter(isOverlapped))} of ${mma(events)}.`;
  return `Warp 0 of ${problem.warps} of the thread block of ${own} ${visits}. ${overlap}`;
}

function cell(tag, text, swatch) {
  const element = document.createElement(tag);
  if (swatch) element.innerHTML = `<i class="swatch ${swatch}"></i>`;
  element.append(text);
  return element;
}

function bufferRow({ name, offset, bytes }, { item, state, over }, isRead, phases = '') {
  const row = document.createElement('tr');
  const head = cell('th', name);
  const rows = item && rowsText(item);
  const overwrites = over && state !== 'ready' ? `; overwrites ${over.name}` : '';
  head.scope = 'row';
  head.title = `${bytes} bytes from byte ${offset} on`;
  row.className = isRead ? 'read' : '';
  row.append(head, cell('td', item ? item.name + (rows && `, ${rows}`) : 'nothing yet'),
    cell('td', STATES[state] + overwrites + (phases && `; ${phases}`)
      + (isRead ? '. Read now.' : ''), state));
  return row;
}

/** Scrolls the chart so far that the current event and some before and after it are visible. */
function scrollToEvent() {
  const scroll = byId('scroll');
  const margin = 3 * column;
  const least = (at + 1) * column + margin - scroll.clientWidth;
  scroll.scrollLeft = Math.max(least, Math.min(scroll.scrollLeft, at * column - margin));
}

function showEvent() {
  const { buffers } = problem;
  const { text, buffers: now, reads, phases = [] } = moments[at];
  const number = `${at + 1} of ${moments.length}`;
  byId('event').textContent = `${number}. ${text}`;
  byId('buffers').replaceChildren(
    ...buffers.map((buffer, i) => bufferRow(buffer, now[i], reads.includes(i), phases[i])));
  byId('position').value = at;
  byId('position').setAttribute('aria-valuetext', number);
  byId('list').querySelector('[aria-current]')?.removeAttribute('aria-current');
  byId('list').children[at].setAttribute('aria-current', 'step');
  cursor.setAttribute('x', at * column);
  scrollToEvent();
}

function go(index) {
  at = clamp(index, moments.length - 1);
  showEvent();
}

function stop() {
  clearInterval(timer);
  timer = undefined;
  byId('play').textContent = 'Play';
}

function playOrPause() {
  if (timer !== undefined) {
    stop();
    return;
  }
  const last = moments.length - 1;
  byId('play').textContent = 'Pause';
  if (at === last) go(0);
  timer = setInterval(() => {
    go(at + 1);
    if (at === last) stop();
  }, MILLISECONDS);
}

/* --- Controls --------------------------------------------------------------------------------- */

function chosenStep() {
  return TIMELINE.steps.find(({ step }) => step === byId('step').value);
}

function chooseProblem() {
  const { step, problems } = chosenStep();
  problem = problems.find(({ mask }) => mask === byId('mask').value);
  moments = problem.roles ? replayRoles(problem) : replay(problem);
  at = 0;
  stop();
  writeAddress([step.slice(4), problem.mask]);
  byId('problem').textContent = problem.roles ? rolesText() : problemText();
  const { q_len: queries, kv_len: keys, head_dim: dim } = problem;
  byId('command').textContent = `./${step} -H 1 -n ${queries} -k ${keys}`
    + `${dim === 64 ? '' : ` -d ${dim}`} -m ${problem.mask} --report`;
  byId('warp').hidden = problem.roles;
  byId('roles').hidden = !problem.roles;
  byId('position').max = moments.length - 1;
  byId('list').replaceChildren(...moments.map(({ text }) => cell('li', text)));
  drawChart();
}

function chooseStep(mask) {
  fillSelect(byId('mask'), chosenStep().problems.map((p) => [p.mask, p.mask]), mask);
  chooseProblem();
}

function followAddress() {
  const [wanted, mask] = readAddress();
  const choices = TIMELINE.steps.map(({ step, title }) => [step, `${step.slice(4)} ${title}`]);
  fillSelect(byId('step'), choices, `step${wanted}`);
  chooseStep(mask);
}

const ACTIONS = {
  first: () => go(0),
  back: () => go(at - 1),
  forward: () => go(at + 1),
  last: () => go(Infinity),
  play: playOrPause,
};
const BUTTONS = {
  Home: 'first', ArrowLeft: 'back', ArrowRight: 'forward', End: 'last', ' ': 'play',
};

for (const [id, action] of Object.entries(ACTIONS)) {
  byId(id).addEventListener('click', () => {
    if (id !== 'play') stop();
    action();
  });
}
document.addEventListener('keydown', (event) => {
  const id = BUTTONS[event.key];
  if (!id || event.ctrlKey || event.altKey || event.metaKey) return;
  if (event.target.closest(event.key === ' ' ? 'select, button, summary' : 'select')) return;
  event.preventDefault();
  byId(id).click();
});
byId('position').addEventListener('input', () => go(Number(byId('position').value)));
byId('chart').addEventListener('click', (event) => {
  go(Math.floor((event.clientX - byId('chart').getBoundingClientRect().left) / column));
});
byId('list').addEventListener('click', (event) => {
  const item = event.target.closest('li');
  if (item) go([...byId('list').children].indexOf(item));
});
byId('step').addEventListener('change', () => chooseStep());
byId('mask').addEventListener('change', chooseProblem);
window.addEventListener('hashchange', followAddress);
followAddress();
onWidth(drawChart);
