/*
 * The steps from 07 on: the events of each role. replayRoles() tells for each column, in words and
 * as data, what all roles do in it, what each buffer holds after it and which wgmma are in flight.
 */
'use strict';

/** The two lines of an event in the chart. */
const WORDS = {
  load: ({ tensor, tile = '' }) => ['load', `${tensor} ${tile}`],
  await: ({ barrier }) => ['wait', shortName(barrier)],
  arrive: ({ barrier }) => [problem.barriers[barrier].full ? 'full' : 'free', shortName(barrier)],
  turn: ({ id }) => ['turn', id],
  pass: ({ id }) => ['pass', id],
  qk: ({ tile }) => ['start', `S ${tile}`],
  pv: ({ tile }) => ['start', `PV ${tile}`],
  complete: ({ role, done }) => {
    const products = problem.events.filter((event) => event.role === role && event.group >= done[0]
      && event.group < done[1]);
    return ['wait', products.length > 1 ? 'both' : products.map(
      ({ op, tile }) => `${op === 'qk' ? 'S' : 'PV'} ${tile}`).join('')];
  },
  softmax: ({ tile }) => ['soft-', `max ${tile}`],
  transpose: ({ tile }) => ['trans-', `pose ${tile}`],
  output: () => ['O / l'],
  store: () => ['store', 'O'],
  stored: () => ['wait', 'store'],
  draw: () => ['take', 'tile'],
  tell: () => ['write', 'tile'],
  learn: () => ['read', 'tile'],
};

/** The name of the buffer that an mbarrier is for; of tiles of queries without the number, which is too long. */
function shortName(barrier) {
  return problem.buffers[problem.barriers[barrier].buffer].name.replace(/^next.*/, 'next');
}

function barrierName({ buffers, barriers }, index) {
  const { buffer, full } = barriers[index];
  return `${full ? 'full' : 'empty'} of ${buffers[buffer].name}`;
}

/** wgmma that a role has started and not waited for, from column to column. */
function spansOfProducts({ events }, role) {
  const spans = [];
  for (const event of events.filter((other) => other.role === role)) {
    if (event.group !== undefined) spans.push({ event, begin: event.at, end: Infinity });
    if (event.op !== 'complete') continue;
    const done = ({ group }) => group >= event.done[0] && group < event.done[1];
    for (const span of spans) if (done(span.event)) span.end = event.at;
  }
  return spans;
}

