// Overview: how much is allowed and refused, how fast, and whether everything is well.

import { secondsChart } from '../chart.js';
import { empty, every, facts, failure, h, keyLink, pageHead, panel, show, table, tag } from '../dom.js';
import { bytes, clock, compact, micros, number, plural, share, wait } from '../format.js';
import { live } from '../live.js';

const REFRESH_MS = 5000;
const RECENT = 12;

export function overview({ signal }) {
  const tiles = h('div', { class: 'tiles' });
  const chart = secondsChart();
  const keys = h('div', {});
  const rules = h('div', {});
  const health = h('div', {});
  const recent = h('div', {});
  const trouble = h('div', {});
  const age = h('p', { class: 'note age', hidden: true });
  const parts = [
    tiles,
    panel('Decisions per second', { beside: h('span', { class: 'note' }, 'this node only, up to the last 15 minutes') }, chart.node),
    h('div', { class: 'columns three' },
      panel('Most refused keys', {}, keys), panel('Rules', {}, rules), panel('Health', {}, health)),
    panel('Refusals as they happen', {}, recent),
  ];
  let latency = null;
  let refusals = [];

  function second() {
    if (!live.stats) return;
    chart.update(live.stats.per_second);
    show(tiles, numbers(live.stats, latency ?? live.stats.latency_us));
  }

  function all(stats) {
    show(trouble);
    second();
    show(keys, topKeys(stats.top_refused));
    show(rules, topRules(stats.rules));
    show(health, healthOf(stats));
  }

  function refusal(event) {
    if (event) refusals = [event, ...refusals].slice(0, RECENT);
    show(recent, refusals.length > 0 ? violationTable(refusals) : empty('Nothing was refused since this page was opened.',
      h('a', { href: '#/violations' }, 'Look at earlier ones'), ' or cause one in the ', h('a', { href: '#/playground' }, 'playground'), '.'));
  }

  /** Numbers of a server that no longer answers are grey and have their age. */
  function drawAge() {
    const old = live.lost && live.stats !== null;
    for (const part of parts) part.classList.toggle('stale', old);
    age.hidden = !old;
    if (old) age.textContent = `as of ${clock(Date.now() - live.age())}, ${wait(Math.floor(live.age() / 1000) * 1000)} ago`;
  }

  const failed = (problem) => { if (!live.stats) show(trouble, failure(problem, refresh)); };
  const refresh = () => live.refresh(signal).catch((problem) => { if (!signal.aborted) failed(problem); });
  live.on('refreshed', signal, all);
  live.on('failed', signal, failed);
  live.on('stats', signal, (event) => {
    latency = { p50: event.p50_us, p99: event.p99_us };
    second();
  });
  live.on('violation', signal, refusal);
  live.on('store', signal, refresh);
  live.on('rules', signal, refresh);
  every(REFRESH_MS, signal, refresh);
  live.on('lost', signal, drawAge);
  every(1000, signal, drawAge);
  refusal(null);
  if (live.stats) all(live.stats);
  else refresh();

  return [pageHead('Overview', null, age), trouble, ...parts];
}

function numbers({ per_second: seconds, totals, decided, uptime_s: uptime }, latency) {
  const sum = (values, last) => values.slice(-last).reduce((all, value) => all + value, 0);
  const [allowed, refused] = [sum(seconds.allowed, 60), sum(seconds.refused, 60)];
  return [
    tile('Allowed', number(seconds.allowed.at(-1) ?? 0), '/s', `${compact(allowed)} in the last minute`),
    tile('Refused', number(seconds.refused.at(-1) ?? 0), '/s', `${share(refused, allowed + refused)} of the last minute`),
    tile('Decided within', micros(latency.p50), '', `99 of 100 within ${micros(latency.p99)}`),
    tile('Since the start', compact(decided), '', `up for ${wait(uptime * 1000)}${totals.shadow_refused > 0
      ? `; ${compact(totals.shadow_refused)} refused in shadow mode only` : ''}`),
    tile('Without the store', number(live.degraded()), ' last minute', `${compact(totals.degraded)} since the start`),
  ];
}

function tile(name, value, unit, note) {
  return h('div', { class: 'tile' }, h('h2', {}, name), h('p', { class: 'value' }, value, h('small', {}, unit)), h('p', { class: 'note' }, note));
}

function topKeys(top) {
  if (top.length === 0) return empty('Nobody was refused yet.');
  return table('Most refused keys', [{ name: 'Key', grow: true }, { name: 'Rule', wide: true }, { name: 'Refused', number: true }],
    top.slice(0, 10).map(({ key, rule, refused }) => [keyLink(key), rule, number(refused)]));
}

function topRules(rules) {
  if (rules.length === 0) return empty('No rule has applied yet.', 'Numbers appear with the first decision.');
  return table('Rules', [{ name: 'Rule', grow: true }, { name: 'Allowed', number: true }, { name: 'Refused', number: true }],
    rules.slice(0, 10).map(({ rule, allowed, refused, shadow_refused: trial }) => [
      rule, compact(allowed), trial > 0 ? h('span', { title: 'in shadow mode: counted, not refused' }, `(${compact(trial)})`) : compact(refused)]));
}

function healthOf({ store, rule_set: set, violations, degraded, version }) {
  const known = (name, value, form = number) => value !== undefined && value !== null && [name, form(value)];
  return facts([
    ['Store', [tag(store.up ? 'good' : 'bad', store.up ? 'up' : 'down'), ' ', store.kind === 'memory' ? 'in memory' : store.shown]],
    known('Buckets', store.buckets), known('Memory', store.bytes, bytes), known('Evicted when idle', store.evictions), known('Overflowed', store.overflow),
    known('In flight', store.in_flight), known('Outages', store.outages), known('Clock steps', store.clock_steps),
    ['Rules', [tag(set.error ? 'bad' : 'good', set.error ? 'old' : 'fresh'), ' ', plural(set.count, 'rule'), set.version ? `, version ${set.version}` : '']],
    ['From', h('span', { class: 'path' }, set.source)],
    violations && ['Violations', [violations.error ? h('span', { title: violations.error }, tag('bad', 'not written'), ' ') : '', `${number(violations.written)} written, ${number(violations.dropped)} dropped`]],
    ...degraded.map(({ policy, reason, decisions }) => [`Failed ${policy}`, `${number(decisions)}, ${reason}`]),
    ['Version', version],
  ]);
}

function violationTable(refusals) {
  const columns = [{ name: 'Time' }, { name: 'Rule' }, { name: 'Key', grow: true }, { name: 'User', wide: true },
    { name: 'Address', wide: true }, { name: 'Endpoint', wide: true }, { name: 'Explanation', unseen: true }];
  return table('Refusals as they happen', columns, refusals.map((event) => [
    clock(event.at_ms), event.rule, event.key && keyLink(event.key), event.user_id, event.ip, event.endpoint,
    event.decision_id && h('a', { href: `#/explain/${event.decision_id}` }, 'why')]));
}
