import { join, parent } from "../../base/path";
import type { Level } from "../../model/level";
import type { Store } from "../../state/store";
import { axisOf, type AxisState } from "../../state/axis";
import { PAN_STEP, panBy, ZOOM_STEP, zoomBy } from "./gestures";
import { activate } from "./level";

/** Walks the timeline: left and right within a level, up and down between levels. */
export function walk(store: Store, event: KeyboardEvent): void {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const { area, marker } = store.view.value;
  if (event.key === "Escape" && (area || marker !== null)) return; // closes these first
  if (event.key === "Enter" && event.target instanceof HTMLButtonElement) return;
  const pan = event.shiftKey && MOVES[event.key];
  if (pan) {
    pan(axisOf(store));
    event.preventDefault();
    event.stopPropagation();
    return;
  }
  const act = ACTIONS[event.key];
  if (!act) return;
  act(store);
  event.preventDefault();
  event.stopPropagation();
}

/** With Shift the arrow keys move and zoom the axis. */
const MOVES: Record<string, (axis: AxisState) => void> = {
  ArrowLeft: (axis) => panBy(axis, -PAN_STEP),
  ArrowRight: (axis) => panBy(axis, PAN_STEP),
  ArrowUp: (axis) => zoomBy(axis, ZOOM_STEP),
  ArrowDown: (axis) => zoomBy(axis, 1 / ZOOM_STEP),
};

const ACTIONS: Record<string, (store: Store) => void> = {
  ArrowRight: (store) => sideways(store, (at) => at + 1),
  ArrowLeft: (store) => sideways(store, (at) => at - 1),
  Home: (store) => sideways(store, () => 0),
  End: (store) => sideways(store, (_, size) => size - 1),
  ArrowDown: down,
  ArrowUp: (store) => {
    const { chosen } = store.view.value;
    if (parent(chosen)) store.choose(parent(chosen));
  },
  Enter: (store) => {
    const [place, { chosen }] = [store.place.value, store.view.value];
    if (place) activate(store, place.level, place.index);
    else if (chosen) store.open(parent(chosen), chosen);
  },
  Escape: (store) => store.up(),
  Backspace: (store) => store.up(),
};

function sideways(store: Store, to: (at: number, size: number) => number): void {
  const place = store.place.value;
  const level = place?.level ?? store.levels.value.value?.at(-1);
  if (!level?.size) return;
  const order = level.inOrder();
  const at = place ? order.indexOf(place.index) : -1;
  const next = Math.min(Math.max(to(at, order.length), 0), order.length - 1);
  store.choose(join(level.path, level.wire.operations.id[order[next]!]!));
}

/** Into the level below, opened first where it is not, to its longest operation. Where nothing is
 * selected, that is the lowest level on screen. */
function down(store: Store): void {
  const { chosen, path } = store.view.value;
  const below = (store.levels.value.value ?? []).find((one) => one.path === (chosen || path));
  if (below && path !== null) chooseLongest(store, below);
  else {
    const place = store.place.value;
    if (place) activate(store, place.level, place.index);
  }
}

function chooseLongest(store: Store, level: Level): void {
  const longest = level.longest();
  if (longest >= 0) store.choose(level.operation(longest).path);
}
