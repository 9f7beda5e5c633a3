// Playground: one bucket to knock at. Every verdict and every number is the server's; here they are only drawn.

import { algorithms, named } from '../algorithms.js';
import * as api from '../api.js';
import { verdictLine, vessel } from '../chart.js';
import { every, field, h, pageHead, panel, select, show } from '../dom.js';
import { number, plural, wait } from '../format.js';
import { live } from '../live.js';

const SECONDS = 20;
const TICK_MS = 50;
/** How often the bucket is looked at while it fills. */
const LOOK_MS = 250;
const HOLD_AFTER_MS = 350;
const HOLD_RATE = 8;
const FASTEST = 40;
/** Requests on their way at once; a slow server is not buried. */
const MOST_IN_FLIGHT = 16;

/** Where checks are answered: the host of this page, with the port of that listener. */
function checksAt() {
  const port = live.stats?.checks_at?.split(':').at(-1) ?? '8080';
  return `${location.protocol}//${location.hostname}:${port}`;
}

export function playground({ query, signal }) {
  const asked = query.get('algorithm');
  const form = settings(Object.hasOwn(algorithms, asked ?? '') ? asked : 'token_bucket', query.get('limit'));
  const picture = vessel();
  const line = verdictLine(SECONDS);
  const left = h('p', { class: 'value' });
  const under = h('p', { class: 'note' });
  const answer = h('div', { class: 'answer' });
  const countdown = h('p', { class: 'countdown' });
  const tally = h('p', { class: 'tally' });
  const spoken = h('p', { class: 'hidden', role: 'status' });
  const same = h('pre', {});
  const press = h('button', { type: 'button', class: 'press primary' }, 'Send a request');
  const speed = h('input', { type: 'range', min: 0, max: FASTEST, value: 0 });
  const rate = field('Keep sending', speed);
  const pace = h('output', { class: 'note' });
  rate.node.append(pace);

  const sent = { allowed: 0, refused: 0 };
  let key = newKey();
  let inForce = form.value();
  let [inFlight, due, holding, looked, full] = [0, 0, false, 0, true];
  let last = null;
  let tongue = '';

  /** Sends a request under some settings. Resolves to what is wrong with it, if anything. */
  async function send(cost, settings) {
    const bucket = key;
    inFlight += 1;
    try {
      const heard = await api.knock({ key, ...settings, cost }, signal);
      if (bucket === key) listen(heard, cost, settings);
      return null;
    } catch (problem) {
      if (signal.aborted) return null;
      if (!(problem instanceof api.Problem)) throw problem;
      return problem;
    } finally {
      inFlight -= 1;
    }
  }

  async function knock(cost) {
    if (inFlight >= MOST_IN_FLIGHT) return;
    const problem = await send(cost, inForce);
    if (!problem) return;
    form.complain(problem);
    full = true; // nothing to look at until something is changed
    stop();
  }

  /** What an answer changes on the page; one without cost was only a look. */
  function listen(heard, cost, settings) {
    const { decision } = heard;
    full = decision.reset_after_ms === 0;
    looked = performance.now();
    drawLevel(decision, settings);
    if (cost === 0) return;
    last = { ...heard, at: performance.now() };
    sent[decision.allowed ? 'allowed' : 'refused'] += 1;
    line.verdict(decision.allowed);
    if (!decision.allowed) picture.turnBack();
    tongue = `${heard.status}, ${decision.allowed ? 'allowed' : 'refused'}, ${decision.remaining} left`;
    drawAnswer();
  }

  function drawLevel({ remaining, limit, reset_after_ms: reset }, { algorithm }) {
    const queue = algorithm === 'leaky_bucket';
    const level = queue ? limit - remaining : remaining;
    const text = queue ? `${level} of ${limit} places taken` : `${remaining} of ${limit} left`;
    picture.update({ level, of: limit, kind: queue ? 'queue' : 'tokens', text });
    line.level(level, limit);
    show(left, number(level), h('small', {}, queue ? ` of ${number(limit)} places taken` : ` of ${number(limit)} left`));
    under.textContent = reset > 0 ? `full in ${wait(reset)}` : 'full';
  }

  function drawAnswer() {
    const { status, statusText, headers, decision } = last;
    const kind = decision.allowed ? 'allowed' : 'refused';
    show(answer,
      h('p', { class: `status ${kind}` }, `${status} ${statusText}`),
      countdown,
      h('pre', { 'aria-label': 'Headers of the last answer' }, headers.map(([name, value]) => `${name}: ${value}`).join('\n')));
    show(tally, h('span', {}, h('strong', {}, number(sent.allowed)), ' allowed'), h('span', {}, h('strong', {}, number(sent.refused)), ' refused'));
    drawCountdown();
  }

  function drawCountdown() {
    if (!last) return;
    const { decision, at } = last;
    const since = performance.now() - at;
    if (decision.allowed) {
      countdown.textContent = decision.delay_ms > 0
        ? `Leaves the queue in ${wait(Math.max(0, decision.delay_ms - since))}.` : 'Passed at once.';
    } else if (decision.retry_after_ms === null) {
      countdown.textContent = 'No wait helps: it costs more than the limit ever holds.';
    } else {
      const rest = decision.retry_after_ms - since;
      countdown.textContent = rest > 0 ? `Would pass in ${wait(rest)}.` : 'Would pass now.';
    }
  }

  function tick() {
    const perSecond = Number(speed.value) + (holding ? HOLD_RATE : 0);
    due = perSecond > 0 ? due + (perSecond * TICK_MS) / 1000 : 0;
    for (; due >= 1; due -= 1) knock(form.cost());
    if (!full && inFlight === 0 && performance.now() - looked > LOOK_MS) knock(0);
    drawCountdown();
    line.draw(`The last ${SECONDS} seconds: ${plural(sent.allowed, 'request')} allowed and ${number(sent.refused)} refused since the bucket was new.`);
  }

  function stop() {
    holding = false;
    speed.value = 0;
    pace.textContent = paceText();
  }

  const paceText = () => (Number(speed.value) > 0 ? `${speed.value} per second` : 'off');

  function renew() {
    key = newKey();
    [full, last] = [true, null];
    Object.assign(sent, { allowed: 0, refused: 0 });
    line.clear();
    show(tally);
    show(answer, h('p', { class: 'note' }, 'Send a request: its status, headers and waits appear here.'));
    settle();
  }

  /**
   * Looks at the bucket under the settings of the form. They are in force once the server accepts them; a limit that is
   * only half typed stops nothing, and requests go on under the last one that was accepted.
   */
  async function settle() {
    const settings = form.value();
    const problem = await send(0, settings);
    if (signal.aborted || JSON.stringify(settings) !== JSON.stringify(form.value())) return; // changed meanwhile
    form.complain(problem);
    if (problem) return;
    inForce = settings;
    const { algorithm, limit } = settings;
    history.replaceState(null, '', `#/playground?${new URLSearchParams({ algorithm, limit })}`);
    same.textContent = `curl -i ${checksAt()}/v1/check -d '${JSON.stringify({ key, ...settings, cost: form.cost() })}'`;
  }

  speed.addEventListener('input', () => { pace.textContent = paceText(); });
  holdable(press, signal, () => knock(form.cost()), (held) => { holding = held; });
  form.onchange(settle);
  every(TICK_MS, signal, tick);
  every(1000, signal, () => { if (spoken.textContent !== tongue) spoken.textContent = tongue; });
  pace.textContent = paceText();
  renew();

  return [
    pageHead('Playground', 'A bucket of your own at the real limiter, apart from all others. Spend it, watch it come back, change the limit meanwhile.'),
    h('div', { class: 'columns play' },
      panel('The limit', {}, h('div', { class: 'pad stack' }, form.node,
        h('button', { type: 'button', onclick: renew }, 'Begin with a new bucket'))),
      panel('The bucket', { beside: tally }, h('div', { class: 'gate' },
        h('div', { class: 'bucket' }, picture.node, h('div', {}, left, under)), h('div', { class: 'stack knock' }, press,
          h('p', { class: 'hint' }, 'Press for one request, hold for a stream of them.'), rate.node))),
      panel('The last answer', {}, answer)),
    spoken,
    panel(`The last ${SECONDS} seconds`, {
      beside: h('span', { class: 'note' }, 'the line is what is left, or waits; bars passed, crosses were refused'),
    }, line.node),
    panel('The same from a shell', { beside: h('span', { class: 'note' }, 'in a bucket of its own') }, h('div', { class: 'pad' }, same)),
  ];
}

