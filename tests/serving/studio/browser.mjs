// The browser that the scenes share: `node browser.mjs SPEC` writes its address, and ends with its standard input.
import { createRequire } from "node:module";
import { join } from "node:path";

const spec = JSON.parse(process.argv[2]);
const { chromium } = createRequire(join(spec.packages, "package.json"))("playwright-core");

const options = {
  executablePath: spec.program,
  args: ["--no-sandbox"], // which needs rights that a container lacks
  env: { ...process.env, ...spec.environment },
};
// On a busy machine, Chromium may crash while it starts.
const server = await chromium.launchServer(options).catch(() => chromium.launchServer(options));
console.log(server.wsEndpoint());
for await (const _ of process.stdin);
await server.close();
