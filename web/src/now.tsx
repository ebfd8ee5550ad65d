/** Now: lanes with their slots and waits, what happened lately, what waits for what, and how good estimates are. */

import { attempt } from "./actions";
import { get, post } from "./api";
import type { LaneOverview, Overview, SeriesReply } from "./api.gen";
import { Chart, LENGTHS } from "./chart";
import { count, full, percent, plural, seconds } from "./format";
import { overview } from "./live";
import { REASONS } from "./reasons";
import { useResource } from "./resource";
import { Link, query, setQuery } from "./router";
import { mayAdminister } from "./state";
import {
  ActionButton,
  Age,
  Choice,
  Columns,
  Command,
  Count,
  Empty,
  Meter,
  Problem,
  Slots,
  Sparkline,
  Stacked,
  StartRange,
  StateBadge,
} from "./ui";

const PERIODS = [
  ["1h", "1 h"],
  ["24h", "24 h"],
  ["30d", "30 d"],
] as const;
type Period = (typeof PERIODS)[number][0];
const STEPS: Record<Period, number> = { "1h": 60, "24h": 600, "30d": 3_600 };

export function Now() {
  const found = overview.value;
  if (found === null) return <p class="soft">Reading the queue…</p>;
  return (
    <>
      <div class="title">
        <h1>Now</h1>
        <SlotsLine found={found} />
        <PauseAll found={found} />
      </div>
      {found.workers === 0 && found.waiting > 0 && (
        <div class="note" role="status">
          <strong>{plural(found.waiting, "job")} wait and no worker runs.</strong> Start one:{" "}
          <code>headway worker APP</code>
        </div>
      )}
      <Lanes found={found} />
      <Throughput />
      <div class="cards">
        <WaitingFor found={found} />
        <Accuracy found={found} />
      </div>
    </>
  );
}

function SlotsLine({ found }: { found: Overview }) {
  const { slots } = found;
  if (!slots.total) return null;
  return (
    <span class="row">
      <Slots
        used={slots.used}
        reserved={Math.max(0, Math.min(slots.reserved - slots.reserved_used, slots.total - slots.used))}
        total={slots.total}
      />
      <small>
        {slots.used} of {plural(slots.total, "slot")} used
        {slots.reserved > 0 && `, ${slots.reserved_used} of ${slots.reserved} reserved ones used`}
      </small>
    </span>
  );
}

function PauseAll({ found }: { found: Overview }) {
  if (!mayAdminister.value) return null;
  const everything = found.paused.includes("everything");
  return (
    <span class="end">
      <PauseButton what={{}} paused={everything} name={everything ? "Resume everything" : "Pause everything"} />
    </span>
  );
}

/** Pause or resume a lane, a task, a tenant or everything. */
export function PauseButton(given: {
  what: { lane?: string; tenant?: string; task_type?: string };
  paused: boolean;
  name?: string;
}) {
  const target = Object.values(given.what)[0] ?? "everything";
  const verb = given.paused ? "resume" : "pause";
  const run = () =>
    attempt(`${verb} ${target}`, async () => {
      await post(verb, given.what);
      return given.paused ? `Resumed ${target}.` : `Paused ${target}. Running jobs go on.`;
    });
  return (
    <ActionButton
      class="small"
      run={run}
      aria-label={given.name ? undefined : `${given.paused ? "Resume" : "Pause"} ${target}`}
    >
      {given.name ?? (given.paused ? "Resume" : "Pause")}
    </ActionButton>
  );
}

