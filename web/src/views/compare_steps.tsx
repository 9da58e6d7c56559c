import { signal, type Signal } from "@preact/signals";
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import type { StepOutline } from "../api/types";
import { duration, words } from "../base/format";
import { rowsOf, timesOf, together, type Side, type TwoTimelines } from "../model/rectangles";
import type { Span } from "../model/span";
import { perStore } from "../state/per_store";
import type { Store } from "../state/store";
import { openStage } from "./overview";
import { Timelines, type Titles } from "./two_timelines";

const zoomOf = perStore((): Signal<Span | null> => signal(null));
const stageOf = perStore((): Signal<string | null> => signal(null));

/** A step of each trace from its start, on one axis; a stage chosen in one stands out in both. */
export function ComparedSteps(props: {
  store: Store;
  value: Record<Side, StepOutline>;
  names: Record<Side, string>;
}): JSX.Element {
  const { store, names } = props;
  const { before, after } = props.value;
  const value = useMemo(() => together(before, after), [before, after]);
  const stage = stageOf(store);
  const titles: Titles = {
    before: { name: `Before: ${names.before}, step ${before.step}`, note: "" },
    after: { name: `Now: ${names.after}, step ${after.step}`, note: "" },
  };
  return (
    <div class="compared-steps">
      {stage.value !== null && <StageTimes store={store} value={value} stage={stage.value} />}
      <Timelines
        timeline={value}
        titles={titles}
        label="Steps of both traces"
        changed
        zoom={zoomOf(store)}
        chosen={{ stage: stage.value, onChoose: (one) => (stage.value = one) }}
      />
    </div>
  );
}

/** How long a stage takes in both, row by row. */
function StageTimes(props: { store: Store; value: TwoTimelines; stage: string }): JSX.Element {
  const { store, value, stage } = props;
  const rows = useMemo(() => rowsOf(value), [value]);
  const before = new Map(timesOf(value, rows, "before", stage));
  const after = new Map(timesOf(value, rows, "after", stage));
  const text = (us: number | undefined): string => (us === undefined ? "–" : duration(us * 1000));
  return (
    <p class="stage-times" role="status">
      <span class={`swatch c-${stage}`} aria-hidden="true" /> <strong>{words(stage)}</strong>
      {[...new Set([...before.keys(), ...after.keys()])].map((row) => (
        <span key={row}>
          {row} {text(before.get(row))} → {text(after.get(row))}
        </span>
      ))}
      {after.size > 0 && (
        <button type="button" class="chip" onClick={() => openStage(store, stage)}>
          Show in the timeline
        </button>
      )}
    </p>
  );
}
