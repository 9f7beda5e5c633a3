// A server with tokens: the dashboard asks for one, keeps it for the tab and sends it with every call.

import assert from 'node:assert/strict';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { startBrowser, startServer } from './harness.mjs';
import { onPage, part } from './page.mjs';

const TOKEN = 'b'.repeat(43);
const READ = 'r'.repeat(43);
let folder;
let server;
let browser;
before(async () => {
  folder = await mkdtemp(join(tmpdir(), 'tollgate-token-'));
  await writeFile(join(folder, 'tokens'), `${TOKEN}\nread:${READ}\n`, { mode: 0o600 });
  [server, browser] = await Promise.all([startServer('--admin-token-file', join(folder, 'tokens')), startBrowser()]);
});
after(async () => {
  await browser?.close();
  await server?.stop();
  await rm(folder, { recursive: true });
});

test('a token is asked for once, kept for the tab, and opens every page and the stream', () =>
  onPage(browser, server, {}, async (page) => {
    const dialog = page.getByRole('dialog', { name: 'A token, please' });
    await dialog.getByLabel('Token').fill('wrong');
    await dialog.getByRole('button', { name: 'Continue' }).click();
    await dialog.getByLabel('Token').fill(TOKEN);
    await dialog.getByRole('button', { name: 'Continue' }).click();
    await page.locator('#pulse[data-state=live]').waitFor();
    await part(page, 'Health').getByText('in memory').waitFor();
    await page.getByRole('link', { name: 'Rules', exact: true }).click();
    await page.getByRole('link', { name: 'per-user-free', exact: true }).waitFor();
    await page.reload();
    await page.locator('#pulse[data-state=live]').waitFor();
    assert.equal(await dialog.count(), 0);
  }));

test('who does not want to give one sees why there is nothing, and is asked again when they try again', () =>
  onPage(browser, server, { hash: '#/rules' }, async (page) => {
    const dialog = page.getByRole('dialog', { name: 'A token, please' });
    await dialog.getByRole('button', { name: 'Not now' }).click();
    await page.getByRole('button', { name: 'Try again' }).click();
    await dialog.getByLabel('Token').fill(TOKEN);
    await dialog.getByRole('button', { name: 'Continue' }).click();
    await page.getByRole('link', { name: 'per-user-free', exact: true }).waitFor();
  }));

test('who has a token that may only look is asked for another one when they change something, and may decline', () =>
  onPage(browser, server, { hash: '#/rules' }, async (page) => {
    const first = page.getByRole('dialog', { name: 'A token, please' });
    await first.getByLabel('Token').fill(READ);
    await first.getByRole('button', { name: 'Continue' }).click();
    const row = part(page, 'Rules in effect').getByRole('row').filter({ has: page.getByRole('link', { name: 'search', exact: true }) });
    await row.getByRole('button', { name: 'Shadow' }).click();
    const another = page.getByRole('dialog', { name: 'Another token, please' });
    await another.getByText('This token may only look').waitFor();
    await another.getByRole('button', { name: 'Not now' }).click();
    await page.getByText('This token may only look').waitFor();
    await row.getByText('enforce', { exact: true }).waitFor();
    await row.getByRole('button', { name: 'Shadow' }).click();
    await another.getByLabel('Token').fill(TOKEN);
    await another.getByRole('button', { name: 'Continue' }).click();
    await row.getByText('shadow', { exact: true }).waitFor();
  }));
