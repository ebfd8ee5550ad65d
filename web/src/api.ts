/** Calls of the HTTP interface. All addresses are relative to this file's, so that any mount prefix works. */

import { signal } from "@preact/signals";

/** The address of the dashboard, such as /ui/, whatever comes before it. */
export const ROOT = new URL("../", import.meta.url);
const API = new URL("../api/v1/", ROOT);

/** A call that failed: what the server says of it, or that it cannot be reached. */
export class ApiProblem extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
  ) {
    super(message);
  }
}

/** Whether the server asks for a token that this browser has not given. */
export const signedOut = signal(false);
/** Since when the server cannot be reached; null if it can. */
export const unreachable = signal<number | null>(null);

export type Query = Record<string, string | number | boolean | readonly string[] | null | undefined>;

/** Return the address of an operation. */
export function address(path: string, query: Query = {}): string {
  const found = new URL(path, API);
  for (const [name, value] of Object.entries(query)) {
    if (value === null || value === undefined || value === "") continue;
    for (const one of Array.isArray(value) ? value : [value]) found.searchParams.append(name, String(one));
  }
  return found.href;
}

async function call<Reply>(method: string, path: string, query: Query, body?: unknown) {
  let response: Response;
  try {
    response = await fetch(address(path, query), {
      method,
      credentials: "same-origin",
      headers: body === undefined ? {} : { "Content-Type": "application/json" },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
  } catch {
    unreachable.value ??= Date.now();
    throw new ApiProblem(0, "unreachable", "The server cannot be reached. The page tries again by itself.");
  }
  unreachable.value = null;
  const text = await response.text();
  const found = text && response.headers.get("content-type")?.includes("json") ? parse(text) : null;
  if (response.ok) return found as Reply;
  const problem = found as { code?: string; detail?: string } | null;
  const code = problem?.code ?? `http_${response.status}`;
  if (response.status === 401) signedOut.value = true;
  throw new ApiProblem(response.status, code, problem?.detail ?? `${response.status} ${response.statusText}`);
}

/** Keep whole numbers that JavaScript cannot hold as text, so that an id in an argument is shown as it is. */
function parse(text: string): unknown {
  if (!/[:[,]\s*-?\d{16}/.test(text)) return JSON.parse(text); // A function for each value takes most of the time of a long list.
  type Source = { source?: string };
  const revive = (_: string, value: unknown, context?: Source) =>
    typeof value === "number" && !Number.isSafeInteger(value) && context?.source && /^-?\d+$/.test(context.source)
      ? context.source
      : value;
  return JSON.parse(text, revive as (key: string, value: unknown) => unknown);
}

export function get<Reply>(path: string, query: Query = {}): Promise<Reply> {
  return call<Reply>("GET", path, query);
}

export function post<Reply>(path: string, body: unknown = {}, query: Query = {}): Promise<Reply> {
  return call<Reply>("POST", path, query, body);
}

export function put<Reply>(path: string, body: unknown, query: Query = {}): Promise<Reply> {
  return call<Reply>("PUT", path, query, body);
}

export function remove<Reply>(path: string): Promise<Reply> {
  return call<Reply>("DELETE", path, {});
}

/** Return an id as a part of a path. */
export function part(name: string): string {
  return encodeURIComponent(name);
}
