/*
 * Follows the events of a problem of TIMELINE: replay() tells for each event, in words and as data,
 * what each buffer of shared memory holds after it and what is in flight.
 */
'use strict';

const FORWARD = { qk: 'Q Kᵀ', softmax: 'softmax', pv: 'P V', output: 'O' };
const BACKWARD = {
  qk: 'S', softmax: 'P', dp: 'dP', ds: 'dS', dv: 'dV', dk: 'dK', dq: 'dQ', add: 'add dQ', output: 'dV, dK',
};

/** What a problem computes, by the names of the events. */
function productsOf({ backward }) {
  return backward ? BACKWARD : FORWARD;
}

/* --- Words ----------------------------------------------------------------------------------- */

function plural(count, noun) {
  return `${count} ${noun}${count === 1 ? '' : 's'}`;
}

/** ['a', 'b', 'c']: 'a, b and c' */
function listed(names) {
  if (names.length < 2) return names.join('');
  return `${names.slice(0, -1).join(', ')} and ${names[names.length - 1]}`;
}

function namesOf(items) {
  return listed(items.map((item) => item.name));
}

/** What a copy or a load brings to shared memory. */
function itemOf({ tensor, tile, rows, columns, zeros = 0, group }) {
  const empty = rows !== undefined && zeros === rows[1] - rows[0] + 1;
  const item = { tensor, tile, rows, columns, zeros, group, empty, plural: empty || /[ ,]/.test(tensor) };
  if (empty) return { ...item, name: `zeros instead of ${tensor}`, label: 'zeros' };
  if (tile === undefined) return { ...item, name: tensor, label: tensor.replace('mask ', '') };
  const half = columns ? 'lr'[Math.sign(columns[0])] : '';
  return { ...item, name: `${tensor} of tile ${tile}`, label: `${tensor} ${tile}${half}` };
}

function rowsText({ rows, columns, zeros, empty }) {
  if (rows === undefined || empty) return '';
  return `rows ${rows[0]} to ${rows[1]}${zeros > 0 ? `, zeros after row ${rows[1] - zeros}` : ''}`
    + `${columns ? `, columns ${columns[0]} to ${columns[1]}` : ''}`;
}

function bringText(event, item, buffer, old) {
  const rows = rowsText(item);
  const what = `${item.name}${rows && ` (${rows})`}`;
  const over = old ? ` It overwrites ${old.name}.` : '';
  if (event.op === 'load') {
    return `Load ${what} through registers and store it in buffer ${buffer}: ` +
      `${plural(event.loads, 'load')} per thread.${over}`;
  }
  const none = item.empty ? ' No tile is left, so nothing is read.' : '';
  return `cp.async: start copying ${what} to buffer ${buffer}, ` +
    `${event.copies} × 16 bytes per thread.${none}${over}`;
}

function waitText(event, done, flying) {
  const start = `wait_group<${event.pending}>:`;
  if (done.length + flying.length === 0) return `${start} no copy is in flight.`;
  const complete = done.length > 0 ? `this warp's copies of ${namesOf(done)} are complete`
    : 'nothing to wait for';
  const stays = flying.length === 0 ? 'nothing stays'
    : `${namesOf(flying)} ${flying.length === 1 ? 'stays' : 'stay'}`;
  return `${start} ${complete}, ${stays} in flight.`;
}

function barrierText(visible, read) {
  const parts = [];
  if (visible.length > 0) {
    const one = visible.length === 1 && !visible[0].plural;
    parts.push(`${namesOf(visible)} ${one ? 'is' : 'are'} visible to all threads.`);
  }
  if (read.length > 0) {
    const buffers = read.length === 1 ? 'its buffer' : 'their buffers';
    parts.push(`All warps have read ${namesOf(read)}: ${buffers} can be overwritten.`);
  }
  return `__syncthreads(): ${parts.length > 0 ? parts.join(' ') : 'all warps have arrived.'}`;
}

function countsText(event) {
  const { op, mma, ldmatrix, loads, exps, shuffles, votes, adds } = event;
  return [
    ['qk', 'pv'].includes(op) && !mma && 'fp32 multiply-adds on the CUDA cores',
    mma && `${mma} mma`,
    ldmatrix && `${ldmatrix} ldmatrix`,
    loads && `${plural(loads, 'load')} from shared memory per thread`,
    exps && `${plural(exps, 'exponential')} per thread`,
    shuffles && plural(shuffles, 'shuffle'),
    votes && plural(votes, 'vote'),
    adds && `${adds} floats per thread, which atomics add to the sums`,
  ].filter((text) => text).join(', ');
}

