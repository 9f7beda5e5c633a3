// Every call to the server. A 401 asks for a token once, for all calls that wait for it, and tries again; a 403 asks for one
// that may do more.

const TOKEN = 'tollgate-token';
/** A stream that was silent for so long is taken for dead: the server speaks every second. */
const SILENCE_MS = 10_000;
const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 10_000;

/** An answer that is no success, in the words of problem+json. */
export class Problem extends Error {
  constructor(status, body) {
    super(body.detail ?? body.title);
    this.status = status;
    this.title = sentence(body.title ?? `the server answered ${status}`);
    this.detail = sentence(body.detail ?? '');
    this.path = body.path ?? null;
    this.errors = body.errors ?? [];
    this.current = body.current ?? null;
  }
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** Whom to ask for a token; `app.js` shows the dialog. Resolves to a token, or null. */
let ask = async () => null;
let asking = null;
let declined = false;
export function askForTokensWith(dialog) { ask = dialog; }

/** Whoever did not want to give one is not asked again before they do something. */
export function mayAskAgain() { declined = false; }

const token = () => sessionStorage.getItem(TOKEN);

async function newToken(problem) {
  if (declined) return null;
  asking ??= ask(problem).finally(() => { asking = null; });
  const given = await asking;
  if (given) sessionStorage.setItem(TOKEN, given);
  declined = !given;
  return given;
}

async function send(path, { method = 'GET', body, headers = {}, signal } = {}) {
  const bearer = token();
  const request = { method, signal, headers: { ...headers }, cache: 'no-store' };
  if (bearer) request.headers.authorization = `Bearer ${bearer}`;
  if (body !== undefined) {
    request.headers['content-type'] = 'application/json';
    request.body = JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(path, request);
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Problem(0, { title: 'no answer', detail: 'tollgate cannot be reached; is it running?' });
  }
  if (![401, 403].includes(response.status)) return response;
  const problem = await problemOf(response);
  if (await newToken(problem)) return send(path, { method, body, headers, signal });
  throw problem;
}

async function problemOf(response) {
  const body = await response.json().catch(() => ({}));
  return new Problem(response.status, body);
}

/** The JSON of an answer, or a Problem. */
async function json(path, options) {
  const response = await send(path, options);
  if (!response.ok) throw await problemOf(response);
  return response.status === 204 ? null : response.json();
}

function query(parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== '');
  return given.length > 0 ? `?${new URLSearchParams(given)}` : '';
}

const ifMatch = (version) => ({ 'if-match': `"${version}"`, 'tollgate-actor': 'dashboard' });

export const stats = (signal) => json('/v1/stats', { signal });
export const decisions = (filter, signal) => json(`/v1/decisions${query(filter)}`, { signal });
export const decision = (id, signal) => json(`/v1/decisions/${encodeURIComponent(id)}`, { signal });
export const explain = (body, signal) => json('/v1/explain', { method: 'POST', body, signal });
export const violations = (filter, signal) => json(`/v1/violations${query(filter)}`, { signal });
export const replay = (rules, trace, signal) => json('/v1/replay', { method: 'POST', body: { rules, trace }, signal });

const keyPath = (key, limit) => `/v1/keys/${encodeURIComponent(key)}${query(limit)}`;
/** The buckets of a key, and the one it has with a limit of its own: `{ limit, algorithm }`. */
export const key = (name, limit, signal) => json(keyPath(name, limit), { signal });
export const resetKey = (name, limit) => json(keyPath(name, limit), { method: 'DELETE' });

export const rules = (signal) => json('/v1/rules', { signal });
export const addRule = (rule) =>
  json('/v1/rules', { method: 'POST', body: rule, headers: { 'tollgate-actor': 'dashboard' } });
export const putRule = (id, version, rule) =>
  json(`/v1/rules/${id}`, { method: 'PUT', body: rule, headers: ifMatch(version) });
export const patchRule = (id, version, fields) =>
  json(`/v1/rules/${id}`, { method: 'PATCH', body: fields, headers: ifMatch(version) });
export const removeRule = (id, version) => json(`/v1/rules/${id}`, { method: 'DELETE', headers: ifMatch(version) });
export const previewRules = (set, signal) =>
  json('/v1/rules/preview', { method: 'POST', body: { rules: set, recent: true }, signal });
export const history = (filter, signal) => json(`/v1/rules/history${query(filter)}`, { signal });
export const undo = (id) =>
  json(`/v1/rules/history/${id}/undo`, { method: 'POST', headers: { 'tollgate-actor': 'dashboard' } });

/** One request at the playground's gate: the decision with the status and headers that it came in. */
export async function knock(body, signal) {
  const response = await send('/v1/playground', { method: 'POST', body, signal });
  const isDecision = response.headers.get('content-type') === 'application/json';
  if (!isDecision) throw await problemOf(response);
  const { status, statusText } = response;
  return { status, statusText, headers: [...response.headers], decision: await response.json() };
}

/**
 * Follows the server's events until told to stop, and takes up again where the stream broke off.
 * `hear(event, data)` gets each event, `state('live' | 'waiting')` each change.
 */
export async function follow(only, signal, hear, state) {
  let last = null;
  let pause = FIRST_PAUSE_MS;
  while (!signal.aborted) {
    const attempt = new AbortController();
    const stop = () => attempt.abort();
    signal.addEventListener('abort', stop);
    try {
      const headers = { accept: 'text/event-stream', ...(last && { 'last-event-id': last }) };
      const response = await send(`/v1/events?only=${only.join(',')}`, { headers, signal: attempt.signal });
      if (!response.ok) throw await problemOf(response);
      state('live');
      pause = FIRST_PAUSE_MS;
      for await (const event of events(response.body, attempt)) {
        last = event.id ?? last;
        hear(event.name, JSON.parse(event.data));
      }
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof Problem) && error.name !== 'AbortError' && error.name !== 'TypeError') console.error(error);
    } finally {
      signal.removeEventListener('abort', stop);
    }
    state('waiting');
    // Spread out, so that the tabs of a fleet do not come back all at once.
    await new Promise((resolve) => setTimeout(resolve, pause * (0.75 + Math.random() / 2)));
    pause = Math.min(2 * pause, LONGEST_PAUSE_MS);
  }
}

/** The events of a text/event-stream. `EventSource` could not send a token. */
async function* events(body, attempt) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  for (;;) {
    const watchdog = setTimeout(() => attempt.abort(), SILENCE_MS);
    const { value, done } = await reader.read().finally(() => clearTimeout(watchdog));
    if (done) return;
    const blocks = (text + value).split('\n\n');
    text = blocks.pop();
    yield* blocks.map(event).filter(({ data }) => data);
  }
}

function event(block) {
  const read = { name: 'message', id: null, data: '' };
  for (const line of block.split('\n')) {
    const [, name, value] = /^([a-z]+): ?(.*)$/.exec(line) ?? [];
    if (name === 'event') read.name = value;
    if (name === 'id') read.id = value;
    if (name === 'data') read.data += value;
  }
  return read;
}
