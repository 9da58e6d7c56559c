import type { JSX } from "preact";
import { useRef } from "preact/hooks";

const STEPS: Record<string, number> = {
  ArrowUp: -0.04,
  ArrowLeft: -0.04,
  ArrowDown: 0.04,
  ArrowRight: 0.04,
};

/** A line below an element that scrolls: dragged, or moved with the arrow keys, it limits its height. */
export function Splitter(props: {
  label: string;
  /** The element whose height is limited. */
  above: () => Element;
  /** The limit as a share of the window's height, 0 to 1. */
  share: number;
  onMove: (share: number) => void;
}): JSX.Element {
  const { label, above, share, onMove } = props;
  const line = useRef<HTMLDivElement>(null);
  /** How far below the element's end the pointer took the line, px. */
  const below = useRef(0);
  const grab = (event: PointerEvent): void => {
    line.current!.setPointerCapture(event.pointerId);
    below.current = event.clientY - above().getBoundingClientRect().bottom;
  };
  const move = (event: PointerEvent): void => {
    if (!line.current!.hasPointerCapture(event.pointerId)) return;
    const height = event.clientY - below.current - above().getBoundingClientRect().top;
    onMove(bounded(height / innerHeight));
  };
  const press = (event: KeyboardEvent): void => {
    const step = STEPS[event.key];
    if (step === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    // What is shorter than its limit shrinks from its own height on.
    const shown = above().getBoundingClientRect().height / innerHeight;
    onMove(bounded((step < 0 ? Math.min(shown, share) : share) + step));
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
      onDblClick={() => onMove(0.5)}
    />
  );
}

function bounded(share: number): number {
  return Math.min(Math.max(share, 0.12), 0.88);
}