function replayRoles(problem) {
  const { buffers, barriers, events, roles } = problem;
  const now = buffers.map(() => ({ item: undefined, state: 'empty', over: undefined }));
  const ended = barriers.map(() => 0); // phases
  const products = roles.map((_, role) => spansOfProducts(problem, role));
  const last = new Map(); // arrival of each phase
  for (const event of events) {
    if (event.op === 'arrive') last.set(`${event.barrier},${event.phase}`, event);
  }
  const productName = ({ op, tile }) => `${PRODUCTS[op]} of tile ${tile}`;
  const holds = (index) => now[index].item?.name ?? buffers[index].name;

  function load(event) {
    const buffer = now[event.buffer];
    const item = itemOf(event);
    const over = buffer.state === 'empty' ? undefined : buffer.item;
    Object.assign(buffer, { item, over, state: 'flight' });
    return `TMA load of ${item.name} (${rowsText(item)}) to ${buffers[event.buffer].name}: `
      + `${event.count === 1 ? '1 box' : `${event.count} boxes`}, whose bytes its full barrier expects.${over ? ` It overwrites ${over.name}.` : ''}`;
  }

  function wait({ barrier, phase }) {
    const { buffer, full } = barriers[barrier];
    const text = `wait at ${barrierName(problem, barrier)} for parity ${phase & 1}`;
    if (phase < 0) return `${text}: passes at once, nobody has used it.`;
    if (!full) return `${text}: phase ${phase} has ended, all have read ${holds(buffer)}.`;
    if (now[buffer].state === 'flight') {
      Object.assign(now[buffer], { state: 'ready', over: undefined });
      ended[barrier] += 1;
    }
    return `${text}: phase ${phase} has ended, ${holds(buffer)} is there.`;
  }

  function arrive(event) {
    const { buffer, full } = barriers[event.barrier];
    const name = barrierName(problem, event.barrier);
    const isLast = last.get(`${event.barrier},${event.phase}`) === event;
    if (isLast) ended[event.barrier] += 1;
    if (full && now[buffer].state === 'writing') {
      if (isLast) now[buffer].state = 'ready';
      return `arrive at ${name}: this warp has written its part.`;
    }
    if (full && buffers[buffer].name.startsWith('V')) {
      return `arrive at ${name}: no product reads it any more, so a consumer may store its O there.`;
    }
    if (full) return `arrive at ${name}: shown to all that read it.`;
    if (isLast) now[buffer].state = 'released';
    return `arrive at ${name}: done with ${holds(buffer)}.`
      + `${isLast ? ` This ends phase ${event.phase}: it can be overwritten.` : ''}`;
  }

  function start(event) {
    for (const index of [event.buffer, event.q ?? event.buffer]) now[index].state = 'reading';
    return `start ${productName(event)}: ${event.count} wgmma, group ${event.group}.`;
  }

  /** Of step 12: V, in which keys become columns, for wgmma. */
  function transpose({ tile, buffer, source, count }) {
    const item = { name: `V of tile ${tile}, transposed`, label: `Vᵀ ${tile}` };
    now[source].state = 'reading';
    Object.assign(now[buffer], { item, over: undefined, state: 'writing' });
    return `transpose a part of V of tile ${tile} into ${buffers[buffer].name}: ${count} ldmatrix.`;
  }

  function complete({ role, at, pending, done }) {
    const names = (list) => listed(list.map(({ event }) => productName(event)));
    const ready = products[role].filter(({ event: { group } }) => group >= done[0]
      && group < done[1]);
    const rest = products[role].filter(({ begin, end }) => begin < at && end > at);
    return `wgmma_wait<${pending}>: ${names(ready)} ${ready.length > 1 ? 'are' : 'is'} complete, `
      + `${rest.length ? `${names(rest)} stays` : 'nothing stays'} in flight.`;
  }

  /** O may be where Q is: of all consumers, some of which still multiply. */
  function fill({ buffer, at }, name, text) {
    const isRead = events.some((other) => other.q === buffer && other.at >= at);
    if (!isRead) Object.assign(now[buffer], { item: { name, label: name }, state: 'own' });
    return text;
  }

  function stored({ role }) {
    for (const buffer of now) {
      if (buffer.storing === role) Object.assign(buffer, { state: 'released', storing: undefined });
    }
    return 'tma_store_wait: TMA has read the O before, if any.';
  }

  const actions = {
    load, await: wait, arrive, transpose, qk: start, pv: start, complete, stored,
    turn: ({ id }) => `its turn: the others have arrived at named barrier ${id}.`,
    pass: ({ id }) => `pass the turn on: arrive at named barrier ${id}.`,
    softmax: ({ tile, count, shuffles, votes }) => `softmax of tile ${tile}: `
      + `${countsText({ op: 'softmax', exps: count, shuffles, votes })}.`,
    output: (event) => fill(event, 'O', 'divide O by the sums of its rows and write it.'),
    store: (event) => {
      Object.assign(now[event.buffer], { state: 'flight', storing: event.role });
      return `TMA store of O from ${buffers[event.buffer].name}.`;
    },
    draw: () => 'take the number of the next tile of queries from the atomic counter.',
    tell: (event) => fill(event, 'number', 'write this number to next.'),
    learn: () => 'read the number of the next tile of queries.',
  };

  const columns = Math.max(...events.map(({ at }) => at)) + 1;
  return [...Array(columns).keys()].map((column) => {
    const own = events.filter(({ at }) => at === column);
    const texts = own.map((event) => `${roles[event.role]}: ${actions[event.op](event)}`);
    const waiting = events.filter(({ from, at }) => from <= column && column < at);
    const names = listed(waiting.map(({ role }) => roles[role]));
    if (waiting.length) texts.push(`Waiting: ${names}.`);
    const flying = products.flat().filter(({ begin, end }) => begin <= column && column < end);
    const phases = buffers.map((_, i) => barriers.flatMap(({ buffer, full }, b) => (
      buffer === i ? [`${full ? 'full' : 'empty'} in phase ${ended[b]}`] : [])).join(', '));
    const reads = flying.flatMap(({ event }) => [event.buffer, event.q ?? event.buffer]);
    return {
      text: texts.join(' '), buffers: now.map((buffer) => ({ ...buffer })), flying, phases, reads,
    };
  });
}

/* --- Rows of the chart ------------------------------------------------------------------------ */

/** A role, and below it its wgmma in flight if it starts any. */
function roleRows({ roles, events }) {
  return roles.flatMap((name, role) => {
    const multiplies = events.some((event) => event.role === role && event.op === 'qk');
    return [{ name, role }, ...(multiplies ? [{ name: '\u2514 wgmma', role, products: true }] : [])];
  });
}

function drawRoles(layers) {
  roleRows(problem).forEach(({ role, products }, i) => {
    const row = problem.buffers.length + i;
    if (!products) {
      for (const event of problem.events.filter((other) => other.role === role)) {
        const place = box(event.from, event.at + 1, row);
        const isWait = ['await', 'turn', 'stored', 'complete'].includes(event.op);
        addBar(layers, place, isWait ? 'wait' : event.op);
        const last = { ...place, x: event.at * column, width: column };
        addLabel(layers.labels, last, WORDS[event.op](event), 'small');
      }
      return;
    }
    for (const { event, begin, end } of spansOfProducts(problem, role)) {
      const place = box(begin, end, row);
      const half = { ...place, height: place.height / 2, y: place.y
        + (event.op === 'pv' ? place.height / 2 : 0) };
      addBar(layers, half, 'flight');
    }
  });
}

/** Softmax of a tile while products of the same consumer, or of any, are in flight. */
function rolesText() {
  const { events, roles, block_n: keys, blocks, kv_len: all } = problem;
  const softmax = events.filter(({ op }) => op === 'softmax');
  const own = softmax.filter(({ role, at }) => moments[at].flying.some(
    ({ event }) => event.role === role));
  const queries = [...new Set(events.filter(({ tensor }) => tensor === 'Q').map(
    ({ rows }) => Math.floor(rows[0] / problem.block_m) * problem.block_m))];
  return `Thread block 0 of ${blocks}, with ${plural(roles.length, 'role')}. Queries from `
    + `${listed(queries)} on, ${Math.ceil(all / keys)} tiles of ${keys} keys. Softmax with products `
    + `of its own warpgroup in flight: ${own.length} of ${softmax.length}.`;
}
