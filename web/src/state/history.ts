import { effect } from "@preact/signals";
import { painted } from "../base/frame";
import type { Store } from "./store";
import { fromHash, toHash } from "./url";

/** Marks the places of the history that this page made; other URLs were typed or pasted. */
const OURS = "stepscope";

interface Place {
  url: string;
  /** A further step of the history, or one in place of the last. */
  further: boolean;
}

/** Keeps the URL's fragment and the view the same; going somewhere is a step of the history. */
export function followUrl(store: Store): void {
  let path = store.view.peek().path;
  const written = new Written();
  effect(() => {
    const view = store.view.value;
    const hash = toHash(view);
    const now = written.last();
    if (hash === now || (hash === "#" && !now)) return;
    const went = path !== null && view.path !== path;
    path = view.path;
    written.add({ url: hash, further: went });
  });
  addEventListener("popstate", (event: PopStateEvent) => {
    written.forget();
    const read = fromHash(location.hash);
    // The way back does not take notes away that were written since.
    const view = event.state === OURS ? { ...read, notes: store.view.peek().notes } : read;
    path = view.path;
    store.set(view);
  });
  addEventListener("pagehide", () => written.write());
}

/** Places that are written into the history once they are on screen: it takes some milliseconds. */
class Written {
  private waiting: Place[] = [];

  constructor() {
    remember({ url: location.href, further: false });
  }

  /** The fragment that is written last. */
  last(): string {
    return this.waiting.at(-1)?.url ?? location.hash;
  }

  add(place: Place): void {
    const before = this.waiting.at(-1);
    if (before && !place.further) before.url = place.url;
    else this.waiting.push(place);
    if (this.waiting.length === 1) void painted().then(() => this.write());
  }

  write(): void {
    for (const place of this.waiting.splice(0)) remember(place);
  }

  /** Somebody went elsewhere in the history. */
  forget(): void {
    this.waiting = [];
  }
}

function remember({ url, further }: Place): void {
  try {
    if (further) history.pushState(OURS, "", url);
    else history.replaceState(OURS, "", url);
  } catch {
    // a page of a sandboxed file has no history to write
  }
}
