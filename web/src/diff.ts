/** The difference of two texts, line by line. */

interface DiffLine {
  kind: "same" | "add" | "cut";
  text: string;
}

const AROUND = 3; // Unchanged lines that are shown before and after a change.

/** Return the lines of both texts by their longest common subsequence, without long stretches that are the same. */
export function diff(before: string, after: string): DiffLine[] {
  const [old, now] = [before.split("\n"), after.split("\n")];
  const lengths = Array.from({ length: old.length + 1 }, () => new Uint16Array(now.length + 1));
  const length = (row: number, column: number) => lengths[row]?.[column] ?? 0;
  for (let row = old.length - 1; row >= 0; row--) {
    for (let column = now.length - 1; column >= 0; column--) {
      const line = lengths[row];
      if (line === undefined) continue;
      const same = old[row] === now[column];
      line[column] = same
        ? length(row + 1, column + 1) + 1
        : Math.max(length(row + 1, column), length(row, column + 1));
    }
  }
  const found: DiffLine[] = [];
  let [row, column] = [0, 0];
  while (row < old.length || column < now.length) {
    const [left, right] = [old[row], now[column]];
    if (left !== undefined && left === right) {
      found.push({ kind: "same", text: left });
      row++;
      column++;
    } else if (right !== undefined && (left === undefined || length(row, column + 1) > length(row + 1, column))) {
      found.push({ kind: "add", text: right });
      column++;
    } else if (left !== undefined) {
      found.push({ kind: "cut", text: left });
      row++;
    }
  }
  return found.filter((line, index) => line.kind !== "same" || isNearChange(found, index));
}

function isNearChange(lines: DiffLine[], index: number): boolean {
  return lines.slice(Math.max(0, index - AROUND), index + AROUND + 1).some((line) => line.kind !== "same");
}
