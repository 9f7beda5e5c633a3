// Every other page, over a server that has something to tell.

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { after, before, test } from 'node:test';
import { eventually, freePort, startBrowser, startRedis, startServer } from './harness.mjs';
import { onPage, openPage, part, signIn } from './page.mjs';

let server;
let browser;
before(async () => { [server, browser] = await Promise.all([startServer(), startBrowser()]); });
after(async () => { await browser?.close(); await server?.stop(); });

const check = (user, cost = 1, more = {}) =>
  server.call('POST', '/v1/check', { attributes: { user_id: user, plan: 'free', ip: '203.0.113.7', ...more }, cost });

test('the overview counts decisions and shows a refusal as it happens, and why', () =>
  onPage(browser, server, {}, async (page) => {
    await page.getByText('this node only').waitFor();
    await page.locator('#pulse[data-state=live]').waitFor();
    await check('ada', 50);
    const { allowed } = await check('ada', 50);
    assert.equal(allowed, false);
    await part(page, 'Refusals as they happen').getByRole('cell', { name: 'user:ada' }).waitFor();
    await part(page, 'Most refused keys').getByText('user:ada').waitFor();
    await part(page, 'Health').getByText('in memory').waitFor();
    await page.getByRole('img', { name: /^Decisions per second/ }).waitFor();
    await page.getByRole('link', { name: 'why' }).first().click();
    await part(page, 'The decision').getByText('refused', { exact: true }).waitFor();
    await part(page, 'Rules').getByRole('row', { name: /per-user-free binding/ }).waitFor();
  }));

test('a most refused key opens that key, which can be reset', () =>
  onPage(browser, server, {}, async (page) => {
    await server.call('POST', '/v1/rules', { name: 'slow', key: 'user:{user_id}', limit: '5/d', when: { pace: ['slow'] } });
    await check('eve/1', 5, { pace: 'slow' });
    assert.equal((await check('eve/1', 5, { pace: 'slow' })).allowed, false);
    const remaining = async () => (await server.call('GET', '/v1/keys/user%3Aeve%2F1')).buckets.find(({ rule }) => rule === 'slow').remaining;
    await part(page, 'Most refused keys').getByRole('link', { name: 'user:eve/1' }).click();
    const key = part(page, 'user:eve/1');
    const bucket = key.getByRole('row').filter({ hasText: 'slow' });
    await bucket.getByText('only when pace: slow').waitFor();
    await bucket.getByRole('cell', { name: '0', exact: true }).waitFor();
    await part(page, 'Recent decisions').getByText('refused', { exact: true }).waitFor();
    await key.getByRole('button', { name: 'Reset this key' }).click();
    const dialog = page.getByRole('dialog', { name: 'Reset this key?' });
    await dialog.getByRole('button', { name: 'Cancel' }).click();
    await dialog.waitFor({ state: 'detached' });
    assert.equal(await remaining(), 0, 'nothing is reset before the answer');
    await key.getByRole('button', { name: 'Reset this key' }).click();
    await dialog.getByRole('button', { name: 'Reset' }).click();
    await page.getByText(/^user:eve\/1: \d buckets reset$/).waitFor();
    await bucket.getByRole('cell', { name: 'full', exact: true }).waitFor();
    assert.equal(await remaining(), 5);
  }));

test('a key is looked up by hand, also one that no rule counts', () =>
  onPage(browser, server, { hash: '#/keys' }, async (page) => {
    await server.call('POST', '/v1/check', { key: 'batch job', limit: '5/h' });
    await page.getByLabel('Key', { exact: true }).fill('batch job');
    await page.getByRole('button', { name: 'Look up' }).click();
    await page.getByText('No rule counts this key.').waitFor();
    assert.ok(await page.getByRole('button', { name: 'Reset this key' }).isHidden());
    await page.getByLabel('Limit without a rule').fill('5/h');
    await page.getByRole('button', { name: 'Look up' }).click();
    await part(page, 'batch job').getByRole('cell', { name: '4', exact: true }).waitFor();
  }));

test('a request that might come is explained rule by rule, and nothing is charged', () =>
  onPage(browser, server, { hash: '#/explain' }, async (page) => {
    await page.getByLabel('User').fill('grace');
    await page.getByLabel('Plan').fill('pro');
    await page.getByRole('button', { name: 'Explain' }).click();
    const rules = part(page, 'Rules');
    await rules.getByRole('row', { name: /per-user-pro binding/ }).waitFor();
    await rules.getByRole('row', { name: /per-user-free no/ }).waitFor();
    const { decisions } = await server.call('GET', '/v1/decisions');
    assert.ok(decisions.every(({ attributes }) => attributes.user_id !== 'grace'));
    await page.getByLabel('Decision id').fill('0123');
    await page.getByRole('button', { name: 'Look it up' }).click();
    await part(page, 'No explanation').getByRole('alert').waitFor();
  }));

