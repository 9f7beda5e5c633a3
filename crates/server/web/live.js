// What the server says by itself: one stream for the whole tab, and the last statistics. Paused while hidden.

import * as api from './api.js';

const EVENTS = ['stats', 'violation', 'rules', 'store'];
/** Seconds that a chart of the Overview shows. */
const KEPT = 900;

const target = new EventTarget();
let stream = null;

export const live = {
  /** The last answer of `/v1/stats`; its `per_second` grows with every second heard. */
  stats: null,
  /** `live`, `waiting` or `paused`. */
  state: 'waiting',

  /** Calls `hear` with the data of each event `name` until the page is left. */
  on(name, signal, hear) {
    target.addEventListener(name, ({ detail }) => hear(detail), { signal });
  },

  /** Asks for the statistics anew. */
  async refresh(signal) {
    live.stats = complete(await api.stats(signal));
    tell('refreshed', live.stats);
    return live.stats;
  },
};

/** Without the present second, which is not over yet. */
function complete(stats) {
  const { start_s: start, allowed, refused } = stats.per_second;
  const over = Math.max(0, Math.floor(stats.now_ms / 1000) - start);
  stats.per_second = { start_s: start, allowed: allowed.slice(0, over), refused: refused.slice(0, over) };
  return stats;
}

const tell = (name, detail) => target.dispatchEvent(new CustomEvent(name, { detail }));

/** Begins to listen, for as long as somebody looks. */
export function begin() {
  const turn = () => (document.hidden ? pause() : resume());
  document.addEventListener('visibilitychange', turn);
  turn();
}

function pause() {
  stream?.abort();
  stream = null;
  change('paused');
}

function resume() {
  if (stream) return;
  stream = new AbortController();
  api.follow(EVENTS, stream.signal, hear, (state) => {
    change(state);
    // What was missed is in the statistics.
    if (state === 'live') live.refresh().catch((problem) => tell('failed', problem));
  });
}

function change(state) {
  live.state = state;
  tell('state', state);
}

function hear(name, data) {
  if (name === 'stats') append(data);
  if (name === 'store' && live.stats) live.stats.store.up = data.up;
  if (name === 'rules' && live.stats) Object.assign(live.stats.rule_set, data);
  tell(name, data);
}

/** Adds a second to the last fifteen minutes. Replayed ones are there already; missed ones were quiet to us. */
function append({ second, allowed, refused, store_up: up }) {
  if (!live.stats) return;
  live.stats.store.up = up;
  const seconds = live.stats.per_second;
  const at = second - seconds.start_s;
  if (at < 0 || at > seconds.allowed.length + KEPT) return;
  while (seconds.allowed.length <= at) {
    seconds.allowed.push(0);
    seconds.refused.push(0);
  }
  seconds.allowed[at] = allowed;
  seconds.refused[at] = refused;
  const extra = Math.max(0, seconds.allowed.length - KEPT);
  seconds.allowed.splice(0, extra);
  seconds.refused.splice(0, extra);
  seconds.start_s += extra;
}
