// The playground knocks at the real limiter: to a 429 and back.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { eventually, startBrowser, startServer } from './harness.mjs';
import { onPage, part } from './page.mjs';

let server;
let browser;
before(async () => { [server, browser] = await Promise.all([startServer(), startBrowser()]); });
after(async () => { await browser?.close(); await server?.stop(); });

const at = (algorithm, limit) => ({ hash: `#/playground?${new URLSearchParams({ algorithm, limit })}` });
const press = (page) => page.getByRole('button', { name: 'Send a request' }).click();
const status = (page, text) => part(page, 'The last answer').getByText(text, { exact: true }).waitFor();
const left = (page, text) => part(page, 'The bucket').getByText(text).first().waitFor();

test('requests reach a 429 with its headers and its countdown, and pass again after it', () =>
  onPage(browser, server, at('token_bucket', '30/min burst 3'), async (page) => {
    await left(page, '3 of 3 left');
    for (let sent = 0; sent < 3; sent += 1) await press(page);
    await part(page, 'The bucket').getByText('3 allowed').waitFor();
    // A slow machine gives a token back between two of them.
    const refused = part(page, 'The last answer').getByText('429 Too Many Requests', { exact: true });
    for (let sent = 0; sent < 20 && !await refused.isVisible(); sent += 1) await press(page);
    await refused.waitFor();
    const headers = await page.getByLabel('Headers of the last answer').textContent();
    for (const wanted of [/retry-after: [12]\b/, /x-ratelimit-limit: 3/, /x-ratelimit-remaining: 0/, /ratelimit-policy: /]) {
      assert.match(headers, wanted);
    }
    await page.getByText('Would pass now.').waitFor();
    await press(page);
    await status(page, '200 OK');
    await left(page, '3 of 3 left');
  }));

test('a button that is held down sends on until it is let go', () =>
  onPage(browser, server, at('fixed_window', '1000/h'), async (page) => {
    await left(page, '1,000 of 1,000 left');
    await page.getByRole('button', { name: 'Send a request' }).focus();
    await page.keyboard.down('Space');
    await part(page, 'The bucket').getByText(/^([5-9]|\d{2,}) allowed/).waitFor();
    await page.keyboard.up('Space');
  }));

test('the slider keeps sending, and a limit that is typed meanwhile counts at once', () =>
  onPage(browser, server, at('token_bucket', '1/h burst 500'), async (page) => {
    await page.getByLabel('Keep sending').fill('40');
    await part(page, 'The bucket').getByText(/^\d{2,} allowed/).waitFor();
    await page.getByLabel('Limit', { exact: true }).fill('1/h burst 2');
    await status(page, '429 Too Many Requests');
    await left(page, '0 of 2 left');
  }));

test('a limit that is only half typed stops nothing: requests go on under the last one', () =>
  onPage(browser, server, at('token_bucket', '100/s burst 500'), async (page) => {
    const limit = page.getByLabel('Limit', { exact: true });
    const sent = async () => Number((await part(page, 'The bucket').getByText(/ allowed$/).innerText()).replace(/\D/g, ''));
    await page.getByLabel('Keep sending').fill('40');
    await part(page, 'The bucket').getByText(/^\d\d allowed/).waitFor();
    await limit.fill('');
    await page.locator('.field .error').filter({ hasText: /./ }).waitFor();
    assert.equal(await limit.getAttribute('aria-invalid'), 'true');
    const before = await sent();
    await eventually('requests go on', async () => await sent() > before + 20);
    assert.equal(await limit.getAttribute('aria-invalid'), 'true', 'an answer to the stream does not clear the error');
    assert.ok(page.url().includes('100%2Fs'), 'a link to the page has the limit in force');
    await limit.pressSequentially('1/h burst 2', { delay: 30 });
    await status(page, '429 Too Many Requests');
    await left(page, '0 of 2 left');
    assert.equal(await page.getByLabel('Keep sending').inputValue(), '40');
    assert.equal(await limit.getAttribute('aria-invalid'), null);
  }));

test('every algorithm can be chosen and refuses in the end', () =>
  onPage(browser, server, { hash: '#/playground' }, async (page) => {
    const chooser = page.getByLabel('Algorithm');
    const names = await chooser.locator('option').evaluateAll((options) => options.map(({ value }) => value));
    assert.equal(names.length, 6);
    for (const name of names) {
      await chooser.selectOption(name);
      await page.getByRole('button', { name: 'Begin with a new bucket' }).click();
      await page.getByLabel('Keep sending').fill('40');
      await status(page, '429 Too Many Requests');
      await page.getByLabel('Keep sending').fill('0');
    }
  }));

test('nothing of it is on record', async () => {
  const { totals } = await server.call('GET', '/v1/stats');
  assert.deepEqual([totals.allowed, totals.refused], [0, 0]);
  const { decisions } = await server.call('GET', '/v1/decisions');
  assert.deepEqual(decisions, []);
});
