// Elements, and the few parts that every page is made of. Text goes in as text: nothing here parses HTML.

const SVG = 'http://www.w3.org/2000/svg';

/** Builds an element: `h('button', { class: 'quiet', onclick: undo }, 'Undo')`. */
export function h(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) put(node, name, value);
  return fill(node, children);
}

/** The same in a drawing. */
export function svg(tag, props = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(props)) {
    if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  return fill(node, children);
}

/** Replaces what is in a node. */
export function show(node, ...children) {
  node.replaceChildren();
  return fill(node, children);
}

function put(node, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
  else if (name === 'value' || name === 'checked') node[name] = value;
  else node.setAttribute(name, value === true ? '' : value);
}

function fill(node, children) {
  const flat = children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
  node.append(...flat);
  return node;
}

/** A heading that takes the focus when its page opens, and what stands beside it. */
export function pageHead(title, lead, ...beside) {
  return h('div', { class: 'head' },
    h('div', {}, h('h1', { tabindex: -1 }, title), lead && h('p', { class: 'lead' }, lead)),
    beside.length > 0 && h('div', { class: 'actions' }, beside));
}

/** A part of a page with a title. */
export function panel(title, props, ...children) {
  const { beside, ...rest } = props;
  return h('section', { ...rest, class: `panel ${rest.class ?? ''}`.trim() },
    h('header', {}, h('h2', {}, title), beside), children);
}

/**
 * A table that scrolls by itself where it is too wide. A column has a name, which is not seen where it goes without
 * saying; it may be of numbers, only for wide screens, or grow.
 */
export function table(label, columns, rows) {
  const kinds = (column) => ['number', 'wide', 'grow'].filter((kind) => column[kind]).join(' ') || null;
  const head = (column) => h('th', { scope: 'col', class: kinds(column) },
    column.unseen ? h('span', { class: 'hidden' }, column.name) : column.name);
  return scroll(label, h('table', {},
    h('thead', {}, h('tr', {}, columns.map(head))),
    h('tbody', {}, rows.map((row) => h('tr', {}, columns.map((column, at) => h('td', { class: kinds(column) }, row[at])))))));
}

/** Something wide that is reached with the keyboard too. */
export function scroll(label, child) {
  return h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': label }, child);
}

/** Nothing to see yet, and what would change that. */
export function empty(title, ...hint) {
  return h('div', { class: 'empty' }, h('p', {}, h('strong', {}, title)), hint.length > 0 && h('p', {}, hint));
}

/** What went wrong, in the server's words, and a way to try again. */
export function failure(problem, retry) {
  return h('div', { class: 'empty failed', role: 'alert' },
    h('p', {}, h('strong', {}, problem.title)),
    h('p', {}, problem.detail),
    retry && h('p', {}, h('button', { type: 'button', onclick: retry }, 'Try again')));
}

let fields = 0;

/** A labelled control with room for a hint and for what the server says about it. */
export function field(label, control, hint) {
  fields += 1;
  control.id ||= `field-${fields}`;
  const error = h('p', { class: 'error', id: `${control.id}-error` });
  const help = hint && h('p', { class: 'hint', id: `${control.id}-hint` }, hint);
  control.setAttribute('aria-describedby', [help && help.id, error.id].filter(Boolean).join(' '));
  const node = h('div', { class: 'field' }, h('label', { for: control.id }, label), control, help, error);
  const complain = (message) => {
    error.textContent = message ?? '';
    if (message) control.setAttribute('aria-invalid', 'true');
    else control.removeAttribute('aria-invalid');
  };
  return { node, control, complain };
}

/** A choice out of `[value, label]` pairs or plain values. */
export function select(options, chosen, props = {}) {
  const pairs = options.map((option) => (Array.isArray(option) ? option : [option, option]));
  return h('select', props, pairs.map(([value, label]) =>
    h('option', { value, selected: value === chosen }, label)));
}

/** A word in a frame: the mode of a rule, the outcome of a decision. */
export function tag(kind, text = kind) {
  return h('span', { class: `tag ${kind}` }, text);
}

/** One word for what became of a request. */
export function verdict(outcome) {
  return tag(outcome === 'allowed' ? 'allowed' : 'refused', outcome);
}

/** A key, and the way to its buckets. */
export function keyLink(key) {
  return h('a', { href: `#/keys/${encodeURIComponent(key)}` }, h('code', {}, key));
}

/** Facts side by side: `[name, value]` pairs, the values at the right or next to their names. */
export function facts(pairs, kind = 'right') {
  return h('dl', { class: `facts ${kind}` }, pairs.filter(Boolean).map(([name, value]) =>
    h('div', {}, h('dt', {}, name), h('dd', {}, value))));
}

/** Calls a function again and again until the page is left; not while nobody looks. */
export function every(ms, signal, act) {
  const timer = setInterval(() => { if (!document.hidden) act(); }, ms);
  signal.addEventListener('abort', () => clearInterval(timer));
}

/** Asks before something that is hard to take back. Resolves to whether to do it. */
export function confirmed(title, text, yes) {
  return new Promise((resolve) => {
    const dialog = h('dialog', { 'aria-labelledby': 'confirm-title' },
      h('form', { method: 'dialog' },
        h('h2', { id: 'confirm-title' }, title), h('p', {}, text),
        h('div', { class: 'actions' },
          h('button', { value: 'no' }, 'Cancel'),
          h('button', { value: 'yes', class: 'danger' }, yes))));
    dialog.addEventListener('close', () => { dialog.remove(); resolve(dialog.returnValue === 'yes'); });
    document.body.append(dialog);
    dialog.showModal();
  });
}

let fading;

/** Says that something was done, with perhaps a way back. */
export function notice(text, action) {
  const place = document.getElementById('notice');
  show(place, h('div', { class: 'notice' }, h('span', {}, text),
    action && h('button', { type: 'button', class: 'quiet', onclick: () => { show(place); action.act(); } }, action.name)));
  clearTimeout(fading);
  fading = setTimeout(() => show(place), 8000);
}
