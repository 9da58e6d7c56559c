import type { JSX } from "preact";
import { useRef } from "preact/hooks";
import { between, rounded, shifted, zoomed, type Span } from "../../model/span";
import type { AxisState } from "../../state/axis";
import type { Store } from "../../state/store";
import { gutter, pointerTime } from "./scene";

/** A drag shorter than this is a click, px. */
const DRAG_PX = 4;

interface Begun {
  x: number;
  y: number;
  window: Span;
  pans: boolean;
  moved: boolean;
}

/**
 * A drag over bars marks an area, with Shift, the middle button or a finger it moves the axis; the
 * wheel zooms with Ctrl and moves with Shift.
 */
export function useGestures(
  store: Store,
  axis: AxisState,
  width: number,
): JSX.HTMLAttributes<HTMLDivElement> {
  const begun = useRef<Begun | null>(null);
  const dragged = useRef(false);
  const scale = (window: Span): number => (window.to - window.from) / Math.max(width, 1);
  const timeAt = (x: number, box: HTMLElement): number => {
    const window = axis.window.peek();
    const left = box.querySelector(".stack-inner")!.getBoundingClientRect().left + gutter.value;
    return window.from + (x - left) * scale(window);
  };
  return {
    onPointerDown: (event) => {
      const onBars = (event.target as Element).closest(".level-bars, .track-bars, .counter-bars");
      if (!onBars || event.button > 1) return;
      const pans = event.shiftKey || event.button === 1 || event.pointerType === "touch";
      const { clientX: x, clientY: y } = event;
      begun.current = { x, y, window: axis.window.peek(), pans, moved: false };
      dragged.current = false;
      if (event.button === 1) event.preventDefault();
    },
    onPointerMove: (event) => {
      pointerTime.value = timeAt(event.clientX, event.currentTarget);
      const from = begun.current;
      if (!from || (!from.moved && Math.abs(event.clientX - from.x) < DRAG_PX)) return;
      if (!from.moved) event.currentTarget.setPointerCapture(event.pointerId);
      from.moved = true;
      if (from.pans)
        axis.show(shifted(from.window, (from.x - event.clientX) * scale(from.window), axis.end));
      else
        axis.marked.value = between(
          timeAt(from.x, event.currentTarget),
          timeAt(event.clientX, event.currentTarget),
          axis.end,
        );
    },
    onPointerUp: (event) => {
      const from = begun.current;
      const marked = axis.marked.peek();
      begun.current = null;
      axis.marked.value = null;
      if (!from?.moved) return;
      dragged.current = true;
      if (!from.pans && marked) {
        const tracks = tracksBetween(event.currentTarget, from.y, event.clientY);
        choose(store, marked, tracks);
      }
    },
    onPointerCancel: () => {
      begun.current = null;
      axis.marked.value = null;
    },
    onPointerLeave: () => (pointerTime.value = null),
    onClickCapture: (event) => {
      if (dragged.current) event.stopPropagation();
      dragged.current = false;
    },
    onWheel: (event) => {
      const window = axis.window.peek();
      const across = event.shiftKey ? event.deltaY : event.deltaX;
      if (event.ctrlKey || event.metaKey) {
        const time = timeAt(event.clientX, event.currentTarget);
        axis.show(zoomed(window, time, 1.2 ** (-event.deltaY / 50), axis.end));
      } else if (across) axis.show(shifted(window, across * scale(window), axis.end));
      else return;
      event.preventDefault();
    },
  };
}

/** Shows the statistics of an area in the side panel. */
export function choose(store: Store, span: Span, tracks: readonly string[]): void {
  store.set({ area: { ...rounded(span), tracks } });
}

/** The tracks that a drag passes; where it stays above them all that are listed. */
function tracksBetween(frame: HTMLElement, one: number, other: number): string[] {
  const [top, bottom] = [Math.min(one, other), Math.max(one, other)];
  const all = [...frame.querySelectorAll<HTMLElement>("[data-track]")];
  const met = all.filter((track) => {
    const box = track.getBoundingClientRect();
    return box.bottom > top && box.top < bottom;
  });
  return (met.length ? met : all).map((track) => track.dataset.track!);
}

/** How much nearer a key brings the axis, and what part of what is visible it moves it by. */
export const ZOOM_STEP = 1.4;
export const PAN_STEP = 0.15;

/** Moves the axis by a part of what is visible. */
export function panBy(axis: AxisState, share: number): void {
  const window = axis.window.peek();
  axis.show(shifted(window, share * (window.to - window.from), axis.end));
}

/** Zooms around the pointer, or the middle where it is elsewhere. */
export function zoomBy(axis: AxisState, factor: number): void {
  const window = axis.window.peek();
  const pointer = pointerTime.peek();
  const inside = pointer !== null && pointer >= window.from && pointer <= window.to;
  const at = inside ? pointer : (window.from + window.to) / 2;
  axis.show(zoomed(window, at, factor, axis.end));
}