test('all algorithms are compared on the same traffic, and a fixed window admits twice its limit at the edge', () =>
  onPage(browser, server, { hash: '#/compare' }, async (page) => {
    const totals = part(page, 'Totals');
    await totals.getByRole('row', { name: /^Fixed window .*40, 200% / }).waitFor();
    await totals.getByRole('row', { name: /^Sliding window log .* 20 / }).waitFor();
    assert.equal(await part(page, 'Admitted over time').getByRole('img').count(), 6);
    for (const kind of ['steady', 'burst', 'random']) {
      await page.getByLabel('Traffic', { exact: true }).selectOption(kind);
      await totals.getByText(/of \d+ requests/).waitFor();
    }
    await page.getByLabel('Traffic', { exact: true }).selectOption('pasted');
    await totals.getByText('of 12 requests').waitFor();
    await page.getByLabel(/^Trace/).fill('{"t_us": 0}\nnothing');
    await page.getByText('Line 2 is no object').waitFor();
  }));

test('violations are narrowed down and taken away as CSV', async () => {
  const user = '=1+"x",\n2';
  for (let sent = 0; sent < 2; sent += 1) await check(user, 50, { ip: '203.0.113.8' });
  const recorded = async () => (await server.call('GET', `/v1/violations?user_id=${encodeURIComponent(user)}`)).violations.length > 0;
  await eventually('the violation is on record', recorded);
  await onPage(browser, server, { hash: '#/violations?since=1h', acceptDownloads: true }, async (page) => {
    await part(page, 'Over time').getByRole('img', { name: /refusals? over time/ }).waitFor();
    await page.getByLabel('Endpoint').fill('/nowhere');
    await page.getByRole('button', { name: 'Search' }).click();
    await page.getByText('Nothing was refused here.').waitFor();
    await page.getByLabel('Endpoint').fill('');
    await page.getByLabel('Address').fill('203.0.113.8');
    await page.getByRole('button', { name: 'Search' }).click();
    await part(page, 'Over time').getByText('1 refusal in 1 row').waitFor();
    const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'Export CSV' }).click()]);
    const [head, row] = (await readFile(await download.path(), 'utf8')).split('\r\n');
    assert.ok(head.startsWith('violation_id,requested_at,count,'));
    assert.ok(row.includes(`,"'=1+""x"",\n2",`), `a spreadsheet would run it: ${row}`);
    await page.getByLabel('Address').fill('nowhere');
    await page.getByRole('button', { name: 'Search' }).click();
    await page.locator('.field .error').filter({ hasText: 'expected an IP address' }).waitFor();
  });
});

test('the endpoint filter finds every refusal at that endpoint, also where a second mixes endpoints', async () => {
  const refused = { '/mixed/a': 0, '/mixed/b': 0 };
  await check('mixer', 50);
  for (let sent = 0; sent < 20; sent += 1) {
    const endpoint = Object.keys(refused)[sent % 2];
    if (!(await check('mixer', 50, { endpoint })).allowed) refused[endpoint] += 1;
  }
  const recorded = async () => (await server.call('GET', '/v1/violations?user_id=mixer')).violations.reduce((sum, { count }) => sum + count, 0);
  await eventually('all refusals are on record', async () => await recorded() === refused['/mixed/a'] + refused['/mixed/b']);
  await onPage(browser, server, { hash: '#/violations?since=1h' }, async (page) => {
    for (const [endpoint, count] of Object.entries(refused)) {
      assert.ok(count > 5);
      await page.getByLabel('Endpoint').fill(endpoint);
      await page.getByRole('button', { name: 'Search' }).click();
      await part(page, 'Over time').getByText(new RegExp(`^${count} refusals in \\d+ rows?$`)).waitFor();
    }
  });
});

test('a stream that breaks off is taken up again by itself', async () => {
  const address = `127.0.0.1:${await freePort()}`;
  const first = await startServer('--admin', address);
  const { page } = await openPage(browser, first);
  await page.locator('#pulse[data-state=live]').waitFor();
  await first.stop();
  await page.locator('#pulse[data-state=waiting]').waitFor();
  const second = await startServer('--admin', address);
  await signIn(page, second); // sessions end with their server
  await page.locator('#pulse[data-state=live]').waitFor();
  await page.context().close();
  await second.stop();
});

