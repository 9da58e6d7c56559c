import type { Store } from "../../state/store";
import { toggleTheme } from "../../state/theme";
import { panesOf } from "../index";
import { openInPerfetto } from "../raw_events";
import { walk } from "../timeline/keys";
import { SEARCH_BOX } from "./search";

/** Keys that work wherever nothing is being typed. */
export function pressed(store: Store, event: KeyboardEvent): void {
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
  if (store.helpShown.value && event.key !== "?") return; // the page is behind it
  const act = ACTIONS[event.key] ?? paneKey(store, event.key);
  if (act) {
    act(store);
    event.preventDefault();
  } else if (event.target === document.body) walk(store, event);
}

const ACTIONS: Record<string, (store: Store) => void> = {
  "/": () => {
    const box = document.getElementById(SEARCH_BOX) as HTMLInputElement | null;
    box?.focus();
    box?.select();
  },
  "?": (store) => (store.helpShown.value = !store.helpShown.value),
  a: (store) => store.set({ every: !store.view.value.every }),
  m: (store) => store.set({ oneStep: !store.view.value.oneStep }),
  t: (store) => store.set({ asTable: !store.view.value.asTable }),
  c: (store) => void store.descend("cpu"),
  g: (store) => void store.descend("device"),
  d: toggleTheme,
  p: (store) => {
    const path = store.view.value.chosen || store.view.value.path;
    if (!path || !store.host.live) return;
    openInPerfetto(store, path).catch((error: Error) => (store.notice.value = error.message));
  },
};

function paneKey(store: Store, key: string): (() => void) | undefined {
  const pane = panesOf(store)[Number(key) - 1];
  return pane && (() => store.set({ pane: pane.id }));
}

function isTyping(target: EventTarget | null): boolean {
  return (
    target instanceof HTMLElement && target.matches("input:not([type=checkbox]), select, textarea")
  );
}
