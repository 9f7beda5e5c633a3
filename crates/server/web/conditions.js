// The conditions of a rule, as text to edit and to read.

import { h } from './dom.js';

/** `method: GET, POST` on each line; a value with a comma stands in quotes. */
export function conditions(value) {
  const lines = value.split('\n').map((line) => line.trim()).filter(Boolean);
  return Object.fromEntries(lines.map((line) => {
    const [, name, values] = /^([^:]*):?(.*)$/.exec(line);
    const parts = values.match(/"(?:[^"\\]|\\.)*"|[^,]+/g) ?? [];
    return [name.trim(), parts.map((part) => part.trim()).filter(Boolean).map(unquoted)];
  }));
}

function unquoted(part) {
  if (!part.startsWith('"')) return part;
  try {
    return JSON.parse(part);
  } catch {
    return part; // the server says what it thinks of it
  }
}

/** Conditions as lines of text. */
export function conditionsText(when) {
  const value = (part) => (/[,"]/.test(part) ? JSON.stringify(part) : part);
  return Object.entries(when).map(([name, values]) => `${name}: ${[values].flat().map(String).map(value).join(', ')}`).join('\n');
}

/** Which requests a rule is limited to: nothing where that is all of them. */
export function onlyWhen({ when = {} }) {
  const lines = conditionsText(when);
  return lines && h('p', { class: 'note when' }, 'only when ', lines.split('\n').map((line, at) => [at > 0 && ' and ', h('code', {}, line)]));
}
