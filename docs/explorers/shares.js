/*
 * The explorer of shares. SHARES, in data/shares.js, has the constants of steps 19 and 20. What is
 * computed with them here is what part_count(), keys_of_part() and share_of_block() compute.
 */
'use strict';

const MOST_SEQUENCES = 64;
const LONGEST = 131072;
const MOST_BARS = 3; // in the text of a block
const DRAWN = {
  '': { label: 'as typed' },
  even: { label: '8, all 4096', draw: () => Array(8).fill(4096) },
  uniform: { label: '16, uniform to 8192', draw: (next) => drawTimes(16, () => 1 + Math.floor(next() * 8192)) },
  log: { label: '32, log-uniform 100 to 32768',
    draw: (next) => drawTimes(32, () => Math.floor(100 * 327.68 ** next())) },
  alone: { label: '8 short ones, one long', draw: () => [...Array(8).fill(200), 16384] },
};
const CHOICES = {
  sms: [1, 2, 4, 8, 16, 32, 64, 132], heads: [1, 2, 4, 8, 16, 32], group: [1, 2, 4, 8, 16], dim: [64, 128, 256],
};
const FIRST = { sms: 4, heads: 2, group: 4, dim: 128 };

const lengths = byId('lengths');
const drawn = byId('drawn');
const selects = Object.keys(CHOICES).map(byId);
const panels = ['split', 'shares'].map(byId);

let shown; // what plan() says of the chosen problem
let panel = 1; // of the chosen block, 0 or 1
let block = 0;
const places = [[], []]; // of each panel: the box of each block
const marks = [];

function drawTimes(count, draw) {
  return [...Array(count)].map(draw);
}

/** Numbers from 0 to 1, the same every time. */
function makeRandom() {
  let state = 1;
  return () => {
    state = state * 48271 % 2147483647;
    return state / 2147483647;
  };
}

/* --- The rules of the kernels --------------------------------------------------------------- */

function divideUp(a, b) {
  return Math.floor((a + b - 1) / b);
}

/** part_count() of step 19: the number of parts of each row group that is estimated to be the fastest. */
function partCount(config, problem, rowGroups) {
  const { lengths: all, heads, group, dim } = problem;
  const keys = Math.max(...all);
  const mostBytes = Math.max(Math.floor(all.length * heads * 4 * dim * keys / 100), 4000000);
  const bytesOfPart = all.length * heads * group * (dim + 1) * 4;
  const tiles = divideUp(keys, config.tile);
  const limit = Math.min(SHARES.most_parts, tiles, Math.floor(mostBytes / bytesOfPart));
  let best = 1;
  let least = Infinity;
  for (let parts = 1; parts === 1 || parts <= limit; parts++) {
    const waves = divideUp(rowGroups * parts, problem.sms * config.per_sm);
    const time = waves * (divideUp(tiles, parts) * config.tile + SHARES.start_keys);
    if (time < least) [best, least] = [parts, time];
  }
  return best;
}

/** keys_of_part() of step 19: [begin, end], the same twice if there are none. */
function keysOfPart(tile, length, parts, part) {
  const size = divideUp(divideUp(length, tile), parts) * tile;
  return [part * size, Math.max(part * size, Math.min((part + 1) * size, length))];
}

/** without_seams() of step 20. */
function withoutSeams(blocks, groups) {
  const most = groups <= blocks ? Math.floor(blocks / groups) * groups : Math.floor(groups / divideUp(groups, blocks));
  const fits = groups <= blocks || groups % most === 0;
  return fits && 10 * most >= 9 * blocks ? most : blocks;
}

/** share_of_block() of step 20, for all blocks: the tiles of each row group that a block has, and of the last
 * one in which block it begins and how many blocks have tiles of it. A tile takes 1, and where lengths differ the
 * end of a row group some more. In the line, the same rows of sequences that are `stride` apart follow each other. */
function shareOut(config, problem, rowGroups) {
  const each = rowGroups.length / problem.lengths.length;
  const tilesOf = rowGroups.map(({ length }) => Math.max(divideUp(length, config.tile), 1));
  const tiles = tilesOf.reduce((sum, count) => sum + count, 0);
  const room = problem.sms * config.per_sm;
  const most = Math.min(room, Math.floor(SHARES.most_bytes / (2 * config.part_bytes + SHARES.share_bytes)));
  let blocks = withoutSeams(most, tilesOf.length);
  const leastTiles = divideUp(SHARES.least_keys, config.tile);
  blocks = Math.min(blocks, Math.max(Math.floor(tiles / leastTiles), 1));
  const equal = tilesOf.every((count) => count === tilesOf[0]);
  if (equal) blocks = withoutSeams(blocks, tilesOf.length);
  const stride = equal && tilesOf.length % blocks === 0 && blocks % each === 0 ? blocks / each : 1;
  const line = [...rowGroups.keys()].sort((a, b) => a % (stride * each) - b % (stride * each) || a - b);
  const more = equal ? 0 : SHARES.end_tiles;
  const time = tiles + more * tilesOf.length;
  const blockWith = (x) => Math.floor(((x + 1) * blocks - 1) / time);
  const shares = [];
  let at = 0; // in the line
  let before = 0; // the time at which that row group begins
  for (let i = 0; i < blocks; i++) {
    const [begin, end] = [i, i + 1].map((block) => Math.floor(block * time / blocks));
    const bars = [];
    for (let x = begin; x < end;) {
      if (x === before + tilesOf[line[at]] + more) before += tilesOf[line[at++]] + more;
      const [group, all] = [line[at], tilesOf[line[at]]];
      const first = Math.min(x - before, all);
      const count = Math.min(all, end - before) - first;
      if (count > 0) bars.push({ group, first, count, all });
      x = Math.min(before + all + more, end);
    }
    const from = blockWith(before);
    const last = before + tilesOf[line[at]] - 1;
    if (bars.length > 0) shares[i] = { bars, begin: from, parts: blockWith(last) - from + 1 };
    else shares[i] = { bars, begin: i, parts: 0 };
  }
  return shares;
}