function Lanes({ found }: { found: Overview }) {
  const longest = Math.max(1, ...found.lanes.map((lane) => lane.starts_in?.p90 ?? 0));
  return (
    <section class="card flush" aria-label="Lanes">
      <div class="scroll">
        <table>
          <Columns
            names={[
              "Lane",
              ["Waiting", "num"],
              ["Running", "num"],
              "Slots",
              ["Oldest", "num"],
              ["Waited p50 / p90", "num"],
              ["Started in 1 h", "wide"],
              "Would start in",
            ]}
            actions={mayAdminister.value}
          />
          <tbody>
            {found.lanes.map((lane) => (
              <Lane key={lane.name} lane={lane} total={found.slots.total} longest={longest} />
            ))}
          </tbody>
        </table>
      </div>
      <ul class="legend inset">
        <li>
          <i class="r1" />
          used of what is guaranteed
        </li>
        <li>
          <i class="r2" />
          borrowed from other lanes
        </li>
        <li>
          <i data-kind="reserved" />
          guaranteed and free, or lent to other lanes
        </li>
      </ul>
    </section>
  );
}

function Lane({ lane, total, longest }: { lane: LaneOverview; total: number; longest: number }) {
  const { slots } = lane;
  const borrowed = Math.min(slots.used, Math.round(slots.borrowed));
  const unused = Math.max(0, Math.round(slots.guaranteed) - (slots.used - borrowed));
  return (
    <tr>
      <td>
        <Link to="jobs" query={{ q: `lane:${lane.name}` }}>
          <strong>{lane.name}</strong>
        </Link>
        {lane.paused && <StateBadge state="paused" />}
        <span class="two whole">
          {lane.why
            ? `first waits: ${REASONS[lane.why] ?? lane.why}`
            : lane.waiting
              ? "the next claim takes one"
              : "nothing waits"}
        </span>
      </td>
      <td class="num">
        <Link to="jobs" query={{ q: `state:queued lane:${lane.name}` }}>
          <Count value={lane.waiting} />
        </Link>
        {lane.delayed > 0 && <small class="two">+{count(lane.delayed)} later</small>}
      </td>
      <td class="num">
        <Count value={lane.running} />
      </td>
      <td>
        <Slots
          used={slots.used - borrowed}
          lent={borrowed}
          reserved={unused}
          total={Math.max(total, slots.used + unused)}
        />
        {slots.lent > 0 && <small class="two">{plural(Math.round(slots.lent), "slot")} lent</small>}
      </td>
      <td class="num">
        <Age at={lane.oldest_at} />
      </td>
      <td class="num">
        {seconds(lane.wait_p50)} / {seconds(lane.wait_p90)}
      </td>
      <td class="wide">
        <LaneSparkline lane={lane.name} />
      </td>
      <td>
        {lane.starts_in ? (
          <StartRange p50={lane.starts_in.p50} p90={lane.starts_in.p90} most={longest} />
        ) : (
          <span class="soft">unknown</span>
        )}
      </td>
      {mayAdminister.value && (
        <td class="num">
          <PauseButton what={{ lane: lane.name }} paused={lane.paused} />
        </td>
      )}
    </tr>
  );
}

/** The minute of a moment: series have a row a minute, so they are read once in each. */
function minute(): string {
  return String(Math.floor(Date.parse(overview.value?.at ?? "1970-01-01") / 60_000));
}

function LaneSparkline({ lane }: { lane: string }) {
  const { data } = useResource(
    `${lane} ${minute()}`,
    () => get<SeriesReply>("series", { lane, since: "1h", step: 60 }),
    { live: false, keep: true },
  );
  const values = data?.points.map((point) => point.started) ?? [];
  const total = values.reduce((sum, one) => sum + one, 0);
  return <Sparkline values={values} name={`${full(total)} jobs of lane ${lane} started in the last hour`} />;
}

