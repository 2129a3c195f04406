// Modules of the studio that need no page: `node modules.mjs FOLDER`.
import assert from "node:assert/strict";
import { join } from "node:path";

const folder = process.argv[2];
const load = (name) => import(join(folder, name));
const [{ markdown }, { compareWords }, { LongText, clean, pretty }, { Timeline }] = await Promise.all(["markdown.js", "diff.js", "text.js", "runs/timeline.js"].map(load));

// The elements of a text, as `<tag>...</tag>`, and its text as it stands.
function draw(node) {
  if (node === null || node === undefined || node === false) return "";
  if (Array.isArray(node)) return node.map(draw).join("");
  if (typeof node !== "object") return String(node);
  return `<${node.type}>${draw(node.props.children)}</${node.type}>`;
}

const texts = {
  "a **b** _c_ `d`": "<p>a <strong>b</strong> <em>c</em> <code>d</code></p>",
  "**a _b_**": "<p><strong>a <em>b</em></strong></p>",
  "2 * 3 * 4, a_b_c, ** x **": "<p>2 * 3 * 4, a_b_c, ** x **</p>",
  "`a**b**` \\*c\\*": "<p><code>a**b**</code> *c*</p>",
  "a\n\nb\nc": "<p>a</p><p>b\nc</p>",
  "# Head": "<p>Head</p>",
  "- a\n- b\n  - c\n- d": "<ul><li>a</li><li>b<ul><li>c</li></ul></li><li>d</li></ul>",
  "2. a\n3. b": "<ol><li>a</li><li>b</li></ol>",
  "```js\nx **y**\n": "<pre><code>x **y**\n</code></pre>",
  "|a|b|\n|-|:-:|\n|1|**2**|": "<div><table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td><strong>2</strong></td></tr></tbody></table></div>",
  "a | b, and no table\n---": "<p>a | b, and no table\n---</p>",
  "[a](javascript:b) ![c](d) <b>e</b> &amp;": "<p>[a](javascript:b) ![c](d) <b>e</b> &amp;</p>",
  "**": "<p>**</p>",
  "**open `also": "<p>**open `also</p>",
};
for (const [text, expected] of Object.entries(texts)) {
  assert.equal(draw(markdown(text)), expected);
}

// However it is made, a text of 20,000 characters takes no more than a moment: each character is looked at a few times.
const long = (piece) => piece.repeat(20_000 / piece.length);
for (const piece of ["*", "_", "`", "**a ", "*a ", "`a ``b ", "|", "|-", "- ", "  - a\n", "[", "\\", "a|b\n-|-\n", "``` \n", "#", "1. a\n "]) {
  const begun = process.cpuUsage().user;
  markdown(long(piece));
  assert.ok(process.cpuUsage().user - begun < 2_000_000, `${JSON.stringify(piece)} takes ${process.cpuUsage().user - begun} us`);
}

const parts = (one, other) => compareWords(one, other).map(({ kind, text }) => `${kind}:${text}`);
assert.deepEqual(parts("a b c", "a x c"), ["same:a ", "del:b", "ins:x", "same: c"]);
assert.deepEqual(parts("a b", "a b"), ["same:a b"]);
assert.deepEqual(parts("", "a"), ["ins:a"]);
const words = Array.from({ length: 5_000 }, (_, index) => `w${index}`);
assert.deepEqual(compareWords(words.join(" "), words.toReversed().join(" ")).map(({ kind }) => kind).filter((kind) => kind !== "same"), ["del", "ins"]);

assert.equal(clean("a\u202eb\u0000"), "a\\u{202e}b\\u{0}");
assert.equal(pretty('{"a":9007199254740993}'), '{\n  "a": 9007199254740993\n}');
const text = new LongText();
for (let index = 0; index < 100; index += 1) text.append("x".repeat(1_000));
assert.deepEqual([text.size, text.head.length], [100_000, 20_000]);
text.showMore();
assert.equal(text.head.length, 100_000);

// Layers of calls that run side by side are those of their own calls, by their times.
const timeline = new Timeline("r");
let n = 0;
const line = (t, kind, rest) => timeline.applyLine({ n: (n += 1), t: t * 1e6, kind, ...rest }, "r");
const event = (t, type, rest) => line(t, "event", { event: { reply_id: "r", seq: n + 1, type, ...rest } });
const layer = (t, call, parent, place, total) =>
  line(t, "layer", { call, parent, hook: "on_acting", layer: place ? null : "L", place, own_ns: 1e6, total_ns: total * 1e6, outcome: "returned", changes: [] });
line(0, "begin", {});
for (const [id, start] of [["a", 10], ["b", 11]]) {
  event(5, "TOOL_CALL_START", { tool_call_id: id, tool_call_name: id });
  event(start, "TOOL_RESULT_START", { tool_call_id: id, tool_call_name: id });
}
layer(50, 4, 3, 1, 38);
layer(51, 3, null, 0, 39); // of b, which ends first
event(52, "TOOL_RESULT_END", { tool_call_id: "b", state: "success", output: null });
layer(90, 2, 1, 1, 79);
layer(91, 1, null, 0, 80); // of a
event(92, "TOOL_RESULT_END", { tool_call_id: "a", state: "success", output: null });
const calls = Object.fromEntries(timeline.rows.filter((row) => row.call).map((row) => [row.name, row.layers.map((found) => found.call)]));
assert.deepEqual(calls, { a: [2, 1], b: [4, 3] });

// A call that a tool makes is below the row of the call around it, at any depth.
const nested = new Timeline("r");
let seq = 0;
const tell = (type, id) => nested.applyLine({ n: (seq += 1), t: seq * 1e9, kind: "event", event: { reply_id: "r", seq, type, tool_call_id: id, tool_call_name: id, state: "success", output: null } }, "r");
nested.applyLine({ n: (seq += 1), t: 0, kind: "begin" }, "r");
const ids = ["c", "c/1", "c/1/2"];
for (const id of ids) {
  tell("TOOL_CALL_START", id);
  tell("TOOL_RESULT_START", id);
}
for (const id of ids.toReversed()) tell("TOOL_RESULT_END", id);
const inside = (name) => nested.rows.find((row) => row.kind === "tool" && row.name === name).children.filter((row) => row.kind === "tool").map((row) => row.name);
assert.deepEqual(ids.map(inside), [["c/1"], ["c/1/2"], []]);
