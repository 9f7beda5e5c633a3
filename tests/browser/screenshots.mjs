// Pictures of every page, in light and dark, of a server that has been busy for a while.

import { mkdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { startBrowser, startServer } from './harness.mjs';
import { openPage, part } from './page.mjs';

const folder = join(import.meta.dirname, '../../docs/images');
const busy = Number(process.argv[2] ?? 150) * 1000;
const LARGEST = 150_000;

/** Users of all plans with a wave in how much they ask, and one who asks too much. */
async function traffic(server, signal) {
  const plans = ['free', 'free', 'free', 'pro', 'enterprise'];
  const endpoints = ['/api/search', '/api/orders', '/api/orders/17', '/login'];
  for (let round = 0; !signal.aborted; round += 1) {
    const size = Math.round(28 + 9 * Math.sin(round / 90) + 5 * Math.sin(round / 23) + 2 * Math.sin(round * 7));
    const requests = Array.from({ length: size }, (_, at) => {
      const user = at % 6 === 0 ? 7 : at % 11 === 0 ? 12 : at % 17 === 0 ? 31 : (round * 31 + at * 17) % 40;
      return { attributes: { user_id: `u${user}`, plan: [7, 12, 31].includes(user) ? 'free' : plans[user % 5], ip: `198.51.100.${user + 1}`, endpoint: endpoints[(round + at) % 4], method: 'GET' } };
    });
    await server.call('POST', '/v1/check/batch', { requests });
    await pause(100);
  }
}

const acts = {
  overview: { ready: 'Health' },
  async playground(page) {
    await page.getByLabel('Cost of a request').fill('4');
    for (const rate of ['1', '2', '1', '2']) {
      await page.getByLabel('Keep sending').fill(rate);
      await pause(3500);
    }
    await page.getByLabel('Keep sending').fill('6');
    await part(page, 'The last answer').getByText('429').waitFor();
    await page.getByLabel('Keep sending').fill('0');
  },
  compare: { ready: 'Totals' },
  async rules(page) {
    await part(page, 'Rules in effect').getByRole('link', { name: 'per-user-free', exact: true }).click();
    await page.getByLabel('Limit', { exact: true }).fill('5/s burst 10');
    await page.getByRole('button', { name: 'What would change?' }).click();
    await page.getByRole('heading', { name: 'Newly refused' }).waitFor();
  },
  async explain(page, server) {
    const { decisions: [refused] } = await server.call('GET', '/v1/decisions?outcome=refused&limit=1');
    await page.goto(`${server.url}/#/explain/${refused.decision_id}`);
    await part(page, 'The decision').waitFor();
  },
  async keys(page, server) {
    await page.goto(`${server.url}/#/keys/user%3Au7`);
    await part(page, 'user:u7').getByRole('row').nth(1).waitFor();
    await part(page, 'Recent decisions').getByText('refused', { exact: true }).first().waitFor();
  },
  violations: { ready: 'Over time' },
};

await mkdir(folder, { recursive: true });
const [server, browser] = await Promise.all([startServer(), startBrowser()]);
const done = new AbortController();
const running = traffic(server, done.signal);
try {
  await pause(busy);
  for (const scheme of ['light', 'dark']) {
    for (const [name, act] of Object.entries(acts)) {
      const { page, close } = await openPage(browser, server, { hash: name === 'violations' ? '#/violations?since=15min' : `#/${name}`, scheme, height: 860, locale: 'en-GB', timezoneId: 'Europe/Berlin' });
      await page.locator('#pulse[data-state=live]').waitFor();
      if (act.ready) await part(page, act.ready).waitFor();
      else await act(page, server);
      await pause(name === 'playground' ? 400 : 1500);
      const path = join(folder, `${name}-${scheme}.png`);
      await page.screenshot({ path });
      const { size } = await stat(path);
      console.log(`${path.slice(folder.length + 1)}  ${size} bytes`);
      if (size > LARGEST) throw new Error(`${path} is larger than ${LARGEST} bytes`);
      await close();
    }
  }
} finally {
  done.abort();
  await running;
  await browser.close();
  await server.stop();
}
