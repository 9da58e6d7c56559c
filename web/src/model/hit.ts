import { firstAbove } from "../base/search";
import type { Row } from "./level";

/**
 * The bar of a row at a time: the shortest that holds it, else the nearest within `slack`.
 *
 * @param slack in nanoseconds: how far a pointer may miss, so that thin bars can be caught.
 * @returns the number of the bar, -1 where none is near.
 */
export function barAt(row: Row, time: number, slack: number): number {
  let best = -1;
  let bestMiss = Infinity;
  for (let bar = firstAbove(row.start, time + slack) - 1; bar >= 0; bar--) {
    if (row.reach[bar]! < time - slack) break;
    const miss = Math.max(row.start[bar]! - time, time - row.end[bar]!, 0);
    if (miss > slack) continue;
    if (miss < bestMiss || (miss === bestMiss && lengthOf(row, bar) < lengthOf(row, best))) {
      best = bar;
      bestMiss = miss;
    }
  }
  return best;
}

function lengthOf(row: Row, bar: number): number {
  return row.end[bar]! - row.start[bar]!;
}
