/** A cron expression in words, for the forms that people write most; others are shown as they are. */

const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const NAMED: Record<string, string> = {
  "@hourly": "every hour",
  "@daily": "every day at 00:00",
  "@midnight": "every day at 00:00",
  "@weekly": "every Sunday at 00:00",
  "@monthly": "on the 1st of each month at 00:00",
  "@yearly": "on 1 January at 00:00",
};

const two = (text: string) => text.padStart(2, "0");
const isNumber = (text: string) => /^\d{1,2}$/.test(text);

/** Return a schedule in words: "every 5 minutes", "Monday to Friday at 03:00". */
export function scheduleInWords(expression: string): string {
  const named = NAMED[expression.trim()];
  if (named) return named;
  const fields = expression.trim().split(/\s+/);
  if (fields.length !== 5) return expression;
  const [minute = "", hour = "", day = "", month = "", weekday = ""] = fields;
  const time = isNumber(minute) && isNumber(hour) ? `at ${two(hour)}:${two(minute)}` : null;
  const when = dayInWords(day, month, weekday);
  if (time) return when === null ? expression : `${when} ${time}`;
  if (when !== "every day") return expression;
  const step = /^\*\/(\d{1,2})$/;
  if (hour === "*") {
    if (minute === "*" || minute === "*/1") return "every minute";
    const minutes = step.exec(minute)?.[1];
    if (minutes) return `every ${minutes} minutes`;
    if (isNumber(minute)) return minute === "0" ? "every hour" : `every hour at minute ${minute}`;
  }
  const hours = step.exec(hour)?.[1];
  if (hours && isNumber(minute)) return `every ${hours} hours at minute ${minute}`;
  return expression;
}

function dayInWords(day: string, month: string, weekday: string): string | null {
  if (month !== "*") return null;
  if (day === "*" && weekday === "*") return "every day";
  if (day === "*") {
    if (weekday === "1-5" || /^mon-fri$/i.test(weekday)) return "Monday to Friday";
    const name = /^[0-7]$/.test(weekday) ? DAYS[Number(weekday)] : undefined;
    return name ? `every ${name}` : null;
  }
  return weekday === "*" && isNumber(day) ? `on day ${day} of each month` : null;
}
