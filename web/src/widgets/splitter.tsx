import type { JSX } from "preact";
import { useRef } from "preact/hooks";

/** A line between two areas that can be dragged, or moved with the arrow keys. */
export function Splitter(props: {
  label: string;
  along: "x" | "y";
  /** The share of the first area, 0 to 1. */
  share: number;
  onMove: (share: number) => void;
}): JSX.Element {
  const line = useRef<HTMLDivElement>(null);
  const move = (event: PointerEvent): void => {
    if (!line.current?.hasPointerCapture(event.pointerId)) return;
    const box = line.current.parentElement!.getBoundingClientRect();
    const share =
      props.along === "y"
        ? (event.clientY - box.top) / box.height
        : (event.clientX - box.left) / box.width;
    props.onMove(bounded(share));
  };
  const press = (event: KeyboardEvent): void => {
    const steps: Record<string, number> = {
      ArrowUp: -0.04,
      ArrowLeft: -0.04,
      ArrowDown: 0.04,
      ArrowRight: 0.04,
    };
    const step = steps[event.key];
    if (step === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    props.onMove(bounded(props.share + step));
  };
  return (
    <div
      ref={line}
      class={`splitter splitter-${props.along}`}
      role="separator"
      aria-orientation={props.along === "y" ? "horizontal" : "vertical"}
      aria-label={props.label}
      aria-valuenow={Math.round(props.share * 100)}
      tabIndex={0}
      onPointerDown={(event) => line.current?.setPointerCapture(event.pointerId)}
      onPointerMove={move}
      onKeyDown={press}
      onDblClick={() => props.onMove(0.5)}
    />
  );
}

function bounded(share: number): number {
  return Math.min(Math.max(share, 0.12), 0.88);
}
