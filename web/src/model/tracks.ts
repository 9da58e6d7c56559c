import type { Axis, TrackRow } from "../api/types";

/** Threads and streams that work less than this share of the axis are listed on demand. */
const HARDLY = 0.001;
/** Deeper tracks than this are closed at first, but for the busiest thread. */
const DEEP = 12;

/** Which tracks are listed, and in which order. */
export interface Listing {
  rank: number;
  /** All tracks of all ranks. */
  every: boolean;
  pinned: readonly string[];
}

/** The tracks that are listed: pinned ones first, else as the server orders them. */
export function listed(axis: Axis, { rank, every, pinned }: Listing): TrackRow[] {
  const mine = axis.tracks.filter(
    (one) =>
      one.kind !== "stages" &&
      (every || pinned.includes(one.id) || (one.rank === rank && works(axis, one))),
  );
  const place = (one: TrackRow): number => pinned.indexOf(one.id) + 1 || Infinity;
  return mine.sort((a, b) => (place(a) === place(b) ? 0 : place(a) - place(b)));
}

function works(axis: Axis, one: TrackRow): boolean {
  // A single slice on a thread is a mark of the recorder's around all of it.
  return one.busy_ns >= HARDLY * axis.end_ns && (one.kind !== "cpu" || one.slices > 1);
}

/** How many tracks there are besides those listed. */
export function unlisted(axis: Axis, shown: readonly TrackRow[]): number {
  return axis.tracks.filter((one) => one.kind !== "stages").length - shown.length;
}

/** Whether a track shows one line, where nobody has said. */
export function foldedAtFirst(axis: Axis, track: TrackRow): boolean {
  if (track.depths <= DEEP) return false;
  const threads = axis.tracks.filter((one) => one.kind === "cpu" && one.rank === track.rank);
  return track !== threads.reduce((a, b) => (b.busy_ns > a.busy_ns ? b : a), track);
}

/** `CPU`, `GPU 3`, `COMM 3`: where a row is. */
export function sideOf(kind: string, number: number | null, device: string): string {
  if (kind === "cpu") return "CPU";
  const side = kind === "communication" ? "COMM" : device;
  return number === null ? side : `${side} ${number}`;
}

/** `25738`, `stream 7`, `rank 3`: what tells a row from others of its side. */
export function shortNameOf(name: string): string {
  const found = /(?:stream|thread|rank)\s+\d+/i.exec(name)?.[0];
  return (found ?? name).replace("thread ", "").slice(0, 18);
}
