import { effect } from "@preact/signals";
import type { Store } from "./store";
import { fromHash, toHash } from "./url";

/** Keeps the URL's fragment and the view the same; going somewhere is a step of the history. */
export function followUrl(store: Store): void {
  let path = store.view.peek().path;
  effect(() => {
    const view = store.view.value;
    const hash = toHash(view);
    if (hash === location.hash || (hash === "#" && !location.hash)) return;
    const went = path !== null && view.path !== path;
    path = view.path;
    try {
      if (went) history.pushState(null, "", hash);
      else history.replaceState(null, "", hash);
    } catch {
      // a page of a sandboxed file has no history to write
    }
  });
  addEventListener("popstate", () => {
    const view = fromHash(location.hash);
    path = view.path;
    store.set(view);
  });
}
