// Calls of the operator API over the login of the page.

const ASK_AGAIN = 500; // milliseconds
const LONGEST_RESTART = 180_000; // milliseconds: running answers are finished first

export class CallError extends Error {
  constructor(text, status) {
    super(text);
    this.status = status;
  }
}

/** Run an operation and return its lines; *onLine* gets each as it comes. Throws CallError with a line for people. */
export async function call(name, argumentsOfCall = {}, { signal, onLine = () => {} } = {}) {
  let response;
  let body;
  try {
    response = await fetch(`console/v1/${name.replaceAll(" ", "/")}`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(argumentsOfCall),
      signal,
    });
    body = await read(response, onLine);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new CallError("The gateway does not answer. It may be restarting; try again in a moment.", 0);
  }
  const messages = parse(body, response.status);
  const failed = messages.find((message) => "error" in message);
  if (failed) throw new CallError(failed.error, response.status);
  return messages.map((message) => message.line);
}

/** Restart the gateway, whose start *run* names, and return when another start of it answers. */
export async function restart(run) {
  try {
    await call("setup restart");
  } catch (failure) {
    if (!(failure instanceof CallError) || failure.status === 400) throw failure; // else it stops already
  }
  const end = Date.now() + LONGEST_RESTART;
  while (Date.now() < end) {
    await new Promise((resolve) => setTimeout(resolve, ASK_AGAIN));
    try {
      const [status] = await call("setup status");
      if (status.run !== run) return;
    } catch (failure) {
      if (!(failure instanceof CallError) || failure.status === 401) throw failure;
    }
  }
  throw new CallError("The gateway has not come back within three minutes; look at its log.", 0);
}

/** Return who the visitor is: `who`, `role` and `chats`; null without a login. */
export async function session() {
  const response = await fetch("console/session");
  return response.status === 401 ? null : response.json();
}

/** Take a login code; return the line that says why it was not taken, or "". */
export async function logIn(code) {
  try {
    const response = await fetch("login", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ code }),
    });
    return response.ok ? "" : (await response.json()).line;
  } catch {
    return "The gateway does not answer.";
  }
}

/** Return the whole answer; whole lines of it are handed to *onLine* meanwhile. */
async function read(response, onLine) {
  let body = "";
  let told = 0;
  for await (const text of pieces(response.body.pipeThrough(new TextDecoderStream()).getReader())) {
    body += text;
    for (let end = body.indexOf("\n", told); end >= 0; told = end + 1, end = body.indexOf("\n", told)) {
      const message = parse(body.slice(told, end), response.status)[0];
      if (message && "line" in message) onLine(message.line);
    }
  }
  return body;
}

async function* pieces(reader) {
  for (let next = await reader.read(); !next.done; next = await reader.read()) yield next.value;
}

function parse(body, status) {
  try {
    return body.split("\n").filter(Boolean).map((line) => JSON.parse(line));
  } catch {
    throw new CallError(`The gateway answered with HTTP ${status}.`, status);
  }
}
