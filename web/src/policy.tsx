/** Policy: what is in force, a draft with what it would change, checks, versions with their differences. */

import { useEffect, useRef, useState } from "preact/hooks";
import { get, post, put } from "./api";
import type { ForecastReply, PolicyChecked, PolicyReply, PolicyVersions } from "./api.gen";
import { diff } from "./diff";
import { plural, seconds } from "./format";
import { overview, refresh } from "./live";
import { useResource } from "./resource";
import { mayAdminister, say, sayProblem } from "./state";
import { ActionButton, Columns, Dialog, Problem, StartRange, Time } from "./ui";

type PolicyData = Record<string, unknown>;
type Table = Record<string, Record<string, unknown>>;

const pretty = (value: unknown) => JSON.stringify(value, null, 2);
const FORECAST_AFTER_MS = 200; // A slider moves many times a second.

export function Policy() {
  const version = useResource("policy", () => get<PolicyReply>("policy"));
  const current = version.data;
  return (
    <>
      <div class="title">
        <h1>Policy</h1>
        {current && (
          <small>
            {current.version === 0 ? "the built-in policy" : `version ${current.version}`}
            {current.applied_at && (
              <>
                , applied <Time at={current.applied_at} />
              </>
            )}
            {current.note && `: ${current.note}`}
          </small>
        )}
      </div>
      <Problem of="The policy" problem={version.problem} data={current} />
      {current && <Draft key={`${current.version} ${current.digest}`} current={current} onApplied={version.reload} />}
      {current && <Versions current={current.version} onApplied={version.reload} />}
    </>
  );
}

function Draft({ current, onApplied }: { current: PolicyReply; onApplied: () => void }) {
  const base = pretty(current.policy);
  const [text, setText] = useState(base);
  const [slots, setSlots] = useState<number | null>(null);
  const [checked, setChecked] = useState<PolicyChecked | null>(null);
  const [problem, setProblem] = useState("");
  const [asking, setAsking] = useState(false);
  const { draft, wrong } = read(text);
  const changed = text !== base;
  const change = (edit: (draft: PolicyData) => void) => {
    if (draft === null) return;
    const copy = structuredClone(draft);
    edit(copy);
    setText(pretty(copy));
    setChecked(null);
  };
  const check = async () => {
    setProblem("");
    try {
      setChecked(await put<PolicyChecked>("policy", draft, { dry_run: true }));
    } catch (failure) {
      setChecked(null);
      setProblem(failure instanceof Error ? failure.message : String(failure));
    }
  };
  return (
    <div class="cards">
      <section class="card">
        <header>
          <h2>What if</h2>
          <small>move a slider, and see when jobs would start</small>
          {(changed || slots !== null) && (
            <span class="end">
              <button
                type="button"
                class="small"
                onClick={() => {
                  setText(base);
                  setSlots(null);
                  setChecked(null);
                }}
              >
                Reset
              </button>
            </span>
          )}
        </header>
        {draft && <Sliders draft={draft} change={change} slots={slots} setSlots={setSlots} />}
        <Forecast draft={changed ? draft : null} slots={slots} />
      </section>
      <section class="card">
        <header>
          <h2>{mayAdminister.value ? "Draft" : "In force"}</h2>
          {mayAdminister.value && (
            <span class="end">
              <ActionButton class="small" run={check} disabled={draft === null}>
                Check
              </ActionButton>
              <button
                type="button"
                class="small primary"
                disabled={!changed || draft === null}
                onClick={() => setAsking(true)}
              >
                Apply
              </button>
            </span>
          )}
        </header>
        {(wrong || problem) && (
          <p class="problem" role="alert">
            {wrong || problem}
          </p>
        )}
        {checked && <Findings checked={checked} />}
        <textarea
          rows={22}
          spellcheck={false}
          aria-label="The policy as JSON"
          readOnly={!mayAdminister.value}
          value={text}
          onInput={(event) => {
            setText(event.currentTarget.value);
            setChecked(null);
          }}
        />
      </section>
      {asking && draft && (
        <Apply
          before={base}
          after={pretty(draft)}
          policy={draft}
          version={current.version}
          onClose={() => setAsking(false)}
          onApplied={onApplied}
        />
      )}
    </div>
  );
}

function read(text: string): { draft: PolicyData | null; wrong: string } {
  try {
    const draft: unknown = JSON.parse(text);
    if (draft === null || typeof draft !== "object" || Array.isArray(draft))
      return { draft: null, wrong: "A policy is an object." };
    return { draft: draft as PolicyData, wrong: "" };
  } catch (failure) {
    return { draft: null, wrong: `The draft is not JSON: ${failure instanceof Error ? failure.message : ""}` };
  }
}

