import type { JSX } from "preact";
import { useRef } from "preact/hooks";

const STEPS: Record<string, number> = {
  ArrowUp: 0.04,
  ArrowLeft: 0.04,
  ArrowDown: -0.04,
  ArrowRight: -0.04,
};

/** A line above an element at the window's foot: dragged, or moved with the arrow keys, it sets its height. */
export function Splitter(props: {
  label: string;
  /** The element whose height is set. */
  below: () => Element;
  /** The height as a share of the window's, 0 to 1. */
  share: number;
  /** The share that a double click goes back to. */
  usual: number;
  onMove: (share: number) => void;
}): JSX.Element {
  const { label, below, share, usual, onMove } = props;
  const line = useRef<HTMLDivElement>(null);
  /** How far above the element's start the pointer took the line, px. */
  const above = useRef(0);
  const grab = (event: PointerEvent): void => {
    line.current!.setPointerCapture(event.pointerId);
    above.current = below().getBoundingClientRect().top - event.clientY;
  };
  const move = (event: PointerEvent): void => {
    if (!line.current!.hasPointerCapture(event.pointerId)) return;
    const height = below().getBoundingClientRect().bottom - event.clientY - above.current;
    onMove(bounded(height / innerHeight));
  };
  const press = (event: KeyboardEvent): void => {
    const step = STEPS[event.key];
    if (step === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    onMove(bounded(share + step));
  };
  return (
    <div
      ref={line}
      class="splitter"
      role="separator"
      aria-orientation="horizontal"
      aria-label={label}
      aria-valuenow={Math.round(share * 100)}
      tabIndex={0}
      onPointerDown={grab}
      onPointerMove={move}
      onKeyDown={press}
      onDblClick={() => onMove(usual)}
    />
  );
}

function bounded(share: number): number {
  return Math.min(Math.max(share, 0.12), 0.7);
}
