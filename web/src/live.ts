/** What keeps the page current: one server-sent stream with the numbers of the queue, and beats at which lists are read. */

import { computed, effect, signal } from "@preact/signals";
import { address, get, signedOut, unreachable } from "./api";
import type { Overview, SessionInfo } from "./api.gen";
import { seesAll, session } from "./state";

/** The queue as it is now; null before the first message, and for a reader who sees one tenant only. */
export const overview = signal<Overview | null>(null);
/** Now by the store's clock, in milliseconds; it moves once a second. */
export const now = signal(Date.now());
/** Moves when lists are to be read again. */
export const beat = signal(0);

export const RATES = [1, 2, 5, 15] as const;
/** Seconds between beats; 0 while the reader has paused them. */
export const rate = signal(Number(sessionStorage.getItem("headway-rate") ?? 2));
/** How many rows are selected: while some are, lists stand still. */
export const selected = signal(0);
const hidden = signal(document.hidden);

const standing = computed(() => rate.value === 0 || hidden.value || selected.value > 0);
export const connection = computed<"live" | "paused" | "lost">(() => {
  if (unreachable.value !== null) return "lost";
  return standing.value ? "paused" : "live";
});

const RETRY_MS = 2_000;
const SKEW_SHOWN_MS = 2_000; // A smaller difference of clocks is the time that a message takes.
let skew = 0;
let stream: EventSource | null = null;
let retry: number | undefined;

export function setRate(value: number): void {
  rate.value = value;
  sessionStorage.setItem("headway-rate", String(value));
}

/** Read lists now, whatever the rate. */
export function refresh(): void {
  beat.value += 1;
}

function take(values: Partial<Overview>): void {
  const merged = { ...overview.value, ...values } as Overview;
  overview.value = merged;
  const found = Date.parse(merged.at) - Date.now();
  skew = Math.abs(found) > SKEW_SHOWN_MS ? found : 0;
}

/** Keep a stream open while the page is seen. A broken one is opened again until the server is back. */
function listen(): void {
  close();
  stream = new EventSource(address("live", { views: "now" }));
  stream.addEventListener("open", () => {
    unreachable.value = null;
  });
  stream.addEventListener("update", (event: MessageEvent<string>) => {
    const found = JSON.parse(event.data) as { now?: Partial<Overview> };
    if (found.now) take(found.now);
  });
  stream.addEventListener("error", () => {
    unreachable.value ??= Date.now();
    // The browser opens a broken stream again by itself, but not after an answer that is no stream.
    if (stream?.readyState === EventSource.CLOSED) retry = window.setTimeout(again, RETRY_MS);
  });
}

async function again(): Promise<void> {
  try {
    const found = await get<SessionInfo>("session");
    signedOut.value = !found.signed_in;
    session.value = found; // The stream opens again with it.
  } catch {
    if (!signedOut.value) retry = window.setTimeout(again, RETRY_MS);
  }
}

function close(): void {
  clearTimeout(retry);
  stream?.close();
  stream = null;
}

/** Start the clock, the beats and the stream. */
export function startLive(): void {
  document.addEventListener("visibilitychange", () => {
    hidden.value = document.hidden;
  });
  setInterval(() => {
    if (!hidden.value) now.value = Date.now() + skew;
  }, 1_000);
  effect(() => {
    if (hidden.value || signedOut.value || !seesAll.value || rate.value === 0) close();
    else listen();
  });
  effect(() => {
    if (standing.value || signedOut.value) return;
    beat.value = beat.peek() + 1;
    const timer = setInterval(() => {
      beat.value = beat.peek() + 1;
    }, rate.value * 1_000);
    return () => clearInterval(timer);
  });
}
