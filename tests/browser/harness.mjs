// A real server on a free port with a folder of its own, and Debian's Chromium.

import { execFile, spawn } from 'node:child_process';
import { access, mkdtemp, readFile, rm } from 'node:fs/promises';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { chromium } from 'playwright-core';

const DEADLINE_MS = 20_000;
const root = join(import.meta.dirname, '../..');

/** The program under test: `TOLLGATE_BIN`, or the debug build. */
const program = resolve(process.env.TOLLGATE_BIN ?? join(process.env.CARGO_TARGET_DIR ?? join(root, 'target'), 'debug/tollgate'));

/** Asks again and again until something is there; fails with `what` after the deadline. */
export async function eventually(what, ask, deadline = DEADLINE_MS) {
  const end = Date.now() + deadline;
  for (;;) {
    const found = await ask();
    if (found) return found;
    if (Date.now() > end) throw new Error(`after ${deadline} ms still not: ${what}`);
    await pause(20);
  }
}

/** Starts `tollgate serve` with more arguments and waits until it listens. */
export async function startServer(...more) {
  const folder = await mkdtemp(join(tmpdir(), 'tollgate-browser-'));
  const ready = join(folder, 'ready.json');
  const child = spawn(program, ['serve', '--data-dir', 'data', '--ready-file', ready, ...more],
    { cwd: folder, env: { TOLLGATE_HTTP: '127.0.0.1:0', TOLLGATE_ADMIN: '127.0.0.1:0', ...process.env }, stdio: ['ignore', 'pipe', 'pipe'] });
  endWithUs(child);
  let [log, screen] = ['', ''];
  child.stdout.on('data', (text) => { screen += text; });
  child.stderr.on('data', (text) => { log = (log + text).slice(-10_000); });
  const gone = new Promise((resolve) => child.once('exit', resolve).once('error', resolve));
  let ended = false;
  gone.then(() => { ended = true; });
  await eventually(`${program} is listening`, async () => {
    if (ended) throw new Error(`${program} ended at once; build it with \`cargo build --workspace --bin tollgate\`\n${log}`);
    return access(ready).then(() => true, () => false);
  });
  const { http, admin } = JSON.parse(await readFile(ready, 'utf8'));
  const token = (await readFile(join(folder, 'data/token'), 'utf8')).trim().split(':').pop();
  const isData = (path) => /^\/v1\/(check|peek|refund|reserve|settle|authz)/.test(path);
  return {
    url: `http://${admin}`,
    checks: `http://${http}`,
    /** The secret of the server's own token. */
    token,
    pid: child.pid,
    folder,
    async stop() {
      child.kill('SIGTERM');
      await gone;
      await rm(folder, { recursive: true, force: true });
    },
    /** The login link of the first screen. */
    link: () => eventually('the login link', () => /http\S+#\/login\/\w+/.exec(screen)?.[0]),
    /** The link that `tollgate dashboard` prints. */
    newLink: () => new Promise((resolve, reject) => {
      execFile(program, ['dashboard'], { env: { TOLLGATE_DATA_DIR: join(folder, 'data') } },
        (error, printed) => (error ? reject(error) : resolve(printed.trim())));
    }),
    /** A call to its API; the JSON of the answer. */
    async call(method, path, body, headers = {}) {
      const response = await fetch(`http://${isData(path) ? http : admin}${path}`, {
        method,
        headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json', ...headers },
        body: body && JSON.stringify(body),
      });
      return response.status === 204 ? null : response.json();
    },
  };
}

/** A test that fails before it has stopped what it started leaves nothing behind. */
function endWithUs(child) {
  process.once('exit', () => child.kill('SIGKILL'));
}

/** A Redis of our own, without a file, on a free port unless it is to come back on the same. */
export async function startRedis(known) {
  const port = known ?? await freePort();
  const child = spawn('redis-server', ['--port', port, '--bind', '127.0.0.1', '--save', '', '--appendonly', 'no'], { stdio: 'ignore' });
  endWithUs(child);
  const gone = new Promise((resolve, reject) => child.once('exit', resolve)
    .once('error', () => reject(new Error('redis-server is missing; install the Debian package redis-server'))));
  const answers = () => new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1', () => { socket.destroy(); resolve(true); }).on('error', () => resolve(false));
  });
  await Promise.race([gone, eventually('redis-server is listening', answers)]);
  return { port, url: `redis://127.0.0.1:${port}`, async stop() { child.kill('SIGKILL'); await gone; } };
}

/**
 * A port that stays free while nothing listens on it: below those that the system gives to outgoing connections, so that a
 * server can come back on it.
 */
export async function freePort() {
  for (;;) {
    const port = 16_000 + Math.floor(Math.random() * 16_000);
    const isFree = await new Promise((resolve) => {
      const listener = createServer().on('error', () => resolve(false))
        .listen(port, '127.0.0.1', () => listener.close(() => resolve(true)));
    });
    if (isFree) return String(port);
  }
}

/** Chromium, as Debian has it. It asks nobody but our server. */
export async function startBrowser() {
  const executablePath = process.env.CHROMIUM ?? '/usr/bin/chromium';
  await access(executablePath).catch(() => { throw new Error(`${executablePath} is missing; install the Debian package chromium`); });
  return chromium.launch({
    executablePath,
    args: ['--no-sandbox', '--disable-dev-shm-usage', '--disable-background-networking', '--disable-component-update',
      '--disable-sync', '--no-first-run'],
  });
}
