// The frame around the pages: which one is open, how the server is, and who may ask.

import { mayAskAgain, session, signIn, signInWith, signOut } from './api.js';
import { field, h, notice, show } from './dom.js';
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

/** Signs in with a token; the server's own words say why. Resolves to whether somebody did. */
function signInDialog(problem) {
  return new Promise((resolve) => {
    const token = field('Token', h('input', { type: 'password', autocomplete: 'off', required: true, id: 'token' }),
      'A line of a token file of the server, or its last part. The server made such a file at its first start: token in its data directory.');
    const dialog = h('dialog', { 'aria-labelledby': 'sign-in-title' },
      h('form', { method: 'dialog', onsubmit: enter },
        h('h2', { id: 'sign-in-title' }, problem.status === 403 ? 'Sign in with another token' : 'Sign in'),
        h('p', {}, problem.status === 403 ? problem.detail
          : ['Run ', h('code', {}, 'tollgate dashboard'), ' on the server and open the link that it prints, or enter a token.']),
        token.node,
        h('div', { class: 'actions' },
          h('button', { type: 'button', onclick: () => dialog.close() }, 'Not now'),
          h('button', { class: 'primary' }, 'Sign in'))));
    let signedIn = false;
    async function enter(event) {
      event.preventDefault();
      try {
        await signIn({ token: token.control.value.trim().split(':').pop() });
        signedIn = true;
        dialog.close();
      } catch (failed) {
        token.complain(failed.detail);
        token.control.select();
      }
    }
    dialog.addEventListener('close', () => {
      dialog.remove();
      resolve(signedIn);
      if (signedIn) showWho().catch(() => {}); // the page says why
    });
    document.body.append(dialog);
    dialog.showModal();
    token.control.focus();
  });
}

/** Who is signed in, and the way out. */
async function showWho() {
  const { name } = await session();
  const leave = async () => {
    await signOut();
    location.reload();
  };
  show(document.getElementById('who'), h('span', {}, name),
    h('button', { type: 'button', class: 'quiet', onclick: leave }, 'Sign out'));
}

/** Exchanges the code of a login link, which is behind `#/login/`, for a session: whether it did. It stays in no history. */
async function useLoginLink() {
  const [, code] = /^#\/login\/(\w+)$/.exec(location.hash) ?? [];
  if (!code) return false;
  history.replaceState(null, '', '#/overview');
  try {
    await signIn({ code });
    return true;
  } catch (problem) {
    notice(problem.detail.replaceAll('`', ''));
    return false;
  }
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

signInWith(signInDialog);
document.addEventListener('click', mayAskAgain, { capture: true });
document.querySelector('.skip').addEventListener('click', (event) => {
  event.preventDefault();
  main.focus();
});
addEventListener('hashchange', async () => {
  if (await useLoginLink()) location.reload(); // the link was opened where the dashboard is shown
  else open();
});
live.on('state', forever, drawPulse);
live.on('refreshed', forever, warn);
live.on('store', forever, warn);
live.on('rules', forever, warn);
live.on('stats', forever, warn);
live.on('lost', forever, warn);
live.on('lost', forever, drawPulse);
await useLoginLink();
showWho().catch(() => {}); // the page says why
open();
begin();