const newKey = () => `playground:${crypto.getRandomValues(new Uint32Array(1))[0].toString(36)}`;

/** Algorithm, limit and cost; what the server says about them appears beside them. */
function settings(first, given) {
  const kept = Object.fromEntries(Object.entries(algorithms).map(([name, { limit }]) => [name, limit]));
  if (given) kept[first] = given;
  const algorithm = field('Algorithm', select(named, first));
  const about = h('p', { class: 'hint' });
  const limit = field('Limit', h('input', { class: 'mono', value: kept[first], spellcheck: 'false', autocomplete: 'off' }),
    'Such as 10/s burst 50, 60 every 1min, 5/s queue 20, 100/min.');
  const windows = field('Windows begin', select(['epoch'], 'epoch'));
  const cost = field('Cost of a request', h('input', { type: 'number', min: 1, max: 1000000, value: 1 }));
  let changed = () => {};

  function choose() {
    const chosen = algorithms[algorithm.control.value];
    about.textContent = chosen.says;
    limit.control.value = kept[algorithm.control.value];
    windows.node.hidden = !chosen.windows;
    show(windows.control, (chosen.windows ?? ['epoch']).map((name) => h('option', { value: name }, name)));
  }
  algorithm.control.addEventListener('change', () => { choose(); changed(); });
  windows.control.addEventListener('change', () => changed());
  cost.control.addEventListener('input', () => changed());
  let typing;
  limit.control.addEventListener('input', () => {
    kept[algorithm.control.value] = limit.control.value;
    clearTimeout(typing);
    typing = setTimeout(() => changed(), 250);
  });
  algorithm.node.append(about);
  choose();

  const places = { limit, algorithm, window: windows, cost };
  return {
    node: h('div', { class: 'stack' }, algorithm.node, limit.node, windows.node, cost.node),
    cost: () => Math.max(1, Math.floor(Number(cost.control.value)) || 1),
    value() {
      const name = algorithm.control.value;
      const more = algorithms[name].windows ? { window: windows.control.value } : {};
      return { limit: limit.control.value.trim(), algorithm: name, ...more };
    },
    onchange(act) { changed = act; },
    complain(problem) {
      const at = problem && (places[problem.path] ?? limit);
      for (const place of Object.values(places)) place.complain(place === at ? problem.detail : null);
    },
  };
}

/** One act for a press, more for as long as it is held, by pointer or keyboard. */
function holdable(button, signal, once, hold) {
  let timer = null;
  let down = false;
  const begin = () => {
    if (down) return;
    down = true;
    once();
    timer = setTimeout(() => hold(true), HOLD_AFTER_MS);
  };
  const end = () => {
    clearTimeout(timer);
    hold(false);
    // The click that follows a press is not another one.
    setTimeout(() => { down = false; });
  };
  const isPress = (event) => event.key === ' ' || event.key === 'Enter';
  const on = (name, act) => button.addEventListener(name, act, { signal });
  on('pointerdown', (event) => { if (event.button === 0) begin(); });
  for (const name of ['pointerup', 'pointercancel', 'pointerleave', 'blur']) on(name, () => { if (down) end(); });
  on('keydown', (event) => { if (isPress(event)) { event.preventDefault(); begin(); } });
  on('keyup', (event) => { if (isPress(event)) { event.preventDefault(); end(); } });
  // What assistive technology sends is a click and nothing before it.
  on('click', () => { if (!down) once(); });
}
