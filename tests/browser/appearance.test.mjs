// Every page in light and dark, wide and narrow: nothing sticks out, and everybody can use it.

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { after, before, test } from 'node:test';
import { eventually, startBrowser, startServer } from './harness.mjs';
import { onPage } from './page.mjs';

const axe = await readFile(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const pages = { overview: 'Health', playground: 'The bucket', compare: 'Totals', rules: 'History', 'rules/new': 'New rule', explain: 'Rules', 'keys/user%3A42': 'user:42', violations: 'Over time' };

let server;
let browser;
let decision;
before(async () => {
  [server, browser] = await Promise.all([startServer(), startBrowser()]);
  const check = () => server.call('POST', '/v1/check', { attributes: { user_id: '42', plan: 'free', ip: '203.0.113.7', endpoint: '/api/search' }, cost: 30 });
  await check();
  ({ decision_id: decision } = await check());
  await eventually('a violation is on record', async () => (await server.call('GET', '/v1/violations')).violations.length > 0);
});
after(async () => { await browser?.close(); await server?.stop(); });

for (const scheme of ['light', 'dark']) {
  for (const width of [360, 1280]) {
    test(`every page in ${scheme}, ${width} px wide`, () =>
      onPage(browser, server, { scheme, width }, async (page) => {
        await page.locator('#pulse[data-state=live]').waitFor();
        await page.evaluate(axe);
        for (const [name, title] of Object.entries(pages)) {
          await page.evaluate((hash) => { location.hash = hash; }, `#/${name}${name === 'explain' ? `/${decision}` : ''}`);
          await page.getByRole('heading', { name: title, exact: true }).waitFor();
          const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
          assert.ok(wide <= 0, `${name} is ${wide} px too wide`);
          const { violations } = await page.evaluate(() => axe.run(document, { resultTypes: ['violations'] }));
          const found = violations.map(({ id, nodes }) => `${name}: ${id}: ${nodes.map(({ html }) => html).join(' ')}`);
          assert.deepEqual(found, []);
        }
      }));
  }
}

test('everything is reached with the keyboard, beginning with a way past the navigation', () =>
  onPage(browser, server, { hash: '#/playground' }, async (page) => {
    await page.getByRole('button', { name: 'Send a request' }).waitFor();
    const reached = [];
    for (let steps = 0; steps < 20; steps += 1) {
      await page.keyboard.press('Tab');
      reached.push(await page.evaluate(() => document.activeElement.textContent.trim() || document.activeElement.id));
    }
    assert.equal(reached[0], 'Skip to the page');
    for (const name of ['Overview', 'Violations', 'Send a request', 'Begin with a new bucket']) assert.ok(reached.includes(name), `${name} in ${reached}`);
  }));

test('all files together are small', () =>
  onPage(browser, server, {}, async (page) => {
    await page.locator('#pulse[data-state=live]').waitFor();
    const files = await page.evaluate(() => performance.getEntriesByType('resource').concat(performance.getEntriesByType('navigation'))
      .filter(({ name }) => name.includes('/assets/') || new URL(name).pathname === '/').map(({ name, decodedBodySize }) => [name, decodedBodySize]));
    const bytes = files.reduce((sum, [, size]) => sum + size, 0);
    assert.ok(files.length > 10 && bytes < 150_000, `${files.length} files of ${bytes} bytes`);
  }));
