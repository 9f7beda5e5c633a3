// Keys: the buckets of one key, what they have left, and a way to reset them.

import { named } from '../algorithms.js';
import * as api from '../api.js';
import { onlyWhen } from '../conditions.js';
import { confirmed, empty, every, failure, field, h, notice, pageHead, panel, select, show, table, tag } from '../dom.js';
import { none, number, plural, wait } from '../format.js';
import { decisionTable } from './explain.js';

const REFRESH_MS = 5000;
const RECENT = 15;

export function keys({ rest: [key], query, signal }) {
  const limit = { limit: query.get('limit') ?? '', algorithm: query.get('algorithm') ?? '' };
  const buckets = h('div', {});
  const decisions = h('div', {});
  const reset = h('button', { type: 'button', class: 'danger', hidden: true, onclick: resetAll }, 'Reset this key');

  async function load() {
    try {
      draw(await api.key(key, limit, signal));
    } catch (problem) {
      if (signal.aborted) return;
      if (!(problem instanceof api.Problem)) throw problem;
      reset.hidden = true;
      if (problem.status === 404) show(buckets, empty('No rule counts this key.', problem.detail));
      else show(buckets, failure(problem, load));
    }
    try {
      const { decisions: found } = await api.decisions({ key, limit: RECENT }, signal);
      show(decisions, found.length > 0 ? decisionTable(found) : empty('None of the recent decisions was made by this key.'));
    } catch (problem) {
      if (!signal.aborted) show(decisions, failure(problem, load));
    }
  }

  function draw({ buckets: found }) {
    reset.hidden = false;
    show(buckets, bucketTable(found));
  }

  async function resetAll() {
    const text = `Every bucket of ${key} is deleted and starts full again. Tokens that other nodes hold on lease stay with them.`;
    if (!await confirmed('Reset this key?', text, 'Reset')) return;
    reset.disabled = true;
    try {
      const after = await api.resetKey(key, limit);
      draw(after);
      notice(`${key}: ${plural(after.buckets.length, 'bucket')} reset`);
    } catch (problem) {
      if (!(problem instanceof api.Problem)) throw problem;
      notice(`${problem.title}: ${problem.detail}`);
    } finally {
      reset.disabled = false;
    }
  }

  if (key) {
    load();
    every(REFRESH_MS, signal, load);
  }
  return [
    pageHead('Keys', 'What the buckets of one key have left, on this node and in its store.'),
    panel('Look up a key', {}, lookUp(key ?? '', limit)),
    key && panel(key, { beside: reset }, buckets),
    key && panel('Recent decisions', {}, decisions),
  ].filter(Boolean);
}

function lookUp(key, given) {
  const name = field('Key', h('input', { class: 'mono', value: key, required: true, spellcheck: 'false', autocomplete: 'off' }),
    'As decisions show it: user:42, ip:203.0.113.7, global.');
  const limit = field('Limit without a rule', h('input', { class: 'mono', value: given.limit, spellcheck: 'false', autocomplete: 'off' }),
    'Only for keys that were checked with a limit of their own, such as 10/s burst 50.');
  const algorithm = field('Its algorithm', select([['', 'default'], ...named], given.algorithm));
  return h('form', { class: 'fields pad', onsubmit: (event) => {
    event.preventDefault();
    const more = [['limit', limit], ['algorithm', algorithm]].map(([part, { control }]) => [part, control.value.trim()]).filter(([, value]) => value);
    const query = more.length > 0 ? `?${new URLSearchParams(more)}` : '';
    location.hash = `#/keys/${encodeURIComponent(name.control.value.trim())}${query}`;
  } }, name.node, limit.node, algorithm.node, h('div', { class: 'actions whole' }, h('button', { class: 'primary' }, 'Look up')));
}

function bucketTable(buckets) {
  const columns = [{ name: 'Rule', grow: true }, { name: 'Limit' }, { name: 'Left', number: true }, { name: 'Full again in', number: true },
    { name: 'On lease here', number: true, wide: true }, { name: 'Mode', wide: true }, { name: 'Refusals', unseen: true, wide: true }];
  return table('Buckets', columns, buckets.map((bucket) => [
    [bucket.rule, bucket.plan && h('p', { class: 'note' }, `for plan ${bucket.plan}`), onlyWhen(bucket)],
    [h('code', {}, bucket.limit), h('p', { class: 'note' }, bucket.algorithm.replaceAll('_', ' '))],
    number(bucket.remaining), bucket.reset_after_ms > 0 ? wait(bucket.reset_after_ms) : 'full',
    bucket.held > 0 ? number(bucket.held) : none, tag(bucket.mode),
    h('a', { href: `#/violations?rule=${encodeURIComponent(bucket.rule)}` }, 'refusals by this rule')]));
}