function Findings({ checked }: { checked: PolicyChecked }) {
  if (!checked.findings.length) return <p role="status">The policy is valid, and nothing in it looks unintended.</p>;
  return (
    <div class="note" role="status">
      <strong>Valid, with {plural(checked.findings.length, "warning")}</strong>
      <ul>
        {checked.findings.map((finding) => (
          <li key={`${finding.code} ${finding.key}`}>
            {finding.key && <code>{finding.key}</code>} {finding.text}
          </li>
        ))}
      </ul>
    </div>
  );
}

/** Sliders for the numbers that change waits most: slots, the reserve, and the weights of lanes. */
function Sliders(given: {
  draft: PolicyData;
  change: (edit: (draft: PolicyData) => void) => void;
  slots: number | null;
  setSlots: (value: number) => void;
}) {
  const total = overview.value?.slots.total ?? 0;
  const lanes = (given.draft["lanes"] ?? {}) as Table;
  const reserve = given.draft["reserve"] as Record<string, unknown> | undefined;
  const wanted = given.slots ?? total;
  return (
    <div class="sliders">
      <Slider name="Slots" value={wanted} least={1} most={Math.max(20, total * 3)} onChange={given.setSlots} />
      {reserve !== undefined && (
        <Slider
          name={`Reserved for ${(reserve["lanes"] as string[] | undefined)?.join(", ") || "no lane"}`}
          value={Number(reserve["slots"] ?? 0)}
          least={0}
          most={Math.max(4, total)}
          onChange={(value) =>
            given.change((draft) => {
              (draft["reserve"] as Record<string, unknown>)["slots"] = value;
            })
          }
        />
      )}
      {Object.entries(lanes).map(([name, lane]) => (
        <Slider
          key={name}
          name={`Weight of ${name}`}
          value={Number(lane["weight"] ?? 1)}
          least={1}
          most={Math.max(10, Number(lane["weight"] ?? 1) * 3)}
          onChange={(value) =>
            given.change((draft) => {
              const edited = (draft["lanes"] as Table)[name];
              if (edited) edited["weight"] = value;
            })
          }
        />
      ))}
    </div>
  );
}

function Slider(given: {
  name: string;
  value: number;
  least: number;
  most: number;
  onChange: (value: number) => void;
}) {
  const top = useRef(given.most);
  return (
    <label class="slider">
      <span>{given.name}</span>
      <input
        type="range"
        min={given.least}
        max={top.current}
        value={given.value}
        onInput={(event) => given.onChange(Number(event.currentTarget.value))}
      />
      <output>{given.value}</output>
    </label>
  );
}

