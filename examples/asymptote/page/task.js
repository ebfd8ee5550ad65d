// Tasks over HTTP: submit them, and follow what becomes of one.

const API = new URL("headway/api/v1/", document.baseURI);

/** Ask Headway. Throws an Error with what it says is wrong. */
export async function ask(path, { method = "GET", body } = {}) {
  const answer = await fetch(new URL(path, API), {
    method,
    headers: body === undefined ? {} : { "Content-Type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.detail ?? answer.statusText);
  return told;
}

/** Open a WebSocket of Headway's. */
export function open(path, query) {
  const address = new URL(path, API);
  address.protocol = address.protocol.replace("http", "ws");
  for (const [name, value] of Object.entries(query)) address.searchParams.set(name, value);
  return new WebSocket(address);
}

/**
 * Tell all that happens to a task until it has ended; comes back by itself when the line breaks.
 * `abandon`: the server cancels the task when this page is gone.
 */
export function follow(id, abandon, tell) {
  let after = "";
  let again = 0;

  function connect() {
    const socket = open(`tasks/${encodeURIComponent(id)}/stream`, { ...(after && { after }), ...(abandon && { abandon }) });
    socket.onmessage = (event) => {
      const message = JSON.parse(event.data);
      after = message.id ?? after;
      again = 0;
      tell(message);
    };
    socket.onclose = ({ code }) => {
      if (code === 1000) return;
      if (code === 4404 || again === 10) return tell({ type: "gone" });
      again += 1;
      setTimeout(connect, 1000);
    };
  }

  connect();
}

/** Say in words what a message of a stream means. */
export function words(message) {
  switch (message.type) {
    case "queue": {
      const { position, estimate, why } = message;
      const place = position ? `position ${position}` : "next in line";
      const seconds = estimate?.p50;
      const told = seconds == null ? place : `${place}, about ${roundly(seconds)}`;
      return why ? `${told}: ${why}` : told;
    }
    case "started":
      return message.seconds ? `started, ${message.seconds} s` : "started";
    case "duration":
      return `lowered to ${message.seconds} s`;
    case "progress":
      return `${Math.round(message.fraction * 100)} % ${message.note ?? ""}`.trim();
    case "output":
      return message.text.trimEnd();
    case "retried":
      return `${message.message ?? message.reason}; it tries again`;
    case "result":
      if (message.status === "completed") return `done in ${message.result.seconds.toFixed(1)} s`;
      return message.error?.message ?? message.status;
    case "gone":
      return "nobody knows of it any more";
    default:
      return message.type;
  }
}

function roundly(seconds) {
  return seconds < 90 ? `${Math.max(1, Math.round(seconds))} s` : `${Math.round(seconds / 60)} min`;
}
