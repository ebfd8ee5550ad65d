/** The keyboard: `g` and a letter for a page, `j` and `k` for rows, `/` for the search box, `?` for help. */

import { useEffect } from "preact/hooks";
import { rate, setRate } from "./live";
import { go } from "./router";
import { nextTheme } from "./state";

const PAGES: Record<string, string> = {
  n: "",
  j: "jobs",
  t: "tenants",
  l: "limits",
  w: "workers",
  d: "dead-letters",
  c: "crons",
  b: "batches",
  p: "policy",
  s: "system",
};

export const KEYS: [string, string][] = [
  ["g n", "Now"],
  ["g j", "Jobs"],
  ["g t", "Tenants"],
  ["g l", "Limits"],
  ["g w", "Workers"],
  ["g d", "Dead letters"],
  ["g c", "Crons"],
  ["g b", "Batches"],
  ["g p", "Policy"],
  ["g s", "System"],
  ["/", "Search"],
  ["j k", "Next and previous row"],
  ["x", "Select the row"],
  ["o", "Open the row"],
  ["r", "Pause and resume updates"],
  ["t", "Change the theme"],
  ["Esc", "Clear the selection, close a dialog"],
  ["?", "This list"],
];

const AFTER_G_MS = 1_500;

/** What the list on the screen does with keys; a screen without a list has none. */
export const list: {
  move: ((by: number) => void) | null;
  select: (() => void) | null;
  open: (() => void) | null;
  clear: (() => void) | null;
} = { move: null, select: null, open: null, clear: null };

export function useKeys(showHelp: () => void): void {
  useEffect(() => {
    let since = 0;
    const press = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (event.metaKey || event.ctrlKey || event.altKey || document.querySelector("dialog[open]")) return;
      if (target.matches("input:not([type=checkbox]), textarea, select")) return;
      const { key } = event;
      const page = PAGES[key];
      if (Date.now() - since < AFTER_G_MS && page !== undefined) {
        since = 0;
        event.preventDefault();
        go(page);
        return;
      }
      since = key === "g" ? Date.now() : 0;
      const actions: Record<string, (() => void) | null | undefined> = {
        "/": () => document.querySelector<HTMLInputElement>('input[type="search"]')?.focus(),
        "?": showHelp,
        j: () => list.move?.(1),
        k: () => list.move?.(-1),
        x: list.select,
        o: list.open,
        Escape: list.clear,
        r: () => setRate(rate.value === 0 ? 2 : 0),
        t: nextTheme,
      };
      const action = actions[key];
      if (action) {
        event.preventDefault();
        action();
      }
    };
    document.addEventListener("keydown", press);
    return () => document.removeEventListener("keydown", press);
  }, []);
}
