import type { Store } from "../../state/store";
import { toggleTheme } from "../../state/theme";
import { tabsOf } from "../index";
import { openInPerfetto } from "../raw_events";
import { noteChosen, noteMoment } from "../../state/notes";
import { axisOf } from "../../state/axis";
import { spanOf } from "../../model/level";
import type { Span } from "../../model/span";
import { choose, PAN_STEP, panBy, ZOOM_STEP, zoomBy } from "../timeline/gestures";
import { toggleMarker } from "../timeline/marker";
import { pointerTime } from "../timeline/scene";
import { walk } from "../timeline/keys";
import { walkSteps } from "../timeline/step_strip";
import { SEARCH_BOX } from "./search";

/** Keys that work wherever nothing is being typed. */
export function pressed(store: Store, event: KeyboardEvent): void {
  if (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey) && !event.altKey) {
    store.paletteShown.value = !store.paletteShown.value;
    event.preventDefault();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
  if (store.paletteShown.value) return;
  if (store.helpShown.value && event.key !== "?") return; // the page is behind it
  const { area, marker } = store.view.value;
  if (event.key === "Escape" && (area || marker !== null)) {
    store.set(area ? { area: null } : { marker: null });
    event.preventDefault();
    return;
  }
  const act = ACTIONS[event.key]?.run ?? paneKey(store, event.key);
  if (act) {
    act(store);
    event.preventDefault();
  } else if (event.target === document.body) walk(store, event);
}

/** An action with its name in the palette. */
interface Action {
  name: string;
  run: (store: Store) => void;
}

export const ACTIONS: Record<string, Action> = {
  "/": { name: "Search", run: focusSearch },
  "?": {
    name: "Keys and terms",
    run: (store) => (store.helpShown.value = !store.helpShown.value),
  },
  e: {
    name: "All threads and ranks",
    run: (store) => store.set({ every: !store.view.value.every }),
  },
  "~": {
    name: "Device below its launches",
    run: (store) => store.set({ aligned: !store.view.value.aligned }),
  },
  w: { name: "Zoom in", run: (store) => zoomBy(axisOf(store), ZOOM_STEP) },
  s: { name: "Zoom out", run: (store) => zoomBy(axisOf(store), 1 / ZOOM_STEP) },
  a: { name: "Move left", run: (store) => panBy(axisOf(store), -PAN_STEP) },
  d: { name: "Move right", run: (store) => panBy(axisOf(store), PAN_STEP) },
  f: { name: "Zoom to what is selected", run: fit },
  "[": { name: "Previous step", run: (store) => walkSteps(store, -1) },
  "]": { name: "Next step", run: (store) => walkSteps(store, 1) },
  "0": { name: "Zoom to the whole level", run: (store) => axisOf(store).showAll() },
  m: { name: "This step only", run: (store) => store.set({ oneStep: !store.view.value.oneStep }) },
  t: {
    name: "Timeline as a table",
    run: (store) => store.set({ asTable: !store.view.value.asTable }),
  },
  c: { name: "Slowest on CPU", run: (store) => void store.descend() },
  g: { name: "Longest kernel", run: (store) => void store.longestKernel() },
  n: { name: "Note", run: note },
  r: { name: "Area of what is selected", run: area },
  k: { name: "Marker", run: toggleMarker },
  l: { name: "Light or dark", run: toggleTheme },
  p: { name: "Open in Perfetto", run: toPerfetto },
};

function focusSearch(): void {
  const box = document.getElementById(SEARCH_BOX) as HTMLInputElement | null;
  box?.focus();
  box?.select();
}

function note(store: Store): void {
  const time = pointerTime.peek();
  if (time !== null) noteMoment(store, time);
  else if (store.place.value) noteChosen(store);
  else
    store.notice.value =
      "Point at a moment of the timeline, or select an operation, to note something.";
}

function toPerfetto(store: Store): void {
  const path = store.view.value.chosen || store.view.value.path;
  if (!path || !store.host.live) return;
  openInPerfetto(store, path).catch((error: Error) => (store.notice.value = error.message));
}

/** Zooms to the area, or to the chosen operation, or back to the whole level. */
function fit(store: Store): void {
  const span = store.view.value.area ?? chosenSpan(store);
  if (span) axisOf(store).show(span);
  else axisOf(store).showAll();
}

/** Statistics of the selected operation's time, or of what is visible; its edges can be moved. */
function area(store: Store): void {
  choose(store, chosenSpan(store) ?? axisOf(store).window.value, []);
  requestAnimationFrame(() =>
    document.querySelector<HTMLElement>(".area-edge")?.focus({ preventScroll: true }),
  );
}

function chosenSpan(store: Store): Span | null {
  const place = store.place.value;
  return place && spanOf(place.level, place.index);
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
