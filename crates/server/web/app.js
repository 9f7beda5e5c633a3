// The frame around the pages: which one is open, how the server is, and who may ask.

import { askForTokensWith, mayAskAgain } from './api.js';
import { h, show } from './dom.js';
import { number, plural } from './format.js';
import { begin, live } from './live.js';
import { compare } from './views/compare.js';
import { explain } from './views/explain.js';
import { keys } from './views/keys.js';
import { overview } from './views/overview.js';
import { playground } from './views/playground.js';
import { rules } from './views/rules.js';
import { violations } from './views/violations.js';

const pages = { overview, playground, compare, rules, explain, keys, violations };
const main = document.getElementById('main');
const forever = new AbortController().signal;
let leave = new AbortController();
let opened = null;

/** `#/rules/12?search=x` is the page `rules`, with `12` and a search. */
function place() {
  const [path, query] = location.hash.replace(/^#\/?/, '').split('?');
  const [name, ...rest] = path.split('/');
  return { name: Object.hasOwn(pages, name) ? name : 'overview', rest: rest.map(decoded), query: new URLSearchParams(query) };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // typed by hand, and taken as it is
  }
}

function open() {
  const { name, rest, query } = place();
  leave.abort();
  leave = new AbortController();
  document.title = `${name.charAt(0).toUpperCase()}${name.slice(1)} · tollgate`;
  for (const link of document.querySelectorAll('nav a')) {
    if (link.hash === `#/${name}`) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  document.querySelector('nav [aria-current]')?.scrollIntoView({ block: 'nearest', inline: 'center' });
  show(main, pages[name]({ rest, query, signal: leave.signal }));
  if (opened !== null && opened !== name) {
    main.querySelector('h1')?.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
  opened = name;
}

/** Asks for a token; the server's own words say why. */
function tokenDialog(problem) {
  return new Promise((resolve) => {
    const input = h('input', { type: 'password', autocomplete: 'off', required: true, id: 'token', 'aria-describedby': 'token-why' });
    const dialog = h('dialog', { 'aria-labelledby': 'token-title' },
      h('form', { method: 'dialog' },
        h('h2', { id: 'token-title' }, problem.status === 403 ? 'Another token, please' : 'A token, please'),
        h('p', { id: 'token-why' }, problem.detail),
        h('div', { class: 'field' }, h('label', { for: 'token' }, 'Token'), input,
          h('p', { class: 'hint' }, 'A line of the file that the server was given as --admin-token-file. Kept until this tab is closed.')),
        h('div', { class: 'actions' },
          h('button', { value: '', formnovalidate: true }, 'Not now'),
          h('button', { value: 'use', class: 'primary' }, 'Continue'))));
    dialog.addEventListener('close', () => {
      dialog.remove();
      resolve(dialog.returnValue === 'use' ? input.value.trim() : null);
    });
    document.body.append(dialog);
    dialog.showModal();
    input.focus();
  });
}

const PULSE = { live: 'live', waiting: 'connecting', paused: 'paused' };

/** A stream that is open and silent is not live. */
function drawPulse() {
  const pulse = document.getElementById('pulse');
  const state = live.lost && live.state === 'live' ? 'waiting' : live.state;
  pulse.dataset.state = state;
  pulse.textContent = PULSE[state];
}

const MAX_NAMED = 8;

/** What the rules with each failure policy do while the store is unavailable. */
const WITHOUT_STORE = {
  open: 'Failing open, so that requests pass uncounted',
  closed: 'Failing closed, so that requests are answered 503',
  local: 'Counting on each node alone',
};

function failurePolicies({ on_store_failure: groups }) {
  return groups.map(({ policy, count, rules }) => {
    const names = rules.slice(0, MAX_NAMED).join(', ');
    const more = count - Math.min(rules.length, MAX_NAMED);
    return `${WITHOUT_STORE[policy]}: ${names}${more > 0 ? ` and ${number(more)} more` : ''}.`;
  }).join(' ');
}

/** What is wrong, as pairs of a title and a text. The numbers are those of the tiles. */
function troubles() {
  if (live.lost) return [['The server does not answer.', 'This page tries again by itself; until then it shows what was known last.']];
  if (!live.stats) return [];
  const { store, rule_set: set } = live.stats;
  const degraded = live.degraded();
  const decisions = `${plural(degraded, 'decision')} of the last minute ${degraded === 1 ? 'was' : 'were'} made without the store.`;
  const found = [];
  if (!store.up) found.push(['The store is unavailable.', `${decisions} ${failurePolicies(set)}`]);
  else if (degraded > 0) found.push(['Degraded.', `${decisions} ${failurePolicies(set)}`]);
  if (set.error) found.push(['The rules in effect are not the newest.', set.error]);
  return found;
}

let banner = null;

function warn() {
  const found = troubles();
  const text = found.flat().join(' ');
  if (text === banner) return;
  banner = text;
  show(document.getElementById('banner'), found.map(([title, detail]) => h('p', { class: 'banner' }, h('strong', {}, title), ' ', detail)));
}

askForTokensWith(tokenDialog);
document.addEventListener('click', mayAskAgain, { capture: true });
document.querySelector('.skip').addEventListener('click', (event) => {
  event.preventDefault();
  main.focus();
});
addEventListener('hashchange', open);
live.on('state', forever, drawPulse);
live.on('refreshed', forever, warn);
live.on('store', forever, warn);
live.on('rules', forever, warn);
live.on('stats', forever, warn);
live.on('lost', forever, warn);
live.on('lost', forever, drawPulse);
open();
begin();
