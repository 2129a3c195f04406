// Scenes of recorded runs.
import assert from "node:assert/strict";
import { answered, expected, hasText, open, ready, say, spec } from "./page.mjs";

const view = (page, name) => page.locator(`header nav [data-view=${name}]`).click();
// Its end may be written a moment after the reply has ended.
const opened = (page) => hasText(page, ".pane-run .pill", "done");
const isNarrow = (page) => page.evaluate(() => document.documentElement.scrollWidth <= innerWidth);

// Has a run, and opens it.
async function openRun(context, text = "read the policy") {
  const page = await ready(context);
  await say(page, text);
  await answered(page, "The tool said");
  await view(page, "runs");
  await page.locator("#runs .item", { hasText: text }).click();
  await opened(page);
  return page;
}

// A run of so many tool calls, and lines that come later, as the server sends them.
function longRun(size, later) {
  const begun = 1_700_000_000;
  const at = (index) => index / 100;
  const event = (line, type, rest) => ({ line, at: at(line), event: { reply_id: "long", seq: line, type, ...rest } });
  const toolEvents = (index) => {
    const call = { tool_call_id: `c${index}`, tool_call_name: `tool ${index}` };
    return [event(2 * index + 2, "TOOL_RESULT_START", call), event(2 * index + 3, "TOOL_RESULT_END", { ...call, state: "success", output: null })];
  };
  const listed = (from, to) => Array.from({ length: to - from }, (_, index) => toolEvents(from + index)).flat();
  const usage = { input_tokens: 1, output_tokens: 1, cache_input_tokens: 0, cache_creation_input_tokens: 0 };
  const facts = {
    session_id: "long", reply_id: "long", parent: null, title: "A long run", agent: "assistant", labels: {}, status: "running", begun_at: new Date(begun * 1000).toISOString(),
    ended_at: null, seconds: null, usage, cost: 0.1, calls: 1, tools: [], changed_by: [], lines: 2 * size + 1,
  };
  const run = {
    ...facts, has_content: true, inputs: [], message: null, chains: null, steps: [], requests: [], layer_calls: [], gaps: [], children: [], contents: {},
    events: [event(1, "REPLY_START", { session_id: "long", name: "assistant", role: "assistant" }), ...listed(0, size)],
  };
  const lines = listed(size, size + later).map(({ line, event: body }) => ({ n: line, t: (begun + at(line)) * 1e9, kind: "event", event: body }));
  return { facts, run, lines };
}

