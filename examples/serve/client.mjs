// Say something to a served agent, approve what it asks for, and read on where a connection was cut:
//   node client.mjs http://127.0.0.1:8000 ann/1 'Take a note: "buy milk"'
const [server, session, text] = process.argv.slice(2);
const headers = { "Content-Type": "application/json" };
if (process.env.TOKEN) headers.Authorization = `Bearer ${process.env.TOKEN}`;
let last = 0; // the number of the last event

async function send(body) {
  const url = `${server}/api/sessions/${encodeURIComponent(session)}/replies`;
  const answer = await (await fetch(url, { method: "POST", headers, body: JSON.stringify(body) })).json();
  if (answer.error) throw new Error(`${answer.error.code}: ${answer.error.message}`);
  return server + answer.events;
}

async function* follow(url) {
  for (let status = 200; status < 400 || status >= 500; ) {
    try {
      const response = await fetch(url, { headers: { ...headers, "Last-Event-ID": String(last) } });
      status = response.status;
      let rest = "";
      for await (const part of response.body.pipeThrough(new TextDecoderStream())) {
        const messages = (rest + part).split("\n\n");
        rest = messages.pop(); // it has not come whole yet
        for (const message of messages) {
          if (message.startsWith("event: done")) return;
          const data = /^data: (.*)$/m.exec(message); // a comment, which keeps the connection alive, has none
          if (data) yield JSON.parse(data[1]);
        }
      }
    } catch {} // the connection was cut, or the server is started again
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
  throw new Error(`${url} was refused`); // and would be again
}

for (let body = { input: text }; body; ) {
  const events = follow(await send(body));
  body = null;
  for await (const event of events) {
    last = event.seq;
    if (event.type === "TEXT_BLOCK_DELTA") process.stdout.write(event.delta);
    if (event.type === "TEXT_BLOCK_END") console.log();
    if (event.type !== "REQUIRE_USER_CONFIRM") continue;
    for (const call of event.tool_calls) console.log(`[approved] ${call.name} ${call.input}`);
    const calls = Object.fromEntries(event.tool_calls.map((call) => [call.id, true]));
    body = { answer: { reply_id: event.reply_id, calls } };
  }
}
