/** The parts that screens are made of. All text goes through the DOM as text; no part takes HTML. */

import { useComputed, useSignal } from "@preact/signals";
import type { ButtonHTMLAttributes, ComponentChildren } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import type { ApiProblem } from "./api";
import { age, count, full, moment, percent, relative, seconds } from "./format";
import { now } from "./live";
import { Link } from "./router";
import { say } from "./state";

/** A moment relative to now, with the exact one on hover and for screen readers. */
export function Time({ at }: { at: string | number | null | undefined }) {
  if (at === null || at === undefined) return <span class="soft">–</span>;
  return (
    <time dateTime={new Date(at).toISOString()} title={moment(at)} class="nowrap">
      {relative(at, now.value)}
    </time>
  );
}

/** How long ago a moment is, without "ago": the age of a state. Only its text changes with the clock. */
export function Age({ at }: { at: string | null | undefined }) {
  const since = useSignal(at);
  since.value = at;
  const text = useComputed(() => (since.value ? age((now.value - Date.parse(since.value)) / 1_000) : "–"));
  if (!at) return <span class="soft">–</span>;
  return (
    <time dateTime={at} title={moment(at)} class="nowrap">
      {text}
    </time>
  );
}

const STATE_NAMES: Record<string, string> = { dead_letter: "dead letter" };

export function StateBadge({ state }: { state: string }) {
  return (
    <span class="state" data-state={state}>
      {STATE_NAMES[state] ?? state}
    </span>
  );
}

/** A count in short, in full on hover. */
export function Count({ value }: { value: number }) {
  return <span title={value >= 10_000 ? full(value) : undefined}>{count(value)}</span>;
}

/** Why data cannot be read, or that it is being read. What was read before stays beside it. */
export function Problem({ of, problem, data }: { of: string; problem: ApiProblem | null; data?: unknown }) {
  if (problem === null) return data === null ? <p class="soft">Reading…</p> : null;
  if (problem.status === 401) return null;
  return (
    <div class="problem" role="alert">
      <strong>{of} cannot be read.</strong> {problem.message}
    </div>
  );
}

/** What a screen shows when there is nothing: what it means, and what to do next. */
export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <strong>{title}</strong>
      {children}
    </div>
  );
}

/** A command to copy. */
export function Command({ text }: { text: string }) {
  return (
    <span class="row">
      <code>{text}</code>
      <Copy text={text} name="Copy" />
    </span>
  );
}

/** Copy text. A page that came over plain HTTP from another machine has no clipboard, so it selects a field instead. */
export async function copy(text: string): Promise<void> {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
  } else {
    const field = document.createElement("textarea");
    field.value = text;
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  say("Copied.");
}

export function Copy({ text, name }: { text: string; name: string }) {
  return (
    <button type="button" class="small" onClick={() => copy(text)}>
      {name}
    </button>
  );
}

interface Piece {
  name: string;
  value: number;
  title?: string;
}

/** A bar of parts with a legend below it. */
export function Stacked({ pieces, unit = seconds }: { pieces: Piece[]; unit?: (value: number) => string }) {
  const total = pieces.reduce((sum, piece) => sum + piece.value, 0);
  if (total <= 0) return null;
  return (
    <div>
      <div class="bar tall" role="img" aria-label={pieces.map((one) => `${one.name} ${unit(one.value)}`).join(", ")}>
        {pieces.map((piece, index) => (
          <span
            key={piece.name}
            class={`r${(index % 7) + 1}`}
            style={{ width: `${(piece.value / total) * 100}%` }}
            title={`${piece.title ?? piece.name}: ${unit(piece.value)} (${percent(piece.value / total)})`}
          />
        ))}
      </div>
      <ul class="legend">
        {pieces.map((piece, index) => (
          <li key={piece.name}>
            <i class={`r${(index % 7) + 1}`} />
            {piece.title ?? piece.name} {unit(piece.value)}
          </li>
        ))}
      </ul>
    </div>
  );
}

/** One part of a whole, as a bar with a name for screen readers. */
export function Meter({
  part,
  whole,
  name,
  over = false,
}: {
  part: number;
  whole: number;
  name: string;
  over?: boolean;
}) {
  const share = whole > 0 ? Math.min(1, part / whole) : 0;
  return (
    <div class="bar" role="img" aria-label={name} title={name}>
      <span class={over ? "r5" : "r1"} style={{ width: `${share * 100}%` }} />
    </div>
  );
}

/** When a job will start: from p50 to p90, on an axis that is the same for all bars of a list. */
export function StartRange({ p50, p90, most }: { p50: number | null; p90: number | null; most: number }) {
  if (p50 === null) return <span class="soft">unknown</span>;
  const scale = (value: number) => (Math.log1p(value) / Math.log1p(Math.max(most, 1))) * 100;
  const from = Math.min(97, scale(p50));
  const to = p90 === null ? 100 : Math.max(from + 3, scale(p90));
  const range = p90 === null ? `from ${seconds(p50)}` : `${seconds(p50)} – ${seconds(p90)}`;
  const text = p90 === 0 ? "at once" : range;
  return (
    <span
      class="range"
      title={`It starts in ${seconds(p50)} (p50), nine times out of ten within ${seconds(p90)} (p90)`}
    >
      <span class="nowrap">{text}</span>
      <svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">
        <rect x="0" y="3" width="100" height="2" fill="var(--inset)" />
        <rect x={from} y="1" width={to - from} height="6" rx="2" fill="var(--r1)" />
      </svg>
    </span>
  );
}