export const runScenes = {
  async run(context) {
    const page = await ready(context, "#session=ann%2Freturns%20%C3%A9");
    await say(page, "pay for lunch");
    await page.locator(".card.agent .allow").click();
    await answered(page, "The tool said");
    await page.locator("#log").getByRole("button", { name: "Open the run" }).click();
    await opened(page);
    // Two calls of 10 and 5 tokens, at 1 and 2 dollars a million.
    assert.match(await page.locator(".pane-run .chips").textContent(), /done.*20 in, 10 out.*\$0\.00004.*2 model calls/);
    await hasText(page, ".qa", "paid 3 for lunch");
    await hasText(page, ".findings", "pay was approved after");
    assert.deepEqual(await page.locator("#timeline .label").allTextContents(), ["Reply", "studio-model", "Wait for approval", "pay", "studio-model"]);
    await page.locator("#timeline button", { hasText: "pay" }).first().click();
    await hasText(page, ".pane-step", '"amount": 3');
    await hasText(page, ".pane-step", "paid 3 for lunch");
    await page.locator(".tabs").getByRole("button", { name: "Raw" }).click();
    await hasText(page, ".pane-step pre", '"kind":"event"');
    // The key Back leads back.
    await page.goBack();
    await hasText(page, ".pane-step", "Choose a step");
    await page.reload();
    await hasText(page, ".pane-run h2", "pay for lunch");
    await page.locator(".filters button", { hasText: "Failed" }).click();
    await hasText(page, ".pane-list", "No run matches");
    await page.locator(".filters button", { hasText: "All" }).click();
    await page.fill("[aria-label='Search runs']", "lunch");
    await hasText(page, "#runs .title", "pay for lunch");
    await page.fill("[aria-label='Search runs']", "dinner");
    await hasText(page, ".pane-list", "No run matches");
    await page.fill("[aria-label='Search runs']", "");
    page.once("dialog", (dialog) => dialog.accept());
    await page.locator(".pane-run").getByRole("button", { name: "Delete" }).click();
    await hasText(page, ".pane-list", "No run is recorded yet");
  },

  async layers(context) {
    const page = await openRun(context);
    const finding = page.locator(".findings button", { hasText: "Shorten" });
    assert.match(await finding.textContent(), /removed 89 of 289 characters of messages\[1\], result of read_policy before 1 of 2 model calls/);
    await finding.click();
    const layer = page.locator(".onion", { hasText: "Shorten" });
    assert.match(await layer.locator("del").textContent(), /Electronics may be returned within 14 days\./);
    await layer.getByRole("checkbox").uncheck();
    await hasText(page, ".again", "Without Shorten");
    await page.locator(".tabs").getByRole("button", { name: "Request" }).click();
    await hasText(page, ".sent .by", "changed by Shorten");
    await page.locator(".times .switch").check();
    await hasText(page, "#timeline .layer-row", "Shorten");
  },

  async fork(context) {
    const page = await openRun(context);
    await page.locator(".findings button", { hasText: "Shorten" }).click();
    await page.getByRole("checkbox", { name: "Run again with Shorten" }).uncheck();
    await page.getByRole("button", { name: "Fork and run" }).click();
    // Both side by side: what came before is from the record, and the first difference is marked.
    const [recorded, forked] = [page.locator(".two .side").nth(0), page.locator(".two .side").nth(1)];
    await forked.locator(".md", { hasText: "Electronics may be returned within 14 days." }).waitFor();
    assert.equal((await recorded.locator(".md").textContent()).includes("14 days"), false);
    await forked.locator(".pill.completed").waitFor();
    const steps = await page.locator(".steps tbody tr").allTextContents();
    assert.deepEqual(steps.map((text) => text.replace(/[\d.]+ m?s/g, "")), ["1studio-model from the record", "2read_policy from the record", "3studio-model studio-model first difference: messages[1]"]);
    await hasText(page, ".diff ins", "Electronics may be returned within 14 days.");
    await hasText(page, ".numbers tr", "model calls221");
    // The address leads to the same in another tab.
    await page.reload();
    await hasText(page, ".steps .first", "first difference: messages[1]");
    await page.locator(".steps .first button").nth(1).click();
    await hasText(page, ".pane-step h2", "Model call 1: studio-model");
  },

  async fork_that_asks(context) {
    const page = await ready(context);
    await say(page, "pay for lunch");
    await page.locator(".card.agent .allow").click();
    await answered(page, "The tool said");
    await page.locator("#log").getByRole("button", { name: "Open the run" }).click();
    await opened(page);
    await page.locator("#timeline li.model button").first().click();
    await page.getByRole("button", { name: "Fork and run" }).click();
    // Nothing is paid again unless the reader allows it, and that can be done here.
    await page.locator(".two .card.agent").getByRole("button", { name: "Allow" }).click();
    await page.locator(".two .side").nth(1).locator(".pill.completed").waitFor();
    await hasText(page, "main", "Both took the same steps.");
  },

  async replay(context) {
    const page = await openRun(context);
    await page.locator(".findings button", { hasText: "Shorten" }).click();
    await page.getByRole("button", { name: "Replay" }).click();
    await hasText(page, "main", "No difference.");
    await page.goBack();
    await page.getByRole("checkbox", { name: "Run again with Shorten" }).uncheck();
    await page.getByRole("button", { name: "Replay" }).click();
    await hasText(page, ".side", "messages[1], because of Shorten");
    await hasText(page, ".diff ins", "Electronics may be returned within 14 days.");
    await page.getByRole("button", { name: "Open the step" }).first().click();
    await hasText(page, ".pane-step h2", "Model call 2");
    // What the program does not allow is not offered.
    assert.equal(await page.getByRole("checkbox", { name: /Run again with/ }).count(), 1);
    await page.locator(".again summary").click();
    assert.deepEqual(await page.locator(".again label:visible").allTextContents(), ["Tools that are not read-only ask firstanswer from the record"]);
  },

  async closed_playground(context) {
    const page = await openRun(context);
    await page.locator(".findings button", { hasText: "Shorten" }).click();
    await page.locator(".onion", { hasText: "Shorten" }).waitFor();
    assert.equal(await page.locator(".again, .onion input").count(), 0);
    // A request that is sent all the same is refused.
    expected.push("403");
    const path = new URL(page.url()).hash.match(/run=([^&]+)&reply=([^&]+)/).slice(1).join("/");
    const status = await page.evaluate(async (run) => (await fetch(`api/runs/${run}/fork`, { method: "POST", headers: { "Content-Type": "application/json" }, body: '{"at": 2}' })).status, path);
    assert.equal(status, 403);
  },

  async subagents(context) {
    const page = await ready(context);
    await say(page, "delegate");
    await page.locator(".card.agent .allow").click();
    await answered(page, "paid 3 for lunch");
    // They stay after the end, folded.
    await page.locator("#log summary", { hasText: "Agent child" }).click();
    await hasText(page, "#log details details summary", "Call of pay");
    await page.locator("#log").getByRole("button", { name: "Open the run" }).click();
    await opened(page);
    // Tokens, calls and cost are of the whole tree.
    assert.match(await page.locator(".pane-run .chips").textContent(), /40 in, 20 out.*4 model calls/);
    assert.deepEqual(await page.locator("#timeline li.inner .label").allTextContents(), ["studio-model", "pay", "studio-model"]);
    await page.locator("#timeline li.inner button", { hasText: "pay" }).click();
    await hasText(page, ".pane-step", "paid 3 for lunch");
  },

  async growing(context) {
    expected.push("ERR_INCOMPLETE", "ERR_NETWORK_CHANGED", "ERR_CONNECTION");
    const page = await ready(context);
    await say(page, "gate");
    await hasText(page, "#live .text", "before the gate");
    await page.locator("#live").getByRole("button", { name: "Open the run" }).click();
    await hasText(page, ".pane-run .pill", "running");
    await page.locator("#timeline li.model").waitFor();
    // A reader that is cut reads on.
    const continued = page.waitForResponse((response) => response.url().includes("/lines"));
    await page.request.post(`${spec.url}/cut`);
    assert.equal((await continued).status(), 200);
    await page.request.post(`${spec.url}/open-gate`);
    await hasText(page, ".pane-run .pill", "done");
    await hasText(page, ".qa", "before the gate and after");
    assert.deepEqual(await page.locator("#timeline .label").allTextContents(), ["Reply", "studio-model"]);
  },

  async many(context) {
    const page = await ready(context);
    const size = 5_000;
    const { facts, run, lines } = longRun(size, 400);
    let release;
    const released = new Promise((resolve) => (release = resolve));
    await page.route("**/api/runs*", (route) => route.fulfill({ json: { runs: [facts], cursor: null } }));
    await page.route("**/api/runs/long/long?*", (route) => route.fulfill({ json: run }));
    const asked = [];
    await page.route("**/api/runs/long/long/lines*", async (route) => {
      const after = Number((await route.request().allHeaders())["last-event-id"] ?? 0);
      asked.push(after);
      await released;
      // As much as a connection brings until it is cut; the next one goes on from there.
      const some = lines.filter((line) => line.n > after).slice(0, 300);
      return route.fulfill({ status: 200, contentType: "text/event-stream", body: some.map((line) => `id: ${line.n}\ndata: ${JSON.stringify(line)}\n\n`).join("") });
    });
    await view(page, "runs");
    await page.locator("#runs .item").click();
    await page.waitForFunction((count) => document.querySelectorAll("#timeline li").length === count, size + 1);
    await page.evaluate(() => {
      const row = document.querySelectorAll("#timeline button")[2500];
      row.scrollIntoView({ block: "center" });
      row.focus({ preventScroll: true });
      getSelection().selectAllChildren(document.querySelectorAll("#timeline .label")[2502]);
    });
    const seen = () =>
      page.evaluate(() => {
        const row = document.querySelectorAll("#timeline button")[2500];
        return [Math.round(row.getBoundingClientRect().top), document.activeElement === row, String(getSelection())];
      });
    await page.waitForTimeout(300); // until the rows around have their own heights
    const before = await seen();
    assert.deepEqual(before.slice(1), [true, "tool 2501"]);
    release();
    await page.waitForFunction((count) => document.querySelectorAll("#timeline li").length === count, size + 401);
    assert.deepEqual(await seen(), before);
    assert.ok(asked.includes(2 * size + 1) && asked.includes(2 * size + 301), `${asked.slice(-5)}`);
    await page.keyboard.press("ArrowDown");
    assert.equal(await page.evaluate(() => document.activeElement.textContent.includes("tool 2500")), true);
    await page.keyboard.press("End");
    assert.equal(await page.evaluate(() => document.activeElement.textContent.includes("tool 5399")), true);
  },

  async hostile_run(context) {
    expected.push("TrustedHTML");
    const page = await ready(context);
    await say(page, "pay hostile <img src=x onerror='window.harmed=1'>");
    await page.locator(".card.agent .allow").click();
    await answered(page, "The tool said: paid 9007199254740993");
    await view(page, "runs");
    await page.locator("#runs .item").click();
    await opened(page);
    for (const name of ["Reply", "studio-model", "Wait", "pay"]) {
      await page.locator("#timeline button", { hasText: name }).first().click();
      await hasText(page, ".pane-step h2", name);
      for (const tab of await page.locator(".tabs button:not(.back)").all()) {
        await tab.click();
        assert.equal(/[\u0000-\u0008\u001b\u202e]/.test(await page.locator("main").textContent()), false);
        assert.equal(await page.locator("main :is(img, script, a, iframe)").count(), 0);
      }
    }
    assert.equal(await page.evaluate(() => window.harmed), undefined);
    // The policy lets no text become markup, whoever tries.
    const refusal = await page.evaluate(() => {
      try {
        document.body.insertAdjacentHTML("beforeend", "<b></b>");
        return null;
      } catch (error) {
        return error.name;
      }
    });
    assert.equal(refusal, "TypeError");
  },

  async markdown(context) {
    const page = await ready(context);
    await say(page, "markdown");
    await answered(page, "snake_case_name");
    const found = await page.evaluate(() => {
      const texts = (selector) => [...document.querySelectorAll(`#log .assistant .md ${selector}`)].map((element) => element.textContent);
      return { strong: texts("strong"), em: texts("em"), code: texts("code"), items: texts("ul > li").length, inner: texts("ol > li"), cells: texts("td"), foreign: texts(":is(a, img, b)") };
    });
    assert.deepEqual(found, {
      strong: ["late"], em: ["very"], code: ["a_b*c", 'x = "**"'], items: 2, inner: ["inner"], cells: ["A-1", "<b>14</b>"], foreign: [],
    });
    await hasText(page, "#log .assistant", "[link](javascript:alert(1)) ![image](http://example.com/x.png)");
  },

  async inbox(context) {
    const page = await ready(context);
    await say(page, "pay for lunch");
    await page.locator(".card.agent").waitFor();
    await hasText(page, "header .badge", "1");
    await view(page, "inbox");
    await page.getByRole("button", { name: "Open the run" }).click();
    await hasText(page, ".findings", "is waiting for an answer");
    await view(page, "inbox");
    await page.getByRole("button", { name: "Allow" }).click();
    await hasText(page, "main", "No question is pending.");
    await page.locator("header .badge").waitFor({ state: "detached" });
    // A run that was open goes on, without being opened anew.
    await page.goBack();
    await hasText(page, ".findings", "pay was approved after");
    await view(page, "chat");
    await answered(page, "The tool said: paid 3 for lunch");
  },

  async background(context) {
    const page = await ready(context);
    await say(page, "background");
    await hasText(page, ".pane-chat .tasks li", "waiting for you");
    await hasText(page, ".pane-chat .tasks li", "working");
    // The question of the one leads from the inbox to its run, and that to the run around it.
    await hasText(page, "header .badge", "1");
    await view(page, "inbox");
    await hasText(page, ".card .note", "background call of clerk in studio-");
    await page.getByRole("button", { name: "Open the run" }).click();
    await hasText(page, ".pane-run h2", "clerk");
    await hasText(page, ".qa", 'clerk({"query": "pay for tea"})');
    await hasText(page, ".tasks li", "waiting for you");
    await page.getByRole("button", { name: "Open the run around it" }).click();
    await hasText(page, ".pane-run h2", "background");
    await hasText(page, "#timeline .mark", "working");
    const tokens = () => page.locator(".pane-run .chip", { hasText: " in, " }).textContent();
    assert.equal(await tokens(), "30 in, 15 out");
    await page.locator("#timeline button", { hasText: "crawl" }).first().click();
    await hasText(page, ".pane-step .tasks", "working");
    // With the keyboard.
    await page.locator(".pane-step").getByRole("button", { name: "Stop crawl" }).focus();
    await page.keyboard.press("Enter");
    await hasText(page, ".pane-run .tasks li", "stopped");
    await hasText(page, "#timeline .mark", "stopped");
    await page.locator(".pane-run").getByRole("button", { name: "Answer clerk" }).click();
    await page.getByRole("button", { name: "Allow" }).click();
    await hasText(page, "main", "No question is pending.");
    await page.goBack();
    await hasText(page, ".pane-run .tasks li", "done");
    // The run counts what the clerk has used.
    await hasText(page, ".pane-run .chip", "40 in, 20 out");
    // A hostile name of a tool is a text.
    await page.route("**/api/tasks?*", async (route) => {
      const response = await route.fetch();
      const { tasks } = await response.json();
      await route.fulfill({ response, json: { tasks: tasks.map((task) => ({ ...task, tool: "<img src=x onerror='window.harmed = 1'>", state: "running" })) } });
    });
    await page.reload();
    await hasText(page, ".pane-run .tasks b", "<img src=x");
    assert.equal(await page.evaluate(() => window.harmed), undefined);
  },

  async owners(context) {
    expected.push("401", "404");
    const page = await open(context);
    const signIn = async (token) => {
      await page.locator("#token").fill(token);
      await page.keyboard.press("Enter");
    };
    await signIn("a-long-good-token");
    await page.locator("#input").waitFor();
    await say(page, "hello");
    await answered(page, "You said: hello");
    await view(page, "runs");
    await page.locator("#runs .item").click();
    await page.locator("#timeline li").first().waitFor();
    const address = page.url().split("#")[1];
    await page.click("#sign");
    await signIn("another-good-token");
    await hasText(page, "#problem", "this run was not recorded, or was deleted");
    assert.equal(await page.locator("#runs .item, #timeline li").count(), 0);
    assert.ok(page.url().endsWith(address));
  },

  async run_with_keys(context) {
    const page = await openRun(context);
    await page.reload();
    await page.locator("#timeline li").first().waitFor();
    const tabTo = async (text, key = "Tab") => {
      for (let count = 0; count < 80; count += 1) {
        const isThere = await page.evaluate((wanted) => document.activeElement.checkVisibility() && (document.activeElement.textContent || document.activeElement.ariaLabel || "").includes(wanted), text);
        if (isThere && (await page.evaluate(() => document.activeElement !== document.body))) return;
        await page.keyboard.press(key);
      }
      throw new Error(`the key Tab does not lead to ${text}`);
    };
    await tabTo("read the policy"); // the run, in the list
    await page.keyboard.press("Enter");
    await tabTo("Shorten"); // what stands out
    await page.keyboard.press("Enter");
    await page.locator(".onion").first().waitFor();
    await tabTo("studio-model"); // the row of that step
    await page.keyboard.press("ArrowUp");
    await page.keyboard.press("Enter");
    await hasText(page, ".pane-step h2", "read_policy");
    for (const name of ["Layers", "Raw", "Replay", "Fork and run"]) await tabTo(name);
    await page.locator(".skip").focus();
    await page.keyboard.press("Enter");
    assert.equal(await page.evaluate(() => document.activeElement.textContent), "Call and result");
    await tabTo("Inbox", "Shift+Tab");
    await page.keyboard.press("Enter");
    await hasText(page, "main", "No question is pending.");
  },

  async phone_and_dark(context) {
    const page = await ready(context);
    await page.setViewportSize({ width: 360, height: 740 });
    await page.emulateMedia({ colorScheme: "dark" });
    await say(page, "read the policy");
    await answered(page, "The tool said");
    assert.ok(await isNarrow(page), "chat");
    // A list, a run and a step are three screens.
    await view(page, "runs");
    await page.locator("#runs .item").click();
    await page.locator("#timeline li").first().waitFor();
    assert.equal(await page.locator("#runs").isVisible(), false);
    assert.ok(await isNarrow(page), "run");
    await page.locator(".findings button").first().click();
    await page.locator(".onion").first().waitFor();
    assert.equal(await page.locator("#timeline").isVisible(), false);
    await page.waitForFunction(() => document.activeElement.closest(".pane-step"));
    assert.ok(await isNarrow(page), "step");
    // Each text stands out against what is behind it.
    const contrast = await page.evaluate(() => {
      const luminance = (color) => {
        const [red, green, blue] = color.match(/[\d.]+/g).map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
      };
      const behind = (element) => {
        const { backgroundColor } = getComputedStyle(element);
        return /, 0\)$/.test(backgroundColor) && element.parentElement ? behind(element.parentElement) : backgroundColor;
      };
      return [...document.querySelectorAll("main :is(button, b, p, del, ins, span, .note)")]
        .filter((element) => element.checkVisibility() && element.textContent.trim())
        .map((element) => {
          const [one, other] = [luminance(getComputedStyle(element).color), luminance(behind(element))].sort((a, b) => b - a);
          return [(one + 0.05) / (other + 0.05), element.textContent.slice(0, 30)];
        })
        .sort(([one], [other]) => one - other)[0];
    });
    assert.ok(contrast[0] >= 4.5, `${contrast}`);
    await page.locator(".pane-step .back").click();
    await page.locator("#timeline").waitFor();
    await page.locator(".pane-run .back").click();
    await page.locator("#runs .item").waitFor();
    for (const name of ["inbox", "compare"]) {
      await view(page, name);
      assert.ok(await isNarrow(page), name);
    }
  },
};