function backwardText(event) {
  const { op, tile } = event;
  if (op === 'output') return 'dV and dK: multiply dK by the scale, and store both.';
  if (op === 'ds') return `dS of tile ${tile} is stored in buffer dS.`;
  if (op === 'look') return 'Read how many blocks have added to these rows of dQ.';
  if (op === 'pass_on') return 'Count the additions of this block, so that the next one may add.';
  return `${BACKWARD[op]} of tile ${tile}: ${countsText(event)}.`;
}

function computeText(event, flying, backward) {
  const { op, tile, reads = [] } = event;
  const meanwhile = flying.length > 0 ? ` Meanwhile in flight: ${namesOf(flying)}.` : '';
  if (backward) return backwardText(event) + meanwhile;
  if (op === 'output') {
    const through = reads.length > 0 ? ', through the buffer of Q' : '';
    return `O: divide it by the sums of its rows and store it${through}.`;
  }
  const isSoftmax = op === 'softmax';
  const stored = isSoftmax && event.stores > 0 ? ' P is stored in buffer P.' : '';
  const masked = isSoftmax && reads.length > 0 ? ' The mask bits are applied.' : '';
  return `${isSoftmax ? 'Softmax' : FORWARD[op]} of tile ${tile}: ${countsText(event)}.` +
    stored + masked + meanwhile;
}

/* --- What each event does to shared memory ---------------------------------------------------- */

/**
 * A list: after each event its text, each buffer with its item, its state and the item that is
 * overwritten, and the items in flight. States: empty; flight, until a wait; waited, until a
 * barrier; ready; own, for what each warp writes for itself.
 */
function replay({ buffers, events, backward }) {
  const now = buffers.map(() => ({ item: undefined, state: 'empty', over: undefined }));
  let flying = [];
  let uncommitted = [];
  let read = []; // tiles, since the last barrier

  function bring(event) {
    const buffer = now[event.buffer];
    const item = itemOf(event);
    const old = buffer.item;
    const isCopy = event.op === 'copy';
    Object.assign(buffer, { item, over: old, state: isCopy ? 'flight' : 'waited' });
    if (isCopy) {
      flying.push(item);
      uncommitted.push(item);
    }
    return bringText(event, item, buffers[event.buffer].name, old);
  }

  function commit(event) {
    const text = `commit_group: group ${event.group} is ${namesOf(uncommitted)}.`;
    uncommitted = [];
    return text;
  }

  function wait(event) {
    const done = flying.filter((item) => event.done.includes(item.group));
    flying = flying.filter((item) => !done.includes(item));
    for (const buffer of now) if (done.includes(buffer.item)) buffer.state = 'waited';
    return waitText(event, done, flying);
  }

  function barrier() {
    const visible = now.filter((buffer) => buffer.state === 'waited');
    for (const buffer of visible) Object.assign(buffer, { state: 'ready', over: undefined });
    const text = barrierText(visible.map((buffer) => buffer.item), read);
    read = [];
    return text;
  }

  function compute(event) {
    for (const index of event.reads || []) {
      const { item } = now[index];
      if (event.op === 'ds') {
        const name = `dS of tile ${event.tile}`;
        now[index] = { item: { name, label: `dS ${event.tile}`, tile: event.tile }, state: 'waited', over: item };
      } else if (event.op === 'output') {
        const rows = { name: "this warp's rows of O", label: 'O', tensor: 'O' };
        now[index] = { item: rows, state: 'own', over: item };
      } else if (item.tile !== undefined && !read.includes(item)) {
        read.push(item);
      }
    }
    const p = buffers.findIndex((buffer) => buffer.name === 'P');
    if (event.op === 'softmax' && p >= 0) {
      const item = { name: `P of tile ${event.tile}`, label: `P ${event.tile}`, tensor: 'P' };
      now[p] = { item, state: 'own' };
    }
    return computeText(event, flying, backward);
  }

  const actions = { load: bring, copy: bring, commit, wait, barrier };
  return events.map((event) => {
    const text = (actions[event.op] || compute)(event);
    const { reads = [] } = event;
    return { text, buffers: now.map((buffer) => ({ ...buffer })), flying: [...flying], reads };
  });
}
