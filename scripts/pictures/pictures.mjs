// Takes the pictures: `node pictures.mjs SPEC`, as JSON.
import { writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { join } from "node:path";

const spec = JSON.parse(process.argv[2]);
const { chromium } = createRequire(join(spec.packages, "package.json"))("playwright-core");
const browser = await chromium.launch({ executablePath: spec.program, args: ["--no-sandbox"], env: { ...process.env, ...spec.environment } });
const context = await browser.newContext({ viewport: { width: 1400, height: 880 }, locale: "en-GB", timezoneId: "UTC" });
const page = await context.newPage();
page.setDefaultTimeout(60_000);
const painter = await context.newPage(); // whose policy allows what that of the studio does not

// WebP is a third of what PNG is.
async function picture(name) {
  await page.bringToFront();
  await page.mouse.move(0, 0);
  const png = (await page.screenshot()).toString("base64");
  const webp = await painter.evaluate(async (encoded) => {
    const bytes = Uint8Array.from(atob(encoded), (character) => character.charCodeAt(0));
    const image = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
    const canvas = new OffscreenCanvas(image.width, image.height);
    canvas.getContext("2d").drawImage(image, 0, 0);
    const blob = await canvas.convertToBlob({ type: "image/webp", quality: 0.8 });
    return String.fromCharCode(...new Uint8Array(await blob.arrayBuffer()));
  }, png);
  await writeFile(join(spec.folder, `${name}.webp`), Buffer.from(webp, "latin1"));
}

try {
  await page.goto(`${spec.url}/studio`);
  await page.waitForFunction(() => document.activeElement?.id === "input");
  await page.fill("#input", "My headphones, order A-1042, are uncomfortable. Can I send them back?");
  await page.press("#input", "Enter");
  await page.locator("#log .assistant", { hasText: "30 days" }).waitFor();
  await page.locator("header nav [data-view=runs]").click();
  await page.locator("#runs .item").click();
  await page.locator("#timeline li").nth(4).waitFor();
  await picture("run");
  await page.locator(".findings button").first().click();
  await page.locator(".onion del").waitFor();
  await picture("layer");
  await page.getByRole("checkbox", { name: "Run again with ShortenResults" }).uncheck();
  await page.getByRole("button", { name: "Fork and run" }).click();
  await page.locator(".two .side", { hasText: "14 days" }).locator(".pill.completed").waitFor();
  await picture("compare");
} finally {
  await browser.close();
}
