// Violations: refusals on record, narrowed down, over time, and to take away.

import * as api from '../api.js';
import { columnsChart, roundUp } from '../chart.js';
import { empty, failure, field, h, notice, pageHead, panel, select, show, table } from '../dom.js';
import { clock, day, left, minute, none, number, plural, stamp } from '../format.js';
import { live } from '../live.js';

const PAGE = 1000;
/** Rows looked at for the time line, and rows of an export. */
const MOST_DRAWN = 5000;
const MOST_EXPORTED = 100_000;
const SHOWN = 100;
const COLUMNS = 60;
const SPANS = { '15min': 15, '1h': 60, '6h': 360, '24h': 1440, '7d': 10_080, '30d': 43_200 };
const TEXTS = [['user_id', 'User'], ['ip', 'Address'], ['endpoint', 'Endpoint'], ['rule', 'Rule']];
const CSV = ['violation_id', 'requested_at', 'count', 'rule_id', 'rule_name', 'bucket_key', 'user_id', 'ip_address', 'endpoint', 'tokens_at_time'];

export function violations({ query, signal }) {
  const texts = TEXTS.map(([name, label]) => [name, field(label, h('input', { value: query.get(name) ?? '', autocomplete: 'off', spellcheck: 'false' }))]);
  const span = field('Time', select([...Object.keys(SPANS).map((name) => [name, `last ${name}`]), ['between', 'between …']], query.get('since') ?? '1h'));
  const from = field('From', h('input', { type: 'datetime-local' }));
  const until = field('Until', h('input', { type: 'datetime-local' }));
  const places = Object.fromEntries([...texts, ['since', from], ['until', until]]);
  const timeline = h('div', {});
  const listing = h('div', {});
  const news = h('span', { class: 'note' });
  let [rows, shown, heard, run] = [[], SHOWN, 0, new AbortController()];

  /** What is asked for. Spans become instants, so that pages fit together while time goes on. */
  function filter() {
    const given = Object.fromEntries(texts.map(([name, { control }]) => [name, control.value.trim()]));
    const now = Date.now();
    const minutes = SPANS[span.control.value];
    const instant = ({ control }, usual) => (control.value ? new Date(control.value) : new Date(usual));
    const [since, end] = minutes ? [new Date(now - minutes * 60_000), new Date(now)]
      : [instant(from, now - 86_400_000), instant(until, now)];
    return { given, since, end, parameters: { ...given, since: since.toISOString(), until: end.toISOString() } };
  }

  async function collect(parameters, most, current, progress = () => {}) {
    const found = [];
    let cursor = null;
    do {
      const page = await api.violations({ ...parameters, cursor, limit: Math.min(PAGE, most - found.length) }, current);
      found.push(...page.violations);
      cursor = page.next;
      progress(found.length);
    } while (cursor && found.length < most);
    return { found, all: !cursor };
  }

  async function look() {
    run.abort();
    run = new AbortController();
    const { signal: current } = run;
    const { given, since, end, parameters } = filter();
    from.node.hidden = until.node.hidden = span.control.value !== 'between';
    history.replaceState(null, '', `#/violations?${new URLSearchParams(Object.entries({ ...given, since: span.control.value }).filter(([, value]) => value))}`);
    for (const { complain } of Object.values(places)) complain(null);
    try {
      const { found, all } = await collect(parameters, MOST_DRAWN, current);
      [rows, shown, heard] = [found, SHOWN, 0];
      news.textContent = '';
      show(timeline, found.length > 0 ? drawn(found, since, end, all) : null);
      list();
    } catch (problem) {
      if (current.aborted) return;
      if (!(problem instanceof api.Problem)) throw problem;
      places[problem.path]?.complain(problem.detail);
      show(timeline);
      show(listing, failure(problem, look));
    }
  }

  function list() {
    if (rows.length === 0) return show(listing, empty('Nothing was refused here.', 'Look further back, or ask for less.'));
    const columns = [{ name: 'Time' }, { name: 'Count', number: true }, { name: 'Rule' }, { name: 'Key', grow: true },
      { name: 'User', wide: true }, { name: 'Address', wide: true }, { name: 'Endpoint', wide: true }, { name: 'Left', number: true, wide: true }];
    show(listing, table('Violations', columns, rows.slice(0, shown).map((row) => [
      stamp(row.requested_at), number(row.count), row.rule_name ?? none, h('code', {}, row.bucket_key),
      row.user_id ?? none, row.ip_address ?? none, row.endpoint ?? none, left(row.tokens_at_time)])),
    rows.length > shown && h('p', { class: 'pad' }, h('button', { type: 'button', onclick: () => { shown += SHOWN; list(); } },
      `Show more of ${number(rows.length)}`)));
  }

  async function download() {
    save.disabled = true;
    try {
      const { found, all } = await collect(filter().parameters, MOST_EXPORTED, signal, (count) => { save.textContent = `${number(count)} rows …`; });
      offer(csv(found), 'violations.csv');
      notice(all ? `${plural(found.length, 'row')} exported` : `The newest ${plural(found.length, 'row')} exported; narrow it down for the others`);
    } catch (problem) {
      if (signal.aborted) return;
      if (!(problem instanceof api.Problem)) throw problem;
      notice(`${problem.title}: ${problem.detail}`);
    } finally {
      save.disabled = false;
      save.textContent = 'Export CSV';
    }
  }

  const save = h('button', { type: 'button', onclick: download }, 'Export CSV');
  const form = h('form', { class: 'fields compact pad', onsubmit: (event) => { event.preventDefault(); look(); } },
    texts.map(([, { node }]) => node), span.node, from.node, until.node,
    h('div', { class: 'actions' }, h('button', { class: 'primary' }, 'Search'), save));
  span.control.addEventListener('change', look);
  live.on('violation', signal, () => {
    heard += 1;
    news.textContent = `${number(heard)} new since; search again to see them`;
  });
  signal.addEventListener('abort', () => run.abort());
  look();
  return [
    pageHead('Violations', 'Refusals on record, newest first. A row counts the refusals of one second that have the same key, user, address and endpoint.'),
    panel('Look for', {}, form),
    panel('Over time', { beside: news }, timeline, listing),
  ];
}