/** Both steps: `split` and `shares` are the bars of each block, in the order of the blocks. */
function plan(problem) {
  const { lengths: all, heads, group, dim } = problem;
  const ofDim = SHARES.configs.filter((config) => config.dim === dim);
  const config = ofDim.find(({ rows }) => rows >= group) ?? ofDim.at(-1);
  const groupsOfHead = divideUp(group, config.rows);
  const rowGroups = all.flatMap((length, sequence) => [...Array(heads * groupsOfHead).keys()].map((i) => ({
    sequence, length, head: Math.floor(i / groupsOfHead),
    rows: [i % groupsOfHead * config.rows, Math.min((i % groupsOfHead + 1) * config.rows, group) - 1],
  })));
  const parts = partCount(config, problem, rowGroups.length);
  const split = rowGroups.flatMap(({ length }, number) => [...Array(parts).keys()].map((part) => {
    const [begin, end] = keysOfPart(config.tile, length, parts, part);
    const [first, count] = [begin / config.tile, divideUp(end - begin, config.tile)];
    return { bars: [{ group: number, first, count, all: divideUp(length, config.tile) }], part };
  }));
  const shares = shareOut(config, problem, rowGroups);
  return { config, rowGroups, parts, split, shares, room: problem.sms * config.per_sm };
}

/** Who runs when: a place takes the next block as soon as it is free. Idle is a part of all places and times. */
function timesOf(blocks, room, tile) {
  const free = Array(room).fill(0);
  let busy = 0;
  const times = blocks.map(({ bars }) => {
    const place = free.indexOf(Math.min(...free));
    const begin = free[place];
    const ends = bars.map(({ count }) => free[place] += (count + SHARES.end_tiles) * tile);
    busy += free[place] - begin;
    return { place, begin, ends };
  });
  const end = Math.max(...free);
  return { times, end, idle: 1 - busy / (room * end) };
}

/* --- Words ---------------------------------------------------------------------------------- */

function several(count, word) {
  return `${count} ${word}${count === 1 ? '' : 's'}`;
}

function barText({ group, first, count }) {
  const { sequence, length, head, rows } = shown.rowGroups[group];
  const { tile } = shown.config;
  const [begin, end] = [first * tile, Math.min((first + count) * tile, length)];
  const which = begin === 0 && end === length ? `all ${length} keys` : `keys ${begin} to ${end - 1}`;
  return `row group ${group} (sequence ${sequence}, head ${head}, rows ${rows[0]} to ${rows[1]}): `
    + `${end > begin ? which : 'no key'}`;
}

function blockText() {
  if (panel === 0) {
    const { bars, part } = shown.split[block];
    return `Step 19, block ${block}, part ${part + 1} of ${shown.parts} of ${barText(bars[0])}.`;
  }
  const { bars, begin, parts } = shown.shares[block];
  const more = bars.length - MOST_BARS;
  const tiles = bars.reduce((sum, { count }) => sum + count, 0);
  const who = begin === block ? 'It' : `Block ${begin}`;
  if (tiles === 0) return `Step 20, block ${block}, no tile: its time is that of the end of a row group.`;
  return `Step 20, block ${block}, ${several(tiles, 'tile')} of ${bars.slice(0, MOST_BARS).map(barText).join('; ')}`
    + `${more > 0 ? `; and of ${several(more, 'more row group')}` : ''}.`
    + `${parts > 1 ? ` ${who} merges the ${parts} parts of row group ${bars.at(-1).group}.` : ''}`;
}

function idleText({ end, idle }) {
  return `The last block ends after the time of ${end} keys; ${Math.round(100 * idle)} % of all places and times are idle.`;
}

/* --- Drawing -------------------------------------------------------------------------------- */