test('a server that is lost greys out the overview and its data has an age, until it is back', async () => {
  const first = await startServer();
  const address = new URL(first.url).host;
  const { page } = await openPage(browser, first);
  const lost = page.getByText('The server does not answer.');
  const stale = page.locator('.panel.stale').first();
  const age = page.getByText(/^as of .* ago$/);
  const seconds = async () => Number(/, (\d+) s ago$/.exec(await age.innerText())?.[1]);
  await part(page, 'Health').getByText('in memory').waitFor();
  assert.equal(await page.locator('.stale').count(), 0);
  await first.stop();
  await lost.waitFor();
  await stale.waitFor();
  const before = await seconds();
  await eventually('the age grows', async () => await seconds() > before + 1);
  const second = await startServer('--admin', address);
  await signIn(page, second);
  await lost.waitFor({ state: 'detached' });
  await stale.waitFor({ state: 'detached' });
  await age.waitFor({ state: 'hidden' });
  // One that hangs is lost too, although its connections stay open.
  process.kill(second.pid, 'SIGSTOP');
  await lost.waitFor({ timeout: 20_000 });
  await stale.waitFor();
  await page.locator('#pulse[data-state=waiting]').waitFor();
  process.kill(second.pid, 'SIGCONT');
  await lost.waitFor({ state: 'detached', timeout: 20_000 });
  await stale.waitFor({ state: 'detached' });
  await page.locator('#pulse[data-state=live]').waitFor();
  await page.context().close();
  await second.stop();
});

test('a tab that nobody looks at hangs up, and listens again when somebody does', () =>
  onPage(browser, server, {}, async (page) => {
    const look = (hidden) => page.evaluate((value) => {
      Object.defineProperty(document, 'hidden', { configurable: true, value });
      document.dispatchEvent(new Event('visibilitychange'));
    }, hidden);
    await page.locator('#pulse[data-state=live]').waitFor();
    const hungUp = page.waitForEvent('requestfailed', (request) => request.url().includes('/v1/events'));
    await look(true);
    await hungUp;
    await page.locator('#pulse[data-state=paused]').waitFor();
    await look(false);
    await page.locator('#pulse[data-state=live]').waitFor();
  }));

test('a store that is unavailable is said at the top, with the rules that fail open and the number of the tile', async () => {
  const redis = await startRedis();
  const fleet = await startServer('--store', redis.url);
  await fleet.call('POST', '/v1/rules', { name: 'login', key: 'ip:{ip}', limit: '5/min', on_store_failure: 'closed', when: { endpoint: ['/login'] } });
  const { page, close } = await openPage(browser, fleet);
  await page.locator('#pulse[data-state=live]').waitFor();
  await redis.stop();
  const ask = () => fleet.call('POST', '/v1/check', { attributes: { user_id: '1', plan: 'free' } });
  const away = page.getByText('The store is unavailable.');
  await eventually('the store is said to be unavailable', async () => (await ask()).degraded && away.isVisible());
  // Banner and tile are read together: both change every second.
  const read = () => page.evaluate(() => {
    const [, inBanner] = /([\d,]+) decisions? of the last minute (?:was|were) made without the store/.exec(document.getElementById('banner').innerText) ?? [];
    const tile = [...document.querySelectorAll('.tile')].find((node) => node.innerText.startsWith('Without the store'));
    const [, sinceTheStart] = /([\d,]+) since the start/.exec(tile.innerText);
    return { inBanner, inTile: tile.querySelector('.value').firstChild.textContent, sinceTheStart };
  });
  const { inBanner, inTile } = await eventually('decisions are counted', async () => {
    const seen = await read();
    return seen.inBanner !== undefined && seen.inBanner !== '0' && seen;
  });
  assert.equal(inBanner, inTile);
  const counted = (text) => Number(text.replaceAll(',', ''));
  await eventually('the total is not behind the last minute', async () => {
    const seen = await read();
    return counted(seen.sinceTheStart) >= counted(seen.inBanner);
  });
  await page.getByText(/Failing open, so that requests pass uncounted: per-user-free, .*\. Failing closed, so that requests are answered 503: login\./).waitFor();
  const again = await startRedis(redis.port);
  await away.waitFor({ state: 'detached' });
  await close();
  await fleet.stop();
  await again.stop();
});
