import { readPacked } from "./element";
import { fetchJson } from "./http";
import type { WatchAnswer } from "./watch_types";

const ELEMENT = "stepscope-watch";

/** Where a watched run comes from; only a server can tell more of it later. */
export interface WatchHost {
  readonly live: boolean;
  /** A rank, null for the slowest: all steps, or those after one. */
  ask(rank: number | null, after: number | null): Promise<WatchAnswer>;
}

/** The run of this page: in the file itself, else of the server that the page came from. */
export async function connectWatch(page: Document): Promise<WatchHost> {
  const element = page.getElementById(ELEMENT);
  if (!element) return { live: true, ask: askServer };
  const answer = await readPacked<WatchAnswer>(element.textContent ?? "");
  element.remove(); // megabytes of text that nobody reads again
  return { live: false, ask: () => Promise.resolve(answer) };
}

async function askServer(rank: number | null, after: number | null): Promise<WatchAnswer> {
  const query = new URLSearchParams();
  if (rank !== null) query.set("rank", String(rank));
  if (after !== null) query.set("after", String(after));
  return (await fetchJson(`/api/watch?${query.toString()}`)) as WatchAnswer;
}
