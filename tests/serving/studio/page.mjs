// The page of the studio as a scene sees it: what it may ask for, and what its console may say.
import assert from "node:assert/strict";

export const spec = JSON.parse(process.argv[2]);
export const problems = [];
export const expected = []; // what the console may say in this scene

export async function open(context, address = "") {
  const page = await context.newPage();
  page.setDefaultTimeout(120_000); // a busy machine may be ten times slower than an idle one
  page.on("pageerror", (error) => problems.push(`error: ${error.message}`));
  page.on("console", (message) => {
    const text = message.text();
    if (["error", "warning"].includes(message.type()) && !expected.some((known) => text.includes(known))) problems.push(`console: ${text}`);
  });
  page.on("request", (request) => {
    if (!request.url().startsWith(spec.url) && !request.url().startsWith(`blob:${spec.url}`)) problems.push(`foreign request: ${request.url()}`);
  });
  const response = await page.goto(`${spec.url}/studio${address}`);
  assert.match(response.headers()["content-security-policy"], /^default-src 'none'; script-src 'self'; style-src 'self'/);
  return page;
}

export async function ready(context, address) {
  const page = await open(context, address);
  await page.locator("#agent option").first().waitFor({ state: "attached" });
  await page.waitForFunction(() => document.activeElement?.id === "input");
  return page;
}

export async function say(page, text) {
  await page.fill("#input", text);
  await page.press("#input", "Enter");
}

export const hasText = (page, selector, text) => page.locator(selector).filter({ hasText: text }).first().waitFor();
export const answered = (page, text) => hasText(page, "#log .assistant", text);
