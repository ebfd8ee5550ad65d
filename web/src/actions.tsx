/** What a reader may do with jobs: one, a selection, or everything that a search finds. All go through `POST /bulk`. */

import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { get, part, post } from "./api";
import type { BulkOperation, BulkPreview, BulkStarted } from "./api.gen";
import { full, plural } from "./format";
import { overview, refresh } from "./live";
import { mayAdminister, maySubmit, say, sayProblem } from "./state";
import { Dialog, JobLink, StateBadge } from "./ui";

type Verb = BulkPreview["action"];

/** Do something for the reader: say that it is done, or why it failed. */
export async function attempt(what: string, run: () => Promise<string>): Promise<void> {
  try {
    say(await run());
    refresh();
  } catch (failure) {
    sayProblem(`Cannot ${what}`, failure);
  }
}

interface Action {
  verb: Verb;
  name: string;
  done: string;
  admin: boolean;
  danger: boolean;
  states: readonly string[];
}

const ACTIONS: readonly Action[] = [
  { verb: "cancel", name: "Cancel", done: "Cancelled", admin: false, danger: true, states: ["queued", "executing"] },
  {
    verb: "retry",
    name: "Retry",
    done: "Retried",
    admin: false,
    danger: false,
    states: ["failed", "cancelled", "dead_letter"],
  },
  { verb: "run_now", name: "Run now", done: "Moved to the front", admin: true, danger: false, states: ["queued"] },
  {
    verb: "change_lane",
    name: "Change lane",
    done: "Moved to another lane",
    admin: true,
    danger: false,
    states: ["queued"],
  },
  { verb: "replay", name: "Replay", done: "Replayed", admin: true, danger: false, states: ["dead_letter"] },
  { verb: "purge", name: "Purge", done: "Deleted", admin: true, danger: true, states: ["dead_letter"] },
];

/** Return the actions that the reader may take on jobs in any of these states. */
export function actionsFor(states: readonly string[]): Action[] {
  return ACTIONS.filter(
    (action) =>
      (action.admin ? mayAdminister.value : maySubmit.value) &&
      (states.length === 0 || action.states.some((state) => states.includes(state))),
  );
}

/** What is to be confirmed now. */
interface Wanted {
  action: Action;
  filter: Filter;
  what: string;
  onDone?: () => void;
}

const wanted = signal<Wanted | null>(null);
const operations = signal<{ id: string; title: string }[]>([]);

/** Ask the reader to confirm an action on what a search finds. */
function ask(action: Action, filter: Filter, what: string, onDone?: () => void): void {
  wanted.value = { action, filter, what, ...(onDone ? { onDone } : {}) };
}

/** Which jobs: what a search finds, or these. */
export type Filter = string | { id: string[] };

/** The buttons for what the reader may do. */
export function ActionButtons(given: {
  states: readonly string[];
  filter: Filter;
  what: string;
  onDone?: () => void;
  small?: boolean;
  only?: readonly Verb[];
}) {
  const offered = actionsFor(given.states).filter((action) => given.only?.includes(action.verb) ?? true);
  return (
    <>
      {offered.map((action) => (
        <button
          key={action.verb}
          type="button"
          class={`${given.small ? "small" : ""} ${action.danger ? "danger" : ""}`}
          onClick={() => ask(action, given.filter, given.what, given.onDone)}
        >
          {action.name}
        </button>
      ))}
    </>
  );
}

const TYPED_ABOVE = 100; // Jobs beyond which the number must be typed.

/** The dialog that confirms an action, and the progress of those under way. A screen with actions shows it once. */
export function Confirmations() {
  return (
    <>
      {wanted.value && (
        <Confirm key={`${wanted.value.action.verb} ${JSON.stringify(wanted.value.filter)}`} {...wanted.value} />
      )}
      {operations.value.map((one) => (
        <Progress key={one.id} {...one} />
      ))}
    </>
  );
}