function Forecast({ draft, slots }: { draft: PolicyData | null; slots: number | null }) {
  const [found, setFound] = useState<ForecastReply | null>(null);
  const [problem, setProblem] = useState("");
  const key = JSON.stringify([draft, slots]);
  useEffect(() => {
    let last = false;
    const timer = setTimeout(async () => {
      const body = { ...(draft ? { policy: draft } : {}), ...(slots === null ? {} : { slots }) };
      try {
        const reply = await post<ForecastReply>("forecast", body);
        if (last) return;
        setFound(reply);
        setProblem("");
      } catch (failure) {
        if (!last) setProblem(failure instanceof Error ? failure.message : String(failure));
      }
    }, FORECAST_AFTER_MS);
    return () => {
      last = true;
      clearTimeout(timer);
    };
  }, [key]);
  if (problem) return <p class="problem">{problem}</p>;
  if (found === null) return <p class="soft">Forecasting…</p>;
  const lanes = Object.entries(found.lanes);
  const most = Math.max(1, ...lanes.flatMap(([, lane]) => [lane.before?.p90 ?? 0, lane.after?.p90 ?? 0]));
  return (
    <div class="scroll">
      <table>
        <Columns names={["Lane", "starts in", "would start in", ["p50", "num"]]} />
        <tbody>
          {lanes.map(([name, lane]) => (
            <tr key={name}>
              <td>{name}</td>
              <td>{lane.before ? <StartRange p50={lane.before.p50} p90={lane.before.p90} most={most} /> : "–"}</td>
              <td>{lane.after ? <StartRange p50={lane.after.p50} p90={lane.after.p90} most={most} /> : "–"}</td>
              <td class="num">
                <Change before={lane.before?.p50 ?? null} after={lane.after?.p50 ?? null} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

const EQUAL_SECONDS = 0.05;

function Change({ before, after }: { before: number | null; after: number | null }) {
  if (before === null || after === null) return <span class="soft">–</span>;
  const more = after - before;
  if (Math.abs(more) < EQUAL_SECONDS) return <span class="soft">same</span>;
  return (
    <span class={more < 0 ? "better" : "worse"}>
      {more < 0 ? "−" : "+"}
      {seconds(Math.abs(more))}
    </span>
  );
}

function DiffView({ before, after }: { before: string; after: string }) {
  const lines = diff(before, after);
  if (!lines.length) return <p>They are equal.</p>;
  const signs = { add: "+", cut: "−", same: " " };
  return (
    <pre class="diff" tabIndex={0}>
      {lines.map((line, index) => (
        <span key={index} class={line.kind}>
          {signs[line.kind]} {line.text}
        </span>
      ))}
    </pre>
  );
}

function Apply(given: {
  before: string;
  after: string;
  policy: PolicyData;
  version: number;
  onClose: () => void;
  onApplied: () => void;
}) {
  const [note, setNote] = useState("");
  const run = async () => {
    try {
      const applied = await put<PolicyReply>("policy", given.policy, { note: note || "from the dashboard" });
      say(`Version ${applied.version} is in force.`);
      given.onApplied();
      refresh();
      given.onClose();
    } catch (failure) {
      sayProblem("The policy was not applied", failure);
    }
  };
  return (
    <Dialog title={`Apply as version ${given.version + 1}`} onClose={given.onClose}>
      <form onSubmit={(event) => event.preventDefault()}>
        <DiffView before={given.before} after={given.after} />
        <label class="field">
          Why
          <input
            value={note}
            maxLength={500}
            onInput={(event) => setNote(event.currentTarget.value)}
            placeholder="kept with the version"
          />
        </label>
        <div class="row end">
          <button type="button" onClick={given.onClose}>
            Keep the draft
          </button>
          <ActionButton class="primary" run={run}>
            Apply
          </ActionButton>
        </div>
      </form>
    </Dialog>
  );
}

function Versions({ current, onApplied }: { current: number; onApplied: () => void }) {
  const { data, problem, reload } = useResource(`versions ${current}`, () => get<PolicyVersions>("policy/versions"), {
    live: false,
    keep: true,
  });
  const [shown, setShown] = useState<number | null>(null);
  const items = data?.items ?? [];
  return (
    <section class="card flush">
      <header>
        <h2>Versions</h2>
      </header>
      <Problem of="The versions" problem={problem} />
      {data && !items.length && <p class="soft">No policy was applied yet: the built-in one is in force.</p>}
      {items.length > 0 && (
        <div class="scroll">
          <table>
            <Columns names={[["Version", "num"], "Applied", "Note"]} actions />
            <tbody>
              {items.map((item) => (
                <tr key={item.version}>
                  <td class="num">
                    {item.version}{" "}
                    {item.current && (
                      <span class="state" data-state="ok">
                        in force
                      </span>
                    )}
                  </td>
                  <td>
                    <Time at={item.applied_at} />
                  </td>
                  <td>{item.note}</td>
                  <td>
                    <span class="row end">
                      <button type="button" class="small" onClick={() => setShown(item.version)}>
                        {item.current ? "Compare with the one before" : "Compare with what is in force"}
                      </button>
                    </span>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {shown !== null && (
        <Compare
          version={shown}
          current={current}
          onClose={() => setShown(null)}
          onApplied={() => {
            reload();
            onApplied();
          }}
        />
      )}
    </section>
  );
}

/** One version beside the one in force, or the one in force beside that before it, with a way back. */
function Compare(given: { version: number; current: number; onClose: () => void; onApplied: () => void }) {
  const isCurrent = given.version === given.current;
  const target = isCurrent ? Math.max(0, given.version - 1) : given.version;
  const read = (version: number) => () => get<PolicyReply>(`policy/versions/${version}`);
  const now = useResource(`now ${given.current}`, read(given.current), { live: false });
  const other = useResource(`other ${target}`, read(target), { live: false });
  const run = async () => {
    try {
      const applied = await post<PolicyReply>("policy/rollback", { to: target });
      say(`Version ${applied.version} is in force, with the policy of version ${target}.`);
      given.onApplied();
      refresh();
      given.onClose();
    } catch (failure) {
      sayProblem("The policy was not rolled back", failure);
    }
  };
  return (
    <Dialog title={`From version ${given.current} back to version ${target}`} onClose={given.onClose}>
      <Problem of="The version" problem={now.problem ?? other.problem} />
      {now.data && other.data && <DiffView before={pretty(now.data.policy)} after={pretty(other.data.policy)} />}
      <p />
      <div class="row end">
        <button type="button" onClick={given.onClose}>
          Close
        </button>
        {mayAdminister.value && (
          <ActionButton class="primary" run={run} disabled={!now.data || !other.data}>
            Roll back to version {target}
          </ActionButton>
        )}
      </div>
    </Dialog>
  );
}
