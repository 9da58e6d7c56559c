import type { Details } from "../api/types";
import { eventIn, type Piece } from "./tiles";

/** A slice on a track, ns since the trace's start. */
export interface PlacedSlice {
  track: string;
  depth: number;
  start: number;
  end: number;
}

/** More arrows than these hide what they lead to. */
const MOST = 12;

/** From calls to their device work: its own launch, or those inside with the longest work. */
export function launchesOf(details: Details | null): [from: number, to: number][] {
  if (!details || details.kind === "step") return [];
  if (details.launch && details.event !== null) return [[details.launch.event, details.event]];
  const work = details.device_work.rows.filter((one) => one.launch >= 0);
  return work.slice(0, MOST).map((one) => [one.launch, one.event]);
}

/** Where an event is among the slices that are drawn; null where it is on none of them. */
export function placeOf(
  drawn: ReadonlyMap<string, readonly Piece[]>,
  event: number,
): PlacedSlice | null {
  for (const [track, pieces] of drawn) {
    for (const { tile } of pieces) {
      const found = eventIn(tile, event);
      if (!found) continue;
      const [depth, at] = found;
      const line = tile.lines[depth]!;
      return { track, depth, start: line.start[at]!, end: line.end[at]! };
    }
  }
  return null;
}
