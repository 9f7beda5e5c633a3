// One rule to fill in. The server says what is wrong with which field, and what saving it would change.

import { named } from '../algorithms.js';
import * as api from '../api.js';
import { conditions, conditionsText } from '../conditions.js';
import { field, h, notice, panel, select, show, table } from '../dom.js';
import { number, plural } from '../format.js';

const either = (values) => [['', 'default'], ...values];
const text = (props = {}) => h('input', { autocomplete: 'off', spellcheck: 'false', ...props });

/** What a field is called, and how it is read and written; an absent value is ''. */
const FIELDS = [
  { name: 'name', label: 'Name', hint: 'Unique; shown in headers and violations.' },
  { name: 'key', label: 'Key', hint: 'One bucket per value: user:{user_id}, ip:{ip}, global.', mono: true },
  { name: 'action', label: 'What it does', choices: [['', 'limit'], ['deny', 'deny at once'], ['allow', 'exempt from limits']] },
  { name: 'limit', label: 'Limit', hint: '10/s burst 50, 100/min, 60 every 1h, 5/s queue 20.', mono: true, counts: true },
  { name: 'algorithm', label: 'Algorithm', choices: either(named), counts: true },
  { name: 'plan', label: 'Plan', hint: 'Empty: every plan.' },
  { name: 'mode', label: 'Mode', choices: [['', 'enforce'], ['shadow', 'shadow: count, never refuse'], ['off', 'off']] },
  { name: 'when', label: 'Only when', area: true, hint: 'A condition per line: method: GET, POST', read: conditions, write: conditionsText },
  { name: 'description', label: 'Description', hint: 'For people.' },
];

const MORE = [
  { name: 'window', label: 'Windows begin', choices: either(['epoch', 'first', 'spread', 'calendar']), counts: true },
  { name: 'time_zone', label: 'Time zone', hint: 'For calendar windows, such as Europe/Berlin.', counts: true },
  { name: 'aligned', label: 'Refills on the clock', choices: either([['true', 'yes'], ['false', 'no']]), read: (value) => value === 'true', counts: true },
  { name: 'cost', label: 'Cost', hint: 'A number multiplies; a name takes that attribute.', read: (value) => (/^\d+$/.test(value) ? Number(value) : value), counts: true },
  { name: 'missing', label: 'Attribute of the key missing', choices: either([['skip', 'skip the rule'], ['deny', 'deny the request'], ['shared', 'one shared bucket']]) },
  { name: 'consistency', label: 'Consistency', choices: either(['exact', 'leased', 'local', 'auto']) },
  { name: 'on_store_failure', label: 'Store not reachable', choices: either(['open', 'closed', 'local']) },
  { name: 'replaces', label: 'Replaces', hint: 'Names of rules, separated by commas.', read: list, write: (values) => values.join(', ') },
  { name: 'ipv6_prefix', label: 'Bits of an IPv6 address', read: Number },
];

