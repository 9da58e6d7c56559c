import { effect } from "@preact/signals";
import type { Store } from "./store";
import { fromHash, toHash } from "./url";

/** Marks the places of the history that this page made; other URLs were typed or pasted. */
const OURS = "stepscope";

/** Keeps the URL's fragment and the view the same; going somewhere is a step of the history. */
export function followUrl(store: Store): void {
  let path = store.view.peek().path;
  remember(location.href);
  effect(() => {
    const view = store.view.value;
    const hash = toHash(view);
    if (hash === location.hash || (hash === "#" && !location.hash)) return;
    const went = path !== null && view.path !== path;
    path = view.path;
    remember(hash, went);
  });
  addEventListener("popstate", (event: PopStateEvent) => {
    const read = fromHash(location.hash);
    // The way back does not take notes away that were written since.
    const view = event.state === OURS ? { ...read, notes: store.view.peek().notes } : read;
    path = view.path;
    store.set(view);
  });
}

/** Writes a place into the history, as a further one or in place of the last. */
function remember(url: string, further = false): void {
  try {
    if (further) history.pushState(OURS, "", url);
    else history.replaceState(OURS, "", url);
  } catch {
    // a page of a sandboxed file has no history to write
  }
}
