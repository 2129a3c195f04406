// Plays one scene on the page of the studio: `node scenes.mjs SPEC`, as JSON. What it finds is written as JSON.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { answered, expected, hasText, open, problems, ready, say, spec } from "./page.mjs";
import { reportScenes } from "./report_scenes.mjs";
import { runScenes } from "./run_scenes.mjs";

const { chromium } = createRequire(join(spec.packages, "package.json"))("playwright-core");

const scenes = {
  ...runScenes,
  ...reportScenes,

  async chat(context) {
    const page = await ready(context);
    await say(page, "pay for lunch");
    const card = page.locator(".card.agent");
    await card.waitFor();
    assert.match(await card.textContent(), /May pay run\?.*"amount": 3/s);
    await hasText(page, "#status", "Waiting for you");
    // Folded, until asked for.
    assert.equal(await page.getByText("I think of lunch.").isVisible(), false);
    await page.getByText("Thinking", { exact: true }).click();
    assert.equal(await page.getByText("I think of lunch.").isVisible(), true);
    await card.getByLabel("Feedback").fill("too much");
    await card.getByRole("button", { name: "Deny" }).click();
    await answered(page, "too much");
    await hasText(page, "#log summary", "Result of pay: denied");
    await say(page, "pay again");
    await page.locator(".card.agent .allow").dblclick(); // which answers once
    await answered(page, "The tool said: paid 3 for lunch");
    await page.getByText("Result of pay: success").click();
    assert.equal(await page.locator("#log pre", { hasText: "paid 3 for lunch" }).isVisible(), true);
    assert.match(await page.locator("#usage").textContent(), /^40 \+ 20 tokens/);

    const download = page.waitForEvent("download");
    await page.click("#export");
    const exported = JSON.parse(await text(await (await download).createReadStream()));
    assert.equal(exported.session.messages.length, 4);
    assert.equal(exported.chains.agent, "assistant");

    const first = await page.locator("#title").textContent();
    await page.locator("#log .message").nth(1).getByRole("button", { name: "Fork here" }).click();
    await page.waitForFunction((id) => document.getElementById("title").textContent !== id, first);
    await page.waitForFunction(() => document.querySelectorAll("#log .message").length === 2);
    const fork = await page.locator("#title").textContent();
    await page.fill("#search", first);
    await page.waitForFunction(() => document.querySelectorAll("#list li").length === 1);
    await page.locator("#list button").click();
    await page.waitForFunction(() => document.querySelectorAll("#log .message").length === 4);
    await page.fill("#search", "");
    await page.locator("#list button", { hasText: fork }).click();
    await page.waitForFunction((id) => document.getElementById("title").textContent === id, fork);
    page.once("dialog", (dialog) => dialog.accept());
    await page.click("#delete");
    await page.waitForFunction((id) => !document.getElementById("list").textContent.includes(id), fork);
  },

  async edit(context) {
    const page = await ready(context, "#session=may-edit");
    await say(page, "pay for lunch");
    const input = page.getByLabel("Arguments of pay");
    await input.fill('{"amount": 4, "note": "tea"}');
    await page.locator(".card.agent .allow").click();
    await answered(page, "The tool said: paid 4 for tea");
  },

  async times(context) {
    const page = await ready(context);
    await say(page, "pay for lunch");
    await page.locator(".card.agent .allow").click();
    await answered(page, "The tool said");
    const own = (hook, layer) => page.locator(`.layer.passed[data-hook=${hook}][data-layer=${layer}] .time`).first();
    await hasText(page, ".layer.passed[data-hook=on_model_call]", "outer ×2");
    for (const [hook, layer, time] of [
      ["on_reply", "outer", "60 ms"],
      ["on_reply", "middle", "1.00 s"],
      ["on_reply", "inner", "14 ms"],
      ["on_model_call", "outer", "60 ms"],
      ["on_model_call", "middle", "1.00 s"],
      ["on_model_call", "inner", "14 ms"],
    ]) {
      assert.equal(await own(hook, layer).textContent(), time, `${hook} ${layer}`);
    }
    const total = page.locator(".layer[data-hook=on_model_call][data-layer=outer] .time").nth(1);
    assert.equal(await total.textContent(), "1.07 s");
    const names = await page.locator("#waterfall .name").allTextContents();
    assert.deepEqual(names, ["Reply", "studio-model", "Wait for approval", "pay", "studio-model"]);
    await page.locator("#waterfall button", { hasText: "pay" }).click();
    await page.waitForFunction(() => document.activeElement.dataset.key === "call:c1");
    await page.locator(".block[data-key='call:c1']").getByRole("button", { name: "Times" }).click();
    await page.waitForFunction(() => document.activeElement.closest("#waterfall li.tool"));
    // An older reply is asked for again.
    await say(page, "hello");
    await answered(page, "You said: hello");
    await page.locator("#log .assistant").first().locator(".meta").getByRole("button", { name: "Times" }).click();
    await page.waitForFunction(() => document.querySelectorAll("#waterfall li").length === 5);
  },

  async waits(context) {
    const page = await ready(context);
    await say(page, "delegate");
    const card = page.locator(".card.agent");
    await card.waitFor();
    assert.match(await card.textContent(), /May pay in child run\?/);
    await page.getByText("Agent child").click();
    await hasText(page, "#live details details summary", "Call of pay");
    await card.getByRole("button", { name: "Allow" }).click();
    await answered(page, "paid 3 for lunch");
    const inner = await page.locator("#waterfall li.inner .name").allTextContents();
    assert.deepEqual(inner, ["studio-model", "pay", "studio-model"]);
    await say(page, "phone");
    await page.getByLabel("Result").fill("Nobody was there.");
    await page.getByRole("button", { name: "Send results" }).click();
    await answered(page, "The tool said: Nobody was there.");
  },

  async interrupt(context) {
    const page = await ready(context);
    await say(page, "gate");
    await hasText(page, "#live .text", "before the gate");
    await page.click("#interrupt");
    await hasText(page, "#log .meta", "interrupted");
    await page.locator("#interrupt").waitFor({ state: "hidden" });
    await page.request.post(`${spec.url}/open-gate`);
    // One that fails says so, and does not stand in the way of the next one.
    await say(page, "fail");
    await hasText(page, "#live .failed", "ValueError");
    await page.waitForFunction(() => document.getElementById("status").textContent === "");
    await say(page, "hello");
    await answered(page, "You said: hello");
    assert.equal(await page.locator("#live .failed").count(), 0);
  },

  async reload(context) {
    const page = await ready(context);
    await say(page, "gate");
    await hasText(page, "#live .text", "before the gate");
    await page.reload();
    await hasText(page, "#live .text", "before the gate");
    await page.request.post(`${spec.url}/open-gate`);
    await answered(page, "before the gate and after");
    assert.equal((await page.locator("#messages").textContent()).split("before the gate").length, 2);
    await say(page, "pay for lunch");
    await page.locator(".card.agent").waitFor();
    await page.reload();
    await page.locator(".card.agent .allow").click();
    await answered(page, "The tool said");
  },

  async network(context) {
    expected.push("ERR_INTERNET_DISCONNECTED", "ERR_NETWORK_CHANGED", "ERR_CONNECTION", "ERR_INCOMPLETE");
    const page = await ready(context);
    await say(page, "gate");
    await hasText(page, "#live .text", "before the gate");
    const continued = page.waitForResponse((response) => response.url().includes("/events"));
    await page.request.post(`${spec.url}/cut`);
    assert.equal((await continued).status(), 200); // long after the last save
    await context.setOffline(true);
    await hasText(page, "#status", "Connection lost");
    await page.request.post(`${spec.url}/open-gate`);
    await context.setOffline(false);
    await answered(page, "before the gate and after");
    assert.equal((await page.locator("#messages").textContent()).split("before the gate").length, 2);
    // Nothing is lost of what is typed, and nothing is sent twice.
    await context.setOffline(true);
    await say(page, "hello");
    await hasText(page, "#problem", "cannot be reached");
    assert.equal(await page.inputValue("#input"), "hello");
    await context.setOffline(false);
    await page.press("#input", "Enter");
    await answered(page, "You said: hello");
    assert.equal(await page.locator("#log .user").count(), 2);
  },

  async two_pages(context) {
    const page = await ready(context, "#session=shared");
    await say(page, "gate");
    await hasText(page, "#live .text", "before the gate");
    const other = await ready(context, "#session=shared");
    await hasText(other, "#live .text", "before the gate");
    await page.request.post(`${spec.url}/open-gate`);
    for (const either of [page, other]) await answered(either, "before the gate and after");
    await say(page, "pay for lunch");
    await other.locator(".card.agent .allow").click();
    await answered(page, "The tool said");
  },

  async hostile(context) {
    const page = await ready(context);
    await say(page, "<b id=mine>hostile</b>");
    await answered(page, "You said: <b id=mine>");
    await say(page, "hostile");
    await answered(page, "<img src=x");
    await say(page, "pay hostile");
    const card = page.locator(".card.agent");
    await card.waitFor();
    // What would change the order in which an approval is read is seen.
    assert.match(await card.textContent(), /"amount": 9007199254740993,\n.*\\u202eesrever/s);
    await card.getByRole("button", { name: "Allow" }).click();
    await answered(page, "The tool said: paid 9007199254740993 for <img");
    const text = await page.locator("#messages").textContent();
    assert.equal(/[\u0000-\u0008\u001b\u202e]/.test(text), false);
    assert.ok(text.includes("\\u{1b}[2J"));
    assert.equal(await page.evaluate(() => window.harmed), undefined);
    assert.equal(await page.locator("#messages :is(img, script, b#mine)").count(), 0);
    const begun = Date.now();
    await say(page, "long");
    const more = page.locator("#log").getByRole("button", { name: /Show more: 9,980,000 characters/ });
    await more.waitFor();
    await more.click();
    await page.locator("#log").getByRole("button", { name: /Show more: 9,780,000/ }).waitFor();
    assert.ok(Date.now() - begun < 60_000, `10 MB took ${Date.now() - begun} ms`);
    await say(page, "hello");
    await answered(page, "You said: hello");
  },

  async burst(context) {
    const page = await ready(context);
    const event = (seq, type, rest) => {
      const data = { reply_id: "burst", seq, created_at: new Date(1e12 + seq).toISOString(), type, ...rest };
      return `id: ${seq}\ndata: ${JSON.stringify(data)}\n\n`;
    };
    await page.route("**/api/replies/*/events*", (route) => {
      const replyId = decodeURIComponent(/replies\/([^/]*)\//.exec(route.request().url())[1]);
      const parts = [event(1, "TEXT_BLOCK_START", { reply_id: replyId, block_id: "b1" })];
      for (let seq = 2; seq <= 5000; seq += 1) {
        parts.push(event(seq, "TEXT_BLOCK_DELTA", { reply_id: replyId, block_id: "b1", delta: seq === 5000 ? "the end" : "ab " }));
      }
      parts.push('event: done\ndata: {"status": "completed"}\n\n');
      return route.fulfill({ status: 200, contentType: "text/event-stream", body: parts.join("") });
    });
    const browser = await context.newCDPSession(page);
    await browser.send("Performance.enable");
    const layouts = async () => {
      const { metrics } = await browser.send("Performance.getMetrics");
      return metrics.find((metric) => metric.name === "LayoutCount").value;
    };
    const before = await layouts();
    await say(page, "hello");
    await page.waitForFunction(() => document.getElementById("messages").textContent.includes("the end"));
    return { layouts: (await layouts()) - before };
  },

  async keyboard(context) {
    const page = await ready(context);
    await page.setViewportSize({ width: 375, height: 700 });
    const isNarrow = () => page.evaluate(() => document.documentElement.scrollWidth <= innerWidth);
    await page.keyboard.type("pay for lunch");
    await page.keyboard.press("Enter");
    await page.locator(".card.agent").waitFor();
    assert.ok(await isNarrow(), "chat");
    const tabTo = async (name) => {
      for (let count = 0; count < 60; count += 1) {
        const [text, isSeen] = await page.evaluate(() => {
          const element = document.activeElement;
          return [element.textContent || element.id, element.checkVisibility()];
        });
        if (text === name && isSeen) return;
        await page.keyboard.press("Shift+Tab");
      }
      throw new Error(`the key Tab does not lead to ${name}`);
    };
    await tabTo("Allow");
    await page.keyboard.press("Space");
    await answered(page, "The tool said: paid 3");
    for (const view of ["Sessions", "Inspect", "Chat"]) {
      await tabTo(view);
      await page.keyboard.press("Enter");
      await page.locator(`#${view.toLowerCase()}`).waitFor();
      assert.ok(await isNarrow(), view);
    }
    await tabTo("Times");
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => document.activeElement.closest("#waterfall"));
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => document.activeElement.closest("#messages"));
  },

  async token(context) {
    expected.push("401");
    const page = await open(context);
    await page.locator("#token").fill("a-wrong-token");
    await page.keyboard.press("Enter");
    await hasText(page, "#login-note", "does not know this token");
    await page.locator("#token").fill("a-long-good-token");
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => document.activeElement?.id === "input");
    await say(page, "hello");
    await answered(page, "You said: hello");
    assert.equal(page.url().includes("token="), false);
    await page.click("#sign");
    await page.locator("#login").waitFor();
  },

  async form(context) {
    expected.push("400");
    const page = await ready(context);
    const card = page.locator(".card.user-agent");
    await card.waitFor();
    await card.getByLabel("Answer", { exact: true }).fill("Let us go");
    await card.locator("[name=city]").fill("R");
    assert.equal(await card.locator("[name=card]").getAttribute("type"), "password");
    await card.getByRole("button", { name: "Send answer" }).click();
    await hasText(page, ".card [role=alert]", "city");
    await card.locator("[name=city]").fill("Rome");
    await card.locator("[name=days]").fill("5");
    await card.locator("[name=card]").fill("4711");
    await card.locator("[name=by_train]").check();
    await card.getByRole("button", { name: "Send answer" }).click();
    await card.waitFor({ state: "detached" });
  },
};

const browser = await chromium.connect(spec.browser);
try {
  const found = await scenes[spec.scene](await browser.newContext({ acceptDownloads: true, locale: "en-GB" }));
  assert.deepEqual(problems, []);
  console.log(JSON.stringify(found ?? {}));
} catch (error) {
  console.error(error, problems);
  process.exitCode = 1;
} finally {
  await browser.close();
}