/** Slots one by one while they are few: used by their owner, lent to another lane, kept free, free. */
export function Slots(given: { used: number; lent?: number; reserved?: number; total: number }) {
  const { used, lent = 0, reserved = 0, total } = given;
  if (total <= 0) return <span class="soft">no worker</span>;
  const free = Math.max(0, total - used - lent - reserved);
  const name = `${used + lent} of ${total} slots used${lent ? `, ${lent} lent` : ""}${reserved ? `, ${reserved} kept free` : ""}`;
  if (total > 40) {
    return (
      <div class="bar" role="img" aria-label={name} title={name}>
        <span class="r1" style={{ width: `${(used / total) * 100}%` }} />
        <span class="r2" style={{ width: `${(lent / total) * 100}%` }} />
        <span class="r4" style={{ width: `${(reserved / total) * 100}%` }} />
      </div>
    );
  }
  const kinds = [
    ...Array<string>(used).fill("used"),
    ...Array<string>(lent).fill("lent"),
    ...Array<string>(reserved).fill("reserved"),
    ...Array<string>(free).fill("free"),
  ];
  return (
    <span class="slots" role="img" aria-label={name} title={name}>
      {kinds.map((kind, index) => (
        <i key={index} data-kind={kind} />
      ))}
    </span>
  );
}

/** A line of the last values. */
export function Sparkline({ values, name }: { values: number[]; name: string }) {
  if (values.length < 2) return <span class="soft">–</span>;
  const top = Math.max(...values, 1);
  const points = values.map((value, index) => `${(index / (values.length - 1)) * 110},${25 - (value / top) * 23}`);
  return (
    <svg class="spark" viewBox="0 0 110 26" preserveAspectRatio="none" role="img" aria-label={name}>
      <title>{name}</title>
      <path d={`M${points.join("L")}`} />
    </svg>
  );
}

type DialogProps = { title: string; onClose: () => void; children: ComponentChildren };

/** A modal dialog: the browser keeps the focus in it, and Escape closes it. */
export function Dialog({ title, onClose, children }: DialogProps) {
  const element = useRef<HTMLDialogElement>(null);
  const name = useId();
  useEffect(() => {
    const opened = element.current;
    opened?.showModal();
    return () => opened?.close();
  }, []);
  return (
    <dialog ref={element} aria-labelledby={name} onClose={onClose}>
      <h2 id={name}>{title}</h2>
      {children}
    </dialog>
  );
}

/** A button that opens a list of actions. */
export function Menu({
  name,
  children,
  small = false,
}: {
  name: string;
  children: ComponentChildren;
  small?: boolean;
}) {
  const [open, setOpen] = useState(false);
  const element = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (!open) return;
    const close = (event: Event) => {
      if (event instanceof KeyboardEvent ? event.key === "Escape" : !element.current?.contains(event.target as Node)) {
        setOpen(false);
      }
    };
    document.addEventListener("pointerdown", close);
    document.addEventListener("keydown", close);
    return () => {
      document.removeEventListener("pointerdown", close);
      document.removeEventListener("keydown", close);
    };
  }, [open]);
  return (
    <div class="menu" ref={element}>
      <button type="button" class={small ? "small" : ""} aria-expanded={open} onClick={() => setOpen(!open)}>
        {name} ▾
      </button>
      {/* biome-ignore lint/a11y/useKeyWithClickEvents lint/a11y/noStaticElementInteractions: its buttons are clicked. */}
      {open && <div onClick={() => setOpen(false)}>{children}</div>}
    </div>
  );
}

/** Buttons of which one is pressed. */
export function Choice<Value extends string>(given: {
  name: string;
  value: Value;
  options: readonly (readonly [Value, string])[];
  onChange: (value: Value) => void;
}) {
  return (
    <div class="seg" role="group" aria-label={given.name}>
      {given.options.map(([value, text]) => (
        <button key={value} type="button" aria-pressed={value === given.value} onClick={() => given.onChange(value)}>
          {text}
        </button>
      ))}
    </div>
  );
}

export function Json({ value }: { value: unknown }) {
  return <pre tabIndex={0}>{typeof value === "string" ? value : JSON.stringify(value, null, 2)}</pre>;
}

export function JobLink({ id, children }: { id: string; children?: ComponentChildren }) {
  return (
    <Link to={`jobs/${encodeURIComponent(id)}`} class="mono" title={id}>
      {children ?? id.slice(-8)}
    </Link>
  );
}

/** Run an action once at a time: the button is disabled until it has ended. */
export function ActionButton({
  run,
  children,
  ...rest
}: { run: () => Promise<unknown>; children: ComponentChildren } & ButtonHTMLAttributes<HTMLButtonElement>) {
  const [busy, setBusy] = useState(false);
  const start = async () => {
    setBusy(true);
    try {
      await run();
    } finally {
      setBusy(false);
    }
  };
  return (
    <button type="button" disabled={busy} {...rest} onClick={start}>
      {children}
    </button>
  );
}

/** The head of a table: names of columns, some with a class. `actions`: a last column whose name only readers hear. */
export function Columns({ names, actions = false }: { names: (string | [string, string])[]; actions?: boolean }) {
  const head = useRef<HTMLTableSectionElement>(null);
  useEffect(() => {
    // On a phone a row is a card, and the style sheet writes the name of the column before each cell.
    for (const row of head.current?.parentElement?.querySelectorAll<HTMLTableRowElement>("tbody > tr") ?? []) {
      for (const [index, cell] of [...row.cells].entries()) {
        const column = names[index] ?? "";
        cell.dataset["column"] = typeof column === "string" ? column : column[0];
      }
    }
  });
  return (
    <thead ref={head}>
      <tr>
        {names.map((column) => {
          const [name, kind] = typeof column === "string" ? [column, undefined] : column;
          return (
            <th key={name} scope="col" class={kind}>
              {name}
            </th>
          );
        })}
        {actions && (
          <th scope="col">
            <span class="hidden">Actions</span>
          </th>
        )}
      </tr>
    </thead>
  );
}
