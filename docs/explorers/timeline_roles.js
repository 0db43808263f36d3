/*
 * The steps for Hopper: the events of each role. replayRoles() tells for each column, in words and
 * as data, what all roles do in it, what each buffer holds after it and which wgmma are in flight.
 */
'use strict';

/** The two lines of an event in the chart, with its tile for #. */
const WORDS = {
  qk: 'start|S #', pv: 'start|PV #', dp: 'start|dP #', dv: 'start|dV #', dk: 'start|dK #', dq: 'start|dQ #',
  put: 'write|P #', ds: 'write|dS #', send: 'send|dS #', add: 'add|dQ #', look: 'read|turn', hand_on: 'pass|turn',
  transpose: 'trans-|pose #', stored: 'wait|store', draw: 'take|tile', tell: 'write|tile', learn: 'read|tile',
};

function wordsOf(event) {
  const { op, tile, tensors, role, done } = event;
  switch (op) {
    case 'load': return [op, itemOf(event).label];
    case 'await': return ['wait', shortName(event)];
    case 'arrive': return [isFull(problem, event) ? 'full' : 'free', event.other ? 'other' : shortName(event)];
    case 'turn': case 'pass': return [op, event.id];
    case 'complete': {
      const products = problem.events.filter(({ role: of, group }) => of === role && group >= done[0] && group < done[1]);
      return ['wait', products.length > 1 ? 'both' : products.map((product) => wordsOf(product)[1]).join('')];
    }
    case 'softmax': return problem.backward ? ['exp', `P ${tile}`] : ['soft-', `max ${tile}`];
    case 'output': return problem.backward ? ['write', (tensors ?? ['rows']).join(' ')] : ['O / l'];
    case 'store': return [op, tensors ?? 'O'];
    default: return WORDS[op].replace('#', tile).split('|');
  }
}

function isFull({ barriers }, { barrier }) {
  return barriers[barrier].full;
}

/** What a phase of an mbarrier is about: one or several buffers. */
function subjectsOf({ buffers, barriers }, { barrier, brought }) {
  const { content, buffers: all } = barriers[barrier];
  return content ? [content] : (brought ?? all).map((index) => buffers[index].name);
}

/** The same in short; of tiles of queries without the number, which is too long. */
function shortName(event) {
  return subjectsOf(problem, event).filter((name) => !name.startsWith('other')).join(', ').replace(/^next.*/, 'next');
}

