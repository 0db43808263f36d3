/*
 * The explorer of banks. BANKS, in data/banks.js, has the accesses of the steps, each in all
 * layouts of a tile that exist for it; the patterns of addresses, with the byte in the tile and the
 * wavefront of each lane; the chunk at each place of a tile; and the lines of source.
 */
'use strict';

const BANK_COUNT = 32;
const LAYOUTS = ['unpadded', 'padded', 'swizzled', 'tensor128', 'tensor64'];
const WORDS = ['unpadded', 'padded', 'swizzled as in step 06', 'tensor copy, 128-byte swizzle',
  'tensor copy, 64-byte swizzle'];
const PLACES = 8; // chunks of 16 bytes in a line of 128 bytes
const LINES = 16; // that are drawn
const ACCESSES = {
  k_ldmatrix: { label: 'ldmatrix.x4 of K', tile: 'K' },
  q_ldmatrix: { label: 'ldmatrix.x4 of Q', tile: 'Q' },
  v_ldmatrix: { label: 'ldmatrix.x4.trans of V', tile: 'V' },
  k_loads: { label: '32-bit loads of K', tile: 'K' },
  q_loads: { label: '32-bit loads of Q', tile: 'Q' },
  v_loads: { label: '16-bit loads of V', tile: 'V' },
  k_stores: { label: '16-byte stores of K, into its tile', tile: 'K' },
  k_copies: { label: 'cp.async of K, into its tile', tile: 'K' },
  o_stores: { label: '4-byte stores of O, into its rows', tile: 'O' },
  o_loads: { label: '16-byte loads of O, before it is stored', tile: 'O' },
};

const [step, dim, access, layout] = ['step', 'dim', 'access', 'layout'].map(byId);
const controls = [step, dim, access, layout];

let shown; // an access, its layout, and its pattern and counts in this layout
let lane = 0;
let boxes = []; // of each lane
let marks;
let chunkMarks;

/* --- Words -------------------------------------------------------------------------------- */

function layoutLabel(own, number) {
  const panels = number > 2 && own.columns > 64 >> (number - 3) ? ' of a panel' : '';
  return `${WORDS[number]}, ${own.layouts[number].row_bytes} bytes a row${panels}`;
}

function range(singular, first, last) {
  return last > first ? `${singular}s ${first} to ${last}` : `${singular} ${first}`;
}

function conflictText({ wavefronts, ideal }) {
  const more = wavefronts - ideal;
  return `${wavefronts} wavefront${wavefronts === 1 ? '' : 's'}, ideal ${ideal}: `
    + `${more === 0 ? 'no bank conflict' : `${more} more by bank conflicts`}.`;
}

function countsText() {
  const { own, counts } = shown;
  if (own.access !== 'k_copies') return conflictText(counts);
  return 'cp.async writes what it reads apart from the load/store unit, in 0 wavefronts. It reads '
    + `${counts.sectors} sectors of 32 bytes from L2. For rows past the end it stores zeros, as `
    + `drawn here: ${conflictText(counts)}`;
}

/** Where the bytes of a lane are. Without padding, the byte in the tile gives row and column. */
function laneText() {
  const { own, number, pattern, counts } = shown;
  const plain = BANKS.patterns[own.layouts[0].pattern].offsets[lane];
  const rowBytes = own.layouts[0].row_bytes;
  const column = plain % rowBytes / 2;
  const offset = pattern.offsets[lane];
  const bank = Math.floor(offset / 4) % BANK_COUNT;
  const inShared = ` (byte ${own.start + offset} of shared memory)`;
  return `Lane ${lane}: row ${Math.floor(plain / rowBytes)}, `
    + `${range('column', column, column + own.size / 2 - 1)} of ${ACCESSES[own.access].tile}, `
    + `at byte ${offset} of the tile${number === own.own ? inShared : ''}, `
    + `${range('bank', bank, bank + Math.ceil(own.size / 4) - 1)}, `
    + `wavefront ${pattern.waves[lane] + 1} of ${counts.wavefronts}.`;
}

function passTitle(pass) {
  const lanes = `anes ${pass.first} to ${pass.last}`;
  if (!shown.own.access.endsWith('ldmatrix')) return `L${lanes}`;
  return `Matrix ${pass.number}: l${lanes} pass its rows`;
}

/* --- Drawing ------------------------------------------------------------------------------ */

