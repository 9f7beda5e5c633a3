// Signing in: with the link of the first screen, with a new one, with a token; and out again.

import assert from 'node:assert/strict';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { startBrowser, startServer } from './harness.mjs';
import { onPage, part } from './page.mjs';

const READ = 'r'.repeat(43);
let folder;
let server;
let browser;
before(async () => {
  folder = await mkdtemp(join(tmpdir(), 'tollgate-token-'));
  await writeFile(join(folder, 'tokens'), `board:read:${READ}\n`, { mode: 0o600 });
  [server, browser] = await Promise.all([startServer('--token-file', join(folder, 'tokens')), startBrowser()]);
});
after(async () => {
  await browser?.close();
  await server?.stop();
  await rm(folder, { recursive: true });
});

const stranger = { signedIn: false };
const dialogOf = (page, name = 'Sign in') => page.getByRole('dialog', { name, exact: true });
const who = (page) => page.locator('#who');

test('the link of the first screen signs in once, the pages have data, and signing out ends it', () =>
  onPage(browser, server, stranger, async (page) => {
    await server.call('POST', '/v1/check', { attributes: { user_id: '42', plan: 'free' } });
    const link = await server.link();
    await dialogOf(page).waitFor();
    await page.goto('about:blank');
    await page.goto(link);
    await who(page).getByText('admin', { exact: true }).waitFor();
    await page.locator('#pulse[data-state=live]').waitFor();
    assert.equal(new URL(page.url()).hash, '#/overview', 'the code is in no history');
    await part(page, 'Health').getByText('in memory').waitFor();
    await page.getByRole('link', { name: 'Rules', exact: true }).click();
    await page.getByRole('link', { name: 'per-user-free', exact: true }).waitFor();
    assert.equal(await page.evaluate(() => document.cookie), '', 'no script reads the session');
    await page.reload();
    await page.locator('#pulse[data-state=live]').waitFor();
    assert.equal(await dialogOf(page).count(), 0);
    await who(page).getByRole('button', { name: 'Sign out' }).click();
    await dialogOf(page).waitFor();
    await page.goto('about:blank');
    await page.goto(link);
    await page.getByText('used up or expired').waitFor();
    await dialogOf(page).waitFor();
  }));

test('tollgate dashboard prints a link that signs in', () =>
  onPage(browser, server, stranger, async (page) => {
    const link = await server.newLink();
    await page.goto('about:blank');
    await page.goto(link);
    await who(page).getByText('admin', { exact: true }).waitFor();
    await page.locator('#pulse[data-state=live]').waitFor();
  }));

test('a login link that is opened in the tab of the dashboard signs in', () =>
  onPage(browser, server, stranger, async (page) => {
    await dialogOf(page).waitFor();
    await page.goto(await server.newLink());
    await who(page).getByText('admin', { exact: true }).waitFor();
    await page.locator('#pulse[data-state=live]').waitFor();
    assert.equal(await dialogOf(page).count(), 0);
    assert.equal(new URL(page.url()).hash, '#/overview', 'the code is in no history');
  }));

test('a wrong token is refused in the dialog, and Enter signs in with a right one', () =>
  onPage(browser, server, stranger, async (page) => {
    const dialog = dialogOf(page);
    await dialog.getByLabel('Token').fill('wrong');
    await page.keyboard.press('Enter');
    await dialog.getByText('not known here').waitFor();
    await dialog.getByLabel('Token').fill(`admin:write:${server.token}`);
    await page.keyboard.press('Enter');
    await who(page).getByText('admin', { exact: true }).waitFor();
    await page.locator('#pulse[data-state=live]').waitFor();
  }));

test('who does not want to sign in sees why there is nothing, and is asked again when they try again', () =>
  onPage(browser, server, { ...stranger, hash: '#/rules' }, async (page) => {
    const dialog = dialogOf(page);
    await dialog.getByRole('button', { name: 'Not now' }).click();
    await page.getByRole('button', { name: 'Try again' }).click();
    await dialog.getByLabel('Token').fill(server.token);
    await dialog.getByRole('button', { name: 'Sign in' }).click();
    await page.getByRole('link', { name: 'per-user-free', exact: true }).waitFor();
  }));

test('who has a token that may only look is asked for another one when they change something, and may decline', () =>
  onPage(browser, server, { ...stranger, hash: '#/rules' }, async (page) => {
    await dialogOf(page).getByLabel('Token').fill(READ);
    await page.keyboard.press('Enter');
    await who(page).getByText('board', { exact: true }).waitFor();
    const row = part(page, 'Rules in effect').getByRole('row').filter({ has: page.getByRole('link', { name: 'search', exact: true }) });
    await row.getByRole('button', { name: 'Shadow' }).click();
    const another = dialogOf(page, 'Sign in with another token');
    await another.getByText('needs one with the role `write`').waitFor();
    await another.getByRole('button', { name: 'Not now' }).click();
    await page.getByText('needs one with the role `write`').waitFor();
    await row.getByText('enforce', { exact: true }).waitFor();
    await row.getByRole('button', { name: 'Shadow' }).click();
    await another.getByLabel('Token').fill(server.token);
    await page.keyboard.press('Enter');
    await row.getByText('shadow', { exact: true }).waitFor();
    await who(page).getByText('admin', { exact: true }).waitFor();
  }));

test('the dialog fits narrow and wide screens, light and dark', async () => {
  for (const scheme of ['light', 'dark']) {
    for (const width of [390, 1280]) {
      await onPage(browser, server, { ...stranger, scheme, width }, async (page) => {
        const { x, width: wide } = await dialogOf(page).boundingBox();
        assert.ok(x >= 0 && x + wide <= width, `${x} + ${wide} of ${width}`);
        if (process.env.TOLLGATE_SHOTS) await page.screenshot({ path: `${process.env.TOLLGATE_SHOTS}/sign-in-${scheme}-${width}.png` });
      });
    }
  }
});
