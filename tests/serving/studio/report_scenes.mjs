// Scenes of reports of evaluations.
import assert from "node:assert/strict";
import { hasText, open } from "./page.mjs";

const cells = (page, row) => page.locator(row).first().locator("td").allTextContents();

export const reportScenes = {
  async evaluate(context) {
    const page = await open(context, "#view=evaluate");
    await hasText(page, ".items", "new.json");
    assert.deepEqual(await page.locator(".items .title").allTextContents(), ["new.json", "old.json"]);
    await page.locator(".items .item").first().click();
    await hasText(page, "h2", "orders");
    assert.match(await page.locator(".chips").textContent(), /passed 0\.500 \[0\.000, 1\.000\]2 cases × 2pass@2 0\.500pass\^2 0\.500/);
    assert.deepEqual((await cells(page, ".layers tbody tr:last-child")).slice(0, 6), ["Loud", "", "0.000", "+0.500 [0.000, 1.000]", "0.000", "1.000"]);
    assert.equal(await page.locator(".layers .whisker .mean").count(), 1);
    assert.deepEqual(await cells(page, ".cases tbody tr"), ["fails", "", "0 of 2", "[0.000, 0.658]"]);
    await page.getByLabel("Compare with").selectOption("old.json");
    await hasText(page, ".comparison", "1 better, 1 same, p = 1.000");
    await page.reload();
    await hasText(page, ".comparison", "better: passes");
    // A failed trial leads to its run, and the key Back leads back.
    await page.locator(".trials summary", { hasText: "fails, try 1" }).click();
    await hasText(page, ".trials details[open]", "I do not know.");
    await page.locator(".trials details[open]").getByRole("button", { name: "Look into the run" }).click();
    await hasText(page, ".pane-run h2", "Where is it?");
    await page.goBack();
    await hasText(page, ".comparison", "better: passes");
    await page.setViewportSize({ width: 360, height: 740 });
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth));
  },

  async hostile_report(context) {
    const page = await open(context, "#view=evaluate");
    await page.locator(".items .item").click();
    await hasText(page, ".layers", "Loud");
    for (const summary of await page.locator(".trials summary").all()) await summary.click();
    await hasText(page, ".trials details[open]", "window.harmed");
    const text = await page.locator("main").textContent();
    assert.ok(text.includes("<img src=x onerror="), text);
    assert.equal(/[\u0000-\u0008\u001b\u202e]/.test(text), false);
    assert.equal(await page.locator("main :is(img, script, a, iframe)").count(), 0);
    assert.equal(await page.evaluate(() => window.harmed), undefined);
  },
};