/**
 * Lanes are served in passes, of 32 lanes with up to 4 bytes each or of 8 lanes with 16. A pass has
 * one or more wavefronts, a wavefront one or more words, a word one or more lanes.
 */
function findPasses({ own, pattern }) {
  const size = own.size <= 4 ? 32 : 8;
  const passes = [];
  for (let first = 0; first < 32; first += size) {
    const waves = [];
    for (let i = first; i < first + size; i++) {
      const words = waves[pattern.waves[i]] ||= [];
      const place = Math.floor(pattern.offsets[i] / 4);
      const word = words.find((other) => other.place === place);
      if (word) word.lanes.push(i);
      else words.push({ place, lanes: [i] });
    }
    passes.push({ number: passes.length, first, last: first + size - 1, waves });
  }
  return passes;
}

/** Places of cells. On a narrow page a wavefront has two rows, of 16 banks each. */
function makeGrid(room, lanesOfWord) {
  const left = 42;
  const across = room < 700 ? 16 : BANK_COUNT;
  const width = Math.floor((room - left) / across);
  const rowHeight = lanesOfWord > 1 ? 30 : 22;
  const rows = BANK_COUNT / across;
  return {
    left,
    width: across * width,
    height: rows * rowHeight,
    headHeight: rows * 16 + 4,
    box: (bank, banks, top, height = rowHeight) => ({
      x: left + bank % across * width,
      y: top + Math.floor(bank / across) * height,
      width: banks * width,
      height,
    }),
  };
}

/** Diagonal lines beside a wavefront. */
function drawHatching(parent, x, y, height) {
  for (let at = y; at < y + height - 5; at += 5) {
    addSvg(parent, 'path', { d: `M${x} ${at + 6}l5 -5`, class: 'hatch' });
  }
}

/** The lanes of a word are drawn one below the other. */
function drawWord(layers, { place, lanes }, grid, top) {
  const cell = grid.box(place % BANK_COUNT, Math.max(1, shown.own.size / 4), top);
  const height = cell.height / lanes.length;
  lanes.forEach((own, i) => {
    boxes[own] = { ...cell, y: cell.y + i * height, height };
    const tint = `cell tint-${Math.floor(own / 8)}`;
    addRect(layers.cells, boxes[own], { class: tint, 'data-index': own });
    addLabel(layers.labels, boxes[own], [own]);
  });
}

function drawWave(layers, words, grid, top, name) {
  for (let bank = 0; bank < BANK_COUNT; bank++) {
    addRect(layers.cells, grid.box(bank, 1, top), { class: 'cell idle' });
  }
  for (const word of words) drawWord(layers, word, grid, top);
  const frame = { x: grid.left, y: top, width: grid.width, height: grid.height };
  addRect(layers.marks, frame, { class: 'border' });
  addLabel(layers.labels, { ...frame, x: 0, width: grid.left - 10 }, [name], 'quiet');
}

function draw() {
  const svg = byId('banks');
  if (roomFor(svg) === 0) return;
  const passes = findPasses(shown);
  const lanesOfWords = passes.flatMap((pass) => pass.waves.flat().map((word) => word.lanes.length));
  const grid = makeGrid(roomFor(svg), Math.max(...lanesOfWords));
  const titleHeight = 24;
  const gap = 3;
  const height = grid.headHeight + passes.length * titleHeight
    + shown.counts.wavefronts * (grid.height + gap);
  const layers = startDrawing(svg, grid.left + grid.width + 1, height);
  for (let bank = 0; bank < BANK_COUNT; bank++) {
    addLabel(layers.labels, grid.box(bank, 1, 0, 16), [bank], 'small quiet');
  }
  let top = grid.headHeight;
  for (const pass of passes) {
    const title = { x: grid.left, y: top + titleHeight / 2, class: 'title' };
    addSvg(layers.labels, 'text', title, passTitle(pass));
    top += titleHeight;
    let isFirst = true;
    pass.waves.forEach((words, wave) => {
      drawWave(layers, words, grid, top, `${wave + 1}${isFirst ? '' : '+'}`);
      if (!isFirst) drawHatching(layers.cells, grid.left - 7, top, grid.height);
      isFirst = false;
      top += grid.height + gap;
    });
  }
  marks = addSvg(svg, 'g', {});
  mark();
}

