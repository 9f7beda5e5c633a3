// Rules changed in the browser, obeyed by the very next check.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { startBrowser, startServer } from './harness.mjs';
import { onPage, part } from './page.mjs';

let server;
let browser;
before(async () => { [server, browser] = await Promise.all([startServer(), startBrowser()]); });
after(async () => { await browser?.close(); await server?.stop(); });

const check = (user, cost = 1) => server.call('POST', '/v1/check', { attributes: { user_id: user, plan: 'free' }, cost });
const row = (page, name) => part(page, 'Rules in effect').getByRole('row').filter({ has: page.getByRole('link', { name, exact: true }) });

test('an edited limit is obeyed by the next check, and undone by the history', () =>
  onPage(browser, server, { hash: '#/rules' }, async (page) => {
    await page.getByRole('link', { name: 'per-user-free', exact: true }).click();
    await page.getByLabel('Limit', { exact: true }).fill('1/h burst 2');
    await page.getByRole('button', { name: 'Save' }).click();
    await page.getByText('per-user-free is in effect').waitFor();
    assert.equal((await check('edited')).limit, 2);
    await part(page, 'History').getByRole('button', { name: 'Undo edit of per-user-free' }).click();
    await page.getByText('per-user-free: edit undone').waitFor();
    assert.equal((await check('undone')).limit, 50);
  }));

