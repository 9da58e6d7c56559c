import { effect, signal, type ReadonlySignal, type Signal } from "@preact/signals";
import type { SearchHits } from "../api/types";
import { stepOf } from "../base/path";
import { nextHit } from "../model/search_hits";
import { latest, type Loaded } from "./latest";
import { perStore } from "./per_store";
import type { Store } from "./store";

/** The hits of the search on screen, and the one that somebody is at. */
export interface SearchState {
  hits: ReadonlySignal<Loaded<SearchHits>>;
  /** Id of an event. */
  current: Signal<number | null>;
  /** Goes to the next hit, or to the previous one, as soon as the hits are there. */
  step: (by: 1 | -1) => void;
  goTo: (event: number) => void;
}

export const searchOf = perStore((store): SearchState => {
  const current = signal<number | null>(null);
  const wanted = signal<1 | -1 | null>(null);
  const hits = latest(() => {
    const [client, text] = [store.client.value, store.searched.value.value];
    return client && text ? client.searchHits(text) : null;
  });
  const goTo = (event: number): void => {
    current.value = event;
    void store.goTo(event);
  };
  effect(() => {
    const by = wanted.value;
    const found = ready(store, hits.value);
    if (by === null || !found) return;
    wanted.value = null;
    const step = stepOf(store.view.peek().path ?? "");
    const row = nextHit(found.events, { event: current.peek(), step }, by);
    if (row >= 0) goTo(found.events.event[row]!);
    else store.notice.value = found.total ? "No hit is inside a step." : "Nothing was found.";
  });
  return { hits, current, goTo, step: (by) => void (wanted.value = by) };
});

/** The hits to be marked while a search is on screen. */
export function hitsOnScreen(store: Store): SearchHits | null {
  const { value } = searchOf(store).hits.value;
  return store.view.value.text ? value : null;
}

/** The hits of what is in the box now. */
function ready(store: Store, { value, loading }: Loaded<SearchHits>): SearchHits | null {
  return !loading && value?.text === store.view.value.text ? value : null;
}
