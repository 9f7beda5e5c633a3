// A page that is watched: whatever it complains about in the console fails the test.

import assert from 'node:assert/strict';

const PATIENCE_MS = 10_000;

/** Refusals are answers here, though Chromium logs each as a resource that failed. */
const isAnAnswer = (message) => /status of (400|401|403|404|412|422|429|503)/.test(message.text())
  && new URL(message.location().url).pathname.startsWith('/v1/');

/** Opens a page; `close` fails if anything was complained about. */
export async function openPage(browser, server, { hash = '#/overview', scheme = 'light', width = 1280, height = 800, signedIn = true, ...options } = {}) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme: scheme, ...options });
  context.setDefaultTimeout(PATIENCE_MS);
  // As whoever starts the server, unless a test signs in by itself.
  if (signedIn) {
    const answer = await context.request.post(`${server.url}/v1/session`, { data: { token: server.token } });
    assert.equal(answer.status(), 200);
  }
  const page = await context.newPage();
  const complaints = [];
  page.on('console', (message) => {
    if (['error', 'warning'].includes(message.type()) && !isAnAnswer(message)) complaints.push(message.text());
  });
  page.on('pageerror', (error) => complaints.push(error.stack));
  page.on('request', (request) => {
    if (!request.url().startsWith(server.url) && !request.url().startsWith('blob:')) complaints.push(`asks elsewhere: ${request.url()}`);
  });
  await page.goto(`${server.url}/${hash}`);
  const close = async () => {
    await context.close();
    assert.deepEqual(complaints, []);
  };
  return { page, complaints, close };
}

/** Runs a test's body on a page and looks at its complaints afterwards. */
export async function onPage(browser, server, options, body) {
  const { page, complaints, close } = await openPage(browser, server, options);
  await body(page, complaints);
  await close();
}

/** A part of the page by the title it has. */
export const part = (page, title) => page.getByRole('heading', { name: title, exact: true }).locator('xpath=ancestor::section');

/** Signs in with the server's own token, in the dialog. */
export async function signIn(page, server) {
  await page.getByRole('dialog', { name: 'Sign in', exact: true }).getByLabel('Token').fill(server.token);
  await page.keyboard.press('Enter');
}
