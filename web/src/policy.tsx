/** Policy: what is in force, a draft with what it would change, checks, versions with their differences. */

import { useEffect, useRef, useState } from "preact/hooks";
import { get, post, put } from "./api";
import type { ForecastReply, LaneForecast, PolicyChecked, PolicyReply, PolicyVersions } from "./api.gen";
import { diff } from "./diff";
import { plural, seconds } from "./format";
import { overview, refresh } from "./live";
import { useResource } from "./resource";
import { mayAdminister, say, sayProblem } from "./state";
import { ActionButton, Columns, Dialog, Problem, StartRange, Time } from "./ui";

type PolicyData = Record<string, unknown>;

const pretty = (value: unknown) => JSON.stringify(value, null, 2);
const FORECAST_AFTER_MS = 200; // A slider moves many times a second.

export function Policy() {
  const [applied, setApplied] = useState(0);
  const version = useResource("policy", () => get<PolicyReply>("policy"));
  const current = version.data;
  const onApplied = () => {
    setApplied(applied + 1);
    version.reload();
  };
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
      {current && <Draft key={applied} current={current} onApplied={onApplied} />}
      {current && <Versions current={current.version} onApplied={onApplied} />}
    </>
  );
}

/** A draft, based on the version that was in force when its first change was made. */
function Draft({ current, onApplied }: { current: PolicyReply; onApplied: () => void }) {
  const [source, setSource] = useState(current);
  const base = pretty(source.policy);
  const [text, setText] = useState(base);
  const [slots, setSlots] = useState<number | null>(null);
  const [checked, setChecked] = useState<PolicyChecked | null>(null);
  const [problem, setProblem] = useState("");
  const [asking, setAsking] = useState(false);
  const { draft, wrong } = read(text);
  const changed = text !== base;
  const restart = () => {
    setSource(current);
    setText(pretty(current.policy));
    setChecked(null);
  };
  const late = current.version !== source.version || current.digest !== source.digest;
  useEffect(() => {
    if (late && !changed) restart();
  }, [late, changed]);
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
                  restart();
                  setSlots(null);
                }}
              >
                Reset
              </button>
            </span>
          )}
        </header>
        {draft && <Sliders draft={draft} change={change} slots={slots} setSlots={setSlots} />}
        <Forecast draft={changed ? draft : null} slots={slots} />
        {late && changed && (
          <p class="problem" role="alert">
            Version {current.version} was applied meanwhile, and your draft is based on version {source.version}. Reset
            starts again from version {current.version}.
          </p>
        )}
        {mayAdminister.value && (
          <div class="row end">
            <button
              type="button"
              class="primary"
              disabled={!changed || late || draft === null}
              onClick={() => setAsking(true)}
            >
              Apply as the next version
            </button>
          </div>
        )}
      </section>
      <section class="card">
        <header>
          <h2>{mayAdminister.value ? "Draft" : "In force"}</h2>
          {mayAdminister.value && (
            <span class="end">
              <ActionButton class="small" run={check} disabled={draft === null}>
                Check
              </ActionButton>
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
          version={source.version}
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

/** Sliders for the numbers that change waits most: slots, the reserve, weights of lanes and tenants, and limits. */
function Sliders(given: {
  draft: PolicyData;
  change: (edit: (draft: PolicyData) => void) => void;
  slots: number | null;
  setSlots: (value: number) => void;
}) {
  const total = overview.value?.slots.total ?? 0;
  const at = (...path: string[]) => path.reduce<unknown>((found, name) => (found as PolicyData)?.[name], given.draft);
  const slider = (name: string, least: number, most: number, ...path: string[]) => (
    <Slider
      key={name}
      name={name}
      value={Number(at(...path) ?? 1)}
      least={least}
      most={Math.max(most, Number(at(...path) ?? 1) * 3)}
      onChange={(value) =>
        given.change((draft) => {
          const last = path.at(-1) as string;
          path.slice(0, -1).reduce((found, part) => found[part] as PolicyData, draft)[last] = value;
        })
      }
    />
  );
  const names = (...path: string[]) => Object.keys((at(...path) ?? {}) as PolicyData);
  return (
    <div class="sliders">
      <Slider
        name="Slots"
        value={given.slots ?? total}
        least={1}
        most={Math.max(20, total * 3)}
        onChange={given.setSlots}
      />
      {at("reserve") !== undefined &&
        slider(
          `Reserved for ${(at("reserve", "lanes") as string[] | undefined)?.join(", ") || "no lane"}`,
          0,
          Math.max(4, total),
          "reserve",
          "slots",
        )}
      {names("lanes").map((name) => slider(`Weight of ${name}`, 1, 10, "lanes", name, "weight"))}
      {names("tenants", "weights").map((name) => slider(`Weight of tenant ${name}`, 1, 10, "tenants", "weights", name))}
      {names("limits")
        .filter((name) => at("limits", name, "concurrency"))
        .map((name) => slider(`Limit ${name}`, 1, 10, "limits", name, "concurrency"))}
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
  const groups: [string, [string, LaneForecast][]][] = [
    ["Lane", Object.entries(found.lanes)],
    ["Tenant", found.tenants.map((one) => [`${one.tenant} in ${one.lane}`, one])],
    ["Limit", found.limits.map((one) => [one.limit, one])],
  ];
  const rows = groups.flatMap(([, some]) => some);
  const most = Math.max(1, ...rows.flatMap(([, row]) => [row.before?.p90 ?? 0, row.after?.p90 ?? 0]));
  return (
    <>
      <Verdict rows={rows} asked={draft !== null || slots !== null} />
      {groups.map(
        ([kind, some]) =>
          some.length > 0 && (
            <div class="scroll" key={kind}>
              <table>
                <Columns names={[kind, "starts in", "would start in", ["p50", "num"]]} />
                <tbody>
                  {some.map(([name, { before, after }]) => (
                    <tr key={name}>
                      <td>{name}</td>
                      <td>{before ? <StartRange p50={before.p50} p90={before.p90} most={most} /> : "–"}</td>
                      <td>{after ? <StartRange p50={after.p50} p90={after.p90} most={most} /> : "–"}</td>
                      <td class="num">
                        <Change more={difference(before, after)} />
                      </td>
                    </tr>
                  ))}
                </tbody>
              </table>
            </div>
          ),
      )}
    </>
  );
}

/** Who would start earlier, and who later, those with the largest difference first. */
function Verdict({ rows, asked }: { rows: [string, LaneForecast][]; asked: boolean }) {
  if (!asked) return null;
  const moved = rows
    .map(([name, { before, after }]) => ({ name, more: difference(before, after) ?? 0 }))
    .filter(({ more }) => Math.abs(more) >= EQUAL_SECONDS)
    .sort((one, other) => Math.abs(other.more) - Math.abs(one.more));
  const list = (title: string, some: typeof moved) =>
    some.length > 0 && (
      <div>
        {title}{" "}
        {some.map(({ name, more }, index) => (
          <span key={name}>
            {index > 0 && ", "}
            {name} <Change more={more} />
          </span>
        ))}
      </div>
    );
  return (
    <div class="note" role="status">
      {list(
        "Gains:",
        moved.filter(({ more }) => more < 0),
      )}
      {list(
        "Loses:",
        moved.filter(({ more }) => more > 0),
      )}
      {!moved.length && "No wait would change."}
    </div>
  );
}

const EQUAL_SECONDS = 0.05;

type Wait = LaneForecast["before"];

/** Return by how many seconds later half of the jobs would have started, or null if that is not known. */
function difference(before: Wait, after: Wait): number | null {
  return typeof before?.p50 === "number" && typeof after?.p50 === "number" ? after.p50 - before.p50 : null;
}

function Change({ more }: { more: number | null }) {
  if (more === null) return <span class="soft">–</span>;
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
      const applied = await put<PolicyReply>("policy", given.policy, {
        note: note || "from the dashboard",
        if_version: given.version,
      });
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
