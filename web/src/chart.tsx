/** Time series, drawn by uPlot on a canvas. Colours are read from the style sheet whenever the theme changes. */

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { theme } from "./state";

interface Series {
  name: string;
  colour: string;
  values: (number | null)[];
  fill?: boolean;
}

const HEIGHT = 190;

type Times = number[];

interface ChartProps {
  times: Times;
  series: Series[];
  name: string;
  /** Writes a value at the axis and in the legend. */
  unit: (value: number) => string;
  /** Distances that lines of the axis of values may have. */
  steps?: number[];
}

/** A chart of series over time. */
export function Chart(given: ChartProps) {
  const element = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const names = given.series.map((one) => one.name).join("\n");
  const latest = useRef(given);
  latest.current = given;
  const chosen = theme.value;
  useEffect(() => {
    const room = element.current;
    if (room === null) return;
    const build = () => {
      plot.current?.destroy();
      plot.current = new uPlot(options(latest.current, room.clientWidth), data(latest.current), room);
    };
    build();
    const resized = new ResizeObserver(() => plot.current?.setSize({ width: room.clientWidth, height: HEIGHT }));
    resized.observe(room);
    const system = matchMedia("(prefers-color-scheme: dark)");
    system.addEventListener("change", build);
    return () => {
      resized.disconnect();
      system.removeEventListener("change", build);
      plot.current?.destroy();
      plot.current = null;
    };
  }, [names, chosen]);
  useEffect(() => {
    plot.current?.setData(data(given));
  }, [given.times, given.series]);
  return <div class="chart" ref={element} role="img" aria-label={given.name} />;
}

function data(given: { times: Times; series: Series[] }): uPlot.AlignedData {
  return [given.times, ...given.series.map((one) => one.values)];
}

function options(given: ChartProps, width: number): uPlot.Options {
  const style = getComputedStyle(document.documentElement);
  const probe = document.createElement("span");
  document.body.append(probe);
  /** Return a custom property as a colour that a canvas understands: `light-dark()` is resolved by the browser. */
  const colour = (name: string) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };
  const axis: uPlot.Axis = {
    stroke: colour("--soft"),
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { show: false },
    font: `12px ${style.fontFamily}`,
  };
  const found: uPlot.Options = {
    width,
    height: HEIGHT,
    cursor: { y: false },
    legend: { live: true },
    scales: { y: { range: (_plot, _low, high) => [0, Math.max(1, high * 1.1)] } },
    axes: [
      { ...axis, values: clock, size: 28, incrs: TIMES },
      {
        ...axis,
        values: (_plot, ticks) => ticks.map(given.unit),
        size: 56,
        ...(given.steps ? { incrs: given.steps } : {}),
      },
    ],
    series: [
      { label: "Time", value: (_plot, value) => (value === null ? "–" : moments.format(value * 1_000)) },
      ...given.series.map((one) => ({
        label: one.name,
        stroke: colour(one.colour),
        width: 1.5,
        ...(one.fill ? { fill: translucent(colour(one.colour)) } : {}),
        points: { show: false },
        value: (_plot: uPlot, value: number | null) => (value === null ? "–" : given.unit(value)),
      })),
    ],
  };
  probe.remove();
  return found;
}

const moments = new Intl.DateTimeFormat("en-GB", { dateStyle: "short", timeStyle: "short" });
const hours = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const days = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const DAY = 86_400;
/** Seconds between two lines of an axis of times, so that no two have the same name. */
const TIMES = [60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 28_800, DAY, 2 * DAY, 5 * DAY, 10 * DAY];
/** Seconds between two lines of an axis of lengths. */
export const LENGTHS = [0.1, 0.5, 1, 2, 5, 10, 15, 30, ...TIMES];

/** Write the times below a chart: hours and minutes, or days if it spans several. */
function clock(_plot: uPlot, ticks: number[]): string[] {
  const first = ticks[0] ?? 0;
  const form = (ticks.at(-1) ?? 0) - first > 2 * DAY ? days : hours;
  return ticks.map((tick) => form.format(tick * 1_000));
}

function translucent(colour: string): string {
  return colour.replace("rgb(", "rgba(").replace(")", ", 0.15)");
}
