// What the dashboard costs: for `bench/dashboard`, which records it.
//
// Processor time is the server's own (utime + stime of its process), so that neither the browser nor the load beside it
// counts. Rounds alternate: without, with an open Overview, with a hundred streams, without, … The table has medians.
// Known bias: the load arrives in batches of 1,000 requests, ten a second, so a decision costs less here than one that
// has an HTTP request to itself; the share of a stream in it is the larger for that.

import { readFile } from 'node:fs/promises';
import { get } from 'node:http';
import { setTimeout as pause } from 'node:timers/promises';
import { eventually, startBrowser, startServer } from './harness.mjs';
import { openPage } from './page.mjs';

const quick = process.argv.includes('--quick');
const ROUNDS = quick ? 1 : 7;
const ROUND_MS = quick ? 2000 : 10_000;
const LOADS = quick ? 3 : 21;
const BATCH = 1000;
const BATCHES_PER_SECOND = 10;
const STREAMS = 100;
/** Kernel ticks in a second, as /proc/PID/stat counts them on Linux. */
const TICKS = 100;

const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];

/** Seconds of processor time that the server has used. */
async function used(server) {
  const stat = await readFile(`/proc/${server.pid}/stat`, 'utf8');
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  return (Number(fields[11]) + Number(fields[12])) / TICKS;
}

/** 10,000 decisions a second until told to stop, a tenth of them refused; counts them. */
function load(server) {
  const requests = Array.from({ length: BATCH }, (_, at) =>
    ({ attributes: { user_id: at % 10 === 0 ? 'greedy' : `u${at}`, plan: 'enterprise', ip: `198.51.100.${at % 200}`, endpoint: '/api/orders' }, cost: at % 10 === 0 ? 100 : 1 }));
  const state = { decisions: 0, stopped: false };
  state.done = (async () => {
    // Ten batches a second and never more: what was missed is not made up for.
    for (let next = performance.now(); !state.stopped; next = Math.max(next + 1000 / BATCHES_PER_SECOND, performance.now())) {
      await server.call('POST', '/v1/check/batch', { requests });
      state.decisions += BATCH;
      await pause(Math.max(0, next - performance.now()));
    }
  })();
  return state;
}

/** The server's processor time over one round: share of a core, and microseconds per decision. */
async function round(server, traffic) {
  const [before, decisions, start] = [await used(server), traffic.decisions, performance.now()];
  await pause(ROUND_MS);
  const seconds = (performance.now() - start) / 1000;
  const cpu = (await used(server)) - before;
  return { share: (100 * cpu) / seconds, each: (1e6 * cpu) / (traffic.decisions - decisions), rate: (traffic.decisions - decisions) / seconds };
}

/** A reader of the event stream that does nothing with it; resolves when its first event is there. */
function stream(server) {
  return new Promise((resolve, reject) => {
    const request = get(`${server.url}/v1/events`, { agent: false, headers: { authorization: `Bearer ${server.token}` } }, (response) => {
      if (response.statusCode !== 200) return reject(new Error(`a stream was answered ${response.statusCode}`));
      response.on('data', () => resolve(request));
    });
    request.on('error', (error) => { if (!request.destroyed) reject(error); });
  });
}

async function firstPaints(browser, server) {
  const paints = [];
  let [bytes, files] = [0, 0];
  for (let at = 0; at < LOADS; at += 1) {
    const { page, close } = await openPage(browser, server);
    const paint = await eventually('the first paint', () => page.evaluate(() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime));
    paints.push(paint);
    await page.locator('#pulse[data-state=live]').waitFor();
    const sizes = await page.evaluate(() => [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]
      .filter(({ name }) => !name.includes('/v1/')).map(({ decodedBodySize }) => decodedBodySize));
    [bytes, files] = [sizes.reduce((sum, size) => sum + size, 0), sizes.length];
    await close();
  }
  return { paint: median(paints), slowest: Math.max(...paints), bytes, files };
}

const [server, browser] = await Promise.all([startServer(), startBrowser()]);
try {
  const { paint, slowest, bytes, files } = await firstPaints(browser, server);
  const traffic = load(server);
  await eventually('the load is under way', () => traffic.decisions > 0);
  const rounds = { without: [], overview: [], streams: [] };
  for (let at = 0; at < ROUNDS; at += 1) {
    rounds.without.push(await round(server, traffic));
    const { page, close } = await openPage(browser, server);
    await page.locator('#pulse[data-state=live]').waitFor();
    rounds.overview.push(await round(server, traffic));
    await close();
    const readers = await Promise.all(Array.from({ length: STREAMS }, () => stream(server)));
    rounds.streams.push(await round(server, traffic));
    for (const reader of readers) reader.destroy();
  }
  traffic.stopped = true;
  await traffic.done;
  const of = (name, what) => median(rounds[name].map((one) => one[what]));
  const differences = (name, what) => median(rounds[name].map((one, at) => one[what] - rounds.without[at][what]));
  const row = (name, title) => `| ${title} | ${of(name, 'rate').toFixed(0)} | ${of(name, 'share').toFixed(2)} | ${of(name, 'each').toFixed(3)} |`;
  console.log(`First paint, a new browser context each time, ${LOADS} times: median ${paint.toFixed(0)} ms, slowest ${slowest.toFixed(0)} ms.`);
  console.log(`Files: ${files}, ${bytes} bytes together.\n`);
  console.log('| | decisions/s | server, % of a core | µs of processor time per decision |\n|---|--:|--:|--:|');
  console.log(row('without', 'nobody looks'));
  console.log(row('overview', 'an Overview is open'));
  console.log(row('streams', `${STREAMS} event streams`));
  console.log(`\nAn open Overview costs ${differences('overview', 'share').toFixed(2)} % of a core (median of the rounds' differences).`);
  console.log(`${STREAMS} streams change the processor time per decision by ${((100 * differences('streams', 'each')) / of('without', 'each')).toFixed(1)} %.`);
  console.log(`${ROUNDS} rounds of ${ROUND_MS / 1000} s each; see tests/browser/cost.mjs for how and for the known bias.`);
} finally {
  await browser.close();
  await server.stop();
}