function barrierName(problem, event) {
  return `${isFull(problem, event) ? 'full' : 'empty'} of ${listed(subjectsOf(problem, event))}`;
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

/** The buffers that a product reads. */
function readsOf({ buffer, q = buffer, reads = [buffer, q] }) {
  return reads;
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
  const productName = ({ op, tile }) => `${productsOf(problem)[op]} of tile ${tile}`;
  const holds = (list) => listed(list.map((index) => now[index].item?.name ?? buffers[index].name));
  const buffersOf = ({ barrier, brought = barriers[barrier].buffers }) => brought;

  function end({ barrier, phase }) {
    ended[barrier] = Math.max(ended[barrier], phase + 1);
  }

  const nameOf = (index) => buffers[index].name;

  function write({ buffer, tile }, what, state = 'writing') {
    const item = { name: `${what} of tile ${tile}`, label: `${what} ${tile}` };
    Object.assign(now[buffer], { item, over: undefined, state });
  }

  function load(event) {
    const buffer = now[event.buffer];
    const item = itemOf(event);
    const over = buffer.state === 'empty' ? undefined : buffer.item;
    Object.assign(buffer, { item, over, state: 'flight' });
    const numbers = event.numbers ? ` and ${event.numbers} of these rows` : '';
    return `TMA load of ${item.name} (${rowsText(item)})${numbers} to ${nameOf(event.buffer)}: ${event.count} `
      + `box${event.count === 1 ? '' : 'es'}, whose bytes its full barrier expects.${over ? ` It overwrites ${over.name}.` : ''}`;
  }

  function wait(event) {
    const { phase } = event;
    const list = buffersOf(event);
    const text = `wait at ${barrierName(problem, event)} for parity ${phase & 1}`;
    if (phase < 0) return `${text}: passes at once, nobody has used it.`;
    end(event);
    if (!isFull(problem, event)) return `${text}: phase ${phase} has ended, all have read ${holds(list)}.`;
    for (const index of list) {
      if (now[index].state === 'flight') Object.assign(now[index], { state: 'ready', over: undefined });
    }
    return `${text}: phase ${phase} has ended, ${holds(list)} ${list.length > 1 ? 'are' : 'is'} there.`;
  }

  function arrival(event, list) {
    if (event.other) return 'block 1 may send again.';
    const full = isFull(problem, event);
    const isLast = last.get(`${event.barrier},${event.phase}`) === event;
    const states = (of, state) => isLast && of.forEach((index) => Object.assign(now[index], { state }));
    const writing = list.filter((index) => now[index].state === 'writing');
    if (isLast) end(event);
    if (full && writing.length) {
      states(writing, 'ready');
      return 'this warp has written its part.';
    }
    if (full && nameOf(list[0]).startsWith('V')) return 'no product reads it any more, so a consumer may store its O there.';
    if (full) return problem.backward ? 'it writes nothing.' : 'shown to all that read it.';
    states(list, 'released');
    return `done with ${holds(list)}.${isLast ? ` This ends phase ${event.phase}: it can be overwritten.` : ''}`;
  }

  function start(event) {
    for (const index of readsOf(event)) if (now[index].state !== 'writing') now[index].state = 'reading';
    return `start ${productName(event)}: ${event.count} wgmma, group ${event.group}.`;
  }

  function transpose(event) {
    now[event.source].state = 'reading';
    write(event, 'Vᵀ');
    return `transpose a part of V of tile ${event.tile} into ${nameOf(event.buffer)}: ${event.count} ldmatrix.`;
  }

  function complete({ role, at, pending, done }) {
    const names = (list) => listed(list.map(({ event }) => productName(event) + (products[role].some(
      ({ event: { op, tile, group } }) => op === event.op && tile === event.tile && group !== event.group)
      ? ` (group ${event.group})` : '')));
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
    return 'tma_store_wait: TMA has read what was stored before, if anything.';
  }

  function softmax(event) {
    const { tile, count, shuffles, votes, buffer } = event;
    const counts = countsText({ exps: count, shuffles, votes });
    if (buffer !== undefined) write(event, 'P');
    return `${problem.backward ? 'P' : 'softmax'} of tile ${tile}: ${counts}${buffer === undefined ? '' : `, written to ${nameOf(buffer)}`}.`;
  }

  function send(event) {
    const own = event.other;
    if (!own) write(event, 'dS', 'flight');
    return `send dS of tile ${event.tile} to ${own ? 'block 1, and expect as many bytes from there' : nameOf(event.buffer)}.`;
  }

  function output(event) {
    if (event.tensors) return `write ${listed(event.tensors)}.`;
    return problem.backward ? fill(event, 'rows', `write rows of dV or dK to ${nameOf(event.buffer)}.`)
      : fill(event, 'O', 'divide O by the sums of its rows and write it.');
  }

  const actions = {
    load, await: wait, transpose, complete, stored, softmax, send, output,
    qk: start, pv: start, dp: start, dv: start, dk: start, dq: start,
    arrive: (event) => `arrive at ${barrierName(problem, event)}${event.other ? ' of block 1' : ''}: ${arrival(event, buffersOf(event))}`,
    turn: ({ id }) => `its turn: the others have arrived at named barrier ${id}.`,
    pass: ({ id }) => `pass the turn on: arrive at named barrier ${id}.`,
    put: (event) => {
      write(event, 'P');
      return `write P of tile ${event.tile} to ${nameOf(event.buffer)}.`;
    },
    ds: (event) => {
      const from = event.source === undefined ? '' : ` with P from ${nameOf(event.source)}`;
      write(event, 'dS');
      return `compute dS of tile ${event.tile}${from}, and write it to ${nameOf(event.buffer)}.`;
    },
    add: ({ tile, count }) => `add dQ of tile ${tile} to its sums in device memory: ${count} floats per thread.`,
    look: () => 'read how many blocks have added to the next rows of dQ.',
    hand_on: () => 'count the additions of this warp, so that the next block may add.',
    store: ({ buffer, role, tensors = 'O' }) => {
      Object.assign(now[buffer], { state: 'flight', storing: role });
      return `TMA store of ${tensors} from ${nameOf(buffer)}.`;
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
    const phases = buffers.map((_, i) => barriers.flatMap(({ buffers: of, full, content = '' }, b) => (
      of.includes(i) ? [`${content && `${content} `}${full ? 'full' : 'empty'} in phase ${ended[b]}`] : [])).join(', '));
    const reads = flying.flatMap(({ event }) => readsOf(event));
    return {
      text: texts.join(' '), buffers: now.map((buffer) => ({ ...buffer })), flying, phases, reads,
    };
  });
}

/* --- Rows of the chart ------------------------------------------------------------------------ */

function roleRows({ roles, events }) {
  return roles.flatMap((name, role) => {
    const multiplies = events.some((event) => event.role === role && event.group !== undefined);
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
        addLabel(layers.labels, last, wordsOf(event), 'small');
      }
      return;
    }
    for (const { event, begin, end } of spansOfProducts(problem, role)) {
      const place = box(begin, end, row);
      const half = { ...place, height: place.height / 2, y: place.y
        + (['qk', 'dp'].includes(event.op) ? 0 : place.height / 2) };
      addBar(layers, half, 'flight');
    }
  });
}

function rolesText() {
  const { events, roles, blocks, backward } = problem;
  const softmax = events.filter(({ op }) => op === 'softmax');
  const overlapped = softmax.filter(({ role, at }) => moments[at].flying.some(
    ({ event }) => event.role === role));
  const [own, size, exps] = backward ? ['K', problem.block_n, 'Exponentials'] : ['Q', problem.block_m, 'Softmax'];
  const firsts = [...new Set(events.filter(({ tensor }) => tensor === own).map(
    ({ rows }) => Math.floor(rows[0] / size) * size))].slice(0, backward ? 1 : undefined);
  return `Thread block 0 of ${blocks}, with ${plural(roles.length, 'role')}. ${backward ? 'Keys' : 'Queries'} from `
    + `${listed(firsts)} on, ${tilesOf(problem).text}. ${exps} with products `
    + `of its own warpgroup in flight: ${overlapped.length} of ${softmax.length}.`;
}
