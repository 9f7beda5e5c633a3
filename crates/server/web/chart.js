// Charts as SVG, drawn at the width they have. Colours come from the style sheet, by class.

import { h, svg, show } from './dom.js';
import { clock, compact, minute, number } from './format.js';

const LEFT = 44;
const BOTTOM = 20;
const TOP = 8;
/** A server that has just started has little to show, and shows it large. */
const LEAST_SECONDS = 120;

/** What a drawing is called before it shows anything. */
const NOTHING = 'nothing to show yet';

/** A figure that is drawn anew whenever its width or its data change. */
function drawing(height, kind, draw) {
  const view = svg('svg', { height, role: 'img', class: 'drawing', 'aria-label': NOTHING });
  const node = h('figure', { class: `chart ${kind}` }, view);
  let width = 0;
  const redraw = () => { if (width > 0) draw(view, width); };
  new ResizeObserver(([{ contentRect }]) => {
    width = Math.floor(contentRect.width);
    view.setAttribute('viewBox', `0 0 ${width} ${height}`);
    redraw();
  }).observe(node);
  return { node, view, redraw, width: () => width };
}

/** The least round number that is not below, with a half that is round too: 1, 2, 4, 6, 8, 10, 20, 40, … */
export function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, value)));
  return [1, 2, 4, 6, 8, 10].map((step) => step * power).find((step) => step >= value) ?? 1;
}

/** Lines and numbers of the vertical axis. */
function levels(width, height, top) {
  const y = scale(height, top);
  const steps = top > 1 ? [0, top / 2, top] : [0, top];
  return steps.map((value) => [
    svg('line', { class: 'level', x1: LEFT, x2: width, y1: y(value), y2: y(value) }),
    svg('text', { class: 'tick', x: LEFT - 8, y: y(value) + 4, 'text-anchor': 'end' }, compact(value)),
  ]);
}

const scale = (height, top) => (value) => Math.round(10 * (height - BOTTOM - (value / top) * (height - BOTTOM - TOP))) / 10;

/** Labels of the horizontal axis: `[x, text]` pairs. The outermost stay inside. */
function labels(width, height, pairs) {
  return pairs.map(([x, text]) => {
    const anchor = x < LEFT + 24 ? 'start' : x > width - 24 ? 'end' : 'middle';
    return svg('text', { class: 'tick', x, y: height - 4, 'text-anchor': anchor }, text);
  });
}

/** Allowed and refused, second by second, one on top of the other. `update({ start_s, allowed, refused })`. */
export function secondsChart() {
  const height = 220;
  let data = null;
  let hovered = null;
  const readout = h('output', { class: 'readout' });
  // A server that has just started has no second behind it.
  const chart = drawing(height, 'seconds', (view, width) => { if (data?.allowed.length > 0) draw(view, width); });
  const caption = h('figcaption', {},
    h('span', { class: 'key allowed' }, 'allowed'), h('span', { class: 'key refused' }, 'refused'), readout);
  chart.node.prepend(caption);

  function draw(view, width) {
    const count = data.allowed.length;
    const seconds = Math.max(count, LEAST_SECONDS);
    const step = (width - LEFT) / (seconds - 1);
    const x = (at) => Math.round(10 * (width - (count - 1 - at) * step)) / 10;
    const total = data.allowed.map((allowed, at) => allowed + data.refused[at]);
    const top = roundUp(Math.max(...total, 1));
    const y = scale(height, top);
    const line = (values) => values.map((value, at) => `${x(at)},${y(value)}`).join('L');
    const area = (upper, lower) => `M${line(upper)}L${[...lower.keys()].reverse().map((at) => `${x(at)},${y(lower[at])}`).join('L')}Z`;
    const first = data.start_s;
    const marks = [];
    const apart = [60, 120, 300].find((size) => size * step > 90) ?? 300;
    for (let s = Math.ceil(first / apart) * apart; s < first + count; s += apart) marks.push([x(s - first), minute(s * 1000)]);
    show(view, levels(width, height, top), labels(width, height, marks),
      svg('path', { class: 'area allowed', d: area(data.allowed, total.map(() => 0)) }),
      svg('path', { class: 'area refused', d: area(total, data.allowed) }),
      svg('path', { class: 'line allowed', d: `M${line(data.allowed)}` }),
      hovered !== null && svg('line', { class: 'cursor', x1: hovered, x2: hovered, y1: TOP, y2: height - BOTTOM }));
    const at = hovered === null ? count - 1 : Math.round(count - 1 - (width - hovered) / step);
    readout.textContent = at >= 0 && at < count
      ? `${clock((first + at) * 1000)}   ${number(data.allowed[at])} allowed   ${number(data.refused[at])} refused` : '';
    view.setAttribute('aria-label', `Decisions per second over the last ${Math.ceil(count / 60)} minutes. ` +
      `Now ${data.allowed[count - 1]} allowed and ${data.refused[count - 1]} refused; at most ${Math.max(...total)} together.`);
  }
  chart.view.addEventListener('pointermove', (event) => {
    hovered = Math.max(LEFT, event.offsetX);
    chart.redraw();
  });
  chart.view.addEventListener('pointerleave', () => { hovered = null; chart.redraw(); });
  return { node: chart.node, update(next) { data = next; chart.redraw(); } };
}

/**
 * Columns over time. `behind` are drawn pale behind `values`, `ticks` are `[share of the width, text]` pairs and
 * `describe(at)` is what a column says under the pointer.
 */