function Throughput() {
  const period = (query.value.get("period") ?? "1h") as Period;
  const key = `${period} ${minute()}`;
  const { data, problem } = useResource(
    key,
    () => get<SeriesReply>("series", { since: period, step: STEPS[period] ?? 60 }),
    {
      live: false,
      keep: true,
    },
  );
  const points = data?.points ?? [];
  const times = points.map((point) => Date.parse(point.at) / 1_000);
  const perMinute = (value: number, length: number) => (length > 0 ? (value * 60) / length : 0);
  const bad = (ended: Record<string, number>) => (ended["failed"] ?? 0) + (ended["dead_letter"] ?? 0);
  return (
    <div class="cards">
      <section class="card">
        <header>
          <h2>Jobs a minute</h2>
          <div class="end">
            <Choice
              name="Period"
              value={period}
              options={PERIODS}
              onChange={(value) => setQuery({ period: value }, true)}
            />
          </div>
        </header>
        <Problem of="The series" problem={problem} />
        {points.length > 1 ? (
          <Chart
            name="Jobs submitted, completed and failed a minute"
            times={times}
            unit={count}
            series={[
              { name: "submitted", colour: "--r7", values: points.map((one) => perMinute(one.submitted, one.seconds)) },
              {
                name: "completed",
                colour: "--r4",
                fill: true,
                values: points.map((one) => perMinute(one.ended["completed"] ?? 0, one.seconds)),
              },
              { name: "failed", colour: "--r5", values: points.map((one) => perMinute(bad(one.ended), one.seconds)) },
            ]}
          />
        ) : (
          <Empty title="No history yet.">A row is written each minute while a server or worker runs.</Empty>
        )}
      </section>
      <section class="card">
        <header>
          <h2>How long jobs waited</h2>
        </header>
        {points.length > 1 ? (
          <Chart
            name="Seconds that jobs had waited when they started: p50 and p90"
            times={times}
            unit={seconds}
            steps={LENGTHS}
            series={[
              { name: "p50", colour: "--r1", values: points.map((one) => one.wait_p50) },
              { name: "p90", colour: "--r3", values: points.map((one) => one.wait_p90) },
            ]}
          />
        ) : (
          <Empty title="No history yet." />
        )}
      </section>
    </div>
  );
}

function WaitingFor({ found }: { found: Overview }) {
  const pieces = Object.entries(found.waiting_by_reason)
    .filter(([, number]) => number > 0)
    .sort((one, other) => other[1] - one[1])
    .map(([name, value]) => ({ name, value, title: REASONS[name] ?? name }));
  return (
    <section class="card">
      <header>
        <h2>What waiting jobs wait for</h2>
      </header>
      {pieces.length ? (
        <>
          <Stacked pieces={pieces} unit={count} />
          <p class="row inset">
            {pieces.map((piece) => (
              <Link key={piece.name} to="jobs" query={{ q: `why:${piece.name}` }} class="chip">
                why:{piece.name}
              </Link>
            ))}
          </p>
        </>
      ) : found.waiting ? (
        <Empty title="The reasons are counted every few seconds." />
      ) : (
        <Empty title="Nothing waits.">
          Submit a job: <Command text="headway submit demo.sleep seconds=5" />
        </Empty>
      )}
    </section>
  );
}

function Accuracy({ found }: { found: Overview }) {
  const lanes = Object.entries(found.accuracy).filter(([, one]) => one.scored > 0);
  return (
    <section class="card flush">
      <header>
        <h2>How good estimates are</h2>
      </header>
      {lanes.length ? (
        <div class="scroll">
          <table>
            <Columns names={["Lane", ["Compared", "num"], "Started by their p50", "by their p90"]} />
            <tbody>
              {lanes.map(([name, one]) => (
                <tr key={name}>
                  <td>{name}</td>
                  <td class="num">
                    <Count value={one.scored} />
                  </td>
                  <td>
                    {percent(one.within_p50)} <small>of 50 % or more</small>
                    <Meter
                      part={one.within_p50}
                      whole={1}
                      over={one.within_p50 < 0.4}
                      name={`${percent(one.within_p50)} within p50`}
                    />
                  </td>
                  <td>
                    {percent(one.within_p90)} <small>of 90 % or more</small>
                    <Meter
                      part={one.within_p90}
                      whole={1}
                      over={one.within_p90 < 0.8}
                      name={`${percent(one.within_p90)} within p90`}
                    />
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : (
        <Empty title="No estimate was compared with a start yet.">
          Headway compares an estimate when its job starts.
        </Empty>
      )}
    </section>
  );
}
