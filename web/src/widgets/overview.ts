import type { RefObject } from "preact";
import { useRef } from "preact/hooks";
import type { Span } from "../model/span";

/** A part that is narrower can still be seen and held. */
const LEAST_PX = 3;

interface Overview {
  /** Where the visible part is drawn. */
  left: number;
  size: number;
  /** A drag moves the visible part, and a click brings it there. */
  drag: {
    onPointerDown: (event: PointerEvent) => void;
    onPointerMove: (event: PointerEvent) => void;
    onPointerUp: () => void;
    onPointerCancel: () => void;
  };
}

/** The visible part of a whole that is drawn on a canvas. */
export function useOverview(
  canvas: RefObject<HTMLCanvasElement>,
  scale: number,
  window: Span,
  show: (span: Span) => void,
): Overview {
  const held = useRef<number | null>(null);
  const left = window.from * scale;
  const size = Math.max((window.to - window.from) * scale, LEAST_PX);
  const at = (event: PointerEvent): number =>
    event.clientX - canvas.current!.getBoundingClientRect().left;
  const move = (event: PointerEvent): void => {
    if (held.current === null) return;
    const from = (at(event) - held.current) / scale;
    show({ from, to: from + window.to - window.from });
  };
  const release = (): void => {
    held.current = null;
  };
  const take = (event: PointerEvent): void => {
    (event.currentTarget as Element).setPointerCapture(event.pointerId);
    held.current = at(event) >= left && at(event) <= left + size ? at(event) - left : size / 2;
    move(event);
  };
  const drag = { onPointerDown: take, onPointerMove: move, onPointerUp: release };
  return { left, size, drag: { ...drag, onPointerCancel: release } };
}
