import type { Store } from "../../state/store";
import { toggleTheme } from "../../state/theme";
import { tabsOf } from "../index";
import { openInPerfetto } from "../raw_events";
import { noteChosen, noteMoment } from "../../state/notes";
import { axisOf } from "../../state/axis";
import { spanOf } from "../../model/level";
import { PAN_STEP, panBy, ZOOM_STEP, zoomBy } from "../timeline/gestures";
import { pointerTime } from "../timeline/scene";
import { walk } from "../timeline/keys";
import { walkSteps } from "../timeline/step_strip";
import { SEARCH_BOX } from "./search";

/** Keys that work wherever nothing is being typed. */
export function pressed(store: Store, event: KeyboardEvent): void {
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
  if (store.helpShown.value && event.key !== "?") return; // the page is behind it
  if (event.key === "Escape" && store.view.value.area) {
    store.set({ area: null });
    event.preventDefault();
    return;
  }
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
  e: (store) => store.set({ every: !store.view.value.every }),
  w: (store) => zoomBy(axisOf(store), ZOOM_STEP),
  s: (store) => zoomBy(axisOf(store), 1 / ZOOM_STEP),
  a: (store) => panBy(axisOf(store), -PAN_STEP),
  d: (store) => panBy(axisOf(store), PAN_STEP),
  f: (store) => fit(store),
  "[": (store) => walkSteps(store, -1),
  "]": (store) => walkSteps(store, 1),
  "0": (store) => axisOf(store).showAll(),
  m: (store) => store.set({ oneStep: !store.view.value.oneStep }),
  t: (store) => store.set({ asTable: !store.view.value.asTable }),
  c: (store) => void store.descend(),
  g: (store) => void store.longestKernel(),
  n: (store) => {
    const time = pointerTime.peek();
    if (time !== null) noteMoment(store, time);
    else if (store.place.value) noteChosen(store);
    else
      store.notice.value =
        "Point at a moment of the timeline, or select an operation, to note something.";
  },
  l: toggleTheme,
  p: (store) => {
    const path = store.view.value.chosen || store.view.value.path;
    if (!path || !store.host.live) return;
    openInPerfetto(store, path).catch((error: Error) => (store.notice.value = error.message));
  },
};

/** Zooms to the area, or to the chosen operation, or back to the whole level. */
function fit(store: Store): void {
  const { area } = store.view.value;
  const place = store.place.value;
  const span = area ?? (place && spanOf(place.level, place.index));
  if (span) axisOf(store).show(span);
  else axisOf(store).showAll();
}

function paneKey(store: Store, key: string): (() => void) | undefined {
  const pane = tabsOf(store)[Number(key) - 1]?.[0];
  return pane && (() => store.set({ pane: pane.id }));
}

function isTyping(target: EventTarget | null): boolean {
  return (
    target instanceof HTMLElement && target.matches("input:not([type=checkbox]), select, textarea")
  );
}
