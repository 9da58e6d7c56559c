import type { JSX } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { beforePaint } from "../../base/frame";
import { prefixes } from "../../base/path";
import type { Store } from "../../state/store";
import { PairSwitch } from "./pair";
import { SavePicture } from "../save_picture";
import { RawEvents } from "../raw_events";

/** The way to the lowest level, and what can be done with the timeline. */
export function TimelineTools({ store }: { store: Store }): JSX.Element {
  const view = store.view.value;
  const device = store.overview.value.value?.has.device ?? false;
  return (
    <div class="timeline-tools">
      <Way store={store} />
      <PairSwitch store={store} />
      <span class="tool-group">
        <button
          type="button"
          title="Follow the slowest operations on the CPU to the innermost (c)"
          onClick={() => void store.descend()}
        >
          <span class="wide">Slowest on </span>CPU ↓
        </button>
        {device && (
          <button
            type="button"
            title="Go to the longest kernel of the step on screen (g)"
            onClick={() => void store.longestKernel()}
          >
            <span class="wide">Longest </span>kernel ↓
          </button>
        )}
      </span>
      <label
        class="switch"
        title="All threads, streams and ranks, not only the busiest of each kind (e)"
      >
        <input
          type="checkbox"
          checked={view.every}
          onChange={(event) => store.set({ every: event.currentTarget.checked })}
        />
        All<span class="wide"> threads and ranks</span>
      </label>
      <button
        type="button"
        aria-pressed={view.asTable}
        title="The same as a table (t)"
        onClick={() => store.set({ asTable: !view.asTable })}
      >
        Table
      </button>
      <SavePicture
        store={store}
        of="timeline"
        parts={[".axis-head", ".stack-inner", ".timeline > .legend"]}
        disabled={view.asTable}
      />
      <RawEvents store={store} path={view.chosen || (view.path ?? "")} />
    </div>
  );
}

/** A longer way leaves out its middle, whose levels are named beside their strips. */
const MOST_OF_WAY = 5;
/** Letters of a name that is never cut off, as of most stages. */
const SHORT = 9;

/** trace › step 5 › forward: each opens its level again. */
function Way({ store }: { store: Store }): JSX.Element {
  const levels = store.levels.value.value ?? [];
  const deepest = levels.at(-1)?.path ?? "";
  const paths = prefixes(deepest);
  const nav = useRef<HTMLElement>(null);
  useLayoutEffect(
    () => beforePaint(() => (nav.current!.scrollLeft = nav.current!.scrollWidth)),
    [deepest],
  );
  return (
    <nav aria-label="Path" class="way" ref={nav}>
      {paths.map((path, depth) => {
        const title = levels[depth]?.title ?? "trace";
        const left = paths.length - depth;
        if (paths.length > MOST_OF_WAY && depth > 1 && left > 1)
          return left === 2 && <span key="between">…</span>;
        return (
          <button
            key={path}
            type="button"
            class="link"
            aria-current={depth === paths.length - 1 ? "page" : undefined}
            title={title}
            style={title.length <= SHORT ? { flexShrink: 0 } : undefined}
            onClick={() => store.open(path)}
          >
            {title}
          </button>
        );
      })}
    </nav>
  );
}
