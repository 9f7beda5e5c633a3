// Compare: the same traffic through every algorithm, replayed by the server in virtual time.

import { algorithms } from '../algorithms.js';
import * as api from '../api.js';
import { columnsChart, roundUp } from '../chart.js';
import { failure, field, h, pageHead, panel, select, show, table } from '../dom.js';
import { number, plural, share, wait } from '../format.js';
import { kinds, pasted, traffic, worst } from '../traffic.js';

const UNITS = { s: 1_000_000, min: 60_000_000, h: 3_600_000_000 };
const COLUMNS = 60;
const EXAMPLE = Array.from({ length: 12 }, (_, at) => `{"t_us": ${at < 6 ? 8_000_000 + at * 300_000 : 10_000_000 + at * 300_000}}`).join('\n');

export function compare({ signal }) {
  const kind = field('Traffic', select(kinds, 'edge'));
  const count = field('Limit', h('input', { type: 'number', min: 1, max: 500, value: 20 }), 'requests');
  const period = field('Per', h('input', { type: 'number', min: 1, max: 1000, value: 10 }));
  const unit = field('Unit', select(Object.keys(UNITS), 's'));
  const load = field('Load', h('input', { type: 'range', min: 0.2, max: 3, step: 0.1, value: 1.5 }));
  const times = h('output', { class: 'note' });
  load.node.append(times);
  const seed = field('Seed', h('input', { type: 'number', min: 0, max: 99999, value: 7 }));
  const trace = field('Trace, one JSON object per line', h('textarea', { rows: 8, value: EXAMPLE, spellcheck: 'false' }),
    'As for tollgate replay: t_us, and attributes, cost or op where wanted. All lines share one bucket.');
  trace.node.classList.add('whole');
  const results = h('div', { class: 'stack' });
  let run = new AbortController();

  async function replay() {
    run.abort();
    run = new AbortController();
    const { signal: current } = run;
    const window = Number(period.control.value) * UNITS[unit.control.value];
    const limit = Number(count.control.value);
    times.textContent = `${load.control.value} times the limit`;
    seed.node.hidden = kind.control.value !== 'random';
    load.node.hidden = kind.control.value === 'pasted';
    trace.node.hidden = !load.node.hidden;
    if (!(limit >= 1 && limit <= 500 && window >= 1)) return;
    let sent;
    try {
      sent = kind.control.value === 'pasted' ? pasted(trace.control.value, window)
        : traffic(kind.control.value, { count: limit, window, load: Number(load.control.value), seed: Number(seed.control.value) });
      trace.complain(null);
    } catch (error) {
      return trace.complain(error.message);
    }
    const text = `${period.control.value}${unit.control.value}`;
    try {
      const races = [];
      // One after another: a server replays only a few traces concurrently.
      for (const [name, algorithm] of Object.entries(algorithms)) {
        const rule = { name, key: 'global', algorithm: name, ...algorithm.per(limit, text) };
        const { lines } = await api.replay([rule], sent.trace, current);
        races.push(race(algorithm, rule, sent, lines, window));
      }
      show(results, report(races, sent, limit, { period: text, window }));
    } catch (problem) {
      if (!current.aborted) show(results, panel('Result', {}, failure(problem, replay)));
    }
  }

  let typing;
  const form = h('form', { class: 'fields compact pad', onsubmit: (event) => event.preventDefault() },
    [kind, count, period, unit, load, seed, trace].map(({ node }) => node));
  form.addEventListener('input', () => {
    clearTimeout(typing);
    typing = setTimeout(replay, 200);
  });
  signal.addEventListener('abort', () => { clearTimeout(typing); run.abort(); });
  replay();
  return [
    pageHead('Compare', 'The same requests at the same instants, through all six algorithms with the same limit. The server replays them in virtual time.'),
    panel('Traffic and limit', {}, form),
    results,
  ];
}

/** What one algorithm made of the traffic. A request that has to wait counts when it leaves. */
function race(algorithm, rule, { trace, length }, lines, window) {
  const checks = lines.flatMap((line, at) => (line.op === 'check' ? [{ ...line, cost: trace[at].cost ?? 1 }] : []));
  const admitted = checks.filter(({ allowed }) => allowed);
  const left = admitted.map(({ t_us: at, delay_us: delay, cost }) => [at + delay, cost]);
  return {
    name: algorithm.name,
    limit: rule.limit,
    requests: checks.length,
    admitted: admitted.length,
    worst: worst(left, window),
    delay: Math.max(0, ...admitted.map(({ delay_us: delay }) => delay)),
    columns: columnsOf(left, length),
    offered: columnsOf(checks.map(({ t_us: at, cost }) => [at, cost]), length),
  };
}

function columnsOf(pairs, length) {
  const columns = new Array(COLUMNS).fill(0);
  for (const [at, cost] of pairs) {
    const place = Math.floor((at / length) * COLUMNS);
    if (place >= 0 && place < COLUMNS) columns[place] += cost;
  }
  return columns;
}

function report(races, { length }, limit, { period, window }) {
  // A mark for each window where there are few.
  const parts = length / window <= 6 ? Math.round(length / window) : 4;
  const top = roundUp(Math.max(1, ...races.flatMap(({ offered, columns }) => [...offered, ...columns])));
  const worstOf = (race) => (race.worst > limit
    ? h('span', { class: 'over' }, `${number(race.worst)}, ${share(race.worst, limit)}`) : number(race.worst));
  const columns = [{ name: 'Algorithm', grow: true }, { name: 'Limit', wide: true }, { name: 'Admitted', number: true },
    { name: 'Refused', number: true, wide: true }, { name: `Worst ${period}`, number: true }, { name: 'Longest wait', number: true, wide: true }];
  const rows = races.map((race) => [race.name, h('code', {}, race.limit), number(race.admitted),
    number(race.requests - race.admitted), worstOf(race), race.delay > 0 ? wait(race.delay / 1000) : '–']);
  return [
    panel('Totals', { beside: h('span', { class: 'note' }, `of ${plural(races[0].requests, 'request')}; worst is the most admitted in any ${period}`) },
      table('Totals', columns, rows)),
    panel('Admitted over time', { beside: h('span', { class: 'keys' }, h('span', { class: 'key note' }, 'admitted'), h('span', { class: 'key behind note' }, 'sent')) },
      h('div', { class: 'races' }, races.map((race) => h('div', { class: 'race' },
        h('div', {}, h('h3', {}, race.name), h('span', { class: 'note' }, `${number(race.admitted)} admitted, worst ${period}: ${number(race.worst)}`)),
        columnsChart({
          label: `${race.name}: ${race.admitted} of ${race.requests} admitted, at most ${race.worst} in any ${period}`,
          values: race.columns, behind: race.offered, top,
          ticks: Array.from({ length: parts + 1 }, (_, at) => [at / parts, wait((at * length) / parts / 1000)]),
          describe: (at) => `${wait((at * length) / COLUMNS / 1000)}: ${race.columns[at]} of ${race.offered[at]}`,
        }))))),
  ];
}