test('a rule is added, put on trial, switched off and on, and deleted; a deletion can be taken back', () =>
  onPage(browser, server, { hash: '#/rules' }, async (page) => {
    await page.getByRole('link', { name: 'Add a rule' }).click();
    await page.getByLabel('Name').fill('tiny');
    await page.getByLabel('Key', { exact: true }).fill('user:{user_id}');
    await page.getByLabel('Limit', { exact: true }).fill('1/h');
    await page.getByLabel('Only when').fill('plan: tiny, minute\nmethod: GET');
    await page.getByRole('button', { name: 'Add', exact: true }).click();
    await row(page, 'tiny').getByText('enforce', { exact: true }).waitFor();
    const { rules } = await server.call('GET', '/v1/rules');
    const { rule } = rules.find(({ label }) => label === 'tiny');
    assert.deepEqual(rule, { name: 'tiny', key: 'user:{user_id}', limit: '1/h', when: { method: ['GET'], plan: ['tiny', 'minute'] } });
    await row(page, 'tiny').getByRole('button', { name: 'Shadow' }).click();
    await row(page, 'tiny').getByText('shadow', { exact: true }).waitFor();
    await row(page, 'tiny').getByRole('button', { name: 'Disable' }).click();
    await row(page, 'tiny').getByText('off', { exact: true }).waitFor();
    await row(page, 'tiny').getByRole('button', { name: 'Enforce' }).click();
    await row(page, 'tiny').getByText('enforce', { exact: true }).waitFor();
    await row(page, 'tiny').getByRole('button', { name: 'Delete' }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click();
    await row(page, 'tiny').waitFor({ state: 'detached' });
    await page.locator('.notice').getByRole('button', { name: 'Undo' }).click();
    await row(page, 'tiny').waitFor();
  }));

test('conditions are shown wherever the rule is listed, on narrow screens too', async () => {
  const rule = { name: 'banned', key: 'user:{user_id}', plan: 'free', action: 'deny', when: { user_id: ['666'], method: ['GET', 'PUT'] } };
  await server.call('POST', '/v1/rules', rule);
  for (const width of [1280, 360]) {
    await onPage(browser, server, { hash: '#/rules', width }, async (page) => {
      const said = 'only when method: GET, PUT and user_id: 666';
      await row(page, 'banned').getByText(said).waitFor();
      await part(page, 'History').getByRole('row').filter({ hasText: 'deny' }).getByText(said).waitFor();
      // The plan is a condition too, and so is a key without attributes.
      assert.match(await row(page, 'banned').innerText(), /free/);
      assert.match(await row(page, 'search').innerText(), /endpoint:\/api\/search/);
      assert.equal(await row(page, 'search').getByText('only when').count(), 0);
    });
  }
});

test('the undo of an addition asks before it deletes the rule', async () => {
  const listed = async (name) => (await server.call('GET', '/v1/rules')).rules.some(({ label }) => label === name);
  await server.call('POST', '/v1/rules', { name: 'added', key: 'global', limit: '100000/s', plan: 'free' });
  await onPage(browser, server, { hash: '#/rules' }, async (page) => {
    const undo = part(page, 'History').getByRole('button', { name: 'Undo add of added' });
    const dialog = page.getByRole('dialog', { name: 'Delete this rule?' });
    await undo.click();
    await dialog.getByText('This change added added').waitFor();
    await dialog.getByRole('button', { name: 'Cancel' }).click();
    await dialog.waitFor({ state: 'detached' });
    assert.ok(await listed('added'), 'nothing is deleted before the answer');
    // A deletion that is undone adds the rule again: the undo of that asks, too.
    await row(page, 'added').getByRole('button', { name: 'Delete' }).click();
    await dialog.getByRole('button', { name: 'Delete' }).click();
    await row(page, 'added').waitFor({ state: 'detached' });
    await page.locator('.notice').getByRole('button', { name: 'Undo' }).click();
    await row(page, 'added').waitFor();
    await page.locator('.notice').getByText('Undone').waitFor();
    await page.locator('.notice').getByRole('button', { name: 'Undo' }).click();
    await dialog.getByRole('button', { name: 'Cancel' }).click();
    await dialog.waitFor({ state: 'detached' });
    assert.ok(await listed('added'));
    await undo.click();
    await dialog.getByRole('button', { name: 'Delete' }).click();
    await page.getByText('added: add undone').waitFor();
    await row(page, 'added').waitFor({ state: 'detached' });
    assert.ok(!await listed('added'));
  });
});

test('what is wrong is said beside the field, in the words of the server', () =>
  onPage(browser, server, { hash: '#/rules/new' }, async (page) => {
    await page.getByLabel('Key', { exact: true }).fill('global');
    await page.getByLabel('Limit', { exact: true }).fill('0/s');
    await page.getByRole('button', { name: 'Add', exact: true }).click();
    const limit = page.getByLabel('Limit', { exact: true });
    await page.getByText('count is zero').waitFor();
    assert.equal(await limit.getAttribute('aria-invalid'), 'true');
    assert.ok(await limit.evaluate((node) => node === document.activeElement));
    await limit.fill('5/d');
    await page.getByText('More fields').click();
    await page.getByLabel('Time zone').fill('Mars/Olympus');
    await page.getByLabel('Windows begin').selectOption('calendar');
    await page.getByLabel('Algorithm').selectOption('fixed_window');
    await page.getByRole('button', { name: 'Add', exact: true }).click();
    await page.locator('.error').filter({ hasText: 'Mars/Olympus' }).waitFor();
  }));

test('what would change names who would newly be refused, and changes nothing', async () => {
  for (let sent = 0; sent < 5; sent += 1) await check('greedy', 2);
  await onPage(browser, server, { hash: '#/rules' }, async (page) => {
    await page.getByRole('link', { name: 'per-user-free', exact: true }).click();
    await page.getByLabel('Limit', { exact: true }).fill('1/h burst 4');
    await page.getByRole('button', { name: 'What would change?' }).click();
    await page.getByRole('heading', { name: 'Newly refused' }).waitFor();
    await page.getByText(/^This .* Of the last \d+ decisions? of this node,/).waitFor();
    await page.getByRole('cell', { name: /greedy/ }).waitFor();
  });
  assert.equal((await check('somebody')).limit, 50);
});

test('somebody else was faster: nothing is overwritten', () =>
  onPage(browser, server, { hash: '#/rules' }, async (page) => {
    await page.getByRole('link', { name: 'search', exact: true }).click();
    await page.getByLabel('Limit', { exact: true }).fill('7/s');
    const { rules } = await server.call('GET', '/v1/rules');
    const { rule_id: id } = rules.find(({ label }) => label === 'search');
    await server.call('PATCH', `/v1/rules/${id}`, { limit: '9/s' }, { 'if-match': '*' });
    await page.getByRole('button', { name: 'Save' }).click();
    await page.getByRole('button', { name: 'Load it as it is now' }).click();
    await page.waitForFunction(() => [...document.querySelectorAll('input')].some(({ value }) => value === '9/s'));
  }));

test('rules are searched and sorted', () =>
  onPage(browser, server, { hash: '#/rules' }, async (page) => {
    const names = () => part(page, 'Rules in effect').locator('tbody tr td:first-child a').allTextContents();
    await page.getByLabel('Search rules').fill('user pro');
    await page.getByText(/^1 of \d/).waitFor();
    assert.deepEqual(await names(), ['per-user-pro']);
    await page.getByLabel('Search rules').fill('');
    await page.getByRole('button', { name: 'Rule', exact: true }).click();
    const sorted = await names();
    assert.deepEqual(sorted, [...sorted].sort().reverse());
    assert.equal(await part(page, 'Rules in effect').getByRole('columnheader', { name: 'Rule', exact: true }).getAttribute('aria-sort'), 'descending');
  }));
