/** What all screens share: who the reader is and may do, messages, and the chosen theme. */

import { computed, signal } from "@preact/signals";
import type { SessionInfo } from "./api.gen";

/** Who the reader is; null before the server has said so. */
export const session = signal<SessionInfo | null>(null);

/** Whether the reader may submit, cancel and retry. */
export const maySubmit = computed(() => may("submit"));
/** Whether the reader may change what concerns all: pauses, workers, the policy, dead letters. */
export const mayAdminister = computed(() => may("admin"));
/** Whether the reader sees all tenants. */
export const seesAll = computed(() => session.value !== null && session.value.tenant === null);

function may(scope: string): boolean {
  const scopes: readonly string[] = session.value?.scopes ?? [];
  return scopes.includes(scope) || scopes.includes("admin");
}

interface Toast {
  id: number;
  text: string;
  bad: boolean;
}

export const toasts = signal<Toast[]>([]);
let lastToast = 0;
const TOAST_MS = 6_000;

/** Show a message for some seconds. A failure stays until it is dismissed. */
export function say(text: string, bad = false): void {
  const id = ++lastToast;
  toasts.value = [...toasts.value.slice(-3), { id, text, bad }];
  if (!bad) setTimeout(() => dismiss(id), TOAST_MS);
}

export function dismiss(id: number): void {
  toasts.value = toasts.value.filter((toast) => toast.id !== id);
}

/** Say that something failed, and why. */
export function sayProblem(what: string, failure: unknown): void {
  say(`${what}: ${failure instanceof Error ? failure.message : String(failure)}`, true);
}

export type Theme = "light" | "dark" | "system";
export const theme = signal<Theme>((localStorage.getItem("headway-theme") as Theme | null) ?? "system");

/** Go from the system's theme to light, to dark, and back. */
export function nextTheme(): void {
  const next: Theme = theme.value === "system" ? "light" : theme.value === "light" ? "dark" : "system";
  theme.value = next;
  if (next === "system") {
    localStorage.removeItem("headway-theme");
    delete document.documentElement.dataset["theme"];
  } else {
    localStorage.setItem("headway-theme", next);
    document.documentElement.dataset["theme"] = next;
  }
}
