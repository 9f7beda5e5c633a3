// Explain: why a request was answered as it was, rule by rule.

import * as api from '../api.js';
import { empty, every, facts, failure, field, h, keyLink, pageHead, panel, select, show, table, tag, verdict } from '../dom.js';
import { clock, none, number, stamp, wait } from '../format.js';

const RECENT = 15;
const KNOWN = [['user_id', 'User'], ['plan', 'Plan'], ['ip', 'Address'], ['endpoint', 'Endpoint'], ['method', 'Method']];

export function explain({ rest: [id], signal }) {
  const result = h('div', { class: 'stack' });
  const recent = h('div', {});

  async function answer(ask) {
    try {
      const found = await ask();
      show(result, explained(found));
    } catch (problem) {
      if (signal.aborted) return;
      if (!(problem instanceof api.Problem)) throw problem;
      show(result, panel('No explanation', {}, failure(problem)));
    }
  }

  const outcome = select([['', 'all outcomes'], 'allowed', 'refused', 'denied', 'unavailable'], '', { 'aria-label': 'Outcome' });
  async function look() {
    try {
      const { decisions } = await api.decisions({ limit: RECENT, outcome: outcome.value }, signal);
      show(recent, decisions.length > 0 ? decisionTable(decisions) : empty('No decision yet.', 'The last ones of the server appear here.'));
    } catch (problem) {
      if (!signal.aborted) show(recent, failure(problem, look));
    }
  }
  outcome.addEventListener('change', look);

  const number = field('Decision id', h('input', { class: 'mono', value: id ?? '', spellcheck: 'false', autocomplete: 'off' }),
    'Every answer has one: decision_id.');
  const byId = h('form', { class: 'pad stack', onsubmit: (event) => {
    event.preventDefault();
    const wanted = number.control.value.trim();
    if (location.hash === `#/explain/${wanted}`) answer(() => api.decision(wanted, signal));
    else location.hash = `#/explain/${encodeURIComponent(wanted)}`;
  } }, number.node, h('div', { class: 'actions' }, h('button', { class: 'primary' }, 'Look it up')));

  if (id) answer(() => api.decision(id, signal));
  else show(result, panel('Explanation', {}, empty('Choose a decision or fill in a request.', 'Every rule then says whether it applies, and why.')));
  look();
  every(5000, signal, look);
  return [
    pageHead('Explain', 'Which rules applied to a request, with which keys and numbers, and why the others did not.'),
    h('div', { class: 'columns side' },
      h('div', { class: 'stack' },
        panel('A decision that was made', {}, byId),
        panel('A request that might come', {}, requestForm((body) => answer(() => api.explain(body, signal))))),
      result),
    panel('Recent decisions', { beside: h('div', {}, outcome) }, recent),
  ];
}

function requestForm(ask) {
  const known = KNOWN.map(([name, label]) => [name, field(label, h('input', { autocomplete: 'off', spellcheck: 'false' }))]);
  const more = field('Other attributes', h('textarea', { rows: 2, spellcheck: 'false' }), 'One per line: name=value');
  const cost = field('Cost', h('input', { type: 'number', min: 0, value: 1 }));
  const body = () => {
    const given = known.map(([name, { control }]) => [name, control.value.trim()]).filter(([, value]) => value);
    const others = more.control.value.split('\n').map((line) => line.trim()).filter(Boolean).map((line) => {
      const [name, ...value] = line.split('=');
      return [name.trim(), value.join('=').trim()];
    });
    return { attributes: Object.fromEntries([...given, ...others]), cost: Number(cost.control.value) };
  };
  return h('form', { class: 'pad stack', onsubmit: (event) => { event.preventDefault(); ask(body()); } },
    h('div', { class: 'pair' }, known.map(([, { node }]) => node), cost.node), more.node,
    h('div', { class: 'actions' }, h('button', { class: 'primary' }, 'Explain')),
    h('p', { class: 'hint' }, 'Nothing is charged.'));
}

/** A decision on record, or one that would be made; both have the same rules. */
function explained(found) {
  const { decision, rules, attributes, cost } = found;
  const outcome = found.outcome ?? (decision.allowed ? 'allowed' : 'refused');
  const binding = rules.find(({ speaks }) => speaks);
  const asked = Object.entries(attributes).map(([name, value]) => `${name}=${value}`).join('  ') || 'nothing';
  return [
    panel(found.decision_id ? 'The decision' : 'What a check would answer', { beside: verdict(outcome) },
      facts([
        found.decision_id && ['Id', h('code', {}, found.decision_id)],
        found.at && ['At', stamp(found.at)],
        ['Asked', h('code', {}, asked)], ['Cost', number(cost)],
        ['Binding limit', binding ? binding.rule : 'none'],
        decision.remaining !== null && ['Left', `${number(decision.remaining)} of ${number(decision.limit)}`],
        !decision.allowed && ['Would pass in', wait(decision.retry_after_ms)],
        decision.delay_ms > 0 && ['Waits', wait(decision.delay_ms)],
        decision.degraded && ['Degraded', `${decision.degraded.policy}: ${decision.degraded.reason}`],
      ], 'near'),
      found.rules_changed && h('p', { class: 'banner' }, 'The rules have changed since; these are the ones that decided.')),
    panel('Rules', {}, rules.length > 0 ? ruleTable(rules) : empty('There are no rules: everything passes.')),
  ];
}

function ruleTable(rules) {
  const columns = [{ name: 'Rule' }, { name: 'Applies' }, { name: 'Key, or why not', grow: true }, { name: 'Limit', wide: true },
    { name: 'Before', number: true }, { name: 'After', number: true }, { name: 'Retry', number: true }];
  const left = (state) => (state ? number(state.remaining) : none);
  const sorted = [...rules].sort((a, b) => Number(b.applies) - Number(a.applies));
  return table('Rules', columns, sorted.map((rule) => [
    [rule.rule, rule.mode === 'shadow' ? [' ', tag('shadow')] : ''],
    rule.applies ? tag('good', rule.speaks ? 'binding' : 'yes') : tag('no'),
    [rule.key && h('code', {}, rule.key), ' ', rule.reason], rule.limit ? h('code', {}, rule.limit) : none,
    left(rule.before), left(rule.after), rule.retry_after_ms ? wait(rule.retry_after_ms) : none]));
}

/** Decisions as a table. */
export function decisionTable(decisions) {
  const columns = [{ name: 'Time' }, { name: 'Outcome' }, { name: 'Rule', wide: true }, { name: 'Key', grow: true },
    { name: 'Left', number: true, wide: true }, { name: 'Retry', number: true, wide: true }, { name: 'Decision' }];
  return table('Recent decisions', columns, decisions.map((made) => [
    clock(made.at_ms), verdict(made.outcome), made.rule ?? none, made.key ? keyLink(made.key) : none,
    number(made.remaining), made.outcome === 'allowed' ? none : wait(made.retry_after_ms),
    h('a', { href: `#/explain/${made.decision_id}`, title: made.decision_id }, h('code', {}, made.decision_id.slice(-8)))]));
}
