/** The search box: `state: task: lane: tenant: worker: why: error: id: after: before:` and words in arguments. */

import { useId, useRef, useState } from "preact/hooks";
import { get } from "./api";
import type { CatalogueReply, TenantPage, WorkerList } from "./api.gen";
import { overview } from "./live";
import { REASONS } from "./reasons";
import { seesAll } from "./state";

const FIELDS: [string, string][] = [
  ["state:", "queued, executing, failed, …"],
  ["task:", "a name; * stands for any text"],
  ["lane:", "high, medium, low"],
  ["tenant:", "whose jobs"],
  ["worker:", "which runs or ran it"],
  ["why:", "what it waits for"],
  ["error:", "type, or a part of the message"],
  ["id:", "an id, its beginning or its end"],
  ["after:", "2h, 1d, or a time"],
  ["before:", "2h, 1d, or a time"],
];
export const STATES = ["queued", "executing", "completed", "failed", "dead_letter", "cancelled"] as const;
const TIMES = ["15m", "1h", "2h", "24h", "7d"];
const SHOWN = 12;

type Suggestion = { text: string; about: string };

/** Names that were read for suggestions, by field; they are read when a field is first typed. */
const known = new Map<string, Promise<string[]>>();

function names(field: string): Promise<string[]> {
  const readers: Record<string, () => Promise<string[]>> = {
    task: async () => (await get<CatalogueReply>("catalogue")).tasks.map((task) => task.task_type),
    tenant: async () => (await get<TenantPage>("tenants")).items.map((item) => item.tenant),
    worker: async () => (await get<WorkerList>("workers", { tasks: false })).workers.map((worker) => worker.worker_id),
  };
  const read = readers[field];
  if (read === undefined || (!seesAll.value && field !== "task")) return Promise.resolve([]);
  let found = known.get(field);
  if (found === undefined) {
    found = read().catch(() => {
      known.delete(field);
      return [];
    });
    known.set(field, found);
    setTimeout(() => known.delete(field), 60_000);
  }
  return found;
}

async function values(field: string): Promise<Suggestion[]> {
  if (field === "state") return STATES.map((text) => ({ text, about: "" }));
  if (field === "why") return Object.entries(REASONS).map(([text, about]) => ({ text, about: `waits for ${about}` }));
  if (field === "lane") return (overview.value?.lanes ?? []).map((lane) => ({ text: lane.name, about: "" }));
  if (field === "after" || field === "before") return TIMES.map((text) => ({ text, about: `${text} ago` }));
  return (await names(field)).map((text) => ({ text, about: "" }));
}

/** Return the word that the cursor is in: where it begins, and its text up to the cursor. */
function wordAt(text: string, cursor: number): { start: number; word: string } {
  const start = text.slice(0, cursor).search(/(?:"[^"]*"?|[^\s"])*$/);
  return { start, word: text.slice(start, cursor) };
}

function quoted(value: string): string {
  return /[\s",\\]/.test(value) ? `"${value.replaceAll("\\", "\\\\").replaceAll('"', '\\"')}"` : value;
}

/** Return a word of a search: a field and a value. */
export function word(field: string, value: string): string {
  return `${field}:${quoted(value)}`;
}

async function suggest(text: string, cursor: number): Promise<Suggestion[]> {
  const { word: typed } = wordAt(text, cursor);
  const [, field, begun] = /^(\w+):(.*)$/s.exec(typed) ?? [];
  if (field === undefined || begun === undefined) {
    return FIELDS.filter(([name]) => name.startsWith(typed)).map(([name, about]) => ({ text: name, about }));
  }
  const last = begun.split(",").at(-1) ?? "";
  const before = begun.slice(0, begun.length - last.length);
  return (await values(field))
    .filter((one) => one.text.toLowerCase().includes(last.toLowerCase()) && one.text !== last)
    .slice(0, SHOWN)
    .map((one) => ({ text: `${field}:${before}${quoted(one.text)}`, about: one.about }));
}

export function SearchBox({
  text,
  onSearch,
  problem,
}: {
  text: string;
  onSearch: (text: string) => void;
  problem?: string;
}) {
  const [typed, setTyped] = useState<string | null>(null);
  const [offered, setOffered] = useState<Suggestion[]>([]);
  const [chosen, setChosen] = useState(-1);
  const input = useRef<HTMLInputElement>(null);
  const list = useId();
  const turn = useRef(0);

  const offer = async () => {
    const field = input.current;
    if (field === null) return;
    const mine = ++turn.current;
    const found = await suggest(field.value, field.selectionStart ?? field.value.length);
    if (mine !== turn.current || document.activeElement !== field) return;
    setOffered(found);
    setChosen(-1);
  };
  const close = () => {
    turn.current += 1;
    setOffered([]);
    setChosen(-1);
  };
  const search = (value: string) => {
    close();
    setTyped(null);
    onSearch(value.trim());
  };
  const take = (one: Suggestion) => {
    const field = input.current;
    if (field === null) return;
    const cursor = field.selectionStart ?? field.value.length;
    const { start } = wordAt(field.value, cursor);
    const whole = `${field.value.slice(0, start)}${one.text}${field.value.slice(cursor)}`;
    if (one.text.endsWith(":")) {
      setTyped(whole);
      field.value = whole;
      field.setSelectionRange(start + one.text.length, start + one.text.length);
      field.focus();
      void offer();
    } else {
      search(whole);
    }
  };
  const press = (event: KeyboardEvent) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step !== undefined && offered.length) {
      event.preventDefault();
      setChosen((chosen + step + offered.length) % offered.length);
    } else if (event.key === "Tab" && chosen >= 0) {
      event.preventDefault();
      const one = offered[chosen];
      if (one) take(one);
    } else if (event.key === "Escape") {
      if (offered.length) event.preventDefault();
      else input.current?.blur();
      close();
    }
  };
  return (
    <form
      class="search"
      role="search"
      onSubmit={(event) => {
        event.preventDefault();
        const one = offered[chosen];
        if (one) take(one);
        else search(input.current?.value ?? "");
      }}
    >
      <input
        ref={input}
        type="search"
        aria-label="Search jobs"
        aria-controls={list}
        aria-autocomplete="list"
        aria-activedescendant={chosen >= 0 ? `${list}-${chosen}` : undefined}
        aria-invalid={problem ? true : undefined}
        placeholder="Search: state:failed task:reports.* tenant:acme …"
        autocomplete="off"
        spellcheck={false}
        value={typed ?? text}
        onInput={(event) => {
          setTyped(event.currentTarget.value);
          void offer();
        }}
        onFocus={offer}
        onBlur={close}
        onKeyDown={press}
      />
      <ul id={list} role="listbox" aria-label="Suggestions" hidden={!offered.length}>
        {offered.map((one, index) => (
          <li
            key={one.text}
            id={`${list}-${index}`}
            role="option"
            aria-selected={index === chosen}
            tabIndex={-1}
            onPointerDown={(event) => {
              event.preventDefault(); // The box keeps the focus.
              take(one);
            }}
          >
            <span class="mono">{one.text}</span>
            <small>{one.about}</small>
          </li>
        ))}
      </ul>
    </form>
  );
}
