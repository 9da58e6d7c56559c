import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import type { LivingRow } from "../../api/types";
import { bytes } from "../../base/format";
import { shortLine } from "../../model/memory";
import type { MemoryState } from "../../state/memory";

/** Who allocated the largest of the chosen row, at first the largest of all; innermost first. */
export function Stack({ state }: { state: MemoryState }): JSX.Element | null {
  const { living, frames } = state.moment.value.value ?? { living: [], frames: [] };
  const chosen = living.find((row) => keyOf(row) === state.row.value);
  const row = chosen ?? living.reduce<LivingRow | null>(larger, null);
  const place = useRef<HTMLElement>(null);
  useEffect(() => {
    if (chosen) place.current?.scrollIntoView({ block: "nearest" });
  }, [chosen]);
  if (!row?.count) return null;
  return (
    <section class="memory-stack" aria-label="Stack of an allocation" ref={place}>
      <h2 class="pane-heading" aria-live="polite">
        Stack of {chosen && row.count === 1 ? "the" : chosen ? "its largest" : "the largest"}{" "}
        allocation: {bytes(row.largest)} of {row.kind === "unknown" ? "unknown use" : row.kind}
      </h2>
      {row.stack.length > 0 ? (
        <ol tabIndex={0} aria-label="Frames, the innermost first">
          {row.stack.map((frame, at) => (
            <li key={at} class={frames[frame] === row.line ? "own" : ""} title={frames[frame]}>
              {shortLine(frames[frame]!)}
            </li>
          ))}
        </ol>
      ) : (
        <p class="dim">No stack was recorded: it was allocated before the recording, or outside of Python.</p>
      )}
    </section>
  ); // prettier-ignore
}

function larger(a: LivingRow | null, b: LivingRow): LivingRow {
  return a && a.largest >= b.largest ? a : b;
}

/** What tells a row from the others of its moment. */
export const keyOf = (row: LivingRow): string => `${row.kind} ${row.module_id} ${row.line}`;