export function columnsChart({ label, values, behind = null, top, ticks, height = 120, kind = 'allowed', describe }) {
  const chart = drawing(height, 'columns', (view, width) => {
    const step = (width - LEFT) / values.length;
    const y = scale(height, top);
    const gap = step > 4 ? 1 : 0;
    const column = (name) => (value, at) => value > 0 && svg('rect', {
      class: name, x: LEFT + at * step, y: y(Math.min(value, top)), width: Math.max(0.5, step - gap),
      height: Math.max(0, height - BOTTOM - y(Math.min(value, top))),
    }, svg('title', {}, describe(at)));
    show(view, levels(width, height, top), behind?.map(column('behind')), values.map(column(`column ${kind}`)),
      labels(width, height, ticks.map(([share, text]) => [LEFT + share * (width - LEFT), text])));
  });
  chart.view.setAttribute('aria-label', label);
  return chart.node;
}

/** A vessel with a level, for what is left in a bucket or waits in a queue. `update({ level, of, kind })`. */
export function vessel() {
  const [width, height, inset] = [130, 170, 10];
  const inner = height - 2 * inset;
  const body = svg('rect', { class: 'content', x: inset, y: inset, width: width - 2 * inset, height: inner });
  const marks = svg('g', { class: 'marks' });
  const view = svg('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', class: 'vessel', 'aria-label': NOTHING, width, height },
    svg('defs', {}, svg('clipPath', { id: 'inside' }, svg('rect', { x: inset, y: inset, width: width - 2 * inset, height: inner, rx: 8 }))),
    svg('g', { 'clip-path': 'url(#inside)' }, body), marks,
    svg('path', { class: 'wall', d: `M${inset - 3} ${inset - 6}V${height - inset - 6}a9 9 0 0 0 9 9H${width - inset - 6}a9 9 0 0 0 9 -9V${inset - 6}` }));
  let marked = null;
  return {
    node: view,
    update({ level, of, kind, text }) {
      const full = of > 0 ? Math.max(0, Math.min(1, level / of)) : 0;
      body.style.transform = `translateY(${Math.round((1 - full) * inner)}px)`;
      view.setAttribute('aria-label', text);
      view.dataset.kind = kind;
      if (marked === of) return;
      marked = of;
      const steps = of <= 20 ? of : 10;
      show(marks, Array.from({ length: Math.max(0, steps - 1) }, (_, at) => {
        const y = inset + ((at + 1) / steps) * inner;
        return svg('line', { x1: inset, x2: inset + (steps <= 20 ? 8 : 14), y1: y, y2: y });
      }));
    },
    /** A moment of colour at the wall: this one was refused. */
    turnBack() {
      view.classList.remove('turned');
      requestAnimationFrame(() => view.classList.add('turned'));
    },
  };
}

/** The last seconds of verdicts: what was left as a line, a mark for each request. `add`, `draw`. */
export function verdictLine(seconds) {
  const height = 150;
  const lane = 26;
  let seen = [];
  let levelsSeen = [];
  let top = 1;
  const chart = drawing(height, 'verdicts', (view, width) => {
    const now = performance.now();
    const from = now - seconds * 1000;
    seen = seen.filter(({ at }) => at > from - 1000);
    const old = levelsSeen.filter(({ at }) => at <= from).length;
    levelsSeen.splice(0, Math.max(0, old - 1));
    const x = (at) => Math.round(10 * Math.max(LEFT, LEFT + ((at - from) / (seconds * 1000)) * (width - LEFT))) / 10;
    const y = (value) => Math.round(10 * (height - BOTTOM - lane - (Math.min(value, top) / top) * (height - BOTTOM - lane - TOP))) / 10;
    // In steps: between two answers nobody knows.
    const steps = levelsSeen.map(({ at, level }) => `H${x(at)}V${y(level)}`).join('');
    const base = height - BOTTOM - lane;
    const marks = Array.from({ length: Math.floor(seconds / 5) + 1 }, (_, at) => [x(now - at * 5000), at === 0 ? 'now' : `-${at * 5} s`]);
    show(view,
      [0, top].map((value) => [
        svg('line', { class: 'level', x1: LEFT, x2: width, y1: y(value), y2: y(value) }),
        svg('text', { class: 'tick', x: LEFT - 8, y: y(value) + 4, 'text-anchor': 'end' }, compact(value))]),
      labels(width, height, marks),
      steps && svg('path', { class: 'area left', d: `M${x(levelsSeen[0].at)},${base}${steps}H${width}V${base}Z` }),
      steps && svg('path', { class: 'line left', d: `M${x(levelsSeen[0].at)},${y(levelsSeen[0].level)}${steps}H${width}` }),
      seen.filter(({ at }) => at > from).map(({ at, allowed }) => (allowed
        ? svg('rect', { class: 'mark allowed', x: x(at) - 1.5, y: base + 5, width: 3, height: 14, rx: 1.5 })
        : svg('path', { class: 'mark refused', d: `M${x(at) - 4} ${base + 8}l8 8m0 -8l-8 8` }))));
  });
  return {
    node: chart.node,
    level(level, of) {
      top = Math.max(1, of);
      levelsSeen.push({ at: performance.now(), level });
    },
    verdict(allowed) { seen.push({ at: performance.now(), allowed }); },
    draw(label) { chart.view.setAttribute('aria-label', label); chart.redraw(); },
    clear() { seen = []; levelsSeen = []; },
  };
}
