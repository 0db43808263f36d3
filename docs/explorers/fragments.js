/*
 * The explorer of fragments. FRAGMENTS, in data/fragments.js, lists for each instruction the number
 * of the element in each slot: lane by lane, in each lane register by register, in each register
 * the lower half first. Elements are counted row by row, and matrix by matrix.
 */
'use strict';

const LANES = 32;
const HALVES = { '': 'all 32 bits', lo: 'lower half', hi: 'upper half' };

/** The shape of one matrix, and the names of the matrix and of the registers. */
const MMA = [
  { name: 'mma.a', label: 'mma.m16n8k16: operand A', letter: 'A', rows: 16, columns: 16 },
  { name: 'mma.b', label: 'mma.m16n8k16: operand B', letter: 'B', rows: 16, columns: 8 },
  { name: 'mma.cd', label: 'mma.m16n8k16: C and D', letter: 'C', rows: 16, columns: 8 },
];
const LDMATRIX = ['x1', 'x2', 'x4', 'x1.trans', 'x2.trans', 'x4.trans'].map(
  (form) => ({ name: `ldmatrix.${form}`, label: `ldmatrix.${form}`, rows: 8, columns: 8 }));

const VIEWS = [...MMA, ...LDMATRIX].map((view) => {
  const { elements } = FRAGMENTS.find((fragment) => fragment.name === view.name);
  const slotOf = [];
  elements.forEach((element, slot) => { slotOf[element] = slot; });
  const matrices = elements.length / (view.rows * view.columns);
  return {
    ...view,
    elements,
    slotOf,
    matrices,
    across: Math.min(matrices, 2), // matrices that are drawn side by side
    slots: elements.length / LANES, // of a lane
    halves: view.name === 'mma.cd' ? 1 : 2, // of a register
    register: view.letter ? view.letter.toLowerCase() : 'r',
    loads: !view.letter, // from matrices in shared memory
  };
});

let view;
let chosen; // element
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

function answer() {
  const { matrix, row, column } = placeOf(chosen);
  const { lane, register, half } = holderOf(view.slotOf[chosen]);
  const name = `${view.letter || `M${matrix}`}[${row}][${column}]`;
  const holder = `${name} is in lane ${lane}, register ${register}, ${HALVES[half]}.`;
  if (view.name === 'mma.cd') return `${holder} D has the same layout as C.`;
  if (!view.loads) return holder;
  return `${holder} Lane ${addressLane(chosen)} passes the address of row ${row} of M${matrix}.`;
}

/* --- Drawing ------------------------------------------------------------------------------ */

/** Column numbers above a matrix, a number or an address before each row. */
function drawFrame(labels, element, box, labelWidth) {
  const { matrix, row, column } = placeOf(element);
  if (row === 0) addLabel(labels, { ...box, y: box.y - 20, height: 20 }, [column], 'quiet');
  if (column === 0) {
    const text = view.loads ? `${addressLane(element)}\u2192` : row;
    addLabel(labels, { ...box, x: box.x - labelWidth, width: labelWidth }, [text], 'quiet');
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
  const left = loads ? 30 : 22;
  const top = loads ? 46 : 22;
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
    addRect(layers.matrix.cells, box, { class: `cell tint-${number}`, 'data-index': element });
    addLabel(layers.matrix.labels, box, [lane, name], 'small');
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
  layers.lanes = startDrawing(svg, left + view.slots * width + 1, top + LANES * height + 1);
  const { cells, labels } = layers.lanes;
  boxes.lanes = view.elements.map((element, slot) => {
    const { lane, number, register, half } = holderOf(slot);
    const { matrix, row, column } = placeOf(element);
    const inLane = slot % view.slots;
    const box = { x: left + inLane * width, y: top + lane * height, width, height };
    addRect(cells, box, { class: `cell tint-${number}`, 'data-index': slot });
    addLabel(labels, box, [`${view.loads ? `M${matrix} ` : ''}${row},${column}`], 'small');
    if (inLane === 0) addLabel(labels, { ...box, x: 0, width: left }, [lane], 'quiet');
    const name = half ? [register, half] : [register];
    if (lane === 0) addLabel(labels, { ...box, y: 0, height: top }, name, 'quiet');
    return box;
  });
}

/** Outlines the chosen entry in both pictures, and what else its register and its lane hold. */
function mark() {
  const slot = view.slotOf[chosen];
  const { lane, register } = holderOf(slot);
  const others = [...Array(view.slots).keys()].map((i) => lane * view.slots + i);
  for (const name of ['matrix', 'lanes']) {
    const { marks } = layers[name];
    const boxOf = (other) => boxes[name][name === 'lanes' ? other : view.elements[other]];
    marks.replaceChildren();
    for (const other of others) {
      const kind = holderOf(other).register === register ? 'register' : 'lane';
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
  mark();
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
  const lane = clamp(Math.floor(slot / view.slots) + rows, LANES - 1);
  const inLane = clamp(slot % view.slots + columns, view.slots - 1);
  choose(view.elements[lane * view.slots + inLane]);
}

function show(name) {
  view = VIEWS.find((other) => other.name === name) || VIEWS[0];
  chosen = 3 * view.columns + 6; // row 3, column 6 are in every matrix
  const letters = view.name === 'mma.cd' ? 'C and D' : view.letter;
  byId('instruction').value = view.name;
  byId('matrix-title').textContent = view.loads
    ? 'Matrices in shared memory, 8 x 8 each' : `${letters}, ${view.rows} x ${view.columns}`;
  byId('matrix-note').textContent = view.loads
    ? 'A cell says which lane gets the entry, and in which register. 19\u2192: lane 19 passes the '
      + 'address of this row.'
    : 'A cell says which lane holds the entry, and in which register.';
  byId('lanes-note').textContent = view.loads
    ? 'A row is a lane. A cell says matrix, row and column of its entry.'
    : 'A row is a lane. A cell says row and column of its entry.';
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
