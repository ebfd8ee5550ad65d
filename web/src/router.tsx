/** Addresses: which screen is shown, and the search in the address, so that a link can be shared. */

import { computed, signal } from "@preact/signals";
import type { ComponentChildren, TargetedMouseEvent } from "preact";
import { ROOT } from "./api";

const here = signal(new URL(location.href));
addEventListener("popstate", () => {
  here.value = new URL(location.href);
});

/** The path below /ui/ in parts: ["jobs", "019…"]. */
export const parts = computed(() =>
  here.value.pathname.slice(ROOT.pathname.length).split("/").filter(Boolean).map(decodeURIComponent),
);
export const query = computed(() => here.value.searchParams);

/** Return the address of a screen. */
function link(path: string, parameters: Record<string, string | null | undefined> = {}): string {
  const found = new URL(path, ROOT);
  for (const [name, value] of Object.entries(parameters)) if (value) found.searchParams.set(name, value);
  return found.pathname + found.search;
}

/** Show another screen. */
export function go(path: string, parameters: Record<string, string | null | undefined> = {}, replace = false): void {
  const target = new URL(link(path, parameters), here.value);
  if (target.href === here.value.href) return;
  const moved = target.pathname !== here.value.pathname;
  history[replace ? "replaceState" : "pushState"](null, "", target);
  here.value = target;
  if (moved) scrollTo(0, 0);
}

/** Change parameters of the address, and keep the others. */
export function setQuery(changes: Record<string, string | null>, replace = false): void {
  const found = Object.fromEntries(query.value);
  go(parts.value.map(encodeURIComponent).join("/"), { ...found, ...(changes as Record<string, string>) }, replace);
}

interface LinkProps {
  to: string;
  query?: Record<string, string | null | undefined>;
  class?: string;
  title?: string;
  "aria-label"?: string;
  "aria-current"?: "page" | undefined;
  children?: ComponentChildren;
}

/** A link to a screen. A click with a modifier opens it as the browser does. */
export function Link({ to, query: parameters = {}, children, ...rest }: LinkProps) {
  const follow = (event: TargetedMouseEvent<HTMLAnchorElement>) => {
    if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    go(to, parameters);
  };
  return (
    <a href={link(to, parameters)} onClick={follow} {...rest}>
      {children}
    </a>
  );
}