function drawPanel(number, blocks, { times }, most) {
  const svg = panels[number];
  const width = roomFor(svg);
  if (width === 0) return;
  const height = clamp(Math.floor(420 / shown.room), 18) || 1;
  const scale = (width - 2) / most;
  const { cells, marks: seams, labels } = startDrawing(svg, width, shown.room * height + 2);
  addRect(cells, { x: 0.5, y: 0.5, width: width - 1, height: shown.room * height + 1 }, { class: 'frame' });
  places[number] = times.map(({ place, begin, ends }, i) => {
    let at = begin;
    const y = 1 + place * height;
    blocks[i].bars.forEach(({ group, first, count, all }, bar) => {
      const box = { x: 1 + at * scale, y, width: (ends[bar] - at) * scale, height };
      const { sequence } = shown.rowGroups[group];
      addRect(cells, box, { class: `${height > 4 ? 'cell ' : ''}tint-${sequence % 4}`, 'data-index': i });
      if (height > 10 && box.width > 16) addLabel(labels, box, [sequence], 'small');
      if (height > 3 && count > 0 && first > 0) addSvg(seams, 'path', { d: `M${box.x + 2} ${y + 1}v${height - 2}`, class: 'seam' });
      if (height > 3 && count > 0 && first + count < all) {
        addSvg(seams, 'path', { d: `M${box.x + box.width - 2} ${y + 1}v${height - 2}`, class: 'seam' });
      }
      at = ends[bar];
    });
    return { x: 1 + begin * scale, y, width: (at - begin) * scale, height };
  });
  marks[number] = addSvg(svg, 'g', {});
}

function mark() {
  panels.forEach((svg, number) => marks[number]?.replaceChildren());
  if (marks[panel]) addRect(marks[panel], places[panel][block], { class: 'mark current' });
}

function draw() {
  const { config, split, shares, room } = shown;
  const [first, second] = [split, shares].map((blocks) => timesOf(blocks, room, config.tile));
  const most = Math.max(first.end, second.end);
  drawPanel(0, split, first, most);
  drawPanel(1, shares, second, most);
  const seams = new Set(shares.flatMap(({ bars }) => bars.filter(({ count, all }) => count < all)
    .map(({ group }) => group)));
  const pieces = shares.flatMap(({ bars }) => bars).filter(({ count, all }) => count < all).length;
  const groups = several(shown.rowGroups.length, 'row group');
  byId('counts').textContent = `${groups} of up to ${several(config.rows, 'row')}, tiles of ${config.tile} keys, `
    + `${room} places for blocks.`;
  const merged = shown.parts > 1 ? `; all ${split.length} parts are merged` : '';
  byId('split-note').textContent = `${several(shown.parts, 'part')} of each row group, ${several(split.length, 'block')}`
    + `${merged}. ${idleText(first)}`;
  byId('shares-note').textContent = `${several(shares.length, 'block')}; ${several(seams.size, 'row group')} with seams, `
    + `${several(pieces, 'part')} to merge. ${idleText(second)}`;
  mark();
}

/* --- Controls ------------------------------------------------------------------------------- */

function choose(number, index) {
  panel = number;
  block = index;
  byId('answer').textContent = blockText();
  mark();
}

/** The lengths that are typed; none if one of them is not a length. */
function typed() {
  const all = lengths.value.split(/[\s,]+/).filter((word) => word !== '').map(Number);
  const fine = all.length > 0 && all.length <= MOST_SEQUENCES
    && all.every((length) => Number.isInteger(length) && length >= 0 && length <= LONGEST) && Math.max(...all) > 0;
  lengths.setCustomValidity(fine ? '' : `1 to ${MOST_SEQUENCES} lengths, up to ${LONGEST} keys, not all 0`);
  return fine ? all : null;
}

function show() {
  const all = typed();
  if (all === null) {
    byId('answer').textContent = `Type ${lengths.validationMessage}.`;
    return;
  }
  const [sms, heads, group, dim] = selects.map(({ value }) => Number(value));
  shown = plan({ lengths: all, sms, heads, group, dim });
  block = 0;
  draw();
  choose(1, 0);
}

function change() {
  show();
  writeAddress([...selects.map(({ value }) => value), lengths.value.trim().replace(/[\s,]+/g, '-')]);
}

/** Shows what the address asks for: shares.html#8,2,4,128,700-33-4000. */
function showAddress() {
  const [wanted, text] = [readAddress(), '700-33-2500-1200'];
  selects.forEach((select, i) => {
    const choices = CHOICES[select.id].map((value) => [String(value), String(value)]);
    fillSelect(select, choices, CHOICES[select.id].includes(Number(wanted[i])) ? wanted[i] : String(FIRST[select.id]));
  });
  fillSelect(drawn, Object.entries(DRAWN).map(([name, { label }]) => [name, label]), '');
  lengths.value = (wanted[4] ?? text).replaceAll('-', ', ');
  show();
}

drawn.addEventListener('change', () => {
  if (drawn.value !== '') lengths.value = DRAWN[drawn.value].draw(makeRandom()).join(', ');
  change();
});
lengths.addEventListener('input', () => { drawn.value = ''; });
for (const control of [lengths, ...selects]) control.addEventListener('change', change);
window.addEventListener('hashchange', showAddress);
panels.forEach((svg, number) => {
  onPointer(svg, (index) => choose(number, index));
  onArrows(svg, (columns, rows) => {
    const blocks = number === 0 ? shown.split : shown.shares;
    choose(number, clamp((panel === number ? block : 0) + columns + rows, blocks.length - 1));
  });
});
showAddress();
onWidth(draw);
