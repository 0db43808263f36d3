/*
 * The explorer of fragments. FRAGMENTS, in data/fragments.js, lists for each instruction the number
 * of the element in each slot: lane by lane, in each lane register by register, in each register
 * the lower half first. Elements are counted row by row, and matrix by matrix. Of a tile in shared
 * memory, elements are its 16-byte chunks, and slots are the places in memory.
 */
'use strict';

const LANES = 32;
const CHUNK = 16; // bytes
const PLACES = 8; // chunks in a line of memory, which has all 32 banks
const HALVES = { '': 'all 32 bits', lo: 'lower half', hi: 'upper half' };

/** The shape of one matrix, and the names of the matrix and of the registers. */
const MMA = [
  { name: 'mma.a', label: 'mma.m16n8k16: operand A', letter: 'A', rows: 16, columns: 16 },
  { name: 'mma.b', label: 'mma.m16n8k16: operand B', letter: 'B', rows: 16, columns: 8 },
  { name: 'mma.cd', label: 'mma.m16n8k16: C and D', letter: 'C', rows: 16, columns: 8 },
];
const LDMATRIX = ['x1', 'x2', 'x4', 'x1.trans', 'x2.trans', 'x4.trans'].map(
  (form) => ({ name: `ldmatrix.${form}`, label: `ldmatrix.${form}`, rows: 8, columns: 8 }));

const WGMMA = [
  { name: 'wgmma.d', label: 'wgmma.m64n16k16: D', letter: 'D', rows: 64, columns: 16 },
  { name: 'wgmma.a', label: 'wgmma.m64n16k16: operand A in registers', letter: 'A', rows: 64,
    columns: 16 },
];
/** A panel of a tile; `along`: 16 columns or 16 rows are the sum of one wgmma. */
const TILES = [128, 64].flatMap((bytes) => [
  { name: `k.${bytes}`, label: `wgmma: K in shared memory, K-major, ${bytes}-byte rows`,
    letter: 'K', along: 'columns' },
  { name: `v.${bytes}`, label: `wgmma: V in shared memory, MN-major, ${bytes}-byte rows`,
    letter: 'V', along: 'keys' },
].map((view) => ({ ...view, data: `tile.${bytes}`, rows: 32, columns: bytes / CHUNK })));

const VIEWS = [...MMA, ...LDMATRIX, ...WGMMA, ...TILES].map((view) => {
  const { elements } = FRAGMENTS.find(({ name }) => name === (view.data || view.name));
  const slotOf = [];
  elements.forEach((element, slot) => { slotOf[element] = slot; });
  const matrices = elements.length / (view.rows * view.columns);
  const threads = WGMMA.some(({ name }) => name === view.name) ? 4 * LANES : LANES;
  return {
    ...view,
    elements,
    slotOf,
    matrices,
    across: Math.min(matrices, 2), // matrices that are drawn side by side
    lanes: view.along ? elements.length / PLACES : threads, // or lines of memory
    slots: view.along ? PLACES : elements.length / threads, // of a lane
    halves: view.along || ['C', 'D'].includes(view.letter) ? 1 : 2, // of a register
    register: view.letter ? view.letter.toLowerCase() : 'r',
    loads: !view.letter, // from matrices in shared memory
  };
});

let view;
let chosen; // element
let shownWarp; // the registers of one warp of a warpgroup are drawn
let boxes = { matrix: [], lanes: [] }; // by element, by slot
let layers = {};

/* --- Words -------------------------------------------------------------------------------- */

function placeOf(element) {
  const size = view.rows * view.columns;
  const rest = element % size;
  return {
    matrix: Math.floor(element / size),
    row: Math.floor(rest / view.columns),
    column: rest % view.columns,
  };
}

function holderOf(slot) {
  const inLane = slot % view.slots;
  const number = Math.floor(inLane / view.halves);
  const half = view.halves === 1 ? '' : ['lo', 'hi'][inLane % 2];
  return { lane: Math.floor(slot / view.slots), number, register: view.register + number, half };
}

/** The lane that passes the address of an element's row. The rows of the matrices, 8 elements each,
 * were numbered by it. */
function addressLane(element) {
  return Math.floor(element / 8);
}

function warpOf(lane) {
  return view.lanes > LANES ? Math.floor(lane / LANES) : 0;
}

/** The number of the wgmma that reads a chunk. A chunk has 8 columns. */
function wgmmaOf({ row, column }) {
  return Math.floor((view.along === 'keys' ? row : 8 * column) / 16);
}

function chunkAnswer() {
  const place = placeOf(chosen);
  const { row, column } = place;
  const slot = view.slotOf[chosen];
  const along = (first, count) => `${first} to ${first + count - 1}`;
  const columns = along(8 * column, 8);
  const read = view.along === 'keys'
    ? `as n = ${columns} of k = ${row % 16}` : `as k = ${along(8 * (column % 2), 8)} of n = ${row}`;
  return `${view.letter}[${row}][${columns}] is chunk ${column} of its row, at byte `
    + `${CHUNK * slot}: place ${slot % PLACES} of line ${Math.floor(slot / PLACES)}. The wgmma of `
    + `${view.along} ${along(16 * wgmmaOf(place), 16)} reads it ${read}.`;
}