function Confirm({ action, filter, what, onDone }: Wanted) {
  const [preview, setPreview] = useState<BulkPreview | null>(null);
  const [problem, setProblem] = useState("");
  const [typed, setTyped] = useState("");
  const [busy, setBusy] = useState(false);
  const lanes = overview.value?.lanes.map((lane) => lane.name) ?? ["high", "medium", "low"];
  const [lane, setLane] = useState(lanes[0] ?? "medium");
  const body = { action: action.verb, filter, ...(action.verb === "change_lane" ? { lane } : {}) };
  const close = () => {
    wanted.value = null;
  };
  useEffect(() => {
    post<BulkPreview>("bulk", { ...body, dry_run: true }).then(setPreview, (failure: Error) =>
      setProblem(failure.message),
    );
  }, []);
  const many = preview !== null && preview.count > TYPED_ABOVE;
  const confirmed =
    preview !== null && preview.count > 0 && (!many || typed.replace(/\D/g, "") === String(preview.count));
  const start = async (event: Event) => {
    event.preventDefault();
    if (!confirmed || preview === null) return;
    setBusy(true);
    try {
      const started = await post<BulkStarted>("bulk", { ...body, expect: preview.count });
      operations.value = [
        ...operations.value,
        { id: started.operation_id, title: `${action.name} ${plural(preview.count, "job")}` },
      ];
      close();
      onDone?.();
    } catch (failure) {
      setProblem(failure instanceof Error ? failure.message : String(failure));
      setBusy(false);
    }
  };
  return (
    <Dialog title={`${action.name} ${what}`} onClose={close}>
      <form onSubmit={start}>
        {problem && (
          <p class="problem" role="alert">
            {problem}
          </p>
        )}
        {preview === null && !problem && <p class="soft">Counting…</p>}
        {preview !== null && (
          <>
            <p>
              {preview.count === 0
                ? `There is no job that this would change.`
                : `${action.name} changes ${preview.exact ? "" : "at least "}${plural(preview.count, "job")}${preview.count > preview.examples.length ? ", for example" : ""}:`}
            </p>
            {preview.examples.length > 0 && (
              <div class="scroll">
                <table>
                  <tbody>
                    {preview.examples.slice(0, 6).map((one) => (
                      <tr key={one.task_id}>
                        <td>
                          <JobLink id={one.task_id} />
                        </td>
                        <td>{one.task_type}</td>
                        <td>
                          <StateBadge state={one.status} />
                        </td>
                        <td>{one.tenant}</td>
                      </tr>
                    ))}
                  </tbody>
                </table>
              </div>
            )}
            {action.verb === "change_lane" && (
              <label class="field">
                Lane
                <select value={lane} onChange={(event) => setLane(event.currentTarget.value)}>
                  {lanes.map((name) => (
                    <option key={name}>{name}</option>
                  ))}
                </select>
              </label>
            )}
            {action.verb === "purge" && <p>Purged jobs are gone for good, with their arguments and errors.</p>}
            {many && (
              <label class="field">
                Type {full(preview.count)} to confirm
                <input
                  value={typed}
                  onInput={(event) => setTyped(event.currentTarget.value)}
                  inputMode="numeric"
                  autocomplete="off"
                />
              </label>
            )}
          </>
        )}
        <div class="row end">
          <button type="button" onClick={close}>
            Keep as it is
          </button>
          <button type="submit" class={`primary ${action.danger ? "danger" : ""}`} disabled={!confirmed || busy}>
            {action.name}
            {preview !== null && preview.count > 0 ? ` ${plural(preview.count, "job")}` : ""}
          </button>
        </div>
      </form>
    </Dialog>
  );
}

const LOOK_MS = 400;

function Progress({ id, title }: { id: string; title: string }) {
  const [found, setFound] = useState<BulkOperation | null>(null);
  useEffect(() => {
    let timer = 0;
    const end = () => {
      operations.value = operations.value.filter((one) => one.id !== id);
      refresh();
    };
    const look = async () => {
      try {
        const now = await get<BulkOperation>(`bulk/${part(id)}`);
        setFound(now);
        if (now.status === "running") timer = window.setTimeout(look, LOOK_MS);
        else {
          const done = ACTIONS.find((action) => action.verb === now.action)?.done ?? "Changed";
          if (now.status === "done") say(`${done}: ${plural(now.changed, "job")}.`);
          else
            say(
              `${title}: ${now.status} after ${plural(now.changed, "job")}. ${now.error ?? "It met more jobs than you had confirmed."}`,
              true,
            );
          end();
        }
      } catch (failure) {
        sayProblem(title, failure);
        end();
      }
    };
    void look();
    return () => clearTimeout(timer);
  }, [id, title]);
  const count = found?.count ?? 0;
  return (
    <div class="acting" role="status">
      <span>{title}</span>
      <progress value={found?.visited ?? 0} max={Math.max(1, count)} aria-label={title} />
      <span class="soft">
        {full(found?.changed ?? 0)} of {full(count)}
      </span>
    </div>
  );
}
