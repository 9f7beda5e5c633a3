// What the server says by itself: one stream for the whole tab, and the last statistics. Paused while hidden.

import * as api from './api.js';

const EVENTS = ['stats', 'violation', 'rules', 'store'];
/** Seconds that a chart of the Overview shows. */
const KEPT = 900;
/** Without news for this long the server counts as lost; it normally sends some every second. */
const LOST_AFTER_MS = 7000;

const target = new EventTarget();
let stream = null;
/** When the connection was last opened by this tab, and when the server was last heard. */
let [resumed, heard] = [Date.now(), null];

export const live = {
  /** The last answer of `/v1/stats`; its `per_second` grows with every second heard. */
  stats: null,
  /** `live`, `waiting` or `paused`. */
  state: 'waiting',
  /** Whether the server no longer answers, so that what is shown is old. */
  lost: false,

  /** Calls `hear` with the data of each event `name` until the page is left. */
  on(name, signal, hear) {
    target.addEventListener(name, ({ detail }) => hear(detail), { signal });
  },

  /** Milliseconds since the server was last heard. */
  age: () => Date.now() - (heard ?? resumed),

  /** Decisions of the last minute that were made without the store. */
  degraded: () => (live.stats?.per_second.degraded ?? []).slice(-60).reduce((sum, count) => sum + count, 0),

  /** Asks for the statistics anew. */
  async refresh(signal) {
    try {
      live.stats = complete(await api.stats(signal));
    } catch (problem) {
      if (problem instanceof api.Problem && problem.status === 0) lose(true);
      throw problem;
    }
    news();
    tell('refreshed', live.stats);
    return live.stats;
  },
};

function news() {
  heard = Date.now();
  lose(false);
}

function lose(lost) {
  if (live.lost === lost) return;
  live.lost = lost;
  tell('lost', lost);
}

/** Without the present second, which is not over yet; `decided` and `totals.degraded` grow with every second heard. */
function complete(stats) {
  const { start_s: start, allowed, refused, degraded } = stats.per_second;
  const over = Math.max(0, Math.floor(stats.now_ms / 1000) - start);
  const present = (counts) => counts.slice(over).reduce((sum, count) => sum + count, 0);
  const { totals } = stats;
  stats.decided = totals.allowed + totals.refused + totals.denied + totals.unavailable - present(allowed) - present(refused);
  totals.degraded -= present(degraded);
  stats.per_second = {
    start_s: start, allowed: allowed.slice(0, over), refused: refused.slice(0, over), degraded: degraded.slice(0, over),
  };
  return stats;
}

const tell = (name, detail) => target.dispatchEvent(new CustomEvent(name, { detail }));

/** Begins to listen, for as long as somebody looks. */
export function begin() {
  const turn = () => (document.hidden ? pause() : resume());
  document.addEventListener('visibilitychange', turn);
  setInterval(() => { if (stream && Date.now() - Math.max(heard ?? 0, resumed) > LOST_AFTER_MS) lose(true); }, 1000);
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
  resumed = Date.now();
  api.follow(EVENTS, stream.signal, hear, (state) => {
    change(state);
    // What was missed is in the statistics; and whether the server is lost or only the stream.
    live.refresh().catch((problem) => tell('failed', problem));
  });
}

function change(state) {
  live.state = state;
  tell('state', state);
}

function hear(name, data) {
  news();
  if (name === 'stats') append(data);
  if (name === 'store' && live.stats) live.stats.store.up = data.up;
  if (name === 'rules' && live.stats) Object.assign(live.stats.rule_set, data);
  tell(name, data);
}

/** Adds a second to the last fifteen minutes. Replayed ones are there already; missed ones were quiet to us. */
function append({ second, allowed, refused, degraded, store_up: up }) {
  if (!live.stats) return;
  live.stats.store.up = up;
  const seconds = live.stats.per_second;
  const at = second - seconds.start_s;
  if (at < 0 || at > seconds.allowed.length + KEPT) return;
  while (seconds.allowed.length <= at) {
    seconds.allowed.push(0);
    seconds.refused.push(0);
    seconds.degraded.push(0);
  }
  live.stats.decided += allowed + refused - seconds.allowed[at] - seconds.refused[at];
  live.stats.totals.degraded += degraded - seconds.degraded[at];
  seconds.allowed[at] = allowed;
  seconds.refused[at] = refused;
  seconds.degraded[at] = degraded;
  const extra = Math.max(0, seconds.allowed.length - KEPT);
  seconds.allowed.splice(0, extra);
  seconds.refused.splice(0, extra);
  seconds.degraded.splice(0, extra);
  seconds.start_s += extra;
}
