import type { ReadonlySignal } from "@preact/signals";
import type { JSX } from "preact";
import type { Scene } from "../../render/renderer";
import { isOpened, type ChosenPlace, type Partner } from "../../state/store";
import { holds, join } from "../../base/path";
import type { Level } from "../../model/level";
import { placeOf, type PlacedSlice } from "../../model/launches";
import { LINE_PX } from "../../render/tracks";
import type { AxisState } from "../../state/axis";
import { extent, gutter } from "./scene";

/** An arrow between two operations, or the two sides of one. */
export interface Arrow {
  kind: "launch" | "forward" | "backward";
  from: Point;
  to: Point;
}

interface Point {
  x: number;
  y: number;
}

/** A level as it is on screen: its place in the stack and how it is laid out. */
export interface Shown {
  level: Level;
  scene: Scene;
  top: number;
}

/**
 * Arrows of the chosen operation: from its call to its device work, and to its partners.
 *
 * A partner that is not on screen by itself is shown where the smallest operation is that holds it.
 */
export function arrowsOf(place: ChosenPlace, partners: Partner[], shown: Shown[]): Arrow[] {
  const own = shown.find((one) => one.level === place.level);
  if (!own) return [];
  const chosen = place.level.operation(place.index).path;
  const arrows: Arrow[] = [];
  const [cpu, device] = (["cpu", "device"] as const).map((side) => ends(own, place.index, side));
  if (cpu && device) arrows.push({ kind: "launch", from: cpu.below, to: device.above });
  const from = cpu ?? device;
  for (const partner of partners) {
    const to = smallest(shown, partner.path, chosen);
    if (!from || !to) continue;
    const toLaunch = partner.kind === "launch";
    arrows.push(
      toLaunch
        ? { kind: partner.kind, from: to.below, to: from.above }
        : { kind: partner.kind, from: from.above, to: to.above },
    );
  }
  return arrows;
}

/** Arrows on the tracks, from calls to the device work that they launched. */
export function launchArrows(
  frame: HTMLElement,
  axis: AxisState,
  launches: [from: number, to: number][],
  width: number,
): Arrow[] {
  const window = axis.window.peek();
  const x = (ns: number): number => {
    const share = (ns - window.from) / (window.to - window.from);
    return gutter.value + Math.min(Math.max(share, 0), 1) * width;
  };
  return launches.flatMap(([call, work]): Arrow[] => {
    const [from, to] = [placeOf(axis.drawn, call), placeOf(axis.drawn, work)];
    const [above, below] = [from, to].map((one) => one && topOf(frame, one));
    if (!from || !to || above == null || below == null) return [];
    return [
      {
        kind: "launch",
        from: { x: x(from.start), y: above + LINE_PX },
        to: { x: x(to.start), y: below },
      },
    ];
  });
}

/** Where the line of a slice begins in the stack, px. */
function topOf(frame: HTMLElement, slice: PlacedSlice): number | null {
  const track = frame.querySelector<HTMLElement>(`[data-track="${slice.track}"]`);
  if (!track) return null;
  const lines = Math.round((track.clientHeight - 3) / LINE_PX);
  return track.offsetTop + Math.min(slice.depth, lines - 1) * LINE_PX;
}

interface Ends {
  above: Point;
  below: Point;
}

function ends(shown: Shown, operation: number, side?: "cpu" | "device"): Ends | null {
  const box = extent(shown.scene.layout, operation, side);
  if (!box || box.right < 0 || box.left > shown.scene.layout.width) return null; // out of sight
  const x =
    gutter.value + Math.min(Math.max((box.left + box.right) / 2, 0), shown.scene.layout.width);
  const start = gutter.value + Math.min(Math.max(box.left, 0), shown.scene.layout.width);
  return {
    above: { x: side === "device" ? start + 2 : x, y: shown.top + box.top },
    below: { x: side === "cpu" ? start + 2 : x, y: shown.top + box.top + shown.scene.layout.bar },
  };
}

/** The smallest operation on screen that holds a path and is apart from the chosen one. */
function smallest(shown: Shown[], path: string, chosen: string): Ends | null {
  if (holds(chosen, path)) return null;
  for (const one of [...shown].reverse()) {
    const { level } = one;
    const index = level.wire.operations.id.findIndex((id) => {
      const own = join(level.path, id);
      return holds(own, path) && !holds(own, chosen);
    });
    if (index >= 0) return ends(one, index);
  }
  return null;
}

/** The operation of a level that leads to a path. */
export function openedIn(level: Level, path: string | null): number {
  if (path === null || path === level.path) return -1;
  return level.wire.operations.id.findIndex((id) => isOpened(join(level.path, id), path));
}

export function Arrows({ arrows }: { arrows: ReadonlySignal<Arrow[]> }): JSX.Element {
  return (
    <svg class="arrows" aria-hidden="true">
      <defs>
        <marker
          id="arrow-head"
          viewBox="0 0 8 8"
          refX="7"
          refY="4"
          markerWidth="7"
          markerHeight="7"
          orient="auto"
        >
          <path d="M0 0 8 4 0 8z" />
        </marker>
      </defs>
      {arrows.value.map((one, i) => (
        <path
          key={i}
          class={`arrow arrow-${one.kind}`}
          d={curve(one)}
          marker-end="url(#arrow-head)"
        />
      ))}
    </svg>
  );
}

function curve({ kind, from, to }: Arrow): string {
  if (kind === "launch") {
    const middle = (from.y + to.y) / 2;
    return `M${from.x} ${from.y} C${from.x} ${middle} ${to.x} ${middle} ${to.x} ${to.y - 1}`;
  }
  // Both ends leave upwards, so that the arc is seen over what lies between them.
  const high = Math.max(Math.min(from.y, to.y) - 16, 2);
  return `M${from.x} ${from.y} C${from.x} ${high} ${to.x} ${high} ${to.x} ${to.y - 1}`;
}