/** Sixteen lines of shared memory, among them that of the chosen lane. */
function drawChunks() {
  const svg = byId('chunks');
  const { chunks } = BANKS.maps[shown.counts.map];
  const placeOf = (own) => Math.floor(shown.pattern.offsets[own] / 16);
  const firstLine = Math.floor(placeOf(lane) / PLACES / LINES) * LINES;
  const left = 42;
  const top = 18;
  const width = Math.min(70, Math.floor((roomFor(svg) - left) / PLACES));
  const { cells, labels, marks: outlines } = startDrawing(svg, left + PLACES * width + 1,
    top + LINES * 22 + 1);
  chunkMarks = outlines;
  const accessed = [...Array(32).keys()].map(placeOf);
  const boxOf = (place) => ({ x: left + place % PLACES * width,
    y: top + (Math.floor(place / PLACES) - firstLine) * 22, width, height: 22 });
  for (let line = firstLine; line < firstLine + LINES; line++) {
    const start = { ...boxOf(line * PLACES), x: 0, width: left };
    addLabel(labels, start, [128 * line], 'small quiet');
  }
  for (let i = 0; i < PLACES; i++) {
    addLabel(labels, { ...boxOf(firstLine * PLACES + i), y: 0, height: top },
      [`${4 * i}\u2013${4 * i + 3}`], 'small quiet');
  }
  for (let place = firstLine * PLACES; place < (firstLine + LINES) * PLACES; place++) {
    const own = accessed.indexOf(place);
    const attributes = own < 0 ? {} : { 'data-index': own };
    const tint = own < 0 ? 'idle' : `tint-${Math.floor(own / 8)}`;
    addRect(cells, boxOf(place), { class: `cell ${tint}`, ...attributes });
    const chunk = chunks[place] ?? -1;
    const name = chunk < 0 ? '' : `${Math.floor(chunk / 64)},${chunk % 64}`;
    addLabel(labels, boxOf(place), [own < 0 ? name : `${name}*`], own < 0 ? 'small quiet' : 'small');
  }
  addRect(chunkMarks, boxOf(placeOf(lane)), { class: 'mark current' });
}

function mark() {
  marks.replaceChildren();
  addRect(marks, boxes[lane], { class: 'mark current' });
  drawChunks();
}

/* --- Controls ----------------------------------------------------------------------------- */

function choose(index) {
  if (index === lane) return;
  lane = index;
  byId('answer').textContent = laneText();
  mark();
}

function showSource({ file, line, text }) {
  const code = document.createElement('code');
  code.textContent = text;
  byId('source').replaceChildren(`${file}:${line} `, code);
}

/** Offers what there is for the chosen step and head dimension, and shows the chosen access. */
function show() {
  const accesses = BANKS.accesses.filter(
    (other) => other.step === step.value && String(other.dim) === dim.value);
  fillSelect(access, accesses.map((other) => [other.access, ACCESSES[other.access].label]));
  const own = accesses.find((other) => other.access === access.value);
  fillSelect(layout, [
    ['own', `as in step ${own.step}: ${layoutLabel(own, own.own)}`],
    ...LAYOUTS.flatMap((name, i) => (own.layouts[i] ? [[name, layoutLabel(own, i)]] : [])),
  ]);
  const number = layout.value === 'own' ? own.own : LAYOUTS.indexOf(layout.value);
  const counts = own.layouts[number];
  shown = { own, number, counts, pattern: BANKS.patterns[counts.pattern] };
  byId('counts').textContent = countsText();
  byId('answer').textContent = laneText();
  showSource(BANKS.lines[own.line]);
  draw();
}

/** Shows what the address asks for, or the first choice where there is no such value. */
function showAddress() {
  const pairs = (names) => [...new Set(names)].map((name) => [String(name), String(name)]);
  const [wantedStep = '', wantedDim = '', wantedAccess, wantedLayout] = readAddress();
  fillSelect(step, pairs(BANKS.accesses.map((own) => own.step)), wantedStep || '03');
  fillSelect(dim, pairs(BANKS.accesses.map((own) => own.dim)), wantedDim || '64');
  fillSelect(access, pairs(Object.keys(ACCESSES)), wantedAccess);
  fillSelect(layout, pairs(['own', ...LAYOUTS]), wantedLayout);
  show();
}

for (const control of controls) {
  control.addEventListener('change', () => {
    show();
    writeAddress(controls.map(({ value }) => value));
  });
}
window.addEventListener('hashchange', showAddress);
onPointer(byId('banks'), choose);
onPointer(byId('chunks'), choose);
onArrows(byId('banks'), (columns, rows) => choose(clamp(lane + columns + 8 * rows, 31)));
showAddress();
onWidth(draw);
