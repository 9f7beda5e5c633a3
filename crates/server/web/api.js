// Every call to the server. Who is signed in is in a cookie that no script can read. A 401 asks to sign in once, for all calls
// that wait for it, and tries again; a 403 asks for a token that may do more.

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

/** Shows the dialog that signs in; resolves to whether somebody did. It is in `app.js`. */
let ask = async () => false;
let asking = null;
let declined = false;
export function signInWith(dialog) { ask = dialog; }

/** Whoever did not want to give one is not asked again before they do something. */
export function mayAskAgain() { declined = false; }

async function signInAgain(problem) {
  if (declined) return false;
  asking ??= ask(problem).finally(() => { asking = null; });
  const signedIn = await asking;
  declined = !signedIn;
  return signedIn;
}

async function exchange(path, { method = 'GET', body, headers = {}, signal } = {}) {
  const request = { method, signal, headers: { ...headers }, cache: 'no-store' };
  if (method !== 'GET') request.headers['content-type'] = 'application/json';
  if (body !== undefined) request.body = JSON.stringify(body);
  try {
    return await fetch(path, request);
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Problem(0, { title: 'no answer', detail: 'tollgate cannot be reached; is it running?' });
  }
}

async function send(path, options = {}) {
  const response = await exchange(path, options);
  if (![401, 403].includes(response.status)) return response;
  const problem = await problemOf(response);
  if (await signInAgain(problem)) return send(path, options);
  throw problem;
}

/** Signs in with `{ code }` of a login link or `{ token }`; a Problem if that fails. */
export async function signIn(body) {
  const response = await exchange('/v1/session', { method: 'POST', body });
  if (!response.ok) throw await problemOf(response);
}

export const signOut = () => exchange('/v1/session', { method: 'DELETE' });
/** Who is signed in: `{ name, role }`. */
export const session = () => json('/v1/session');

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

const ifMatch = (version) => ({ 'if-match': `"${version}"` });

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
export const addRule = (rule) => json('/v1/rules', { method: 'POST', body: rule });
export const putRule = (id, version, rule) =>
  json(`/v1/rules/${id}`, { method: 'PUT', body: rule, headers: ifMatch(version) });
export const patchRule = (id, version, fields) =>
  json(`/v1/rules/${id}`, { method: 'PATCH', body: fields, headers: ifMatch(version) });
export const removeRule = (id, version) => json(`/v1/rules/${id}`, { method: 'DELETE', headers: ifMatch(version) });
export const previewRules = (set, signal) =>
  json('/v1/rules/preview', { method: 'POST', body: { rules: set, recent: true }, signal });
export const history = (filter, signal) => json(`/v1/rules/history${query(filter)}`, { signal });
export const undo = (id) => json(`/v1/rules/history/${id}/undo`, { method: 'POST' });

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

/** The events of a text/event-stream. `EventSource` does not say why it cannot connect. */
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
