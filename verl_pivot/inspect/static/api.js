// What the server answers, and news of what it reads.

const token = new URLSearchParams(location.search).get("token") ?? "";

/** The JSON of an answer; throws the server's sentence if it refuses. */
export async function get(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return answered(`${path}?${new URLSearchParams(given)}`);
}

/** The same for a request that changes something. */
export function post(path, body) {
  return answered(path, { method: "POST", body: JSON.stringify(body) });
}

async function answered(address, request = {}) {
  let answer;
  try {
    answer = await fetch(`api/${address}`, { ...request, headers: { "X-Inspect-Token": token } });
  } catch {
    throw new Error("verl-pivot inspect no longer answers: start it again, and open the address that it prints");
  }
  const body = await answer.json().catch(() => ({})); // what is refused before our code sees it is no JSON
  if (!answer.ok) throw new Error(body.detail ?? `the server answered with status ${answer.status}`);
  return body;
}

/** Calls back whenever the server has read something new. */
export function onNews(callback) {
  const source = new EventSource(`api/events?token=${encodeURIComponent(token)}`);
  source.addEventListener("message", (event) => callback(Number(event.data)));
}

/** [num_rollouts] numbers from their bytes. */
export function numbers(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at += 1) bytes[at] = text.charCodeAt(at);
  return new Uint32Array(bytes.buffer);
}
