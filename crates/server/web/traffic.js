// Traffic to compare algorithms on: instants in microseconds, from the beginning of a window on.

const WINDOWS = 4;
const MOST = 20_000;

/** Numbers between 0 and 1 that are the same for the same seed (mulberry32). */
function randomness(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

const spread = (from, length, count) => Array.from({ length: count }, (_, at) => from + Math.floor((at * length) / count));

const shapes = {
  steady: ({ count, window, load }) => spread(0, WINDOWS * window, Math.round(WINDOWS * count * load)),
  burst: ({ count, window, load }) => [0.5, 2.5].flatMap((at) =>
    spread(at * window, window / 50, Math.round(2 * count * load))).concat(spread(0, WINDOWS * window, Math.round(count * load))),
  edge: ({ count, window, load }) => spread(1.9 * window, 0.1 * window, Math.round(count * load))
    .concat(spread(2 * window, 0.1 * window, Math.round(count * load))),
  random({ count, window, load, seed }) {
    const random = randomness(seed);
    const mean = window / (count * load);
    const instants = [];
    for (let at = -Math.log(1 - random()) * mean; at < WINDOWS * window; at -= Math.log(1 - random()) * mean) instants.push(Math.floor(at));
    return instants;
  },
};

export const kinds = [
  ['steady', 'Steady'], ['burst', 'Bursts'], ['edge', 'Spike at a window’s edge'], ['random', 'Random'], ['pasted', 'A trace of yours'],
];

/** A trace of one kind. `count` and `window` (in µs) are the limit's, `load` is how many times that is sent. */
export function traffic(kind, options) {
  const instants = shapes[kind](options).map(Math.round).sort((a, b) => a - b).slice(0, MOST);
  return { trace: instants.map((t_us) => ({ t_us })), length: WINDOWS * options.window };
}

/** A pasted trace, one JSON object per line. Throws what is wrong with which line. */
export function pasted(text, window) {
  const lines = text.split('\n').map((line, at) => ({ line: line.trim(), at: at + 1 })).filter(({ line }) => line);
  if (lines.length === 0) throw new Error('Paste a trace: one object per line, such as {"t_us": 1500000}.');
  if (lines.length > MOST) throw new Error(`A trace has at most ${MOST} lines here; tollgate replay takes any number.`);
  const trace = lines.map(({ line, at }) => {
    try {
      const event = JSON.parse(line);
      if (Number.isInteger(event.t_us)) return event;
    } catch { /* said below, with the line */ }
    throw new Error(`Line ${at} is no object with a whole number t_us.`);
  });
  const end = Math.max(...trace.map(({ t_us: at }) => at)) + 1;
  return { trace, length: Math.max(window, Math.ceil(end / window) * window) };
}

/** The most that was admitted in any half-open interval of one window, over `[instant, cost]` pairs. */
export function worst(admitted, window) {
  const sorted = [...admitted].sort(([a], [b]) => a - b);
  let [from, sum, most] = [0, 0, 0];
  for (const [at, cost] of sorted) {
    sum += cost;
    for (; sorted[from][0] <= at - window; from += 1) sum -= sorted[from][1];
    most = Math.max(most, sum);
  }
  return most;
}
