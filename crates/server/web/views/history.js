// Who changed which rule, and how to take the last change back.

import * as api from '../api.js';
import { onlyWhen } from '../conditions.js';
import { confirmed, empty, failure, h, notice, panel, show, table } from '../dom.js';
import { stamp } from '../format.js';

const PAGE = 20;

/** The changes of one rule, or of all; `changed` is called after an undo. */
export function historyPanel({ signal, rule_id: id, changed }) {
  const place = h('div', {});
  let changes = [];

  async function load(before) {
    try {
      const page = await api.history({ rule_id: id, limit: PAGE, before }, signal);
      changes = before ? [...changes, ...page.history] : page.history;
      draw(page.next);
    } catch (problem) {
      if (!signal.aborted) show(place, failure(problem, () => load(before)));
    }
  }

  function draw(next) {
    if (changes.length === 0) return show(place, empty('Nothing was changed yet.'));
    // Only the last change of a rule can be undone, and the newest come first.
    const seen = new Set();
    const isLast = ({ rule_id: rule }) => !seen.has(rule) && seen.add(rule);
    const columns = [{ name: 'Time' }, { name: 'Who', wide: true }, { name: 'What' }, { name: 'Rule', wide: true }, { name: 'Change', grow: true }, { name: 'Action', unseen: true }];
    const rows = changes.map((change) => [
      stamp(change.at), change.who, change.action, nameOf(change), difference(change),
      isLast(change) && h('button', { type: 'button', class: 'quiet', 'aria-label': `Undo ${change.action} of ${nameOf(change)}`, onclick: () => undo(change) }, 'Undo')]);
    show(place, table('History', columns, rows),
      next && h('p', { class: 'pad' }, h('button', { type: 'button', onclick: () => load(next) }, 'Earlier changes')));
  }

  async function undo(change) {
    if (!await isUndoWanted(change)) return;
    try {
      await api.undo(change.id);
      notice(`${nameOf(change)}: ${change.action} undone`);
    } catch (problem) {
      if (!(problem instanceof api.Problem)) throw problem;
      notice(`${problem.title}: ${problem.detail}`);
    }
    await changed();
  }

  load();
  return panel('History', {}, place);
}

/** The undo of an addition deletes the rule, so that is asked first. */
export async function isUndoWanted(change) {
  if (change.before) return true;
  return confirmed('Delete this rule?', `This change added ${nameOf(change)}. Undoing it deletes the rule, which goes out of effect immediately.`, 'Delete');
}

const nameOf = ({ before, after }) => (after ?? before).name ?? (after ?? before).key;

/** The fields that are not what they were. */
function difference({ before, after }) {
  if (!before || !after) {
    const rule = after ?? before;
    return [h('code', {}, rule.limit ?? rule.action), rule.plan && ` for plan ${rule.plan}`, onlyWhen(rule)];
  }
  const names = [...new Set([...Object.keys(before), ...Object.keys(after)])];
  const text = (value) => (typeof value === 'string' ? value : JSON.stringify(value));
  const changed = names.filter((name) => text(before[name]) !== text(after[name]));
  return h('div', { class: 'diff' }, changed.map((name) => h('div', {}, `${name} `,
    before[name] !== undefined && h('del', {}, text(before[name])), ' ',
    after[name] !== undefined && h('ins', {}, text(after[name])))));
}
