/** Numbers, durations and moments as text. */

const whole = new Intl.NumberFormat("en");
const exact = new Intl.DateTimeFormat("en-GB", {
  dateStyle: "medium",
  timeStyle: "long",
});

/** Return a count: 1,234 in full, 12.3k and 4.5M above that. */
export function count(value: number): string {
  const short = (part: number) => (part >= 100 ? Math.round(part).toString() : part.toFixed(1).replace(/\.0$/, ""));
  if (value < 10_000) return whole.format(value);
  return value < 1_000_000 ? `${short(value / 1_000)}k` : `${short(value / 1_000_000)}M`;
}

/** Return a count in full. */
export function full(value: number): string {
  return whole.format(value);
}

const UNITS: [string, number][] = [
  ["d", 86_400],
  ["h", 3_600],
  ["m", 60],
];

/** Return a length of time: 340 ms, 2.1 s, 41 s, 3m 20s, 2h 5m, 3d 4h. */
export function seconds(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value <= 0) return "0 s";
  if (value < 0.9995) return `${Math.max(1, Math.round(value * 1_000))} ms`;
  if (value < 9.95) return `${value.toFixed(1).replace(".0", "")} s`;
  if (value < 59.5) return `${Math.round(value)} s`;
  const total = Math.round(value);
  for (const [index, [unit, size]] of UNITS.entries()) {
    if (total >= size) {
      const [nextUnit, nextSize] = UNITS[index + 1] ?? ["s", 1];
      const rest = Math.floor((total % size) / nextSize);
      return `${Math.floor(total / size)}${unit}${rest ? ` ${rest}${nextUnit}` : ""}`;
    }
  }
  return `${total} s`;
}

/** Return an age, in whole seconds below a minute and in whole minutes above, so that lists are calm. */
export function age(value: number): string {
  const whole = Math.max(0, Math.round(value));
  return seconds(whole < 60 ? whole : whole - (whole % 60));
}

/** Return how far a moment is from now: 3m ago, in 20 s. */
export function relative(moment: string | number, now: number): string {
  const away = (new Date(moment).getTime() - now) / 1_000;
  if (Math.abs(away) < 1) return "now";
  const length = seconds(Math.abs(away) < 10 ? Math.round(Math.abs(away)) : Math.abs(away));
  return away < 0 ? `${length} ago` : `in ${length}`;
}

/** Return a moment in full, in the reader's time zone. */
export function moment(value: string | number): string {
  return exact.format(new Date(value));
}

/** Return a share as a percentage. */
export function percent(part: number): string {
  const value = part * 100;
  return `${value > 0 && value < 10 ? value.toFixed(1).replace(/\.0$/, "") : Math.round(value)} %`;
}

/** Return the number of things with their name: 1 job, 3 jobs. */
export function plural(value: number, one: string, many = `${one}s`): string {
  return `${full(value)} ${value === 1 ? one : many}`;
}

/** Return how many attempts a job has. With the most retries that a job may have, they are unlimited. */
export function attempts(retries: number): string {
  return retries === 1_000_000 ? "any number" : full(retries + 1);
}

/** Return JSON as one line, cut after a number of characters. */
export function brief(value: unknown, most = 120): string {
  const text = typeof value === "string" ? value : (JSON.stringify(value) ?? "");
  return text.length > most ? `${text.slice(0, most)}…` : text;
}

/** Return arguments as a call shows them: a=1, b="x". */
export function parameters(values: Record<string, unknown> | null, most = 120): string {
  if (values === null) return "";
  return brief(
    Object.entries(values)
      .map(([name, value]) => `${name}=${brief(JSON.stringify(value), 60)}`)
      .join(", "),
    most,
  );
}

/** Quote a word for a POSIX shell. */
export function shell(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}
