// Talks to an agent over MCP by a client of the protocol's authors, and writes what it saw as JSON. The specification on standard input says
// which client ("v1" shakes hands, "v2" does not), where the server is, what to call, and what the user answers.
import { readFileSync } from "node:fs";

const spec = JSON.parse(readFileSync(0, "utf8"));
const seen = { tools: [], results: [], progress: [], forms: [] };
const info = [{ name: "test", version: "1.0.0" }, { capabilities: spec.answer ? { elicitation: { form: {} } } : {} }];

function answer(request) {
  seen.forms.push(request.params);
  return spec.answer;
}

async function connectV1() {
  const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
  const { ElicitRequestSchema } = await import("@modelcontextprotocol/sdk/types.js");
  const http = await import("@modelcontextprotocol/sdk/client/streamableHttp.js");
  const stdio = await import("@modelcontextprotocol/sdk/client/stdio.js");
  const client = new Client(...info);
  if (spec.answer) client.setRequestHandler(ElicitRequestSchema, answer);
  await client.connect(
    spec.url ? new http.StreamableHTTPClientTransport(new URL(spec.url)) : new stdio.StdioClientTransport(spec.command),
  );
  return [client, (params, options) => client.callTool(params, undefined, options)];
}

async function connectV2() {
  const { Client, StreamableHTTPClientTransport } = await import("@modelcontextprotocol/client");
  const { StdioClientTransport } = await import("@modelcontextprotocol/client/stdio");
  const client = new Client(info[0], { ...info[1], versionNegotiation: { mode: "auto" } });
  if (spec.answer) client.setRequestHandler("elicitation/create", answer);
  await client.connect(
    spec.url ? new StreamableHTTPClientTransport(new URL(spec.url)) : new StdioClientTransport(spec.command),
  );
  return [client, (params, options) => client.callTool(params, options)];
}

const [client, call] = await (spec.client === "v1" ? connectV1() : connectV2());
seen.tools = (await client.listTools()).tools;
for (const message of spec.messages) {
  const last = seen.results.at(-1)?.structuredContent?.session_id;
  const params = { name: "ask", arguments: last ? { message, session_id: last } : { message } };
  seen.results.push(await call(params, { onprogress: (notice) => seen.progress.push(notice.message) }));
}
await client.close();
console.log(JSON.stringify(seen));
process.exit(0);
