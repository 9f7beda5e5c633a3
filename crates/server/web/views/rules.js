// Rules: find them, switch them, change them, and take that back.

import * as api from '../api.js';
import { onlyWhen } from '../conditions.js';
import { confirmed, empty, failure, h, notice, pageHead, panel, scroll, show, tag } from '../dom.js';
import { plural, stamp } from '../format.js';
import { live } from '../live.js';
import { historyPanel, isUndoWanted } from './history.js';
import { ruleForm } from './rule-form.js';

const COLUMNS = [
  { name: 'Rule', by: ({ label }) => label, grow: true },
  { name: 'Key', by: ({ rule }) => rule.key, wide: true },
  { name: 'Limit', by: ({ rule }) => rule.limit ?? rule.action },
  { name: 'Plan', by: ({ rule }) => rule.plan ?? '', wide: true },
  { name: 'Mode', by: ({ rule }) => modeOf(rule) },
  { name: 'Changed', by: ({ updated_at: at }) => at ?? '', wide: true },
];

const modeOf = (rule) => rule.mode ?? 'enforce';

/** Survives going to a rule and back. */
const kept = { search: '', sort: 0, down: false };

export function rules({ rest: [chosen], query, signal }) {
  if (query.has('search')) kept.search = query.get('search');
  const beside = h('div', { class: 'actions' });
  const body = h('div', { class: 'stack' });
  let set = null;

  async function load() {
    try {
      set = await api.rules(signal);
      draw();
    } catch (problem) {
      if (!signal.aborted) show(body, panel('Rules', {}, failure(problem, load)));
    }
  }

  function draw() {
    show(beside, set.writable && !chosen && h('a', { class: 'button primary', href: '#/rules/new' }, 'Add a rule'));
    if (!chosen) return show(body, source(set), listPanel(), set.writable && historyPanel({ signal, changed: load }));
    const entry = set.rules.find(({ rule_id: id }) => String(id) === chosen);
    if (chosen !== 'new' && !entry) {
      return show(body, empty('There is no such rule any more.', h('a', { href: '#/rules' }, 'All rules')));
    }
    show(body, ruleForm({ entry, set, signal, reload: load }),
      entry && historyPanel({ signal, rule_id: entry.rule_id, changed: load }));
  }

  function listPanel() {
    const place = h('div', {});
    const count = h('span', { class: 'note' });
    const search = h('input', { type: 'search', placeholder: 'Search', 'aria-label': 'Search rules', value: kept.search });
    const update = () => {
      kept.search = search.value;
      const shown = sorted(set.rules.filter(matching(kept.search)));
      count.textContent = shown.length === set.rules.length ? plural(shown.length, 'rule') : `${shown.length} of ${set.rules.length}`;
      show(place, shown.length > 0 ? listing(shown, update) : none());
    };
    search.addEventListener('input', update);
    update();
    return panel('Rules in effect', { beside: h('div', { class: 'actions search' }, count, search) }, place);
  }

  const none = () => (set.rules.length > 0 ? empty('No rule matches.') : empty('There are no rules: everything passes.',
    set.writable ? h('a', { href: '#/rules/new' }, 'Add the first') : `Write them into ${set.source}.`));

  function listing(shown, update) {
    const head = (column, at) => {
      const direction = kept.sort === at ? (kept.down ? 'descending' : 'ascending') : null;
      const turn = () => {
        kept.down = kept.sort === at && !kept.down;
        kept.sort = at;
        update();
        body.querySelectorAll('th button')[at].focus();
      };
      return h('th', { scope: 'col', class: column.wide && 'wide', 'aria-sort': direction },
        h('button', { type: 'button', onclick: turn }, column.name));
    };
    return scroll('Rules', h('table', {},
      h('thead', {}, h('tr', {}, COLUMNS.map(head), set.writable && h('th', { scope: 'col' }, h('span', { class: 'hidden' }, 'Actions')))),
      h('tbody', {}, shown.map(row))));
  }

  function row(entry) {
    const { rule, rule_id: id, label, updated_at: changed } = entry;
    const name = set.writable ? h('a', { href: `#/rules/${id}` }, label) : label;
    return h('tr', { class: entry.active ? null : 'off' },
      h('td', { class: 'grow' }, name, rule.description && h('p', { class: 'note' }, rule.description), onlyWhen(rule),
        // Narrow screens have no columns for these.
        h('p', { class: 'note narrow' }, 'key ', h('code', {}, rule.key), rule.plan && `, plan ${rule.plan}`)),
      h('td', { class: 'wide' }, h('code', {}, rule.key)),
      h('td', {}, rule.action ? tag(rule.action) : h('code', {}, rule.limit), rule.algorithm && h('p', { class: 'note' }, words(rule.algorithm))),
      h('td', { class: 'wide' }, rule.plan ?? ''),
      h('td', {}, tag(modeOf(rule))),
      h('td', { class: 'wide' }, changed && stamp(changed)),
      set.writable && h('td', {}, h('div', { class: 'actions menu' }, switches(entry),
        h('button', { type: 'button', class: 'quiet', 'aria-label': `Delete ${label}`, onclick: () => remove(entry) }, 'Delete'))));
  }

  /** The modes that the rule is not in. */
  function switches(entry) {
    const acts = { enforce: 'Enforce', shadow: 'Shadow', off: 'Disable' };
    if (entry.rule.action) delete acts.shadow;
    delete acts[modeOf(entry.rule)];
    return Object.entries(acts).map(([mode, name]) => h('button', {
      type: 'button', class: 'quiet', 'aria-label': `${name} ${entry.label}`, onclick: () => change(
        () => api.patchRule(entry.rule_id, entry.version, { mode: mode === 'enforce' ? null : mode }),
        `${entry.label}: ${mode}`, entry.rule_id),
    }, name));
  }

  async function remove(entry) {
    const text = `${entry.label} goes out of effect at once. What was counted is forgotten in time; the history can bring the rule back.`;
    if (!await confirmed('Delete this rule?', text, 'Delete')) return;
    await change(() => api.removeRule(entry.rule_id, entry.version), `${entry.label} was deleted`, entry.rule_id);
  }

  /**
   * Changes of one's own wait for each other: a second one would speak of a version that the first replaces.
   * `act` resolves to false where nothing was changed after all.
   */
  async function change(act, text, id) {
    for (const button of body.querySelectorAll('.menu button')) button.disabled = true;
    try {
      if (await act() !== false) notice(text, { name: 'Undo', act: () => undoLast(id) });
    } catch (problem) {
      if (!(problem instanceof api.Problem)) throw problem;
      notice(`${problem.title}: ${problem.detail}`);
    }
    await load();
  }

  const undoLast = (id) => change(async () => {
    const { history: [last] } = await api.history({ rule_id: id, limit: 1 });
    if (!await isUndoWanted(last)) return false;
    return api.undo(last.id);
  }, 'Undone', id);

  // Somebody else's change shows up too, but never under somebody's hands.
  live.on('rules', signal, () => { if (!chosen) load(); });
  load();
  return [
    pageHead(chosen === 'new' ? 'A new rule' : chosen ? 'Edit a rule' : 'Rules', null, beside),
    body,
  ];
}

const words = (name) => name.replaceAll('_', ' ');

function source(set) {
  if (set.error) return h('p', { class: 'panel pad failed', role: 'alert' }, h('strong', {}, 'Not the newest rules. '), set.error);
  if (set.writable) return null;
  return h('p', { class: 'panel pad' }, 'These rules come from ', h('code', {}, set.source),
    '. They are changed there, and take effect within a second; start with --rules sqlite://path to change them here.');
}

function matching(search) {
  const wanted = search.toLowerCase().split(/\s+/).filter(Boolean);
  return ({ label, rule }) => {
    const text = `${label} ${JSON.stringify(rule)}`.toLowerCase();
    return wanted.every((word) => text.includes(word));
  };
}

function sorted(entries) {
  const { by } = COLUMNS[kept.sort];
  const order = new Intl.Collator(undefined, { numeric: true }).compare;
  const ascending = [...entries].sort((a, b) => order(by(a), by(b)));
  return kept.down ? ascending.reverse() : ascending;
}