function answer() {
  if (view.along) return chunkAnswer();
  const { matrix, row, column } = placeOf(chosen);
  const { lane, register, half } = holderOf(view.slotOf[chosen]);
  const name = `${view.letter || `M${matrix}`}[${row}][${column}]`;
  const warp = view.lanes > LANES ? `warp ${warpOf(lane)}, ` : '';
  const holder = `${name} is in ${warp}lane ${lane % LANES}, register ${register}, `
    + `${HALVES[half]}.`;
  if (view.name === 'mma.cd') return `${holder} D has the same layout as C.`;
  if (!view.loads) return holder;
  return `${holder} Lane ${addressLane(chosen)} passes the address of row ${row} of M${matrix}.`;
}

/* --- Drawing ------------------------------------------------------------------------------ */

/** Column numbers above a matrix, a number or an address before each row. */
function drawFrame(labels, element, box, labelWidth) {
  const { matrix, row, column } = placeOf(element);
  if (row === 0) {
    const text = view.along ? [`${8 * column}\u2013`, 8 * column + 7] : [column];
    addLabel(labels, { ...box, y: box.y - 24, height: 24 }, text, 'quiet');
  }
  if (column === 0) {
    const text = [view.loads ? `${addressLane(element)}\u2192` : row];
    if (view.lanes > LANES && row % 16 === 0) text.unshift(`warp ${row / 16}`);
    addLabel(labels, { ...box, x: box.x - labelWidth, width: labelWidth }, text, 'quiet');
  }
  if (view.loads && row === 0 && column === 0) {
    const place = { x: box.x, y: box.y - 34, class: 'title' };
    addSvg(labels, 'text', place, `M${matrix}: matrix ${matrix}`);
  }
}

function drawMatrices() {
  const { across, rows, columns, loads } = view;
  const svg = byId('matrix');
  const gap = 8;
  const left = rows > 32 ? 44 : loads ? 30 : 22;
  const top = loads ? 46 : 26;
  const room = roomFor(svg) - across * left - (across - 1) * gap;
  const width = Math.min(38, Math.floor(room / (across * columns)));
  const height = 30;
  const step = { x: left + columns * width + gap, y: top + rows * height + gap };
  const down = Math.ceil(view.matrices / across);
  layers.matrix = startDrawing(svg, across * step.x - gap + 1, down * step.y - gap + 1);
  boxes.matrix = view.slotOf.map((slot, element) => {
    const { matrix, row, column } = placeOf(element);
    const { lane, number, register, half } = holderOf(slot);
    const x = matrix % across * step.x + left + column * width;
    const y = Math.floor(matrix / across) * step.y + top + row * height;
    const box = { x, y, width, height };
    const name = width >= 34 && half ? `${register}.${half}` : register;
    const tint = view.along ? wgmmaOf({ row, column }) : number % 4;
    addRect(layers.matrix.cells, box, { class: `cell tint-${tint}`, 'data-index': element });
    addLabel(layers.matrix.labels, box,
      view.along ? [`${lane}:${number}`, `w${tint}`] : [lane % LANES, name], 'small');
    drawFrame(layers.matrix.labels, element, box, left);
    return box;
  });
}

function drawLanes() {
  const svg = byId('lanes');
  const left = 30;
  const top = 34;
  const width = Math.min(56, Math.floor((roomFor(svg) - left) / view.slots));
  const height = 22;
  const down = Math.min(LANES, view.lanes);
  layers.lanes = startDrawing(svg, left + view.slots * width + 1, top + down * height + 1);
  const { cells, labels } = layers.lanes;
  shownWarp = warpOf(holderOf(view.slotOf[chosen]).lane);
  boxes.lanes = [];
  view.elements.forEach((element, slot) => {
    const { lane, number, register, half } = holderOf(slot);
    if (warpOf(lane) !== shownWarp) return;
    const { matrix, row, column } = placeOf(element);
    const inLane = slot % view.slots;
    const box = { x: left + inLane * width, y: top + lane % LANES * height, width, height };
    const tint = view.along ? wgmmaOf({ row, column }) : number % 4;
    addRect(cells, box, { class: `cell tint-${tint}`, 'data-index': slot });
    addLabel(labels, box, [`${view.loads ? `M${matrix} ` : ''}${row},${column}`], 'small');
    if (inLane === 0) addLabel(labels, { ...box, x: 0, width: left }, [lane % LANES], 'quiet');
    const name = view.along ? [number] : half ? [register, half] : [register];
    if (lane % LANES === 0) addLabel(labels, { ...box, y: 0, height: top }, name, 'quiet');
    boxes.lanes[slot] = box;
  });
}