/** Refusals over the time that was asked for. */
function drawn(rows, since, end, all) {
  // Where there are more rows than are looked at, the time line begins with the oldest of these.
  const start = all ? since.getTime() : new Date(rows.at(-1).requested_at).getTime();
  const length = Math.max(1, end.getTime() - start);
  const values = new Array(COLUMNS).fill(0);
  for (const { requested_at: at, count } of rows) {
    const place = Math.floor(((new Date(at).getTime() - start) / length) * COLUMNS);
    values[Math.max(0, Math.min(COLUMNS - 1, place))] += count;
  }
  const total = values.reduce((sum, value) => sum + value, 0);
  const name = length > 2 * 86_400_000 ? day : length > 600_000 ? minute : clock;
  return [columnsChart({
    label: `${plural(total, 'refusal')} over time, at most ${Math.max(...values)} in a column`,
    values, top: roundUp(Math.max(...values)), kind: 'refused',
    ticks: Array.from({ length: 4 }, (_, at) => [at / 3, name(start + (at * length) / 3)]),
    describe: (at) => `${clock(start + (at * length) / COLUMNS)}: ${plural(values[at], 'refusal')}`,
  }), h('p', { class: 'note pad' }, `${plural(total, 'refusal')} in ${plural(rows.length, 'row')}`, !all && ', the newest; narrow it down to see the others')];
}

/** A cell that a spreadsheet would take for a formula begins with an apostrophe: names come from callers. */
function csv(rows) {
  const cell = (value) => {
    const text = value === null || value === undefined ? '' : String(value);
    const safe = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  return [CSV.join(','), ...rows.map((row) => CSV.map((name) => cell(row[name])).join(','))].join('\r\n');
}

function offer(text, name) {
  const address = URL.createObjectURL(new Blob([text], { type: 'text/csv' }));
  const link = h('a', { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