export function ruleForm({ entry, set, signal, reload }) {
  const before = entry?.rule ?? {};
  const controls = new Map([...FIELDS, ...MORE].map((about) => [about.name, { about, ...controlFor(about, before[about.name]) }]));
  const general = h('p', { class: 'error', role: 'alert' });
  const outcome = h('div', { role: 'status' });
  const nodes = (fields) => fields.map(({ name }) => controls.get(name).node);

  function drawAction() {
    const acts = controls.get('action').control.value !== '';
    for (const { about, node } of controls.values()) if (about.counts) node.hidden = acts;
  }

  /** The rule as it is filled in; what this form does not know stays. */
  function filledIn() {
    const rule = { ...before };
    for (const [name, { about, control, node }] of controls) {
      const value = control.value.trim();
      if (value === '' || node.hidden) delete rule[name];
      else rule[name] = about.read ? about.read(value) : value;
    }
    return rule;
  }

  function complain(problem) {
    for (const { complain: say } of controls.values()) say(null);
    general.textContent = '';
    if (!problem) return;
    const errors = problem.errors.length > 0 ? problem.errors : [{ field: problem.path, message: problem.detail }];
    const rest = errors.filter(({ field: name, message }) => {
      const place = controls.get(name?.replace(/^rules\[\d+\]\./, '').split(/[.[]/)[0]);
      place?.complain(message);
      return !place;
    });
    general.textContent = rest.map(({ message }) => message).join(' ');
    const first = [...controls.values()].find(({ control }) => control.hasAttribute('aria-invalid'));
    if (first && MORE.includes(first.about)) more.open = true;
    first?.control.focus();
  }

  /** Does something with the rule and shows what the server has against it. */
  async function attempt(act) {
    complain(null);
    try {
      await act(filledIn());
    } catch (problem) {
      if (signal.aborted) return;
      if (!(problem instanceof api.Problem)) throw problem;
      complain(problem);
      if (problem.status === 412) show(outcome, h('p', { class: 'pad' },
        'Somebody else changed this rule. ', h('button', { type: 'button', onclick: reload }, 'Load it as it is now')));
    }
  }

  const preview = () => attempt(async (rule) => {
    const others = set.rules.filter((other) => other !== entry).map((other) => other.rule);
    const place = entry ? set.rules.indexOf(entry) : others.length;
    show(outcome, difference(await api.previewRules(others.toSpliced(place, 0, rule), signal)));
  });

  const save = () => attempt(async (rule) => {
    const saved = entry ? await api.putRule(entry.rule_id, entry.version, rule) : await api.addRule(rule);
    notice(`${saved.label} is in effect`);
    location.hash = '#/rules';
  });

  const more = h('details', { class: 'whole', open: MORE.some(({ name }) => name in before) },
    h('summary', {}, 'More fields'), h('div', { class: 'fields' }, nodes(MORE)));
  controls.get('action').control.addEventListener('change', drawAction);
  drawAction();
  return panel(entry ? entry.label : 'New rule', {},
    h('form', { class: 'fields pad', novalidate: true, onsubmit: (event) => { event.preventDefault(); save(); } },
      nodes(FIELDS), more,
      h('div', { class: 'actions whole' },
        h('button', { class: 'primary' }, entry ? 'Save' : 'Add'),
        h('button', { type: 'button', onclick: preview }, 'What would change?'),
        h('a', { class: 'button', href: '#/rules' }, 'Cancel'), h('div', { class: 'field' }, general))),
    outcome);
}

function controlFor({ label, hint, choices, area, mono, write = String }, value) {
  const written = value === undefined ? '' : write(value);
  const control = choices ? select(choices, written)
    : area ? h('textarea', { rows: 2, value: written, spellcheck: 'false' }) : text({ value: written, class: mono ? 'mono' : null });
  return field(label, control, hint);
}

/** Who would fare differently, had the rule been there for the recent decisions. */
function difference({ added, changed, removed, recent }) {
  const parts = [['adds', added], ['changes', changed], ['removes', removed]].filter(([, names]) => names.length > 0);
  const summary = parts.map(([verb, names]) => `${verb} ${names.join(', ')}`).join('; ') || 'changes nothing';
  const who = ({ key, attributes }) => h('code', {}, key ?? Object.entries(attributes ?? {}).map(([name, value]) => `${name}=${value}`).join(' '));
  const listing = (title, rows) => rows.length > 0 && h('div', {}, h('h3', { class: 'pad' }, title),
    table(title, [{ name: 'Who', grow: true }, { name: 'Rule' }, { name: 'Requests', number: true }],
      rows.map((row) => [who(row), row.rule, number(row.count)])));
  const before = recent && `Of the last ${plural(recent.requests, 'decision')} of this node, ${number(recent.refused_before)} were refused by the rules as they are; ${number(recent.refused_after)} would be.`;
  return h('div', { class: 'preview' }, h('p', { class: 'pad' }, h('strong', {}, `This ${summary}. `), before),
    recent && listing('Newly refused', recent.newly_refused), recent && listing('Newly admitted', recent.newly_allowed));
}

function list(value) {
  return value.split(',').map((part) => part.trim()).filter(Boolean);
}