/** The other slots to outline: of the same lane, or the 8 rows of the same core matrix. */
function slotsBeside(slot) {
  const { row, column } = placeOf(chosen);
  return view.along
    ? [...Array(8).keys()].map((i) => view.slotOf[(row - row % 8 + i) * view.columns + column])
    : [...Array(view.slots).keys()].map((i) => slot - slot % view.slots + i);
}

/** Outlines the chosen entry in both pictures, and what else its register and its lane hold. */
function mark() {
  const slot = view.slotOf[chosen];
  const { register } = holderOf(slot);
  const others = slotsBeside(slot);
  for (const name of ['matrix', 'lanes']) {
    const { marks } = layers[name];
    const boxOf = (other) => boxes[name][name === 'lanes' ? other : view.elements[other]];
    marks.replaceChildren();
    for (const other of others) {
      const isRegister = !view.along && holderOf(other).register === register;
      const kind = isRegister ? 'register' : 'lane';
      if (other !== slot) addRect(marks, boxOf(other), { class: `mark ${kind}` });
    }
    addRect(marks, boxOf(slot), { class: 'mark current' });
  }
}

function draw() {
  if (roomFor(byId('matrix')) === 0) return;
  drawMatrices();
  drawLanes();
  mark();
}

/* --- Controls ----------------------------------------------------------------------------- */

function choose(element) {
  if (element === chosen) return;
  chosen = element;
  byId('answer').textContent = answer();
  if (warpOf(holderOf(view.slotOf[chosen]).lane) !== shownWarp) draw();
  else mark();
}

/** Matrices that are drawn side by side are one grid for the arrow keys. */
function moveInMatrix(columns, rows) {
  const { across } = view;
  const { matrix, row, column } = placeOf(chosen);
  const down = Math.ceil(view.matrices / across);
  const x = clamp(matrix % across * view.columns + column + columns, across * view.columns - 1);
  const y = clamp(Math.floor(matrix / across) * view.rows + row + rows, down * view.rows - 1);
  const target = Math.floor(y / view.rows) * across + Math.floor(x / view.columns);
  choose((target * view.rows + y % view.rows) * view.columns + x % view.columns);
}

function moveInLanes(columns, rows) {
  const slot = view.slotOf[chosen];
  const lane = clamp(Math.floor(slot / view.slots) + rows, view.lanes - 1);
  const inLane = clamp(slot % view.slots + columns, view.slots - 1);
  choose(view.elements[lane * view.slots + inLane]);
}

function titles(letters) {
  if (view.along) {
    return {
      matrix: `Rows 0 to 31 of ${letters}, ${8 * view.columns} columns`,
      matrixNote: 'A cell is a chunk: 8 columns of a row, 16 bytes. It says line and place in '
        + `shared memory. w0, w1: the wgmma that reads it, 16 ${view.along} each.`,
      lanes: 'Shared memory',
      lanesNote: 'A line is 128 bytes, all 32 banks, in 8 places. A cell says row and chunk.',
    };
  }
  const group = view.lanes > LANES ? ' of one warp' : '';
  const cell = view.loads ? 'matrix, row and column' : 'row and column';
  return {
    matrix: view.loads ? 'Matrices in shared memory, 8 x 8 each'
      : `${letters}, ${view.rows} x ${view.columns}`,
    matrixNote: view.loads
      ? 'A cell says which lane gets the entry, and in which register. 19\u2192: lane 19 passes the '
        + 'address of this row.'
      : 'A cell says which lane holds the entry, and in which register.',
    lanes: `Registers of the lanes${group}`,
    lanesNote: `A row is a lane${group}. A cell says ${cell} of its entry.`,
  };
}

function show(name) {
  view = VIEWS.find((other) => other.name === name) || VIEWS[0];
  chosen = 3 * view.columns + 6; // row 3, column 6 are in every matrix
  const letters = view.name === 'mma.cd' ? 'C and D' : view.letter;
  byId('instruction').value = view.name;
  const { matrix, matrixNote, lanes, lanesNote } = titles(letters);
  byId('matrix-title').textContent = matrix;
  byId('matrix-note').textContent = matrixNote;
  byId('lanes-title').textContent = lanes;
  byId('lanes-note').textContent = lanesNote;
  byId('answer').textContent = answer();
  draw();
}

fillSelect(byId('instruction'), VIEWS.map(({ name, label }) => [name, label]));
byId('instruction').addEventListener('change', (event) => {
  writeAddress([event.target.value]);
  show(event.target.value);
});
window.addEventListener('hashchange', () => show(readAddress()[0]));
onPointer(byId('matrix'), choose);
onPointer(byId('lanes'), (slot) => choose(view.elements[slot]));
onArrows(byId('matrix'), moveInMatrix);
onArrows(byId('lanes'), moveInLanes);
show(readAddress()[0]);
onWidth(draw);
